"""Plots of results and posteriors by matplotlib, which is imported when the first one is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.vector import Belief

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..engine.result import Result, Trace

_MOST_LINES, _MOST_FILTERS, _MOST_POINTS = 12, 16, 2000
_FEW = 30  # values that are shown one by one
_STYLES = ("-", "--", ":", "-.")


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('plots need matplotlib: pip install "gbplearn[figures]"') from None
    return Figure(figsize=(width, height), layout="constrained")


def plot_result(result: Result) -> Figure:
    """Residual of each group, and energy of each group and of the priors, over the iterations."""
    return plot_trace(result.trace, f"{result.status} after {result.iterations} iterations")


def plot_trace(trace: Trace, title: str) -> Figure:
    """The same of a trace."""
    figure = _figure(9.0, 3.6)
    from matplotlib.ticker import MaxNLocator

    from .figures import BLUE, GREEN, GREY, ORANGE

    left, right = figure.subplots(1, 2)
    steps = np.arange(1, len(trace.residual) + 1)
    styles = {}  # a group has the same colour and line left and right
    for axes, lines, together, what in (
        (left, list(trace.residuals.items()), np.max, "largest change of a belief"),
        (right, [*trace.energy.items(), ("priors", trace.prior_energy)], np.sum, "energy"),
    ):
        for name, values in _largest(lines, together):
            number, colours = len(styles), (BLUE, ORANGE, GREEN, GREY)
            colour, style = styles.setdefault(name, (colours[number % 4], _STYLES[number // 4 % 4]))
            axes.plot(steps, _shown(values), color=colour, linestyle=style, label=f" {name}")  # " _x" is not hidden
        axes.set_yscale("log")
        axes.set_title(what, fontsize=10)
        if lines:
            legend = axes.legend(fontsize=8, ncols=1 + (len(lines) > 6))
            for text in legend.get_texts():
                text.set_parse_math(False)  # a name may hold dollars
        axes.set_xlabel("iteration")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title, fontsize=11, parse_math=False)
    return figure


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _shown(values: np.ndarray) -> np.ndarray:
    """What a log axis can show: a residual or an energy of 0 is a gap."""
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _largest(lines: list[tuple[str, np.ndarray]], together: Callable[..., Any]) -> list[tuple[str, np.ndarray]]:
    """At most as many lines as one plot can show; the smaller ones as one, their sum or the largest of them."""
    if len(lines) <= _MOST_LINES:
        return lines
    ranked = sorted(lines, key=lambda named: -float(np.nan_to_num(named[1]).max(initial=0.0)))
    kept, rest = ranked[: _MOST_LINES - 1], ranked[_MOST_LINES - 1 :]
    return [*kept, (f"{len(rest)} others", together([values for _, values in rest], axis=0))]


def plot_beliefs(beliefs: Mapping[str, Belief]) -> Figure:
    """Mean and standard deviation of each: two-dimensional filters as images, the rest in order."""
    if not beliefs:
        raise ValueError("there are no parameters to plot")
    figure = _figure(9.0, 2.6 * len(beliefs))
    figure.set_layout_engine("constrained", h_pad=0.1)
    rows = figure.subplots(len(beliefs), 2, squeeze=False)
    for (left, right), (name, belief) in zip(rows, beliefs.items()):
        mean, std = np.asarray(belief.mean), np.asarray(belief.std)
        if mean.ndim == 4 and min(mean.shape[:2]) > 1:
            _filters(left, right, name, mean, std)
        else:
            _sorted(left, right, name, mean.ravel(), std.ravel())
    return figure


def _filters(left: Axes, right: Axes, name: str, mean: np.ndarray, std: np.ndarray) -> None:
    total = math.prod(mean.shape[2:])
    title = f"{name}: {total} filters" if total <= _MOST_FILTERS else f"{name}: {_MOST_FILTERS} of {total} filters"
    limit = float(np.abs(mean).max()) or 1.0
    options: list[dict[str, Any]] = [{"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}, {"cmap": "viridis"}]
    for axes, values, what, how in zip((left, right), (mean, std), ("mean", "standard deviation"), options):
        picture = axes.imshow(_side_by_side(values), interpolation="nearest", **how)
        axes.figure.colorbar(picture, ax=axes)
        axes.set_axis_off()
        axes.set_title(f"{title}, {what}", fontsize=10, parse_math=False)


def _side_by_side(filters: np.ndarray) -> np.ndarray:
    """The first filters as one picture, four in a row, with gaps."""
    tall, wide = filters.shape[:2]
    several = _finite(filters.reshape(tall, wide, -1)[:, :, :_MOST_FILTERS].astype(float))
    columns = min(4, several.shape[2])
    out = np.full((-(-several.shape[2] // columns) * (tall + 1) - 1, columns * (wide + 1) - 1), np.nan)
    for i in range(several.shape[2]):
        row, column = (i // columns) * (tall + 1), (i % columns) * (wide + 1)
        out[row : row + tall, column : column + wide] = several[:, :, i]
    return out


def _sorted(left: Axes, right: Axes, name: str, mean: np.ndarray, std: np.ndarray) -> None:
    from matplotlib.ticker import MaxNLocator

    from .figures import BLUE, ORANGE

    order = np.argsort(mean, kind="stable")
    shown = np.unique(np.linspace(0, len(order) - 1, min(len(order), _MOST_POINTS)).astype(int))
    centre, spread = mean[order][shown], _finite(std[order][shown])
    known = std[np.isfinite(std)]
    if len(shown) <= _FEW:
        left.errorbar(shown + 1, centre, spread, color=BLUE, fmt="o", markersize=3, capsize=2)
        right.bar(shown + 1, spread, color=ORANGE)
    else:
        left.fill_between(shown + 1, centre - spread, centre + spread, color=BLUE, alpha=0.25, linewidth=0)
        left.plot(shown + 1, centre, color=BLUE)
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        # Where all are alike a histogram would magnify rounding.
        ends = (low, high) if high - low > 1e-3 * high else (0.9 * low, 1.1 * low + 1e-12)
        right.hist(known, bins=30, range=ends, color=ORANGE)
    unknown = "" if len(known) == len(std) else f" ({len(std) - len(known)} unknown)"
    left.set_title(f"{name}: mean ± standard deviation, sorted", fontsize=10, parse_math=False)
    right.set_title(f"{name}: standard deviations{unknown}", fontsize=10, parse_math=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        if axes is left or len(shown) <= _FEW:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # numbers of parameters
