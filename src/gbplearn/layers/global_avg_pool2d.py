"""The mean of each channel of an image.

Energy of example `b` and channel `c`, one factor (M = 1) each, with inputs `x` of `h x w` places and outputs `y`:

    E_bc = (y_bc - mean_ij x_bijc)² / (2 sigma²)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from ..edges.axes import AxesEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Entries, Identity, Operator, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .convolution import check_image
from .layer import Parameter, Transform, check_positive


class ChannelMeanKind(FactorKind):
    """`h = y - mean over places of x`, measured to be 0. Arguments: `x (B, H, W, C)`, `y (B, C)`."""

    def _edges(self, x: Shape) -> AxesEdges:
        return AxesEdges(x, (0, 2, 1), (x[0], x[3], x[1] * x[2]))

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example and channel; its row runs over the places."""
        x, y = shapes
        if len(x) != 4 or y != (x[0], x[3]):
            raise ValueError(f"means of channels cannot join images {x} and {y}")
        return Layout(y, (), (self._edges(x), AxesEdges(y, (0, 1), (*y, 1))))

    def value(self, *args: Array) -> Array:
        """`y - mean`."""
        return args[1] - jnp.mean(args[0], (1, 2))

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 / (H W) everywhere, 1."""
        x, y = args
        edges = self._edges(x.shape)
        return Entries(edges, jnp.full((1, edges.row), -1 / edges.row, x.dtype)), Identity(y.shape, y.dtype)


@dataclasses.dataclass(frozen=True)
class GlobalAvgPool2D(Transform):
    """The mean of each channel over a whole image: `outputs (channels,) ~ N(mean, sigma²)`.

    **Arguments:** `sigma`, `prior`: of the outputs, as `gbp.Dense`.
    """

    sigma: float = 0.01
    prior: float = 3.0
    name: str | None = None
    label: ClassVar[str] = "global_avg_pool"

    def __post_init__(self):
        check_positive("GlobalAvgPool2D", sigma=self.sigma, prior=self.prior)

    def output_shape(self, shape: Shape) -> Shape:
        """`(channels,)`."""
        check_image("GlobalAvgPool2D", shape)
        return (shape[2],)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """None."""
        return {}

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """`ChannelMeanKind`."""
        return Factor(ChannelMeanKind(), (inputs, outputs), y=0.0, sigma=self.sigma, linear=True, name=name)

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array:
        """The mean."""
        return jnp.mean(x, (1, 2))
