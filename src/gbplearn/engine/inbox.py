"""What comes in for the variables of a factor group before a visit."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array

from ..core.gaussian import Gaussian
from ..core.linalg import add_all
from ..graph.group import Group
from ..graph.problem import Problem
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


def undamped(old: Gaussian, new: Gaussian, weight: Array) -> Gaussian:
    """What was mixed with `weight` of the old message to give the new one."""
    return jax.tree.map(lambda a, b: (b - weight * a) / (1 - weight), old, new)
