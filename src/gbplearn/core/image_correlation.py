"""Prior correlation of the weights of an image: those of neighbouring pixels are alike."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from jaxtyping import Float


@dataclasses.dataclass(frozen=True)
class ImageCorrelation:
    """Of the weights of a unit, in the order of an image `(height, width, channels)`, and its bias behind them.

    Weights of one channel at a distance of `d` pixels have the correlation `(1 + a) exp(-a)` with `a = √3 d / length`
    (Matérn's, of order 3/2). Those of different channels are independent, and so is the bias.

    **Arguments:** `height`, `width`, `channels`: of the image; `length_scale`: in pixels.
    """

    height: int
    width: int
    channels: int
    length_scale: float

    @functools.cached_property
    def pixels(self) -> Float[np.ndarray, "n n"]:
        """Of the pixels of one channel."""
        rows, columns = np.divmod(np.arange(self.height * self.width), self.width)
        distance = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
        a = np.sqrt(3) * distance / self.length_scale
        return (1 + a) * np.exp(-a)

    @functools.cached_property
    def _principal(self) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh(self.pixels)
        # Long scales leave variances that are only rounding.
        return np.maximum(values, values[-1] * 1e-6), vectors

    @property
    def variances(self) -> Float[np.ndarray, " p"]:
        """Along the axes."""
        return np.append(np.repeat(self._principal[0], self.channels), 1.0)

    def axes(self) -> Float[np.ndarray, "p p"]:
        """The principal axes, in columns."""
        p = self.height * self.width * self.channels + 1
        out = np.zeros((p, p))
        out[:-1, :-1] = np.kron(self._principal[1], np.eye(self.channels))
        out[-1, -1] = 1.0
        return out

    def root(self) -> Float[np.ndarray, "p p"]:
        """`R` with `R R'` the correlations."""
        return self.axes() * np.sqrt(self.variances)
