"""A Gaussian prior on the variables that a layer stands behind.

Energy of every element, one factor (M = 1) each: `E_i = (x_i - mean)² / (2 std²)`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .gaussian_observation import UnaryKind
from .layer import Relation, check_positive


@dataclasses.dataclass(frozen=True)
class Prior(Relation):
    """`x ~ N(mean, std²)` for the inputs or the outputs of the layer before it, on top of the prior they have."""

    mean: float = 0.0
    std: float = 1.0
    name: str | None = None
    label: ClassVar[str] = "prior"

    def __post_init__(self):
        check_positive("Prior", std=self.std)
        if not np.isfinite(self.mean):
            raise ValueError(f"Prior: mean must be finite, got {self.mean!r}")

    def output_shape(self, shape: Shape) -> Shape:
        """No new variables."""
        return shape

    def factors(self, name: str, variable: Variable) -> list[Factor]:
        """`UnaryKind`."""
        return [Factor(UnaryKind(), (variable,), y=self.mean, sigma=self.std, linear=True, name=name)]
