"""What inputs look like: one Gaussian for all of them, learnt from examples of which parts are missing."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

Inputs = Float[np.ndarray, "examples inputs"]
Seen = Bool[np.ndarray, "examples inputs"]

# More inputs than these are taken for independent of each other.
MOST_JOINT = 1024
# The prior `N(0, 1)`, independent, counts as much as this many examples.
_PRIOR_COUNT = 10.0


class InputModel:
    """`x ~ N(m, C)` for standardised inputs, from which missing ones follow given the others.

    Sums over examples are all that is kept, so that it learns from a stream. With `k` pseudo-examples `N(0, I)`,

        m = sum_n w_n E[x_n] / (k + sum_n w_n)
        C = (k I + k m m' + sum_n w_n E[(x_n - m) (x_n - m)']) / (k + sum_n w_n)

    where expectations over what is missing are those of the model before (the EM algorithm): with `o` observed and `u`
    not, `E[x_u] = m_u - P_uu^-1 P_uo (x_o - m_o)` and `cov[x_u] = P_uu^-1`, where `P = C^-1`.
    """

    def __init__(self, inputs: int):
        self.joint = inputs <= MOST_JOINT
        self.count, self.sum = 0.0, np.zeros(inputs)
        self.squares = np.zeros((inputs, inputs) if self.joint else inputs)

    @property
    def mean(self) -> np.ndarray:
        """`m`."""
        return self.sum / (self.count + _PRIOR_COUNT)

    @property
    def covariance(self) -> np.ndarray:
        """`C`, or its diagonal where inputs are taken for independent."""
        m, total = self.mean, self.count + _PRIOR_COUNT
        if not self.joint:
            return (_PRIOR_COUNT + self.squares) / total - m * m
        return (_PRIOR_COUNT * np.eye(len(m)) + self.squares) / total - np.outer(m, m)

    def learn(self, x: Inputs, seen: Seen, weight: Float[np.ndarray, " examples"], rounds: int = 10) -> None:
        """Add examples to what is known: `rounds` of EM if some of their parts are missing."""
        before = self.count, self.sum, self.squares
        for _ in range(1 if seen.all() else rounds):
            filled, extra = self._expected(x, seen, weight)
            wide = weight[:, None] * filled
            squares = filled.T @ wide + extra if self.joint else (filled * wide).sum(0) + extra
            self.count, self.sum = before[0] + weight.sum(), before[1] + wide.sum(0)
            self.squares = before[2] + squares

    def _expected(self, x: Inputs, seen: Seen, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`E[x_n]`, and the sum of `w_n cov[x_n]`."""
        out, extra = np.where(seen, x, 0), np.zeros_like(self.squares)
        if not self.joint:
            variance = self.covariance
            return np.where(seen, x, self.mean), ((~seen) * weight[:, None]).sum(0) * variance
        precision, mean = np.linalg.inv(self.covariance), self.mean
        for n in np.flatnonzero(~seen.all(1)):
            out[n], u, covariance = _given(precision, mean, x[n], seen[n])
            extra[np.ix_(u, u)] += weight[n] * covariance
        return out, extra

    def fill(self, x: Inputs, seen: Seen) -> tuple[Inputs, Inputs]:
        """Means and standard deviations of all inputs given those that were observed (of these: 0)."""
        mean, std = np.where(seen, x, self.mean), np.zeros(x.shape)
        if not self.joint:
            return mean, np.where(seen, 0, np.sqrt(self.covariance))
        precision = np.linalg.inv(self.covariance)
        for n in np.flatnonzero(~seen.all(1)):
            mean[n], u, covariance = _given(precision, self.mean, x[n], seen[n])
            std[n, u] = np.sqrt(np.diagonal(covariance))
        return mean, std


def _given(
    precision: np.ndarray, mean: np.ndarray, x: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An example with its missing inputs at their means, which they are, and their covariance."""
    (u,), (o,) = np.nonzero(~seen), np.nonzero(seen)
    covariance = np.linalg.inv(precision[np.ix_(u, u)])
    out = np.array(x)
    out[u] = mean[u] - covariance @ (precision[np.ix_(u, o)] @ (x[o] - mean[o]))
    return out, u, covariance
