"""Jacobians as linear operators: what all of them can do, and those that layers share."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ..core.diagonal import DIAGONAL
from ..core.family import Family
from ..edges.base import Edges

Shape = tuple[int, ...]


class Operator(eqx.Module):
    """The Jacobian `J` of all factors of a group with respect to one variable, at one linearisation point."""

    @abc.abstractmethod
    def times(self, m: Array) -> Float[Array, "f m"]:
        """`J m`: from values of the variable to the measurements of all factors."""

    @abc.abstractmethod
    def back(self, r: Float[Array, "f m"]) -> Array:
        """`J' r`: from measurements to the variable, summed over all factors."""

    @abc.abstractmethod
    def squared(self) -> Operator:
        """The operator whose entries are the squares: `J² v` and `(J²)' s`."""

    @abc.abstractmethod
    def each(self) -> Array:
        """`J` edge by edge: as the edge set lays them out `(F | 1, n)` where M = 1, else `(F | 1, n, M, d)`."""


class Entries(Operator):
    """A Jacobian given edge by edge; sums over edges do the rest."""

    edges: Edges
    entries: Array
    family: Family = eqx.field(static=True, default=DIAGONAL)  # of the variable

    @property
    def _general(self) -> bool:
        return self.entries.ndim == 4  # (F, n, M, d)

    def times(self, m: Array) -> Float[Array, "f m"]:
        """Spread, multiply, add up the edges of each factor."""
        x = self.edges.spread(m)
        if not self._general:
            return self.edges.rows.total(self.entries * x)
        x = self.family.as_vectors(x)
        f = max(self.entries.shape[0], x.shape[0])
        j, x = (jnp.broadcast_to(a, (f, *a.shape[1:])) for a in (self.entries, x))
        return jnp.einsum("fnmd,fnd->fm", j, x)

    def back(self, r: Float[Array, "f m"]) -> Array:
        """Multiply, add up the edges of each unit."""
        if not self._general:
            return self.edges.pool(self.entries * self.edges.rows.lift(r))
        j = jnp.broadcast_to(self.entries, (r.shape[0], *self.entries.shape[1:]))
        out = jnp.einsum("fnmd,fm->fnd", j, r)
        return self.edges.pool(self.family.from_vectors(out))

    def squared(self) -> Entries:
        """Of scalars: between the entries of a block squares mean nothing."""
        return Entries(self.edges, self.entries * self.entries, self.family)

    def each(self) -> Array:
        """As given."""
        return self.entries


class Product(Operator):
    """`J m = slope x product(c, m)`, where `product` is linear in both: a matrix product, a convolution.

    Entry by entry `J` is `slope x c`, each factor with its own elements of `c`: so the squares are again a product,
    `slope² x product(c², v)`.
    """

    coefficient: Array  # c
    slope: Array  # one a factor: the shape of product(c, m)
    edges: Edges  # of the variable whose values c are: which element of c stands on which edge
    own: Edges  # of the variable itself
    product: Callable[[Array, Array], Array] = eqx.field(static=True)
    # Its transpose with respect to m, `(c, r)` to the shape of m, where there is a quicker one than JAX finds.
    transpose: Callable[[Array, Array], Array] | None = eqx.field(static=True, default=None)

    def times(self, m: Array) -> Float[Array, "f m"]:
        """`slope x product(c, m)`."""
        return (self.slope * self.product(self.coefficient, m)).reshape(-1, 1)

    def back(self, r: Float[Array, "f m"]) -> Array:
        """The product transposed."""
        scaled = self.slope * r.reshape(self.slope.shape)
        if self.transpose is not None:
            return self.transpose(self.coefficient, scaled)
        like = jax.ShapeDtypeStruct(self.own.unit_shape, r.dtype)
        return jax.linear_transpose(lambda m: self.product(self.coefficient, m), like)(scaled)[0]

    def squared(self) -> Product:
        """Squares of slope and coefficient."""
        c, s = self.coefficient, self.slope
        return Product(c * c, s * s, self.edges, self.own, self.product, self.transpose)

    def each(self) -> Array:
        """`slope x c`, where there is an edge."""
        entries = self.slope.reshape(-1, 1) * self.edges.spread(self.coefficient)
        present = self.own.present()
        return entries if present is None else jnp.where(present, entries, 0)


class UnitRows(Operator):
    """`J` of vector variables: factor `(n, u)` sees the vector of unit `u` through one number, `z_nu = x_n . w_u`.

    `J m = slope x (x m')`, with one row `x_n` for all units.
    """

    rows: Float[Array, "n p"]
    slope: Float[Array, "n u"]  # of `h` with respect to `z`

    def times(self, m: Array) -> Float[Array, "f m"]:
        """`slope x (x m')`."""
        return (self.slope * self.numbers(m)).reshape(-1, 1)

    def numbers(self, m: Array) -> Float[Array, "n u"]:
        """`z` for these vectors `(units, p)`."""
        return self.rows @ m.T

    def back(self, r: Float[Array, "f m"]) -> Array:
        """Summed over the rows."""
        return (self.slope * r.reshape(self.slope.shape)).T @ self.rows

    def squared(self) -> UnitRows:
        """Of slope and rows."""
        return UnitRows(self.rows * self.rows, self.slope * self.slope)

    def each(self) -> Array:
        """`slope`: with respect to the one number that each factor sees."""
        return self.slope.reshape(-1, 1)


class Shared(Operator):
    """`J m = slope x m`, the same `m` for all factors along the leading axes: a bias."""

    slope: Array  # (..., channels)

    def times(self, m: Array) -> Float[Array, "f m"]:
        """`slope x m`."""
        return (self.slope * m).reshape(-1, 1)

    def back(self, r: Float[Array, "f m"]) -> Array:
        """Summed over the leading axes: a matrix product with ones, which is what the compiler does quickest."""
        channels = self.slope.shape[-1]
        rows = self.slope.reshape(-1, channels) * r.reshape(-1, channels)
        return jnp.ones(rows.shape[0], rows.dtype) @ rows

    def squared(self) -> Shared:
        """Of the slope."""
        return Shared(self.slope * self.slope)

    def each(self) -> Array:
        """`slope`."""
        return self.slope.reshape(-1, 1)


class Identity(Operator):
    """`J m = m`: factor `i` has one edge, to unit `i`, with Jacobian 1."""

    shape: Shape = eqx.field(static=True)  # of the variable
    dtype: Any = eqx.field(static=True)

    def times(self, m: Array) -> Float[Array, "f m"]:
        """`m`."""
        return m.reshape(-1, 1)

    def back(self, r: Float[Array, "f m"]) -> Array:
        """`r`."""
        return jnp.broadcast_to(r, (math.prod(self.shape), 1)).reshape(self.shape)

    def squared(self) -> Identity:
        """1² = 1."""
        return self

    def each(self) -> Array:
        """1, for all factors."""
        return jnp.ones((1, 1), self.dtype)
