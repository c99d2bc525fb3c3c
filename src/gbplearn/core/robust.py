"""Robust energies: a factor far from its measurement is given less precision.

With `d` the Mahalanobis distance of the residual, a kernel replaces the energy `d² / 2` by `rho(d)`. Inference
keeps a quadratic, `scale(d) d² / 2` at the linearisation point. The scale either matches the *value* of the
energy there, `scale = 2 rho(d) / d²` (the paper's choice; Davison & Ortiz 2019, Section 5), or its *gradient*,
`scale = rho'(d) / d` (iteratively reweighted least squares: fixed points are stationary points of `rho`).
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jax import Array


class Kernel(eqx.Module):
    """What a robust energy must define. `threshold` is in standard deviations."""

    threshold: eqx.AbstractVar[float]
    match: eqx.AbstractVar[str]

    @abc.abstractmethod
    def energy(self, d2: Array) -> Array:
        """`rho` as a function of the squared distance."""

    @abc.abstractmethod
    def scale(self, d2: Array) -> Array:
        """Factor on the precision, as a function of the squared distance."""


def _check(name: str, threshold: float, match: str) -> None:
    if not threshold > 0:
        raise ValueError(f"{name}: the threshold must be > 0 standard deviations, got {threshold}")
    if match not in ("value", "gradient"):
        raise ValueError(f"{name}: match must be 'value' or 'gradient', got {match!r}")


class Tukey(Kernel):
    """The paper's kernel: quadratic within `threshold` standard deviations, flat outside.

    `rho(d) = min(d², N²) / 2`. Matched in value the scale outside is `(N / d)²`, never zero; matched in
    gradient it is 0: the factor is switched off.
    """

    threshold: float = eqx.field(static=True)
    match: str = eqx.field(static=True, default="value")

    def __check_init__(self):
        _check("Tukey", self.threshold, self.match)

    def energy(self, d2: Array) -> Array:
        """`min(d², N²) / 2`."""
        return 0.5 * jnp.minimum(d2, self.threshold**2)

    def scale(self, d2: Array) -> Array:
        """`(N / d)²` (value) or 0 (gradient) outside the threshold, 1 inside."""
        n2 = self.threshold**2
        outside = n2 / jnp.maximum(d2, n2) if self.match == "value" else jnp.zeros_like(d2)
        return jnp.where(d2 > n2, outside, 1.0)


class Huber(Kernel):
    """Quadratic within `threshold` standard deviations, linear outside: `rho(d) = N d - N² / 2`."""

    threshold: float = eqx.field(static=True)
    match: str = eqx.field(static=True, default="value")

    def __check_init__(self):
        _check("Huber", self.threshold, self.match)

    def energy(self, d2: Array) -> Array:
        """`d² / 2` inside the threshold, `N d - N² / 2` outside."""
        n = self.threshold
        # The square root is taken of numbers above n² only, so that its gradient at 0 stays finite.
        return jnp.where(d2 > n * n, n * jnp.sqrt(jnp.maximum(d2, n * n)) - 0.5 * n * n, 0.5 * d2)

    def scale(self, d2: Array) -> Array:
        """`2 N / d - (N / d)²` (value) or `N / d` (gradient) outside the threshold, 1 inside."""
        n = self.threshold
        ratio = n / jnp.sqrt(jnp.maximum(d2, n * n))
        return ratio * (2 - ratio) if self.match == "value" else ratio
