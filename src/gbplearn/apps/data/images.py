"""Labelled images: loaded from a folder or a package, split into training and test."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .cifar import find_cifar
from .download import data_folder, download
from .idx import read_idx
from .known_files import IDX_FILES, KNOWN

NAMES = ("digits", *KNOWN)


class Pixels:
    """Images as bytes, which become numbers in [0, 1] when they are asked for: `pixels[rows]`, `np.asarray(pixels)`.

    (All of MNIST as float32 would be 220 MB.)

    **Arguments:**

    - `data`: bytes `(n, height, width, channels)`.
    - `largest`: what becomes 1.
    - `offset`: a number for each channel that is then subtracted.
    """

    def __init__(self, data: np.ndarray, largest: int = 255, offset: np.ndarray | float = 0.0):
        self._bytes, self._largest, self._offset = data, np.float32(largest), np.asarray(offset, np.float32)
        self.shape, self.ndim = data.shape, data.ndim

    def __len__(self) -> int:
        """How many images."""
        return len(self._bytes)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Some of them."""
        return self._bytes[rows] / self._largest - self._offset

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them."""
        return self[:].astype(np.float32 if dtype is None else dtype, copy=False)

    def mean(self) -> np.ndarray:
        """Of each channel over all pixels, before anything is subtracted."""
        return self._bytes.mean((0, 1, 2)) / self._largest

    def minus(self, offset: np.ndarray) -> Pixels:
        """The same images with a number for each channel subtracted."""
        return Pixels(self._bytes, int(self._largest), offset)


# So that a learner takes them as they are.
Sequence.register(Pixels)  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True)
class Images:
    """Images `(n, height, width, channels)` in [0, 1] and their classes `(n,)`."""

    train_x: Pixels
    train_y: np.ndarray
    test_x: Pixels
    test_y: np.ndarray

    def centred(self) -> Images:
        """The same minus the mean of the training images, one number for each channel."""
        mean = self.train_x.mean()
        return dataclasses.replace(self, train_x=self.train_x.minus(mean), test_x=self.test_x.minus(mean))


def load_images(name: str, folder: str | Path | None = None) -> Images:
    """A data set by name.

    The files are those that were published, checked by their hash: `mnist/train-images-idx3-ubyte.gz` and the like
    (packed or not), `cifar10/cifar-10-binary.tar.gz` or the one for Python (or the folder it unpacks to). What is not
    there is downloaded into the folder.

    **Arguments:**

    - `name`: "digits" (of scikit-learn, 8 x 8), "mnist", "fashion-mnist" or "cifar10".
    - `folder`: where the folder `name` with its files is; by default `$GBPLEARN_DATA`, else the user's cache folder.
    """
    if name == "digits":
        return _digits()
    if name not in NAMES:
        raise ValueError(f"data must be one of {', '.join(NAMES)}, got {name!r}")
    folder = data_folder(folder, name)
    find = _find_cifar if name == "cifar10" else _find_idx
    found = find(folder, name)
    if found is None:
        download(name, folder / name)
        found = find(folder, name)
    if found is None:
        raise ValueError(f"{folder / name}: {name} is not there")
    return found


def _find_cifar(folder: Path, name: str) -> Images | None:
    batches = next((b for b in map(find_cifar, _places(folder, name)) if b is not None), None)
    if batches is None:
        return None
    (*train, (test_x, test_y)) = batches
    x, y = (np.concatenate(part) for part in zip(*train))
    return Images(Pixels(x), y, Pixels(test_x), test_y)


def _find_idx(folder: Path, name: str) -> Images | None:
    paths = [_find(folder, name, file) for file in IDX_FILES]
    found = [path for path in paths if path is not None]
    if len(found) < len(paths):
        return None
    train_x, train_y, test_x, test_y = (read_idx(path, name, file) for path, file in zip(found, IDX_FILES))
    return Images(Pixels(train_x[..., None]), train_y.astype(int), Pixels(test_x[..., None]), test_y.astype(int))


def _find(folder: Path, name: str, file: str) -> Path | None:
    places = (place / f"{file}{ending}" for place in _places(folder, name) for ending in ("", ".gz"))
    return next((path for path in places if path.is_file()), None)


def _places(folder: Path, name: str) -> list[Path]:
    """The folder of the data set in the one that was named, or that one itself."""
    return [folder / name, *([folder] if folder.resolve().name == name else [])]


def _digits() -> Images:
    """The 1,797 handwritten digits that come with scikit-learn; every fifth of a fixed random order is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError('the digits come with scikit-learn: pip install "gbplearn[cli]"') from None
    pixels, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(classes))
    x, y = pixels[order].reshape(-1, 8, 8, 1).astype(np.uint8), classes[order].astype(int)
    test = np.arange(len(y)) % 5 == 0
    return Images(Pixels(x[~test], 16), y[~test], Pixels(x[test], 16), y[test])
