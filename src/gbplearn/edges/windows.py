"""Edge sets on images: windows that slide over them."""

from __future__ import annotations

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core.linalg import sum_of_others
from .base import Edges

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Windows:
    """Where windows lie on an image: `(height, width)` each.

    Window `i` covers the places `i stride ... i stride + kernel - 1` of the image, whose pixels were moved apart
    (`dilation - 1` gaps between them) and given a margin of `before` and `after` places. Gaps and margins are no
    pixels.
    """

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    before: Pair = (0, 0)
    after: Pair = (0, 0)

    def count(self, size: tuple[int, ...]) -> Pair:
        """How many windows an image of this size has; below 1 if it is too small."""
        places = [(n - 1) * d + 1 + a + b for n, d, a, b in zip(size, self.dilation, self.before, self.after)]
        h, w = ((n - k) // s + 1 for n, k, s in zip(places, self.kernel, self.stride))
        return h, w

    @property
    def taps(self) -> list[Pair]:
        """The places of a window, row by row."""
        return [(u, v) for u in range(self.kernel[0]) for v in range(self.kernel[1])]

    def moved_apart(self, x: Array, axis: int = 1) -> Array:
        """The image with its gaps and margins, which are 0; `axis` is that of its height."""
        spatial = [(b, a, d - 1) for b, a, d in zip(self.before, self.after, self.dilation)]
        if all(c == (0, 0, 0) for c in spatial):
            return x
        others = [(0, 0, 0)] * (x.ndim - axis - 2)
        return lax.pad(x, jnp.zeros((), x.dtype), [*[(0, 0, 0)] * axis, *spatial, *others])

    def places(self, size: Pair) -> tuple[np.ndarray, np.ndarray]:
        """The rows `(h, taps)` and columns `(w, taps)` of every window, counted with gaps and margins."""
        counts = self.count(size)
        rows, columns = (np.arange(n)[:, None] * s + np.arange(k) for n, s, k in zip(counts, self.stride, self.kernel))
        return rows, columns

    def take(self, x: Array, tap: Pair, size: Pair) -> Array:
        """What lies at one place of every window: `(B, H, W, ...)` to `(B, h, w, ...)`; 0 for gaps and margins."""
        x = self.moved_apart(x)
        start = [0, *tap, *[0] * (x.ndim - 3)]
        ends = [t + (n - 1) * s + 1 for t, n, s in zip(tap, self.count(size), self.stride)]
        stop = [x.shape[0], *ends, *x.shape[3:]]
        return lax.slice(x, start, stop, [1, *self.stride, *[1] * (x.ndim - 3)])

    def transposed(self, size: Pair) -> Windows:
        """Windows on the array of windows: each pixel of the image has the windows that it lies in.

        Pixel `p` lies at tap `u` of window `i` if `i stride + u = before + p dilation`; and then window `i` lies at tap
        `kernel - 1 - u` of the window `p` of these.
        """
        before = [k - 1 - b for k, b in zip(self.kernel, self.before)]
        ends = [(n - 1) * d + k - 1 for n, d, k in zip(size, self.dilation, self.kernel)]
        after = [e - (m - 1) * s - b for e, m, s, b in zip(ends, self.count(size), self.stride, before)]
        return Windows(self.kernel, self.dilation, self.stride, (before[0], before[1]), (after[0], after[1]))

    def put(self, e: Array, tap: Pair, size: Pair) -> Array:
        """The transpose of `take`."""
        like = jax.ShapeDtypeStruct((e.shape[0], *size, *e.shape[3:]), e.dtype)
        return jax.linear_transpose(lambda x: self.take(x, tap, size), like)(e)[0]

    def present(self, size: Pair) -> np.ndarray:
        """Which places of which windows are pixels: `(h, w, taps)`."""
        axes = []
        for n, d, b, counted in zip(size, self.dilation, self.before, self.places(size), strict=True):
            place = counted - b
            axes.append((place >= 0) & (place <= (n - 1) * d) & (place % d == 0))
        rows, columns = axes
        both = rows[:, None, :, None] & columns[None, :, None, :]
        return both.reshape(*both.shape[:2], -1)


class WindowEdges(Edges):
    """The pixels `(B, H, W, C)` in windows that slide over them.

    A factor has a window of *all* channels, and there are `channels` factors at each place: factors
    `(B, h, w, channels)`, rows `(taps, C)`.
    """

    unit_shape: tuple[int, ...] = eqx.field(static=True)
    windows: Windows = eqx.field(static=True)
    channels: int = eqx.field(static=True)

    @property
    def size(self) -> Pair:
        """Height and width of the image."""
        return self.unit_shape[1], self.unit_shape[2]

    @property
    def grid(self) -> tuple[int, ...]:
        """The factors as an array."""
        return (self.unit_shape[0], *self.windows.count(self.size), self.channels)

    @property
    def row(self) -> int:
        """All taps of all channels."""
        return math.prod(self.windows.kernel) * self.unit_shape[3]

    @property
    def injective(self) -> bool:
        """Windows that do not overlap, each in one factor."""
        apart = all(k <= s for k, s in zip(self.windows.kernel, self.windows.stride)) or self.windows.kernel == (1, 1)
        return apart and self.channels == 1

    @property
    def dense(self) -> bool:
        """Windows without gaps between them."""
        return self.injective and 2 * math.prod(self.grid) * self.row >= self.units

    def present(self) -> Array | None:
        """Which edges there are `(F, n)`: those to pixels; None if all are."""
        present = self.windows.present(self.size)
        if present.all():
            return None
        wide = jnp.asarray(np.repeat(present, self.unit_shape[3], 2))[None, :, :, None, :]
        return jnp.broadcast_to(wide, (*self.grid, self.row)).reshape(-1, self.row)

    def _join(self, taps: list[Array]) -> Array:
        """From `(B, h, w, C)` a tap to edges."""
        row = jnp.stack(taps, 3)
        row = row.reshape(*row.shape[:3], 1, self.row)
        return jnp.broadcast_to(row, (*self.grid, self.row)).reshape(-1, self.row)

    def spread(self, x: Array) -> Array:
        """Slices of the image; 0 where there is no edge."""
        return self._join([self.windows.take(x, t, self.size) for t in self.windows.taps])

    def pool(self, e: Array) -> Array:
        """The transpose of `spread`."""
        e = jnp.broadcast_to(e, (math.prod(self.grid), self.row))
        return jax.linear_transpose(self.spread, jax.ShapeDtypeStruct(self.unit_shape, e.dtype))(e)[0]

    def others(self, e: Array) -> Array:
        """Each tap's edges are laid on the pixels, summed without the one, and taken back."""
        if self.injective:
            return jnp.zeros_like(e)
        taps = self.windows.taps
        # (B, h, w, channels, taps, C) -> of each tap (B, h, w, C, channels)
        slabs = list(e.reshape(*self.grid, len(taps), -1).transpose(4, 0, 1, 2, 5, 3))
        home = jnp.stack([self.windows.put(s, t, self.size) for s, t in zip(slabs, taps)], 4)
        rest = sum_of_others(home.reshape(*self.unit_shape, -1), 4).reshape(home.shape)
        back = [self.windows.take(rest[..., i, :], t, self.size) for i, t in enumerate(taps)]
        return jnp.stack(back, 3).transpose(0, 1, 2, 5, 3, 4).reshape(e.shape)
