"""Factors that are the same at every place of an image: a difference of neighbours, a Laplacian.

h_p = sum_k c_k x_{p + o_k}
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core.linalg import add_all
from ..edges.indexed import SliceEdges
from ..edges.stencil import StencilEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Entries, Operator, Shape


class StencilKind(FactorKind):
    """A weighted sum of a few elements around every place. Arguments: `x` of any shape, once or once for each offset.

    Given once it has one edge set, with an edge for each offset. Given once for each offset it has as many, each
    of them a slice of `x`: quicker where most of `x` is in them, slower where little is.

    **Arguments:**

    - `offsets`: from the place to each element, whole numbers >= 0, one for each axis of `x`.
    - `coefficients`: `c`, one for each offset.
    - `grid`: how many places along each axis; None for all that there is room for.
    """

    offsets: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    coefficients: tuple[float, ...] = eqx.field(static=True)
    grid: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def _edges(self, shapes: Sequence[Shape]) -> list[StencilEdges] | list[SliceEdges]:
        together = StencilEdges(shapes[0], self.offsets, self.grid)
        if len(shapes) == 1:
            return [together]
        slices = [tuple((begin, n, 1) for begin, n in zip(o, together.grid)) for o in self.offsets]
        return [SliceEdges(slices=s, unit_shape=shapes[0], shape=(math.prod(together.grid), 1)) for s in slices]

    def layout(self, *shapes: Shape) -> Layout:
        """One factor a place."""
        if len(shapes) not in (1, len(self.offsets)) or len(set(shapes)) > 1:
            raise ValueError(f"the arguments must be one variable, once or {len(self.offsets)} times, got {shapes}")
        if any(len(offset) != len(shapes[0]) for offset in self.offsets):
            raise ValueError(f"offsets {self.offsets} must have a number for each axis of {shapes[0]}")
        return Layout(StencilEdges(shapes[0], self.offsets, self.grid).grid, (), tuple(self._edges(shapes)))

    def value(self, *args: Array) -> Array:
        """The sum."""
        return add_all([o.times(x) for o, x in zip(self.jacobian(*args), args)])

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`c`, at every place."""
        edges = self._edges([x.shape for x in args])
        c = jnp.asarray([self.coefficients], args[0].dtype)
        return tuple(Entries(e, c if len(edges) == 1 else c[:, i : i + 1]) for i, e in enumerate(edges))


def difference(axes: int, axis: int) -> StencilKind:
    """`second - first` of every pair along one of so many axes."""
    return StencilKind((_along(axes, axis, 0), _along(axes, axis, 1)), (-1.0, 1.0))


def _along(axes: int, axis: int, by: int) -> tuple[int, ...]:
    return tuple(by if a == axis else 0 for a in range(axes))
