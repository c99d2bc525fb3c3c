"""The pictures of the demo."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import EllipseCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..report.figures import BLUE, GREEN, GREY, ORANGE, PALE
from .denoise import Denoised, psnr
from .poses import Fitted, position_rmse


def draw_denoised(d: Denoised) -> Figure:
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


def draw_fitted(f: Fitted) -> Figure:
    """True path, odometry and estimate, with ellipses of two standard deviations and the loop closures."""
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    ax = figure.subplots()
    truth, start, mean = f.drive.path, f.drive.start, f.mean
    before, after = position_rmse(start, truth), position_rmse(mean, truth)
    for wrong, style, colour, label in (
        (False, "-", GREEN, "loop closure"),
        (True, "--", ORANGE, "wrong loop closure"),
    ):
        for number, (i, j) in enumerate(f.drive.pairs[f.drive.wrong == wrong]):
            line = ax.plot(*mean[[i, j], :2].T, style, color=colour, linewidth=1.4, zorder=2)[0]
            line.set_label(label if number == 0 else None)
    ax.plot(*truth[:, :2].T, color=PALE, linewidth=6, label="true path", zorder=0)
    ax.plot(*start[:, :2].T, ":", color=GREY, linewidth=1.5, label=f"odometry: {before:.2f} m RMSE", zorder=1)
    ax.plot(*mean[:, :2].T, ".-", color=BLUE, linewidth=1.2, markersize=4, label=f"GBP: {after:.2f} m RMSE", zorder=4)

    every = max(1, len(mean) // 30)
    values, vectors = np.linalg.eigh(f.covariance[::every, :2, :2])
    widths = 4 * np.sqrt(np.maximum(values, 0))  # from minus to plus two standard deviations
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    ax.add_collection(
        EllipseCollection(
            widths[:, 1],
            widths[:, 0],
            angles,
            units="xy",
            offsets=mean[::every, :2],
            offset_transform=ax.transData,
            facecolor=BLUE,
            edgecolor="none",
            alpha=0.3,
            zorder=1,
        )
    )
    handles, labels = ax.get_legend_handles_labels()
    handles.append(Patch(facecolor=BLUE, alpha=0.3))
    labels.append("GBP: 2 standard deviations")
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    ax.set_aspect("equal")
    ax.set_xlabel("x in metres")
    ax.set_ylabel("y in metres")
    ax.spines[["top", "right"]].set_visible(False)
    return figure
