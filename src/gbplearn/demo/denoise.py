"""Denoise a picture in which some pixels hold nonsense.

Every pixel is a variable. It is observed once, and it is like its four neighbours; both with a robust energy. How far
the two kinds can pull decides which observations are rejected: a neighbour pulls with at most `N / sigma` (Huber), an
observation holds on up to `N / sigma` (Tukey) and then lets go. Here an observation holds against three neighbours:
a pixel on an edge (one neighbour against it) or in a corner (two) keeps its value, a lone wrong one (four) does not.
"""

from __future__ import annotations

import dataclasses
import time

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ..factor import Factor
from ..graph import FactorGraph
from ..inference import Result, infer
from ..robust import Huber, Tukey

Image = Float[np.ndarray, "height width"]
Mask = Bool[np.ndarray, "height width"]

_FINER = 4  # the scene is drawn so many times finer and averaged: edges are sharp, not jagged


@dataclasses.dataclass(frozen=True)
class Settings:
    """Noise and model; standard deviations in grey levels from 0 to 1, thresholds in standard deviations."""

    side: int = 128
    corrupt: float = 0.1  # share of pixels replaced by U(0, 1)
    pixel_sigma: float = 0.02
    pixel_threshold: float = 0.75  # 0.75 / 0.02 is three times 1 / 0.08
    smooth_sigma: float = 0.08
    smooth_threshold: float = 1.0
    damping: float = 0.5
    iterations: int = 300


@dataclasses.dataclass(frozen=True)
class Denoised:
    """What went in and what came out."""

    clean: Image
    corrupt: Mask
    noisy: Image
    median: Image
    mean: Image
    std: Image
    rejected: Mask  # observations that the robust energy switched off
    result: Result
    seconds: float

    def metrics(self) -> dict[str, float | int | str]:
        """The numbers of results.json."""
        found = int((self.rejected & self.corrupt).sum())
        return {
            "psnr_noisy": psnr(self.noisy, self.clean),
            "psnr_median": psnr(self.median, self.clean),
            "psnr_gbp": psnr(self.mean, self.clean),
            "corrupt_pixels": int(self.corrupt.sum()),
            "corrupt_rejected": found,
            "intact_rejected": int(self.rejected.sum()) - found,
            "iterations": self.result.iterations,
            "status": str(self.result.status),
            "seconds": self.seconds,
        }


def scene(side: int) -> Image:
    """A grey picture with sharp edges and smooth shading: a lit sphere on a checkered floor under a pale sky."""
    v, u = (np.mgrid[: _FINER * side, : _FINER * side] + 0.5) / (_FINER * side)  # down, right: 0 to 1
    horizon = 0.6
    image = 0.62 + 0.3 * v / horizon
    image = np.where((u - 0.78) ** 2 + (v - 0.2) ** 2 < 0.1**2, 0.98, image)  # the sun

    depth = 1 / np.maximum(v - horizon, 1e-6)
    tile = (np.floor(0.86 * depth) + np.floor(1.68 * (u - 0.5) * depth)) % 2
    haze = np.clip((v - horizon) / 0.12, 0, 1)  # far tiles are smaller than a pixel: let them fade
    floor = 0.42 + haze * np.where(tile > 0, 0.2, -0.24)
    image = np.where(v > horizon, floor, image)
    shadow = ((u - 0.5) / 0.3) ** 2 + ((v - 0.83) / 0.06) ** 2 < 1
    image = np.where(shadow, 0.45 * image, image)

    x, y = (u - 0.4) / 0.27, (v - 0.55) / 0.27
    towards = np.sqrt(np.maximum(1 - x * x - y * y, 0))  # normal of the sphere, towards the eye
    light = np.maximum(0.6 * x - 0.55 * y + 0.58 * towards, 0)
    image = np.where(x * x + y * y < 1, 0.1 + 0.75 * light, image)
    return np.clip(image, 0, 1).reshape(side, _FINER, side, _FINER).mean((1, 3))


def median_filter(image: Image) -> Image:
    """The median of each 3 x 3 neighbourhood, edges repeated: the usual cure, to compare with."""
    height, width = image.shape
    padded = np.pad(image, 1, mode="edge")
    return np.median([padded[i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=0)


def psnr(image: Image, clean: Image) -> float:
    """Peak signal-to-noise ratio in decibels, for grey levels from 0 to 1."""
    return float(-10 * np.log10(np.mean((image - clean) ** 2)))


def denoise(seed: int, settings: Settings) -> Denoised:
    """Corrupt the scene, and clean it again with messages."""
    rng = np.random.default_rng(seed)
    clean = scene(settings.side)
    corrupt = rng.random(clean.shape) < settings.corrupt
    noisy = np.where(corrupt, rng.random(clean.shape), clean)

    begin = time.perf_counter()
    kernel = Tukey(settings.pixel_threshold, match="gradient")
    result = infer(
        pixel_graph(noisy, settings, kernel), iterations=settings.iterations, damping=settings.damping, throw=False
    )
    mean = np.asarray(result["x"].mean, float)
    seconds = time.perf_counter() - begin

    distance = jnp.asarray((noisy - mean) / settings.pixel_sigma)
    return Denoised(
        clean=clean,
        corrupt=corrupt,
        noisy=noisy,
        median=median_filter(noisy),
        mean=mean,
        std=np.asarray(result["x"].std, float),
        rejected=np.asarray(kernel.scale(distance**2)) < 1,
        result=result,
        seconds=seconds,
    )


def pixel_graph(noisy: Image, settings: Settings, kernel: Tukey) -> FactorGraph:
    """Pixels, their observations, and smoothness between neighbours."""
    graph = FactorGraph()
    # No prior, and the picture as start: the robust energies are first judged there. From a prior at mid-grey all
    # observations would look wrong.
    x = graph.variable("x", noisy.shape, start=noisy)
    graph.add(
        Factor(
            _itself,
            (x[:].reshape(-1),),
            y=noisy.reshape(-1),
            sigma=settings.pixel_sigma,
            robust=kernel,
            linear=True,
            name="pixel",
        )
    )
    for name, one, other in (("across", x[:, :-1], x[:, 1:]), ("down", x[:-1], x[1:])):
        graph.add(
            Factor(
                _difference,
                (one.reshape(-1), other.reshape(-1)),
                sigma=settings.smooth_sigma,
                robust=Huber(settings.smooth_threshold, match="gradient"),
                linear=True,
                name=name,
            )
        )
    return graph


def _itself(a):
    return a


def _difference(a, b):
    return b - a
