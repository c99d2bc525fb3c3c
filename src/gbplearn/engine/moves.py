"""The moves of a schedule on a problem: which there are, and the state that the loop keeps for the schedule."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..graph.problem import Problem
from .diagnostics import Diagnostics
from .options import Options
from .schedules import FixedOrder, Forest, Groups, Schedule
from .state import State


def groups_of(problem: Problem) -> Groups:
    """What a schedule knows of a problem."""
    return Groups(tuple(group.name for group in problem.groups), problem.active())


def fixed_moves(problem: Problem, options: Options) -> tuple[int | Forest, ...] | None:
    """The moves of one iteration, as `next` gives them; None if the schedule picks them while inference runs."""
    schedule, groups = options.schedule, groups_of(problem)
    if not isinstance(schedule, FixedOrder):
        return None
    out, state = [], None
    while len(out) < schedule.count(groups):
        move, state = schedule.next(groups, state, None)
        out.append(move)
    return tuple(out)


def fixed_order(problem: Problem, options: Options) -> tuple[int, ...] | None:
    """The groups of one iteration, or None if not only groups are visited, or if they are picked one by one."""
    moves = fixed_moves(problem, options) or ()
    groups = tuple(m for m in moves if not isinstance(m, Forest))
    return groups if moves and len(groups) == len(moves) else None


class Picking(eqx.Module):
    """The state of a schedule that picks, and of which schedule, on which groups, it is."""

    state: Any
    schedule: Schedule = eqx.field(static=True)
    groups: Groups = eqx.field(static=True)


def scheduled(problem: Problem, state: State, options: Options, key: Array) -> State:
    """The state with that of its schedule: begun with this key, or that of the same schedule on the same groups."""
    schedule, groups = options.schedule, groups_of(problem)
    if isinstance(schedule, FixedOrder):
        return dataclasses.replace(state, schedule=None)
    # Dropout draws by the key itself.
    fresh = Picking(schedule.init(groups, jax.random.fold_in(key, 1) if options.dropping else key), schedule, groups)
    (new, old), kinds = (jax.tree.flatten(s) for s in (fresh, state.schedule)), []
    for leaves, structure in (new, old):
        kinds.append((structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]))
    return state if kinds[0] == kinds[1] else dataclasses.replace(state, schedule=fresh)


def picked(problem: Problem, state: State, options: Options, latest: Diagnostics) -> tuple[Array, State]:
    """The group that a schedule picks next, as a number into the active ones; as many as there are for none of them."""
    name, active = type(options.schedule).__name__, problem.active()
    move, after = options.schedule.next(groups_of(problem), state.schedule.state, latest)
    if isinstance(move, Forest) or not jnp.issubdtype(jnp.result_type(move), jnp.integer) or jnp.shape(move):
        raise TypeError(f"schedule: {name} must pick a factor group by its number, got {move}")
    if isinstance(move, (int, np.integer)) and move not in active:
        raise ValueError(f"schedule: {name} picks group {move}, which is none of groups.active: {active}")
    places = np.full(len(problem.groups), len(active), np.int32)
    places[list(active)] = np.arange(len(active))
    picking = dataclasses.replace(state.schedule, state=after)
    return jnp.asarray(places)[move], dataclasses.replace(state, schedule=picking)
