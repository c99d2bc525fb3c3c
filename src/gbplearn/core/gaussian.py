"""Gaussians in natural parameters: all message algebra lives here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import ArrayLike, Bool, Float, PRNGKeyArray

from . import linalg

Key = PRNGKeyArray | Array  # new or old style
Numbers = ArrayLike | Sequence[Any]  # what a user may give for an array of numbers

# The precision of an observed value. A power of two, so that `value * POINT / POINT` is exact; large
# enough that nothing can be added to it in float32 or float64, small enough that values up to 1e14 fit.
POINT = 2.0**80


class Gaussian(eqx.Module):
    """An array of Gaussian densities in natural parameters: `p(x) ∝ exp(eta x - lam x² / 2)`.

    `eta` (information) and `lam` (precision) have one shape: every element is a scalar Gaussian. In
    *block form* `lam` has one more axis than `eta`: the last axis of `eta` is one vector variable,
    `p(x) ∝ exp(eta' x - x' lam x / 2)`, and the last two axes of `lam` are its precision matrix.

    Products of densities are sums of natural parameters: `a * b` multiplies densities, `a / b` takes
    `b` out again. A precision of zero means that nothing is known.
    """

    eta: Array
    lam: Array

    def __check_init__(self):
        block = self.lam.ndim == self.eta.ndim + 1 and self.lam.shape == (*self.eta.shape, *self.eta.shape[-1:])
        if not block and self.lam.shape != self.eta.shape:
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
            if not _traced(s) and not (np.asarray(s) > 0).all():
                raise ValueError("Gaussian.from_moments: every std must be > 0")
            return cls(*_compute(_from_moments, m, s))
        c = jnp.asarray(_floats(covariance, "covariance").astype(m.dtype))
        if m.ndim == 0 or c.ndim < 2 or c.shape[-2:] != (m.shape[-1],) * 2:
            raise ValueError(f"Gaussian.from_moments: covariance {c.shape} does not fit a mean of shape {m.shape}")
        symmetric = _traced(c) or np.allclose(c, np.swapaxes(c, -1, -2), rtol=1e-4, atol=0)
        if not symmetric or not (_traced(c) or bool(jnp.all(linalg.scaled_cholesky(c)[2]))):
            raise ValueError("Gaussian.from_moments: every covariance must be symmetric and positive definite")
        shape = jnp.broadcast_shapes(m.shape, c.shape[:-1])
        lam = linalg.spd_inverse(jnp.broadcast_to(c, (*shape, shape[-1])))
        m = jnp.broadcast_to(m, shape)
        return cls(linalg.information(lam, m), lam)

    @classmethod
    def point(cls, value: Numbers, *, block: bool = False) -> Gaussian:
        """Observed values: so precise that no other message can move them; their mean is `value` exactly."""
        v = jnp.asarray(_floats(value, "value"))
        if not block:
            return cls(*_compute(lambda xp, v: (v * xp.asarray(POINT, v.dtype), xp.full_like(v, POINT)), v))
        d = v.shape[-1]
        return cls(v * POINT, jnp.broadcast_to(jnp.eye(d, dtype=v.dtype) * POINT, (*v.shape, d)))

    @classmethod
    def flat(cls, shape: tuple[int, ...], *, block: bool = False, dtype: jnp.dtype | None = None) -> Gaussian:
        """Nothing known: zero precision."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        return cls(jnp.zeros(shape, dtype), jnp.zeros((*shape, *shape[-1:]) if block else shape, dtype))

    @property
    def block(self) -> bool:
        """Whether the last axis is one vector variable with a full precision matrix."""
        return self.lam.ndim > self.eta.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the mean."""
        return self.eta.shape

    @property
    def dtype(self) -> jnp.dtype:
        """Floating-point type."""
        return self.eta.dtype

    @property
    def proper(self) -> Bool[Array, "..."]:
        """Which Gaussians can be normalised (blocks: one truth value a block)."""
        if not self.block:
            return self.lam > 0
        return _is_definite(self.lam)

    @property
    def mean(self) -> Float[Array, "..."]:
        """`lam^-1 eta`; zero along directions of which nothing is known."""
        if not self.block:
            return _compute(_mean, self.eta, self.lam)
        inverse = linalg.pseudo_inverse(self.lam)[0]
        mean = jnp.einsum("...ij,...j->...i", inverse, self.eta)
        if _traced(mean) or self.dtype != jnp.float32:
            return mean
        return jnp.asarray(
            _corrected(*(np.asarray(a, np.float64) for a in (mean, inverse, self.eta, self.lam))), self.dtype
        )

    @property
    def variance(self) -> Float[Array, "..."]:
        """Marginal variances; infinite where nothing is known."""
        if not self.block:
            return _compute(_variance, self.lam)
        inverse, null = linalg.pseudo_inverse(self.lam)
        unknown = jnp.any(jnp.abs(null) > 0, -1)
        return jnp.where(unknown, jnp.inf, jnp.diagonal(inverse, axis1=-2, axis2=-1))

    @property
    def std(self) -> Float[Array, "..."]:
        """Marginal standard deviations."""
        return jnp.sqrt(self.variance)

    @property
    def covariance(self) -> Float[Array, "... d d"]:
        """`lam^-1` in block form; infinite on the diagonal where nothing is known."""
        if not self.block:
            raise ValueError("Gaussian.covariance belongs to the block form; scalar Gaussians have .variance")
        inverse, _ = linalg.pseudo_inverse(self.lam)
        return jnp.where(jnp.eye(self.shape[-1], dtype=bool), self.variance[..., None], inverse)

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
        if not self.block:
            return Gaussian(self.eta[index], self.lam[index])
        try:
            units = np.arange(math.prod(self.shape[:-1])).reshape(self.shape[:-1])[index]
        except IndexError as error:
            raise IndexError(f"Gaussians in block form are indexed without their last axis: {error}") from None
        d = self.shape[-1]
        return Gaussian(self.eta.reshape(-1, d)[units], self.lam.reshape(-1, d, d)[units])

    def _same_form(self, other: Gaussian) -> None:
        if self.block != other.block:
            raise ValueError(f"Gaussian: scalar and block form do not mix (shapes {self.shape}, {other.shape})")

    def mix(self, other: Gaussian, weight: ArrayLike) -> Gaussian:
        """`self^weight * other^(1 - weight)`: natural parameters interpolated, as damping does."""
        return jax.tree.map(lambda a, b: weight * a + (1 - weight) * b, self, other)

    def where(self, condition: Bool[Array, "..."], other: Gaussian) -> Gaussian:
        """`self` where `condition` (one truth value a variable: no last axis in block form), else `other`."""
        wide = condition[..., None] if self.block else condition
        full = wide[..., None] if self.block else wide
        return Gaussian(jnp.where(wide, self.eta, other.eta), jnp.where(full, self.lam, other.lam))

    def as_block(self) -> Gaussian:
        """The same density with the last axis as one vector variable: a diagonal precision matrix."""
        if self.block:
            return self
        return Gaussian(self.eta, self.lam[..., None] * jnp.eye(self.shape[-1], dtype=self.dtype))

    def broadcast_to(self, shape: tuple[int, ...]) -> Gaussian:
        """The same densities, repeated to a larger shape."""
        if shape == self.shape:
            return self
        lam_shape = (*shape, shape[-1]) if self.block else shape

        def wide(xp: Any, eta: Any, lam: Any) -> tuple[Any, Any]:
            return xp.broadcast_to(eta, shape), xp.broadcast_to(lam, lam_shape)

        return Gaussian(*_compute(wide, self.eta, self.lam))

    def astype(self, dtype: jnp.dtype) -> Gaussian:
        """The same densities in another floating-point type."""
        if dtype == self.dtype:
            return self
        return Gaussian(*_compute(lambda _, eta, lam: (eta.astype(dtype), lam.astype(dtype)), self.eta, self.lam))

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Independent draws, of shape `shape + self.shape`. Every Gaussian must be proper."""
        noise = jax.random.normal(key, (*shape, *self.shape), self.dtype)
        if not self.block:
            return self.mean + noise * self.std
        factor, scale, _ = linalg.scaled_cholesky(self.lam)
        # lam = D^-1 L L' D^-1, so D L^-T noise has covariance lam^-1.
        return self.mean + linalg.triangular_solve(factor, noise[..., None], transposed=True)[..., 0] * scale

    def log_density(self, x: Numbers) -> Float[Array, "..."]:
        """`log p(x)`, normalised: `(log |lam / 2π| - (x - mean)' lam (x - mean)) / 2`."""
        d = jnp.asarray(x, self.dtype) - self.mean
        if not self.block:
            return 0.5 * (jnp.log(self.lam / (2 * jnp.pi)) - self.lam * d * d)
        n = self.shape[-1]
        return 0.5 * (linalg.log_determinant(self.lam) - n * jnp.log(2 * jnp.pi) - linalg.quadratic(self.lam, d))

    def kl(self, other: Gaussian) -> Float[Array, "..."]:
        """`KL(self || other)` of each: `(tr(lam_o lam_s^-1) - n + log |lam_s| / |lam_o| + d' lam_o d) / 2`."""
        self._same_form(other)
        if not self.block:
            return _compute(_kl, self.eta, self.lam, other.eta, other.lam).astype(self.dtype)
        d = self.mean - other.mean
        trace = jnp.trace(linalg.spd_solve(self.lam, other.lam), axis1=-2, axis2=-1)
        logs = linalg.log_determinant(self.lam) - linalg.log_determinant(other.lam)
        return 0.5 * (trace - self.shape[-1] + logs + linalg.quadratic(other.lam, d))


