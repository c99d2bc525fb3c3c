"""Iterations without diagnostics: visits alone, as large graphs make most of theirs.

The messages are those of diagnosed iterations. But no numbers are needed between two visits, so

- visits that kernels make piece by piece (image by image) are joined into runs of one call each: a piece then goes
  through several groups while it lies in the cache (`_together`). A run may reach over the end of an iteration;
- every other visit is compiled apart from its neighbours (`_visit_apart`), with its messages in memory: else XLA would
  fuse visits, and compute the results of one again and again in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax

from ..core.compiling import one_round
from ..graph.problem import Problem
from ..kernels.registry import Part, Place, kernel_for, kernels
from .diagnostics import no_diagnostics
from .exchange import visit_group
from .moves import fixed_order, groups_of, picked
from .options import Options
from .state import State


def iterate_undiagnosed(problem: Problem, state: State, options: Options, count: Array) -> State:
    """So many iterations: in a fixed order, or in one that a schedule picks without regard to diagnostics."""
    order = fixed_order(problem, options)
    if order is None:
        return lax.fori_loop(0, count, lambda _, state: _picked(problem, state, options), state)
    runs = _runs(problem, state, options, order)
    # The last visits of an iteration and the first of the next one may go together: then a round begins with these.
    turned = len(runs) > 1 and _pieces(problem, state, options, (*runs[-1], *runs[0])) > 0
    last = runs.pop() if turned else ()

    def one_iteration(i: Array, state: State) -> State:
        for n, run in enumerate(runs):
            if turned and n == 0:
                made = [i > 0] * len(last) + [True] * len(run)
                state = _together(problem, state, options, (*last, *run), made)
            else:
                state = _visit_run(problem, state, options, run)
        return state

    state = lax.fori_loop(0, count, one_iteration, state)
    return _together(problem, state, options, last, [count > 0] * len(last)) if turned else state


def _picked(problem: Problem, state: State, options: Options) -> State:
    """An iteration whose groups are picked without regard to diagnostics."""
    active, unknown = problem.active(), no_diagnostics(problem)

    def visit_one(_, state: State) -> State:
        chosen, state = picked(problem, state, options, unknown)
        visits = [lambda s, g=g: _visit_apart(problem, s, options, g) for g in active]
        return lax.switch(chosen, [*visits, lambda same: same], state)

    return lax.fori_loop(0, options.schedule.count(groups_of(problem)), visit_one, state)


def _pieces(problem: Problem, state: State, options: Options, run: tuple[int, ...]) -> int:
    """In how many pieces one call can make these visits; 0: not at all, as where linearisation points are stored."""
    kept = any(state.points[g] is not None for g in run)
    return 0 if kept else kernels().common_pieces(problem, options, run)


def _runs(problem: Problem, state: State, options: Options, order: tuple[int, ...]) -> list[tuple[int, ...]]:
    """An order in runs of visits, each of which one call can make."""
    runs: list[tuple[int, ...]] = []
    for g in order:
        if runs and _pieces(problem, state, options, (*runs[-1], g)):
            runs[-1] = (*runs[-1], g)
        else:
            runs.append((g,))
    return runs


def _visit_run(problem: Problem, state: State, options: Options, run: tuple[int, ...]) -> State:
    if len(run) > 1:
        return _together(problem, state, options, run, [True] * len(run))
    return _visit_apart(problem, state, options, *run)


def _together(
    problem: Problem, state: State, options: Options, run: tuple[int, ...], made: Sequence[Array | bool]
) -> State:
    """The visits of a run in one call, those of them for which `made` is true."""
    chain = kernels().chain(_pieces(problem, state, options, run))
    for g, on in zip(run, made):
        after = visit_group(problem, state, options, g, call=chain.call)[0]
        state = eqx.tree_at(lambda s: s.visits, after, state.visits.at[g].add(jnp.asarray(on, state.visits.dtype)))
    assert len(chain) == len(run)
    written = chain.run(jnp.stack([jnp.asarray(on, bool) for on in made]))
    return eqx.tree_at(lambda s: [_array_at(s, place) for place in written], state, list(written.values()))


def _array_at(state: State, place: Place) -> Any:
    """The array that a state has at a place, or what `tree_at` puts in its stead."""
    messages = state.messages[place.group][place.slot]
    return messages.reaction if place.part is Part.REACTION else getattr(messages.summed, place.part.value)


def _visit_apart(problem: Problem, state: State, options: Options, g: int) -> State:
    """A visit that is compiled apart from others."""
    if jax.default_backend() != "cpu" or kernel_for(problem.local(g), options.of(g)) is not None:
        return visit_group(problem, state, options, g)[0]
    return one_round(lambda s: visit_group(problem, s, options, g)[0], state, state.visits[g] < 0)
