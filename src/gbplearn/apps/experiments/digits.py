"""One pass over the handwritten digits of scikit-learn with a convolutional factor graph, batch after batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...core.progress import progress
from ...learner.learner import Learner
from ...network.layer_graph import LayerGraph
from ...network.zoo import digits_classifier
from ...show.figures import BLUE, ORANGE
from ...show.page import Section
from ..baselines.cnn import GradientClassifier, choose
from ..data.images import load_images
from ..report.classifier import Learnt, label_curves, sections
from ..scores import accuracy
from .experiment import READ_OUT, Experiment, SeedRun

RATES, STEPS = (0.001, 0.003, 0.01), (10, 50, 200)  # of Adam, chosen on held-back training images
_LAST = 10  # batches to average over: an accuracy after one batch depends on what was in that batch


class Stream(NamedTuple):
    """Training images in the order they are used, and the test images."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    batch: int

    @property
    def batches(self) -> list[slice]:
        """The last one may be smaller."""
        return [slice(i, min(i + self.batch, len(self.y))) for i in range(0, len(self.y), self.batch)]

    @property
    def images_used(self) -> np.ndarray:
        """How many, after each batch."""
        return np.array([b.stop for b in self.batches])

    def accuracy(self, logits: Any) -> float:
        """Share of the test images whose largest logit is that of their class."""
        return accuracy(np.asarray(logits), self.test_y)


def digits_stream(seed: int, batch: int, batches: int | None = None, tests: int | None = None) -> Stream:
    """The fixed split, the training images in an order that depends on the seed; so many of both, or all."""
    images = load_images("digits")
    order = np.random.default_rng(seed).permutation(len(images.train_y))
    order = order if batches is None else order[: batch * batches]
    return Stream(images.train_x[order], images.train_y[order], images.test_x[:tests], images.test_y[:tests], batch)


def learn(
    stream: Stream, label: str, model: Learner | GradientClassifier, known: np.ndarray | None = None
) -> np.ndarray:
    """Show each batch once.

    **Arguments:**

    - `label`: says whose progress it is.
    - `known`: the images whose label is observed; None for all.

    **Returns:** the test accuracy after each batch: of a learner by a forward pass of its posterior means, the quick
    read-out.
    """
    read_out: Callable[[Any], Any] = model.forward if isinstance(model, Learner) else model.predict
    curve: list[float] = []
    for b in progress(stream.batches, label, status=lambda: f"test accuracy {curve[-1]:.1%}", period=10.0):
        model.update(stream.x[b], stream.y[b], y_observed=None if known is None else known[b])
        curve.append(stream.accuracy(read_out(stream.test_x)))
    return np.array(curve)


def learn_with_adam(
    stream: Stream, net: LayerGraph, seed: int, steps: Sequence[int] = STEPS
) -> tuple[np.ndarray, dict[str, float | int]]:
    """The same architecture by gradients: accuracies after each batch, and the step size with which."""
    chosen = choose(net, stream.x, stream.y, rates=RATES, steps=steps, batch=stream.batch, seed=seed)
    model = GradientClassifier(
        net, stream.x.shape[1:], rate=float(chosen["rate"]), steps=int(chosen["steps"]), seed=seed
    )
    return learn(stream, "Adam", model), chosen


class Curves(NamedTuple):
    """What the figure shows."""

    images_used: np.ndarray
    forward: np.ndarray
    adam: np.ndarray
    learnt: Learnt


@dataclasses.dataclass(frozen=True)
class Digits(Experiment):
    """The learner's defaults; a seed is an order of the stream and the prior means of the filters."""

    batch: int = 50
    iterations: int = 200  # at most
    batches: int | None = None  # None for the whole stream

    name: ClassVar[str] = "digits"
    title: ClassVar[str] = "Handwritten digits, one pass"
    seeds: ClassVar[int] = 5
    read_out: ClassVar[dict[str, str]] = {
        "fixed": READ_OUT["fixed"],
        "forward": READ_OUT["forward"],
        "adam": "no GBP: the same architecture trained with Adam on the same batches, step size and number of steps a "
        "batch chosen on a fifth of the training images",
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "Test accuracy against the number of training images, each used once: Gaussian belief propagation (read out by "
        "a forward pass of the posterior means) and the same network trained with Adam. A thin line a seed, a thick "
        "one for the mean."
    )

    def settings(self) -> dict[str, Any]:
        """With the network."""
        return {**super().settings(), "network": repr(digits_classifier()), "adam rates": RATES, "adam steps": STEPS}

    def run_seed(self, seed: int) -> SeedRun:
        """One pass, then all test images by messages."""
        stream = digits_stream(seed, self.batch, self.batches)
        learner = Learner(
            digits_classifier(), stream.x.shape[1:], iterations=self.iterations, strained="learn", seed=seed
        )
        forward = learn(stream, f"digits, seed {seed}", learner)
        adam, _ = learn_with_adam(stream, learner.net, seed)
        belief = learner.predict(stream.test_x)
        p = np.asarray(learner.net.probabilities(belief))
        metrics = {
            "test accuracy/fixed": stream.accuracy(belief.mean),
            "test accuracy/forward": float(forward[-1]),
            "test accuracy/adam": float(adam[-1]),
            "test accuracy, mean after the last 10 batches/forward": float(forward[-_LAST:].mean()),
            "test accuracy, mean after the last 10 batches/adam": float(adam[-_LAST:].mean()),
        }
        learnt = Learnt(learner, stream.test_x, stream.test_y, p, self.batch)
        return SeedRun(seed, metrics, Curves(stream.images_used, forward, adam, learnt))

    def inside(self, runs: Sequence[SeedRun], folder: Path) -> list[Section]:
        """The first seed's."""
        return sections(runs[0].kept.learnt, folder)

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Learning curves."""
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        ax = figure.subplots()
        for which, colour, label in (("forward", BLUE, "GBP (forward pass of the means)"), ("adam", ORANGE, "Adam")):
            curves = [getattr(r.kept, which) for r in runs]
            for curve in curves:
                ax.plot(runs[0].kept.images_used, curve, color=colour, linewidth=0.7, alpha=0.4)
            ax.plot(runs[0].kept.images_used, np.mean(curves, 0), color=colour, linewidth=2, label=label)
        label_curves(ax)
        return figure
