"""The pictures of the demo."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...show.figures import BLUE, GREEN, GREY, ORANGE
from ..report.classifier import label_curves
from .classify import Classified
from .fill_in import Filled


def draw_curves(c: Classified) -> Figure:
    """Test accuracy after each batch."""
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    ax = figure.subplots()
    images, found = c.stream.images_used, c.metrics()
    for curve, colour, style, label in (
        (c.curve, BLUE, "-", "GBP, all labels"),
        (c.half_curve, GREEN, "-", "GBP, half of the labels"),
        (c.adam_curve, ORANGE, "--", "Adam, all labels"),
        (c.adam_half_curve, GREY, "--", "Adam, half of the labels"),
    ):
        ax.plot(images, curve, style, color=colour, linewidth=1.8, label=f"{label}: {curve[-1]:.1%}")
    for labels, colour in (("all labels", BLUE), ("half of the labels", GREEN)):
        accuracy = found[f"{labels}/messages"]
        ax.plot(
            images[-1],
            accuracy,
            "o",
            color=colour,
            markersize=7,
            clip_on=False,
            zorder=3,
            label=f"GBP, {labels}, at the end by messages: {accuracy:.1%}",
        )
    least = min(curve.min() for curve in (c.curve, c.half_curve, c.adam_curve, c.adam_half_curve))
    ax.set_ylim(np.floor(10 * least) / 10, 1)
    label_curves(ax)
    ax.set_title("Each image used once; curves of GBP by a forward pass of the posterior means", fontsize=10)
    return figure


def draw_filled(f: Filled) -> Figure:
    """One test digit of each class: what was observed, what was filled in, how sure it is, and the truth."""
    chosen = f.one_of_each()
    figure = Figure(figsize=(9.6, 4.3), layout="constrained")
    axes = figure.subplots(4, len(chosen), squeeze=False)
    hidden = ~f.observed[..., 0]
    column = int(np.flatnonzero(hidden.any(0))[0]) - 0.5
    size = hidden.shape
    span = [float(edge(f.std[:, ~f.observed])) for edge in (np.min, np.max)]
    shades = None
    for j, i in enumerate(chosen):
        image = np.ma.masked_where(hidden, f.images[i, ..., 0])
        grey = {"cmap": "gray", "vmin": 0, "vmax": 1}
        axes[0, j].imshow(image, **grey)
        axes[0, j].add_patch(
            Rectangle(
                (column, -0.5),
                size[1] - 0.5 - column,
                size[0],
                facecolor="#cfe3f2",
                edgecolor="white",
                hatch="///",
                lw=0,
            )
        )
        axes[1, j].imshow(f.mean[i, ..., 0], **grey)
        std = np.ma.masked_where(~hidden, f.std[i, ..., 0])
        shades = axes[2, j].imshow(std, cmap="viridis", vmin=span[0], vmax=span[1])
        axes[3, j].imshow(f.images[i, ..., 0], **grey)
        for ax in axes[1:, j]:
            ax.axvline(column, color=ORANGE, linewidth=1)
    for ax, title in zip(axes[:, 0], ("observed", "filled in", "standard\ndeviation", "truth")):
        ax.set_ylabel(title, rotation=0, ha="right", va="center")
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    if shades is not None:
        figure.colorbar(shades, ax=axes[2].tolist(), aspect=6)
    return figure
