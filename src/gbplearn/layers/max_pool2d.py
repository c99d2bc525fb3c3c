"""The max-pooling layer.

Energy of example `b`, window `(i, j)` and channel `c`, one factor (M = 1) each, with inputs `x` and outputs `y`:

    E_bijc = (y_bijc - max_{uv in the window} x_b,Ki+u,Kj+v,c)² / (2 sigma²)

Its Jacobian is -1 at the largest input (the first, if several are), 0 at the others.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array, lax

from ..measurement import Entries, Operator
from .operators import Identity
from .window_layer import WindowKind, WindowLayer


class MaxPoolKind(WindowKind):
    """`h = y - max(window of x)`, measured to be 0. Arguments: `x (B, H, W, C)`, `y (B, h, w, C)`."""

    def reduce(self, x: Array) -> Array:
        """The largest of each window."""
        window = (1, *self.windows.kernel, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, (1, *self.windows.stride, 1), "valid")

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 at the first of the largest."""
        x, y = args
        edges = self.edges(x.shape)
        size = edges.size
        taps = [self.windows.take(x, t, size) for t in self.windows.taps]
        largest = taps[0]
        for t in taps[1:]:
            largest = jnp.maximum(largest, t)
        free, hits = jnp.ones(largest.shape, bool), []
        for t in taps:
            hit = free & (t == largest)
            hits.append(jnp.where(hit, -1.0, 0.0).astype(x.dtype))
            free = free & ~hit
        return Entries(edges, jnp.stack([h.reshape(-1) for h in hits]).T), Identity(y.shape, y.dtype)


@dataclasses.dataclass(frozen=True)
class MaxPool2D(WindowLayer):
    """The largest of each `size x size` window, for every channel: `outputs ~ N(max(window), sigma²)`.

    **Arguments:**

    - `size`: of the windows, which lie side by side; or a pair `(height, width)`. Rows and columns that fill no window
        are left out.
    - `sigma`: standard deviation of the outputs around the largest input.
    - `prior`: standard deviation of the prior of the outputs.
    - `robust`, `robust_over`: as `gbp.Factor`; axes of the outputs `(batch, height, width, channels)`.
    """

    label: ClassVar[str] = "max_pool"
    kind: ClassVar[type[WindowKind]] = MaxPoolKind
    linear: ClassVar[bool] = False
