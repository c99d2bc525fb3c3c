"""How far the standard deviations of loopy belief propagation are off: trees, loops, grids, regressions, pose graphs.

Every graph is linear, so that a dense solve gives the posterior. On trees belief propagation does too. On loops its
means are right where it converges; its variances are those of a tree that never closes a loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...engine.infer import infer
from ...show.figures import BLUE, GREEN, GREY, ORANGE, PALE
from . import variance_graphs as graphs
from .experiment import Experiment, SeedRun

_MANY_ROWS = 10  # rows for each feature, from which on the limit of many rows is shown beside what was measured
_COLOURS = {"per-edge": BLUE, "pooled": ORANGE, "block": GREEN}
_LEGEND = {"per-edge": "scalars, per edge", "pooled": "scalars, pooled", "block": "blocks"}


class Case(NamedTuple):
    """A kind of graph, and how messages are kept."""

    kind: str
    name: str
    how: str
    make: Callable[[int], graphs.Solved]  # by the seed
    theory: float | None = None  # the ratio where a formula gives it


class Compared(NamedTuple):
    """Messages against the dense solve."""

    ratio: np.ndarray  # of the standard deviations
    error: float  # the largest of a mean, in right standard deviations
    guarded: bool  # whether the guard was needed
    outputs: np.ndarray | None = None  # ratios of the standard deviations of what a regression predicts


def loop_ratio(size: int, smoothness: float) -> float:
    """`sqrt(tanh(size kappa / 2))`, where `2 cosh kappa = 2 + 1 / smoothness`.

    Around the loop the covariance is that of an endless chain, `exp(-kappa |i - j|)`, summed over all windings; belief
    propagation knows the chain alone.
    """
    kappa = np.arccosh(1 + 0.5 / smoothness)
    return float(np.sqrt(np.tanh(0.5 * size * kappa)))


def grid_ratio(smoothness: float, points: int = 1024) -> float:
    """On an endless square grid: belief propagation's fixed point, a tree of four branches, over the integral

    `variance = mean over a, b of 1 / (1 + r (4 - 2 cos a - 2 cos b))`.
    """
    r = smoothness
    # A message's precision m = r c / (r + c), of a cavity c = 1 + 3 m: 3 m² + (1 - 2 r) m - r = 0.
    m = (2 * r - 1 + np.sqrt((2 * r - 1) ** 2 + 12 * r)) / 6
    wave = 2 - 2 * np.cos(2 * np.pi * (np.arange(points) + 0.5) / points)
    exact = np.mean(1 / (1 + r * (wave[:, None] + wave)))
    return float(1 / np.sqrt((1 + 4 * m) * exact))


def regression_ratio(features: int, correlation: float) -> float:
    """`1 / sqrt(VIF)` with the variance inflation factor `VIF = (Sigma^-1)_jj`: the limit of many rows."""
    sigma = (1 - correlation) * np.eye(features) + correlation
    return float(np.linalg.inv(sigma)[0, 0] ** -0.5)


@dataclasses.dataclass(frozen=True)
class Variances(Experiment):
    """Seeds draw the trees, what is measured, the features, and where loops close.

    **Arguments:**

    - `tree`, `loops`, `grid`: numbers of variables of trees and single loops, side of the grid.
    - `smoothness`: precision of "neighbours are alike" over that of a measurement; `loop_smoothness` that of loops.
    - `features`, `rows`, `correlations`, `noise`: of regressions.
    - `poses`, `rounds`, `closures`: of pose graphs.
    - `iterations`, `tolerance`: as `gbp.infer`.
    """

    tree: int = 200
    loops: tuple[int, ...] = (4, 10, 30)
    loop_smoothness: float = 10.0
    grid: int = 24
    smoothness: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)
    features: int = 20
    rows_of_data: tuple[int, ...] = (4, 20, 100, 400)
    correlations: tuple[float, ...] = (0.0, 0.5, 0.9)
    noise: float = 0.5
    poses: int = 120
    rounds: int = 4
    closures: tuple[int, ...] = (0, 10, 40, 160)
    iterations: int = 20000
    tolerance: float = 3e-5

    name: ClassVar[str] = "variances"
    title: ClassVar[str] = "Standard deviations of loopy belief propagation"
    seeds: ClassVar[int] = 5
    read_out: ClassVar[dict[str, str]] = {
        "per-edge": "beliefs by GBP, scalar variables, a message for every edge",
        "pooled": "the same with pooled messages",
        "block": "beliefs by GBP, block variables: the three numbers of a pose, or all weights of a regression",
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "Standard deviations of belief propagation over those of a dense solve: the median over the variables (dots) "
        "and from the smallest to the largest (bars), over all seeds. Left of 1 it is too sure of itself. Ticks: what "
        "theory says of endless grids, of single loops, and of regressions with many rows."
    )

    def cases(self) -> Iterator[Case]:
        """All graphs, in the order of the table."""
        for r in (self.smoothness[0], self.smoothness[-1]):
            name = f"tree of {self.tree}, smoothness {r:g}"
            yield Case("trees", name, "per-edge", partial(_tree, self.tree, r), 1.0)
        for size in self.loops:
            name, r = f"loop of {size}, smoothness {self.loop_smoothness:g}", self.loop_smoothness
            make = partial(graphs.smoothing, graphs.loop_edges(size), size, r)
            yield Case("loops", name, "per-edge", make, loop_ratio(size, r))
        for r in self.smoothness:
            name, size = f"grid {self.grid} x {self.grid}, smoothness {r:g}", self.grid**2
            make = partial(graphs.smoothing, graphs.grid_edges(self.grid), size, r)
            yield Case("grids", name, "per-edge", make, grid_ratio(r))
        for rows in self.rows_of_data:
            for rho in self.correlations:
                name, limit = f"{rows} rows of {self.features} features, correlation {rho:g}", None
                if rows >= _MANY_ROWS * self.features:
                    limit = regression_ratio(self.features, rho)
                for how in ("per-edge", "pooled"):
                    make = partial(graphs.regression, rows, self.features, rho, self.noise, False)
                    yield Case("regressions", name, how, make, limit)
        rows, rho = self.rows_of_data[-1], self.correlations[-1]
        name = f"{rows} rows of {self.features} features, correlation {rho:g}"
        make = partial(graphs.regression, rows, self.features, rho, self.noise, True)
        yield Case("regressions", name, "block", make, 1.0)
        for closures in self.closures:
            for how in ("block", "per-edge"):
                make = partial(graphs.poses, self.poses, self.rounds, closures, how == "block")
                # Poses in a chain are a tree of blocks; as scalars they are not.
                theory = 1.0 if how == "block" and closures == 0 else None
                yield Case("pose graphs", f"{self.poses} poses, {closures} loop closures", how, make, theory)

    def run_seed(self, seed: int) -> SeedRun:
        """Every case by messages and by a dense solve."""
        metrics: dict[str, float] = {}
        for case in self.cases():
            which = f"{case.name}/{case.how}"
            found = self.compare(case, seed)
            metrics[f"median ratio, {which}"] = float(np.median(found.ratio))
            metrics[f"smallest ratio, {which}"] = float(found.ratio.min())
            metrics[f"largest ratio, {which}"] = float(found.ratio.max())
            if found.outputs is not None:
                metrics[f"outputs, {which}"] = float(np.median(found.outputs))
            metrics[f"error of the means, {which}"] = found.error
            metrics[f"guard, {which}"] = float(found.guarded)
            if case.theory is not None:
                metrics[f"theory, {which}"] = case.theory
        return SeedRun(seed, metrics, metrics)

    def compare(self, case: Case, seed: int) -> Compared:
        """The standard deviations of a case beside the exact ones."""
        solved = case.make(seed)
        result = infer(
            solved.graph,
            evidence=solved.evidence,
            messages="pooled" if case.how == "pooled" else "per-edge",
            iterations=self.iterations,
            tolerance=self.tolerance,
        )
        belief = result[solved.variable]
        mean, std = (np.asarray(a, float)[solved.asked].ravel() for a in (belief.mean, belief.std))
        outputs = None
        if solved.fresh is not None and solved.fresh_std is not None:
            covariance = np.asarray(belief.covariance, float)[0] if belief.block else np.diag(std**2)
            variance = np.einsum("ki,ij,kj->k", solved.fresh, covariance, solved.fresh)
            outputs = np.sqrt(variance) / solved.fresh_std
        error = float(np.abs((mean - solved.mean) / solved.std).max())
        return Compared(std / solved.std, error, bool(result.guard), outputs)

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A row a graph and way of messages."""
        metrics = results["metrics"]
        head = (
            "graph",
            "messages",
            "median",
            "smallest",
            "largest",
            "theory",
            "outputs",
            "error of the means, sd",
            "guard",
        )
        rows: list[tuple[str, ...]] = [head]
        for name in metrics:
            what, which = name.split(", ", 1)
            if what != "median ratio":
                continue
            low, high = (metrics[f"{w} ratio, {which}"]["values"] for w in ("smallest", "largest"))
            theory, outputs = (metrics.get(f"{w}, {which}") for w in ("theory", "outputs"))
            helped = metrics[f"guard, {which}"]["values"]
            rows.append(
                (
                    *which.rsplit("/", 1),
                    f"{metrics[name]['mean']:.3f}",
                    f"{min(low):.3f}",
                    f"{max(high):.3f}",
                    *("" if m is None else f"{m['mean']:.3f}" for m in (theory, outputs)),
                    f"{max(metrics[f'error of the means, {which}']['values']):.1g}",
                    f"{sum(helped):.0f} of {len(helped)}" if any(helped) else "",
                )
            )
        return rows

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """A line a case: median, smallest and largest ratio."""
        cases = list(self.cases())
        names = list(dict.fromkeys((c.kind, c.name) for c in cases))
        kinds = list(dict.fromkeys(kind for kind, _ in names))
        place = {name: -i - 0.9 * kinds.index(kind) for i, (kind, name) in enumerate(names)}
        figure = Figure(figsize=(9.2, 0.27 * len(names) + 1.6), layout="constrained")
        ax = figure.subplots()
        ax.axvline(1, color=GREY, linewidth=1)
        for case in cases:
            hows = [c.how for c in cases if c.name == case.name]
            y = place[case.name] - 0.3 * (hows.index(case.how) - (len(hows) - 1) / 2)
            median, low, high = (
                [r.kept[f"{what} ratio, {case.name}/{case.how}"] for r in runs]
                for what in ("median", "smallest", "largest")
            )
            colour = _COLOURS[case.how]
            ax.plot((min(low), max(high)), (y, y), color=colour, linewidth=3, alpha=0.35, solid_capstyle="round")
            ax.plot(np.mean(median), y, "o", color=colour, markersize=4.5)
            if case.theory is not None:
                ax.plot(case.theory, y, "|", color="black", markersize=9, markeredgewidth=1.3)
        ax.set_xscale("log")
        ticks = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.minorticks_off()
        ax.set_yticks(list(place.values()), list(place))
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x", color=PALE, linewidth=0.6)
        ax.set_axisbelow(True)
        ax.set_ylim(min(place.values()) - 0.8, 0.8)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.set_xlabel("standard deviation by messages / by a dense solve")
        for words, side in (("too sure  ", "right"), ("  not sure enough", "left")):
            ax.text(1.0, 1.0, words, ha=side, va="bottom", color=GREY, transform=ax.get_xaxis_transform())
        handles = [
            Line2D([], [], color=c, marker="o", markersize=4.5, label=_LEGEND[how]) for how, c in _COLOURS.items()
        ]
        handles.append(Line2D([], [], color="black", marker="|", linestyle="", markersize=9, label="theory"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        return figure


def _tree(size: int, smoothness: float, seed: int) -> graphs.Solved:
    return graphs.smoothing(graphs.tree_edges(size, seed), size, smoothness, seed)
