"""Factors that are the same at every place of an image: a difference of neighbours, a Laplacian.

h_p = sum_k c_k x_{p + o_k}
"""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax

from ..edges import SliceEdges
from ..measurement import Entries, FactorKind, Layout, Operator, Shape
from ..window_edges import StencilEdges


class StencilKind(FactorKind):
    """A weighted sum of a few elements around every place. Argument: `x` of any shape.

    **Arguments:**

    - `offsets`: from the place to each element, whole numbers >= 0, one for each axis of `x`.
    - `coefficients`: `c`, one for each offset.
    - `grid`: how many places along each axis; None for all that there is room for.
    """

    offsets: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    coefficients: tuple[float, ...] = eqx.field(static=True)
    grid: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def _edges(self, shape: Shape) -> StencilEdges:
        return StencilEdges(shape, self.offsets, self.grid)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor a place."""
        (x,) = shapes
        if any(len(offset) != len(x) for offset in self.offsets):
            raise ValueError(f"offsets {self.offsets} must have a number for each axis of {x}")
        edges = self._edges(x)
        return Layout(edges.grid, (), (edges,))

    def value(self, *args: Array) -> Array:
        """The sum."""
        (x,) = args
        grid = self._edges(x.shape).grid
        parts = [lax.slice(x, o, [i + n for i, n in zip(o, grid)]) for o in self.offsets]
        return sum((c * part for c, part in zip(self.coefficients, parts)), start=jnp.zeros(grid, x.dtype))

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`c`, at every place."""
        (x,) = args
        return (Entries(self._edges(x.shape), jnp.asarray([self.coefficients], x.dtype)),)


class DifferenceKind(FactorKind):
    """`second - first` of every pair of neighbours along an axis. Arguments: `x` twice, which has all of them.

    Each element is in two factors, once as the first and once as the second: two edge sets, both slices of `x`.

    **Arguments:**

    - `axis`: of `x`.
    """

    axis: int = eqx.field(static=True)

    def _edges(self, shape: Shape) -> tuple[SliceEdges, SliceEdges]:
        if not self.axis < len(shape) or shape[self.axis] < 2:
            raise ValueError(f"an array of shape {shape} has no neighbours along axis {self.axis}")
        sizes = [n - (a == self.axis) for a, n in enumerate(shape)]

        def at(begin: int) -> SliceEdges:
            slices = tuple((begin if a == self.axis else 0, n, 1) for a, n in enumerate(sizes))
            return SliceEdges(slices=slices, unit_shape=shape, shape=(math.prod(sizes), 1))

        return at(0), at(1)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor a pair."""
        first, second = shapes
        if first != second:
            raise ValueError(f"both arguments must be the same, they have shapes {first} and {second}")
        edges = self._edges(first)
        return Layout(tuple(n for _, n, _ in edges[0].slices), (), edges)

    def value(self, *args: Array) -> Array:
        """The difference."""
        first, second = args
        a, b = self._edges(first.shape)
        return b.spread(second) - a.spread(first)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 and 1."""
        first, second = args
        signs = (jnp.full((1, 1), sign, first.dtype) for sign in (-1, 1))
        a, b = (Entries(e, sign) for e, sign in zip(self._edges(second.shape), signs))
        return a, b
