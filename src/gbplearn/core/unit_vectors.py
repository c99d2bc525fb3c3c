"""What every family of beliefs about the weights of a layer can do: the interface of joint updates and learners.

A layer has `units` vectors of `p` numbers. `VectorGaussian` keeps covariances of a unit, `RotatedGaussian` variances
along the principal axes of the layer.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from .family import Values
from .sensitivity import Sensitivity


class UnitVectors(eqx.Module):
    """A Gaussian over the weights `(units, p)` of a layer."""

    mean: eqx.AbstractVar[Float[Values, "u p"]]

    if TYPE_CHECKING:  # a field with a default, which cannot stand before those of the families

        @property
        def gained(self) -> float | None:
            """Nats, the KL divergence from the belief that it was made of by `absorb`; None if it was not."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the means."""
        return self.mean.shape

    @property
    def dtype(self) -> jnp.dtype:
        """Floating-point type."""
        return self.mean.dtype

    @property
    @abc.abstractmethod
    def variance(self) -> Float[Values, "u p"]:
        """Of each number."""

    @property
    def std(self) -> Float[Values, "u p"]:
        """Of each number."""
        return jnp.sqrt(self.variance)

    @abc.abstractmethod
    def astype(self, dtype: Any) -> UnitVectors:
        """In another floating-point type, as a belief to begin with: without `gained`, which would be compiled in."""

    @abc.abstractmethod
    def with_mean(self, mean: Array) -> UnitVectors:
        """The same covariances about another mean."""

    @abc.abstractmethod
    def all_proper(self) -> bool:
        """Whether every number has a finite mean, and a finite variance above 0. Outside of compiled code."""

    @abc.abstractmethod
    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Independent draws `shape + (units, p)`."""

    @abc.abstractmethod
    def scaled(self, factor: float) -> UnitVectors:
        """The same means with standard deviations that are larger by a factor."""

    # Outside of compiled code, in double precision.

    @abc.abstractmethod
    def kl(self, other: Any) -> np.ndarray:
        """`KL(self || other)`, in parts that add up."""

    @abc.abstractmethod
    def drifted(self, original: Any, alpha: float, process_noise: float, forgetting: float) -> UnitVectors:
        """The prior of the next batch, see `gbp.Filtering`. Covariances are mixed, not standard deviations."""

    @classmethod
    @abc.abstractmethod
    def merged(cls, several: Sequence[Any], before: Any) -> UnitVectors:
        """What is known by several together that all began with `before`; a `ValueError` if one is vaguer than it."""

    # A joint update of all outputs of a batch (`engine/chain.py`), outside of compiled code but for `output_variance`.

    @abc.abstractmethod
    def output_covariance(self, of: Sensitivity, double: bool = False) -> tuple[np.ndarray, Any]:
        """`J S J'` of the outputs, and what is needed again: `kept` below.

        **Arguments:** `double`: in double precision, where targets are so precise that float32 has too few digits.
        """

    @abc.abstractmethod
    def output_variance(self, of: Sensitivity) -> Float[Array, "b c"]:
        """The diagonal of that, in compiled code."""

    @abc.abstractmethod
    def moved(self, of: Sensitivity, kept: Any, alpha: Float[np.ndarray, "b c"]) -> np.ndarray:
        """The mean that `alpha` leads to: `m + S J' alpha`."""

    @abc.abstractmethod
    def absorb(
        self,
        of: Sensitivity,
        kept: Any,
        gain: np.ndarray,
        alpha: np.ndarray,
        mean: Array,
        without: Callable[[np.ndarray], np.ndarray] | None = None,
        contrasts: bool = False,
    ) -> UnitVectors:
        """The belief after a joint update: what the family keeps of `S - S J' M J S`.

        **Arguments:** `gain`: `M (n, n)`; `alpha (B, C)`: what moves the mean, to `mean` (`moved`); `without`: of
        the covariance that a unit gives the outputs, the precision of what all else says of them. With it small
        variances keep their digits.
        `contrasts`: whether the units are the outputs, and a shift of them all says nothing.
        """
