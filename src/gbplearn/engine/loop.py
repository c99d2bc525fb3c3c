"""The loop over visits: iterations of a schedule, until the beliefs are at rest.

An iteration is one round of the schedule (`schedules.py`), which is asked for one move after the other. Each move is
the visit of a group, which sends its messages (`visit_group` of `exchange.py`), or a sweep over a forest
(`tree_iteration.py`); it is diagnosed (`diagnostics.py`), and `Enough` decides on the diagnostics when to stop.

`run` makes up to `CHUNK` iterations in one compiled call, and returns the diagnostics of each of them. `advance` is the
same for the guard (`guard/guard.py`), which calls it chunk by chunk and decides between the chunks.

Diagnostics take time. Large graphs are therefore diagnosed after every `EVERY` iterations only; those in between are
made by `undiagnosed.py`.
"""

from __future__ import annotations

import dataclasses
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core.compiling import LEAN, QUICK, lean_options, release_memory
from ..graph.problem import Problem
from ..kernels.registry import pinned
from .diagnostics import Diagnostics, priorities, put
from .exchange import read_inbox, visit_group
from .moves import fixed_moves, fixed_order, groups_of, picked
from .options import Options
from .schedules import Forest
from .state import State
from .tree_iteration import sweep_forest
from .undiagnosed import iterate_undiagnosed
from .visit_diagnostics import moved

# Large graphs (`Guard.large`) are diagnosed every so many iterations only, and their visits are compiled apart.
EVERY = 10
# ... or so many, where the parameters are waited for: they take 10 or 20.
EVERY_SETTLING = 5
# Graphs of so many edges are compiled quickly: they have converged before better code would have paid off.
SMALL_EDGES = 2_000
# How many iterations one compiled call makes at most: the length of its trace.
CHUNK = 50


def iterate(problem: Problem, state: State, options: Options, latest: Diagnostics) -> tuple[State, Diagnostics]:
    """One iteration: a full round of the schedule's moves, with the diagnostics of its visits."""
    order = fixed_moves(problem, options)
    if order is None:
        count = options.schedule.count(groups_of(problem))
        carry = lax.fori_loop(0, count, lambda _, carry: _pick(problem, options, *carry), (state, latest))
        return carry[0], _waiting(problem, carry[1])
    for i, move in enumerate(order):
        if isinstance(move, Forest):
            assert options.plan is not None
            state, latest = sweep_forest(problem, state, options, options.plan, latest)
            continue
        # Diagnostics of a later visit would replace these, unless this visit is the one that linearises.
        diagnosed = move not in order[i + 1 :] or options.relinearise != 1
        state, visited = visit_group(problem, state, options, move, diagnosed)
        if visited.diagnostics is not None:
            latest = put(problem, latest, move, visited.diagnostics)
    return state, latest


def _pick(problem: Problem, options: Options, state: State, latest: Diagnostics) -> tuple[State, Diagnostics]:
    """A move that is known when it is made: all groups are compiled, and one of them is visited."""
    active = problem.active()

    def visit_one(before: State, latest: Diagnostics, g: int) -> tuple[State, Diagnostics]:
        after, visited = visit_group(problem, before, options, g, diagnosed=True)
        assert visited.diagnostics is not None
        latest = put(problem, latest, g, visited.diagnostics)
        steps = moved(problem.local(g), read_inbox(problem, before, g), before.own(g), visited.outbox)
        return after, latest._replace(priority=priorities(problem, latest, g, options.of(g).strongest(), steps))

    chosen, state = picked(problem, state, options, latest)
    # A number that is none of the active groups' visits nothing.
    return lax.switch(chosen, [*(partial(visit_one, g=g) for g in active), lambda *same: same], state, latest)


def _waiting(problem: Problem, latest: Diagnostics) -> Diagnostics:
    """Residuals are of last visits. Where others have moved the variables of a group since, its priority is larger."""
    waiting = jnp.where(jnp.asarray([bool(g.slots) for g in problem.groups]), latest.priority, 0)
    learnt = jnp.asarray([any(n in problem.parameters for n in g.variables) for g in problem.groups])
    settling = jnp.where(learnt, jnp.maximum(latest.settling, waiting), latest.settling)
    return latest._replace(residual=jnp.maximum(latest.residual, waiting), settling=settling)


class Enough(NamedTuple):
    """When to stop: at rest, or the parameters have settled to `settled` (< 0: never).

    At rest: in `visits` visits of each group in a row no group had a residual above `tolerance`. One is not enough:
    residuals of an oscillation pass through 0.
    """

    tolerance: float | Array | np.ndarray
    settled: float | Array | np.ndarray = -1.0
    visits: int | Array | np.ndarray = 2
    least: int | Array | np.ndarray = 0  # iterations before parameters count as settled
    made: int | Array | np.ndarray = 1  # iterations that were made before; 0: the first one is still to come

    def counted(self, latest: Diagnostics, visited: Array) -> Diagnostics:
        """With the quiet visits of this iteration counted, of the groups that were visited."""
        calm = latest.residual.max() <= self.tolerance
        return latest._replace(quiet=jnp.where(calm, latest.quiet + visited, 0))

    def at_rest(self, latest: Diagnostics) -> Any:
        """Whether all groups are."""
        return latest.quiet.min() >= self.visits

    def reached(self, latest: Diagnostics, made: Any = 0) -> Any:
        """Whether that is enough, after so many more iterations."""
        settled = (latest.settling.max() <= self.settled) & (self.made + made >= self.least)
        return self.at_rest(latest) | settled

    def until_diagnosed(self, made: Any, every: Any) -> Any:
        """How many iterations a large graph makes until the next diagnosed one, after so many more.

        The first iteration is diagnosed, for energies at the end to be compared with; then the first at which
        parameters may count as settled; then every so many.
        """
        made = self.made + made
        return jnp.where(made == 0, 1, jnp.where(made < self.least, self.least - made, every))


