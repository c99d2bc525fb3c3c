"""Figures of the experiment video: PSNR over the frames, and a frame as each method has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ...show.figures import BLUE, GREEN, GREY, ORANGE
from ..data.video import read_image
from ..denoising.pictures import write_image
from ..image_scores import psnr

_COLOURS = {"pairwise": GREY, "one": ORANGE, "five": BLUE}
_STYLES = ("-", "--", ":", "-.")
_PART = (slice(110, 240), slice(30, 210))  # of the frame: the bear


def draw_curves(runs: Sequence[Mapping[str, Sequence[float]]]) -> Figure:
    """A line a method; `runs` has a PSNR for each frame of each method, once for each seed."""
    figure = Figure(figsize=(8.8, 4.4), layout="constrained")
    ax = figure.subplots()
    drawn: dict[str, int] = {}
    for method in runs[0]:
        values = np.array([run[method] for run in runs])
        kind = method.split(",")[0].split(" ")[0]
        colour, style = _COLOURS.get(kind, GREEN), _STYLES[drawn.get(kind, 0) % len(_STYLES)]
        drawn[kind] = drawn.get(kind, 0) + 1
        frames, mean = np.arange(values.shape[1]), values.mean(0)
        ax.plot(frames, mean, style, color=colour, label=f"{method} ({values.mean():.1f} dB)")
        if len(runs) > 1:
            error = values.std(0, ddof=1) / np.sqrt(len(runs))
            ax.fill_between(frames, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
    ax.set_xlabel("frame")
    ax.set_ylabel("PSNR, dB")
    ax.grid(axis="y", color="#dddddd", linewidth=0.7)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*ax.get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside right center")
    return figure


def draw_pictures(images: Mapping[str, np.ndarray], crop: bool = False) -> Figure:
    """The image "clean" and others, each with its PSNR (of the whole image)."""
    columns = 3 if len(images) <= 9 else 4
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(4 * columns, 2.6 * rows + (0.3 * rows if crop else 0)), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.axis("off")
    for ax, (name, image) in zip(axes, images.items()):
        part = _PART if crop and image.shape[0] > _PART[0].stop and image.shape[1] > _PART[1].stop else np.s_[:, :]
        ax.imshow(image[part], vmin=0, vmax=1, interpolation="nearest")
        ax.set_title(name if name == "clean" else f"{name}: {psnr(image, images['clean']):.1f} dB", fontsize=10)
    return figure


def write_picture(path: Path, image: np.ndarray) -> None:
    """Numbers in [0, 1] as PNG."""
    write_image(path, np.round(255 * np.clip(image, 0, 1)).astype(np.uint8))


def read_picture(path: Path) -> np.ndarray:
    """The same as numbers, to 1 / 510."""
    return (read_image(path) / 255).astype(np.float32)
