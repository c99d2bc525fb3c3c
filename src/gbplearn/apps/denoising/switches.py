"""Whether a pixel holds its true value or nonsense, judged by its neighbours.

Without its own observation a pixel is believed to be `N(m, v)` (its *cavity*), a number for each channel. An
observation `z` of a pixel that is intact deviates from `m` like Student's t with the variances `k (v + sigma²)`; one of
a pixel that is not is uniform. Neighbours are right about a meadow to another degree than about a wall: `k` is what the
deviations of the intact pixels around say, `k = mean of (z - m)² / (v + sigma²)`, weighted by how intact they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter, median_filter
from scipy.special import expit, gammaln


class Cavity(NamedTuple):
    """What is believed of pixels without their own observation: arrays `(height, width, channels)`."""

    mean: np.ndarray
    variance: np.ndarray


# So wide is the neighbourhood of a pixel: standard deviation of its weights, and of the first one, where nothing is
# known of who is intact and a median has to do.
_WIDTH, _FIRST = 2.5, 7
_OWN = float(gaussian_filter(np.pad([[1.0]], 4 * int(_WIDTH + 1)), _WIDTH, mode="constant").max())
# The median of a chi-square over three, and such, is below its mean.
_MEDIAN_TO_MEAN = 1.3
_SURE = 50.0


def deviations(observed: np.ndarray, cavity: Cavity, sigma: float) -> np.ndarray:
    """`(z - m)² / (v + sigma²)`."""
    return (observed - cavity.mean) ** 2 / (cavity.variance + sigma**2)


def local_scale(deviation: np.ndarray, intact: np.ndarray | None) -> np.ndarray:
    """`k`, of each pixel from those around it.

    **Arguments:**

    - `deviation`: squared deviations in variances, mean over the channels `(height, width)`.
    - `intact`: probabilities; None if nothing is known yet.
    """
    if intact is None:
        return _MEDIAN_TO_MEAN * median_filter(deviation, _FIRST) + 1e-6
    # Pixels beyond the border do not exist. A pixel must not vouch for itself: its own weight is taken out.
    total = gaussian_filter(intact * deviation, _WIDTH, mode="constant") - _OWN * intact * deviation
    weight = gaussian_filter(intact, _WIDTH, mode="constant") - _OWN * intact
    return np.maximum(total, 0) / np.maximum(weight, 1e-9) + 1e-6


def local_variance(difference: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mean square of differences `(height, width, channels)` around each pixel, weighted `(height, width)`."""
    total = [gaussian_filter(weight * d**2, _WIDTH, mode="constant") for d in np.moveaxis(difference, -1, 0)]
    own = _OWN * weight
    around = np.maximum(gaussian_filter(weight, _WIDTH, mode="constant") - own, 1e-9)
    others = np.stack(total, -1) - own[..., None] * difference**2
    return np.maximum(others, 0) / around[..., None]


def probability_intact(
    observed: np.ndarray, cavity: Cavity, sigma: float, scale: np.ndarray, share: float, tail: float
) -> np.ndarray:
    """Of each pixel `(height, width)`, all channels together.

    `1 / (1 + share / ((1 - share) t(z)))`, with `t` the density of Student's t.

    **Arguments:**

    - `scale`: `k`; `share`: of the pixels that hold nonsense; `tail`: degrees of freedom.
    """
    channels = observed.shape[-1]
    distance = deviations(observed, cavity, sigma).sum(-1) / scale
    volume = np.log(cavity.variance + sigma**2).sum(-1) + channels * np.log(scale)
    constant = gammaln((tail + channels) / 2) - gammaln(tail / 2) - channels / 2 * np.log(tail * np.pi)
    density = constant - volume / 2 - (tail + channels) / 2 * np.log1p(distance / tail)
    return expit(np.clip(density + np.log((1 - share) / share), -_SURE, _SURE))


def weight_of(intact: np.ndarray, variance: np.ndarray, sigma: float) -> np.ndarray:
    """What an observation counts, so that the mean is that of the mixture: `p z + (1 - p) m`.

    A precision of `p / (1 - p) / v` does that; in units of `1 / sigma²`, and not above 1.
    """
    odds = intact / np.maximum(1 - intact, 1e-12)
    return np.minimum(odds[..., None] * sigma**2 / variance, 1.0)


# Share of a round one in the shape of a covariance: channels that are all alike, or constant, have no other.
_ROUND = 1e-4


def shape_of(residuals: np.ndarray, rounds: int = 10) -> np.ndarray:
    """The shape of a covariance, of mean variance 1, which far-off residuals hardly change (Tyler 1987).

    The fixed point of `S = (1 - a) c mean of r r' / (r' S^-1 r) + a I`, with a small `a`; `c` brings its mean
    variance to 1.
    """
    n, channels = residuals.shape
    shape = np.eye(channels)
    for _ in range(rounds):
        distance = np.einsum("na,ab,nb->n", residuals, np.linalg.inv(shape), residuals)
        found = (residuals / np.maximum(distance, 1e-12)[:, None]).T @ residuals / max(n, 1)
        shape = (1 - _ROUND) * channels * found / max(np.trace(found), 1e-12) + _ROUND * np.eye(channels)
    return shape * channels / np.trace(shape)
