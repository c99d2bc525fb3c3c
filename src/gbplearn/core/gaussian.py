"""Gaussians in natural parameters: all message algebra lives here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import ArrayLike, Bool, Float, PRNGKeyArray

from . import host_linalg, linalg
from .block import BLOCK
from .diagonal import DIAGONAL
from .family import POINT, EdgeSet, Family, Jacobian, Natural, Values, compute, compute_alike, traced
from .linalg import add_all

Key = PRNGKeyArray | Array  # new or old style
Numbers = ArrayLike | Sequence[Any]  # what a user may give for an array of numbers

__all__ = ["POINT", "Gaussian", "Key", "Numbers"]


class Gaussian(eqx.Module):
    """An array of Gaussian densities in natural parameters: `p(x) ∝ exp(eta x - lam x² / 2)`.

    `eta` (information) and `lam` (precision) have one shape: every element is a scalar Gaussian. In
    *block form* `lam` has one more axis than `eta`: the last axis of `eta` is one vector variable,
    `p(x) ∝ exp(eta' x - x' lam x / 2)`, and the last two axes of `lam` are its precision matrix.

    Products of densities are sums of natural parameters: `a * b` multiplies densities, `a / b` takes
    `b` out again. A precision of zero means that nothing is known.

    How units are computed with, numbers or vectors, is a matter of their `family` (`core/family.py`).
    """

    eta: Values
    lam: Values

    def __check_init__(self):
        if self.lam.shape not in (DIAGONAL.lam_shape(self.eta.shape), BLOCK.lam_shape(self.eta.shape)):
            raise ValueError(
                f"Gaussian: eta has shape {self.eta.shape} and lam {self.lam.shape}; lam must have the same shape, "
                "or in block form one more axis of the length of the last"
            )

    @classmethod
    def from_moments(
        cls,
        mean: Numbers,
        std: Numbers | None = None,
        *,
        covariance: Numbers | None = None,
    ) -> Gaussian:
        """Gaussians with the given moments: `lam = 1 / std²`, `eta = lam mean`.

        **Arguments:**

        - `mean`: the means.
        - `std`: standard deviations, broadcast against `mean`; all positive.
        - `covariance`: instead of `std`, covariance matrices `(..., d, d)` over the last axis of `mean`:
            the result is in block form.
        """
        m = _floats(mean, "mean")
        if (std is None) == (covariance is None):
            raise ValueError("Gaussian.from_moments takes one of std and covariance")
        if covariance is None:
            s = _floats(std, "std")
            if not traced(s) and not (np.asarray(s) > 0).all():
                raise ValueError("Gaussian.from_moments: every std must be > 0")
            return cls(*compute(_from_moments, m, s))
        c = _floats(covariance, "covariance").astype(m.dtype)
        if m.ndim == 0 or c.ndim < 2 or c.shape[-2:] != (m.shape[-1],) * 2:
            raise ValueError(f"Gaussian.from_moments: covariance {c.shape} does not fit a mean of shape {m.shape}")
        symmetric = traced(c) or np.allclose(c, np.swapaxes(c, -1, -2), rtol=1e-4, atol=0)
        if not symmetric or not (traced(c) or host_linalg.definite(c).all()):
            raise ValueError("Gaussian.from_moments: every covariance must be symmetric and positive definite")
        return cls(*compute(_from_covariance, m, c))

    @classmethod
    def point(cls, value: Numbers, *, block: bool = False) -> Gaussian:
        """Observed values: so precise that no other message can move them; their mean is `value` exactly."""
        return cls(*compute(_block_point if block else _point, _floats(value, "value")))

    @classmethod
    def flat(cls, shape: tuple[int, ...], *, block: bool = False, dtype: jnp.dtype | None = None) -> Gaussian:
        """Nothing known: zero precision."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        family = BLOCK if block else DIAGONAL
        return cls(jnp.zeros(shape, dtype), jnp.zeros(family.lam_shape(shape), dtype))

    @classmethod
    def product(cls, parts: Sequence[Gaussian]) -> Gaussian:
        """The product of densities, at least one."""
        return cls(add_all([p.eta for p in parts]), add_all([p.lam for p in parts]))

    @classmethod
    def from_vectors(cls, family: Family, vectors: Gaussian) -> Gaussian:
        """What `as_vectors` gives of Gaussians of a family, as these."""
        return cls(family.from_vectors(vectors.eta), family.from_matrices(vectors.lam))

    @property
    def block(self) -> bool:
        """Whether the last axis is one vector variable with a full precision matrix."""
        return self.lam.ndim > self.eta.ndim

    @property
    def family(self) -> Family:
        """What computes with it."""
        return BLOCK if self.block else DIAGONAL

    @property
    def _natural(self) -> Natural:
        return self.eta, self.lam

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the mean."""
        return self.eta.shape

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """Shape of the array of units: numbers, or in block form vectors."""
        return self.family.unit_shape(self.shape)

    @property
    def dim(self) -> int:
        """Numbers in a unit."""
        return self.family.dim(self.shape)

    @property
    def dtype(self) -> jnp.dtype:
        """Floating-point type."""
        return self.eta.dtype

    @property
    def proper(self) -> Bool[Values, "..."]:
        """Which Gaussians can be normalised (blocks: one truth value a block)."""
        return self.family.proper(self.lam)

    @property
    def observed(self) -> Bool[Values, "..."]:
        """Which units are observed."""
        return self.family.observed(self.lam)

    @property
    def precisions(self) -> Float[Values, "..."]:
        """Of each number; in block form the diagonals."""
        return self.family.precisions(self.lam)

    @property
    def mean(self) -> Float[Values, "..."]:
        """`lam^-1 eta`; zero along directions of which nothing is known."""
        return self.family.mean(self.eta, self.lam)

    def mean_or(self, start: Array, proper: bool) -> Float[Values, "..."]:
        """The mean, or the start where nothing (or in a block, not everything) is known.

        `proper`: every precision is known to be positive, so that scalars need no case distinction.
        """
        return self.family.mean_or(self.eta, self.lam, start, proper)

    def any_mean(self, start: Array, proper: bool) -> Float[Values, "..."]:
        """As `mean_or`, but along directions of a block of which nothing is known anything: easier to compute."""
        return self.family.any_mean(self.eta, self.lam, start, proper)

    @property
    def variance(self) -> Float[Values, "..."]:
        """Marginal variances; infinite where nothing is known."""
        return self.family.variance(self.lam)

    @property
    def std(self) -> Float[Values, "..."]:
        """Marginal standard deviations."""
        return compute_alike(lambda xp, variance: xp.sqrt(variance), self.variance)

    @property
    def covariance(self) -> Float[Values, "... d d"]:
        """`lam^-1` in block form; infinite on the diagonal where nothing is known."""
        if not self.block:
            raise ValueError("Gaussian.covariance belongs to the block form; scalar Gaussians have .variance")
        return self.family.covariances(self.lam)

    @property
    def log_determinant(self) -> Float[Values, "..."]:
        """`log |lam|` of each unit."""
        return self.family.log_determinant(self.lam)

    def information(self, x: Array) -> Float[Values, "..."]:
        """`lam x`."""
        return self.family.information(self.lam, x)

    def quadratic(self, x: Array) -> Float[Values, "..."]:
        """`x' lam x` of each unit."""
        return self.family.quadratic(self.lam, x)

    def squares(self, value: Array) -> Float[Values, "..."]:
        """`(x - mean)' lam (x - mean)` of each unit; 0 where it is observed."""
        return jnp.where(self.observed, 0, self.quadratic(value - self.family.some_mean(self.eta, self.lam)))

    def all_proper(self) -> bool:
        """Whether every unit can be normalised. Outside of compiled code, without JAX where that is easy."""
        return self.family.all_proper(self.lam)

    def with_mean(self, mean: Array) -> Gaussian:
        """The same precision about another mean."""
        return Gaussian(self.information(jnp.asarray(mean, self.dtype)), self.lam)

    def __mul__(self, other: Gaussian) -> Gaussian:
        """Product of densities."""
        self._same_form(other)
        return Gaussian(self.eta + other.eta, self.lam + other.lam)

    def __truediv__(self, other: Gaussian) -> Gaussian:
        """Quotient of densities: what is left of `self` when `other` is taken out."""
        self._same_form(other)
        return Gaussian(self.eta - other.eta, self.lam - other.lam)

    def __getitem__(self, index) -> Gaussian:
        """A part of the array of Gaussians; in block form the last axis stays whole."""
        return Gaussian(*self.family.take(self.eta, self.lam, index))

    def _same_form(self, other: Gaussian) -> None:
        if self.block != other.block:
            raise ValueError(f"Gaussian: scalar and block form do not mix (shapes {self.shape}, {other.shape})")

    def mix(self, other: Gaussian, weight: ArrayLike) -> Gaussian:
        """`self^weight * other^(1 - weight)`: natural parameters interpolated, as damping does."""
        return jax.tree.map(lambda a, b: weight * a + (1 - weight) * b, self, other)

    def where(self, condition: Bool[Values, "..."], other: Gaussian) -> Gaussian:
        """`self` where `condition` (one truth value a variable: no last axis in block form), else `other`."""
        wide, full = self.family.over_values(condition), self.family.over_precisions(condition)
        return Gaussian(jnp.where(wide, self.eta, other.eta), jnp.where(full, self.lam, other.lam))

    def flat_units(self, units: tuple[int, ...]) -> Gaussian:
        """So many units of the same family, of which nothing is known."""
        shape = (*units, *self.family.trail(self.shape))
        return Gaussian(jnp.zeros(shape, self.dtype), jnp.zeros(self.family.lam_shape(shape), self.dtype))

    def as_vectors(self) -> Gaussian:
        """In block form, every unit as it is: numbers are vectors of length 1."""
        return Gaussian(self.family.as_vectors(self.eta), self.family.as_matrices(self.lam))

    def lifted(self, full: Gaussian, share: float) -> Gaussian:
        """With precisions that are not positive raised by that share of those of `full`, which are."""
        return Gaussian(self.eta, self.family.lifted(self.lam, full.lam, share))

    def as_block(self) -> Gaussian:
        """The same density with the last axis as one vector variable: a diagonal precision matrix."""
        if self.block:
            return self
        return Gaussian(self.eta, compute_alike(_on_diagonals, self.lam))

    def broadcast_to(self, shape: tuple[int, ...]) -> Gaussian:
        """The same densities, repeated to a larger shape."""
        if shape == self.shape:
            return self
        lam_shape = self.family.lam_shape(shape)

        def wide(xp: Any, eta: Any, lam: Any) -> tuple[Any, Any]:
            return xp.broadcast_to(eta, shape), xp.broadcast_to(lam, lam_shape)

        return Gaussian(*compute(wide, self.eta, self.lam))

    def astype(self, dtype: jnp.dtype) -> Gaussian:
        """The same densities in another floating-point type."""
        if dtype == self.dtype:
            return self
        return Gaussian(*compute(lambda _, eta, lam: (eta.astype(dtype), lam.astype(dtype)), self.eta, self.lam))

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Values, "..."]:
        """Independent draws, of shape `shape + self.shape`. Every Gaussian must be proper."""
        noise = jax.random.normal(key, (*shape, *self.shape), self.dtype)
        return self.family.sample(self.eta, self.lam, noise)

    def log_density(self, x: Numbers) -> Float[Values, "..."]:
        """`log p(x)`, normalised: `(log |lam / 2π| - (x - mean)' lam (x - mean)) / 2`."""
        d = jnp.asarray(x, self.dtype) - self.mean
        return self.family.log_density(self.lam, d)

    def kl(self, other: Gaussian) -> Float[Values, "..."]:
        """`KL(self || other)` of each: `(tr(lam_o lam_s^-1) - n + log |lam_s| / |lam_o| + d' lam_o d) / 2`."""
        self._same_form(other)
        return self.family.kl(self._natural, other._natural)

    def variance_along(self, operator: Jacobian, edges: EdgeSet, proper: bool = False) -> Float[Values, "f 1"]:
        """`J v J'`: how uncertain it leaves the measurements of factors with one measurement each.

        **Arguments:**

        - `operator`, `edges`: the Jacobian of the factors with respect to the variable, and their edge set.
        - `proper`: every precision is known to be positive.
        """
        return self.family.variance_along(self.lam, operator, edges, proper)

    def covariance_along(self, operator: Jacobian, edges: EdgeSet) -> Float[Values, "f m m"]:
        """`J v J'` of factors with any number of measurements, as matrices."""
        return self.family.covariance_along(self.lam, operator, edges)

    def absorb(self, mean: Array, operator: Jacobian, edges: EdgeSet, gain: Array, share: Array) -> Gaussian:
        """What factors with one measurement each tell its units: the product of all their messages.

        **Arguments:**

        - `mean`: its own, as it was found already.
        - `operator`, `edges`: as of `variance_along`.
        - `gain`: `1 / S` of each factor `(F, 1)`, the inverse of the predicted variance.
        - `share`: `R / S`, with the innovation `R`.
        """
        return Gaussian(*self.family.absorb(mean, operator, edges, gain, share))

    def rounding_error(self, parts: Sequence[Gaussian]) -> Array:
        """How far rounding may have moved it, the product of these parts, in standard deviations, of the worst unit.

        Units of which nothing is known, and observed ones, do not count.
        """
        return self.family.rounding_error(self.eta, self.lam, [p._natural for p in parts])

    def made_proper(self, prior: Gaussian, parts: Sequence[Gaussian]) -> tuple[Gaussian, Array]:
        """As it must be where its prior is proper, however rounding has left it.

        **Arguments:** `parts`: the messages that it is the product of, with the prior.

        **Returns:** it, and whether any unit had to be mended.
        """
        found, mended = self.family.made_proper(self._natural, prior._natural, [p._natural for p in parts])
        return Gaussian(*found), mended


def _floats(x: Any, name: str) -> Any:
    """As floating-point numbers of JAX's precision; NumPy's stay NumPy's."""
    if traced(x):
        return x.astype(jnp.result_type(float)) if not jnp.issubdtype(x.dtype, jnp.floating) else x
    a = np.asarray(x)
    a = a.astype(jax.dtypes.canonicalize_dtype(a.dtype if jnp.issubdtype(a.dtype, jnp.floating) else float))
    if not np.isfinite(a).all():
        raise ValueError(f"Gaussian: {name} holds NaN or infinity")
    return a


