"""The inbox of a factor group: the product of the prior and of all other groups' messages, for each of its variables.

A visit reads it first. With the group's own messages it gives the beliefs, and the cavities that the update needs:

    outside   prior x messages of all other groups
    own       product of the group's own messages, slot by slot
    belief    outside x own

Nothing else of the other groups enters a visit. Which groups there are, and when they were visited, does not matter to
it: a visit is local.
"""

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
    """The inbox of a group (`outside`), with its own messages and the beliefs that they make up together."""

    outside: dict[str, Gaussian]  # of each variable, the product of its prior and the messages of all other groups
    own: list[Gaussian]  # of each slot, the product of its own messages into each unit
    belief: dict[str, Gaussian]  # of each variable, the product of both


def read_inbox(problem: Problem, state: State, g: int) -> Inbox:
    """Read the inbox of group `g`."""
    group = problem.groups[g]
    outside = {n: product(outside_parts(problem, state, g, n)) for n in group.variables}
    own = [message_product(problem, state, g, s) for s in range(len(group.slots))]
    return Inbox(outside, own, beliefs_with(group, outside, own))


def beliefs_with(group: Group, outside: dict[str, Gaussian], own: list[Gaussian]) -> dict[str, Gaussian]:
    """The belief of each variable of a group, for given own messages (one product a slot)."""
    return {n: product([outside[n], *(own[s] for s in group.slots_of(n))]) for n in group.variables}


def means_of(problem: Problem, beliefs: dict[str, Gaussian]) -> dict[str, Array]:
    """Means, or starts where nothing is known."""
    return {n: belief_mean(b, problem.start[n], n in problem.proper) for n, b in beliefs.items()}


def outside_parts(problem: Problem, state: State, g: int, name: str) -> list[Gaussian]:
    """The factors of the product `outside` of a variable: its prior, and the message product of each other edge set."""
    others = [message_product(problem, state, other, s) for other, s in problem.touching(name) if other != g]
    return [problem.prior[name], *others]


def product(parts: list[Gaussian]) -> Gaussian:
    """The product of Gaussians."""
    return Gaussian(add_all([p.eta for p in parts]), add_all([p.lam for p in parts]))


def undamped(old: Gaussian, new: Gaussian, weight: Array) -> Gaussian:
    """The message that was damped, by `weight` of the old one, to give the new one."""
    return jax.tree.map(lambda a, b: (b - weight * a) / (1 - weight), old, new)
