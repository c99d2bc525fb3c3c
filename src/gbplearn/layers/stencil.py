"""Factors that are the same at every place of an image: a difference of neighbours, a Laplacian.

h_p = sum_k c_k x_{p + o_k}
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax

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


def difference(axes: int, axis: int) -> StencilKind:
    """`second - first` of every pair along one of so many axes."""
    return StencilKind((_along(axes, axis, 0), _along(axes, axis, 1)), (-1.0, 1.0))


def _along(axes: int, axis: int, by: int) -> tuple[int, ...]:
    return tuple(by if a == axis else 0 for a in range(axes))