def _from_moments(xp: Any, mean: Any, std: Any) -> tuple[Any, Any]:
    mean, std = xp.broadcast_arrays(mean, std.astype(mean.dtype))
    lam = 1 / (std * std)
    return lam * mean, lam


def _on_diagonals(xp: Any, lam: Any) -> Any:
    return lam[..., None] * xp.eye(lam.shape[-1], dtype=lam.dtype)


def _point(xp: Any, value: Any) -> tuple[Any, Any]:
    return value * xp.asarray(POINT, value.dtype), xp.full_like(value, POINT)


def _block_point(xp: Any, value: Any) -> tuple[Any, Any]:
    lam = xp.eye(value.shape[-1], dtype=value.dtype) * xp.asarray(POINT, value.dtype)
    return value * xp.asarray(POINT, value.dtype), xp.broadcast_to(lam, (*value.shape, value.shape[-1]))


def _from_covariance(xp: Any, mean: Any, covariance: Any) -> tuple[Any, Any]:
    lam = linalg.spd_inverse(covariance) if xp is jnp else host_linalg.pseudo_inverse(covariance)[0].astype(mean.dtype)
    shape = np.broadcast_shapes(mean.shape, lam.shape[:-1])
    lam, mean = xp.broadcast_to(lam, (*shape, shape[-1])), xp.broadcast_to(mean, shape)
    return (lam @ mean[..., None])[..., 0], lam
