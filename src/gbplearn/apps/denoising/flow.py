"""Frames moved to where things are in another one, by optical flow."""

from __future__ import annotations

from typing import Any

import numpy as np

from .best import Beside


def _cv2() -> Any:
    try:
        import cv2
    except ImportError:
        raise ValueError('frames beside need OpenCV: pip install "gbplearn[video]"') from None
    return cv2


def moved_to(frame: np.ndarray, other: np.ndarray, intact: np.ndarray) -> Beside:
    """Another frame, moved to where things are now.

    **Arguments:**

    - `frame`: now, clean as far as one knows; numbers in [0, 1], `(height, width, channels)`.
    - `other`: the other frame, likewise; `intact`: the probability that its pixels held their true values.

    **Returns:** its values at the places that the flow leads to, and how much they count: what was intact, lies inside
    the image, and leads back to where it came from.
    """
    cv2 = _cv2()
    grey, grey_other = (_grey(f) for f in (frame, other))
    flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    there, back = flow.calc(grey, grey_other, None), flow.calc(grey_other, grey, None)
    rows, columns = np.mgrid[: frame.shape[0], : frame.shape[1]].astype(np.float32)
    at = columns + there[..., 0], rows + there[..., 1]

    def sample(values: np.ndarray, how: int, border: int) -> np.ndarray:
        return cv2.remap(values.astype(np.float32), *at, how, None, border, 0)

    returned = np.hypot(*np.moveaxis(there + sample(back, cv2.INTER_LINEAR, cv2.BORDER_REPLICATE), -1, 0))
    kept = sample(intact, cv2.INTER_LINEAR, cv2.BORDER_CONSTANT)  # 0 outside of the image
    moved = sample(other, cv2.INTER_CUBIC, cv2.BORDER_REPLICATE).reshape(other.shape)
    return Beside(moved.astype(float), np.clip(kept, 0, 1) * np.exp(-(returned**2) / 2))


def _grey(frame: np.ndarray) -> np.ndarray:
    return np.round(255 * np.clip(frame.mean(-1), 0, 1)).astype(np.uint8)
