"""Vector variables: all weights of a unit as one Gaussian, which factors see through one number each.

A unit `u` has a vector `w_u` of `p` numbers. Factor `n` of that unit sees it only through `z_nu = x_n . w_u`, with a
row `x_n` of `p` numbers. What the factor sends to `w_u` is then two numbers along that row: the precision
`c_nu x_n x_n'`, and the information `e_nu x_n`. Beliefs are kept as means and roots of covariances, `S = L L'`, which
stay proper however they are rounded. With the prior `(m_0, L)` and messages `c, e` of `N` rows there are two ways to
the belief:

    primal, N > p    B = I + L' X' C X L                           (p x p)    S = L B^-1 L'
    dual, N <= p     B = I + C^1/2 K C^1/2  with  K = Z' Z , Z = L' X'   (N x N)
                     S = L (I - Z T Z') L'  with  T = C^1/2 B^-1 C^1/2

and in both the numbers `z` have means `mu = X m_0 + ...` and variances `s`, with the exact cavity

    a = e - c mu ,    s_-n = s / (1 - c s) ,    mu_-n = mu - s_-n a
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from . import linalg
from .family import Values
from .gaussian import Gaussian
from .image_correlation import ImageCorrelation
from .rotated import RotatedGaussian
from .sensitivity import RowSensitivity, Sensitivity, as_outputs, contrast_shares, shares
from .unit_vectors import UnitVectors

# From so many numbers on, rows are weighted unit by unit: all at once would not fit the caches.
_LARGE = 1_000_000
# A factor's own share of what is known of its number is at most this: float32 has no digits beyond.
_MOST_LEVERAGE = 1 - 1e-5
# Cholesky factors of matrices with eigenvalues up to 1 have digits as long as no pivot is smaller.
_SURELY_DEFINITE = 1e-3


class Projection(NamedTuple):
    """Rows, and in the dual form the prior along them: what is costly to compute for long vectors."""

    rows: Float[Array, "n p"]
    z: Float[Array, "k p n"] | None = None
    k: Float[Array, "k n n"] | None = None


class RowMessages(NamedTuple):
    """Messages to vector variables: of each row and unit two numbers, and the mean that the belief has with them."""

    projection: Projection
    eta: Float[Array, "n u"]  # e
    lam: Float[Array, "n u"]  # c
    mean: Float[Array, "u p"]

    @property
    def rows(self) -> Float[Array, "n p"]:
        """That they are along."""
        return self.projection.rows


class VectorBelief(NamedTuple):
    """A prior and the messages to it. Their product is computed where it is needed, along the rows."""

    prior: VectorGaussian
    messages: RowMessages

    @property
    def mean(self) -> Array:
        """Of the product."""
        return self.messages.mean

    def mean_or(self, start: Array, proper: bool) -> Array:
        """The mean: priors of vectors are proper."""
        return self.messages.mean


class AlongRows(NamedTuple):
    """A belief as factors see it: the numbers `z = x . w` of each row and unit, with and without the factor itself."""

    mean: Float[Array, "n u"]  # mu
    variance: Float[Array, "n u"]  # s
    cavity_mean: Float[Array, "n u"]
    cavity_variance: Float[Array, "n u"]
    weights: Float[Array, "u p"]  # the mean of w
    prior_energy: Array  # (m - m_0)' S_0^-1 (m - m_0) / 2, of all units
    log_det: Float[Array, " u"]  # log |B|: how much smaller the volume of the belief is than that of the prior


class Kept(NamedTuple):
    """What a joint update has computed of a belief with root `L`: for rows `X` of a batch, or those of each unit."""

    z: Float[np.ndarray, "k p n"]  # L' X'
    k: Float[np.ndarray, "k n n"] | None = None  # Z' Z; these two of rows that all units share
    away: Float[np.ndarray, "k p n"] | None = None  # L Z


class VectorGaussian(UnitVectors):
    """An array of vectors, each with a covariance; or with one covariance for all ("shared").

    - `mean`: `(units, p)`.
    - `root`: `(units, p, p)`, or `(1, p, p)` where it is shared: the covariance is `root root'`.
    - `gained`: nats, the KL divergence from the belief that it was made of by `absorbed`; None if it was not.
    """

    mean: Float[Values, "u p"]
    root: Float[Values, "k p p"]
    gained: float | None = eqx.field(static=True, default=None)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __check_init__(self):
        (units, p), shape = self.mean.shape, self.root.shape
        if shape not in ((units, p, p), (1, p, p)):
            raise ValueError(f"VectorGaussian: a root of shape {shape} does not fit means of shape {(units, p)}")

    @classmethod
    def from_moments(
        cls, mean: Any, std: Any, *, shared: bool, correlation: ImageCorrelation | None = None
    ) -> VectorGaussian:
        """Numbers with these standard deviations, which are the same for all units if it is `shared`.

        **Arguments:** `correlation`: of the numbers of a unit; None: they are independent.
        """
        mean = jnp.asarray(mean, jnp.result_type(float))
        units, p = mean.shape
        wide = np.broadcast_to(np.asarray(std, mean.dtype), (units, p))
        if not (wide > 0).all():
            raise ValueError("VectorGaussian.from_moments: every std must be > 0")
        if shared and not (wide == wide[:1]).all():
            raise ValueError("VectorGaussian.from_moments: units that share a covariance have the same std")
        root = np.eye(p, dtype=mean.dtype) if correlation is None else correlation.root().astype(mean.dtype)
        roots = wide[: 1 if shared else units, :, None] * root
        return cls(mean, jax.device_put(roots))

    @property
    def shared(self) -> bool:
        """Whether several units have one covariance."""
        return self.root.shape[0] < self.mean.shape[0]

    @property
    def variance(self) -> Float[Values, "u p"]:
        """Of each number."""
        return jnp.broadcast_to(jnp.sum(jnp.asarray(self.root) ** 2, -1), self.shape)

    @property
    def covariance(self) -> Float[Values, "k p p"]:
        """`root root'`, one for all units where it is shared."""
        return self.root @ jnp.swapaxes(self.root, -1, -2)

    def astype(self, dtype: Any) -> VectorGaussian:
        """In another floating-point type, as a belief to begin with: without `gained`, which would be compiled in."""
        if dtype == self.dtype:
            return self if self.gained is None else VectorGaussian(self.mean, self.root)
        return VectorGaussian(jnp.asarray(self.mean, dtype), jnp.asarray(self.root, dtype))

    def with_mean(self, mean: Array) -> VectorGaussian:
        """The same covariances about another mean."""
        return VectorGaussian(jnp.asarray(mean, self.dtype), self.root)

    def all_proper(self) -> bool:
        """Whether every number has a finite mean, and a finite variance above 0. Outside of compiled code."""
        variance = np.asarray(self.variance)
        return bool(np.isfinite(np.asarray(self.mean)).all() and np.isfinite(variance).all() and (variance > 0).all())

    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Independent draws `shape + (units, p)`."""
        noise = jax.random.normal(key, (*shape, *self.shape), self.dtype)
        return self.mean + jnp.einsum(
            "kpq,...kq->...kp", jnp.broadcast_to(self.root, (len(self.mean), *self.root.shape[1:])), noise
        )

    def scaled(self, factor: float) -> VectorGaussian:
        """The same means with standard deviations that are larger by a factor."""
        return VectorGaussian(self.mean, self.root * jnp.asarray(factor, self.dtype))

    def no_messages(self, rows: int) -> RowMessages:
        """Before any was sent."""
        (units, p), dtype = self.shape, self.dtype
        none = jnp.zeros((rows, units), dtype)
        z, k = (
            (jnp.zeros((len(self.root), p, rows), dtype), jnp.zeros((len(self.root), rows, rows), dtype))
            if rows <= p
            else (None, None)
        )
        projection = Projection(jnp.zeros((rows, p), dtype), z, k)
        return RowMessages(projection, none, none, jnp.copy(self.mean))

    def squares(self, value: Array) -> Float[Array, " u"]:
        """`(x - mean)' S^-1 (x - mean)` of each unit."""
        d = jnp.broadcast_to((value - self.mean)[..., None], (*self.shape, 1))
        covariance = jnp.broadcast_to(self.covariance, (*self.shape, self.shape[1]))
        return jnp.sum(d * linalg.spd_solve(covariance, d), (-2, -1))

    # Outside of compiled code, in double precision.

    def kl(self, other: Any) -> np.ndarray:
        """`KL(self || other)` of each unit: `(|M|² - p - log |M|² + |L_o^-1 d|²) / 2` with `M = L_o^-1 L`."""
        (units, p), roots = self.shape, max(len(self.root), len(other.root))
        mine, theirs = (np.asarray(g.root, float) for g in (self, other))
        d = (np.asarray(self.mean, float) - np.asarray(other.mean, float))[..., None]
        theirs = np.broadcast_to(theirs, (roots, p, p))
        inner = np.linalg.solve(theirs, np.broadcast_to(mine, (roots, p, p)))
        far = np.linalg.solve(np.broadcast_to(theirs, (units, p, p)) if roots > 1 else theirs, d)
        spread = (inner**2).sum((-2, -1)) - p - 2 * np.linalg.slogdet(inner)[1]
        return 0.5 * (np.broadcast_to(spread, (units,)) + (far**2).sum((-2, -1)))

    def absorbed(self, messages: RowMessages) -> VectorGaussian:
        """The belief with these messages. Units that share a covariance have the mean of theirs: its projection.

        (That is the Gaussian with one covariance for all that is nearest to them, in the direction of the KL divergence
        that keeps all moments.)
        """
        rows, c = np.asarray(messages.rows), np.asarray(messages.lam, float).T
        (n, p), shared, units = rows.shape, self.shared, len(c)
        if n <= p:
            wide = np.asarray(self.root)
            # By NumPy's BLAS, which takes a third of the time of XLA's product.
            z = np.swapaxes(wide, -1, -2) @ rows.T
            k = np.broadcast_to(np.asarray(np.swapaxes(z, -1, -2) @ z, float), (units, n, n))
            root = np.sqrt(c)
            b = np.eye(n) + root[:, :, None] * k * root[:, None, :]
            inverse = np.linalg.inv(b)
            new, _ = _less(wide, z, root[:, :, None] * inverse * root[:, None, :])
            kept = np.trace(inverse, axis1=-2, axis2=-1) - n
            steps = np.asarray(messages.eta, float).T - c * (np.asarray(messages.mean, float) @ rows.T.astype(float))
            energy = 0.5 * np.einsum("un,unm,um->", steps, k, steps)
        else:
            wide = np.asarray(self.root, float)
            gram = np.einsum("un,np,nq->upq", c, rows.astype(float), rows.astype(float), optimize=True)
            b = np.eye(p) + np.swapaxes(wide, -1, -2) @ gram @ wide
            inverse = np.linalg.inv(b)
            inverse = 0.5 * (inverse + np.swapaxes(inverse, -1, -2))
            middle = inverse.mean(0, keepdims=True) if shared else inverse
            new = jnp.asarray(wide @ np.linalg.cholesky(middle), self.dtype)
            kept = np.trace(inverse, axis1=-2, axis2=-1) - p
            d = np.asarray(messages.mean, float) - np.asarray(self.mean, float)
            far = np.linalg.solve(np.broadcast_to(wide, (units, p, p)), d[..., None])
            energy = 0.5 * float((far**2).sum())
        gained = float(np.sum(0.5 * (kept + np.linalg.slogdet(b)[1])) + energy)
        return VectorGaussian(jnp.asarray(messages.mean, self.dtype), new, gained)

    # A joint update of all outputs of a batch: `engine/chain.py`.

    def output_covariance(self, of: Sensitivity, double: bool = False) -> tuple[np.ndarray, Kept]:
        """`sum_u J_u S_u J_u'` of the outputs, and what is needed again. Outside of compiled code, by NumPy's BLAS.

        **Arguments:** `double`: in double precision, where targets are so precise that float32 has too few digits.
        """
        kind = float if double else self.dtype
        root = np.asarray(self.root, kind)
        if isinstance(of, RowSensitivity):
            z = np.swapaxes(root, -1, -2) @ np.asarray(of.rows, kind).T
            k = np.swapaxes(z, -1, -2) @ z
            return as_outputs(k, np.asarray(of.slopes, kind)), Kept(z, k, root @ z)
        z = np.matmul(np.asarray(of.by_unit(), kind), root)  # (u, n, p)
        wide = np.swapaxes(z, 0, 1).reshape(z.shape[1], -1)  # one product for all units
        return wide @ wide.T, Kept(np.swapaxes(z, -1, -2))

    def output_variance(self, of: Sensitivity) -> Float[Array, "b c"]:
        """The diagonal of that, in compiled code."""
        if isinstance(of, RowSensitivity):
            return jnp.einsum("bcu,bu->bc", of.slopes**2, self.variance_along(of.rows))
        z = jnp.matmul(of.by_unit(), jnp.asarray(self.root))
        return jnp.sum(z * z, (0, 2)).reshape(of.each.shape[:2])

    # After it. `kept` as above, of either precision.

    def moved(self, of: Sensitivity, kept: Kept, alpha: Float[np.ndarray, "b c"]) -> np.ndarray:
        """The mean that `alpha` leads to: `m + S J' alpha`."""
        if kept.away is None:
            step = np.matmul(np.asarray(self.root), self._pull(kept, alpha)[..., None])[..., 0]
        else:
            on_rows, away = _on_rows(of, alpha).astype(kept.away.dtype), kept.away
            step = on_rows @ away[0].T if len(away) == 1 else np.matmul(away, on_rows[..., None])[..., 0]
        return np.asarray(np.asarray(self.mean) + step, self.dtype)

    def _pull(self, kept: Kept, alpha: Float[np.ndarray, "b c"]) -> Float[np.ndarray, "u p"]:
        """`L' J' alpha` of each unit, where the rows are of each unit."""
        return np.matmul(kept.z, alpha.reshape(-1).astype(kept.z.dtype))

    def absorb(
        self,
        of: Sensitivity,
        kept: Kept,
        gain: np.ndarray,
        alpha: np.ndarray,
        mean: Array,
        without: Callable[[np.ndarray], np.ndarray] | None = None,
        contrasts: bool = False,
    ) -> VectorGaussian:
        """The belief after a joint update. Where a covariance is shared it is the mean of those of the units.

        **Arguments:** `gain`: `M (n, n)`; `alpha (B, C)`: what moves the mean, to `mean` (`moved`); `without`: of
        the covariance that a unit gives the outputs, the precision of what all else says of them. With it small
        variances keep their digits.
        `contrasts`: whether the units are the outputs, and a shift of them all says nothing: then where a covariance is
        shared it is the mean over the contrasts of the units.
        """
        wide, z = np.asarray(self.root), kept.z
        eye, share_of = np.eye(wide.shape[-1]), contrast_shares if contrasts and self.shared else shares
        if isinstance(of, RowSensitivity) and len(of.rows) <= wide.shape[-1]:
            new, nats = _less(wide, z, share_of(np.asarray(of.slopes, float), gain), kept.k, kept.away)
        elif without is not None and share_of is shares:
            units = range(len(self.mean))
            back = np.stack([np.linalg.inv(eye + self._message(of, kept, u, without)) for u in units])
            new, nats = self._narrowed(back, z.dtype)
        elif isinstance(of, RowSensitivity):
            new, nats = self._narrowed(eye - _around(z, share_of(np.asarray(of.slopes, float), gain)), z.dtype)
        else:
            new, nats = self._narrowed(eye - _around(z, gain), z.dtype)
        # KL from the belief before: of what is left of each direction, and of the mean, which moved by L pull.
        spread = nats * (self.shape[0] / len(wide))
        if kept.k is None:
            moved = float(np.sum(self._pull(kept, alpha).astype(float) ** 2))
        else:
            on_rows = _on_rows(of, alpha)
            moved = float(np.sum(np.matmul(kept.k, on_rows[..., None])[..., 0] * on_rows))
        gained = 0.5 * (spread + moved)
        return VectorGaussian(mean, new, gained)

    def _message(
        self, of: Sensitivity, kept: Kept, unit: int, without: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """What the outputs say of a unit, `Z W Z'`: in `B = I + L' (precision) L`."""
        z = np.asarray(kept.z, float)[unit if len(kept.z) > 1 else 0]
        if not isinstance(of, RowSensitivity):
            return _around(z, without(z.T @ z))
        slopes = np.asarray(of.slopes, float)[..., unit : unit + 1]
        assert kept.k is not None
        k = np.asarray(kept.k, float)[[unit if len(kept.k) > 1 else 0]]
        return _around(z, shares(slopes, without(as_outputs(k, slopes)))[0])

    def _narrowed(self, left: np.ndarray, kind: Any) -> tuple[Array, float]:
        """The root of `L N L'`, and `tr N - p - log |N|`; of the mean of `N` where `L` is one for all.

        **Arguments:** `kind`: floating-point type of the products.
        """
        root, spread = _root_of_definite(left.mean(0, keepdims=True) if self.shared else left)
        return jnp.asarray(np.asarray(self.root, kind) @ root.astype(kind), self.dtype), spread

    def precision(self) -> np.ndarray:
        """`S^-1`, of each unit or one for all."""
        inverse = np.linalg.inv(np.asarray(self.root, float))
        return np.swapaxes(inverse, -1, -2) @ inverse

    @classmethod
    def merged(cls, several: Sequence[Any], before: Any) -> VectorGaussian:
        """As `UnitVectors`, exact but for the projection of "shared"."""
        extra, parts = len(several) - 1, [(g, g.precision()) for g in (*several, before)]
        lam = sum(p for _, p in parts[:-1]) - extra * parts[-1][1]
        means = [np.asarray(g.mean, float)[..., None] for g, _ in parts]
        eta = sum(p @ m for (_, p), m in zip(parts[:-1], means)) - extra * parts[-1][1] @ means[-1]
        try:
            covariance = np.linalg.inv(lam)
        except np.linalg.LinAlgError:
            raise ValueError("a posterior is vaguer than the prior") from None
        mean = (covariance @ eta)[..., 0]
        return cls.from_covariance(mean, 0.5 * (covariance + np.swapaxes(covariance, -1, -2)), before.dtype)

    @classmethod
    def from_covariance(cls, mean: Any, covariance: np.ndarray, dtype: Any) -> VectorGaussian:
        """With covariances `(units | 1, p, p)`; a `ValueError` if one is not positive definite."""
        try:
            root = np.linalg.cholesky(np.asarray(covariance, float))
        except np.linalg.LinAlgError:
            raise ValueError("VectorGaussian: every covariance must be positive definite") from None
        return cls(jnp.asarray(mean, dtype), jnp.asarray(root, dtype))

    def drifted(self, original: Any, alpha: float, process_noise: float, forgetting: float) -> VectorGaussian:
        """The prior of the next batch, see `gbp.Filtering`. Covariances are mixed, not their roots."""
        if alpha == 0 and process_noise == 0:
            return self.scaled(forgetting**-0.5)
        (_, p), dtype = self.shape, self.dtype
        mine, first = (np.asarray(g.root, float) for g in (self, original))
        spread = mine @ np.swapaxes(mine, -1, -2) / forgetting + process_noise**2 * np.eye(p)
        spread = (1 - alpha) * spread + alpha * first @ np.swapaxes(first, -1, -2)
        mean = (1 - alpha) * np.asarray(self.mean, float) + alpha * np.asarray(original.mean, float)
        return VectorGaussian.from_covariance(mean, spread, dtype)

    # At a visit, inside of compiled code.

    def variance_along(self, rows: Float[Array, "n p"]) -> Float[Array, "n u"]:
        """Variances of `z = x . w`."""
        along = jnp.sum((rows @ self.root) ** 2, -1)  # (k, n)
        return jnp.broadcast_to(along.T, (rows.shape[0], self.mean.shape[0]))

    def along(self, of: Projection, eta: Float[Array, "n u"], lam: Float[Array, "n u"]) -> AlongRows:
        """The belief with messages along some rows, as their factors see it: `eta` is `e`, `lam` is `c`."""
        return (
            self._primal(of.rows, eta, lam)
            if of.z is None or of.k is None
            else self._dual(of.rows, of.z, of.k, eta, lam)
        )

    def projected(self, rows: Float[Array, "n p"]) -> Projection:
        """Along some rows; in the dual form if there are no more of them than numbers in a vector."""
        n, p = rows.shape
        return Projection(rows, *_projected(jnp.asarray(self.root), rows)) if n <= p else Projection(rows)

    def _dual(self, rows: Array, z: Array, k: Array, eta: Array, lam: Array) -> AlongRows:
        prior, c, e = self.mean @ rows.T, lam.T, eta.T  # (u, n)
        root = jnp.sqrt(c)
        b = jnp.eye(rows.shape[0], dtype=rows.dtype) + root[:, :, None] * k * root[:, None, :]
        inverse = linalg.spd_inverse(b)
        u = jnp.where(c > 0, (e - c * prior) / jnp.where(c > 0, root, 1), 0)
        a = root * jnp.einsum("unm,um->un", inverse, u)
        mean = prior + _rows_times(k, a)
        t = root[:, :, None] * inverse * root[:, None, :]
        kt = jnp.matmul(k, t)
        wide = jnp.diagonal(k, axis1=-2, axis2=-1)
        quadratic = wide - jnp.sum(kt * k, -1)
        left = jnp.clip(jnp.diagonal(inverse, axis1=-2, axis2=-1), 1 - _MOST_LEVERAGE, 1)
        # Where a factor holds most of what is known of its number, the difference has no digits left.
        variance = jnp.where(left < 0.5, (1 - left) / jnp.where(c > 0, c, 1), quadratic)
        variance = jnp.maximum(variance, jnp.finfo(rows.dtype).eps * wide)
        cavity = jnp.maximum(variance / left, variance)
        weights = self.mean + jnp.swapaxes(jnp.matmul(self.root, _columns_times(z, a)), -1, -2).reshape(self.shape)
        energy = 0.5 * jnp.sum(a * (mean - prior))
        return AlongRows(
            mean.T, variance.T, (mean - cavity * a).T, cavity.T, weights, energy, linalg.log_determinant(b)
        )

    def _primal(self, rows: Array, eta: Array, lam: Array) -> AlongRows:
        p = rows.shape[1]
        gram = jnp.matmul(jnp.swapaxes(self.root, -1, -2), jnp.matmul(_weighted_gram(rows, lam), self.root))
        b = jnp.eye(p, dtype=rows.dtype) + linalg.symmetric(gram)  # (u, p, p)
        inverse, prior = linalg.spd_inverse(b), rows @ self.mean.T
        pull = jnp.swapaxes(rows.T @ (eta - lam * prior), 0, 1)  # (u, p)
        step = jnp.einsum("upq,uq->up", inverse, _columns_times(jnp.swapaxes(self.root, -1, -2), pull, transposed=True))
        off = _columns_times(self.root, step, transposed=True)
        weights = self.mean + off
        mean = prior + rows @ off.T
        variance = _quadratic(rows, self.root, inverse)
        left = jnp.clip(1 - lam * variance, 1 - _MOST_LEVERAGE, 1)
        cavity = variance / left
        energy = 0.5 * jnp.sum(step * step)
        return AlongRows(
            mean, variance, mean - cavity * (eta - lam * mean), cavity, weights, energy, linalg.log_determinant(b)
        )


# A belief of any family. (Type checkers take it for any object: what a family can do, callers ask it.)
if TYPE_CHECKING:
    Belief = Any
else:
    Belief = Gaussian | VectorGaussian | RotatedGaussian | VectorBelief


def product(parts: Sequence[Any]) -> Belief:
    """The product of densities, of whatever form: a prior, and messages to it."""
    first = parts[0]
    if not isinstance(first, VectorGaussian):
        return Gaussian.product(parts)
    return first if len(parts) == 1 else VectorBelief(first, *parts[1:])


def _projected(root: Array, rows: Array) -> tuple[Array, Array]:
    z = jnp.matmul(jnp.swapaxes(root, -1, -2), rows.T)
    return z, jnp.matmul(jnp.swapaxes(z, -1, -2), z)


def _on_rows(of: Sensitivity, alpha: Float[np.ndarray, "b c"]) -> Float[np.ndarray, "u b"]:
    """What `alpha` is to the number that a unit makes of each row."""
    assert isinstance(of, RowSensitivity)
    return np.einsum("bcu,bc->ub", np.asarray(of.slopes, float), alpha)


def _less(
    wide: np.ndarray, z: np.ndarray, t: np.ndarray, k: np.ndarray | None = None, away: np.ndarray | None = None
) -> tuple[Array, float]:
    """The root of `L N L'` with `N = I - Z T Z'` and `Z = L' X'`, and `tr N - p - log |N|`.

    It is the mean over `T` where `L` is one for all. **Arguments:** `k`, `away`: `Z' Z` and `L Z`, if they are known.
    """
    t = t.mean(0, keepdims=True) if len(wide) == 1 else t
    k = np.swapaxes(z, -1, -2) @ z if k is None else k
    middle, left = _root_of_less(t, np.asarray(k, float))
    share = middle.astype(z.dtype) @ np.swapaxes(z, -1, -2)
    spread = float(np.sum(left - 1 - np.log(left)))
    return jax.device_put((wide - (wide @ z if away is None else away) @ share).astype(wide.dtype)), spread


def _around(z: np.ndarray, m: np.ndarray) -> np.ndarray:
    """`Z M Z'`, symmetric; in the precision of `Z`, in double precision from there on."""
    m = m.astype(z.dtype)
    wide = np.matmul(z, m) if m.ndim > 2 else (z.reshape(-1, z.shape[-1]) @ m).reshape(z.shape)  # one product for all
    out = np.matmul(wide, np.swapaxes(z, -1, -2)).astype(float)
    return 0.5 * (out + np.swapaxes(out, -1, -2))


def _root_of_definite(m: np.ndarray) -> tuple[np.ndarray, float]:
    """A root of `p x p` matrices `N` whose eigenvalues lie in (0, 1], but for rounding; and `tr N - p - log |N|`."""
    m = 0.5 * (m + np.swapaxes(m, -1, -2))
    try:
        root = np.linalg.cholesky(m)  # a twelfth of the time of eigenvalues
        diagonal = np.diagonal(root, axis1=-2, axis2=-1)
        if diagonal.min() > _SURELY_DEFINITE:
            spread = np.trace(m, axis1=-2, axis2=-1).sum() - diagonal.size - 2 * np.log(diagonal).sum()
            return root, float(spread)
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(m)
    values = np.clip(values, 1e-12, 1)
    return vectors * np.sqrt(values)[:, None, :], float(np.sum(values - 1 - np.log(values)))


def _root_of_less(m: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`T` with `(I - Z T Z')² = I - Z M Z'` where `K = Z' Z`: `R f(R' K R) R'` with `M = R R'`; and what is left."""
    values, vectors = np.linalg.eigh(0.5 * (m + np.swapaxes(m, -1, -2)))
    r = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]
    inner = np.swapaxes(r, -1, -2) @ k @ r
    share, turn = np.linalg.eigh(0.5 * (inner + np.swapaxes(inner, -1, -2)))
    share = np.clip(share, 0, 1 - 1e-12)
    middle = (turn / (1 + np.sqrt(1 - share))[:, None, :]) @ np.swapaxes(turn, -1, -2)
    return r @ middle @ np.swapaxes(r, -1, -2), 1 - share


def _rows_times(k: Array, a: Array) -> Array:
    """`K a` of each unit: `(k, n, n)`, `(u, n)`."""
    return a @ k[0] if k.shape[0] == 1 else jnp.einsum("unm,um->un", k, a)


def _columns_times(z: Array, a: Array, transposed: bool = False) -> Array:
    """`Z a` of each unit, as columns `(k, p, u | 1)`; or `transposed` as rows `(u, p)`."""
    if z.shape[0] == 1:
        return (a @ z[0].T) if transposed else (z[0] @ a.T)[None]
    out = jnp.einsum("upn,un->up", z, a)
    return out if transposed else out[..., None]


def _weighted_gram(rows: Array, lam: Array) -> Float[Array, "u p p"]:
    """`X' C X` of each unit."""

    def one(c: Array) -> Array:
        return rows.T @ (c[:, None] * rows)

    if lam.size * rows.shape[1] > _LARGE:
        return lax.map(one, lam.T)
    return jax.vmap(one)(lam.T)


def _quadratic(rows: Array, root: Array, inverse: Array) -> Float[Array, "n u"]:
    """`x' L B^-1 L' x` of each row and unit."""

    def one(of: tuple[Array, Array]) -> Array:
        projected = rows @ of[0]
        return jnp.sum((projected @ of[1]) * projected, 1)

    roots = jnp.broadcast_to(root, inverse.shape)
    if rows.shape[0] * inverse.shape[0] * rows.shape[1] > _LARGE:
        return lax.map(one, (roots, inverse)).T
    return jax.vmap(lambda a, b: one((a, b)))(roots, inverse).T
