"""Where the uncertainty of a prediction comes from, and draws of what would be observed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from .answers import answer
from .batch import Batch
from .classes import expected_entropy, probabilities
from .gaussian import Gaussian
from .layers.gaussian_observation import GaussianObservation
from .layers.softmax import SoftmaxObservation

if TYPE_CHECKING:
    from .learner import Learner


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """A prediction with its standard deviation in two parts, a row an example: of values, or of the logits of classes.

    - `mean`: what is expected.
    - `parameters`: the part that comes from not knowing the parameters; more data make it smaller.
    - `observation`: what would remain if they were known: noise of the layers, and of observed values.
    - `entropy`: of the class, in nats; None if values are predicted.
    - `expected_entropy`: what would remain of it if the logits were known.
    """

    mean: np.ndarray
    parameters: np.ndarray
    observation: np.ndarray
    entropy: np.ndarray | None = None
    expected_entropy: np.ndarray | None = None

    @property
    def total(self) -> np.ndarray:
        """`sqrt(parameters² + observation²)`."""
        return np.hypot(self.parameters, self.observation)

    @property
    def mutual_information(self) -> np.ndarray | None:
        """Of class and logits: `entropy - expected_entropy`, None if values are predicted."""
        if self.entropy is None or self.expected_entropy is None:
            return None
        return self.entropy - self.expected_entropy


def split(learner: Learner, batch: Batch) -> Uncertainty:
    """`Var = (Var with parameters as they are believed - Var with known ones) + Var with known ones`."""
    known, believed = (answer(learner, batch, how, None) for how in ("fixed", "random"))
    inherent, total = (np.asarray(g.variance) for g in (known, believed))
    parts = (
        np.asarray(believed.mean),
        np.sqrt(np.maximum(total - inherent, 0)),
        np.sqrt(inherent + observation_noise(learner) ** 2),
    )
    if not isinstance(learner.net.layers[-1], SoftmaxObservation):
        return Uncertainty(*parts)
    p = np.asarray(probabilities(believed))
    return Uncertainty(*parts, -np.sum(p * np.log(np.maximum(p, 1e-30)), -1), np.asarray(expected_entropy(believed)))


def draw(learner: Learner, outputs: Gaussian, count: int, seed: int) -> np.ndarray:
    """Targets `(count, batch, ...)` by the belief of the outputs: classes, or values with the noise of the head."""
    if isinstance(count, bool) or not (isinstance(count, (int, np.integer)) and count >= 1):
        raise ValueError(f"sample: count must be a whole number >= 1, got {count!r}")
    rng = np.random.default_rng(seed)
    if isinstance(learner.net.layers[-1], SoftmaxObservation):
        below = np.cumsum(np.asarray(probabilities(outputs)), -1)
        chance = rng.random((count, *below.shape[:-1], 1)) * below[..., -1:]
        return (chance >= below).sum(-1)
    std = np.sqrt(np.asarray(outputs.variance) + observation_noise(learner) ** 2)
    return np.asarray(outputs.mean) + std * rng.standard_normal((count, *outputs.shape)).astype(std.dtype)


def observation_noise(learner: Learner) -> float:
    """Standard deviation of an observed value around the output, given or learnt; 0 if no values are observed."""
    head = learner.net.layers[-1]
    if not isinstance(head, GaussianObservation) or learner.net.head is None:
        return 0.0
    noise = learner.noise.get(learner.net.head)
    return float(head.sigma) if noise is None else noise.start  # pyright: ignore[reportArgumentType]
