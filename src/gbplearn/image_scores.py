"""How near an image is to the clean one."""

from __future__ import annotations

import numpy as np


def psnr(image: np.ndarray, clean: np.ndarray) -> float:
    """Peak signal-to-noise ratio in decibels, `10 log10(1 / mean((image - clean)²))`, of values in [0, 1]."""
    error = float(np.mean((np.asarray(image, float) - np.asarray(clean, float)) ** 2))
    return float("inf") if error == 0 else float(-10 * np.log10(error))
