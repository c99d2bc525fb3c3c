"""A factor group with what belongs to it: all that a visit needs of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
from jax import Array

from ..core.linalg import add_all
from ..core.vector import Belief
from ..factors.measurement import FactorKind, Linear
from .group import Group


class LocalGroup(eqx.Module):
    """A factor group, and of the graph around it what belongs to this group alone.

    Dictionaries hold its own variables and arguments, and no others. Priors and messages are not here: they come with
    the inbox. It is made while JAX traces (`Problem.local`), and costs nothing at run time.
    """

    group: Group
    frozen: Linear | None  # of a linear group: linearised once for all
    start: dict[str, Array]  # of each variable, where it is linearised while nothing is known of it
    fixed: dict[str, Array]  # values of arguments that are wholly observed, means of those held at a belief
    held: dict[str, Belief]  # beliefs of arguments that are held
    used: dict[str, Array]  # of variables that grow, how many scalars are in use
    number: int = eqx.field(static=True)  # of the group, in its graph
    proper: frozenset[str] = eqx.field(static=True)  # variables whose prior is proper everywhere
    started: frozenset[str] = eqx.field(static=True)  # variables whose start the user gave
    parameters: frozenset[str] = eqx.field(static=True)  # variables of this kind
    reports: frozenset[str] = eqx.field(static=True)  # variables whose prior's energy this group reports, for all
    plan: Any = eqx.field(static=True, default=None)  # how it is visited (`kernels.registry.Plan`); None: not yet known

    def linearise(self, points: dict[str, Array], beliefs: Mapping[str, Belief] | None = None) -> Linear:
        """The group linearised at the values of its variables (`Group.linearise`); linear groups have been, for all."""
        group, frozen = self.group, self.frozen
        if frozen is None:
            return group.linearise({**points, **self.fixed}, beliefs)
        moves = [j.times(points[slot.variable]) for slot, j in zip(group.slots, group.operators(frozen))]
        return Linear(frozen.value + add_all(moves), frozen.jacobians)

    def value(self, points: dict[str, Array]) -> Array:
        """`h` of every factor at the values of its variables."""
        if self.frozen is None:
            return self.group.value({**points, **self.fixed})
        return self.linearise(points).value

    def form(self) -> Any:
        """The form of its factors (`kernels/forms.py`); None if they have none, or are linearised once for all."""
        measurement = self.group.measurement
        if self.frozen is not None or not isinstance(measurement, FactorKind):
            return None
        return measurement.form(*self.arguments_at(self.start))

    def arguments_at(self, points: dict[str, Array]) -> list[Array]:
        """What `h` takes, at the values of its variables."""
        return self.group.arguments_at({**points, **self.fixed})
