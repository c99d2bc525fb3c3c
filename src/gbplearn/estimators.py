"""The scikit-learn face: `GBPClassifier` and `GBPRegressor`."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .batch import PREDICT_SIZES
from .gaussian import Gaussian
from .input_model import InputModel
from .layers.dense import Dense
from .layers.gaussian_observation import GaussianObservation
from .layers.layer import Layer, Observation
from .layers.softmax import SoftmaxObservation
from .learner import Learner
from .network import Sequential
from .noise import LearnNoise
from .report.progress import progress
from .update_report import Report

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning, NotFittedError
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "GBPClassifier and GBPRegressor need scikit-learn 1.6 or newer: pip install scikit-learn"
    ) from error

_SIGMA = 0.05  # of the layers that are there by default
_FEWEST = 50  # a batch that ends badly is learnt in halves, unless it has no more examples than these


class _GBPEstimator(BaseEstimator):
    """What both have in common."""

    _units = 64

    def __init__(
        self,
        hidden_layers: Sequence[Layer] | None = None,
        *,
        image_shape: tuple[int, ...] | None = None,
        iterations: int = 2000,
        batch_size: int = 2000,
        standardise: bool = True,
        random_state: Any = 0,
    ):
        self.hidden_layers = hidden_layers
        self.image_shape = image_shape
        self.iterations = iterations
        self.batch_size = batch_size
        self.standardise = standardise
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # Inputs.

    def _inputs(self, X: Any, first: bool) -> np.ndarray:
        x: Any = validate_data(self, X, reset=first, dtype=np.float64, ensure_all_finite="allow-nan")
        if self.image_shape is not None and math.prod(self.image_shape) != x.shape[1]:
            raise ValueError(f"image_shape {tuple(self.image_shape)} does not fit X with {x.shape[1]} features")
        return x

    def _begin(self, x: np.ndarray, weight: np.ndarray, outputs: int) -> None:
        """Scales, a model of the inputs, and a learner that knows nothing."""
        seed = self.random_state
        if not isinstance(seed, numbers.Integral):
            seed = check_random_state(seed).randint(2**31)
        shape = (x.shape[1],) if self.image_shape is None else tuple(self.image_shape)
        net = Sequential(*self._hidden(), *self._head(outputs), input_shape=shape)
        self.learner_ = Learner(net, iterations=self.iterations, seed=int(seed))
        self.mean_, self.scale_ = np.zeros(x.shape[1]), np.ones(x.shape[1])
        if self.standardise:
            # The pixels of an image have one scale, so that filters see the same everywhere.
            channels = x.shape[1] if self.image_shape is None else self.image_shape[-1]
            mean, scale = _moments(x.reshape(-1, channels), np.repeat(weight, x.shape[1] // channels))
            self.mean_, self.scale_ = (np.tile(a, x.shape[1] // channels) for a in (mean, scale))
        self.input_model_ = InputModel(x.shape[1])
        self.reports_: list[Report] = []

    def _hidden(self) -> tuple[Layer, ...]:
        if self.hidden_layers is None:
            return (Dense(self._units, "leaky_relu", sigma=_SIGMA, weight_prior=None, bias_prior=0.5),)
        wrong = [h for h in self.hidden_layers if not isinstance(h, Layer) or isinstance(h, Observation)]
        if wrong:
            raise ValueError(
                f"hidden_layers must be layers such as gbp.Dense(32), without observations, got {wrong[0]!r}"
            )
        return tuple(self.hidden_layers)

    def _head(self, outputs: int) -> tuple[Layer, ...]:
        raise NotImplementedError

    def _scaled(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen = ~np.isnan(x)
        return np.where(seen, (x - self.mean_) / self.scale_, 0), seen

    def _given(self, x: np.ndarray, seen: np.ndarray) -> dict[str, Any]:
        """Arguments of the learner: what is missing has the belief that the rest and the model of the inputs give."""
        shape = (len(x), *self.learner_.input_shape)
        if seen.all():
            return {"x": x.reshape(shape)}
        mean, std = self.input_model_.fill(x, seen)
        prior = Gaussian.from_moments(mean=jnp.asarray(mean), std=jnp.asarray(np.where(seen, 1, np.maximum(std, 1e-3))))
        return {
            "x": x.reshape(shape),
            "x_observed": seen.reshape(shape),
            "x_prior": Gaussian(prior.eta.reshape(shape), prior.lam.reshape(shape)),
        }

    # Learning.

    def _learn(self, x: np.ndarray, y: np.ndarray, known: np.ndarray, weight: np.ndarray) -> None:
        """From examples that are all different, batch after batch."""
        order = np.random.default_rng([self.learner_.seed, self.learner_.batches]).permutation(len(x))
        z, seen = self._scaled(x)
        count = -(-len(x) // self.batch_size)
        failed = 0
        for rows in progress(np.array_split(order, count), "fit"):
            self.input_model_.learn(z[rows], seen[rows], weight[rows])
            failed += self._update(z, seen, y, known, weight, rows)
        if failed:
            warnings.warn(
                f"inference ended badly for {failed} of {len(x)} examples, which were left out: see reports_",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _update(self, z: np.ndarray, seen: np.ndarray, y: Any, known: Any, weight: Any, rows: np.ndarray) -> int:
        """Learn from some of the examples; how many were left out."""
        if not known[rows].any():
            return 0  # nothing to learn but what inputs look like
        learner = self.learner_
        size = _room(len(rows))
        if size not in learner._sizes:  # examples of other folds, a few more or fewer, then share the compiled program
            learner._sizes.append(size)
        report = learner.update(
            y=y[rows], y_observed=known[rows], sample_weight=weight[rows], **self._given(z[rows], seen[rows])
        )
        self.reports_.append(report)
        if report.accepted:
            return 0
        if len(rows) <= _FEWEST:
            return len(rows)
        halves = np.array_split(rows, 2)
        return sum(self._update(z, seen, y, known, weight, half) for half in halves)

    def _ask(self, X: Any, parameters: str) -> Gaussian:
        check_is_fitted(self, "learner_")
        z, seen = self._scaled(self._inputs(X, first=False))
        # One program for any number of examples: none depends on the others, not even in its last digit.
        rows = np.minimum(np.arange(-(-len(z) // PREDICT_SIZES[-1]) * PREDICT_SIZES[-1]), len(z) - 1)
        return self.learner_.predict(**self._given(z[rows], seen[rows]), parameters=parameters)[: len(z)]


class GBPClassifier(ClassifierMixin, _GBPEstimator):
    """Classification by a deep factor graph, as an estimator of scikit-learn.

    ```python
    clf = GBPClassifier().fit(X, y)
    clf.partial_fit(X_new, y_new)  # the posterior is the next prior
    clf.predict_proba(X_test)
    ```

    NaN in `X` is what was not observed: it is inferred from the rest, with a Gaussian model of the inputs, and its
    uncertainty counts, in training and in prediction. NaN, or None, in `y` is an example without a label, which tells
    what inputs look like.

    **Arguments:**

    - `hidden_layers`: of the network, such as `[gbp.Conv2D(16, kernel=3), gbp.MaxPool2D(2)]`; by default one dense
        layer of 64 units. The last layer and the head are added.
    - `image_shape`: of an example as layers for images see it, `(height, width, channels)`; `X` is flat all the same.
    - `iterations`: for one batch at most.
    - `batch_size`: examples that are learnt from at a time; more of them are a stream, each seen once.
    - `standardise`: inputs to mean 0 and standard deviation 1, as they are in the data of the first `fit` or
        `partial_fit`; images as a whole, channel by channel.
    - `random_state`: of the prior means that tell hidden units apart, and of the order of examples.

    After `fit`: `classes_`, `learner_` (the `gbp.Learner`, for all else that it can), `reports_` (one for each batch).
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GBPClassifier:
        """Learn from scratch.

        **Arguments:**

        - `X`: `(examples, features)`; `y`: a class for each.
        - `sample_weight`: 2 is the same as an example that occurs twice.
        """
        return self._learn_labels(X, y, None, sample_weight, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> GBPClassifier:
        """Learn more: what is known is the prior.

        **Arguments:**

        - `classes`: all that there will be; needed in the first call, if not all of them are in its `y`.
        """
        return self._learn_labels(X, y, classes, sample_weight, first=not hasattr(self, "learner_"))

    def _learn_labels(self, X: Any, y: Any, classes: Any, sample_weight: Any, first: bool) -> GBPClassifier:
        x = self._inputs(X, first)
        labels, known = _labels(y, len(x), type(self).__name__)
        weight = _weights(sample_weight, x)
        if first:
            self.classes_ = np.unique(labels[known & (weight > 0)] if classes is None else np.asarray(classes))
            if len(self.classes_) < 2:
                raise ValueError(f"{type(self).__name__} needs at least 2 classes, got 1 class")
        number = np.searchsorted(self.classes_, labels[known])
        strange = self.classes_[np.minimum(number, len(self.classes_) - 1)] != labels[known]
        if (strange & (weight[known] > 0)).any():
            raise ValueError(f"y has classes that are not among {self.classes_}: give all of them, classes=")
        targets = np.zeros(len(x))
        targets[known] = np.where(strange, 0, number)
        x, targets, known, weight = _distinct(x, targets, known, weight)
        if first:
            self._begin(x, weight, len(self.classes_))
        self._learn(x, targets, known, weight)
        return self

    def _head(self, outputs: int) -> tuple[Layer, ...]:
        last = Dense(outputs, sigma=_SIGMA, weight_prior=None, bias_prior=0.5, prior=5.0, weight_init=0.0)
        return last, SoftmaxObservation(sigma=0.1)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities `(examples, classes)`: the mean softmax over the belief of the logits, by messages."""
        logits = self._ask(X, "fixed")
        p = np.asarray(self.learner_.net.probabilities(logits), float)
        return p / p.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest probability."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]


class GBPRegressor(RegressorMixin, _GBPEstimator):
    """Regression by a deep factor graph, with its uncertainty, as an estimator of scikit-learn.

    ```python
    reg = GBPRegressor().fit(X, y)
    mean, std = reg.predict(X_test, return_std=True)
    ```

    Targets are standardised inside, the noise of observations is learnt. Missing inputs, `hidden_layers` (by default
    one dense layer of 32 units) and the other arguments as `GBPClassifier`; NaN in `y` is a value that is not known.
    Several targets have one noise, in their standard deviations.

    After `fit`: `noise_` (standard deviation of an observation), `learner_`, `reports_`.
    """

    _units = 32

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GBPRegressor:
        """Learn from scratch. `y`: `(examples,)`, or `(examples, targets)`; `sample_weight`: 2 is the same as twice."""
        return self._learn_values(X, y, sample_weight, first=True)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> GBPRegressor:
        """Learn more: what is known is the prior."""
        return self._learn_values(X, y, sample_weight, first=not hasattr(self, "learner_"))

    def _learn_values(self, X: Any, y: Any, sample_weight: Any, first: bool) -> GBPRegressor:
        x = self._inputs(X, first)
        values = _values(y, len(x), type(self).__name__)
        if first:
            self._flat = values.ndim == 1
        values = values.reshape(len(x), -1)
        weight = _weights(sample_weight, x)
        x, values, weight = _distinct(x, values, weight)
        if first:
            self._begin(x, weight, values.shape[1])
            self._y_mean, self._y_scale = _moments(values, weight)
        if values.shape[1] != len(self._y_mean):
            raise ValueError(f"y has {values.shape[1]} targets, the regressor has learnt {len(self._y_mean)}")
        known = ~np.isnan(values)
        self._learn(x, np.where(known, (values - self._y_mean) / self._y_scale, 0), known, weight)
        return self

    def _head(self, outputs: int) -> tuple[Layer, ...]:
        last = Dense(outputs, sigma=_SIGMA, weight_prior=0.1, bias_prior=0.5, prior=5.0, weight_init=0.0)
        return last, GaussianObservation(sigma=LearnNoise(start=0.5))

    @property
    def noise_(self) -> Any:
        """Standard deviation of an observation, as it was learnt."""
        if not hasattr(self, "learner_"):
            raise NotFittedError("noise_ is known after fit")
        (noise,) = self.learner_.noise.values()
        scale = noise.start * self._y_scale
        return float(scale[0]) if self._flat else scale

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means, by messages with the parameters at their means.

        **Arguments:**

        - `return_std`: also the standard deviation of an observation: uncertainty of the parameters, and noise.
        """
        mean = np.asarray(self._ask(X, "fixed").mean, float) * self._y_scale + self._y_mean
        mean = mean[:, 0] if self._flat else mean
        if not return_std:
            return mean
        std = np.asarray(self._ask(X, "random").std, float) * self._y_scale
        return mean, np.hypot(std[:, 0] if self._flat else std, self.noise_)


def _room(n: int) -> int:
    """A number of rows that is not much larger, of which there are few."""
    step = 2 ** max(0, n.bit_length() - 4)
    return -(-n // step) * step


def _moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column, without NaN; 1 where nothing varies."""
    seen = ~np.isnan(values)
    total = np.maximum((weight[:, None] * seen).sum(0), np.finfo(float).tiny)
    wide = weight[:, None] * np.where(seen, values, 0)
    mean = wide.sum(0) / total
    off = np.where(seen, values - mean, 0)
    std = np.sqrt((weight[:, None] * off**2).sum(0) / total)
    return mean, np.where(std > 1e-9 * np.maximum(1, np.abs(mean)), std, 1.0)


def _weights(sample_weight: Any, x: np.ndarray) -> np.ndarray:
    weight = np.asarray(_check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True))
    if not weight.any():
        raise ValueError("sample_weight is zero for all examples: at least one must count")
    return weight


def _distinct(x: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """Examples that are different; the weights (last column) of equal ones are added up: twice is a weight of 2."""
    counts = columns[-1] > 0
    parts = [a[counts].reshape(int(counts.sum()), -1).astype(float) for a in (x, *columns[:-1])]
    table = np.concatenate(parts, 1)
    # NaN is equal to NaN here: what is missing is missing.
    keys = np.concatenate([np.nan_to_num(table, nan=0.0), np.isnan(table)], 1)
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    weight = np.bincount(which.ravel(), weights=columns[-1][counts])
    return [a[counts][first] for a in (x, *columns[:-1])] + [weight]


def _required(y: Any, name: str) -> None:
    if y is None:
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")


def _labels(y: Any, count: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels as an array, and which of them are known: those that are not None or NaN."""
    _required(y, name)
    labels = column_or_1d(y, warn=True)
    _check_length(labels, count)
    if labels.dtype == object:
        unknown = np.array([v is None or (isinstance(v, float) and math.isnan(v)) for v in labels])
    else:
        unknown = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(count, bool)
    if unknown.all():
        raise ValueError("y has no label at all: at least some examples must have one")
    known = labels[~unknown]
    if labels.dtype.kind == "f" and not np.isfinite(known).all():
        raise ValueError("Input y contains infinity or a value too large.")
    if known.dtype == object:
        try:
            labels, known = labels.copy(), np.array(known.tolist())
        except ValueError:
            raise ValueError("y must be one class for each example") from None
        full = np.zeros(count, known.dtype)
        full[~unknown] = known
        labels = full
    check_classification_targets(known)
    return labels, ~unknown


def _values(y: Any, count: int, name: str) -> np.ndarray:
    """Targets as numbers, NaN where they are not known."""
    _required(y, name)
    try:
        values = np.asarray(y, float)
    except (TypeError, ValueError):
        raise ValueError("y must be numbers, NaN or None where they are not known") from None
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values, warn=True)
    if values.ndim not in (1, 2):
        raise ValueError(f"y must be (examples,) or (examples, targets), got shape {values.shape}")
    _check_length(values, count)
    if np.isinf(values).any():
        raise ValueError("Input y contains infinity or a value too large.")
    if np.isnan(values).all():
        raise ValueError("y has no value at all: at least some examples must have one")
    return values


def _check_length(y: np.ndarray, count: int) -> None:
    if len(y) != count:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: {[count, len(y)]}")
