"""The class likelihood.

Energy of example `b` with logits `f_b` and class probabilities `y_b` (one-hot, if the class is known):

    E_b = -sum_c y_bc log softmax_c(f_b)

Its gradient is `p - y` and its Hessian `diag(p) - p p'` with `p = softmax(f_b)`. Both are averaged over the belief
`N(m, v)` of the logits (see `factors/likelihood.py`), by draws that all examples share:

    D = E[diag(p) - p p'] = J'J,        J'r = y - E[p]
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from ..core import linalg
from ..factors.likelihood import Expansion, Likelihood
from ..factors.measurement import Layout
from ..factors.operators import Entries, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .class_observation import ClassObservation, class_layout, logit_edges

# Of `N(0, 1)`, and each with both signs.
_DRAWS = 32
# On the diagonal of `D`, which is singular: along the sum of the logits nothing is observed.
_LEAST = 1e-6
# Beliefs with larger standard deviations count as having this one: of so few draws almost none would fall where two
# classes are about equally likely, which is where all of `D` comes from.
_WIDEST = 10.0


class CategoricalKind(Likelihood):
    """`-sum y log softmax(f)`. Argument: `f (B, C)`."""

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example."""
        return class_layout(*shapes)

    def value(self, *args: Array) -> Float[Array, "b c"]:
        """`log softmax(f)`."""
        return jax.nn.log_softmax(args[0])

    def energies(self, y: Float[Array, "b c"], value: Float[Array, "b c"]) -> Float[Array, " b"]:
        """`-sum y log softmax(f)`."""
        return -jnp.sum(y * value, 1)

    def expand(self, y: Float[Array, "b c"], mean: Float[Array, "b c"], variance: Float[Array, "b c"]) -> Expansion:
        """`J` is the transpose of the Cholesky factor of `D`."""
        classes = mean.shape[1]
        std = jnp.minimum(jnp.sqrt(variance), _WIDEST)
        p = jax.nn.softmax(mean[:, None] + std[:, None] * jnp.asarray(_draws(classes), mean.dtype))  # (B, draws, C)
        average = p.mean(1)
        spread = jnp.einsum("bsi,bsj->bij", p, p, precision="highest") / p.shape[1]
        eye = jnp.eye(classes, dtype=mean.dtype)
        root = linalg.cholesky(eye * (average + _LEAST)[:, None] - spread)
        residual = linalg.triangular_solve(root, (y - average)[..., None])[..., 0]
        return Expansion(residual, Entries(logit_edges(mean.shape), root[..., None]))


def _draws(classes: int) -> np.ndarray:
    """Of `N(0, 1)`, `(draws, classes)`: symmetric about 0, and of variance 1.

    They are the same for all classes if these are few: then logits of which the same is known have the same expected
    softmax.
    """
    turns = classes if classes <= _DRAWS else 1
    first = np.random.default_rng(0).standard_normal((-(-_DRAWS // turns), classes))
    turned = np.concatenate([np.roll(first, k, 1) for k in range(turns)])
    both = np.concatenate([turned, -turned])
    return both / np.sqrt(np.mean(both**2, 0))


@dataclasses.dataclass(frozen=True)
class CategoricalObservation(ClassObservation):
    """A head that observes classes by their likelihood: `p(class) = softmax(logits)`. Nothing is to be tuned.

    Classes are given as whole numbers `(batch,)`, or as probabilities `(batch, classes)`.
    """

    name: str | None = None
    label: ClassVar[str] = "categorical"

    def factor(self, name: str, variable: Variable, target: np.ndarray) -> Factor:
        """`CategoricalKind`."""
        return Factor(CategoricalKind(), (variable,), y=target, name=name)
