"""Pairwise smoothing: neighbouring pixels are alike.

Energy of every pair of pixels `x_i`, `x_j` that lie side by side or one above the other, one factor (M = 1) a channel:

    E_ij = rho((x_j - x_i)² / sigma²) ,   rho(d²) = d² / 2 if it is not robust
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array, lax

from ..factor import Factor
from ..measurement import Entries, FactorKind, Layout, Operator, Shape
from ..robust import Kernel
from ..view import Variable
from ..window_edges import NeighbourEdges
from .convolution import check_image
from .layer import Relation, check_positive, check_robust


class DifferenceKind(FactorKind):
    """`h = second - first` of every pair along one axis, measured to be 0. Argument: `x` of any shape."""

    axis: int = eqx.field(static=True)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor a pair."""
        (x,) = shapes
        if not 0 <= self.axis < len(x) or x[self.axis] < 2:
            raise ValueError(f"there are no pairs along axis {self.axis} of {x}")
        edges = NeighbourEdges(x, self.axis)
        return Layout(edges.grid, (), (edges,))

    def value(self, *args: Array) -> Array:
        """`second - first`."""
        (x,) = args
        n = x.shape[self.axis]
        return lax.slice_in_dim(x, 1, n, axis=self.axis) - lax.slice_in_dim(x, 0, n - 1, axis=self.axis)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 and 1."""
        (x,) = args
        return (Entries(NeighbourEdges(x.shape, self.axis), jnp.asarray([[-1.0, 1.0]], x.dtype)),)


@dataclasses.dataclass(frozen=True)
class PairwiseSmoothing(Relation):
    """Neighbouring pixels of the image it stands behind are alike: `x_j - x_i ~ N(0, sigma²)`, down and to the right.

    **Arguments:**

    - `sigma`: standard deviation of the difference of two neighbours.
    - `robust`: `gbp.Tukey(N)` or `gbp.Huber(N)`, so that edges in the image may stay.
    - `robust_over`: axes of `(batch, height, width, channels)` that share one switch, such as `-1` for the channels.
    """

    sigma: float = 1.0
    robust: Kernel | None = None
    robust_over: int | Sequence[int] | None = None
    name: str | None = None
    label: ClassVar[str] = "smooth"

    def __post_init__(self):
        check_positive("PairwiseSmoothing", sigma=self.sigma)
        check_robust("PairwiseSmoothing", self.robust)

    def output_shape(self, shape: Shape) -> Shape:
        """No new variables."""
        check_image("PairwiseSmoothing", shape)
        if max(shape[:2]) < 2:
            raise ValueError(f"PairwiseSmoothing: images {shape} have no neighbouring pixels")
        return shape

    def factors(self, name: str, variable: Variable) -> list[Factor]:
        """`DifferenceKind` down and to the right."""
        self.output_shape(variable.shape[1:])
        return [
            Factor(
                DifferenceKind(axis),
                (variable,),
                y=0.0,
                sigma=self.sigma,
                robust=self.robust,
                robust_over=self.robust_over,
                linear=True,
                name=f"{name}/{way}",
            )
            for axis, way in ((1, "down"), (2, "right"))
            if variable.shape[axis] > 1
        ]
