"""The figure of one pass over labelled images: learning curves and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...show.figures import BLUE, GREEN, GREY, ORANGE
from ..report.classifier import draw_calibration

_LINES = {
    "forward": ("GBP", BLUE, "-"),
    "adam": ("Adam", ORANGE, "-"),
    "adam cosine": ("Adam, falling step", ORANGE, "--"),
    "kalman": ("diagonal Kalman filter", GREEN, "-"),
    "linear": ("linear classifier", GREY, "-"),
}


def draw_stream(kept: Sequence[dict[str, Any]]) -> Figure:
    """What each seed has kept: `curves`, points of each way of learning, and `calibration` of GBP."""
    figure = Figure(figsize=(10.2, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _learning(left, kept)
    draw_calibration(right, [np.array(k["calibration"]) for k in kept])
    return figure


def _learning(ax: Axes, kept: Sequence[dict[str, Any]]) -> None:
    for name, (label, colour, style) in _LINES.items():
        runs = [np.array(k["curves"][name]) for k in kept if name in k["curves"]]
        if not runs:
            continue
        for points in runs if len(runs) > 1 else []:
            ax.plot(points[:, 0], points[:, 1], style, color=colour, linewidth=0.6, alpha=0.4)
        mean = np.mean(runs, 0)
        ax.plot(mean[:, 0], mean[:, 1], style, color=colour, linewidth=2, label=label)
    ax.set_xscale("log")
    ax.set_xlabel("training images, each used once")
    ax.set_ylabel("test accuracy (by a forward pass)")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", color="#dddddd", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False)
