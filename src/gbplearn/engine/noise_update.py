"""The update of a noise variance that is learnt: from the residuals of its factors, under their cavities."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ..core import linalg
from ..graph.group import Group
from .prediction import Predicted


def learn_noise(group: Group, predicted: Predicted, variance: Array, weight: Array) -> Array:
    """The noise variance of a group that learns it, damped like its messages.

    Under the belief of a factor about its own variables, of cavities and measurement together, with the noise `V`, the
    predicted covariance `S` of `h` and the innovation `R`:

        E[(y - h)²] = |V (V + S)^-1 R|² + tr(S - S (V + S)^-1 S)

    The posterior variances of the variables would not do: the factor itself correlates them. A factor with an
    improper cavity has no such expectation, and counts as `V`.

    **Arguments:**

    - `predicted`: of each factor, with what is held.
    - `weight`: how much of the old variance stays.
    """
    prior = group.noise_prior
    assert prior is not None
    s, r, known = predicted
    if group.outputs == 1:
        share = variance / (variance + s[:, :, 0])
        each = ((share * r) ** 2 + share * s[:, :, 0])[:, 0]
    else:
        noise = variance * jnp.eye(group.outputs, dtype=s.dtype)
        solved = linalg.spd_solve(noise + s, jnp.concatenate([variance * r[..., None], s], -1))
        each = jnp.sum(solved[..., 0] ** 2, 1) + jnp.trace(s - s @ solved[..., 1:], axis1=-2, axis2=-1)
    each = jnp.where(known, each, variance * group.outputs)
    if group.weight is not None:
        each = each * jnp.broadcast_to(group.weight, (group.factors, 1))[:, 0]
    new = prior.posterior(jnp.sum(each), group.measurements())
    return jnp.exp(weight * jnp.log(variance) + (1 - weight) * jnp.log(new))
