"""How good class probabilities are: accuracy, likelihood, calibration, and telling the unknown from the known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Probabilities = Float[np.ndarray, "n classes"]
Classes = Int[np.ndarray, " n"]

# A probability of zero for what then happened would cost infinitely much.
_LEAST = 1e-12
BINS = 15


def accuracy(p: Probabilities, y: Classes) -> float:
    """Share of the examples whose most probable class is theirs. (Logits do as well.)"""
    return float((p.argmax(1) == y).mean())


def negative_log_likelihood(p: Probabilities, y: Classes) -> float:
    """`-1/n sum_i log p_i(y_i)`, in nats."""
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], _LEAST)).mean())


def brier_score(p: Probabilities, y: Classes) -> float:
    """`1/n sum_i |p_i - onehot(y_i)|²`, from 0 to 2."""
    return float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean())


class Calibration(NamedTuple):
    """Of the examples in each bin of confidence: mean confidence, share that was right, how many."""

    confidence: np.ndarray
    accuracy: np.ndarray
    examples: np.ndarray


def calibration(p: Probabilities, y: Classes, bins: int = BINS) -> Calibration:
    """What the largest probability promises against what happens, in bins of equal width; empty bins are left out."""
    confidence, right = p.max(1), p.argmax(1) == y
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(which, minlength=bins)
    there = count > 0
    promised, happened = (np.bincount(which, v, minlength=bins)[there] / count[there] for v in (confidence, right))
    return Calibration(promised, happened, count[there])


def expected_calibration_error(p: Probabilities, y: Classes, bins: int = BINS) -> float:
    """`sum_b n_b/n |accuracy_b - confidence_b|` over the bins of `calibration` (Guo et al. 2017)."""
    found = calibration(p, y, bins)
    return float((np.abs(found.accuracy - found.confidence) * found.examples).sum() / found.examples.sum())


def entropy(p: Probabilities) -> Float[np.ndarray, " n"]:
    """`-sum_c p_c log p_c` of each example: how undecided it is."""
    return -(p * np.log(np.maximum(p, _LEAST))).sum(1)


def auroc(unknown: Float[np.ndarray, " n"], known: Float[np.ndarray, " m"]) -> float:
    """The probability that a score of `unknown` is above one of `known`, ties by half: the area under the ROC curve."""
    order = np.sort(known)
    below, up_to = (np.searchsorted(order, unknown, side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(known)))


def softmax(logits: Float[np.ndarray, "n classes"], temperature: float = 1.0) -> Probabilities:
    """`exp(l / T) / sum exp(l / T)`."""
    scaled = (logits - logits.max(1, keepdims=True)) / temperature
    e = np.exp(scaled)
    return e / e.sum(1, keepdims=True)


def best_temperature(logits: Float[np.ndarray, "n classes"], y: Classes) -> float:
    """The temperature whose softmax has the least negative log likelihood (Guo et al. 2017).

    The likelihood is concave in `1/T`, so a golden-section search finds it.
    """

    def loss(inverse: float) -> float:
        return negative_log_likelihood(softmax(logits, 1 / inverse), y)

    low, high, ratio = np.log(1e-3), np.log(1e3), (np.sqrt(5) - 1) / 2
    while high - low > 1e-4:
        third = ratio * (high - low)
        if loss(np.exp(high - third)) <= loss(np.exp(low + third)):
            high = low + third
        else:
            low = high - third
    return float(np.exp(-(low + high) / 2))
