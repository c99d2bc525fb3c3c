"""Exclusive or: four points, eight hidden units (the paper's Section 4.1, Fig. 2b and Appendix C)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...engine.infer import infer
from ...engine.schedules import Order
from ...layers.dense import Dense
from ...layers.softmax import SoftmaxObservation
from ...network.sequential import Sequential
from ...show.figures import BLUE, GREY, ORANGE
from ...show.page import Section
from ..report.inside import result_sections
from .experiment import READ_OUT, Experiment, SeedRun

POINTS = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
CLASSES = np.array([0, 1, 0, 1])
_EXTENT, _SIDE = 1.2, 20
_ORDER = Order("dense", "dense_1", "softmax", "dense_1", "dense")  # the authors' layer 0 is the input
_CLEAR = 0.3  # grid points further than this from both axes count as clear


def grid() -> np.ndarray:
    """The 20 x 20 test points."""
    line = np.linspace(-_EXTENT, _EXTENT, _SIDE)
    return np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)


@dataclasses.dataclass(frozen=True)
class Xor(Experiment):
    """The paper's settings; biases and the size of the first weights are those of the authors' runs."""

    hidden: int = 8
    weight_prior: float = 3.0
    weight_init: float = 0.1
    bias_prior: float = 1.0
    hidden_prior: float = 5.0
    logit_prior: float = 2.0
    sigma: float = 0.1  # of both dense layers
    class_sigma: float = 0.1
    damping: float = 0.7
    iterations: int = 600
    test_iterations: int = 300

    name: ClassVar[str] = "xor"
    title: ClassVar[str] = "Exclusive or"
    seeds: ClassVar[int] = 20
    read_out: ClassVar[dict[str, str]] = READ_OUT
    published: ClassVar[dict[str, str]] = {
        "grid right/fixed": "0.96 - 0.97 (the authors' code, 8 seeds)",
        "points right/fixed": "1 (the authors' code, 8 seeds)",
        "probability of the right class/training": "0.950 (the authors' code)",
    }
    caption: ClassVar[str] = (
        "Left: the network as a factor graph, circles are variables and squares factors. Right: probability of class 1 "
        "over the plane, with the four training points."
    )

    def network(self) -> Sequential:
        """Two dense layers and a class observation."""
        dense = partial(
            Dense,
            sigma=self.sigma,
            weight_prior=self.weight_prior,
            bias_prior=self.bias_prior,
            weight_init=self.weight_init,
        )
        return Sequential(
            dense(self.hidden, activation="leaky_relu", prior=self.hidden_prior),
            dense(2, prior=self.logit_prior),
            SoftmaxObservation(sigma=self.class_sigma),
            input_shape=(2,),
        )

    def run_seed(self, seed: int) -> SeedRun:
        """Train on the four points; ask for the four points and the grid."""
        net = self.network()
        # The paper's protocol: a number of iterations, whatever the residual; leaky units at their kink never rest.
        fixed_count = {"damping": self.damping, "tolerance": 0.0, "guard": False}
        posterior = infer(
            net.graph(POINTS, CLASSES, seed=seed),
            iterations=self.iterations,
            schedule=_ORDER,
            seed=seed,
            **fixed_count,
        )
        queries = np.concatenate([POINTS, grid()])
        truth = np.concatenate([CLASSES, grid()[:, 0] * grid()[:, 1] < 0])
        clear = np.abs(grid()).min(1) > _CLEAR
        metrics, probability, back = {}, np.zeros(0), Order("dense", "dense_1", "dense")
        for how in ("fixed", "random"):
            logits = net.predict(
                queries, posterior, parameters=how, iterations=self.test_iterations, schedule=back, **fixed_count
            )
            _count(metrics, how, np.asarray(logits.mean), truth, clear)
            if how == "fixed":
                probability = np.asarray(net.probabilities(logits))[len(POINTS) :, 1]
        parameters = {name: belief for name, belief in posterior.items() if "/" in name}
        _count(metrics, "forward", np.asarray(net.forward(queries, parameters)[net.output]), truth, clear)
        right = np.asarray(jax.nn.softmax(posterior[net.output].mean))[np.arange(4), CLASSES]
        metrics["probability of the right class/training"] = float(right.mean())
        return SeedRun(seed, metrics, (probability.reshape(_SIDE, _SIDE), posterior))

    def inside(self, runs: Sequence[SeedRun], folder: Path) -> list[Section]:
        """The first seed's."""
        return result_sections(
            runs[0].kept[1], f"four points, seed {runs[0].seed}", folder, damping=self.damping, schedule=_ORDER
        )

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """The network beside the map of the first seed."""
        figure = Figure(figsize=(9.2, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1, 1.15)})
        draw_network(left, (2, self.hidden, 2), ("inputs", "hidden units", "logits"))
        step = 2 * _EXTENT / (_SIDE - 1)
        edge = _EXTENT + step / 2
        shades = right.imshow(
            runs[0].kept[0].T, origin="lower", extent=(-edge, edge, -edge, edge), cmap="RdBu", vmin=0, vmax=1
        )
        for number, (marker, colour) in enumerate((("o", ORANGE), ("s", BLUE))):
            shown = POINTS[number == CLASSES]
            right.scatter(
                *shown.T, marker=marker, s=80, color=colour, edgecolor="white", label=f"class {number}", zorder=3
            )
        right.set_xlabel("$x_1$")
        right.set_ylabel("$x_2$")
        right.set_title(f"probability of class 1 (seed {runs[0].seed})")
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
        figure.colorbar(shades, ax=right, shrink=0.85)
        return figure


