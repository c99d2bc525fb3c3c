"""The Gaussian observation: a regression output, an input, a pixel.

Energy of every element `x_i` with observed value `z_i`, one factor (M = 1) each:

    E_i = rho((x_i - z_i)² / sigma²) ,   rho(d²) = d² / 2 if it is not robust
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jax import Array

from ..core.gaussian import Gaussian
from ..core.noise import LearnNoise
from ..core.robust import Kernel
from ..edges.axes import AxesEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Identity, Operator, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .layer import Observation, check_positive, check_robust


class UnaryKind(FactorKind):
    """`h = x`. Argument: `x` of any shape."""

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an element."""
        (x,) = shapes
        return Layout(x, (), (AxesEdges(x, tuple(range(len(x))), (*x, 1)),))

    def value(self, *args: Array) -> Array:
        """`x`."""
        return args[0]

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`1`."""
        return (Identity(args[0].shape, args[0].dtype),)


@dataclasses.dataclass(frozen=True)
class GaussianObservation(Observation):
    """Observes values: `value ~ N(variable, sigma²)`. As the last layer of a network a head, as the first its input.

    **Arguments:**

    - `sigma`: standard deviation of the noise; "learn" infers it with everything else, or `gbp.LearnNoise(start=...)`
        from a given start.
    - `robust`: `gbp.Tukey(N)` or `gbp.Huber(N)` for observations of which some are nonsense.
    - `robust_over`: axes (of batch and example) that share one switch, such as `-1` for the channels of a pixel.
    """

    sigma: float | str | LearnNoise = 0.1
    robust: Kernel | None = None
    robust_over: int | Sequence[int] | None = None
    name: str | None = None
    label: ClassVar[str] = "gaussian"

    def __post_init__(self):
        if isinstance(self.sigma, str):
            if self.sigma != "learn":
                raise ValueError(f"GaussianObservation: sigma must be a number > 0 or 'learn', got {self.sigma!r}")
        elif not isinstance(self.sigma, LearnNoise):
            check_positive("GaussianObservation", sigma=self.sigma)
        check_robust("GaussianObservation", self.robust)
        if self.robust is not None and self.learnt is not None:
            raise ValueError("GaussianObservation: the noise of a robust observation cannot be learnt")

    def target(self, y: Any, shape: Shape) -> np.ndarray:
        """Numbers of the variable's shape; `(batch,)` will do for one output."""
        y = np.asarray(y, float)
        if y.shape == shape[:1] and shape[1:] == (1,):
            y = y[:, None]
        if y.shape != shape:
            raise ValueError(f"observed values must have shape {shape}, got {y.shape}")
        if not np.isfinite(y).all():
            raise ValueError("observed values hold NaN or infinity")
        return y

    @property
    def learnt(self) -> LearnNoise | None:
        """How the noise is learnt; None if it is given."""
        return (
            LearnNoise() if isinstance(self.sigma, str) else self.sigma if isinstance(self.sigma, LearnNoise) else None
        )

    def as_prior(self, values: np.ndarray) -> Gaussian | None:
        """The observation as a prior of what it observes; None if its noise is robust or learnt."""
        if self.robust is not None or isinstance(self.sigma, (str, LearnNoise)):
            return None
        return Gaussian.from_moments(mean=values, std=self.sigma)

    def factor(self, name: str, variable: Variable, target: np.ndarray) -> Factor:
        """`UnaryKind`."""
        return Factor(
            UnaryKind(),
            (variable,),
            y=target,
            sigma=self.learnt or self.sigma,
            robust=self.robust,
            robust_over=self.robust_over,
            linear=True,
            name=name,
        )
