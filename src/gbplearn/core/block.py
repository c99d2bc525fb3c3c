"""The block family: a unit is the vector along the last axis, and has a full precision matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from . import host_linalg, linalg
from .family import POINT, EdgeSet, Family, Jacobian, Natural, Shape, Values, compute_alike, traced
from .linalg import add_all

# Of the precision of messages, in units of the prior's: with more of it a block may be singular after rounding.
_LARGEST_RATIO = 64.0


def _diagonal(a: Values) -> Values:
    return linalg.diagonal(a)


def _proper(xp: Any, lam: Any) -> Any:
    return host_linalg.definite(lam) if xp is np else linalg.definite_inverse(lam)[1]


def _inverse(xp: Any, lam: Any) -> tuple[Any, Any]:
    return (host_linalg if xp is np else linalg).pseudo_inverse(lam)


def _mean(xp: Any, eta: Any, lam: Any) -> Any:
    if xp is jnp:
        return linalg.semidefinite_solve(lam, eta)
    return (_inverse(xp, lam)[0] @ eta[..., None])[..., 0].astype(eta.dtype)


def _variance(xp: Any, lam: Any) -> Any:
    inverse, null = _inverse(xp, lam)
    unknown = xp.any(xp.abs(null) > 0, -1)
    return xp.where(unknown, xp.inf, xp.diagonal(inverse, axis1=-2, axis2=-1)).astype(lam.dtype)


def _covariance(xp: Any, lam: Any) -> Any:
    diagonal = _variance(xp, lam)[..., None]
    return xp.where(xp.eye(lam.shape[-1], dtype=bool), diagonal, _inverse(xp, lam)[0]).astype(lam.dtype)


class Block(Family):
    """`lam` has one axis more than `eta`: its last two are the precision matrix of a unit."""

    scalar: ClassVar[bool] = False

    def unit_shape(self, shape: Shape) -> Shape:
        """Without the last axis."""
        return shape[:-1]

    def dim(self, shape: Shape) -> int:
        """The length of the last axis."""
        return shape[-1]

    def trail(self, shape: Shape) -> Shape:
        """The last axis."""
        return shape[-1:]

    def lam_shape(self, shape: Shape) -> Shape:
        """The last axis twice."""
        return (*shape, *shape[-1:])

    def over_values(self, each: Any) -> Any:
        """One axis more."""
        return each[..., None]

    def over_precisions(self, each: Any) -> Any:
        """Two axes more."""
        return each[..., None, None]

    def as_vectors(self, x: Values) -> Values:
        """As they are."""
        return x

    def from_vectors(self, x: Values) -> Values:
        """As they are."""
        return x

    def as_matrices(self, lam: Values) -> Values:
        """As they are."""
        return lam

    def from_matrices(self, lam: Values) -> Values:
        """As they are."""
        return lam

    def pairs(self, root: Values) -> Values:
        """Of all pairs along the last axis."""
        return root[..., None] * root[..., None, :]

    def one(self, shape: Shape, dtype: Any) -> Values:
        """Unit matrices."""
        # By NumPy: outside of compiled code JAX would compile every operation for itself.
        eye: Any = np.eye(shape[-1], dtype=dtype)
        return eye if len(shape) == 1 else jnp.broadcast_to(eye, self.lam_shape(shape))

    def take(self, eta: Values, lam: Values, index: Any) -> Natural:
        """By an index of the other axes; the last stays whole."""
        shape = eta.shape
        try:
            units = np.arange(math.prod(shape[:-1])).reshape(shape[:-1])[index]
        except IndexError as error:
            raise IndexError(f"Gaussians in block form are indexed without their last axis: {error}") from None
        d = shape[-1]
        return eta.reshape(-1, d)[units], lam.reshape(-1, d, d)[units]

    def proper(self, lam: Values) -> Values:
        """Which matrices are safely positive definite."""
        return compute_alike(_proper, lam)

    def all_proper(self, lam: Values) -> bool:
        """Whether all are."""
        return bool(np.asarray(self.proper(lam)).all())

    def sound(self, lam: np.ndarray) -> bool:
        """No eigenvalue below 0, but for rounding."""
        least = np.linalg.eigvalsh((lam + np.swapaxes(lam, -1, -2)) / 2).min(-1)
        return bool((least >= -1e-5 * np.diagonal(lam, axis1=-2, axis2=-1).max(-1)).all())

    def mean(self, eta: Values, lam: Values) -> Values:
        """`lam^-1 eta`; 0 along directions of which nothing is known."""
        return compute_alike(_mean, eta, lam)

    def some_mean(self, eta: Values, lam: Values) -> Values:
        """A solution of `lam m = eta`, without any eigenvectors."""
        return linalg.definite_solve(lam, eta[..., None])[0][..., 0] if traced(lam) else self.mean(eta, lam)

    def mean_or(self, eta: Values, lam: Values, start: Values, proper: bool) -> Values:
        """The start along directions of which nothing is known. (Rounding may leave some where all were `proper`.)"""
        return start + self.mean(eta - self.information(lam, start), lam)

    def any_mean(self, eta: Values, lam: Values, start: Values, proper: bool) -> Values:
        """By one elimination."""
        return start + self.some_mean(eta - self.information(lam, start), lam)

    def variance(self, lam: Values) -> Values:
        """The diagonal of `lam^-1`."""
        return compute_alike(_variance, lam)

    def covariances(self, lam: Values) -> Values:
        """`lam^-1`."""
        return compute_alike(_covariance, lam)

    def precisions(self, lam: Values) -> Values:
        """The diagonal."""
        return _diagonal(lam)

    def log_determinant(self, lam: Values) -> Values:
        """By a Cholesky factor."""
        return linalg.log_determinant(lam)

    def information(self, lam: Values, x: Values) -> Values:
        """A product of matrix and vector."""
        return linalg.information(lam, x)

    def quadratic(self, lam: Values, x: Values) -> Values:
        """Along all directions together."""
        return linalg.quadratic(lam, x)

    def log_density(self, lam: Values, d: Values) -> Values:
        """`(log |lam| - n log 2π - d' lam d) / 2`."""
        n = d.shape[-1]
        return 0.5 * (linalg.log_determinant(lam) - n * jnp.log(2 * jnp.pi) - linalg.quadratic(lam, d))

    def sample(self, eta: Values, lam: Values, noise: Values) -> Values:
        """`lam = D^-1 L L' D^-1`, so `D L^-T noise` has covariance `lam^-1`."""
        factor, scale, _ = linalg.scaled_cholesky(lam)
        off = linalg.triangular_solve(factor, noise[..., None], transposed=True)[..., 0] * scale
        return self.mean(eta, lam) + off

    def kl(self, one: Natural, other: Natural) -> Values:
        """`(tr(lam_o lam_s^-1) - n + log |lam_s| / |lam_o| + d' lam_o d) / 2`."""
        d = self.mean(*one) - self.mean(*other)
        trace = jnp.trace(linalg.spd_solve(one[1], other[1]), axis1=-2, axis2=-1)
        logs = linalg.log_determinant(one[1]) - linalg.log_determinant(other[1])
        return 0.5 * (trace - d.shape[-1] + logs + linalg.quadratic(other[1], d))

    def variance_along(self, lam: Values, operator: Jacobian, edges: EdgeSet, proper: bool) -> Values:
        """`J v J'`."""
        return self.covariance_along(lam, operator, edges)[..., 0]

    def absorb(self, mean: Values, operator: Jacobian, edges: EdgeSet, gain: Values, share: Values) -> Natural:
        """`lam = sum J' gain J`, `eta = sum J' share + lam mean`."""
        j = operator.each()
        j = jnp.broadcast_to(j, (gain.shape[0], *j.shape[1:]))
        lam = edges.pool(jnp.einsum("fnmd,fm,fnme->fnde", j, gain, j))
        return operator.back(share) + self.information(lam, mean), lam

    def largest(self, lam: Values) -> Values:
        """Of the diagonal."""
        return _diagonal(lam).max(-1)

    def lifted(self, lam: Values, full: Values, share: float) -> Values:
        """Those that are not safely positive definite, by `share` of the diagonal of `full`."""
        floor = share * _diagonal(full)
        raised = lam + floor[..., None] * jnp.eye(lam.shape[-1], dtype=lam.dtype)
        return jnp.where(self.over_precisions(self.proper(lam)), lam, raised)

    def rounding_error(self, eta: Values, lam: Values, parts: Sequence[Natural]) -> Values:
        """By the condition of each matrix, see `engine.rounding`."""
        etas, lams = (add_all([jnp.abs(p[k]) for p in parts]) for k in (0, 1))
        v, good = linalg.definite_inverse(lam)
        mean = jnp.abs(linalg.information(v, eta))
        counts = good & (self.largest(lam) < POINT / 2)
        variance = jnp.where(counts[..., None], _diagonal(v), 1)
        off = linalg.information(jnp.abs(v), etas + linalg.information(lams, mean)) / jnp.sqrt(variance)
        off = 0.25 * (1 + eta.shape[-1]) * off
        wide = 0.5 * _diagonal(jnp.abs(v) @ lams @ jnp.abs(v)) / variance
        eps = jnp.finfo(eta.dtype).eps
        return jnp.max(jnp.where(counts[..., None], eps * jnp.maximum(off, wide), 0), initial=0)

    def made_proper(self, now: Natural, prior: Natural, parts: Sequence[Natural]) -> tuple[Natural, Values]:
        """Blocks that rounding has made singular get vaguer messages.

        All messages of such a block are weakened by one factor, until the prior is larger than their rounding.
        """
        # One call for both: it is compiled once.
        inverse, proper = linalg.definite_inverse(jnp.stack([now[1], jnp.broadcast_to(prior[1], now[1].shape)]))
        good = proper[0]
        eta, lam = (add_all([p[k] for p in parts]) for k in (0, 1))
        most = 1 / (_LARGEST_RATIO * eta.shape[-1] * jnp.finfo(eta.dtype).eps)
        ratio = jnp.sum(inverse[1] * lam, (-2, -1))  # the trace of `prior^-1 lam`: at least the largest eigenvalue
        weight = jnp.minimum(1, most / jnp.maximum(ratio, most))
        weaker = prior[0] + self.over_values(weight) * eta, prior[1] + self.over_precisions(weight) * lam
        weaker = self._where(self.proper(weaker[1]), weaker, prior)
        return self._where(good, now, weaker), ~jnp.all(good)

    def _where(self, condition: Values, one: Natural, other: Natural) -> Natural:
        return (
            jnp.where(self.over_values(condition), one[0], other[0]),
            jnp.where(self.over_precisions(condition), one[1], other[1]),
        )


BLOCK = Block()
