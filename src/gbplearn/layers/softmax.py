"""The class observation.

Energy of example `b` with logits `f_b` and class `c`, one factor with M = classes each:

    E_b = |onehot(c) - softmax(f_b)|² / (2 sigma²)
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Entries, Operator, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .class_observation import ClassObservation, class_layout, logit_edges
from .layer import check_positive


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
        return Entries(logit_edges(self.s.shape), self.each()).squared()

    def each(self) -> Float[Array, "b c c 1"]:
        """As matrices."""
        s = self.s
        return (s[:, :, None] * (jnp.eye(s.shape[1], dtype=s.dtype) - s[:, None, :]))[..., None]


class SoftmaxKind(FactorKind):
    """`h = softmax(f)`. Argument: `f (B, C)`."""

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example."""
        return class_layout(*shapes)

    def value(self, *args: Array) -> Float[Array, "b c"]:
        """`softmax(f)`."""
        return jax.nn.softmax(args[0])

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`diag(s) - s s'`."""
        return (SoftmaxJacobian(jax.nn.softmax(args[0])),)


@dataclasses.dataclass(frozen=True)
class SoftmaxObservation(ClassObservation):
    """A head that observes classes: `onehot(class) ~ N(softmax(logits), sigma²)`.

    Classes are given as whole numbers `(batch,)`, or as probabilities `(batch, classes)`.
    """

    sigma: float = 0.01
    name: str | None = None
    label: ClassVar[str] = "softmax"

    def __post_init__(self):
        check_positive("SoftmaxObservation", sigma=self.sigma)

    def factor(self, name: str, variable: Variable, target: np.ndarray) -> Factor:
        """`SoftmaxKind`."""
        return Factor(SoftmaxKind(), (variable,), y=target, sigma=self.sigma, name=name)
