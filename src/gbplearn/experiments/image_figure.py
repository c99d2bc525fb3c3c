"""The figure of one pass over labelled images: learning curves and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report.figures import BLUE, GREEN, GREY, ORANGE

_FEW = 20  # images of a confidence, of whom less cannot tell how often it is right
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
    _calibration(right, kept)
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
    ax.set_xlabel("training images seen, each once")
    ax.set_ylabel("test accuracy (by a forward pass)")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", color="#dddddd", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False)


def _calibration(ax: Axes, kept: Sequence[dict[str, Any]]) -> None:
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
    for run in kept:
        confidence, right, count = np.array(run["calibration"])[:, np.array(run["calibration"][2]) >= _FEW]
        ax.plot(confidence, right, color=BLUE, linewidth=0.8, alpha=0.6)
        ax.scatter(confidence, right, s=4 + 100 * count / count.sum(), color=BLUE, alpha=0.6, linewidth=0)
    ax.set_xlabel("probability of the predicted class (by messages)")
    ax.set_ylabel("how often it is right")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, 1.02)
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(color="#dddddd", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(f"calibration; dots of {_FEW} images or more, by share", fontsize=9)
