"""Learnt noise: the prior of a noise variance that is inferred with everything else, and its posterior."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax import Array


@dataclasses.dataclass(frozen=True)
class LearnNoise:
    """In the place of `sigma`: infer one noise variance for all measurements of a group.

    The precision `1 / sigma²` has a Gamma prior with mean `1 / start²` that counts as much as `weight` measurements.
    At each visit its posterior follows from the beliefs (variational Bayes, as in the EM algorithm):

        sigma² = (weight start² + sum_f E[(y_f - h_f)²]) / (weight + number of measurements)

    The expectation is under the belief of each factor about its own variables, which on a tree of linear factors is
    exact.

    **Arguments:**

    - `start`: the standard deviation to begin with.
    - `weight`: how many measurements the prior counts for; > 0.
    """

    start: float = 0.1
    weight: float = 1.0

    def __post_init__(self):
        for name in ("start", "weight"):
            value = getattr(self, name)
            if isinstance(value, (bool, str)) or not 0 < value < float("inf"):
                raise ValueError(f"LearnNoise: {name} must be > 0, got {getattr(self, name)!r}")

    @property
    def squares(self) -> float:
        """Sum of squared residuals that it stands for: like `weight`, it adds up over measurements."""
        return self.weight * self.start**2


class NoisePrior(eqx.Module):
    """`LearnNoise` as arrays."""

    variance: Array
    weight: Array

    def posterior(self, squares: Array, count: Array) -> Array:
        """The variance, given the expected squared residuals of `count` measurements."""
        return (self.weight * self.variance + squares) / (self.weight + count)

    def energy(self, variance: Array, count: Array) -> Array:
        """What the normalisers of measurements and prior add to the energy, `- log p` up to constants."""
        return 0.5 * ((self.weight + count) * jnp.log(variance) + self.weight * self.variance / variance)
