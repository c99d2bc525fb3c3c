"""What one would use otherwise on an image of which some pixels hold nonsense: scikit-image, and detect-then-inpaint.

Every function takes and gives an image `(height, width, channels)` of numbers in [0, 1]; those of a video the frames
before and after too. Strengths were chosen by PSNR on frames 0 - 4 of the bear, `benchmarks/denoiser_search.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.ndimage import median_filter

_ROAD = 0.6  # sum of two differences, each over all colours, above which a pixel is taken for nonsense


def skimage(module: str) -> Any:
    """A module of scikit-image, if it is there."""
    try:
        return importlib.import_module(f"skimage.{module}")
    except ImportError:
        raise ValueError('the classical denoisers need scikit-image: pip install "gbplearn[compare]"') from None


def median(image: np.ndarray, size: int = 3) -> np.ndarray:
    """The median of a square of pixels, channel by channel."""
    return median_filter(image, (size, size, 1))


def total_variation(image: np.ndarray, weight: float = 0.2) -> np.ndarray:
    """Chambolle's: least total variation near the image."""
    return skimage("restoration").denoise_tv_chambolle(image, weight=weight, channel_axis=-1)


def non_local_means(image: np.ndarray, h: float = 0.1) -> np.ndarray:
    """Weighted means over similar patches."""
    return skimage("restoration").denoise_nl_means(
        image, h=h, patch_size=5, patch_distance=6, fast_mode=True, channel_axis=-1
    )


def wavelet(image: np.ndarray, sigma: float = 0.15) -> np.ndarray:
    """Thresholded wavelets (BayesShrink)."""
    return skimage("restoration").denoise_wavelet(image, sigma=sigma, convert2ycbcr=True, channel_axis=-1)


def bilateral(image: np.ndarray, colour: float = 0.1) -> np.ndarray:
    """Means over near pixels of similar colour."""
    return skimage("restoration").denoise_bilateral(image, sigma_color=colour, sigma_spatial=1.5, channel_axis=-1)


def road(image: np.ndarray, threshold: float = _ROAD) -> np.ndarray:
    """Which pixels are nonsense, by rank-ordered absolute differences (Garnett et al. 2005).

    True where the two smallest differences to the eight neighbours, summed over the colours, add up to more than
    `threshold`.
    """
    height, width = image.shape[:2]
    wide = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    off = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    differences = [np.abs(wide[i : i + height, j : j + width] - image).sum(-1) for i, j in off]
    return np.partition(np.stack(differences), 1, axis=0)[:2].sum(0) > threshold


def road_biharmonic(image: np.ndarray) -> np.ndarray:
    """Pixels that `road` finds are inpainted biharmonically."""
    return _inpainted(image, road(image))


def _inpainted(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return skimage("restoration").inpaint_biharmonic(image, mask, channel_axis=-1, split_into_regions=True)


def road_flow(before: np.ndarray | None, image: np.ndarray, after: np.ndarray | None) -> np.ndarray:
    """Pixels that `road` finds are taken from the frames before and after, moved here by optical flow.

    Where neither has an intact pixel they are inpainted. The flow is that of the inpainted frames.
    """
    from ..denoising.flow import moved_to

    found, clean = road(image), road_biharmonic(image)
    total, weight = np.zeros(image.shape), np.zeros(image.shape[:2])
    for other in (before, after):
        if other is not None:
            moved = moved_to(clean, road_biharmonic(other), (~road(other)).astype(float))
            total += moved.trust[..., None] * moved.image
            weight += moved.trust
    filled = np.where((found & (weight > 0.5))[..., None], total / np.maximum(weight, 1e-9)[..., None], image)
    return _inpainted(filled, found & (weight <= 0.5))


SINGLE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "median": median,
    "total variation": total_variation,
    "non-local means": non_local_means,
    "wavelet": wavelet,
    "bilateral": bilateral,
    "ROAD, biharmonic": road_biharmonic,
}


def clean_frame(method: str, frames: Sequence[np.ndarray], number: int) -> np.ndarray:
    """One frame of a video by a classical method: of `SINGLE`, or "ROAD, flow"."""
    if method in SINGLE:
        return np.clip(SINGLE[method](frames[number]), 0, 1)
    before = frames[number - 1] if number else None
    return np.clip(road_flow(before, frames[number], frames[number + 1] if number + 1 < len(frames) else None), 0, 1)
