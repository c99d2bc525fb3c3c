"""What a report says of a classifier of images that has learnt from a stream."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from ...engine.result import Result
from ...learner.learner import Learner
from ...show.figures import BLUE, GREY, ORANGE, picture
from ...show.page import Section
from .. import scores
from ..data.images import Pixels
from .inside import cost_section, ending, messages_section, posterior_section
from .layer_cost import group_costs

_FEW = 20  # images of a confidence, of whom less cannot tell how often it is right
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Learnt:
    """A learner, and what it says of the test images.

    **Arguments:**

    - `probabilities`: of the classes of the test images, by messages.
    - `batch`: how many images it learns from at a time.
    """

    learner: Learner
    test_x: Pixels | np.ndarray
    test_y: np.ndarray
    probabilities: np.ndarray
    batch: int


def sections(learnt: Learnt, folder: Path) -> list[Section]:
    """Messages, the cost of each layer, parameters, calibration, the most uncertain examples; figures in the folder."""
    return [
        *_messages_and_cost(learnt, folder),
        posterior_section(learnt.learner.posterior, folder),
        _calibration(learnt, folder),
        _uncertain(learnt, folder),
    ]


def _messages_and_cost(learnt: Learnt, folder: Path) -> list[Section]:
    """One more batch, learnt by a copy that is thrown away: test images, which are new to it."""
    learner = copy.copy(learnt.learner)
    size = min(learnt.batch, max(1, learner.examples))  # no larger than what it has learnt from
    batch = learner.checked(np.asarray(learnt.test_x[:size]), learnt.test_y[:size])
    prior = learner.state.posterior
    if learner.batches:
        prior = learner.filtering.next_prior(prior, learner.prior)
    result, _ = learner.infer_batch(batch, prior, learner.noise)
    if not isinstance(result, Result):
        return []  # of a chain there are no messages to show
    damping = learner.infer_options(batch, prior)["damping"]
    costs = group_costs(
        result.graph, damping=damping, schedule=learner.options["schedule"], messages=learner.options["messages"]
    )
    text = (
        f"One more batch, {batch.size} images: {ending(result)} (They are test images, learnt by a copy of the "
        "learner, which was thrown away.)"
    )
    return [messages_section(result.plot(), text, folder), cost_section(costs, f"{batch.size} images")]


def _calibration(learnt: Learnt, folder: Path) -> Section:
    p, y = learnt.probabilities, learnt.test_y
    figure = Figure(figsize=(5.2, 5.0), layout="constrained")
    draw_calibration(figure.subplots(), [np.array(scores.calibration(p, y))], least=_FEW if len(y) >= 2000 else 5)
    error = scores.expected_calibration_error(p, y)
    words = (
        "How often the predicted class is right against the probability that was given to it; dots by their share of "
        f"the {len(y):,} test images. On the dashed line both are the same; on average they are {error:.1%} apart."
    )
    text = (
        f"Read out by messages: expected calibration error {error:.2%}, negative log likelihood "
        f"{scores.negative_log_likelihood(p, y):.3f} nats, Brier score {scores.brier_score(p, y):.3f}."
    )
    return Section("Calibration", text, pictures=[picture(figure, "calibration", words, folder)])


def _uncertain(learnt: Learnt, folder: Path) -> Section:
    shown = most_uncertain(learnt.probabilities, _SHOWN)
    wrong = int((learnt.probabilities[shown].argmax(1) != learnt.test_y[shown]).sum())
    words = (
        f"The {len(shown)} most uncertain test images, each with its true class, the predicted class and its "
        f"probability; orange where the prediction is wrong ({wrong} of them)."
    )
    figure = draw_uncertain(np.asarray(learnt.test_x[shown]), learnt.test_y[shown], learnt.probabilities[shown])
    return Section(
        "Where the classifier is least sure",
        "The test images with the largest entropy of the predicted class probabilities, the largest first.",
        pictures=[picture(figure, "uncertain", words, folder)],
    )


def most_uncertain(probabilities: np.ndarray, count: int) -> np.ndarray:
    """Rows of largest predictive entropy `-sum_c p_c log p_c`, the largest first."""
    return np.argsort(-scores.entropy(probabilities.astype(float)), kind="stable")[:count]


def draw_uncertain(x: np.ndarray, y: np.ndarray, probabilities: np.ndarray) -> Figure:
    """Images, each with its class and what was predicted."""
    figure = Figure(figsize=(8.4, 4.0), layout="constrained")
    axes = figure.subplots(2, -(-len(y) // 2), squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    low, high = float(x.min()), float(x.max())
    for ax, image, truth, p in zip(axes.flat, x, y, probabilities):
        predicted = int(p.argmax())
        shown = image[..., 0] if image.shape[-1] == 1 else (image - low) / max(high - low, 1e-12)
        ax.imshow(shown, cmap="gray", vmin=low, vmax=high)
        title, colour = f"true {truth}, predicted {predicted}", BLUE if predicted == truth else ORANGE
        ax.set_title(f"{title}\n({p[predicted]:.0%})", fontsize=9, color=colour)
    return figure


def draw_calibration(ax: Axes, runs: Sequence[np.ndarray], least: int = _FEW) -> None:
    """`scores.calibration` of each run: where fewer than `least` images are, nothing is shown."""
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1)
    for run in runs:
        confidence, right, count = run[:, run[2] >= least]
        ax.plot(confidence, right, color=BLUE, linewidth=0.8, alpha=0.6)
        ax.scatter(confidence, right, s=4 + 100 * count / max(count.sum(), 1), color=BLUE, alpha=0.6, linewidth=0)
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
    fewest = f"; dots of {least} images or more, by share" if least > 1 else ""
    ax.set_title(f"calibration{fewest}", fontsize=9)


def draw_curve(points: Sequence[tuple[int, float]]) -> Figure:
    """Test accuracy against training images used."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    ax = figure.subplots()
    images, accuracy = np.array(points).T
    ax.plot(
        images, accuracy, "o-", color=BLUE, linewidth=1.8, markersize=4, label="forward pass of the posterior means"
    )
    ax.set_xscale("log")
    label_curves(ax)
    return figure


def label_curves(ax: Axes) -> None:
    """What all learning curves have."""
    ax.set_xlabel("training images, each used once")
    ax.set_ylabel("test accuracy")
    low, high = ax.get_ylim()
    if 0.1 <= high - low <= 1:  # else there would be too many labels, or none
        ax.yaxis.set_major_locator(MultipleLocator(0.05 if high - low < 0.5 else 0.1))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", color="#dddddd", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False)
