"""Pairwise smoothing: neighbouring pixels are alike.

Energy of every pair of pixels `x_i`, `x_j` that lie side by side or one above the other, one factor (M = 1) a channel:

    E_ij = rho((x_j - x_i)² / sigma²) ,   rho(d²) = d² / 2 if it is not robust
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from ..core.robust import Kernel
from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .convolution import check_image
from .layer import Relation, check_positive, check_robust
from .stencil import difference


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
        """Differences down and to the right."""
        self.output_shape(variable.shape[1:])
        return [
            Factor(
                difference(len(variable.shape), axis),
                (variable, variable),
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