def _run(
    problem: Problem,
    state: State,
    options: Options,
    latest: Diagnostics,
    limit: Array,
    enough: Enough,
    every: Array | None = None,
) -> tuple[State, Diagnostics, Diagnostics, Array]:
    """Up to `limit <= CHUNK` iterations, fewer (but one at least) if that is enough or an energy is not finite.

    **Arguments:** `every`: diagnose after at most so many iterations; None for each of them.

    **Returns:** the state, the newest diagnostics, the diagnostics of each iteration, and the number of iterations. An
    iteration that was not diagnosed has the diagnostics of the next one that was.
    """
    problem = problem.with_known()
    # A schedule that picks may leave a group out: it must be visited before it counts as at rest.
    picks = fixed_moves(problem, options) is None and not options.schedule.by_diagnostics and every is None
    # The diagnostics of a sweep over a tree are those of the state that it has led to: one quiet one is enough.
    quiet = 2 if options.plan is not None and not options.plan.outside else 1
    idle = jnp.asarray([not g.slots for g in problem.groups])
    trace = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), latest)

    def going(carry) -> Array:
        _, latest, _, i = carry
        busy = ~enough.reached(latest, i) & jnp.isfinite(latest.total())
        return (i < limit) & ((i == 0) | busy)

    def body(carry):
        state, latest, trace, i = carry
        visits = state.visits
        if every is None:
            state, latest = iterate(problem, state, options, latest)
            counted = (idle | (state.visits > visits)) if picks else jnp.ones_like(idle)
            latest = enough.counted(latest, quiet * counted)
            return state, latest, jax.tree.map(lambda t, x: t.at[i].set(x), trace, latest), i + 1
        # Residuals between two diagnosed iterations are unknown: the second quiet one must follow the first at once.
        count = jnp.where(latest.quiet.max() > 0, 1, enough.until_diagnosed(i, every))
        count = jnp.minimum(count, limit - i).astype(i.dtype)
        state, latest = _diagnose_after(problem, state, options, latest, count)
        latest = enough.counted(latest, jnp.ones_like(idle))
        there = (i <= jnp.arange(CHUNK)) & (jnp.arange(CHUNK) < i + count)
        trace = jax.tree.map(lambda t, x: jnp.where(there.reshape(-1, *[1] * x.ndim), x, t), trace, latest)
        return state, latest, trace, i + count

    with pinned(problem.kernels):
        return lax.while_loop(going, body, (state, latest, trace, jnp.zeros((), jnp.int32)))


def _diagnose_after(
    problem: Problem, state: State, options: Options, latest: Diagnostics, count: Array
) -> tuple[State, Diagnostics]:
    """So many iterations of a large graph, at least one: the last of them freshly linearised, and diagnosed."""
    state = iterate_undiagnosed(problem, state, options, count - 1)
    options = dataclasses.replace(options, relinearise=1)
    if fixed_order(problem, options) is not None:
        return iterate(problem, state, options, latest)
    state = iterate_undiagnosed(problem, state, options, jnp.ones((), jnp.int32))
    # Where the order is random, some group was not visited for a while: diagnose each by a visit that is not kept.
    for g in problem.active():
        found = visit_group(problem, state, options, g, diagnosed=True)[1].diagnostics
        assert found is not None
        latest = put(problem, latest, g, found)
    return state, latest


run = jax.jit(_run)
# The same with the buffers of the state given away: for callers that keep no other reference to it.
run_in_place = jax.jit(_run, donate_argnums=1)


@cache
def _lean_run_in_place(small: bool) -> Any:
    """`run_in_place` for problems whose messages are mostly sent by kernels, and for small ones."""
    return jax.jit(_run, donate_argnums=1, compiler_options=lean_options(QUICK if small else LEAN))


def programs_of(function: Any) -> int:
    """How many programs JAX has compiled of a function; 0 in versions of JAX that do not count them."""
    return getattr(function, "_cache_size", int)()


def compiled_programs() -> int:
    """How many programs of the loop have been compiled."""
    return programs_of(run_in_place) + sum(programs_of(_lean_run_in_place(small)) for small in (False, True))


def advance(
    problem: Problem, state: State, options: Options, latest: Diagnostics, limit: int, enough: Enough, large: bool
) -> tuple[State, Diagnostics, Diagnostics]:
    """Up to `limit <= CHUNK` iterations as `run`, in place; large graphs are diagnosed after at most `EVERY` of them.

    **Returns:** the state, the newest diagnostics, and those of each iteration (NumPy).
    """
    # A sweep over a forest is always diagnosed.
    seldom = large and not options.schedule.by_diagnostics and options.plan is None
    every = np.int32(EVERY if enough.settled < 0 else EVERY_SETTLING) if seldom else None
    # By NumPy: outside of compiled code JAX would compile every operation for itself.
    dtype = latest.residual.dtype
    numbers = Enough(
        np.asarray(enough.tolerance, dtype),
        np.asarray(enough.settled, dtype),
        *(np.asarray(n, np.int32) for n in (enough.visits, enough.least, enough.made)),
    )
    small = problem.edges <= SMALL_EDGES
    program = _lean_run_in_place(small and not problem.native) if small or problem.native else run_in_place
    compiled = programs_of(program)
    state, latest, trace, count = program(problem, state, options, latest, np.int32(limit), numbers, every)
    if seldom and programs_of(program) > compiled:
        jax.block_until_ready(state)
        release_memory()
    made = int(count)
    return state, latest, jax.tree.map(lambda t: np.asarray(t)[:made], trace)
