"""`Batch`: the inputs, targets, masks and weights of some examples; checks of them, and padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..core.gaussian import Gaussian
from ..core.tracing import refuse_traced
from ..factors.operators import Shape
from ..layers.layer import Observation


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch of examples, checked.

    **Arguments:**

    - `x`: inputs `(B,) + input_shape`; 0 where not observed.
    - `x_observed`: which of them are observed, of that shape; None for all.
    - `y`: what the head observes, as its `target` gives it; None without a head.
    - `y_observed`: which of them, `(B,)` for a class an example, or of the shape of `y`; None for all.
    - `weight`: of each example `(B,)`: 2 counts like two of it, 0 is padding; None for 1.
    - `x_prior`: belief of each input that is not observed, of the shape of `x`; None: the default of the network.
    """

    x: np.ndarray
    x_observed: np.ndarray | None = None
    y: np.ndarray | None = None
    y_observed: np.ndarray | None = None
    weight: np.ndarray | None = None
    x_prior: Gaussian | None = None

    @property
    def size(self) -> int:
        """B."""
        return self.x.shape[0]

    @property
    def counted_inputs(self) -> np.ndarray:
        """The inputs of the examples whose weight is not 0."""
        return self.x if self.weight is None else self.x[self.weight > 0]

    @property
    def labelled(self) -> np.ndarray:
        """Mask `(B,)` of the examples of which any part of the target is observed, and whose weight is not 0."""
        if self.y is None:
            return np.zeros(self.size, bool)
        mask = np.ones(self.size, bool) if self.y_observed is None else self.y_observed.reshape(self.size, -1).any(1)
        return np.asarray(mask if self.weight is None else mask & (self.weight > 0))

    @property
    def label_weights(self) -> np.ndarray:
        """The weight of each example; 0 if it is not labelled."""
        return np.where(self.labelled, 1.0 if self.weight is None else self.weight, 0.0)

    @property
    def label_count(self) -> float:
        """How many examples are labelled, each counted by its weight."""
        return float(self.label_weights.sum())

    def rows(self, start: int, stop: int) -> Batch:
        """The examples from `start` to `stop`."""
        parts = (getattr(self, f.name) for f in dataclasses.fields(self))
        x, *rest = (None if a is None else a[start:stop] for a in parts)
        assert isinstance(x, np.ndarray)
        return Batch(x, *rest)

    def measured(self, head: bool) -> float:
        """How many numbers of the target (or of the input) were observed, each counted by the weight of its example."""
        values, mask = (self.y, self.y_observed) if head else (self.x, self.x_observed)
        if values is None:
            return 0
        each = (
            values[0].size * np.ones(self.size)
            if mask is None
            else mask.reshape(self.size, -1).sum(1) * (values.size // mask.size)
        )
        return float(each.sum() if self.weight is None else each @ self.weight)

    def padded(self, size: int) -> Batch:
        """With rows of no weight up to `size`; every mask is then given, so that all batches compile to one program."""
        missing = size - self.size

        def pad(a: np.ndarray | None) -> np.ndarray | None:
            return None if a is None else np.concatenate([a, np.zeros((missing, *a.shape[1:]), a.dtype)])

        weight = np.ones(self.size) if self.weight is None else self.weight
        y_observed = self.y_observed
        if self.y is not None and y_observed is None:
            y_observed = np.ones(self.size, bool)
        x_observed = self.x_observed
        if x_observed is not None:  # padding is observed: else it would be inferred
            x_observed = np.concatenate([x_observed, np.ones((missing, *x_observed.shape[1:]), bool)])
        y = pad(self.y)
        if y is not None and missing:
            assert self.y is not None
            y[self.size :] = self.y[:1]  # anything that is sound: it has no weight
        x = pad(self.x)
        assert x is not None
        prior = self.x_prior
        if prior is not None and missing:
            prior = jax.tree.map(lambda a: np.concatenate([a, np.repeat(np.asarray(a)[:1], missing, 0)]), prior)
        return Batch(x, x_observed, y, pad(y_observed), pad(weight), prior)


def as_inputs(x: Any, observed: Any, input_shape: Shape | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Inputs as numbers, 0 where they are not observed, and the mask."""
    refuse_traced("x", x, observed)
    try:
        x = np.asarray(x, float)
    except (ValueError, TypeError):
        raise ValueError("x must be an array of numbers") from None
    if x.ndim < 1 or x.shape[0] < 1:
        raise ValueError(f"x must be a batch of examples, got shape {x.shape}")
    if input_shape is not None and x.shape[1:] != input_shape:
        raise ValueError(f"the network takes examples of shape {input_shape}, got {x.shape[1:]}")
    if observed is None:
        if not np.isfinite(x).all():
            raise ValueError("x holds NaN or infinity (say which are observed: x_observed=)")
        return x, None
    mask = _as_mask(observed, x.shape, "x_observed")
    if not np.isfinite(x[mask]).all():
        raise ValueError("x holds NaN or infinity where x_observed says observed")
    return np.where(mask, x, 0), mask


def as_weights(weight: Any, size: int) -> np.ndarray | None:
    """The weight of each example, checked."""
    if weight is None:
        return None
    refuse_traced("sample_weight", weight)
    weights = np.asarray(weight, float)
    if weights.shape != (size,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError(f"sample_weight must be {size} numbers >= 0, one for each example, not all 0")
    return weights


def as_input_prior(prior: Gaussian | None, shape: Shape) -> Gaussian | None:
    """The belief of inputs that are not observed, checked."""
    if prior is None:
        return None
    if not isinstance(prior, Gaussian) or prior.block:
        raise ValueError("x_prior must be a gbp.Gaussian of scalars")
    refuse_traced("x_prior", prior)
    try:
        wide = prior.broadcast_to(shape)
    except ValueError:
        raise ValueError(f"x_prior has shape {prior.shape}, must broadcast to {shape}") from None
    if not (np.isfinite(wide.eta).all() and np.isfinite(wide.lam).all() and (np.asarray(wide.lam) > 0).all()):
        raise ValueError("x_prior must be proper: finite, with precisions > 0")
    return wide


def as_targets(layer: Observation, y: Any, observed: Any, shape: Shape) -> tuple[np.ndarray, np.ndarray | None]:
    """The targets of a head that observes variables of `shape`, and their mask."""
    refuse_traced("y", y, observed)
    if observed is None:
        return layer.target(y, shape), None
    try:
        y = np.array(y, float)
    except (ValueError, TypeError):
        raise ValueError("y must be an array of numbers") from None
    if y.shape[:1] != shape[:1]:
        raise ValueError(f"y must have one row for each of the {shape[0]} examples, got shape {y.shape}")
    mask = _as_mask(observed, y.shape, "y_observed")
    if layer.whole_rows:
        rows = mask.reshape(shape[0], -1)
        if (rows.any(1) != rows.all(1)).any():
            raise ValueError("y_observed: a class is observed or not, there is no half")
        mask = np.asarray(rows.all(1))
    fill = y[mask].reshape(-1, *y.shape[1:])[:1] if layer.whole_rows else np.zeros(1)
    if fill.size == 0:  # no label at all: any class will do, it has no weight
        fill = np.zeros((1, *y.shape[1:])) if y.ndim == 1 else np.full((1, *y.shape[1:]), 1 / y.shape[1])
    wide = mask.reshape(mask.shape + (1,) * (y.ndim - mask.ndim))
    target = layer.target(np.where(wide, y, fill), shape)
    return target, mask if layer.whole_rows else mask.reshape(target.shape)


def _as_mask(observed: Any, shape: Shape, name: str) -> np.ndarray:
    mask = np.asarray(observed)
    if mask.dtype != bool:
        raise ValueError(f"{name} must hold True (observed) and False, got {mask.dtype}")
    if mask.shape == shape[:1]:  # whole examples
        mask = mask.reshape(mask.shape + (1,) * (len(shape) - 1))
    try:
        return np.array(np.broadcast_to(mask, shape))
    except ValueError:
        raise ValueError(f"{name} has shape {mask.shape}, must be {shape[:1]} or broadcast to {shape}") from None


# A batch is padded to a size that has been compiled, unless more than this share of the rows would be padding.
_MOST_PADDING = 0.75
# Examples that are predicted at a time: padded to the next of these, so that few programs are compiled.
PREDICT_SIZES = (1, 10, 50, 200)


def padded_size(n: int, known: Sequence[int]) -> int:
    """The size that a batch is padded to, with rows of no weight: so batches of many sizes share few compiled programs.

    A known size, unless too much of it would be padding; else a new one, at least a quarter above the smaller ones.
    """
    fitting = [s for s in known if n <= s and (1 - _MOST_PADDING) * s <= n]
    if fitting:
        return min(fitting)
    smaller = [s for s in known if s < n]
    return max(n, -(-5 * max(smaller) // 4)) if smaller else n


def portions(whole: Batch, sizes: tuple[int, ...] = PREDICT_SIZES) -> Iterator[tuple[Batch, int]]:
    """The parts in which a batch is predicted: each padded to one of `sizes`, and how many rows are no padding."""
    size = min(whole.size, sizes[-1])
    room = next(s for s in sizes if s >= size)
    for i in range(0, whole.size, size):
        part = whole.rows(i, i + size)
        yield part.padded(room), part.size
