"""Edge sets of stencils: the same few units around every place of a grid."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax

from .base import Edges


class StencilEdges(Edges):
    """The same few units around every place of a grid: pairs of neighbours, a pixel and the four around it.

    Factor `p` of the grid has the units `p + offset`, one for each offset.

    **Arguments:**

    - `offsets`: of each edge, a whole number >= 0 for each axis.
    - `grid`: how many places along each axis; by default as many as there is room for.
    """

    unit_shape: tuple[int, ...] = eqx.field(static=True)
    offsets: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    grid: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        unit_shape: tuple[int, ...],
        offsets: tuple[tuple[int, ...], ...],
        grid: tuple[int, ...] | None = None,
    ):
        self.unit_shape, self.offsets = unit_shape, offsets
        room = tuple(n - max(o[a] for o in offsets) for a, n in enumerate(unit_shape))
        self.grid = room if grid is None else grid
        if any(not 1 <= n <= most for n, most in zip(self.grid, room)):
            raise ValueError(f"offsets {offsets} do not fit into {unit_shape}")

    @property
    def row(self) -> int:
        """An edge an offset."""
        return len(self.offsets)

    @property
    def injective(self) -> bool:
        """No two offsets lead to the same unit from different places."""
        return not any(self._meet(a, b) for i, a in enumerate(self.offsets) for b in self.offsets[:i])

    def _meet(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return all(abs(i - j) < n for i, j, n in zip(a, b, self.grid))

    @property
    def dense(self) -> bool:
        """Whether at least half of the units have an edge, one each."""
        return self.injective and 2 * self.row * math.prod(self.grid) >= self.units

    def spread(self, x: Array) -> Array:
        """A slice an offset."""
        ends = [[o + n for o, n in zip(offset, self.grid)] for offset in self.offsets]
        parts = [lax.slice(x, offset, end) for offset, end in zip(self.offsets, ends)]
        return jnp.stack(parts, -1).reshape(-1, self.row)

    def pool(self, e: Array) -> Array:
        """Each offset's edges, put where they belong."""
        e = jnp.broadcast_to(e, (math.prod(self.grid), self.row)).reshape(*self.grid, self.row)
        free = [[n - o - g for n, o, g in zip(self.unit_shape, offset, self.grid)] for offset in self.offsets]
        sides = [[(o, f, 0) for o, f in zip(*pair)] for pair in zip(self.offsets, free)]
        return sum(
            (lax.pad(e[..., i], jnp.zeros((), e.dtype), where) for i, where in enumerate(sides)),
            start=jnp.zeros(self.unit_shape, e.dtype),
        )

    def others(self, e: Array) -> Array:
        """A unit's edge by one offset is met by those of the others from the places that lie as far apart."""
        e = e.reshape(*self.grid, self.row)
        out = []
        for i, mine in enumerate(self.offsets):
            met = [(j, other) for j, other in enumerate(self.offsets) if j != i and self._meet(mine, other)]
            total = jnp.zeros(self.grid, e.dtype)
            for j, other in met:
                sides = [(b - a, a - b, 0) for a, b in zip(mine, other)]
                total = total + lax.pad(e[..., j], jnp.zeros((), e.dtype), sides)
            out.append(total)
        return jnp.stack(out, -1).reshape(-1, self.row)
