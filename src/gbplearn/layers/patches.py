"""Whitened patches: windows of the first images as filters, whitened (Coates & Ng 2011).

Windows `p` of images, as vectors, have a mean `mu` and a covariance `C`. With `W = (C + eps I)^(-1/2)` the filter of a
window that was drawn is `W d`, `d` its whitened numbers `W (p - mu)` as a unit vector: responses `d' W (p - mu)` have a
variance of about 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..edges.tiles import Pair

# Of the first images, so many at most; of their windows as many.
_MOST_IMAGES, _MOST_WINDOWS = 1_000, 50_000
# Windows whose variance is smaller than this share of the mean become no filters.
_BLANK = 1e-3


class Filters(NamedTuple):
    """Responses of filter `k` to a window are `filters_k . p - offset_k`."""

    filters: Float[np.ndarray, "k p"]
    offset: Float[np.ndarray, " k"]


def some_images(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """At most so many of the first images, drawn at random."""
    return x if len(x) <= _MOST_IMAGES else x[np.sort(rng.choice(len(x), _MOST_IMAGES, replace=False))]


def windows_of(x: Float[np.ndarray, "b h w c"], kernel: Pair, rng: np.random.Generator) -> Float[np.ndarray, "n p"]:
    """Windows of images, a row each: all of them, or a part drawn at random."""
    views = np.lib.stride_tricks.sliding_window_view(x, kernel, (1, 2)).transpose(0, 1, 2, 4, 5, 3)
    rows = np.arange(int(np.prod(views.shape[:3])))
    if len(rows) > _MOST_WINDOWS:
        rows = rng.choice(len(rows), _MOST_WINDOWS, replace=False)
    return views[np.unravel_index(rows, views.shape[:3])].reshape(len(rows), -1)


def variances(windows: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " n"]:
    """Of the numbers of each window; a `ValueError` if they are too large, or all 0.

    Of windows of one number, its square about the mean of all.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        variance = windows.var(1) if windows.shape[1] > 1 else (windows[:, 0] - windows.mean()) ** 2
    if not np.isfinite(variance.sum()):
        raise ValueError("the first images hold numbers that are too large")
    if not (variance > 0).any():
        raise ValueError("the first images have no contrast")
    return variance


def whitened(
    windows: Float[np.ndarray, "n p"],
    variance: Float[np.ndarray, " n"],
    count: int,
    whitening: float,
    rng: np.random.Generator,
) -> Filters:
    """So many windows, drawn at random, as filters.

    **Arguments:**

    - `variance`: of the numbers of each window; those that have next to none become no filters.
    - `whitening`: `eps`, as a part of the mean variance of windows along each direction.
    """
    mu = windows.mean(0)
    values, vectors = np.linalg.eigh(np.cov(windows.T, bias=True).reshape(windows.shape[1], -1))
    values = np.maximum(values, 0)
    whiten = (vectors / np.sqrt(values + whitening * max(values.mean(), np.finfo(float).tiny))) @ vectors.T
    filled = np.flatnonzero(variance > _BLANK * variance.mean())
    chosen = rng.choice(filled, count, replace=len(filled) < count)
    units = (windows[chosen] - mu) @ whiten
    units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), np.finfo(float).tiny)
    filters = units @ whiten
    return Filters(filters, filters @ mu)
