"""The loop over visits."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .compiling import lean_jit, release_memory
from .look import Latest, Visited, look, news
from .options import Options
from .problem import Problem, State
from .sweep import fixed_order, pick, sweep
from .visit import visit

# Graphs with more edges than this are looked at every so many iterations only, and their visits are compiled apart.
LARGE = 500_000
EVERY = 10
# ... or so many, where the parameters are waited for: they take 10 or 20.
EVERY_SETTLING = 5
# How many iterations one compiled call makes at most: the length of its trace.
CHUNK = 50


def is_large(problem: Problem) -> bool:
    """Whether to look at residual and energy costs more than it is worth in every iteration."""
    return sum(g.edges for g in problem.groups) > LARGE


def iterate(problem: Problem, state: State, options: Options, latest: Latest) -> tuple[State, Latest]:
    """One full schedule, and a look at it."""
    order = fixed_order(problem, options)
    if order is None:
        return _pick_and_visit(problem, state, options, latest)
    for i, g in enumerate(order):
        # What an earlier visit sees would be overwritten, unless it is the one that linearises.
        looking = g not in order[i + 1 :] or options.relinearise != 1
        visited = Visited(state, *visit(problem, state, options, g, looking))
        if looking:
            latest = look(problem, options, visited, latest, g)
        state = visited.after
    return state, latest


def _pick_and_visit(problem: Problem, state: State, options: Options, latest: Latest) -> tuple[State, Latest]:
    """As many visits as there are groups, picked one by one by what was seen of the last."""
    active = problem.active()

    def seen(before: State, latest: Latest, g: int) -> tuple[State, Latest]:
        visited = Visited(before, *visit(problem, before, options, g, looking=True))
        latest = look(problem, options, visited, latest, g)
        return visited.after, latest._replace(priority=news(problem, options, visited, latest, g))

    def picked(_, carry: tuple[State, Latest]) -> tuple[State, Latest]:
        state, latest = carry
        state, chosen = pick(state, options, latest.priority[jnp.asarray(active)])
        return lax.switch(chosen, [partial(seen, g=g) for g in active], state, latest)

    state, latest = lax.fori_loop(0, len(active), picked, (state, latest))
    # A group that was not visited since its variables moved has that much news, whatever it said last time.
    waiting = jnp.where(jnp.asarray([bool(g.slots) for g in problem.groups]), latest.priority, 0)
    learnt = jnp.asarray([any(n in problem.parameters for n in g.variables) for g in problem.groups])
    settling = jnp.where(learnt, jnp.maximum(latest.settling, waiting), latest.settling)
    return state, latest._replace(residual=jnp.maximum(latest.residual, waiting), settling=settling)


class Enough(NamedTuple):
    """When to stop: every residual is at most `tolerance`, or the parameters have settled to `settled` (< 0: never)."""

    tolerance: float | Array
    settled: float | Array = -1.0

    def reached(self, latest: Latest) -> Any:
        """By what was seen last."""
        return (latest.residual.max() <= self.tolerance) | (latest.settling.max() <= self.settled)


def _run(
    problem: Problem, state: State, options: Options, latest: Latest, limit: Array, enough: Enough
) -> tuple[State, Latest, Latest, Array]:
    """Up to `limit <= CHUNK` iterations, fewer if that is enough or an energy is not finite.

    **Returns:** state, what was seen last, the same for each iteration, the number of iterations.
    """
    problem = problem.with_known()
    trace = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), latest)

    def going(carry) -> Array:
        _, latest, _, i = carry
        busy = ~enough.reached(latest) & ((i == 0) | jnp.isfinite(latest.total()))
        return (i < limit) & busy

    def body(carry):
        state, latest, trace, i = carry
        state, latest = iterate(problem, state, options, latest)
        return state, latest, jax.tree.map(lambda t, x: t.at[i].set(x), trace, latest), i + 1

    return lax.while_loop(going, body, (state, latest, trace, jnp.zeros((), jnp.int32)))


run = jax.jit(_run)
# The same with the buffers of the state given away: for callers that keep no other reference to it.
run_in_place = partial(jax.jit, donate_argnums=(1,))(_run)


@partial(jax.jit, donate_argnums=(1,))
def _sweep_in_place(problem: Problem, state: State, options: Options, count: Array) -> State:
    """So many iterations of a large graph, without a look."""
    return sweep(problem.with_known(), state, options, count)


@partial(lean_jit, donate=1)
def _look_in_place(problem: Problem, state: State, options: Options, latest: Latest) -> tuple[State, Latest]:
    """One more iteration, freshly linearised, and a look at it.

    A program of its own: in large graphs that is not done every time.
    """
    problem, options = problem.with_known(), dataclasses.replace(options, relinearise=1)
    if fixed_order(problem, options) is not None:
        return iterate(problem, state, options, latest)
    # Where the order is drawn blindly, some group has not been visited for a while: what would each have to say now?
    state = sweep(problem, state, options, jnp.ones((), jnp.int32))
    for g in problem.active():
        latest = look(problem, options, Visited(state, *visit(problem, state, options, g, looking=True)), latest, g)
    return state, latest


def _programs() -> int:
    """How many have been compiled."""
    return getattr(_sweep_in_place, "_cache_size", int)()


def advance(
    problem: Problem, state: State, options: Options, latest: Latest, limit: int, enough: Enough
) -> tuple[State, Latest, Latest]:
    """Up to `limit <= CHUNK` iterations as `run`, in place; large graphs are looked at after at most `EVERY` of them.

    **Returns:** state, what was seen last, and the same for each iteration (NumPy). Where nobody looked, it is what
    was seen next.
    """
    if not is_large(problem) or (fixed_order(problem, options) is None and not options.schedule.blind):
        numbers = Enough(*(jnp.asarray(x, latest.residual.dtype) for x in enough))
        state, latest, trace, count = run_in_place(problem, state, options, latest, jnp.asarray(limit), numbers)
        return state, latest, jax.tree.map(lambda t: np.asarray(t)[: int(count)], trace)
    rows: list[Latest] = []
    while len(rows) < limit:
        every = EVERY if enough.settled < 0 else EVERY_SETTLING
        count, compiled = min(every, limit - len(rows)), _programs()
        if count > 1:
            state = _sweep_in_place(problem, state, options, np.int32(count - 1))
            if _programs() > compiled:
                jax.block_until_ready(state)
                release_memory()
        state, latest = _look_in_place(problem, state, options, latest)
        rows += count * [jax.tree.map(np.asarray, latest)]
        if enough.reached(rows[-1]) or not np.isfinite(rows[-1].energy.sum() + rows[-1].prior.sum()):
            break
    return state, latest, jax.tree.map(lambda *r: np.stack(r), *rows)
