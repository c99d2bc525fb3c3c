"""The update of a noise variance that is learnt: from the residuals of its factors, under their cavities."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ..core import linalg
from ..core.gaussian import Gaussian
from ..factors.measurement import Linear
from ..graph.group import Group


def learn_noise(
    group: Group,
    linear: Linear,
    cavities: list[Gaussian],
    reactions: list[Array | None],
    points: dict[str, Array],
    held_spread: Array | None,
    variance: Array,
    weight: Array,
) -> Array:
    """The noise variance of a group that learns it, damped like its messages.

    Under the belief of a factor about its own variables, of cavities and measurement together, with the noise `R`, the
    predicted covariance `S` of `h` and the innovation `e`:

        E[(y - h)²] = |R (R + S)^-1 e|² + tr(S - S (R + S)^-1 S)

    The posterior variances of the variables would not do: the factor itself correlates them. A factor with an
    improper cavity has no such expectation, and counts as `R`. Arguments as `visit.propose`.
    """
    prior = group.noise_prior
    assert prior is not None
    shape = (group.factors, group.outputs)
    e = jnp.broadcast_to(group.y - linear.value, shape)
    s = jnp.zeros((*shape, group.outputs), e.dtype)
    known = jnp.ones(group.factors, bool)
    for slot, operator, c, reaction in zip(group.slots, group.operators(linear), cavities, reactions):
        x = points[slot.variable]
        if reaction is not None:
            wide = operator.squared().times(1 / c.lam)
            e, s = e - operator.times(c.mean - x) + reaction * wide, s + wide[..., None]
            continue
        x = x if x.ndim == 0 else slot.edges.spread(x)
        j = operator.each()
        if group.scalar:
            good = c.lam > 0
            v, move = jnp.where(good, 1 / jnp.where(good, c.lam, 1), 0), jnp.where(good, c.mean - x, 0)
            total = slot.edges.rows.total
            e, s = e - total(j * move), s + total(j * j * v)[..., None]
            known = known & (total((~good & (j != 0)).astype(e.dtype))[:, 0] < 0.5)
            continue
        wide = c if slot.block else Gaussian(c.eta[..., None], c.lam[..., None, None])
        factor, scale, good = linalg.scaled_cholesky(lax.stop_gradient(wide.lam))
        cov = jnp.where(good[..., None, None], linalg.factor_inverse(wide.lam, factor, scale), 0)
        move = jnp.where(
            good[..., None],
            jnp.einsum("fnij,fnj->fni", cov, wide.eta) - (x if slot.block or x.ndim == 0 else x[..., None]),
            0,
        )
        j = jnp.broadcast_to(j, (group.factors, *j.shape[1:]))
        cov, move = (jnp.broadcast_to(a, (group.factors, *a.shape[1:])) for a in (cov, move))
        e, s = e - jnp.einsum("fnmd,fnd->fm", j, move), s + jnp.einsum("fnad,fnde,fnbe->fab", j, cov, j)
        known = known & jnp.all(good, 1)
    if held_spread is not None:
        s = s + held_spread.reshape(s.shape)
    if group.outputs == 1:
        share = variance / (variance + s[:, :, 0])
        each = ((share * e) ** 2 + share * s[:, :, 0])[:, 0]
    else:
        noise = variance * jnp.eye(group.outputs, dtype=s.dtype)
        solved = linalg.spd_solve(noise + s, jnp.concatenate([variance * e[..., None], s], -1))
        each = jnp.sum(solved[..., 0] ** 2, 1) + jnp.trace(s - s @ solved[..., 1:], axis1=-2, axis2=-1)
    each = jnp.where(known, each, variance * group.outputs)
    if group.weight is not None:
        each = each * jnp.broadcast_to(group.weight, (group.factors, 1))[:, 0]
    new = prior.posterior(jnp.sum(each), group.measurements())
    return jnp.exp(weight * jnp.log(variance) + (1 - weight) * jnp.log(new))
