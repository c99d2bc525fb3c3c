"""How near an image is to the clean one."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

# Of Wang et al. 2004: the width of the window, and two constants that keep quotients sound.
_WINDOW, _MEANS, _SPREADS = 1.5, 0.01**2, 0.03**2


def psnr(image: np.ndarray, clean: np.ndarray) -> float:
    """Peak signal-to-noise ratio in decibels, `10 log10(1 / mean((image - clean)²))`, of values in [0, 1]."""
    error = float(np.mean((np.asarray(image, float) - np.asarray(clean, float)) ** 2))
    return float("inf") if error == 0 else float(-10 * np.log10(error))


def ssim(image: np.ndarray, clean: np.ndarray) -> float:
    """Structural similarity (Wang et al. 2004), mean over pixels and channels `(height, width, channels)` in [0, 1].

        (2 a b + c1) (2 cov + c2) / ((a² + b² + c1) (var_a + var_b + c2))

    with means, variances and covariances in a Gaussian window of 1.5 pixels.
    """
    x, y = np.asarray(image, float), np.asarray(clean, float)

    def mean(values: np.ndarray) -> np.ndarray:
        return gaussian_filter(values, (_WINDOW, _WINDOW, 0), truncate=3.5)

    a, b = mean(x), mean(y)
    spread, both = mean(x * x) - a * a + mean(y * y) - b * b, mean(x * y) - a * b
    return float(
        np.mean((2 * a * b + _MEANS) * (2 * both + _SPREADS) / ((a * a + b * b + _MEANS) * (spread + _SPREADS)))
    )
