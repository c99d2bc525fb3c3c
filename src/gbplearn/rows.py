"""How the edges of factors lie in an array: what is summed over each factor, and what is left out."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .linalg import sum_along, sum_of_others


class Rows(eqx.Module):
    """How the edges of factors over scalars lie in an array: as rows `(F, n)`, unless an edge set knows better."""

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
