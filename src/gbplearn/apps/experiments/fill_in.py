"""The hidden half of a digit, filled in by a generative network whose causes are at work for one class each.

An image `x` of class `c` has causes `z`, and those of other classes are 0. Class `c` has a cause that is 1 (its mean
image) and a few that are not known, `z ~ N(0, 1)`:

    x ~ N(W z + d, sigma²)

While it learns, the label says which causes are 0, which is 1, and which are free. Of a half digit `s` the class is
not known: each is supposed in turn, and the evidence decides,

    p(c | s) ∝ p(s, z as c says) ,   p(x | s) = sum_c p(c | s) p(x | s, z as c says)

Ten networks, one a class, say the same apart. A single linear network whose causes are all free cannot say that a digit
is this or that: at best it is the Gaussian fitted to all images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ...core.gaussian import Gaussian
from ...core.progress import progress
from ...engine.damping import Damping
from ...layers.dense import Dense
from ...layers.gaussian_observation import GaussianObservation
from ...learner.learner import Learner
from ...network.sequential import Sequential
from ..demo.figures import draw_filled
from ..demo.fill_in import Filled
from .digits import Stream, digits_stream
from .experiment import Experiment, SeedRun

_INTERVAL = 1.645  # standard deviations: 90 %


def _painter(units: int, sigma: float, *head: GaussianObservation) -> Sequential:
    paint = Dense(
        units, direction="generative", sigma=sigma, weight_prior=0.05, weight_init=0.03, bias_prior=1.0, prior=1.0
    )
    return Sequential(paint, *head)


def class_painter(causes: int, sigma: float) -> Sequential:
    """A few causes that paint one class of digits."""
    return _painter(causes, sigma)


def digit_painter(causes: int, sigma: float, classes: int = 10) -> Sequential:
    """Causes that paint digits of all classes, and an observation of them: for `causes_at_work`."""
    return _painter(classes * (1 + causes), sigma, GaussianObservation(sigma=0.01))


def causes_at_work(y: np.ndarray, causes: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """What a label says about the causes: their values, and True for those that it determines; a row an example.

    The first `classes` of them are 1 for the class and 0 for the others. Then each class has `causes` of its own: 0
    for all classes but this one, whose causes are not known.
    """
    own = np.eye(classes)[np.asarray(y, int)]
    free = np.repeat(own > 0, causes, 1)
    observed = np.concatenate([np.ones_like(own, bool), ~free], 1)
    return np.concatenate([own, np.zeros(free.shape)], 1), observed


def learn_digits(
    stream: Stream, net: Sequential, causes: int, seed: int, batch: int | None = None, **how: Any
) -> Learner:
    """One learner that sees every training image once: all together, or in batches of `batch`."""
    learner = Learner(net, stream.x.shape[1:], strained="learn", seed=seed, **how)
    for i in range(0, len(stream.y), batch or len(stream.y)):
        rows = slice(i, i + (batch or len(stream.y)))
        values, observed = causes_at_work(stream.y[rows], causes)
        learner.update(stream.x[rows], values, y_observed=observed)
    return learner


def learn_classes(stream: Stream, net: Sequential, iterations: int, seed: int) -> list[Learner]:
    """A learner for each class, which sees its training images once, all together."""
    learners = []
    for c in progress(range(10), f"fill-in, seed {seed}", period=10.0):
        learners.append(Learner(net, stream.x.shape[1:], iterations=iterations, strained="learn", seed=10 * seed + c))
        learners[-1].update(stream.x[stream.y == c])
    return learners


def fill_in(
    models: Learner | Sequence[Learner],
    x: np.ndarray,
    observed: np.ndarray,
    how: str,
    causes: int = 0,
    classes: int = 10,
) -> tuple[np.ndarray, ...]:
    """Mean and standard deviation of every pixel given those that are observed, and the probabilities of the classes.

    Asked with a wide prior of the hidden pixels: only the layer speaks about them.

    **Arguments:**

    - `models`: a learner of a `digit_painter`, with its `causes` and `classes`; or a learner for each class.
    - `observed`: True for pixels that are observed, of the shape of `x`.
    - `how`: the parameters are "fixed" or "random".
    """
    wide = Gaussian.from_moments(mean=0.0, std=10.0)
    given: dict[str, Any] = {"x": x, "x_observed": observed, "parameters": how}
    evidence, means, variances = [], [], []
    for one, supposed in _hypotheses(models, len(x), causes, classes):
        evidence.append(one.log_evidence(**given, **supposed))
        belief = one.query("input", x_prior=wide, **given, **supposed)
        means.append(np.asarray(belief.mean))
        variances.append(np.asarray(belief.variance))
    p = np.exp(np.stack(evidence, 1) - np.max(evidence, 0)[:, None])
    p /= p.sum(1, keepdims=True)
    share = p.T.reshape(p.shape[1], p.shape[0], *(1,) * (x.ndim - 1))
    mean = (share * means).sum(0)
    return mean, np.sqrt((share * (np.array(variances) + (np.array(means) - mean) ** 2)).sum(0)), p


def _hypotheses(
    models: Learner | Sequence[Learner], examples: int, causes: int, classes: int
) -> Iterator[tuple[Learner, dict[str, Any]]]:
    """For each class the learner that is asked, and what is observed of the causes."""
    if isinstance(models, Learner):
        for c in range(classes):
            values, observed = causes_at_work(np.full(examples, c), causes, classes)
            yield models, {"y": values, "y_observed": observed}
    else:
        yield from ((one, {}) for one in models)


def linear_limit(x: np.ndarray, observed: np.ndarray, test_x: np.ndarray) -> np.ndarray:
    """What a Gaussian fitted to all training images expects of hidden pixels: what a linear network aims at."""
    train, test, s = x.reshape(len(x), -1), test_x.reshape(len(test_x), -1), observed.ravel()
    mean, cov = train.mean(0), np.cov(train.T) + 1e-3 * np.eye(train.shape[1])
    gain = np.linalg.solve(cov[np.ix_(s, s)], cov[np.ix_(s, ~s)])
    return mean[~s] + (test[:, s] - mean[s]) @ gain


@dataclasses.dataclass(frozen=True)
class FillIn(Experiment):
    """The left half is observed. A seed is the prior means of the weights. Settings by held-back training images."""

    causes: int = 6  # of each class
    sigma: float = 0.2
    iterations: int = 600
    batch: int = 50  # of the stream
    tests: int | None = None  # None for all

    name: ClassVar[str] = "fill-in"
    title: ClassVar[str] = "The hidden half of a digit"
    seeds: ClassVar[int] = 3
    read_out: ClassVar[dict[str, str]] = {
        "one": "one network, each class supposed in turn and mixed by the evidence; parameters at their posteriors",
        "one, fixed": "the same with the parameters fixed at their posterior means",
        "stream": "as one, but learnt in small batches, with the learner's own damping",
        "ten": "ten networks, one a class, mixed by the evidence of what they see; parameters at their posteriors",
        "linear": "no GBP: the conditional mean of a Gaussian fitted to all training images, in closed form",
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "One test digit of each class: its left half is observed, the right half filled in by one network, with the "
        "standard deviation of each pixel, and as it is."
    )

    def settings(self) -> dict[str, Any]:
        """With the networks."""
        nets = {"network": digit_painter(self.causes, self.sigma), "of ten": class_painter(self.causes, self.sigma)}
        return {**super().settings(), **{name: repr(net) for name, net in nets.items()}}

    def run_seed(self, seed: int) -> SeedRun:
        """One pass over the training images, then the hidden halves of the test images."""
        stream = digits_stream(0, 1, tests=self.tests)
        half = np.broadcast_to((np.arange(8) < 4)[:, None], (8, 8, 1))
        observed = np.broadcast_to(half, stream.test_x.shape)
        net = digit_painter(self.causes, self.sigma)
        # The learner would damp by the size of the batch; but of ten images nine say nothing about a cause.
        together = {"iterations": self.iterations, "damping": Damping(parameters=0.95, activations=0.5)}
        one = learn_digits(stream, net, self.causes, seed, **together)
        small = learn_digits(stream, net, self.causes, seed, self.batch)
        ten = learn_classes(stream, class_painter(self.causes, self.sigma), self.iterations, seed)
        truth, average = stream.test_x[:, ~half], stream.x.mean(0)
        blind = np.mean((average[~half] - truth) ** 2)
        metrics, kept = {}, None
        asked = {
            "one": (one, "random"),
            "one, fixed": (one, "fixed"),
            "stream": (small, "random"),
            "ten": (ten, "random"),
        }
        for name, (models, how) in asked.items():
            mean, std, p = fill_in(models, stream.test_x, observed, how, self.causes)
            off = mean[:, ~half] - truth
            metrics |= {
                f"mse by that of the mean image/{name}": float(np.mean(off**2) / blind),
                f"hidden pixels in 90 % intervals/{name}": float(np.mean(np.abs(off) < _INTERVAL * std[:, ~half])),
                f"class of the half found/{name}": float(np.mean(p.argmax(1) == stream.test_y)),
            }
            if kept is None:
                kept = Filled(stream.test_x, stream.test_y, half, mean, std, average, one.failures)
        off = linear_limit(stream.x, half, stream.test_x) - truth
        metrics["mse by that of the mean image/linear"] = float(np.mean(off**2) / blind)
        return SeedRun(seed, metrics, kept)

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Of the first seed."""
        return draw_filled(runs[0].kept)
