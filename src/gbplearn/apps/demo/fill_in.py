"""Learn a model of digits without labels, and fill in the hidden half of others."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...core.progress import progress
from ...engine.damping import Damping
from ...layers.conv_transpose2d import ConvTranspose2D
from ...layers.dense import Dense
from ...learner.learner import Learner
from ...network.sequential import Sequential
from ..experiments.digits import Stream


def digits_generator() -> Sequential:
    """Eight kinds of patches that paint a digit, and twelve causes that say where which patch is painted how strongly.

    Energy of an image `x` with patch strengths `y` and causes `z`, up to priors:
    `|x - W1 * y - d1|² / (2 0.1²) + |y - W2 z - d2|² / (2 0.2²)`.

    Settings are those that did best on held-back training images. The priors of the weights are tight: the best weights
    and activations together would else be large weights and small activations, and then the prior of the activations
    no longer holds them back where pixels are missing.
    """
    return Sequential(
        ConvTranspose2D(
            8, kernel=4, stride=2, sigma=0.1, weight_prior=0.02, weight_init=0.1, bias_prior=0.3, prior=3.0
        ),
        Dense(12, direction="generative", sigma=0.2, weight_prior=0.01, bias_prior=1.0, prior=1.0),
    )


@dataclasses.dataclass(frozen=True)
class Filled:
    """The test images as they are, which of their pixels were observed, and beliefs of the others."""

    images: np.ndarray
    classes: np.ndarray
    observed: np.ndarray  # pixels that were observed, of one image
    mean: np.ndarray
    std: np.ndarray
    average: np.ndarray  # the mean training image: the prediction that needs no observation
    refused: int  # batches that were not learnt

    def metrics(self) -> dict[str, float]:
        """The numbers of results.json, over all hidden pixels of all test images."""
        off, baseline = ((m - self.images)[:, ~self.observed] for m in (self.mean, self.average))
        return {
            "rmse": float(np.sqrt(np.mean(off**2))),
            "rmse of the mean training image": float(np.sqrt(np.mean(baseline**2))),
            "share within 2 sd": float(np.mean(np.abs(off) < 2 * self.std[:, ~self.observed])),
            "mean sd": float(self.std[:, ~self.observed].mean()),
            "batches refused": self.refused,
        }

    def one_of_each(self) -> np.ndarray:
        """The first test image of every class."""
        return np.array([np.flatnonzero(self.classes == c)[0] for c in np.unique(self.classes)])


def fill_in(stream: Stream, net: Sequential, seed: int) -> Filled:
    """One pass over the training images without their labels; then the right half of every test image is hidden."""
    learner = Learner(
        net,
        stream.x.shape[1:],
        iterations=60,
        damping=Damping(parameters=0.7, activations=0.7),
        strained="learn",
        seed=seed,
    )
    for b in progress(stream.batches, "No labels, generative", period=10.0):
        learner.update(stream.x[b])
    _, height, width, channels = stream.x.shape
    observed = np.broadcast_to((np.arange(width) < width // 2)[:, None], (height, width, channels))
    belief = learner.query("input", x=stream.test_x, x_observed=np.broadcast_to(observed, stream.test_x.shape))
    return Filled(
        stream.test_x,
        stream.test_y,
        observed,
        np.asarray(belief.mean),
        np.asarray(belief.std),
        stream.x.mean(0),
        learner.failures,
    )
