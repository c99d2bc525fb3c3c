"""`Batch`: the inputs, targets, masks and weights of some examples; checks of them, and padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..core.gaussian import Gaussian, Numbers
from ..core.tracing import refuse_traced
from ..factors.operators import Shape
from ..layers.layer import Observation

# What heads observe, or masks of it: of one head an array, of several by their names.
ByHead = Numbers | Mapping[str, Numbers]


@dataclasses.dataclass(frozen=True)
class Target:
    """What one head observes of a batch.

    **Arguments:**

    - `y`: as the `target` of the head gives it; None: nothing, but its layers count as if it did.
    - `observed`: which of it, `(B,)` for a class an example, or of the shape of `y`; None for all.
    """

    y: np.ndarray | None
    observed: np.ndarray | None = None

    def labelled(self, size: int) -> np.ndarray:
        """Mask `(B,)` of the examples of which any part of it is observed."""
        return np.ones(size, bool) if self.observed is None else np.asarray(self.observed.reshape(size, -1).any(1))

    def rows(self, start: int, stop: int) -> Target:
        """Of the examples from `start` to `stop`."""
        y, observed = (None if a is None else a[start:stop] for a in (self.y, self.observed))
        return Target(y, observed)

    def padded(self, size: int, missing: int) -> Target:
        """Of `size` examples and so many more; the mask is then given."""
        observed, y = np.ones(size, bool) if self.observed is None else self.observed, self.y
        if y is not None:  # anything that is sound: it has no weight
            y = np.concatenate([y, np.broadcast_to(y[:1], (missing, *y.shape[1:]))])
        return Target(y, _with_zeros(observed, missing))

    def unobserved(self) -> Target:
        """The same examples, of which nothing is observed."""
        return Target(None, self.observed)


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch of examples, checked.

    **Arguments:**

    - `x`: inputs `(B,) + input_shape`; 0 where not observed.
    - `x_observed`: which of them are observed, of that shape; None for all.
    - `targets`: what the heads observe, by name: of all heads, or of none.
    - `weight`: of each example `(B,)`: 2 counts like two of it, 0 is padding; None for 1.
    - `x_prior`: belief of each input that is not observed, of the shape of `x`; None: the default of the network.
    """

    x: np.ndarray
    x_observed: np.ndarray | None = None
    targets: Mapping[str, Target] = dataclasses.field(default_factory=dict)
    weight: np.ndarray | None = None
    x_prior: Gaussian | None = None

    @property
    def size(self) -> int:
        """B."""
        return self.x.shape[0]

    @property
    def counted(self) -> np.ndarray:
        """Mask `(B,)` of the examples whose weight is not 0."""
        return np.ones(self.size, bool) if self.weight is None else self.weight > 0

    @property
    def labelled(self) -> np.ndarray:
        """Mask `(B,)` of the examples of which any part of a target is observed, and whose weight is not 0."""
        return self.labelled_by(self.targets)

    def labelled_by(self, heads: Iterable[str]) -> np.ndarray:
        """The same, of the targets of some heads."""
        mask = np.zeros(self.size, bool)
        for name in heads:
            if name in self.targets:
                mask |= self.targets[name].labelled(self.size)
        return mask if self.weight is None else mask & (self.weight > 0)

    @property
    def label_weights(self) -> np.ndarray:
        """The weight of each example; 0 if it is not labelled."""
        return np.where(self.labelled, 1.0 if self.weight is None else self.weight, 0.0)

    @property
    def label_count(self) -> float:
        """How many examples are labelled, each counted by its weight."""
        return float(self.label_weights.sum())

    def without_targets(self) -> Batch:
        """The same examples with nothing known of their targets."""
        return dataclasses.replace(self, targets={})

    def rows(self, start: int, stop: int) -> Batch:
        """The examples from `start` to `stop`."""
        targets = {name: target.rows(start, stop) for name, target in self.targets.items()}
        x_observed, weight = (None if a is None else a[start:stop] for a in (self.x_observed, self.weight))
        x_prior = None if self.x_prior is None else self.x_prior[start:stop]
        return Batch(self.x[start:stop], x_observed, targets, weight, x_prior)

    def measured(self, head: str | None) -> float:
        """How many numbers of the target of a head were observed, each counted by the weight of its example.

        With None, of the input.
        """
        if head is None:
            values, mask = self.x, self.x_observed
        elif head in self.targets:
            values, mask = self.targets[head].y, self.targets[head].observed
        else:
            return 0.0
        if values is None:
            return 0.0
        each = (
            values[0].size * np.ones(self.size)
            if mask is None
            else mask.reshape(self.size, -1).sum(1) * (values.size // mask.size)
        )
        return float(each.sum() if self.weight is None else each @ self.weight)

    def padded(self, size: int) -> Batch:
        """With rows of no weight up to `size`; every mask is then given, so that all batches compile to one program."""
        missing = size - self.size
        x_observed = self.x_observed
        if x_observed is not None:  # padding is observed: else it would be inferred
            x_observed = np.concatenate([x_observed, np.ones((missing, *x_observed.shape[1:]), bool)])
        prior = self.x_prior
        if prior is not None and missing:
            prior = jax.tree.map(lambda a: np.concatenate([a, np.repeat(np.asarray(a)[:1], missing, 0)]), prior)
        targets = {name: target.padded(self.size, missing) for name, target in self.targets.items()}
        weight = np.ones(self.size) if self.weight is None else self.weight
        return Batch(_with_zeros(self.x, missing), x_observed, targets, _with_zeros(weight, missing), prior)


def _with_zeros(a: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([a, np.zeros((rows, *a.shape[1:]), a.dtype)])


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


def as_targets(heads: Mapping[str, tuple[Observation, Shape]], y: Any, observed: Any) -> dict[str, Target]:
    """What all heads observe, by name; a target that is not given is missing for every example.

    **Arguments:** `heads`: the layer of each, and the shape of the variables that it observes.
    """
    if y is None:
        if observed is not None:
            raise ValueError("y_observed needs y")
        return {}
    if not heads:
        raise ValueError("the network has no observation at its end that could take y")
    given, masks, out = _by_head("y", y, heads), _by_head("y_observed", observed, heads), {}
    alone = [name for name in masks if name not in given]
    if alone:
        raise ValueError(f"y_observed needs y: that of '{alone[0]}' is missing")
    for name, (layer, shape) in heads.items():
        nothing = np.zeros(shape[:1] if layer.whole_rows else shape), np.zeros(shape[:1], bool)
        known = (given[name], masks.get(name)) if name in given else nothing
        try:
            out[name] = as_target(layer, *known, shape)
        except ValueError as error:
            raise ValueError(f"layer '{name}': {error}") from None
    return out


def _by_head(what: str, given: Any, heads: Iterable[str]) -> dict[str, Any]:
    """What is given of heads, by their names."""
    known = list(heads)
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"{what}: the network has no head {unknown[0]!r} (it has {quoted(known)})")
        return {name: value for name, value in given.items() if value is not None}
    if given is None:
        return {}
    if len(known) > 1:
        raise ValueError(f"{what} must be given by head, as a mapping: the network has {quoted(known)}")
    return {known[0]: given}


def quoted(names: Iterable[str]) -> str:
    """Names as they are listed in messages."""
    return ", ".join(f"'{name}'" for name in names)


def as_target(layer: Observation, y: Any, observed: Any, shape: Shape) -> Target:
    """The target of a head that observes variables of `shape`."""
    refuse_traced("y", y, observed)
    if observed is None:
        return Target(layer.target(y, shape))
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
    return Target(target, mask if layer.whole_rows else mask.reshape(target.shape))


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
