"""Rounding: how far it may have moved a belief, and beliefs that it has made improper.

Beliefs are kept as `eta` and `lam`, sums of a prior and of messages, each rounded to `eps / 2` of its size. So the mean
of a scalar is known to `eps sum |eta| / sqrt(lam)` standard deviations at best: one that is 10⁷ of them from 0 is
lost in float32. In a block of `n`, with covariance `V`, mean `m` and all sums taken of absolute values, means are known
to (Skeel 1979; a product of `n` terms is rounded more often)

    eps |V| (sum |eta| + (sum |lam|) |m|) (n + 1) / 4

and variances to `eps |V| (sum |lam|) |V|`: correlated blocks, measured far more precisely than their prior is,
lose their prior. Then `lam` need not even be positive definite. (Each family of beliefs computes its own: `core/`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..core import linalg
from ..core.compiling import lean_jit
from ..core.gaussian import Gaussian
from ..core.vector import Belief, VectorGaussian
from ..graph.problem import Problem
from .state import State, message_product

# Residuals up to so many times what rounding does to the beliefs may be its doing.
_RESTLESS = 10.0


class BeliefsWithRounding(NamedTuple):
    """Beliefs, and of each variable how far rounding may have moved it, in standard deviations (infinite: lost)."""

    beliefs: dict[str, Belief]
    rounding: dict[str, Array]


def _belief(prior: Gaussian, messages: list[Gaussian]) -> Gaussian:
    """The product, rounded about once."""
    return Gaussian(*(linalg.exact_sum([getattr(p, of) for p in (prior, *messages)]) for of in ("eta", "lam")))


@lean_jit
def find_beliefs(problem: Problem, state: State) -> BeliefsWithRounding:
    """The belief of every variable; where its prior is proper, it is proper too."""
    beliefs, off = {}, {}
    for name, prior in problem.prior.items():
        if isinstance(prior, VectorGaussian):  # a root of a covariance stays proper
            continue
        messages = [message_product(problem, state, g, s) for g, s in problem.touching(name)]
        found = _belief(prior, messages)
        off[name] = found.rounding_error([prior, *messages])
        if name in problem.proper and messages:
            found, lost = found.made_proper(prior, messages)
            off[name] = jnp.where(lost, jnp.inf, off[name])
        beliefs[name] = found
    return BeliefsWithRounding(beliefs, off)


def _some_beliefs(problem: Problem, state: State, names: tuple[str, ...]) -> dict[str, Belief]:
    """The beliefs of some variables, as `find_beliefs` gives them."""
    found = {}
    for name in names:
        prior = problem.prior[name]
        messages = [message_product(problem, state, g, s) for g, s in problem.touching(name)]
        belief = _belief(prior, messages)
        found[name] = belief.made_proper(prior, messages)[0] if name in problem.proper and messages else belief
    return found


some_beliefs = lean_jit(_some_beliefs, static=(2,))


def may_be_rounding(residual: float, rounding: Mapping[str, float | Array]) -> bool:
    """Whether a residual is no larger than what rounding does to the beliefs."""
    return bool(residual <= _RESTLESS * max(map(float, rounding.values()), default=0.0))
