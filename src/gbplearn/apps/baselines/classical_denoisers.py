"""What one would use otherwise on an image of which some pixels hold nonsense: scikit-image, and detect-then-inpaint.

Every function takes and gives an image `(height, width, channels)` of numbers in [0, 1]; those of a video the frames
before and after too. Strengths were chosen by PSNR on frames 0, 2 and 4 of the bear (`benchmarks/denoiser_search.py`);
ROAD's threshold is the one it was handed to us with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

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
    """Which pixels are nonsense, by rank-ordered absolute differences (after Garnett et al. 2005, who take four).

    True where the two smallest differences to the eight neighbours (at the border: to those that there are), summed
    over the colours, add up to more than `threshold`.
    """
    height, width = image.shape[:2]
    wide = np.pad(image, ((1, 1), (1, 1), (0, 0)), constant_values=np.inf)
    off = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    differences = [np.abs(wide[i : i + height, j : j + width] - image).sum(-1) for i, j in off]
    return np.partition(np.stack(differences), 1, axis=0)[:2].sum(0) > threshold


class Inpainted(NamedTuple):
    """An image of which `road` has found the nonsense, and inpainted it biharmonically."""

    image: np.ndarray
    nonsense: np.ndarray
    clean: np.ndarray


def find(image: np.ndarray) -> Inpainted:
    """By `road`."""
    nonsense = road(image)
    return Inpainted(image, nonsense, _inpainted(image, nonsense))


def road_biharmonic(image: np.ndarray) -> np.ndarray:
    """Pixels that `road` finds are inpainted biharmonically."""
    return find(image).clean


def _inpainted(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return skimage("restoration").inpaint_biharmonic(image, mask, channel_axis=-1, split_into_regions=True)


def road_flow(before: Inpainted | None, now: Inpainted, after: Inpainted | None) -> np.ndarray:
    """Pixels that `road` finds are taken from the frames before and after, moved here by optical flow.

    Where neither has an intact pixel they are inpainted. The flow is that of the inpainted frames.
    """
    from ..denoising.flow import moved_to

    total, weight = np.zeros(now.image.shape), np.zeros(now.nonsense.shape)
    for other in (before, after):
        if other is not None:
            moved = moved_to(now.clean, other.clean, (~other.nonsense).astype(float))
            total += moved.trust[..., None] * moved.image
            weight += moved.trust
    known = now.nonsense & (weight > 0.5)
    filled = np.where(known[..., None], total / np.maximum(weight, 1e-9)[..., None], now.image)
    return _inpainted(filled, now.nonsense & ~known)


SINGLE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "median": median,
    "total variation": total_variation,
    "non-local means": non_local_means,
    "wavelet": wavelet,
    "bilateral": bilateral,
    "ROAD, biharmonic": road_biharmonic,
}


def clean_frames(method: str, frames: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Frame after frame by a classical method: of `SINGLE`, or "ROAD, flow"."""
    if method in SINGLE:
        yield from (np.clip(SINGLE[method](frame), 0, 1) for frame in frames)
        return
    before, now = None, find(frames[0])
    for number in range(len(frames)):
        after = find(frames[number + 1]) if number + 1 < len(frames) else None
        yield np.clip(road_flow(before, now, after), 0, 1)
        if after is not None:
            before, now = now, after
