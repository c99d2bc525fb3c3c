"""Which damping and dropout keep GBP stable: the paper says that both together suffice.

Every pair learns the first 800 images of MNIST, with one damping for all messages and with one of its own for those to
parameters (activations then have 0.5); without the guard, to see what messages do, and with it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ...core.progress import progress
from ...engine.damping import Damping
from ...learner.learner import Learner
from .. import scores
from ..data.images import Images, load_images
from ..learning_curve import in_portions
from ..report.record import Clock
from .experiment import READ_OUT, SeedRun, total_cost
from .image_settings import BATCH, ITERATIONS, network
from .parts import InParts, Parts

KINDS = {"one": "one damping for all", "separate": "separate dampings"}
_ACTIVATIONS = 0.5


@dataclasses.dataclass(frozen=True)
class Stability(InParts):
    """The network of the experiment mnist; a batch has so many iterations unless it comes to rest before.

    **Arguments:**

    - `examples`, `tested`: numbers of training and of test images.
    - `iterations`: as the experiment mnist.
    - `dampings`, `dropouts`: what is tried.
    - `data_dir`: folder of the data sets, as `load_images`; no setting.
    """

    examples: int = 800
    tested: int = 2000
    iterations: int = ITERATIONS
    dampings: tuple[float, ...] = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95)
    dropouts: tuple[float, ...] = (0.0, 0.25, 0.5)
    data_dir: Path | None = None

    name: ClassVar[str] = "stability"
    data: ClassVar[str] = "mnist"
    title: ClassVar[str] = "Damping, dropout and stability"
    seeds: ClassVar[int] = 1
    read_out: ClassVar[dict[str, str]] = {
        "plain": f"{READ_OUT['fixed']}; learnt without the guard",
        "guarded": f"{READ_OUT['fixed']}; learnt with the guard",
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "Accuracy on 2,000 test images by damping (upwards) and dropout (to the right). Left: one damping for all "
        "messages; right: one for those to parameters, 0.5 for those to activations. Above without the guard, and how "
        "many batches ended in NaN or unsound beliefs and were refused; below with it, and at how many "
        "batches it stepped in."
    )

    def settings(self) -> dict[str, Any]:
        """With the network."""
        return {**super().settings(), "network": repr(network("convolutional"))}

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Every pair of damping and dropout is a part of its own."""
        images = load_images(self.data, self.data_dir).centred()
        parts, before, metrics, costs = Parts(folder, self.settings()), True, {}, []
        for _, damping, dropout, kind in _all(self.dampings, self.dropouts):
            name = f"seed-{seed}-{kind}-{damping}-{dropout}"
            before &= parts.has(name)
            make = partial(self._measure, images, kind, damping, dropout, seed)
            held = parts.get(name, make, "metrics", "cost")
            metrics |= held["metrics"]
            costs.append(held["cost"])
        return SeedRun(seed, metrics, metrics, before=before, cost=total_cost(costs))

    def _measure(self, images: Images, kind: str, damping: float, dropout: float, seed: int) -> dict[str, Any]:
        clock, metrics = Clock(), {}
        order = np.random.default_rng(seed).permutation(len(images.train_y))[: self.examples]
        x, y = images.test_x[: self.tested], images.test_y[: self.tested]
        weights = damping if kind == "one" else Damping(parameters=damping, activations=_ACTIVATIONS)
        for how, guard in (("plain", False), ("guarded", True)):
            how_so = {"damping": weights, "dropout": dropout, "iterations": self.iterations, "guard": guard}
            learner = Learner(network("convolutional"), images.train_x.shape[1:], strained="learn", seed=seed, **how_so)
            helped = 0
            label = f"{kind} damping {damping}, dropout {dropout}, {'with' if guard else 'without'} the guard"
            for start in progress(range(0, len(order), BATCH), label):
                rows = order[start : start + BATCH]
                helped += bool(learner.update(images.train_x[rows], images.train_y[rows]).guard)
            logits = in_portions(lambda part, asked=learner: asked.predict(part).mean, x)
            which = _name(kind, damping, dropout)
            metrics[f"test accuracy, {which}/{how}"] = scores.accuracy(logits, y)
            metrics[f"refused batches, {which}/{how}"] = float(learner.failures)
            if guard:
                metrics[f"batches with the guard, {which}/{how}"] = float(helped)
        return {"metrics": metrics, "cost": clock.cost()}

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A row a pair: accuracy without and with the guard, batches that were refused, batches where it stepped in."""
        metrics, chosen = results["metrics"], results["settings"]
        rows = [("damping", "dropout", "without the guard", "refused", "with the guard", "refused", "guard stepped in")]
        for which, damping, dropout, kind in _all(chosen["dampings"], chosen["dropouts"]):

            def mean(what: str, which: str = which) -> float:
                return metrics[what.replace("*", which)]["mean"]

            rows.append(
                (
                    f"{damping:g}" if kind == "one" else f"{damping:g} (activations {_ACTIVATIONS:g})",
                    f"{dropout:g}",
                    f"{100 * mean('test accuracy, */plain'):.1f} %",
                    f"{mean('refused batches, */plain'):.0f}",
                    f"{100 * mean('test accuracy, */guarded'):.1f} %",
                    f"{mean('refused batches, */guarded'):.0f}",
                    f"{mean('batches with the guard, */guarded'):.0f}",
                )
            )
        return rows

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Four maps: without and with the guard, one damping and separate ones."""
        figure = Figure(figsize=(9.0, 9.0), layout="constrained")
        axes = figure.subplots(2, 2)
        more = {"plain": ("refused batches", "refused"), "guarded": ("batches with the guard", "guard")}
        for ax, (how, kind) in zip(axes.flat, [(how, kind) for how in more for kind in KINDS]):
            count, word = more[how]
            grid = np.array(
                [[_at(runs, f"test accuracy, {_name(kind, d, p)}/{how}") for p in self.dropouts] for d in self.dampings]
            )
            ax.imshow(grid, origin="lower", cmap="viridis", vmin=0.1, vmax=1.0, aspect="auto")
            for (i, damping), (j, dropout) in itertools.product(enumerate(self.dampings), enumerate(self.dropouts)):
                times = _at(runs, f"{count}, {_name(kind, damping, dropout)}/{how}")
                words = f"{100 * grid[i, j]:.1f} %" + (f"\n{times:.0f} {word}" if times else "")
                ax.text(j, i, words, ha="center", va="center", color="k" if grid[i, j] > 0.55 else "w", fontsize=9)
            ax.set_xticks(range(len(self.dropouts)), [f"{p:g}" for p in self.dropouts])
            ax.set_yticks(range(len(self.dampings)), [f"{d:g}" for d in self.dampings])
            ax.set_xlabel("dropout")
            ax.set_ylabel("damping" if kind == "one" else "damping of messages to parameters")
            ax.set_title(f"{KINDS[kind]}, {'without' if how == 'plain' else 'with'} the guard", fontsize=10)
        return figure


def _all(dampings: Sequence[float], dropouts: Sequence[float]) -> list[tuple[str, float, float, str]]:
    """In words, then as numbers, one damping for all messages first."""
    return [(_name(kind, d, p), d, p, kind) for kind in KINDS for d in dampings for p in dropouts]


def _name(kind: str, damping: float, dropout: float) -> str:
    return f"{kind} damping {damping:g}, dropout {dropout:g}"


def _at(runs: Sequence[SeedRun], name: str) -> float:
    return float(np.mean([r.metrics[name] for r in runs]))
