"""Detects unusual batches: those that are far outside all that a learner has learnt from.

The statistics do not change if inputs are permuted, turned or mirrored. They are compared with the range of the batches
that were learnt from, by orders of magnitude: a stream may drift as far as it likes, step by step.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Iterable

import numpy as np

from ..network.batch import Batch
from ..network.layer_graph import LayerGraph

# What to do with such a batch.
CHOICES = ("refuse", "warn", "learn")
# The median of a batch, and how much its examples differ, may lie an order of magnitude beyond the quartiles of all
# batches that were learnt from; on top of that so many standard deviations of the median of as many examples.
_FACTOR, _DEVIATIONS, _OF_A_MEDIAN = 10.0, 6.0, 1.2533
# A single number may be so many times larger than the largest so far: tables have heavy tails.
_LARGEST_FACTOR = 100.0
# Nothing is unusual before so many examples, or of what a batch has one of, so many batches.
_LEAST_EXAMPLES, _LEAST_BATCHES = 30, 5
# Variety is checked in batches of at least so many examples, if at least this share of them has been distinct so far.
_LEAST_TO_DIFFER, _DISTINCT = 8, 0.5
# A row of few numbers may well be constant: contrast is checked in batches of at least so many.
_LEAST_NUMBERS = 50
# Of the largest number: smaller ones count as this.
_SMALLEST = 1e-6
_LARGEST_LOG = 700.0  # of which the exponential is a number


class Oddity(enum.Enum):
    """The statistic by which a batch is unusual; the values are its description in messages to users."""

    SCALE = "the root mean square of the inputs of a typical example"
    CONTRAST = "the standard deviation of the inputs within a typical example"
    VARIETY = "the standard deviation of an input among the examples of the batch"
    LARGEST_INPUT = "the largest input"
    LARGEST_TARGET = "the largest target"


@dataclasses.dataclass(frozen=True)
class Unusual:
    """One reason why a batch is far outside all that was learnt from."""

    oddity: Oddity
    value: float  # of this batch
    learnt: float  # of the batches that were learnt from: the one nearest to it
    bound: float  # that it lies beyond

    def __str__(self) -> str:
        side = "at most" if self.value > self.learnt else "at least"
        so_far, bound = f"{side} {self.learnt:.3g} so far", f"{self.bound:.3g} would be accepted"
        return f"{self.oddity.value} is {self.value:.3g}, {so_far} ({bound})"


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Logarithms of positive numbers: moments of all of them, and the range of the quartiles of batches."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0  # of distances from the mean, summed up
    low: float = 0.0  # the lowest first quartile
    high: float = 0.0  # the highest third quartile
    middle: float = 0.0  # the median; of several batches the mean of theirs

    def __post_init__(self):
        sound = all(map(_is_finite, vars(self).values()))
        if not (sound and self.count >= 0 and self.squares >= 0 and self.low <= self.high):
            raise ValueError(f"no such numbers can be: {self}")

    @classmethod
    def of(cls, values: np.ndarray, unit: float) -> Spread:
        """Of one batch; `unit` is the largest number there is, and what the values are in units of."""
        if not len(values):
            return cls()
        logs = np.log(np.maximum(values, _SMALLEST)) + math.log(unit)
        mean, (low, middle, high) = float(logs.mean()), map(float, np.quantile(logs, (0.25, 0.5, 0.75)))
        return cls(float(len(logs)), mean, float(np.sum((logs - mean) ** 2)), low, high, middle)

    def joined(self, other: Spread) -> Spread:
        """Of the batches of both."""
        if not (self.count and other.count):
            return self if self.count else other
        count, apart = self.count + other.count, other.mean - self.mean
        return Spread(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
            min(self.low, other.low),
            max(self.high, other.high),
            (self.count * self.middle + other.count * other.middle) / count,
        )

    def margin(self, count: float) -> float:
        """How far beyond the range the median of so many numbers may lie."""
        deviation = math.sqrt(self.squares / self.count)
        return math.log(_FACTOR) + _DEVIATIONS * _OF_A_MEDIAN * deviation / math.sqrt(count)


@dataclasses.dataclass(frozen=True)
class BatchStatistics:
    """Statistics of the examples of one batch or of many.

    **Arguments:**

    - `scale`: root mean square of the inputs of an example; `contrast`: their standard deviation.
    - `variety`: of a batch, the standard deviation of an input among its examples; `distinct`: the share of examples
        that are not equal, the lowest of all batches that have a variety.
    - `largest_input`, `largest_target`: magnitudes; targets that are classes have none.
    """

    scale: Spread = Spread()
    contrast: Spread = Spread()
    variety: Spread = Spread()
    distinct: float = 1.0
    largest_input: float = 0.0
    largest_target: float = 0.0

    def __post_init__(self):
        numbers = self.distinct, self.largest_input, self.largest_target
        spreads = self.scale, self.contrast, self.variety
        if not all(isinstance(s, Spread) for s in spreads) or not all(_is_finite(n) and n >= 0 for n in numbers):
            raise ValueError(f"no such statistics can be: {self}")

    def joined(self, other: BatchStatistics) -> BatchStatistics:
        """Of the batches of both."""
        return BatchStatistics(
            self.scale.joined(other.scale),
            self.contrast.joined(other.contrast),
            self.variety.joined(other.variety),
            min(self.distinct, other.distinct),
            max(self.largest_input, other.largest_input),
            max(self.largest_target, other.largest_target),
        )

    def unusual(self, batch: BatchStatistics) -> tuple[Unusual, ...]:
        """The reasons, if any, why a batch is far outside of the batches that these statistics are of."""
        out = []
        if self.scale.count >= _LEAST_EXAMPLES and batch.scale.count:
            out.append(_beyond(Oddity.SCALE, self.scale, batch.scale, below=False))
        if self.contrast.count >= _LEAST_EXAMPLES and batch.contrast.count:
            out.append(_beyond(Oddity.CONTRAST, self.contrast, batch.contrast, below=True))
        if self.variety.count >= _LEAST_BATCHES and self.distinct >= _DISTINCT and batch.variety.count:
            out.append(_beyond(Oddity.VARIETY, self.variety, batch.variety, below=True))
        if self.scale.count >= _LEAST_EXAMPLES:
            for oddity, most, value in (
                (Oddity.LARGEST_INPUT, self.largest_input, batch.largest_input),
                (Oddity.LARGEST_TARGET, self.largest_target, batch.largest_target),
            ):
                bound = _LARGEST_FACTOR * most
                out.append(Unusual(oddity, value, most, bound) if 0 < bound < value else None)
        return tuple(reason for reason in out if reason is not None)


def joined(several: Iterable[BatchStatistics]) -> BatchStatistics:
    """Of all batches of all of them."""
    return functools.reduce(BatchStatistics.joined, several, BatchStatistics())


def _beyond(oddity: Oddity, known: Spread, batch: Spread, below: bool) -> Unusual | None:
    margin = known.margin(batch.count)
    learnt, bound = (known.low, known.low - margin) if below else (known.high, known.high + margin)
    if not (batch.middle < bound if below else batch.middle > bound):
        return None
    return Unusual(oddity, *(math.exp(min(v, _LARGEST_LOG)) for v in (batch.middle, learnt, bound)))


def statistics_of(net: LayerGraph, batch: Batch, known: BatchStatistics, count_all: bool = False) -> BatchStatistics:
    """Statistics of the examples of a batch that are learnt from, as far as they are observed.

    **Arguments:**

    - `known`: of the batches before.
    - `count_all`: also of examples without a label; a feed-forward network otherwise learns nothing from these.
    """
    weight = np.ones(batch.size) if batch.weight is None else batch.weight
    rows = (weight > 0) if count_all or not net.heads or net.generative else batch.labelled
    x = batch.x[rows].reshape(int(rows.sum()), math.prod(batch.x.shape[1:]))
    mask = np.ones(x.shape, bool) if batch.x_observed is None else batch.x_observed[rows].reshape(x.shape)
    there = mask.any(1)
    x, mask = x[there], mask[there]
    largest = max(float(x.max(initial=0.0)), -float(x.min(initial=0.0)))  # what is not observed is 0
    targets = _largest_target(net, batch, rows)
    unit = max(largest, known.largest_input)
    if not unit > 0:
        return BatchStatistics(largest_target=targets)
    x = x / unit  # squares are then no larger than 1
    numbers, among = mask.sum(1), mask.sum(0)
    squares = np.einsum("ij,ij->i", x, x) / numbers
    contrast = _deviations(x.sum(1), squares, numbers) if numbers.sum() >= _LEAST_NUMBERS else np.zeros(0)
    variety, distinct = np.zeros(0), 1.0
    if len(x) >= _LEAST_TO_DIFFER and (among > 1).any():
        apart = _deviations(x.sum(0), np.einsum("ij,ij->j", x, x) / np.maximum(among, 1), among)
        variety, distinct = np.sqrt(np.mean(apart**2, keepdims=True)), len({row.tobytes() for row in x}) / len(x)
    spreads = [Spread.of(some, unit) for some in (np.sqrt(squares), contrast, variety)]
    return BatchStatistics(spreads[0], spreads[1], spreads[2], distinct, largest, targets)


def _deviations(sums: np.ndarray, squares: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Standard deviations, from sums and mean squares of so many numbers each, where there are several.

    (By differences, whose rounding is far below the smallest number that counts.)
    """
    several = numbers > 1
    return np.sqrt(np.maximum(squares[several] - (sums[several] / numbers[several]) ** 2, 0))


def _largest_target(net: LayerGraph, batch: Batch, rows: np.ndarray) -> float:
    """Of all heads that observe values."""
    largest = 0.0
    for name, place in net.heads.items():
        target = batch.targets.get(name)
        if target is None or target.y is None or getattr(place.layer, "whole_rows", False):
            continue
        observed = target.y if target.observed is None else np.where(target.observed, target.y, 0)
        largest = max(largest, float(np.abs(observed[rows]).max(initial=0.0)))
    return largest
