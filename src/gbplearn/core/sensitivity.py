"""How the outputs of examples move with vector variables: what a joint update of a batch sees of its parameters.

With outputs `z_bc` of examples `b` and vectors `w_u`, each of `p` numbers,

    d z_bc = sum_u j_bcu . d w_u

Where a unit takes part once an example (dense layers), `j_bcu = slope_bcu x_b` with one row `x_b` for all outputs and
units; else (filters) the `j` are kept one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from .family import Values


class RowSensitivity(NamedTuple):
    """`slope_bcu x_b`."""

    rows: Float[Array, "b p"]
    slopes: Float[Array, "b c u"]


class FullSensitivity(NamedTuple):
    """`j_bcu`, one by one."""

    each: Float[Values, "b c u p"]

    def by_unit(self) -> Float[Values, "u n p"]:
        """Of each unit a row for every output of every example."""
        b, c, u, p = self.each.shape
        return self.each.reshape(b * c, u, p).swapaxes(0, 1)


Sensitivity = RowSensitivity | FullSensitivity


def steps(of: Sensitivity, by: Float[Array, "u p"]) -> Float[Array, "b c"]:
    """How the outputs move where the vectors move by so much."""
    if isinstance(of, RowSensitivity):
        return jnp.einsum("bcu,bu->bc", of.slopes, of.rows @ by.T)
    return jnp.einsum("bcup,up->bc", of.each, by)


def _each(of: Sensitivity) -> Float[Values, "b c u p"]:
    if isinstance(of, FullSensitivity):
        return of.each
    return of.slopes[..., None] * of.rows[:, None, None, :]


def added(one: Sensitivity, other: Sensitivity) -> FullSensitivity:
    """Of vectors that take part in two places."""
    return FullSensitivity(_each(one) + _each(other))


def as_outputs(by_rows: Float[np.ndarray, "k b b"], slopes: Float[np.ndarray, "b c u"]) -> Float[np.ndarray, "n n"]:
    """`sum_u slope_bcu K_ube slope_edu`: covariances of the rows' numbers as those of all outputs."""
    b, c, _ = slopes.shape
    if by_rows.shape[0] == 1:
        wide = slopes.reshape(b * c, -1)
        return ((wide @ wide.T).reshape(b, c, b, c) * by_rows[0][:, None, :, None]).reshape(b * c, b * c)
    scaled = np.matmul(by_rows.transpose(1, 2, 0)[:, :, None] * slopes[:, None], slopes.transpose(0, 2, 1))
    return scaled.transpose(0, 2, 1, 3).reshape(b * c, b * c)


def shares(slopes: np.ndarray, gain: np.ndarray) -> Float[np.ndarray, "u b b"]:
    """`sum_cd slope_bcu M_bc,ed slope_edu`: what a matrix over all outputs comes to on the rows, for each unit."""
    b, c, u = slopes.shape
    scaled = np.matmul(gain.reshape(b * c, b, c).transpose(1, 0, 2), slopes)  # (e, bc, u)
    return np.einsum("bcu,ebcu->ube", slopes, scaled.reshape(b, b, c, u))


def contrast_shares(slopes: np.ndarray, gain: np.ndarray) -> Float[np.ndarray, "1 b b"]:
    """The mean of `shares` over the contrasts of the units: directions in which their numbers add up to 0.

    Where outputs are the units' numbers and a shift of all of them says nothing, as of classes, one direction of as
    many as there are units would never be known any better, and hold a mean over all units up.
    """
    units = slopes.shape[-1]
    shift = slopes.sum(-1, keepdims=True) / np.sqrt(units)
    return (shares(slopes, gain).sum(0, keepdims=True) - shares(shift, gain)) / (units - 1)
