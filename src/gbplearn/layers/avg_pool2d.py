"""The average-pooling layer.

Energy of example `b`, window `(i, j)` and channel `c`, one factor (M = 1) each, with inputs `x` and outputs `y`:

    E_bijc = (y_bijc - mean_{uv in the window} x_b,Ki+u,Kj+v,c)² / (2 sigma²)
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from ..core.linalg import add_all
from ..factors.operators import Entries, Identity, Operator
from .window_layer import WindowKind, WindowLayer


class AvgPoolKind(WindowKind):
    """`h = y - mean(window of x)`, measured to be 0. Arguments: `x (B, H, W, C)`, `y (B, h, w, C)`."""

    def reduce(self, x: Array) -> Array:
        """The mean of each window."""
        places = self.edges(x.shape).places(x)
        return add_all(places) / len(places)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 / K² everywhere."""
        x, y = args
        edges = self.edges(x.shape)
        return Entries(edges, edges.rows.lift(jnp.full((1, 1), -1 / edges.row, x.dtype))), Identity(y.shape, y.dtype)


@dataclasses.dataclass(frozen=True)
class AvgPool2D(WindowLayer):
    """The mean of each `size x size` window, for every channel: `outputs ~ N(mean(window), sigma²)`.

    Arguments as `gbp.MaxPool2D`.
    """

    label: ClassVar[str] = "avg_pool"
    kind: ClassVar[type[WindowKind]] = AvgPoolKind
    linear: ClassVar[bool] = True
