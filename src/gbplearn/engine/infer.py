"""Inference as the user calls it: `init` and `step`, one iteration at a time, and `infer` until it converges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.forked import check_not_forked
from ..core.tracing import refuse_jit, refuse_traced
from ..core.vector import Belief
from ..graph.data import Data
from ..graph.graph import FactorGraph, all_proper
from ..graph.problem import Problem
from .damping import Damping
from .diagnostics import no_diagnostics
from .guard.guard import Guard, GuardedRun, Outcome, as_guard
from .linearisation import Relinearise
from .loop import Enough, run
from .moves import scheduled
from .options import make_options
from .program import Begun, Program, begin, program_of
from .result import FoundBeliefs, InferenceError, Result, Status, Trace
from .resume import earlier
from .rounding import find_beliefs, may_be_rounding
from .schedules import Schedule
from .state import Messages, State, empty_state
from .tree import all_linear


def init(
    graph: FactorGraph,
    *,
    evidence: Mapping[str, Any] | None = None,
    relinearise: Relinearise = 1,
    messages: str = "auto",
    seed: int = 0,
) -> State:
    """A state in which no message has been sent yet, for `gbp.step`."""
    return empty_state(graph.problem(evidence, messages), jax.random.PRNGKey(seed), relinearise != 1)


def step(
    graph: FactorGraph,
    state: State,
    *,
    evidence: Mapping[str, Any] | None = None,
    damping: float | Damping = 0.0,
    dropout: float | Damping = 0.0,
    schedule: Schedule | None = None,
    relinearise: Relinearise = 1,
    messages: str = "auto",
) -> State:
    """One iteration (a full schedule) from `state`, which stays usable. There is no guard."""
    problem = graph.problem(evidence, messages)
    _check_state(problem, state)
    options = make_options(graph, problem, damping, dropout, schedule, relinearise)
    state = scheduled(problem, state, options, state.key)
    return run(problem, state, options, no_diagnostics(problem), jnp.asarray(1), Enough(jnp.asarray(0.0)))[0]


def beliefs(
    graph: FactorGraph, state: State, *, evidence: Mapping[str, Any] | None = None, messages: str = "auto"
) -> dict[str, Belief]:
    """The current belief of every variable."""
    problem = graph.problem(evidence, messages)
    _check_state(problem, state)
    return dict(FoundBeliefs(program_of(graph, problem), problem, state))


def initial_key(seed: int) -> np.ndarray:
    """JAX's key of a seed. To make one takes as long as an iteration of a small graph, and compiles."""
    kind = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    if kind == "threefry2x32" and isinstance(seed, int) and 0 <= seed < 2**31:
        return np.asarray([0, seed], np.uint32)
    return np.asarray(jax.random.PRNGKey(seed))


# Rounding of means that is never reported, in standard deviations.
_SMALL_ROUNDING = 1e-3


def _check_state(problem: Problem, state: State) -> None:
    fresh = jax.eval_shape(lambda: empty_state(problem, state.key, False))
    expected, given = (fresh.messages, fresh.noise), (state.messages, state.noise)
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(given))
    same = jax.tree.structure(expected) == jax.tree.structure(given)
    same = same and all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
    if not same:
        raise ValueError("the state belongs to another graph, or to one with other variables observed or noise learnt")


def _with_messages(state: State, problem: Problem, initial: Mapping[str, tuple[Messages, ...]]) -> State:
    """A state in which only some factor groups have sent messages: `initial`, by name."""
    known = [group.name in initial for group in problem.groups]
    rows = (initial.get(group.name, fresh) for group, fresh in zip(problem.groups, state.messages))
    visits = jnp.asarray(np.array(known, np.int32))  # the first message of an edge would be taken whole
    return dataclasses.replace(state, messages=tuple(rows), visits=visits)


