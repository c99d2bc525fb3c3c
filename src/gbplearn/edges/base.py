"""Edge sets: how the messages of one argument of a factor group meet the units of a variable.

Arrays on the variable side have shape `unit_shape + trail`, arrays on the factor side `(F, n) + trail`: `F`
factors with `n` units each. `trail` is empty for scalars, and for blocks `(d,)` (information) or `(d, d)`.
(`Rows` has the exception.) All operations are sums and copies, whatever the numbers mean.
"""

from __future__ import annotations

import abc
import math

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core.linalg import sum_along, sum_of_others


class Rows(eqx.Module):
    """How the edges of factors over scalars lie in an array: as rows `(F, n)`, unless an edge set has its own."""

    def shape(self, factors: int, row: int) -> tuple[int, ...]:
        """Of an array of all edges."""
        return factors, row

    def total(self, e: Array) -> Array:
        """The sum of each factor's edges: `(F, 1)`."""
        return sum_along(e, 1)

    def others(self, e: Array) -> Array:
        """For each edge the sum of the *other* edges of its factor, summed without cancellation."""
        return sum_of_others(e, 1) if e.shape[1] > 1 else jnp.zeros((), e.dtype)

    def lift(self, f: Array) -> Array:
        """One number a factor `(F | 1, 1)`, in a shape that broadcasts with the edges."""
        return f


ROWS = Rows()


class Edges(eqx.Module):
    """One edge set."""

    unit_shape: eqx.AbstractVar[tuple[int, ...]]

    @property
    def units(self) -> int:
        """How many units the variable has."""
        return math.prod(self.unit_shape)

    @property
    @abc.abstractmethod
    def injective(self) -> bool:
        """No unit occurs twice, so a pooled message is the message itself."""

    @property
    @abc.abstractmethod
    def row(self) -> int:
        """n, the edges of one factor."""

    @property
    @abc.abstractmethod
    def dense(self) -> bool:
        """Injective, and at least half of the units have an edge: messages are then kept on the units."""

    @property
    def rows(self) -> Rows:
        """How its edges lie in arrays."""
        return ROWS

    def apart(self, other: Edges) -> bool:
        """Whether it is known that no factor has a unit in both of two edge sets of one variable."""
        return False

    def present(self) -> Array | None:
        """Which edges there are `(F, n)`, where rows would be longer than a factor has units; None if all are."""
        return None

    @abc.abstractmethod
    def spread(self, x: Array) -> Array:
        """From units to edges: every edge gets its unit's value. The first axis may be 1 for shared units."""

    @abc.abstractmethod
    def pool(self, e: Array) -> Array:
        """From edges to units: the sum of the edges of each unit; zero for units without an edge."""

    @abc.abstractmethod
    def others(self, e: Array) -> Array:
        """For each edge the sum of the *other* edges of its unit in this set, summed without cancellation."""
