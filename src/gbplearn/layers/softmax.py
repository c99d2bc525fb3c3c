"""The class observation.

Energy of example `b` with logits `f_b` and class `c`, one factor with M = classes each:

    E_b = |onehot(c) - softmax(f_b)|² / (2 sigma²)
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from ..edges.axes import AxesEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Entries, Operator, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .layer import Observation, check_positive


class SoftmaxJacobian(Operator):
    """`J = diag(s) - s s'`, symmetric, for each example."""

    s: Float[Array, "b c"]

    def times(self, m: Array) -> Float[Array, "f m"]:
        """`s m - s (s . m)`."""
        return self.s * (m - jnp.sum(self.s * m, 1, keepdims=True))

    def back(self, r: Float[Array, "f m"]) -> Array:
        """The same: `J` is symmetric."""
        return self.times(r)

    def squared(self) -> Operator:
        """Entry by entry."""
        return Entries(_edges(self.s.shape), self.each()).squared()

    def each(self) -> Float[Array, "b c c 1"]:
        """As matrices."""
        s = self.s
        return (s[:, :, None] * (jnp.eye(s.shape[1], dtype=s.dtype) - s[:, None, :]))[..., None]


class SoftmaxKind(FactorKind):
    """`h = softmax(f)`. Argument: `f (B, C)`."""

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example."""
        (f,) = shapes
        if len(f) != 2:
            raise ValueError(f"a softmax needs logits (batch, classes), got {f}")
        return Layout(f[:1], f[1:], (_edges(f),))

    def value(self, *args: Array) -> Float[Array, "b c"]:
        """`softmax(f)`."""
        return jax.nn.softmax(args[0])

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`diag(s) - s s'`."""
        return (SoftmaxJacobian(jax.nn.softmax(args[0])),)


def _edges(shape: Shape) -> AxesEdges:
    return AxesEdges(shape, (0, 1), shape)


@dataclasses.dataclass(frozen=True)
class SoftmaxObservation(Observation):
    """A head that observes classes: `onehot(class) ~ N(softmax(logits), sigma²)`.

    Classes are given as whole numbers `(batch,)`, or as probabilities `(batch, classes)`.
    """

    sigma: float = 0.01
    name: str | None = None
    label: ClassVar[str] = "softmax"
    whole_rows: ClassVar[bool] = True

    def __post_init__(self):
        check_positive("SoftmaxObservation", sigma=self.sigma)

    def output_shape(self, shape: Shape) -> Shape:
        """One axis of at least two classes."""
        if len(shape) != 1 or shape[0] < 2:
            raise ValueError(f"SoftmaxObservation needs logits (classes,) of at least 2 classes, got {shape}")
        return shape

    def target(self, y: Any, shape: Shape) -> np.ndarray:
        """As probabilities `(batch, classes)`."""
        y, (batch, classes) = np.asarray(y), shape
        if y.shape == (batch, classes):
            y = y.astype(float)
            if not np.isfinite(y).all() or (y < 0).any() or not np.allclose(y.sum(1), 1, atol=1e-4):
                raise ValueError("class probabilities must be >= 0 and sum to 1")
            return y
        if y.shape != (batch,):
            raise ValueError(f"classes must have shape ({batch},) or {shape}, got {y.shape}")
        if not (np.isfinite(y.astype(float)).all() and (y == np.round(y)).all()):
            raise ValueError("classes must be whole numbers")
        if batch and not (y.min() >= 0 and y.max() < classes):
            raise ValueError(f"classes must lie in 0 ... {classes - 1}, got {y.min():g} ... {y.max():g}")
        return np.eye(classes)[y.astype(int)]

    def factor(self, name: str, variable: Variable, target: np.ndarray) -> Factor:
        """`SoftmaxKind`."""
        return Factor(SoftmaxKind(), (variable,), y=target, sigma=self.sigma, name=name)
