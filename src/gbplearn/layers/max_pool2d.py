"""The max-pooling layer.

Energy of example `b`, window `(i, j)` and channel `c`, one factor (M = 1) each, with inputs `x` and outputs `y`:

    E_bijc = (y_bijc - max_{uv in the window} x_b,Ki+u,Kj+v,c)² / (2 sigma²)

Its Jacobian is -1 at the largest input (the first, if several are), 0 at the others.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from ..factors.operators import Entries, Identity, Operator
from ..kernels.forms import TileMaxForm
from .window_layer import WindowKind, WindowLayer


class MaxPoolKind(WindowKind):
    """`h = y - max(window of x)`, measured to be 0. Arguments: `x (B, H, W, C)`, `y (B, h, w, C)`."""

    def reduce(self, x: Array) -> Array:
        """The largest of each window."""
        return functools.reduce(jnp.maximum, self.edges(x.shape).places(x))

    def form(self, *args: Array) -> TileMaxForm | None:
        """As it is."""
        return TileMaxForm(self.size) if type(self) is MaxPoolKind else None

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 at the first of the largest."""
        x, y = args
        edges = self.edges(x.shape)
        largest = self.reduce(x)
        # Later places first, so that of equals the first one is written last.
        first = jnp.zeros(largest.shape, jnp.int32)
        for i, at_place in reversed(list(enumerate(edges.places(x)))):
            first = jnp.where(at_place == largest, i, first)
        hit = edges.rows.lift(first) == edges.place()
        return Entries(edges, jnp.where(hit, -1.0, 0.0).astype(x.dtype)), Identity(y.shape, y.dtype)


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
    passes_few: ClassVar[bool] = True
    kind: ClassVar[type[WindowKind]] = MaxPoolKind
    linear: ClassVar[bool] = False
