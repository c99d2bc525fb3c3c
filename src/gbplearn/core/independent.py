"""Vectors of independent numbers: scalar Gaussians, updated jointly like `VectorGaussian`."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from .family import Values
from .sensitivity import FullSensitivity, RowSensitivity, Sensitivity, as_outputs, shares


class IndependentVectors(NamedTuple):
    """`units` vectors of `p` numbers, each with a variance of its own."""

    mean: Float[Values, "u p"]
    variance: Float[Values, "u p"]

    def output_covariance(self, of: Sensitivity) -> tuple[Float[Array, "n n"], None]:
        """`sum_u J_u V_u J_u'` of the outputs; nothing is to be kept of it."""
        if isinstance(of, RowSensitivity):
            rows = of.rows
            pairs = (rows[:, None] * rows[None]).reshape(-1, rows.shape[1])
            by_rows = (pairs @ self.variance.T).reshape(len(rows), len(rows), -1)
            return as_outputs(jnp.moveaxis(by_rows, -1, 0), of.slopes), None
        scaled = of.each * jnp.sqrt(jnp.asarray(self.variance))
        wide = scaled.reshape(scaled.shape[0] * scaled.shape[1], -1)
        return wide @ wide.T, None

    def output_variance(self, of: Sensitivity) -> Float[Array, "b c"]:
        """The diagonal of that."""
        if isinstance(of, RowSensitivity):
            return jnp.einsum("bcu,bu->bc", of.slopes**2, of.rows**2 @ self.variance.T)
        return jnp.einsum("bcup,up->bc", of.each**2, self.variance)

    def moved(self, of: Sensitivity, kept: None, alpha: Float[Array, "b c"]) -> Float[Array, "u p"]:
        """The mean that `alpha` leads to."""
        return self.mean + self.variance * of.back(alpha)

    def absorb(
        self, of: Sensitivity, kept: None, gain: np.ndarray, mean: Array, alpha: np.ndarray
    ) -> IndependentVectors:
        """The belief after a joint update, outside of compiled code: `V - V J' M J V` keeps its diagonal.

        **Arguments:** `gain`: `M (n, n)`; `mean`: that `alpha` has led to.
        """
        variance = np.asarray(self.variance, float)
        if isinstance(of, FullSensitivity):
            j = np.moveaxis(np.asarray(of.each, float).reshape(len(gain), *variance.shape), 1, 0)
            known = np.einsum("unp,unp->up", j, np.matmul(gain, j))
        else:
            rows = np.asarray(of.rows, float)
            known = np.einsum("ubp,bp->up", np.matmul(shares(np.asarray(of.slopes, float), gain), rows), rows)
        left = np.maximum(1 - variance * known, np.finfo(np.float32).eps)
        return IndependentVectors(mean, jnp.asarray(variance * left, self.variance.dtype))
