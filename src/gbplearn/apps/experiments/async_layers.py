"""Layers in random order against sweeps, over the whole of MNIST: the paper's Section 4.3.1.

A sweep visits the four factor groups of the network six times an iteration, forth and back; the random order draws a
group for each visit, four an iteration. Of every batch the sweeps say how many iterations it takes; the random order
then gets as many iterations, or as many visits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ...core.progress import progress
from ...engine.schedules import RandomLayers, Sweep
from ...learner.learner import Learner
from ...show.figures import BLUE, GREEN, ORANGE
from .. import scores
from ..data.images import Images, load_images
from ..learning_curve import in_portions, points_of_curve
from ..report.record import Clock
from .experiment import READ_OUT, SeedRun, rows_by_read_out, total_cost
from .image_settings import BATCH, ITERATIONS, network
from .parts import InParts, Parts

SWEEP, ITERATION, VISIT = "sweeps", "random, equal iterations", "random, equal visits"
_COLOURS = {SWEEP: BLUE, ITERATION: ORANGE, VISIT: GREEN}


@dataclasses.dataclass(frozen=True)
class AsyncLayers(InParts):
    """The settings of the experiment mnist.

    **Arguments:**

    - `examples`: how many training images; None for all.
    - `data_dir`: folder of the data sets, as `load_images`; no setting.
    """

    examples: int | None = None
    data_dir: Path | None = None

    name: ClassVar[str] = "async"
    data: ClassVar[str] = "mnist"
    title: ClassVar[str] = "Layers in random order"
    seeds: ClassVar[int] = 3
    read_out: ClassVar[dict[str, str]] = {how: f"{READ_OUT['fixed']}; learnt by {how}" for how in _COLOURS}
    published: ClassVar[dict[str, str]] = {
        f"test accuracy/{SWEEP}": "0.9816 ± 0.0003 by sweeps, 0.9811 ± 0.0004 by random order (5 and 10 seeds)"
    }
    caption: ClassVar[str] = (
        "Test accuracy (by a forward pass) against training images used: sweeps, and layers in random order with as "
        "many iterations or as many visits of factor groups. Mean over seeds, shaded: one standard error."
    )

    def settings(self) -> dict[str, Any]:
        """With the network."""
        return {"examples": self.examples, "iterations": ITERATIONS, "network": repr(network("convolutional"))}

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Every schedule is a part of its own."""
        images = load_images(self.data, self.data_dir).centred()
        order = np.random.default_rng(seed).permutation(len(images.train_y))[: self.examples]
        before = True
        metrics, curves, costs, iterations = {}, {}, [], None
        for how in _COLOURS:
            name = f"seed-{seed}-{how.replace(', ', '-').replace(' ', '-')}"
            parts = Parts(folder, {**self.settings(), "iterations of sweeps": iterations})
            before &= parts.has(name)
            make = partial(self._learn, how, images, order, seed, iterations)
            held = parts.get(name, make, "metrics", "curve", "iterations", "cost")
            if how == SWEEP:
                iterations = held["iterations"]
            metrics |= held["metrics"]
            curves[how] = held["curve"]
            costs.append(held["cost"])
        return SeedRun(seed, metrics, curves, before=before, cost=total_cost(costs))

    @staticmethod
    def _learn(how: str, images: Images, order: np.ndarray, seed: int, given: list[int] | None) -> dict[str, Any]:
        clock = Clock()
        schedule = None if how == SWEEP else RandomLayers()
        shape = images.train_x.shape[1:]
        learner = Learner(
            network("convolutional"), shape, iterations=ITERATIONS, schedule=schedule, strained="learn", seed=seed
        )
        groups = tuple(place.name for place in learner.net.places)
        sweep = len(Sweep().order(groups))  # visits of an iteration; the random order has one for each group
        batches = -(-len(order) // BATCH)
        read_outs, curve, iterations = set(points_of_curve(batches)), [], []
        for number in progress(range(batches), f"{how}, seed {seed}"):
            if given is not None:  # so many, and no fewer
                more = 1 if how == ITERATION else sweep / len(groups)
                count = round(more * given[number])
                learner.options |= {"iterations": count, "tolerance": 0.0}
            rows = order[number * BATCH : (number + 1) * BATCH]
            iterations.append(learner.update(images.train_x[rows], images.train_y[rows]).iterations)
            if number + 1 in read_outs:
                right = scores.accuracy(in_portions(learner.forward, images.test_x), images.test_y)
                curve.append((number * BATCH + len(rows), right))
        p = in_portions(learner.predict_proba, images.test_x)
        visits = sweep if how == SWEEP else len(groups)
        metrics = {
            f"test accuracy/{how}": scores.accuracy(p, images.test_y),
            f"negative log likelihood/{how}": scores.negative_log_likelihood(p, images.test_y),
            f"iterations a batch/{how}": float(np.mean(iterations)),
            f"visits a batch/{how}": float(visits * np.mean(iterations)),
            f"refused batches/{how}": float(learner.failures),
        }
        return {"metrics": metrics, "curve": curve, "iterations": iterations, "cost": clock.cost()}

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A column a schedule."""
        return rows_by_read_out(results)

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Learning curves."""
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        ax = figure.subplots()
        for how, colour in _COLOURS.items():
            curves = np.array([run.kept[how] for run in runs])
            images, mean = curves[0, :, 0], curves[:, :, 1].mean(0)
            if len(runs) > 1:
                error = curves[:, :, 1].std(0, ddof=1) / np.sqrt(len(runs))
                ax.fill_between(images, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
            ax.plot(images, mean, color=colour, label=how)
        ax.set_xscale("log")
        ax.set_xlabel("training images, each used once")
        ax.set_ylabel("test accuracy (by a forward pass)")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        ax.grid(axis="y", color="#dddddd", linewidth=0.7)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
        return figure
