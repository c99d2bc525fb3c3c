"""The diagonal family: a unit is a number, and has a precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from .family import POINT, EdgeSet, Family, Jacobian, Natural, Shape, Values, compute_alike
from .linalg import add_all


class Diagonal(Family):
    """`lam` has the shape of `eta`: every element is a Gaussian of its own."""

    scalar: ClassVar[bool] = True

    def unit_shape(self, shape: Shape) -> Shape:
        """All of it."""
        return shape

    def dim(self, shape: Shape) -> int:
        """1."""
        return 1

    def trail(self, shape: Shape) -> Shape:
        """None."""
        return ()

    def lam_shape(self, shape: Shape) -> Shape:
        """That of the values."""
        return shape

    def over_values(self, each: Any) -> Any:
        """As it is."""
        return each

    def over_precisions(self, each: Any) -> Any:
        """As it is."""
        return each

    def as_vectors(self, x: Values) -> Values:
        """Of length 1."""
        return x[..., None]

    def from_vectors(self, x: Values) -> Values:
        """Of length 1."""
        return x[..., 0]

    def as_matrices(self, lam: Values) -> Values:
        """Of one number."""
        return lam[..., None, None]

    def from_matrices(self, lam: Values) -> Values:
        """Of one number."""
        return lam[..., 0, 0]

    def pairs(self, root: Values) -> Values:
        """Squares."""
        return root * root

    def one(self, shape: Shape, dtype: Any) -> Values:
        """Ones."""
        return jnp.ones(shape, dtype)

    def take(self, eta: Values, lam: Values, index: Any) -> Natural:
        """By any index of arrays."""
        return eta[index], lam[index]

    def proper(self, lam: Values) -> Values:
        """Where the precision is positive."""
        return lam > 0

    def all_proper(self, lam: Values) -> bool:
        """By NumPy: outside of compiled code JAX would compile every operation for itself."""
        return bool((np.asarray(lam) > 0).all())

    def sound(self, lam: np.ndarray) -> bool:
        """All at least 0."""
        return bool((lam >= 0).all())

    def mean(self, eta: Values, lam: Values) -> Values:
        """`eta / lam`; 0 where nothing is known."""
        return compute_alike(_mean, eta, lam)

    def mean_or(self, eta: Values, lam: Values, start: Values, proper: bool) -> Values:
        """`eta / lam`; where all are `proper`, without a case distinction."""
        if proper:
            return eta / lam
        known = lam > 0
        return jnp.where(known, eta / jnp.where(known, lam, 1), start)

    def variance(self, lam: Values) -> Values:
        """`1 / lam`."""
        return compute_alike(_variance, lam)

    def covariances(self, lam: Values) -> Values:
        """Of one number."""
        return self.as_matrices(self.variance(lam))

    def precisions(self, lam: Values) -> Values:
        """As they are."""
        return lam

    def log_determinant(self, lam: Values) -> Values:
        """`log lam`; 0 where nothing is known."""
        return jnp.log(jnp.where(lam > 0, lam, 1))

    def information(self, lam: Values, x: Values) -> Values:
        """`lam x`."""
        return lam * x

    def quadratic(self, lam: Values, x: Values) -> Values:
        """`x² lam`."""
        return x * x * lam

    def log_density(self, lam: Values, d: Values) -> Values:
        """`(log(lam / 2π) - lam d²) / 2`."""
        return 0.5 * (jnp.log(lam / (2 * jnp.pi)) - lam * d * d)

    def sample(self, eta: Values, lam: Values, noise: Values) -> Values:
        """`mean + noise std`."""
        return self.mean(eta, lam) + noise * jnp.sqrt(self.variance(lam))

    def kl(self, one: Natural, other: Natural) -> Values:
        """`(r - 1 - log r + lam_o d²) / 2` with the ratio `r` of the precisions."""
        return compute_alike(_kl, *one, *other).astype(one[0].dtype)

    def variance_along(self, lam: Values, operator: Jacobian, edges: EdgeSet, proper: bool) -> Values:
        """`J² v`."""
        return operator.squared().times(1 / lam if proper else self.variance(lam))

    def absorb(self, mean: Values, operator: Jacobian, edges: EdgeSet, gain: Values, share: Values) -> Natural:
        """`lam = (J²)' gain`, `eta = J' share + lam mean`."""
        lam = operator.squared().back(gain)
        return operator.back(share) + lam * mean, lam

    def largest(self, lam: Values) -> Values:
        """The only one."""
        return lam

    def lifted(self, lam: Values, full: Values, share: float) -> Values:
        """Where nothing is known, `share full`."""
        return jnp.where(lam > 0, lam, share * full)

    def rounding_error(self, eta: Values, lam: Values, parts: Sequence[Natural]) -> Values:
        """`eps sum |eta| / sqrt(lam)`."""
        total = add_all([jnp.abs(p) for p, _ in parts])
        counts = (lam > 0) & (lam < POINT / 2)
        off = jnp.finfo(eta.dtype).eps * total / jnp.sqrt(jnp.where(counts, lam, 1))
        return jnp.max(jnp.where(counts, off, 0), initial=0)

    def made_proper(self, now: Natural, prior: Natural, parts: Sequence[Natural]) -> tuple[Natural, Values]:
        """Sums of precisions that are not negative, the prior's positive: always proper."""
        return now, jnp.asarray(False)


DIAGONAL = Diagonal()


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
