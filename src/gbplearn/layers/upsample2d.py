"""The upsampling layer: each output explains a patch of the inputs.

Energy of example `b`, output `(i, j)` and channel `c` with inputs `x` and outputs `y`, one factor (M = 1) for each of
the `K²` terms:

    E_bijc = sum_{uv < K} (x_b,Ki+u,Kj+v,c - y_bijc)² / (2 sigma²)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core.robust import Kernel
from ..edges.axes import AxesEdges
from ..edges.windows import Pair
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Entries, Identity, Operator, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .convolution import as_pair, check_image
from .layer import Parameter, Transform, check_positive, check_robust


class UpsampleKind(FactorKind):
    """`h = x - y of its patch`, measured to be 0. Arguments: `x (B, H, W, C)`, `y (B, H / K, W / K, C)`."""

    size: Pair = eqx.field(static=True)

    def _grid(self, y: Shape) -> Shape:
        batch, height, width, channels = y
        return batch, height, self.size[0], width, self.size[1], channels

    def _edges(self, y: Shape) -> AxesEdges:
        return AxesEdges(y, (0, 1, 3, 5), (*self._grid(y), 1))

    def layout(self, *shapes: Shape) -> Layout:
        """One factor a pixel, as an array `(B, H / K, K, W / K, K, C)`."""
        x, y = shapes
        if len(y) != 4 or x != (y[0], y[1] * self.size[0], y[2] * self.size[1], y[3]):
            raise ValueError(f"patches of {self.size} cannot join images {x} and {y}")
        grid = self._grid(y)
        return Layout(grid, (), (AxesEdges(x, tuple(range(6)), (*grid, 1)), self._edges(y)))

    def value(self, *args: Array) -> Array:
        """`x - y`."""
        x, y = args
        return x.reshape(self._grid(y.shape)) - y[:, :, None, :, None, :]

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """1 and -1."""
        x, y = args
        return Identity(x.shape, x.dtype), Entries(self._edges(y.shape), jnp.full((1, 1), -1, y.dtype))


@dataclasses.dataclass(frozen=True)
class Upsample2D(Transform):
    """Each output is the value of a `size x size` patch of the inputs: `inputs ~ N(output of the patch, sigma²)`.

    A generative layer: the outputs, a smaller image, explain the inputs.

    **Arguments:**

    - `size`: of the patches, or a pair `(height, width)`; it must divide the image.
    - `sigma`: standard deviation of the inputs around the value of their patch.
    - `prior`: standard deviation of the prior of the outputs.
    - `robust`, `robust_over`: as `gbp.Factor`; axes of `(batch, height / size, size, width / size, size, channels)`.
    """

    size: int | Sequence[int] = 2
    sigma: float = 0.01
    prior: float = 3.0
    robust: Kernel | None = None
    robust_over: int | Sequence[int] | None = None
    name: str | None = None
    label: ClassVar[str] = "upsample"

    def __post_init__(self):
        as_pair("Upsample2D", "size", self.size)
        check_positive("Upsample2D", sigma=self.sigma, prior=self.prior)
        check_robust("Upsample2D", self.robust)

    @property
    def generative(self) -> bool:
        """The outputs explain the inputs."""
        return True

    def output_shape(self, shape: Shape) -> Shape:
        """`(height / size, width / size, channels)`."""
        check_image("Upsample2D", shape)
        height, width = as_pair("Upsample2D", "size", self.size)
        if shape[0] % height or shape[1] % width:
            raise ValueError(f"Upsample2D: patches of {self.size} do not divide images {shape}")
        return shape[0] // height, shape[1] // width, shape[2]

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """None."""
        return {}

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """`UpsampleKind`."""
        return Factor(
            UpsampleKind(as_pair("Upsample2D", "size", self.size)),
            (inputs, outputs),
            y=0.0,
            sigma=self.sigma,
            robust=self.robust,
            robust_over=self.robust_over,
            linear=True,
            name=name,
        )

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array | None:
        """It does not run that way."""
        return None
