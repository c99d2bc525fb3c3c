"""The inbox of a factor group: of each of its variables the prior, and what all other groups send to it.

A visit reads it first. With the group's own messages it gives the beliefs, and the cavities that the update needs:

    outside   prior x messages of all other groups
    own       product of the group's own messages, slot by slot
    belief    outside x own

Nothing else of the other groups enters a visit. Which groups there are, and when they were visited, does not matter to
it: a visit is local. Who fills the inbox is no concern of it either: the loop takes it from the state (`exchange.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import Array

from ..core.gaussian import Gaussian
from ..core.vector import Belief, product
from ..graph.group import Group
from ..graph.local import LocalGroup


class EdgeSet(NamedTuple):
    """Which edge set messages are of."""

    group: int
    slot: int


class Inbox(NamedTuple):
    """What others say of the variables of a group. Not yet multiplied: kernels do that on their way."""

    parts: dict[str, list[Any]]  # of each variable its prior, and the message product of each other edge set
    uniform: dict[str, Belief]  # priors that are one for all units, as that one
    # Where the other parts lie in a state, if they do: visits that one call makes together read them there.
    senders: dict[str, list[EdgeSet | None]] | None = None

    def senders_of(self, name: str) -> list[EdgeSet | None]:
        """Of each part of a variable but its prior, where it lies in a state; None if it does not."""
        return [None] * (len(self.parts[name]) - 1) if self.senders is None else self.senders[name]

    def outside(self) -> dict[str, Belief]:
        """Of each variable the product of its prior and the messages of all other groups."""
        return {name: product(parts) for name, parts in self.parts.items()}

    def prior(self, name: str) -> Belief:
        """The prior of a variable."""
        return self.parts[name][0]


def beliefs_with(group: Group, outside: dict[str, Belief], own: list[Any]) -> dict[str, Belief]:
    """The belief of each variable of a group, for given own messages (one product a slot)."""
    return {n: product([outside[n], *(own[s] for s in group.slots_of(n))]) for n in group.variables}


def means_of(local: LocalGroup, beliefs: dict[str, Belief]) -> dict[str, Array]:
    """Means, or starts where nothing is known."""
    return {n: b.mean_or(local.start[n], n in local.proper) for n, b in beliefs.items()}


def undamped(old: Gaussian, new: Gaussian, weight: Array) -> Gaussian:
    """The message that was damped, by `weight` of the old one, to give the new one."""
    return jax.tree.map(lambda a, b: (b - weight * a) / (1 - weight), old, new)
