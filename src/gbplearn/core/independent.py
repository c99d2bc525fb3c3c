"""Vectors of independent numbers: scalar Gaussians, updated jointly like `VectorGaussian`."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from .family import Values
from .sensitivity import FullSensitivity, RowSensitivity, Sensitivity, as_outputs


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

    def taken(self, of: Sensitivity, kept: None, gain: Float[Array, "n n"]) -> Float[Array, "u p"]:
        """Variances after a joint update."""
        if isinstance(of, FullSensitivity):
            j = of.by_unit()
            known = jnp.einsum("unp,unp->up", j, jnp.matmul(gain, j))
        else:
            known = jnp.einsum("ubp,bp->up", jnp.matmul(of.shares(gain), of.rows), of.rows)
        return self.variance * jnp.maximum(1 - self.variance * known, jnp.finfo(self.variance.dtype).eps)

    def absorb(self, of: Sensitivity, kept: None, taken: Array, mean: Array, alpha: Array) -> IndependentVectors:
        """The belief after a joint update."""
        return IndependentVectors(mean, taken)
