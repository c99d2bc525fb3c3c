"""What comes in for the variables of a factor group before a visit."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..core.gaussian import Gaussian
from ..core.linalg import add_all
from ..graph.group import Group
from ..graph.problem import Problem
from .options import Options
from .schedules import AfterVisit, OnMovement
from .state import State, belief_mean, message_product


class Inbox(NamedTuple):
    """What a group finds of its variables before a visit."""

    outside: dict[str, Gaussian]  # the prior and the messages of all other groups
    own: list[Gaussian]  # of each slot, its own messages multiplied up on the units
    belief: dict[str, Gaussian]  # all of it


def read_inbox(problem: Problem, state: State, g: int) -> Inbox:
    """The inbox of a group."""
    group = problem.groups[g]
    outside = {n: product(outside_parts(problem, state, g, n)) for n in group.variables}
    own = [message_product(problem, state, g, s) for s in range(len(group.slots))]
    return Inbox(outside, own, beliefs_with(group, outside, own))


def beliefs_with(group: Group, outside: dict[str, Gaussian], own: list[Gaussian]) -> dict[str, Gaussian]:
    """The belief of each variable of a group, from its messages and those of the others."""
    return {n: product([outside[n], *(own[s] for s in group.slots_of(n))]) for n in group.variables}


def means_of(problem: Problem, beliefs: dict[str, Gaussian]) -> dict[str, Array]:
    """Means, or starts where nothing is known."""
    return {n: belief_mean(b, problem.start[n], n in problem.proper) for n, b in beliefs.items()}


def outside_parts(problem: Problem, state: State, g: int, name: str) -> list[Gaussian]:
    """What comes in for a variable from outside a group: its prior, and the messages of each *other* edge set."""
    others = [message_product(problem, state, other, s) for other, s in problem.touching(name) if other != g]
    return [problem.prior[name], *others]


def product(parts: list[Gaussian]) -> Gaussian:
    """Of all of them."""
    return Gaussian(add_all([p.eta for p in parts]), add_all([p.lam for p in parts]))


def _refresh(options: Options, state: State, g: int, means: dict[str, Array], old: dict[str, Gaussian]):
    """The linearisation point of this visit, and what of it is stored."""
    stored = state.points[g]
    if stored is None:
        return means, None
    first = state.visits[g] == 0
    if isinstance(options.relinearise, AfterVisit):
        return stored, stored
    if isinstance(options.relinearise, OnMovement):
        points = {}
        for name, x0 in stored.items():
            lam = jnp.diagonal(old[name].lam, axis1=-2, axis2=-1) if old[name].block else old[name].lam
            far = (means[name] - x0) ** 2 * lam > options.relinearise.threshold**2
            points[name] = jnp.where(first | far, means[name], x0)
    else:
        due = state.visits[g] % options.relinearise == 0
        points = {name: jnp.where(due, means[name], x0) for name, x0 in stored.items()}
    return points, points


def linearisation_points(
    problem: Problem, options: Options, state: State, g: int, means: dict[str, Array], old: dict[str, Gaussian]
) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """Where a group is linearised at this visit, and what of it is stored."""
    first = {n: jnp.where(state.visits[g] == 0, problem.start[n], x) for n, x in means.items() if n in problem.started}
    return _refresh(options, state, g, {**means, **first}, old)


def undamped(old: Gaussian, new: Gaussian, weight: Array) -> Gaussian:
    """What was mixed with `weight` of the old message to give the new one."""
    return jax.tree.map(lambda a, b: (b - weight * a) / (1 - weight), old, new)
