"""The page that `gbplearn denoise` writes: before and after, how messages came to rest, what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...show.figures import ORANGE, picture
from ...show.page import Section, write_page
from ...show.plots import plot_trace
from ..report.inside import cost_section, messages_section
from ..report.layer_cost import group_costs
from ..report.record import environment, how_it_was_run
from .best import Denoised
from .cleaned import Cleaned
from .denoiser import LAYERED, MARGIN, TILE
from .pictures import size_of

_CROP = 48  # pixels of the part that is shown larger, at most


def write_report(target: Path, cleaned: Cleaned, settings: Mapping[str, Any], cost: Mapping[str, Any]) -> Path:
    """Write `NAME.report.html` beside the target, and nothing else.

    **Arguments:**

    - `cost`: of the work, as `Clock.cost`.

    **Returns:** its path.
    """
    given, found, truth = cleaned.first
    count = len(cleaned.corrupt)
    words = "The first frame" if count > 1 else "The image"
    shown = f"{words}: noisy, cleaned" + (", the truth" if truth is not None else "") + "; " + _below(found.corrupt)
    sections = [
        Section("In short", "", _rows(cleaned, settings)),
        Section(
            "Before and after",
            "",
            pictures=[picture(draw_denoised(given, found, truth), "denoised", shown, None)],
            shrink=True,
        ),
    ]
    if found.trace is not None:
        large = max(given.shape[:2]) > TILE + 2 * MARGIN
        where = f"{words[0].lower()}{words[1:]}{', its first tile' if large else ''}"
        figure = plot_trace(found.trace, f"{where}, {len(found.trace.residual)} iterations")
        sections.append(messages_section(figure, "", None))
    how = LAYERED.get(settings["model"])
    costs = group_costs(
        cleaned.graph, damping=0.0 if how is None else how.damping, schedule=None if how is None else how.schedule
    )
    sections.append(cost_section(costs, "one frame (of a large one: a tile)"))
    results = {**cost, "environment": environment(cost["commit"])}
    lead = f"{count} frames" if count > 1 else "One image"
    path = target.with_name(f"{target.name if target.is_dir() else target.stem}.report.html")
    lead += f" of {size_of(given.shape)} pixels, cleaned in {results['seconds']:.0f} s by messages"
    title = f"gbplearn denoise: {settings['input']}"
    return write_page(path, title, f"{lead}.", [*sections, how_it_was_run(settings, results)])


def _below(corrupt: np.ndarray) -> str:
    probability = "" if np.isnan(corrupt).any() else "the probability that a pixel held nonsense, and "
    return f"a part of them larger (orange frame); {probability}standard deviations of what was found."


def _rows(cleaned: Cleaned, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("what", "value"), ("model", str(settings["model"])), ("frames", f"{len(cleaned.corrupt):,}")]
    if np.isnan(cleaned.first[1].std).all():
        rows.append(("the first frame", "inference ended badly: it is left as it was"))
    if not np.isnan(cleaned.corrupt[0]):
        rows.append(("pixels that held nonsense or were missing", f"{np.mean(cleaned.corrupt):.1%}"))
    if cleaned.scores:
        before, after, alike = cleaned.mean_scores()
        rows += [
            ("PSNR of the noisy frames", f"{before:.2f} dB"),
            ("PSNR of the cleaned frames, means by messages", f"{after:.2f} dB"),
            ("SSIM of the cleaned frames", f"{alike:.4f}"),
        ]
    rows += [("factors of a graph", f"{sum(f.factors for f in cleaned.graph.factors.values()):,}")]
    return rows


def draw_denoised(given: np.ndarray, found: Denoised, truth: np.ndarray | None) -> Figure:
    """Frames, a part of them larger, and what is believed of the pixels."""
    images = {"noisy": given, "cleaned": found.mean} | ({} if truth is None else {"truth": truth})
    spread = found.std.mean(-1)
    beliefs = {} if np.isnan(found.corrupt).any() else {"held nonsense (probability)": (found.corrupt, 1.0)}
    if np.isfinite(spread).any():
        beliefs["standard deviation"] = (spread, max(float(np.nanpercentile(spread, 99.5)), 1e-3))
    height, width = given.shape[:2]
    top, left = (max(0, (n - _CROP) // 2) for n in (height, width))
    part = np.s_[top : top + _CROP, left : left + _CROP]
    columns = max(len(images), len(beliefs))
    tall = 9.6 / columns * min(1.6, max(0.5, height / width))
    figure = Figure(figsize=(9.6, 2 * tall + 9.6 / columns + 0.9), layout="constrained")
    axes = figure.subplots(3, columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for (upper, lower), (name, image) in zip(axes[:2].T, images.items()):
        for ax, shown in ((upper, image), (lower, image[part])):
            grey = shown[..., 0] if shown.shape[-1] == 1 else shown
            ax.imshow(np.clip(grey, 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        size = image[part].shape[:2]
        upper.add_patch(Rectangle((left - 0.5, top - 0.5), size[1], size[0], fill=False, edgecolor=ORANGE))
        upper.set_title(name, fontsize=10)
        lower.set_title(f"{name}, a part", fontsize=10)
    for ax, (name, (values, most)) in zip(axes[2], beliefs.items()):
        shades = ax.imshow(values, cmap="magma", vmin=0, vmax=most, interpolation="nearest")
        figure.colorbar(shades, ax=ax, shrink=0.8)
        ax.set_title(name, fontsize=10)
    return figure
