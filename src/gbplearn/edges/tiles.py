"""Edge sets of tiles: windows that lie side by side on an image."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core.linalg import add_all, sum_of_others
from .base import Edges, Rows

Pair = tuple[int, int]


class TileRows(Rows):
    """Edges `(B, h, K, w, L, C)` of factors `(B, h, w, C)`: the tile stays where it is on the image.

    (Rows of their own would have to be gathered from the image, and laid back on it, for every message.)
    """

    grid: tuple[int, ...] = eqx.field(static=True)  # of the factors
    size: Pair = eqx.field(static=True)

    def shape(self, factors: int, row: int) -> tuple[int, ...]:
        """`(B, h, K, w, L, C)`."""
        (b, h, w, c), (k, m) = self.grid, self.size
        return b, h, k, w, m, c

    def total(self, e: Array) -> Array:
        """Summed place by place: slices of images add up quicker than XLA:CPU reduces."""
        return add_all(_places(e)).reshape(-1, 1)

    def others(self, e: Array) -> Array:
        """The others of a tile's row, and all of its other rows."""
        k, m = e.shape[2], e.shape[4]
        beside = sum_of_others(e, 4) if m > 1 else jnp.zeros_like(e)
        if k == 1:
            return beside
        rows = add_all([lax.slice_in_dim(e, j, j + 1, axis=4) for j in range(m)])
        return beside + sum_of_others(rows, 2)

    def lift(self, f: Array) -> Array:
        """One number a tile."""
        if f.size == 1:  # for all
            return f.reshape(1, 1, 1, 1, 1, 1)
        b, h, w, c = self.grid
        return f.reshape(b, h, 1, w, 1, c)


def _places(e: Array) -> list[Array]:
    return [e[:, :, i, :, j] for i in range(e.shape[2]) for j in range(e.shape[4])]


class TileEdges(Edges):
    """The pixels `(B, H, W, C)` in tiles of one channel; rows and columns that fill no tile are left out."""

    unit_shape: tuple[int, ...] = eqx.field(static=True)
    size: Pair = eqx.field(static=True)

    @property
    def grid(self) -> tuple[int, ...]:
        """The factors as an array: the tiles of every image and channel."""
        b, height, width, c = self.unit_shape
        return b, height // self.size[0], width // self.size[1], c

    @property
    def rows(self) -> TileRows:
        """Edges stay on the image."""
        return TileRows(self.grid, self.size)

    @property
    def row(self) -> int:
        """The places of a tile."""
        return math.prod(self.size)

    @property
    def injective(self) -> bool:
        """Tiles do not overlap."""
        return True

    @property
    def dense(self) -> bool:
        """Tiles leave at most a margin out."""
        return 2 * math.prod(self.grid) * self.row >= self.units

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.rows.shape(math.prod(self.grid), self.row)

    def place(self) -> np.ndarray:
        """Which place of its tile an edge is, row by row, `(1, 1, K, 1, L, 1)`."""
        k, m = self.size
        return np.arange(k * m).reshape(1, 1, k, 1, m, 1)

    def places(self, x: Array) -> list[Array]:
        """The image at each place of the tiles: `(B, h, w, C)` each."""
        return _places(self.spread(x))

    def spread(self, x: Array) -> Array:
        """The image without its margin, in another shape."""
        _, h, k, w, m, _ = shape = self._shape
        return x[:, : h * k, : w * m].reshape(shape)

    def pool(self, e: Array) -> Array:
        """With a margin of zeros."""
        b, h, k, w, m, c = shape = self._shape
        image = jnp.broadcast_to(e, shape).reshape(b, h * k, w * m, c)
        missing = [(0, n - used) for n, used in zip(self.unit_shape, image.shape)]
        return image if image.shape == self.unit_shape else jnp.pad(image, missing)

    def others(self, e: Array) -> Array:
        """None: every pixel lies in one tile."""
        return jnp.zeros_like(e)
