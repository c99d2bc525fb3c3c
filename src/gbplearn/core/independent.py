"""Vectors of independent numbers: scalar Gaussians, updated jointly like `VectorGaussian`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from .family import Values
from .sensitivity import RowSensitivity, Sensitivity, as_outputs, shares


class IndependentVectors(NamedTuple):
    """`units` vectors of `p` numbers, each with a variance of its own. Methods as those of `VectorGaussian`."""

    mean: Float[Values, "u p"]
    variance: Float[Values, "u p"]

    def output_covariance(self, of: Sensitivity, double: bool = False) -> tuple[np.ndarray, None]:
        """`sum_u J_u V_u J_u'` of the outputs; nothing is to be kept of it. Outside of compiled code.

        **Arguments:** `double`: in double precision.
        """
        kind = float if double else self.mean.dtype
        variance = np.asarray(self.variance, kind)
        if isinstance(of, RowSensitivity):
            rows = np.asarray(of.rows, kind)
            by_rows = np.stack([(rows * v) @ rows.T for v in variance])
            return as_outputs(by_rows, np.asarray(of.slopes, kind)), None
        each = np.asarray(of.each, kind) * np.sqrt(variance)
        wide = each.reshape(each.shape[0] * each.shape[1], -1)
        return wide @ wide.T, None

    def output_variance(self, of: Sensitivity) -> Float[Array, "b c"]:
        """The diagonal of that."""
        if isinstance(of, RowSensitivity):
            return jnp.einsum("bcu,bu->bc", of.slopes**2, of.rows**2 @ self.variance.T)
        return jnp.einsum("bcup,up->bc", of.each**2, self.variance)

    def moved(self, of: Sensitivity, kept: None, alpha: Float[np.ndarray, "b c"]) -> np.ndarray:
        """The mean that `alpha` leads to."""
        if isinstance(of, RowSensitivity):
            on_rows = np.einsum("bcu,bc->ub", np.asarray(of.slopes, float), alpha)
            back = on_rows @ np.asarray(of.rows, float)
        else:
            back = np.einsum("bcup,bc->up", np.asarray(of.each, float), alpha)
        return np.asarray(np.asarray(self.mean) + np.asarray(self.variance) * back, self.mean.dtype)

    def absorb(
        self,
        of: Sensitivity,
        kept: None,
        gain: np.ndarray,
        alpha: np.ndarray,
        mean: Array,
        without: Callable[[np.ndarray], np.ndarray] | None = None,
        contrasts: bool = False,
    ) -> IndependentVectors:
        """The belief after a joint update: of `V - V J' M J V` it keeps the diagonal.

        **Arguments:** `gain`: `M (n, n)`; `alpha (B, C)`: what moves the mean, to `mean` (`moved`).
        """
        variance = np.asarray(self.variance, float)
        if isinstance(of, RowSensitivity):
            rows = np.asarray(of.rows, float)
            known = np.einsum("ubp,bp->up", np.matmul(shares(np.asarray(of.slopes, float), gain), rows), rows)
        else:
            j = np.asarray(of.by_unit(), float)
            known = np.einsum("unp,unp->up", j, np.matmul(gain, j))
        left = np.maximum(1 - variance * known, np.finfo(np.float32).eps)
        return IndependentVectors(mean, jnp.asarray(variance * left, self.variance.dtype))