def infer(
    graph: FactorGraph | Program,
    *,
    data: Data | None = None,
    iterations: int = 1000,
    tolerance: float = 1e-3,
    settled: float | None = None,
    damping: float | Damping = 0.0,
    dropout: float | Damping = 0.0,
    schedule: Schedule | None = None,
    relinearise: Relinearise = 1,
    messages: str = "auto",
    evidence: Mapping[str, Any] | None = None,
    init: Result | State | Mapping[str, tuple[Messages, ...]] | None = None,
    guard: bool | Guard = True,
    throw: bool = True,
    seed: int = 0,
    origin: Callable[[], FactorGraph] | None = None,
) -> Result:
    """Pass messages until the beliefs come to rest.

    **Arguments:**

    - `graph`: the graph; or its program (`gbp.compile`), with `data`: its numbers (`graph.data()`).
    - `iterations`: at most so many full schedules.
    - `tolerance`: converged when the undamped proposed change of every belief is smaller, in two iterations in a row:
        `|new mean - mean| / std` and `|log precision ratio|`.
    - `settled`: also stop when the parameters (variables of that kind) have settled: the same change of their means,
        and of their log precisions, is smaller, root mean square over the parameters of each factor group. Activations
        at the kink of a `max` or a ReLU may jump to and fro for ever, without any consequence for the parameters.
    - `damping`: weight of the old message: a number, or `gbp.Damping(...)` by variable.
    - `dropout`: probability that an edge keeps its old message; a number, or `gbp.Damping(...)` by variable.
    - `schedule`: `gbp.Sweep()`, `gbp.RandomLayers()`, `gbp.Residual()`, `gbp.Order(...)`, `gbp.TreeOrder()`. By
        default a sweep, and the tree order for deep linear graphs with few loops or none: without them it is exact
        after one iteration.
    - `relinearise`: nonlinear factors every visit (1), every n visits, `gbp.OnMovement(threshold)`, or
        `gbp.AfterVisit()`.
    - `messages`: "per-edge" keeps every message; "pooled" keeps their product into each unit, with a reaction term for
        each factor (see `gbplearn.engine.update`): much less to store, the same means on linear graphs, precisions to
        first order; "auto" pools the large edge sets of layers.
    - `evidence`: `{name: value}`, `{name: (value, mask)}` or `{name: belief}` (a Gaussian to hold a variable at), on
        top of `graph.observe` and `graph.hold`. New values never recompile.
    - `init`: a previous result or state to start from (a warm start); or messages of some factor groups by name, while
        the others have sent none yet. (Not of groups whose messages are in a prior already: they would count twice.)
    - `guard`: detect divergence and cure it: more damping, then proximal factors. A `gbp.Guard(...)` has its
        thresholds as fields.
    - `throw`: raise `gbp.InferenceError` if inference diverges for good; else return the last good state.
    - `seed`: for dropout and random schedules.
    - `origin`: of a program, makes the graph that it is of, for those who ask the result for it.

    **Returns:** a `Result`.
    """
    if not (isinstance(iterations, int) and iterations >= 1):
        raise ValueError(f"iterations must be a whole number >= 1, got {iterations!r}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be >= 0, got {tolerance!r}")
    if settled is not None and not settled >= 0:
        raise ValueError(f"settled must be >= 0, or None, got {settled!r}")
    if init is not None and not isinstance(init, (Result, State, Mapping)):
        raise TypeError(f"init must be a gbp.Result or a gbp.State, got {type(init).__name__}")
    check_not_forked()
    refuse_jit("gbp.infer")
    if isinstance(graph, Program):
        if data is None or evidence is not None:
            raise ValueError("infer: a program needs data=, in which the evidence is (graph.data(evidence))")
        refuse_traced("infer: data", data)
        program = graph
    else:
        if data is not None:
            raise ValueError("infer: data= belongs to a program (gbp.compile); a graph has its own numbers")
        if not graph.factors:
            raise ValueError("the graph has no factors: add some with graph.add(gbp.Factor(...))")
        program, data = graph.with_structure(program_of, evidence, messages)
        origin = partial(_itself, graph)

    given, bare = data, program.structure.problem
    schedule = program.schedule if schedule is None else schedule
    options = make_options(
        program, bare, damping, dropout, schedule, relinearise, lambda: program.structure.with_data(given)
    )
    key = initial_key(seed)
    if isinstance(init, Result):
        # A state keeps stored points if it had some before, whatever the options.
        was = earlier(program.structure, init.problem, init.state)
        begun = begin(program, data, options, key, any(p is not None for p in init.state.points), was)
    else:
        begun = begin(program, data, options, key, relinearise != 1)
    problem, state = begun.problem, begun.state
    if init is not None and not isinstance(init, Result):
        state = init if isinstance(init, State) else _with_messages(state, problem, init)
        _check_state(problem, state)
        state = scheduled(problem, state, options, state.key)
        state = jax.tree.map(jnp.copy, state)  # the loop gives its buffers away
    limit = -1.0 if settled is None else settled
    if options.plan is not None and not options.plan.outside and all_linear(problem):
        iterations = min(iterations, 2)  # the first is exact; what a second one still moves is rounding
    outcome = GuardedRun(problem, begun.latest, options, iterations, tolerance, as_guard(guard), limit).run(state)
    result = _result(program, begun, outcome, tolerance, origin)
    if throw and result.status is Status.DIVERGED:
        raise InferenceError(result.message, result)
    return result


