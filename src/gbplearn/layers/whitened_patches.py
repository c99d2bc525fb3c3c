"""Whitened patches in front of a network: features by random patches of the first images (`patches.py`).

A window `p` of an image, as one vector, has the mean `m` and the variance `v` of its numbers. Of patch `k`, a window
of the first images, is made a unit vector `d_k`; the responses are

    a_k = d_k' W (n - mu) ,   n = (p - m) / √(v + c)

with `mu` the mean of all `n`, and `W = (C + eps I)^(-1/2)` of their covariance `C`. As a convolution: the filter is
`W d_k` minus its mean, divided by `√(v + c)` where it stands, less `d_k' W mu`. Features are the means over regions of
`max(a_k - t, 0)` and of `max(-a_k - t, 0)`, or their square roots, brought to mean 0 and variance 1.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..factors.operators import Shape
from .features import Features
from .layer import check_not_negative, check_positive, check_whole
from .patches import some_images, variances, whitened, windows_of

# A feature that hardly varies is scaled as if it had this share of the mean variance of all.
_STEADY = 0.1
# Added before the square root, whose slope at 0 is not finite.
_NOTHING = 1e-6


@dataclasses.dataclass(frozen=True)
class WhitenedPatches(Features):
    """Random patches of the first images as filters, whitened; both signs, thresholded, averaged over regions.

    ```python
    learner = gbp.Learner(net, (32, 32, 3), features=gbp.WhitenedPatches(200, kernel=6))
    ```

    Features have mean 0 and variance 1, about, over the images it was fitted to; their shape is
    `(regions, regions, 2 * patches)`.

    **Arguments:**

    - `patches`: how many filters.
    - `kernel`: their height and width.
    - `regions`: the image is divided into `regions x regions` regions, as equal as possible.
    - `threshold`: responses below it count as 0, in standard deviations of whitened windows.
    - `whitening`: added to the variances of windows along each direction before these are divided by; as a part of
        their mean.
    - `contrast`: windows are divided by the standard deviation of their numbers, to whose square this is added, as a
        part of the mean over all windows; None: windows are taken as they are.
    - `mirrored`: features of an image and of its mirror image, left and right exchanged, are averaged, for classes that
        do not depend on it. It takes twice the time.
    - `root`: features are square roots of the averages, which are far from Gaussian.
    """

    patches: int
    kernel: int = 6
    regions: int = 2
    threshold: float = 0.25
    whitening: float = 0.1
    contrast: float | None = 0.01
    mirrored: bool = False
    root: bool = True

    def __post_init__(self):
        check_whole("WhitenedPatches", patches=self.patches, kernel=self.kernel, regions=self.regions)
        check_not_negative("WhitenedPatches", threshold=self.threshold)
        check_positive("WhitenedPatches", whitening=self.whitening)
        if self.contrast is not None:
            check_positive("WhitenedPatches", contrast=self.contrast)
        for name in ("mirrored", "root"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"WhitenedPatches: {name} must be True or False, got {getattr(self, name)!r}")

    def output_shape(self, shape: Shape) -> Shape:
        """`(regions, regions, 2 * patches)`."""
        if len(shape) != 3:
            raise ValueError(f"WhitenedPatches takes images (height, width, channels), got {shape}")
        if min(shape[:2]) - self.kernel + 1 < self.regions:
            raise ValueError(
                f"WhitenedPatches: images of {shape[0]} x {shape[1]} are too small for a kernel of {self.kernel} and "
                f"{self.regions} x {self.regions} regions"
            )
        return self.regions, self.regions, 2 * self.patches

    def fitted_shapes(self, shape: Shape) -> dict[str, Shape]:
        """Of filters and offsets; of mean and scale of the features; of what images and windows are measured by."""
        return {
            "filters": (self.kernel, self.kernel, shape[2], self.patches),
            "offset": (self.patches,),
            "middle": (),
            "floor": (),
            "mean": (2 * self.patches,),
            "gain": (2 * self.patches,),
        }

    def fit(self, x: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Patches, whitening and scales from the first images."""
        rng = np.random.default_rng(seed)
        x = some_images(np.asarray(x, float), rng)
        middle = x.mean()
        windows = windows_of(x - middle, (self.kernel, self.kernel), rng)
        try:
            variance = variances(windows)
        except ValueError as error:
            raise ValueError(f"WhitenedPatches: {error}") from None
        floor = 0.0
        if self.contrast is not None:
            floor = self.contrast * variance.mean()
            windows = (windows - windows.mean(1, keepdims=True)) / np.sqrt(variance + floor)[:, None]
        filters, offset = whitened(windows, variance, self.patches, self.whitening, rng)
        if self.contrast is not None:
            filters -= filters.mean(1, keepdims=True)
        found = {
            "filters": filters.T.reshape(self.kernel, self.kernel, x.shape[3], self.patches),
            "offset": offset,
            "middle": np.asarray(middle),
            "floor": np.asarray(floor),
            "mean": np.zeros(2 * self.patches),
            "gain": np.ones(2 * self.patches),
        }
        raw = self.computed(x, found, np.dtype(np.float32)).astype(float)
        each = raw.var((0, 1, 2))
        scale = (1 - _STEADY) * each + _STEADY * each.mean()
        found |= {"mean": raw.mean((0, 1, 2)), "gain": 1 / np.sqrt(np.where(scale > 0, scale, 1.0))}
        return {name: np.asarray(value, np.float32) for name, value in found.items()}

    def apply(self, x: Array, fitted: Mapping[str, Array]) -> Array:
        """The features of an image."""
        found = self._regions(x, fitted)
        if self.mirrored:
            found = 0.5 * (found + self._regions(x[:, ::-1], fitted))
        if self.root:
            found = jnp.sqrt(found + _NOTHING)
        return (found - fitted["mean"]) * fitted["gain"]

    def _regions(self, x: Array, fitted: Mapping[str, Array]) -> Array:
        x = (x - fitted["middle"])[None]
        dimensions = ("NHWC", "HWIO", "NHWC")
        responses = lax.conv_general_dilated(x, fitted["filters"], (1, 1), "VALID", dimension_numbers=dimensions)[0]
        if self.contrast is not None:
            count = self.kernel**2 * x.shape[3]
            mean, square = (_sums(v.sum(3)[0], self.kernel) / count for v in (x, x**2))
            variance = jnp.maximum(square - mean**2, 0) + fitted["floor"]
            responses = responses * lax.rsqrt(jnp.maximum(variance, jnp.finfo(x.dtype).tiny))[..., None]
        responses = responses - fitted["offset"]
        both = [jnp.maximum(sign * responses - self.threshold, 0) for sign in (1, -1)]
        rows, columns = (_parts(n, self.regions) for n in responses.shape[:2])
        return jnp.stack(
            [jnp.stack([jnp.concatenate([b[r, c].mean((0, 1)) for b in both]) for c in columns]) for r in rows]
        )


def _sums(x: Array, kernel: int) -> Array:
    """Over all windows of an array of two axes."""
    return lax.reduce_window(x, jnp.zeros((), x.dtype), lax.add, (kernel, kernel), (1, 1), "VALID")


def _parts(length: int, count: int) -> list[slice]:
    """So many parts of an axis, as equal as possible."""
    ends = [i * length // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]
