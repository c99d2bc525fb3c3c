"""`InputModel`: one Gaussian for all inputs, learnt from examples of which parts may be missing."""

from __future__ import annotations

import copy

import numpy as np
from jaxtyping import Bool, Float

Inputs = Float[np.ndarray, "examples inputs"]
Mask = Bool[np.ndarray, "examples inputs"]

# More inputs than these are taken for independent of each other.
MOST_JOINT = 1024
# The prior `N(0, 1)`, independent, counts as much as this many examples.
PRIOR_COUNT = 10.0


class InputModel:
    """`(x - shift) / scale ~ N(m, C)`, from which missing inputs follow given the others.

    Sums over examples are all that is kept, so that it learns from a stream. With `k` pseudo-examples `N(0, I)`,

        m = sum_n w_n E[x_n] / (k + sum_n w_n)
        C = (k I + k m m' + sum_n w_n E[(x_n - m) (x_n - m)']) / (k + sum_n w_n)

    in these units, where expectations over what is missing are those of the model before (the EM algorithm): with `o`
    observed and `u` not, `E[x_u] = m_u - P_uu^-1 P_uo (x_o - m_o)` and `cov[x_u] = P_uu^-1`, where `P = C^-1`.

    **Arguments:** `most_joint`: more inputs than these are taken for independent of each other.
    """

    def __init__(
        self,
        shift: Float[np.ndarray, " inputs"],
        scale: Float[np.ndarray, " inputs"],
        most_joint: int = MOST_JOINT,
    ):
        inputs = len(shift)
        self.shift, self.scale, self.joint = shift, scale, inputs <= most_joint
        self.count, self.sum = 0.0, np.zeros(inputs)
        self.squares = np.zeros((inputs, inputs) if self.joint else inputs)

    @property
    def mean(self) -> np.ndarray:
        """`m`."""
        return self.sum / (self.count + PRIOR_COUNT)

    @property
    def covariance(self) -> np.ndarray:
        """`C`, or its diagonal where inputs are taken for independent."""
        m, total = self.mean, self.count + PRIOR_COUNT
        if not self.joint:
            return (PRIOR_COUNT + self.squares) / total - m * m
        return (PRIOR_COUNT * np.eye(len(m)) + self.squares) / total - np.outer(m, m)

    def learnt(self, x: Inputs, observed: Mask, weight: Float[np.ndarray, " examples"], rounds: int = 10) -> InputModel:
        """The model with more examples: by `rounds` of EM if some of their parts are missing."""
        out, x = copy.copy(self), (x - self.shift) / self.scale
        for _ in range(1 if observed.all() else rounds):
            filled, extra = out._expected(x, observed, weight)
            wide = weight[:, None] * filled
            squares = filled.T @ wide + extra if self.joint else (filled * wide).sum(0) + extra
            out.count, out.sum = self.count + weight.sum(), self.sum + wide.sum(0)
            out.squares = self.squares + squares
        return out

    def _expected(self, x: Inputs, observed: Mask, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`E[x_n]`, and the sum of `w_n cov[x_n]`."""
        out, extra = np.where(observed, x, 0), np.zeros_like(self.squares)
        if not self.joint:
            variance = self.covariance
            return np.where(observed, x, self.mean), ((~observed) * weight[:, None]).sum(0) * variance
        precision, mean = np.linalg.inv(self.covariance), self.mean
        for n in np.flatnonzero(~observed.all(1)):
            out[n], u, covariance = _conditional(precision, mean, x[n], observed[n])
            extra[np.ix_(u, u)] += weight[n] * covariance
        return out, extra

    def fill(self, x: Inputs, observed: Mask) -> tuple[Inputs, Inputs]:
        """Means and standard deviations of all inputs given those that were observed (of these: 0)."""
        if not self.joint:
            usual = self.shift + self.scale * self.mean, self.scale * np.sqrt(self.covariance)
            return np.where(observed, x, usual[0]), np.where(observed, 0, usual[1])
        mean, std = np.array(x), np.zeros(x.shape)
        precision = np.linalg.inv(self.covariance)
        for n in np.flatnonzero(~observed.all(1)):
            filled, u, covariance = _conditional(precision, self.mean, (x[n] - self.shift) / self.scale, observed[n])
            mean[n, u] = self.shift[u] + self.scale[u] * filled[u]
            std[n, u] = self.scale[u] * np.sqrt(np.diagonal(covariance))
        return mean, std


def _conditional(
    precision: np.ndarray, mean: np.ndarray, x: np.ndarray, observed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An example with its missing inputs at their means given the others; where they are, and their covariance."""
    (u,), (o,) = np.nonzero(~observed), np.nonzero(observed)
    covariance = np.linalg.inv(precision[np.ix_(u, u)])
    out = np.array(x)
    out[u] = mean[u] - covariance @ (precision[np.ix_(u, o)] @ (x[o] - mean[o]))
    return out, u, covariance
