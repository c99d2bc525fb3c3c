"""Noise of targets that is learnt in a joint update (`gbp.LearnNoise`): outputs and noise in turn, until both rest.

Without the noise the outputs of a batch have `N(z_0, S)` (`engine/chain.py`). In the basis of the eigenvectors of
`W^1/2 S W^1/2 = U diag(l) U'`, with the weights `W` of the targets and `r = U' W^1/2 (y - z_0)`, a target says of each
number only itself, so that for any noise variance `v`

    sum w E[(y - z)²] = sum (v r / (l + v))² + l v / (l + v)

and a round of `gbp.LearnNoise` costs as many operations as there are targets.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Bool, Float

from ..core.noise import LearnNoise
from .chain import Joint, LearntTargets, Targets, precision_of_prior

# Rounds at most, and the relative change of a variance at which they end. Rounds are a millionth of the eigenvectors.
_ROUNDS, _AT_REST = 5000, 1e-7


def value_targets(y: Float[np.ndarray, "b c"], observed: Bool[np.ndarray, "b c"], variance: float) -> Targets:
    """Values observed with Gaussian noise, where the mask says so."""
    precision = np.where(observed, 1 / variance, 0)
    eye, normaliser = np.eye(y.shape[1]), 0.5 * math.log(2 * math.pi * variance) * observed.sum(1)

    def expand(mean: np.ndarray, _: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return precision[..., None] * eye, precision * (y - mean)

    def energies(outputs: np.ndarray) -> np.ndarray:
        return 0.5 * (precision * (y - outputs) ** 2).sum(1)

    return Targets(expand, energies, normaliser, float(precision.max(initial=0)), True)


@dataclasses.dataclass(frozen=True)
class LearntNoiseTargets(LearntTargets):
    """Values whose noise is learnt."""

    y: Float[np.ndarray, "b c"]
    observed: Bool[np.ndarray, "b c"]
    prior: LearnNoise

    def at_rest(
        self,
        start: Float[np.ndarray, "b c"],
        covariance: Float[np.ndarray, "n n"],
        held: Float[np.ndarray, "b ..."],
        weight: Float[np.ndarray, " b"],
    ) -> Targets:
        """With the noise at which outputs and noise agree, from where it starts."""
        classes, each = start.shape[1], (weight[:, None] * self.observed).ravel()
        there, variance = each > 0, self.prior.start**2
        # The prior of the outputs says nothing of the noise: it is absorbed before.
        precision = precision_of_prior(held, weight, classes)
        if precision.any():
            joint = Joint.of(start, covariance, precision, np.zeros_like(start))
            start, covariance = joint.mean, covariance - covariance @ joint.gain() @ covariance
        root = np.sqrt(each[there])
        values, vectors = np.linalg.eigh(root[:, None] * covariance[np.ix_(there, there)] * root)
        values, squares = np.maximum(values, 0), (vectors.T @ (root * (self.y - start).ravel()[there])) ** 2
        for _ in range(_ROUNDS):
            share = variance / (values + variance)
            new = self._posterior(float((share**2 * squares + share * values).sum()), float(each.sum()))
            change, variance = abs(new - variance), new
            if change <= _AT_REST * new:
                break
        return value_targets(self.y, self.observed, variance)

    def posterior(
        self, outputs: Float[np.ndarray, "b c"], variance: Float[np.ndarray, "b c"], weight: Float[np.ndarray, " b"]
    ) -> float:
        """The noise variance given beliefs of the outputs."""
        each = weight[:, None] * self.observed
        return self._posterior(float((each * ((self.y - outputs) ** 2 + variance)).sum()), float(each.sum()))

    def given(self, variance: float) -> OneRound:
        """The same with a noise to begin with: only what follows from the outputs is learnt."""
        return OneRound(self.y, self.observed, self.prior, variance)

    def _posterior(self, squares: float, count: float) -> float:
        return (self.prior.squares + squares) / (self.prior.weight + count)


@dataclasses.dataclass(frozen=True)
class OneRound(LearntNoiseTargets):
    """Given a noise, outputs; given these, the noise: once."""

    variance: float = 1.0

    def at_rest(
        self,
        start: Float[np.ndarray, "b c"],
        covariance: Float[np.ndarray, "n n"],
        held: Float[np.ndarray, "b ..."],
        weight: Float[np.ndarray, " b"],
    ) -> Targets:
        """With the noise that is given."""
        return value_targets(self.y, self.observed, self.variance)
