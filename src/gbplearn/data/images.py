"""Labelled images: loaded from a folder or a package, split into training and test."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from .idx import read_idx

_PARTS = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
NAMES = ("digits", "mnist", "fashion-mnist")


class Pixels:
    """Images as bytes, which become numbers in [0, 1] when they are asked for: `pixels[rows]`, `np.asarray(pixels)`.

    (All of MNIST as float32 would be 220 MB.)
    """

    def __init__(self, data: np.ndarray):
        self._bytes, self.shape, self.ndim = data, data.shape, data.ndim

    def __len__(self) -> int:
        """How many images."""
        return len(self._bytes)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Some of them."""
        return self._bytes[rows] / np.float32(255)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them."""
        return self[:].astype(np.float32 if dtype is None else dtype, copy=False)


@dataclasses.dataclass(frozen=True)
class Images:
    """Images `(n, height, width, channels)` in [0, 1] and their classes `(n,)`."""

    train_x: np.ndarray | Pixels
    train_y: np.ndarray
    test_x: np.ndarray | Pixels
    test_y: np.ndarray


def load_images(name: str, folder: Path | None = None) -> Images:
    """A data set by name.

    **Arguments:**

    - `name`: "digits" (of scikit-learn, 8 x 8), "mnist" or "fashion-mnist".
    - `folder`: where `mnist/train-images-idx3-ubyte.gz` and the like are; by default `$GBPLEARN_DATA`.
    """
    if name == "digits":
        return _digits()
    if name not in NAMES:
        raise ValueError(f"data must be one of {', '.join(NAMES)}, got {name!r}")
    if folder is None:
        if "GBPLEARN_DATA" not in os.environ:
            raise ValueError(f"say where {name} is: --data-dir, or the environment variable GBPLEARN_DATA")
        folder = Path(os.environ["GBPLEARN_DATA"])
    parts = {part: read_idx(_find(folder, name, file)) for part, file in _PARTS.items()}
    for which in ("train", "test"):
        x, y = parts[f"{which}_x"], parts[f"{which}_y"]
        if x.ndim != 3 or y.shape != x.shape[:1]:
            raise ValueError(f"{folder}: the {which} images {x.shape} and labels {y.shape} of {name} do not fit")
    return Images(
        Pixels(parts["train_x"][..., None]),
        parts["train_y"].astype(int),
        Pixels(parts["test_x"][..., None]),
        parts["test_y"].astype(int),
    )


def _find(folder: Path, name: str, file: str) -> Path:
    for place in (folder / name, folder):
        for ending in ("", ".gz"):
            if (place / f"{file}{ending}").is_file():
                return place / f"{file}{ending}"
    raise ValueError(f"{folder / name}: there is no {file} or {file}.gz")


def _digits() -> Images:
    """The 1,797 handwritten digits that come with scikit-learn; every fifth of a fixed random order is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError('the digits come with scikit-learn: pip install "gbplearn[cli]"') from None
    pixels, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(classes))
    x, y = (pixels[order] / 16).reshape(-1, 8, 8, 1).astype(np.float32), classes[order].astype(int)
    test = np.arange(len(y)) % 5 == 0
    return Images(x[~test], y[~test], x[test], y[test])
