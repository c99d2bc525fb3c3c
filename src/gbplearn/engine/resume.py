"""Warm starts: the messages of an earlier result, as far as their factors are still there.

A factor group is found by its name, a message by its factor. Of a group that does not grow the factors are its rows,
and there must be as many as before. Of one that grows each factor has a number (`Group.numbers`): messages of factors
that were removed are gone, those of new ones have not been sent yet, wherever their rows lie and however much room
there is now.

`earlier` brings what there was into the shapes of the program, by NumPy, since that is seldom needed; `resumed` is a
part of the compiled call that inference begins with.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.gaussian import Gaussian
from ..graph.group import Group, Role, Slot
from ..graph.problem import Problem, Structure
from .state import Messages, State, empty_state

_ANOTHER = "the state belongs to another graph, or to one with other variables observed or noise learnt"


class Earlier(NamedTuple):
    """An earlier state in the shapes of a problem; None for what was not there. Tuples have an element a group."""

    messages: tuple[tuple[Messages | None, ...], ...]
    numbers: tuple[Any, ...]  # of groups that grow, the numbers of the factors that the messages are of
    points: tuple[dict[str, Any] | None, ...]
    used: dict[str, Any]  # of variables that grow, how many scalars were in use
    visits: Any
    key: Any
    noise: tuple[Any, ...]
    schedule: Any  # the state of the schedule


def earlier(structure: Structure, old: Problem, state: State) -> Earlier:
    """What there was, in the shapes of a structure; a `ValueError` if it does not fit."""
    fresh = _fresh(structure, any(p is not None for p in state.points))
    before = {group.name: g for g, group in enumerate(old.groups)}
    new = structure.problem.groups
    if not any(g.name in before for g in new) or any(name not in {g.name for g in new} for name in before):
        raise ValueError(_ANOTHER)
    messages, numbers, points, visits, noise = [], [], [], [], []
    visited = np.asarray(state.visits)
    for group, made, point, start in zip(new, fresh.messages, fresh.points, fresh.noise):
        g = before.get(group.name)
        if g is None:
            messages.append((None,) * len(group.slots))
            numbers.append(None if group.numbers is None else np.full(group.factors, -1, np.int32))
            points.append(None)
            visits.append(0)
            noise.append(None)
            continue
        known, was = old.groups[g], state.messages[g]
        kept = {place: i for place, (role, i) in enumerate(known.arguments) if role is Role.SLOT}
        places = [place for place, (role, _) in enumerate(group.arguments) if role is Role.SLOT]
        row = []
        for place, slot, wanted in zip(places, group.slots, made):
            i = kept.get(place)
            one = None if i is None else _slot_messages(group, slot, wanted, known, known.slots[i], was[i])
            row.append(one)
        messages.append(tuple(row))
        numbers.append(None if group.numbers is None else _padded(_numbers(known), (group.factors,), -1))
        points.append(_points(point, state.points[g]))
        visits.append(visited[g])
        noise.append(None if start is None else state.noise[g])
    return Earlier(
        tuple(messages), tuple(numbers), tuple(points), dict(old.used), np.asarray(visits, np.int32), state.key,
        tuple(noise), state.schedule,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _fresh(structure: Structure, keep_points: bool) -> State:
    """The shapes of a state."""
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return jax.eval_shape(lambda problem, key: empty_state(problem, key, keep_points), structure.problem, key)


def _slot_messages(group: Group, slot: Slot, wanted: Messages, known: Group, old: Slot, messages: Messages) -> Messages:
    """The messages of one edge set in the shape of another."""
    if group.numbers is not None and not slot.pooled:
        # Only what lies on the edges: the sums on the units are made anew.
        each = messages.on_edges(old.edges)
        assert wanted.each is not None
        shapes = wanted.each.eta.shape, wanted.each.lam.shape
        return Messages(Gaussian(_padded(each.eta, shapes[0]), _padded(each.lam, shapes[1])), None)
    if group.numbers is not None and wanted.summed is not None and messages.summed is not None:
        summed = [_padded(x, y.shape) for x, y in zip(*(jax.tree.leaves(m.summed) for m in (messages, wanted)))]
        messages = dataclasses.replace(messages, summed=Gaussian(*summed))
        if messages.reaction is not None and wanted.reaction is not None:
            messages = dataclasses.replace(messages, reaction=_padded(messages.reaction, wanted.reaction.shape))
    if (messages.reaction is None) != (wanted.reaction is None):
        # Where another slot holds the reaction now, it starts anew.
        zeros = None if wanted.reaction is None else jnp.zeros(wanted.reaction.shape, wanted.reaction.dtype)
        messages = dataclasses.replace(messages, reaction=zeros)
    if jax.tree.structure(messages) != jax.tree.structure(wanted):
        raise ValueError(_ANOTHER)
    if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(*map(jax.tree.leaves, (messages, wanted)))):
        raise ValueError(_ANOTHER)
    return messages


def _numbers(group: Group) -> Any:
    """Of a group that has begun to grow since, factors have the numbers of their rows."""
    return np.arange(group.factors, dtype=np.int32) if group.numbers is None else group.numbers


def _points(wanted: dict[str, Any] | None, points: dict[str, Any] | None) -> dict[str, Any] | None:
    """Stored linearisation points; None where a group has none, or has others."""
    if wanted is None or points is None or wanted.keys() != points.keys():
        return None
    return {name: _padded(x, wanted[name].shape) for name, x in points.items()}


def _padded(x: Any, shape: tuple[int, ...], fill: int = 0) -> Any:
    """The same array with more rows; a `ValueError` if that is not all that the shapes differ in."""
    if x.shape == shape:
        return x
    if x.ndim != len(shape) or x.shape[1:] != shape[1:] or x.shape[0] > shape[0]:
        raise ValueError(_ANOTHER)
    out = np.full(shape, fill, x.dtype)
    out[: x.shape[0]] = np.asarray(x)
    return out


def resumed(problem: Problem, fresh: State, was: Earlier) -> State:
    """The state that inference goes on from. To be called inside of compiled code.

    All of it is copied: the loop gives the buffers of its state away.
    """
    messages, points = [], []
    for g, group in enumerate(problem.groups):
        row = []
        for slot, new, old in zip(group.slots, fresh.messages[g], was.messages[g]):
            row.append(new if old is None else _kept(group, slot, old, was.numbers[g]))
        messages.append(tuple(row))
        stored, old = fresh.points[g], was.points[g]
        if stored is not None and old is not None:
            stored = {name: _old_rows(problem, was, name, x, stored[name]) for name, x in old.items()}
        points.append(stored)
    noise = tuple(a if a is None or b is None else jnp.copy(b) for a, b in zip(fresh.noise, was.noise))
    schedule = jax.tree.map(jnp.copy, was.schedule)
    return State(tuple(messages), tuple(points), jnp.copy(was.visits), jnp.copy(was.key), noise, schedule)


def _kept(group: Group, slot: Slot, old: Messages, numbers: Any) -> Messages:
    """The messages of the factors that are still there."""
    if group.numbers is None:
        return jax.tree.map(jnp.copy, old)
    there = (group.numbers >= 0) & (group.numbers == numbers)
    if slot.pooled:
        reaction = None if old.reaction is None else jnp.where(there[:, None], old.reaction, 0)
        return Messages(None, jax.tree.map(jnp.copy, old.summed), reaction)
    assert old.each is not None

    def of_these(x: Any) -> Any:
        return jnp.where(there.reshape(-1, *[1] * (x.ndim - 1)), x, 0)

    return Messages.pack(slot.edges, jax.tree.map(of_these, old.each))


def _old_rows(problem: Problem, was: Earlier, name: str, old: Any, start: Any) -> Any:
    """Stored points of the rows that there were, and the start of those that are new."""
    if name not in was.used:
        return jnp.copy(old)
    scalar = jnp.arange(old.size).reshape(old.shape)
    return jnp.where(scalar < was.used[name], old, start)
