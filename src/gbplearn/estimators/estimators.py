"""`GBPClassifier` and `GBPRegressor`: networks with the interface of scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..core.noise import LearnNoise
from ..core.robust import Kernel, Tukey
from ..layers.categorical import CategoricalObservation
from ..layers.dense import Dense
from ..layers.gaussian_observation import GaussianObservation
from ..layers.layer import Layer
from ..layers.softmax import SoftmaxObservation

try:
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    from .base import SIGMA, GBPEstimator
    from .validation import check_some, distinct, example_weights, labels_of, moments, robust_moments, values_of
except ImportError as error:
    raise ImportError(
        "GBPClassifier and GBPRegressor need scikit-learn 1.6 or newer: pip install scikit-learn"
    ) from error

# Of networks without hidden layers, where inputs and targets have standard deviation 1: prior of the weights, noise of
# the outputs, and their prior, which is there for hidden layers and should not count.
_WEIGHTS, _CLASS_WEIGHTS, _LINEAR_SIGMA, _LINEAR_PRIOR = 3.0, 1.0, 1e-3, 1e3
_WILD = 3.0  # standard deviations, beyond which a robust regressor trusts a value less


def _linear(outputs: int, weights: float) -> Dense:
    """The one layer of a network without hidden ones, with a covariance for each unit."""
    return Dense(
        outputs,
        sigma=_LINEAR_SIGMA,
        weight_prior=weights,
        bias_prior=weights,
        prior=_LINEAR_PRIOR,
        weight_init=0.0,
        posterior="block",
    )


class GBPClassifier(ClassifierMixin, GBPEstimator):
    """Classification by a deep factor graph, as an estimator of scikit-learn.

    ```python
    clf = GBPClassifier().fit(X, y)
    clf.partial_fit(X_new, y_new)  # the posterior is the next prior
    clf.predict_proba(X_test)
    ```

    NaN in `X` is a missing input: it is inferred from the others, with a Gaussian model of the inputs, and its
    uncertainty counts, in training and in prediction. NaN, or None, in `y` is an example without a label: only the
    model of the inputs learns from it.

    **Arguments:**

    - `hidden_layers`: of the network: numbers of units of dense layers, as `(64, 32)`, or layers, as
        `[gbp.Conv2D(16, kernel=3), gbp.MaxPool2D(2)]`; by default one dense layer of 64 units. The last layer and the
        head are added. With none, `[]`, it is a linear model of the classes' likelihood, whose weights have a
        covariance: batches are learnt from jointly, once.
    - `image_shape`: of an example as layers for images take it, `(height, width, channels)`; `X` is flat all the same.
    - `iterations`: for one visit of one batch at most. If a batch has not settled by then when it is visited last, a
        `ConvergenceWarning` is given.
    - `passes`: how often each batch is visited, at most. Its contribution is divided away before it is visited again,
        so that it counts once.
    - `batch_size`: examples that are visited at a time; by default 25, or twice the root of their number if that is
        more: small batches settle within some ten iterations. Without hidden layers as many as have 200 outputs.
    - `forgetting`, `process_noise`: applied to the posterior before each `partial_fit`, see `gbp.Filtering`.
    - `standardise`: inputs to mean 0 and standard deviation 1, as they are in the data of the first `fit` or
        `partial_fit`; images as a whole, channel by channel.
    - `random_state`: of the prior means, which break the symmetry of hidden units, and of the order of examples.

    After `fit`: `classes_`, `learner_` (the `gbp.Learner`, for all else that it can), `reports_` (one for each visit of
    a batch), `n_iter_` (the most iterations that one of them took).
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GBPClassifier:
        """Learn from scratch.

        **Arguments:**

        - `X`: `(examples, features)`; `y`: a class for each.
        - `sample_weight`: 2 is the same as an example that occurs twice.
        """
        return self._anew()._learn_labels(X, y, None, sample_weight, first=True)._become(self)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> GBPClassifier:
        """Learn more: the posterior so far is the prior.

        **Arguments:**

        - `classes`: all that there will be; needed in the first call, if not all of them are in its `y`.
        """
        first = not hasattr(self, "learner_")
        return self._anew()._learn_labels(X, y, classes, sample_weight, first=first)._become(self)

    def _learn_labels(self, X: Any, y: Any, classes: Any, sample_weight: Any, first: bool) -> GBPClassifier:
        x = self._inputs(X, first)
        labels, known = labels_of(y, len(x), type(self).__name__)
        weight = example_weights(sample_weight, x)
        named = None if classes is None else np.unique(np.asarray(classes))
        if first:
            check_some(known, weight)
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
        if self._jointly:
            return _linear(outputs, _CLASS_WEIGHTS), CategoricalObservation()
        last = Dense(outputs, sigma=SIGMA, weight_prior=None, bias_prior=0.5, prior=5.0, weight_init=0.0)
        return last, SoftmaxObservation(sigma=0.1)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities `(examples, classes)`: the mean softmax over the belief of the logits, by messages.

        Without hidden layers, where covariances are kept, the uncertainty of the parameters counts.
        """
        check_is_fitted(self, "learner_")
        logits = self._predict_table(X, "random" if self.learner_.activations == "vector" else "fixed")
        p = np.asarray(self.learner_.net.probabilities(logits), float)
        return p / p.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The class with the largest probability."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]


class GBPRegressor(RegressorMixin, GBPEstimator):
    """Regression by a deep factor graph, with its uncertainty, as an estimator of scikit-learn.

    ```python
    reg = GBPRegressor().fit(X, y)
    mean, std = reg.predict(X_test, return_std=True)
    ```

    Targets are standardised inside, the noise of observations is learnt. Missing inputs, `hidden_layers` (by default
    one dense layer of 32 units) and the other arguments as `GBPClassifier`; NaN in `y` is a value that is not known.
    Several targets have one noise, in their standard deviations. Without hidden layers (`[]`) and `robust` it is
    Bayesian linear regression, with the prior N(0, 3²) of the weights: exact given the noise, which passes find.

    **Arguments:**

    - `robust`: True if some values in `y` may be wild: they are standardised by their medians, and a value that lies
        more than 3 standard deviations from what all other batches predict counts less (`gbp.Tukey(3)`; another kernel
        may be given).

    After `fit`: `noise_` (standard deviation of an observation), `learner_`, `reports_`, `n_iter_`.
    """

    _units = 32

    def __init__(
        self,
        hidden_layers: int | Sequence[int | Layer] | None = None,
        *,
        image_shape: tuple[int, ...] | None = None,
        iterations: int = 1000,
        passes: int = 4,
        batch_size: int | None = None,
        forgetting: float = 1.0,
        process_noise: float = 0.0,
        standardise: bool = True,
        robust: bool | Kernel = False,
        random_state: Any = 0,
    ):
        super().__init__(
            hidden_layers,
            image_shape=image_shape,
            iterations=iterations,
            passes=passes,
            batch_size=batch_size,
            forgetting=forgetting,
            process_noise=process_noise,
            standardise=standardise,
            random_state=random_state,
        )
        self.robust = robust

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GBPRegressor:
        """Learn from scratch. `y`: `(examples,)`, or `(examples, targets)`; `sample_weight`: 2 is the same as twice."""
        return self._anew()._learn_values(X, y, sample_weight, first=True)._become(self)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> GBPRegressor:
        """Learn more: the posterior so far is the prior."""
        if not hasattr(self, "learner_"):
            return self.fit(X, y, sample_weight)
        return self._anew()._learn_values(X, y, sample_weight, first=False)._become(self)

    def _learn_values(self, X: Any, y: Any, sample_weight: Any, first: bool) -> GBPRegressor:
        x = self._inputs(X, first)
        values = values_of(y, len(x), type(self).__name__)
        if first:
            self._flat = values.ndim == 1
        values = values.reshape(len(x), -1)
        weight = example_weights(sample_weight, x)
        if first:
            check_some(np.any(~np.isnan(values), axis=1), weight)
        x, values, weight = distinct(x, values, weight)
        if first:
            self._begin(x, weight, self._head(x.shape[1], values.shape[1]))
            self._y_mean, self._y_scale = (robust_moments if self._kernel() else moments)(values, weight)
        if values.shape[1] != len(self._y_mean):
            raise ValueError(f"y has {values.shape[1]} targets, the regressor has learnt {len(self._y_mean)}")
        known = ~np.isnan(values)
        self._learn(x, np.where(known, (values - self._y_mean) / self._y_scale, 0), known, weight)
        return self

    def _kernel(self) -> Kernel | None:
        if isinstance(self.robust, Kernel):
            return self.robust
        if not isinstance(self.robust, (bool, np.bool_)):
            raise ValueError(f"robust must be True, False, or a gbp.Tukey or gbp.Huber, got {self.robust!r}")
        return Tukey(_WILD) if self.robust else None

    def _trust(self, given: dict[str, Any], y: np.ndarray, known: np.ndarray) -> np.ndarray | float:
        """By the distance of a value from what all others predict, in standard deviations of an observation."""
        kernel = self._kernel()
        if kernel is None:
            return 1.0
        (noise,) = self.learner_.noise.values()
        found = self._predict_batch(given, "random")
        squared = (y - np.asarray(found.mean)) ** 2 / (np.asarray(found.std) ** 2 + noise.start**2)
        return np.asarray(kernel.scale(jnp.asarray(np.where(known, squared, 0)))).min(1)

    @property
    def _jointly(self) -> bool:
        return super()._jointly and self._kernel() is None  # trust takes what a batch has taught back

    def _head(self, inputs: int, outputs: int) -> tuple[Layer, ...]:
        if self._jointly:
            return _linear(outputs, _WEIGHTS), GaussianObservation(sigma=LearnNoise(start=0.5))
        # Found on ten inputs; a function of fewer varies as much, and more with each of its inputs.
        wide = max(0.1, 0.3 / math.sqrt(inputs))
        last = Dense(outputs, sigma=SIGMA, weight_prior=wide, bias_prior=0.5, prior=5.0, weight_init=0.0)
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
        mean = np.asarray(self._predict_table(X, "fixed").mean, float) * self._y_scale + self._y_mean
        mean = mean[:, 0] if self._flat else mean
        if not return_std:
            return mean
        std = np.asarray(self._predict_table(X, "random").std, float) * self._y_scale
        return mean, np.hypot(std[:, 0] if self._flat else std, self.noise_)
