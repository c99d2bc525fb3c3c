"""Jacobians that layers share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ..edges import Edges
from ..measurement import Operator, Shape


class Product(Operator):
    """`J m = slope x product(c, m)`, where `product` is linear in both: a matrix product, a convolution.

    Entry by entry `J` is `slope x c`, each factor with its own elements of `c`: so the squares are again a product,
    `slope² x product(c², v)`.
    """

    coefficient: Array  # c
    slope: Array  # one a factor: the shape of product(c, m)
    edges: Edges  # of the variable whose values c are: which element of c stands on which edge
    product: Callable[[Array, Array], Array] = eqx.field(static=True)
    shape: Shape = eqx.field(static=True)  # of the variable

    def times(self, m: Array) -> Float[Array, "f m"]:
        """`slope x product(c, m)`."""
        return (self.slope * self.product(self.coefficient, m)).reshape(-1, 1)

    def back(self, r: Float[Array, "f m"]) -> Array:
        """The product transposed."""
        like = jax.ShapeDtypeStruct(self.shape, r.dtype)
        transposed = jax.linear_transpose(lambda m: self.slope * self.product(self.coefficient, m), like)
        return transposed(r.reshape(self.slope.shape))[0]

    def squared(self) -> Product:
        """Squares of slope and coefficient."""
        c, s = self.coefficient, self.slope
        return Product(c * c, s * s, self.edges, self.product, self.shape)

    def each(self) -> Array:
        """`slope x c`."""
        return self.slope.reshape(-1, 1) * self.edges.spread(self.coefficient)


class Identity(Operator):
    """Factor `i` sees unit `i`, as it is."""

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
