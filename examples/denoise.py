"""Denoise a picture in which some pixels hold nonsense.

Every pixel is a variable. It is observed once, and it is like its four neighbours; both with a robust energy. How far
the two kinds can pull decides which observations are rejected: a neighbour pulls with at most `N / sigma` (Huber), an
observation holds on up to `N / sigma` (Tukey) and then lets go. Here an observation holds against three neighbours:
a pixel on an edge (one neighbour against it) or in a corner (two) keeps its value, a lone wrong one (four) does not.

    python examples/denoise.py FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import gbplearn as gbp
from gbplearn.apps.image_scores import psnr
from gbplearn.core.files import make_folder
from gbplearn.show.figures import BLUE, GREEN, ORANGE, save_figure

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
    result: gbp.Result
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


def denoise(seed: int, settings: Settings) -> Denoised:
    """Corrupt the scene, and clean it again with messages."""
    rng = np.random.default_rng(seed)
    clean = scene(settings.side)
    corrupt = rng.random(clean.shape) < settings.corrupt
    noisy = np.where(corrupt, rng.random(clean.shape), clean)

    begin = time.perf_counter()
    kernel = gbp.Tukey(settings.pixel_threshold, match="gradient")
    result = gbp.infer(
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


def pixel_graph(noisy: Image, settings: Settings, kernel: gbp.Tukey) -> gbp.FactorGraph:
    """Pixels, their observations, and smoothness between neighbours."""
    graph = gbp.FactorGraph()
    # No prior, and the picture as start: the robust energies are first judged there. From a prior at mid-grey all
    # observations would look wrong.
    x = graph.variable("x", noisy.shape, start=noisy)
    graph.add(
        gbp.Factor(
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
            gbp.Factor(
                _difference,
                (one.reshape(-1), other.reshape(-1)),
                sigma=settings.smooth_sigma,
                robust=gbp.Huber(settings.smooth_threshold, match="gradient"),
                linear=True,
                name=name,
            )
        )
    return graph


def _itself(a):
    return a


def _difference(a, b):
    return b - a


def draw(d: Denoised) -> Figure:
    """Pictures above, and below what inference says of its own work."""
    figure = Figure(figsize=(9.6, 7.3))
    axes = figure.subplots(
        2, 3, gridspec_kw={"left": 0.02, "right": 0.98, "top": 0.95, "bottom": 0.11, "wspace": 0.06, "hspace": 0.12}
    )
    shown = (
        (axes[0, 0], d.clean, "clean"),
        (axes[0, 1], d.noisy, f"noisy: {psnr(d.noisy, d.clean):.1f} dB"),
        (axes[0, 2], d.median, f"3 × 3 median: {psnr(d.median, d.clean):.1f} dB"),
        (axes[1, 0], d.mean, f"GBP mean: {psnr(d.mean, d.clean):.1f} dB"),
    )
    for ax, image, title in shown:
        ax.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        ax.set_title(title)

    ax = axes[1, 1]
    kinds = (
        ("white", "", None),
        (BLUE, "corrupt, rejected", d.rejected & d.corrupt),
        (ORANGE, "corrupt, kept", ~d.rejected & d.corrupt),
        (GREEN, "intact, rejected", d.rejected & ~d.corrupt),
    )
    which = sum(i * mask for i, (_, _, mask) in enumerate(kinds) if mask is not None)
    colours = ListedColormap([colour for colour, _, _ in kinds])
    ax.imshow(which, cmap=colours, vmin=-0.5, vmax=len(kinds) - 0.5, interpolation="nearest")
    ax.set_title("observations GBP rejected")
    patches = [Patch(color=c, label=f"{label}: {mask.sum()}") for c, label, mask in kinds if mask is not None]
    ax.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.02), fontsize=8, frameon=False)

    ax = axes[1, 2]
    # The few largest values would leave the rest without contrast.
    shades = ax.imshow(d.std, cmap="viridis", vmin=0, vmax=float(np.quantile(d.std, 0.995)), interpolation="nearest")
    ax.set_title("GBP standard deviation")
    place = ax.inset_axes((0.05, -0.1, 0.9, 0.05))
    bar = figure.colorbar(shades, cax=place, orientation="horizontal", extend="max")
    bar.set_label("grey levels, 0 to 1", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    return figure


def main() -> None:
    gbp.cache_programs()  # the next run need not compile anew
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("."), help="folder for the pictures")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    asked = parser.parse_args()
    make_folder(asked.out)
    result = denoise(asked.seed, Settings())
    for name, value in result.metrics().items():
        print(f"{name:16}  {value:.4g}" if isinstance(value, float) else f"{name:16}  {value}")
    print(*save_figure(draw(result), asked.out, "denoise"), sep="\n")


if __name__ == "__main__":
    main()