def _floats(x: Any, name: str) -> Any:
    """As floating-point numbers of JAX's precision; NumPy's stay NumPy's."""
    if _traced(x):
        return x.astype(jnp.result_type(float)) if not jnp.issubdtype(x.dtype, jnp.floating) else x
    a = np.asarray(x)
    a = a.astype(jax.dtypes.canonicalize_dtype(a.dtype if jnp.issubdtype(a.dtype, jnp.floating) else float))
    if not np.isfinite(a).all():
        raise ValueError(f"Gaussian: {name} holds NaN or infinity")
    return a


def _compute(function: Callable[..., Any], *arrays: Any) -> Any:
    """A function of `numpy` or `jax.numpy` and of arrays.

    Graphs are built outside of compiled code, where JAX would compile every operation for itself: NumPy need not.
    """
    if any(_traced(a) for a in arrays):
        return function(jnp, *arrays)
    with np.errstate(all="ignore"):
        return jax.tree.map(jnp.asarray, function(np, *(np.asarray(a) for a in arrays)))


def _from_moments(xp: Any, mean: Any, std: Any) -> tuple[Any, Any]:
    mean, std = xp.broadcast_arrays(mean, std.astype(mean.dtype))
    lam = 1 / (std * std)
    return lam * mean, lam


@jax.jit  # at module level: an eager loop would be compiled anew at each call
def _is_definite(lam: Array) -> Array:
    return linalg.scaled_cholesky(lam)[2]


