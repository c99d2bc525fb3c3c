"""Edge sets on grids: a variable along some axes of a grid of factors, as in dense layers."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax

from ..core.linalg import sum_along, sum_of_others
from .base import Edges


class AxesEdges(Edges):
    """Edges on a grid of factors and row positions: a variable along some axes of it, repeated along the others.

    A dense layer has factors `(batch, output)` and rows `(input,)`; its inputs are repeated along `output`, its
    weights along `batch`.
    """

    unit_shape: tuple[int, ...] = eqx.field(static=True)
    axes: tuple[int, ...] = eqx.field(static=True)  # for each axis of the variable, the axis of the grid it lies along
    grid: tuple[int, ...] = eqx.field(static=True)  # sizes of all axes: those of the factors, then one of the row
    joined: tuple[int, ...] = eqx.field(static=True)  # unit_shape with axes that lie along one axis of the grid joined

    def __init__(self, unit_shape: tuple[int, ...], axes: tuple[int, ...], grid: tuple[int, ...]):
        self.unit_shape, self.axes, self.grid = tuple(unit_shape), tuple(axes), tuple(grid)
        self.joined = tuple(grid[a] for a in axes)
        if math.prod(self.joined) != math.prod(unit_shape):
            raise ValueError(f"a variable of shape {self.unit_shape} does not lie along axes {axes} of the grid {grid}")

    @property
    def row(self) -> int:
        """The last axis of the grid."""
        return self.grid[-1]

    @property
    def repeated(self) -> tuple[int, ...]:
        """Axes of the grid along which the variable is repeated."""
        return tuple(a for a, n in enumerate(self.grid) if a not in self.axes and n > 1)

    @property
    def injective(self) -> bool:
        """Nothing is repeated."""
        return not self.repeated

    @property
    def dense(self) -> bool:
        """A grid covers the whole variable."""
        return self.injective

    def spread(self, x: Array) -> Array:
        """Broadcast."""
        trail = x.shape[len(self.unit_shape) :]
        x = x.reshape(*self.joined, *trail)
        order = sorted(range(len(self.axes)), key=lambda i: self.axes[i])
        if order != list(range(len(order))):
            x = _transposed(x, (*order, *range(len(self.axes), x.ndim)))
        sizes = [n if a in self.axes else 1 for a, n in enumerate(self.grid)]
        wide = jnp.broadcast_to(x.reshape(*sizes, *trail), (*self.grid, *trail))
        return wide.reshape(-1, self.row, *trail)

    def pool(self, e: Array) -> Array:
        """Sum over the axes along which the variable is repeated."""
        trail = e.shape[2:]
        missing = tuple(a for a in range(len(self.grid)) if a not in self.axes)
        e = jnp.broadcast_to(e, (math.prod(self.grid[:-1]), *e.shape[1:])).reshape(*self.grid, *trail)
        for axis in missing:
            e = sum_along(e, axis)
        e = e.squeeze(missing)
        left = sorted(self.axes)
        e = e.transpose(*(left.index(a) for a in self.axes), *range(len(left), e.ndim))
        return e.reshape(*self.unit_shape, *trail)

    def others(self, e: Array) -> Array:
        """Sum over the other places along the repeated axes."""
        repeated = self.repeated
        if not repeated:
            return jnp.zeros_like(e)
        wide = e.reshape(*self.grid, *e.shape[2:])
        if len(repeated) == 1:
            return sum_of_others(wide, repeated[0]).reshape(e.shape)
        front = jnp.moveaxis(wide, repeated, range(len(repeated)))
        out = sum_of_others(front.reshape(-1, *front.shape[len(repeated) :]), 0).reshape(front.shape)
        return jnp.moveaxis(out, range(len(repeated)), repeated).reshape(e.shape)


def _transposed(x: Array, order: tuple[int, ...]) -> Array:
    """Transposed once, not at every edge that reads it.

    XLA:CPU would fold the transpose into each reader, which then goes down the columns: out of the cache at every
    step where their length is a power of two. The results of a conditional it must store.
    """
    if x.size < 100_000:
        return x.transpose(order)
    first = x.reshape(-1)[0]
    # Flat: of a matrix it would store no transpose, but only mark the order of its axes.
    flat = lax.cond(
        first == first, lambda a: a.transpose(order).reshape(-1), lambda a: (1 * a.transpose(order)).reshape(-1), x
    )
    return flat.reshape([x.shape[i] for i in order])