def _count(metrics: dict[str, float], how: str, logits: np.ndarray, truth: np.ndarray, clear: np.ndarray) -> None:
    right = logits.argmax(1) == truth
    metrics[f"points right/{how}"] = float(right[: len(POINTS)].all())
    metrics[f"clear grid right/{how}"] = float(right[len(POINTS) :][clear].mean())
    metrics[f"grid right/{how}"] = float(right[len(POINTS) :].mean())


def draw_network(ax: Axes, sizes: Sequence[int], names: Sequence[str]) -> None:
    """Layers of variables (circles), each output with its factor (square), and the class observation."""
    places = [
        np.stack([np.full(n, 2.0 * i), (np.arange(n) - (n - 1) / 2) * 6 / max(sizes)], 1) for i, n in enumerate(sizes)
    ]
    for before, after in pairwise(places):
        for end in after:
            factor = (after[0, 0] - 0.7, end[1])
            for start in before:
                ax.plot((start[0], factor[0]), (start[1], factor[1]), color=GREY, linewidth=0.4, zorder=1)
            ax.plot((factor[0], end[0]), (factor[1], end[1]), color=GREY, linewidth=0.8, zorder=1)
            ax.scatter(*factor, marker="s", s=36, color=GREY, zorder=2)
    last = places[-1]
    for end in last:
        ax.plot((end[0], end[0] + 0.9), (end[1], 0), color=GREY, linewidth=0.8, zorder=1)
    ax.scatter(last[0, 0] + 0.9, 0, marker="s", s=60, color=ORANGE, zorder=2)
    ax.annotate("class", (last[0, 0] + 0.9, 0), (0, -16), textcoords="offset points", ha="center", fontsize=9)
    for place, name in zip(places, names):
        ax.scatter(*place.T, s=130, facecolor="white", edgecolor=BLUE, linewidth=1.6, zorder=3)
        ax.annotate(
            name, (place[0, 0], place[:, 1].min()), (0, -20), textcoords="offset points", ha="center", fontsize=9
        )
    ax.set_xlim(-0.6, 2 * len(sizes) - 0.5)
    ax.set_ylim(-4.2, 3.6)
    ax.set_axis_off()
    ax.set_title("weights and biases are variables too")
