"""The moves of a schedule on a problem: which there are, and the state that the loop keeps for the schedule."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..graph.problem import Problem
from .diagnostics import Diagnostics
from .options import Options
from .schedules import FixedOrder, Forest, Groups, Move
from .state import State


def groups_of(problem: Problem) -> Groups:
    """What a schedule knows of a problem."""
    return Groups(tuple(group.name for group in problem.groups), problem.active())


def fixed_moves(problem: Problem, options: Options) -> tuple[int | Forest, ...] | None:
    """The moves of one iteration, or None if the schedule picks them one by one."""
    schedule = options.schedule
    return schedule.moves(groups_of(problem)) if isinstance(schedule, FixedOrder) else None


def fixed_order(problem: Problem, options: Options) -> tuple[int, ...] | None:
    """The groups of one iteration, or None if not only groups are visited, or if they are picked one by one."""
    moves = fixed_moves(problem, options) or ()
    groups = tuple(m for m in moves if not isinstance(m, Forest))
    return groups if moves and len(groups) == len(moves) else None


def scheduled(problem: Problem, state: State, options: Options, key: Array) -> State:
    """The state with that of its schedule; begun with this key, unless it goes on from earlier iterations."""
    fresh = options.schedule.init(groups_of(problem), key)
    same = jax.tree.structure(fresh) == jax.tree.structure(state.schedule)
    return state if same else dataclasses.replace(state, schedule=fresh)


def next_move(problem: Problem, state: State, options: Options, latest: Diagnostics) -> tuple[Move, State]:
    """What the schedule wants next."""
    move, after = options.schedule.next(groups_of(problem), state.schedule, latest)
    return move, dataclasses.replace(state, schedule=after)


def picked(problem: Problem, state: State, options: Options, latest: Diagnostics) -> tuple[Array, State]:
    """The same of a schedule that picks a group: which of the active ones it is."""
    move, state = next_move(problem, state, options, latest)
    if isinstance(move, Forest):
        raise TypeError(f"schedule: {type(options.schedule).__name__} must pick a factor group, got {move}")
    active = problem.active()
    places = np.zeros(len(problem.groups), np.int32)
    places[list(active)] = np.arange(len(active))
    return jnp.asarray(places)[move], state
