"""What a factor group sees of its variables before a visit."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .gaussian import Gaussian
from .group import Group
from .linalg import add_all
from .options import Options
from .problem import Problem, State, belief_mean, pooled
from .schedule import AfterVisit, OnMovement


class Seen(NamedTuple):
    """What a group sees of its variables before a visit."""

    inbound: dict[str, Gaussian]  # prior and the messages of all other groups
    own: list[Gaussian]  # of each slot, its messages multiplied up on the units
    belief: dict[str, Gaussian]


def see(problem: Problem, state: State, g: int) -> Seen:
    """What a group sees."""
    group = problem.groups[g]
    inbound = {n: product(parts_of(problem, state, g, n)) for n in group.variables}
    own = [pooled(problem, state, g, s) for s in range(len(group.slots))]
    return Seen(inbound, own, join(group, inbound, own))


def join(group: Group, inbound: dict[str, Gaussian], own: list[Gaussian]) -> dict[str, Gaussian]:
    """The belief of each variable of a group, from its messages and those of the others."""
    return {n: product([inbound[n], *(own[s] for s in group.slots_of(n))]) for n in group.variables}


def means_of(problem: Problem, beliefs: dict[str, Gaussian]) -> dict[str, Array]:
    """Means, or starts where nothing is known."""
    return {n: belief_mean(b, problem.start[n], n in problem.proper) for n, b in beliefs.items()}


def parts_of(problem: Problem, state: State, g: int, name: str) -> list[Gaussian]:
    """What comes in for a variable of a group from outside: its prior, and the messages of each *other* edge set."""
    others = [pooled(problem, state, other, s) for other, s in problem.touching(name) if other != g]
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


def points_of(
    problem: Problem, options: Options, state: State, g: int, means: dict[str, Array], old: dict[str, Gaussian]
) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """Where a group is linearised at this visit, and what of it is stored."""
    first = {n: jnp.where(state.visits[g] == 0, problem.start[n], x) for n, x in means.items() if n in problem.started}
    return _refresh(options, state, g, {**means, **first}, old)


def undamped(old: Gaussian, new: Gaussian, weight: Array) -> Gaussian:
    """What was mixed with `weight` of the old message to give the new one."""
    return jax.tree.map(lambda a, b: (b - weight * a) / (1 - weight), old, new)
