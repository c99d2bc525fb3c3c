"""What layers share that make one number of each window of an image."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core.robust import Kernel
from ..edges.axes import AxesEdges
from ..edges.tiles import Pair, TileEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .convolution import as_pair, check_image
from .layer import Parameter, Transform, check_positive, check_robust


class WindowKind(FactorKind):
    """`h = y - reduce(x)`, measured to be 0. Arguments: `x (B, H, W, C)`, `y (B, h, w, C)`."""

    size: Pair = eqx.field(static=True)

    @abc.abstractmethod
    def reduce(self, x: Array) -> Array:
        """`(B, H, W, C)` to `(B, h, w, C)`."""

    def edges(self, shape: Shape) -> TileEdges:
        """A window of one channel for each factor."""
        return TileEdges(shape, self.size)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example, window and channel; its row runs over the window."""
        x, y = shapes
        if len(x) != 4 or self.edges(x).grid != y:
            raise ValueError(f"windows of {self.size} cannot join images {x} and {y}")
        return Layout(y, (), (self.edges(x), AxesEdges(y, (0, 1, 2, 3), (*y, 1))))

    def value(self, *args: Array) -> Array:
        """`y - reduce(x)`."""
        return args[1] - self.reduce(args[0])


@dataclasses.dataclass(frozen=True)
class WindowLayer(Transform):
    """What these layers have in common."""

    size: int | Sequence[int] = 2
    sigma: float = 0.01
    prior: float = 3.0
    robust: Kernel | None = None
    robust_over: int | Sequence[int] | None = None
    name: str | None = None
    kind: ClassVar[type[WindowKind]]
    linear: ClassVar[bool]

    def __post_init__(self):
        as_pair(type(self).__name__, "size", self.size)
        check_positive(type(self).__name__, sigma=self.sigma, prior=self.prior)
        check_robust(type(self).__name__, self.robust)

    @property
    def _kind(self) -> WindowKind:
        return self.kind(as_pair(type(self).__name__, "size", self.size))

    def output_shape(self, shape: Shape) -> Shape:
        """`(height, width, channels)`."""
        check_image(type(self).__name__, shape)
        size = as_pair(type(self).__name__, "size", self.size)
        height, width = (n // k for n, k in zip(shape, size))
        if min(height, width) < 1:
            raise ValueError(f"{type(self).__name__}: windows of {self.size} do not fit images {shape}")
        return height, width, shape[2]

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """None."""
        return {}

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """Its kind, from inputs to outputs."""
        return Factor(
            self._kind,
            (inputs, outputs),
            y=0.0,
            sigma=self.sigma,
            robust=self.robust,
            robust_over=self.robust_over,
            linear=self.linear,
            name=name,
        )

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array | None:
        """Reduce."""
        return self._kind.reduce(jnp.asarray(x))
