"""The scikit-learn face: `GBPClassifier` and `GBPRegressor`."""

from __future__ import annotations

import copy
import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from .batch import PREDICT_SIZES
from .compiling import release_memory
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
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

    from .tables import distinct, example_weights, labels_of, moments, roomy, values_of
except ImportError as error:
    raise ImportError(
        "GBPClassifier and GBPRegressor need scikit-learn 1.6 or newer: pip install scikit-learn"
    ) from error

_SIGMA = 0.05  # of the layers that are there by default
_FAR = 1e9  # standard deviations, beyond which float32 has nothing to say
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

    def _anew(self) -> Self:
        """To be fitted in its place: what was fitted before stays if that fails."""
        return copy.copy(self)

    def _become(self, old: Self) -> Self:
        old.__dict__.update(self.__dict__)
        return old

    # Inputs.

    def _inputs(self, X: Any, first: bool) -> np.ndarray:
        x: Any = validate_data(self, X, reset=first, dtype=np.float64, ensure_all_finite="allow-nan")
        if self.image_shape is not None and math.prod(self.image_shape) != x.shape[1]:
            raise ValueError(f"image_shape {tuple(self.image_shape)} does not fit X with {x.shape[1]} features")
        return x

    def _begin(self, x: np.ndarray, weight: np.ndarray, head: tuple[Layer, ...]) -> None:
        """Scales, a model of the inputs, and a learner that knows nothing."""
        for name in ("iterations", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 2:
                raise ValueError(f"{name} must be a whole number >= 2, got {value!r}")
        seed = self.random_state
        if not isinstance(seed, numbers.Integral):
            seed = check_random_state(seed).randint(2**31)
        if int(seed) < 0:
            raise ValueError(f"random_state must be >= 0, got {seed}")
        shape = (x.shape[1],) if self.image_shape is None else tuple(self.image_shape)
        net = Sequential(*self._hidden(), *head, input_shape=shape)
        self.learner_ = Learner(net, iterations=self.iterations, seed=int(seed))
        self.mean_, self.scale_ = np.zeros(x.shape[1]), np.ones(x.shape[1])
        self.input_model_ = InputModel(*moments(x, weight))
        if self.standardise:
            # The pixels of an image have one scale, so that filters see the same everywhere.
            channels = x.shape[1] if self.image_shape is None else self.image_shape[-1]
            mean, scale = moments(x.reshape(-1, channels), np.repeat(weight, x.shape[1] // channels))
            self.mean_, self.scale_ = (np.tile(a, x.shape[1] // channels) for a in (mean, scale))
            self.input_model_ = InputModel(*moments((x - self.mean_) / self.scale_, weight))
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

    def _scaled(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen = ~np.isnan(x)
        z = np.where(seen, (x - self.mean_) / self.scale_, 0)
        far = np.abs(z).max(0) > _FAR
        if far.any():
            raise ValueError(f"feature {int(far.argmax())} of X lies more than {_FAR:g} standard deviations away")
        return z, seen

    def _given(self, x: np.ndarray, seen: np.ndarray, inputs: InputModel) -> dict[str, Any]:
        """Arguments of the learner: what is missing has the belief that the rest and the model of the inputs give."""
        shape = (len(x), *self.learner_.input_shape)
        if seen.all():
            return {"x": x.reshape(shape)}
        mean, std = inputs.fill(x, seen)
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
            inputs = self.input_model_.learnt(z[rows], seen[rows], weight[rows])
            failed += self._update(z, seen, y, known, weight, rows, inputs)
            self.input_model_ = inputs
        if failed:
            warnings.warn(
                f"inference ended badly for {failed} of {len(x)} examples, which were left out: see reports_",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _update(
        self, z: np.ndarray, seen: np.ndarray, y: Any, known: Any, weight: Any, rows: np.ndarray, inputs: InputModel
    ) -> int:
        """Learn from some of the examples; how many were left out."""
        if not known[rows].any():
            return 0  # nothing to learn but what inputs look like
        learner = self.learner_
        size = roomy(len(rows))
        new = size not in learner._sizes
        if new:  # examples of other folds, a few more or fewer, then share the compiled program
            learner._sizes.append(size)
        given = self._given(z[rows], seen[rows], inputs)
        report = learner.update(y=y[rows], y_observed=known[rows], sample_weight=weight[rows], **given)
        if new:
            release_memory()
        self.reports_.append(report)
        if report.accepted:
            return 0
        if len(rows) <= _FEWEST:
            return len(rows)
        halves = np.array_split(rows, 2)
        return sum(self._update(z, seen, y, known, weight, half, inputs) for half in halves)

    def _ask(self, X: Any, parameters: str) -> Gaussian:
        check_is_fitted(self, "learner_")
        given = self._given(*self._scaled(self._inputs(X, first=False)), self.input_model_)
        # One program for any number of examples: none depends on the others, not even in its last digit.
        count = len(given["x"])
        rows = np.minimum(np.arange(-(-count // PREDICT_SIZES[-1]) * PREDICT_SIZES[-1]), count - 1)
        return self.learner_.predict(**{name: a[rows] for name, a in given.items()}, parameters=parameters)[:count]


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
        return self._anew()._learn_labels(X, y, None, sample_weight, first=True)._become(self)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> GBPClassifier:
        """Learn more: what is known is the prior.

        **Arguments:**

        - `classes`: all that there will be; needed in the first call, if not all of them are in its `y`.
        """
        if not hasattr(self, "learner_"):
            return self._anew()._learn_labels(X, y, classes, sample_weight, first=True)._become(self)
        return self._learn_labels(X, y, classes, sample_weight, first=False)

    def _learn_labels(self, X: Any, y: Any, classes: Any, sample_weight: Any, first: bool) -> GBPClassifier:
        x = self._inputs(X, first)
        labels, known = labels_of(y, len(x), type(self).__name__)
        weight = example_weights(sample_weight, x)
        named = None if classes is None else np.unique(np.asarray(classes))
        if first:
            _check_some(known, weight)
            self.classes_ = np.unique(labels[known & (weight > 0)]) if named is None else named
            if len(self.classes_) < 2:
                raise ValueError(f"{type(self).__name__} needs at least 2 classes, got 1 class")
        elif named is not None and not np.array_equal(named, self.classes_):
            raise ValueError(f"classes={named} is not what was given before, {self.classes_}")
        number = np.searchsorted(self.classes_, labels[known])
        strange = self.classes_[np.minimum(number, len(self.classes_) - 1)] != labels[known]
        if (strange & (weight[known] > 0)).any():
            raise ValueError(f"y has classes that are not among {self.classes_}: give all of them, classes=")
        targets = np.zeros(len(x))
        targets[known] = np.where(strange, 0, number)
        x, targets, known, weight = distinct(x, targets, known, weight)
        if first:
            self._begin(x, weight, self._head(len(self.classes_)))
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
        return self._anew()._learn_values(X, y, sample_weight, first=True)._become(self)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> GBPRegressor:
        """Learn more: what is known is the prior."""
        if not hasattr(self, "learner_"):
            return self.fit(X, y, sample_weight)
        return self._learn_values(X, y, sample_weight, first=False)

    def _learn_values(self, X: Any, y: Any, sample_weight: Any, first: bool) -> GBPRegressor:
        x = self._inputs(X, first)
        values = values_of(y, len(x), type(self).__name__)
        if first:
            self._flat = values.ndim == 1
        values = values.reshape(len(x), -1)
        weight = example_weights(sample_weight, x)
        if first:
            _check_some(np.any(~np.isnan(values), axis=1), weight)
        x, values, weight = distinct(x, values, weight)
        if first:
            self._begin(x, weight, self._head(x.shape[1], values.shape[1]))
            self._y_mean, self._y_scale = moments(values, weight)
        if values.shape[1] != len(self._y_mean):
            raise ValueError(f"y has {values.shape[1]} targets, the regressor has learnt {len(self._y_mean)}")
        known = ~np.isnan(values)
        self._learn(x, np.where(known, (values - self._y_mean) / self._y_scale, 0), known, weight)
        return self

    def _head(self, inputs: int, outputs: int) -> tuple[Layer, ...]:
        # Found on ten inputs; a function of few has as much to say, and each of its inputs more.
        wide = max(0.1, 0.3 / math.sqrt(inputs))
        last = Dense(outputs, sigma=_SIGMA, weight_prior=wide, bias_prior=0.5, prior=5.0, weight_init=0.0)
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


def _check_some(known: np.ndarray, weight: np.ndarray) -> None:
    if not (known & (weight > 0)).any():
        raise ValueError("y has no label at all: at least some examples, of a weight that is not 0, must have one")