def _corrected(mean: np.ndarray, inverse: np.ndarray, eta: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """A mean with the rounding of `inverse eta` taken back: far from 0 that alone is 1e-5 standard deviations."""
    left = eta - np.einsum("...ij,...j->...i", lam, mean)
    return mean + np.einsum("...ij,...j->...i", inverse, left)


def _mean(xp: Any, eta: Any, lam: Any) -> Any:
    return xp.where(lam > 0, eta / xp.where(lam > 0, lam, 1), 0).astype(eta.dtype)


def _variance(xp: Any, lam: Any) -> Any:
    return xp.where(lam > 0, 1 / xp.where(lam > 0, lam, 1), xp.inf).astype(lam.dtype)


def _kl(xp: Any, eta: Any, lam: Any, eta_o: Any, lam_o: Any) -> Any:
    if xp is np:  # precisions may differ by more than single precision holds beside 1
        eta, lam, eta_o, lam_o = (a.astype(float) for a in (eta, lam, eta_o, lam_o))
    d = _mean(xp, eta, lam) - _mean(xp, eta_o, lam_o)
    # ratio - 1 - log ratio is what is left of two nearly equal numbers: log1p keeps its digits.
    excess = lam_o / lam - 1
    return 0.5 * (excess - xp.log1p(excess) + lam_o * d * d)


def _traced(x: Any) -> bool:
    return isinstance(x, Tracer)
