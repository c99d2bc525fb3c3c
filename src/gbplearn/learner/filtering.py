"""`gbp.Filtering`: how the posterior of the parameters becomes their next prior (the paper's Section 3.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..core.compiling import lean_jit
from ..core.gaussian import Gaussian
from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief

Beliefs = dict[str, Any]  # Gaussian, or UnitVectors


@dataclasses.dataclass(frozen=True)
class Filtering:
    """How the posterior of one batch becomes the prior of the next. By default it is the prior, unchanged.

    With the posterior `N(m, s²)` of a scalar and its original prior `N(m0, s0²)`, in this order (of vectors `s²` is the
    covariance, and `alpha` mixes covariances in the place of standard deviations):

        forgetting      s² <- s² / forgetting              every earlier batch counts less
        process_noise   s² <- s² + process_noise²          the truth moves: a random walk from batch to batch
        alpha           m <- (1 - alpha) m + alpha m0 ,  s <- (1 - alpha) s + alpha s0    (1 forgets everything)

    **Arguments:**

    - `alpha`: in [0, 1], the paper's interpolation with the original prior, on means and standard deviations.
    - `process_noise`: a standard deviation >= 0.
    - `forgetting`: in (0, 1], a factor on the precision.
    """

    alpha: float = 0.0
    process_noise: float = 0.0
    forgetting: float = 1.0

    def __post_init__(self):
        for name, sound in (
            ("alpha", 0 <= self.alpha <= 1),
            ("process_noise", 0 <= self.process_noise < float("inf")),
            ("forgetting", 0 < self.forgetting <= 1),
        ):
            if not sound:
                expected = {"alpha": "in [0, 1]", "process_noise": ">= 0", "forgetting": "in (0, 1]"}[name]
                raise ValueError(f"{name} must be a number {expected}, got {getattr(self, name)!r}")

    @property
    def trivial(self) -> bool:
        """Whether the posterior is handed on as it is."""
        return (self.alpha, self.process_noise, self.forgetting) == (0, 0, 1)

    def examples_known(
        self,
        examples: int,
        batch: int,
        original: Mapping[str, Belief],
        posterior: Mapping[str, Belief],
        prior: Mapping[str, Belief],
    ) -> float:
        """How many examples the prior of the next batch stands for: all that were learnt from, less the forgotten ones.

        Filtering keeps a share `k` of the precision that the posterior has beyond the original prior. If it does so
        between any two batches, the prior stands for at most `batch k / (1 - k)` examples.

        **Arguments:**

        - `examples`: that were learnt from; `batch`: examples of the next batch.
        - `original`, `posterior`, `prior`: before all batches, now, and of the next batch.
        """
        if self.trivial or not examples:
            return float(examples)
        first, before, now = (
            sum(float(_precisions(g).sum()) for g in p.values()) for p in (original, posterior, prior)
        )
        kept = min(max((now - first) / (before - first), 0.0), 1.0) if before > first else 0.0
        return min(examples * kept, batch * kept / (1 - kept) if kept < 1 else float("inf"))

    def next_prior(self, posterior: Beliefs, original: Beliefs) -> Beliefs:
        """The prior of the next batch."""
        if self.trivial:
            return posterior
        # As floats: the square of a large whole number would overflow.
        numbers = float(self.alpha), float(self.process_noise), float(self.forgetting)
        scalars = {n: g for n, g in posterior.items() if isinstance(g, Gaussian)}
        found = _next_prior(scalars, {n: original[n] for n in scalars}, *numbers)
        return {
            n: g.drifted(original[n], *numbers) if isinstance(g, UnitVectors) else found[n]
            for n, g in posterior.items()
        }


def _precisions(belief: Gaussian | UnitVectors) -> np.ndarray:
    """Of each number."""
    if isinstance(belief, UnitVectors):
        return 1 / np.asarray(belief.variance, float)
    return np.asarray(belief.lam, float)


@lean_jit
def _next_prior(posterior: Beliefs, original: Beliefs, alpha, process_noise, forgetting) -> Beliefs:
    def one(now: Gaussian, first: Gaussian) -> Gaussian:
        mean, std = now.mean, jnp.sqrt(now.variance / forgetting + process_noise**2)
        mean, std = (1 - alpha) * mean + alpha * first.mean, (1 - alpha) * std + alpha * first.std
        return Gaussian.from_moments(mean=mean, std=std)

    return {name: one(posterior[name], original[name]) for name in posterior}
