"""The hidden half of a digit, filled in by ten small generative networks: one a class, and the evidence decides.

An image `x` of class `c` with causes `z`: `x ~ N(W_c z + d_c, sigma²)`, `z ~ N(0, 1)`. What was seen of it, `s`, tells
the class, and the rest is a mixture:

    p(c | s) ∝ p_c(s) ,   p(x | s) = sum_c p(c | s) p_c(x | s)

A single linear network cannot say that a digit is this or that: at best it is the Gaussian fitted to all images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ..demo.figures import draw_filled
from ..demo.fill_in import Filled
from ..gaussian import Gaussian
from ..layers.dense import Dense
from ..learner import Learner
from ..network import Sequential
from ..report.progress import progress
from .digits import Stream, digits_stream
from .experiment import Experiment, SeedRun

_INTERVAL = 1.645  # standard deviations: 90 %


def class_painter(causes: int, sigma: float) -> Sequential:
    """A few causes that paint one class of digits."""
    return Sequential(
        Dense(
            causes, direction="generative", sigma=sigma, weight_prior=0.05, weight_init=0.1, bias_prior=1.0, prior=1.0
        )
    )


def learn_classes(stream: Stream, net: Sequential, iterations: int, seed: int) -> list[Learner]:
    """A learner for each class, which sees its training images once, all together."""
    learners = []
    for c in progress(range(10), f"fill-in, seed {seed}", period=10.0):
        learners.append(Learner(net, stream.x.shape[1:], iterations=iterations, seed=10 * seed + c))
        learners[-1].update(stream.x[stream.y == c])
    return learners


def fill_in(learners: Sequence[Learner], x: np.ndarray, seen: np.ndarray, how: str) -> tuple[np.ndarray, ...]:
    """Mean and standard deviation of every pixel given those that are seen, and the probabilities of the classes.

    Asked with a wide prior of the hidden pixels: only the layer speaks about them.
    """
    wide = Gaussian.from_moments(mean=0.0, std=10.0)
    evidence = np.stack([one.log_evidence(x, x_observed=seen, parameters=how) for one in learners], 1)
    p = np.exp(evidence - evidence.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    beliefs = [one.query("input", x=x, x_observed=seen, x_prior=wide, parameters=how) for one in learners]
    means, variances = (np.stack([np.asarray(getattr(b, of)) for b in beliefs], 1) for of in ("mean", "variance"))
    share = p.reshape(*p.shape, *(1,) * (x.ndim - 1))
    mean = (share * means).sum(1)
    return mean, np.sqrt((share * (variances + (means - mean[:, None]) ** 2)).sum(1)), p


def linear_limit(x: np.ndarray, seen: np.ndarray, test_x: np.ndarray) -> np.ndarray:
    """What a Gaussian fitted to all training images expects of hidden pixels: what a linear network aims at."""
    train, test, s = x.reshape(len(x), -1), test_x.reshape(len(test_x), -1), seen.ravel()
    mean, cov = train.mean(0), np.cov(train.T) + 1e-3 * np.eye(train.shape[1])
    gain = np.linalg.solve(cov[np.ix_(s, s)], cov[np.ix_(s, ~s)])
    return mean[~s] + (test[:, s] - mean[s]) @ gain


@dataclasses.dataclass(frozen=True)
class FillIn(Experiment):
    """The left half is seen. A seed is the prior means of the weights. Settings by held-back training images."""

    causes: int = 6
    sigma: float = 0.2
    iterations: int = 300
    tests: int | None = None  # None for all

    name: ClassVar[str] = "fill-in"
    title: ClassVar[str] = "The hidden half of a digit"
    seeds: ClassVar[int] = 3
    read_out: ClassVar[dict[str, str]] = {
        "random": "ten networks, one a class, mixed by the evidence of what they see; parameters at their posteriors",
        "fixed": "the same with the parameters fixed at their posterior means",
        "linear": "no GBP: the conditional mean of a Gaussian fitted to all training images, in closed form",
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "One test digit of each class: its left half is seen, the right half filled in, with the standard deviation of "
        "each pixel, and as it is."
    )

    def settings(self) -> dict[str, Any]:
        """With the network."""
        return {**super().settings(), "network": repr(class_painter(self.causes, self.sigma))}

    def run_seed(self, seed: int) -> SeedRun:
        """One pass over the training images of each class, then the hidden halves of the test images."""
        stream = digits_stream(0, 1, tests=self.tests)
        half = np.broadcast_to((np.arange(8) < 4)[:, None], (8, 8, 1))
        seen = np.broadcast_to(half, stream.test_x.shape)
        learners = learn_classes(stream, class_painter(self.causes, self.sigma), self.iterations, seed)
        truth, average = stream.test_x[:, ~half], stream.x.mean(0)
        blind = np.mean((average[~half] - truth) ** 2)
        metrics, kept = {}, None
        for how in ("random", "fixed"):
            mean, std, p = fill_in(learners, stream.test_x, seen, how)
            off = mean[:, ~half] - truth
            metrics |= {
                f"mse by that of the mean image/{how}": float(np.mean(off**2) / blind),
                f"hidden pixels in 90 % intervals/{how}": float(np.mean(np.abs(off) < _INTERVAL * std[:, ~half])),
                f"class of the half found/{how}": float(np.mean(p.argmax(1) == stream.test_y)),
            }
            if kept is None:
                kept = Filled(stream.test_x, stream.test_y, half, mean, std, average, sum(o.failures for o in learners))
        off = linear_limit(stream.x, half, stream.test_x) - truth
        metrics["mse by that of the mean image/linear"] = float(np.mean(off**2) / blind)
        return SeedRun(seed, metrics, kept)

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Of the first seed."""
        return draw_filled(runs[0].kept)
