"""The figure of sample efficiency: accuracy and likelihood against the number of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from ...show.figures import BLUE, GREEN, GREY, ORANGE
from .one_pass import ADAM, CONVERGED, COSINE, GBP, LINEAR, ONE_SETTING, REPLAY, VECTORS

_BUFFERS = dict(zip(REPLAY, ((0.3, ":"), (0.45, ":"), (0.6, "-"), (0.8, "-"), (1.0, "-"))))
_LINES = {
    GBP: ("GBP", BLUE, "-", 1.0, 2.5),
    VECTORS: ("GBP, vector beliefs", BLUE, "--", 1.0, 2.5),
    ONE_SETTING: ("GBP, vector beliefs, one setting", BLUE, ":", 1.0, 2.0),
    LINEAR: ("linear, all images at once", GREY, "-", 1.0, 1.5),
    ADAM: ("Adam, one pass", ORANGE, "--", 1.0, 1.5),
    COSINE: ("Adam, falling step", ORANGE, ":", 1.0, 1.5),
    **{name: (f"Adam, {name}", ORANGE, style, alpha, 1.2) for name, (alpha, style) in _BUFFERS.items()},
    CONVERGED: ("CNN, all images at once", GREEN, "-", 1.0, 1.5),
}


def draw_samples(metrics: Sequence[Mapping[str, float]], methods: Sequence[str], sizes: Sequence[int]) -> Figure:
    """From the metrics of every seed. Scales are logarithmic, so that both ends can be read."""
    figure = Figure(figsize=(10.6, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for ax, what, words in (
        (left, "test accuracy", "test error"),
        (right, "negative log likelihood", "negative log likelihood on test images, nats"),
    ):
        for number, method in enumerate(m for m in _LINES if m in methods):
            label, colour, style, alpha, width = _LINES[method]
            found = {
                n: [m[f"{what} after {n} images/{method}"] for m in metrics if _has(m, what, n, method)] for n in sizes
            }
            points = [(n, np.array(v)) for n, v in found.items() if v]
            if what == "test accuracy":
                points = [(n, 1 - v) for n, v in points]
            x = np.array([n for n, _ in points]) * 1.012 ** (number - len(methods) / 2)  # bars side by side
            error = [np.std(v, ddof=1) / np.sqrt(len(v)) if len(v) > 1 else 0.0 for _, v in points]
            mean = [np.mean(v) for _, v in points]
            ax.errorbar(x, mean, error, fmt=style, color=colour, alpha=alpha, linewidth=width, label=label)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("training images")
        ax.set_ylabel(words)
        ax.grid(color="#dddddd", linewidth=0.7)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    left.set_yticks([0.5, 0.2, 0.1, 0.05, 0.02, 0.01], ["50%", "20%", "10%", "5%", "2%", "1%"])
    left.minorticks_off()
    left.legend(loc="lower left", frameon=False, fontsize=8)
    return figure


def _has(metrics: Mapping[str, float], what: str, size: int, method: str) -> bool:
    return f"{what} after {size} images/{method}" in metrics
