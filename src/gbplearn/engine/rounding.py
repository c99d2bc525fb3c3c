"""Rounding: how far it may have moved a belief, and beliefs that it has made improper.

Beliefs are kept as `eta` and `lam`, sums of a prior and of messages, each rounded to `eps / 2` of its size. So the mean
of a scalar is known to `eps sum |eta| / sqrt(lam)` standard deviations at best: one that is 10⁷ of them from 0 is
lost in float32. In a block of `n`, with covariance `V`, mean `m` and all sums taken of absolute values, means are known
to (Skeel 1979; a product of `n` terms is rounded more often)

    eps |V| (sum |eta| + (sum |lam|) |m|) (n + 1) / 4

and variances to `eps |V| (sum |lam|) |V|`: correlated blocks, measured far more precisely than their prior is,
lose their prior. Then `lam` need not even be positive definite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..core import linalg
from ..core.compiling import lean_jit
from ..core.gaussian import POINT, Gaussian
from ..core.linalg import add_all
from ..graph.problem import Problem
from .state import State, message_product

# Of the precision of messages, in units of the prior's: with more of it a block may be singular after rounding.
_LARGEST_RATIO = 64.0
# Residuals up to so many times what rounding does to the beliefs may be its doing.
_RESTLESS = 10.0


def _diagonal(a: Array) -> Array:
    return jnp.diagonal(a, axis1=-2, axis2=-1)


def rounding_error(belief: Gaussian, parts: list[Gaussian]) -> Array:
    """How far rounding may have moved the product of these parts, in standard deviations, of the worst unit.

    Units of which nothing is known, and observed ones, do not count.
    """
    eps = jnp.finfo(belief.dtype).eps
    eta = add_all([jnp.abs(p.eta) for p in parts])
    if not belief.block:
        counts = (belief.lam > 0) & (belief.lam < POINT / 2)
        return jnp.max(jnp.where(counts, eps * eta / jnp.sqrt(jnp.where(counts, belief.lam, 1)), 0), initial=0)
    lam = add_all([jnp.abs(p.lam) for p in parts])
    v, good = linalg.definite_inverse(belief.lam)
    mean = jnp.abs(linalg.information(v, belief.eta))
    counts = good & (_diagonal(belief.lam).max(-1) < POINT / 2)
    variance = jnp.where(counts[..., None], _diagonal(v), 1)
    off = linalg.information(jnp.abs(v), eta + linalg.information(lam, mean)) / jnp.sqrt(variance)
    off = 0.25 * (1 + belief.shape[-1]) * off
    wide = 0.5 * _diagonal(jnp.abs(v) @ lam @ jnp.abs(v)) / variance
    return jnp.max(jnp.where(counts[..., None], eps * jnp.maximum(off, wide), 0), initial=0)


def made_proper(belief: Gaussian, prior: Gaussian, parts: list[Gaussian]) -> tuple[Gaussian, Array]:
    """A belief whose prior is proper, and so must it be: blocks that rounding has made singular get vaguer messages.

    All messages of such a block are weakened by one factor, until the prior is larger than their rounding.

    **Returns:** the belief, and whether any block had to be mended.
    """
    if not belief.block:
        return belief, jnp.asarray(False)
    n = belief.shape[-1]
    good = linalg.scaled_cholesky(belief.lam)[2]
    eta, lam = (add_all([getattr(p, of) for p in parts]) for of in ("eta", "lam"))
    most = 1 / (_LARGEST_RATIO * n * jnp.finfo(belief.dtype).eps)
    ratio = _diagonal(linalg.spd_solve(prior.lam, lam)).sum(-1)  # at least the largest eigenvalue
    weight = jnp.minimum(1, most / jnp.maximum(ratio, most))
    weaker = Gaussian(prior.eta + weight[..., None] * eta, prior.lam + weight[..., None, None] * lam)
    weaker = weaker.where(linalg.scaled_cholesky(weaker.lam)[2], prior)
    return belief.where(good, weaker), ~jnp.all(good)


class BeliefsWithRounding(NamedTuple):
    """Beliefs, and of each variable how far rounding may have moved it, in standard deviations (infinite: lost)."""

    beliefs: dict[str, Gaussian]
    rounding: dict[str, Array]


@lean_jit
def find_beliefs(problem: Problem, state: State) -> BeliefsWithRounding:
    """The belief of every variable; where its prior is proper, it is proper too."""
    beliefs, off = {}, {}
    for name, prior in problem.prior.items():
        messages = [message_product(problem, state, g, s) for g, s in problem.touching(name)]
        found = Gaussian(*(linalg.exact_sum([getattr(p, of) for p in (prior, *messages)]) for of in ("eta", "lam")))
        off[name] = rounding_error(found, [prior, *messages])
        if name in problem.proper and messages:
            found, lost = made_proper(found, prior, messages)
            off[name] = jnp.where(lost, jnp.inf, off[name])
        beliefs[name] = found
    return BeliefsWithRounding(beliefs, off)


def _some_beliefs(problem: Problem, state: State, names: tuple[str, ...]) -> dict[str, Gaussian]:
    """The beliefs of some variables, as `find_beliefs` gives them."""
    found = {}
    for name in names:
        prior = problem.prior[name]
        messages = [message_product(problem, state, g, s) for g, s in problem.touching(name)]
        belief = Gaussian(*(add_all([getattr(p, of) for p in (prior, *messages)]) for of in ("eta", "lam")))
        found[name] = made_proper(belief, prior, messages)[0] if name in problem.proper and messages else belief
    return found


some_beliefs = lean_jit(_some_beliefs, static=(2,))


def may_be_rounding(residual: float, rounding: Mapping[str, float | Array]) -> bool:
    """Whether a residual is no larger than what rounding does to the beliefs."""
    return bool(residual <= _RESTLESS * max(map(float, rounding.values()), default=0.0))