def _itself(graph: FactorGraph) -> FactorGraph:
    return graph


def _result(
    program: Program, begun: Begun, outcome: Outcome, tolerance: float, origin: Callable[[], FactorGraph] | None
) -> Result:
    problem = begun.problem
    good = Status.SETTLED if outcome.settled else Status.CONVERGED
    status = Status.DIVERGED if outcome.failed else good if outcome.converged else Status.ITERATION_LIMIT
    names = [g.name for g in problem.groups]
    rows = outcome.trace
    residuals, energy, switched, priors = (
        np.asarray(x) for x in (rows.residual, rows.energy, rows.switched, rows.prior)
    )
    found, lost = None, {}
    if status in (Status.CONVERGED, Status.ITERATION_LIMIT) or outcome.rounding:
        found, rounding = find_beliefs(problem, outcome.state)
        off = {n: float(x) for n, x in rounding.items()}
        lost = {n: x for n, x in off.items() if x > max(tolerance, _SMALL_ROUNDING)}
        if outcome.rounding and not lost:  # less than the tolerance, but nothing else moves
            lost = {worst: off[worst] for worst in (max(off, key=off.__getitem__),)}
        # What rounding moves to and fro never comes to rest.
        restless = status is Status.ITERATION_LIMIT and may_be_rounding(float(residuals[-1].max()), off)
        if lost and (status is Status.CONVERGED or restless or outcome.rounding):
            status = Status.ROUNDING
    trace = Trace(
        np.max(residuals, axis=1, initial=0.0),
        {n: energy[:, i] for i, n in enumerate(names)},
        priors.sum(1),
        {n: switched[:, i] for i, n in enumerate(names)},
        {n: residuals[:, i] for i, n in enumerate(names)},
    )
    message = status.value
    if status is Status.CONVERGED and found is not None:
        maybe = [n for n in found if n not in problem.proper and problem.touching(n)]
        unknown = [n for n in maybe if not all_proper(found[n])]
        message += f"; not everything is known of {', '.join(unknown)}" if unknown else ""
    if status is Status.ROUNDING:
        message = _rounding_message(lost, program.dtype)
    if outcome.where is not None:
        g, iteration = outcome.where
        message = f"{message} (group '{names[g]}', iteration {iteration})"
    if status in (Status.ITERATION_LIMIT, Status.DIVERGED) and outcome.means is None:
        worst = int(np.argmax(residuals[-1]))
        message += f"; largest residual {residuals[-1, worst]:.2g} in group '{names[worst]}'"
    if outcome.events and outcome.failed:
        message += f" ({outcome.events[-1]})"
    learnt = zip(problem.groups, outcome.state.noise)
    noise = {g.name: math.sqrt(float(v)) for g, v in learnt if v is not None and g.slots}
    beliefs = FoundBeliefs(program, problem, outcome.state, outcome.means, found)
    return Result(
        beliefs, status, message, len(residuals), noise, trace, tuple(outcome.events), outcome.state, problem,
        origin, begun.measurements,
    )  # fmt: skip


def _rounding_message(lost: dict[str, float], dtype: Any) -> str:
    """Which variables rounding has moved, and how far."""
    worst = max(lost, key=lost.__getitem__)
    more = "" if len(lost) == 1 else f" and {len(lost) - 1} more"
    how = f"'{worst}'{more}, by up to {lost[worst]:.1g} standard deviations"
    if np.isinf(lost[worst]):
        how = f"'{worst}'{more}: beside what was measured its prior is lost"
    cure = "use float64" if dtype == jnp.float32 else "take other units, or less extreme priors and noises"
    return f"{dtype} is not enough: rounding alone may have moved {how}; {cure}"
