"""Inference as the user calls it: `init` and `step`, one iteration at a time, and `infer` until it converges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core import linalg
from ..core.forked import check_not_forked
from ..core.gaussian import Gaussian
from ..core.tracing import refuse_jit
from ..graph.graph import FactorGraph, all_proper
from ..graph.group import Role
from ..graph.problem import Problem
from .damping import Damping
from .diagnostics import no_diagnostics
from .guard.guard import Guard, GuardedRun, Outcome, as_guard
from .linearisation import Relinearise
from .loop import Enough, run
from .options import make_options
from .result import InferenceError, Result, Status, Trace
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
    return run(problem, state, options, no_diagnostics(problem), jnp.asarray(1), Enough(jnp.asarray(0.0)))[0]


def beliefs(
    graph: FactorGraph, state: State, *, evidence: Mapping[str, Any] | None = None, messages: str = "auto"
) -> dict[str, Gaussian]:
    """The current belief of every variable."""
    problem = graph.problem(evidence, messages)
    _check_state(problem, state)
    return _by_name(graph, problem, find_beliefs(problem, state).beliefs)


# Rounding of means that is never reported, in standard deviations.
_SMALL_ROUNDING = 1e-3


def _by_name(graph: FactorGraph, problem: Problem, found: dict[str, Gaussian]) -> dict[str, Gaussian]:
    out = {}
    for name, variable in graph.variables.items():
        keep = graph.canonical(name)
        if keep in found or keep in problem.held:
            out[name] = found[keep] if keep in found else problem.held[keep]
        else:
            out[name] = Gaussian.point(problem.fixed[keep], block=variable.block)
    return out


def _check_state(problem: Problem, state: State) -> None:
    fresh = jax.eval_shape(lambda: empty_state(problem, state.key, False))
    expected, given = (fresh.messages, fresh.noise), (state.messages, state.noise)
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(given))
    same = jax.tree.structure(expected) == jax.tree.structure(given)
    same = same and all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
    if not same:
        raise ValueError("the state belongs to another graph, or to one with other variables observed or noise learnt")


def _warm_start(result: Result, problem: Problem) -> State:
    """A warm start: the messages of a result, as far as they go to variables that are not wholly observed now."""
    new, old = problem, result.problem
    state = empty_state(new, result.state.key, any(p is not None for p in result.state.points))
    if [g.name for g in new.groups] != [g.name for g in old.groups]:
        return result.state  # of another graph: `_check_state` raises
    rows = []
    for a, b, fresh, known in zip(new.groups, old.groups, state.messages, result.state.messages):
        kept = {place: known[i] for place, (role, i) in enumerate(b.arguments) if role is Role.SLOT}
        places = [place for place, (role, _) in enumerate(a.arguments) if role is Role.SLOT]
        # Where another slot holds the reaction now, it starts anew.
        rows.append(tuple(_with_reaction(kept.get(place), m) for place, m in zip(places, fresh)))
    points = result.state.points if new.prior.keys() == old.prior.keys() else state.points
    noise = tuple(a if a is None or b is None else b for a, b in zip(state.noise, result.state.noise))
    return dataclasses.replace(result.state, messages=tuple(rows), points=points, noise=noise)


def _with_reaction(old: Messages | None, new: Messages) -> Messages:
    if old is None:
        return new
    if (old.reaction is None) == (new.reaction is None):
        return old
    return dataclasses.replace(old, reaction=new.reaction)


def infer(
    graph: FactorGraph,
    *,
    iterations: int = 1000,
    tolerance: float = 1e-3,
    settled: float | None = None,
    damping: float | Damping = 0.0,
    dropout: float | Damping = 0.0,
    schedule: Schedule | None = None,
    relinearise: Relinearise = 1,
    messages: str = "auto",
    evidence: Mapping[str, Any] | None = None,
    init: Result | State | None = None,
    guard: bool | Guard = True,
    throw: bool = True,
    seed: int = 0,
) -> Result:
    """Pass messages until the beliefs come to rest.

    **Arguments:**

    - `iterations`: at most so many full schedules.
    - `tolerance`: converged when the undamped proposed change of every belief is smaller, in two iterations in a row:
        `|new mean - mean| / std` and `|log precision ratio|`.
    - `settled`: also stop when the parameters (variables of that kind) have settled: the same change of their means,
        and of their log precisions, is smaller, root mean square over the parameters of each factor group. Activations
        at the kink of a `max` or a ReLU may jump to and fro for ever, without any consequence for the parameters.
    - `damping`: weight of the old message: a number, or `gbp.Damping(...)` by variable.
    - `dropout`: probability that an edge keeps its old message; a number, or `gbp.Damping(...)` by variable.
    - `schedule`: `gbp.Sweep()`, `gbp.RandomLayers()`, `gbp.Residual()`, `gbp.Order(...)`, `gbp.TreeOrder()`. By
        default a sweep, and the tree order for deep linear graphs without loops: it is exact after one iteration.
    - `relinearise`: nonlinear factors every visit (1), every n visits, `gbp.OnMovement(threshold)`, or
        `gbp.AfterVisit()`.
    - `messages`: "per-edge" keeps every message; "pooled" keeps their product into each unit, with a reaction term for
        each factor (see `gbplearn.engine.update`): much less to store, the same means on linear graphs, precisions to
        first order; "auto" pools the large edge sets of layers.
    - `evidence`: `{name: value}`, `{name: (value, mask)}` or `{name: belief}` (a Gaussian to hold a variable at), on
        top of `graph.observe` and `graph.hold`. New values never recompile.
    - `init`: a previous result or state to start from (a warm start).
    - `guard`: detect divergence and cure it: more damping, then proximal factors. A `gbp.Guard(...)` has its
        thresholds as fields.
    - `throw`: raise `gbp.InferenceError` if inference diverges for good; else return the last good state.
    - `seed`: for dropout and random schedules.

    **Returns:** a `Result`.
    """
    if not (isinstance(iterations, int) and iterations >= 1):
        raise ValueError(f"iterations must be a whole number >= 1, got {iterations!r}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be >= 0, got {tolerance!r}")
    if not graph.factors:
        raise ValueError("the graph has no factors: add some with graph.add(gbp.Factor(...))")
    check_not_forked()
    refuse_jit("gbp.infer")
    problem = graph.problem(evidence, messages)
    options = make_options(graph, problem, damping, dropout, schedule, relinearise)
    if init is None:
        state = empty_state(problem, jax.random.PRNGKey(seed), relinearise != 1)
    else:
        if not isinstance(init, (Result, State)):
            raise TypeError(f"init must be a gbp.Result or a gbp.State, got {type(init).__name__}")
        state = _warm_start(init, problem) if isinstance(init, Result) else init
        _check_state(problem, state)
        state = jax.tree.map(jnp.copy, state)  # the loop gives its buffers away
    if settled is not None and not settled >= 0:
        raise ValueError(f"settled must be >= 0, or None, got {settled!r}")
    limit = -1.0 if settled is None else settled
    if options.plan is not None and all_linear(problem):
        iterations = min(iterations, 2)  # the first is exact; what a second one still moves is rounding
    outcome = GuardedRun(problem, options, iterations, tolerance, as_guard(guard), limit).run(state)
    result = _result(graph, problem, outcome, tolerance)
    if throw and result.status is Status.DIVERGED:
        raise InferenceError(result.message, result)
    return result


def _result(graph: FactorGraph, problem: Problem, outcome: Outcome, tolerance: float) -> Result:
    found, rounding = find_beliefs(problem, outcome.state)
    if outcome.means is not None:
        found = {name: _with_mean(g, outcome.means[name]) for name, g in found.items()}
    good = Status.SETTLED if outcome.settled else Status.CONVERGED
    status = Status.DIVERGED if outcome.failed else good if outcome.converged else Status.ITERATION_LIMIT
    names = [g.name for g in problem.groups]
    rows = outcome.trace
    residuals, energy, switched, priors = (
        np.asarray(x) for x in (rows.residual, rows.energy, rows.switched, rows.prior)
    )
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
    unknown = [n for n, b in found.items() if problem.touching(n) and not all_proper(b)]
    if unknown and status is Status.CONVERGED:
        message += f"; not everything is known of {', '.join(unknown)}"
    if status is Status.ROUNDING:
        message = _rounding_message(lost, graph.dtype)
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
    return Result(
        _by_name(graph, problem, found), status, message, len(residuals), noise, trace, tuple(outcome.events),
        outcome.state, problem, graph,
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


def _with_mean(gaussian: Gaussian, mean: jax.Array) -> Gaussian:
    return Gaussian(linalg.information(gaussian.lam, mean), gaussian.lam)
