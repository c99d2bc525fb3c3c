"""`GBPEstimator`: what the classifier and the regressor with the interface of scikit-learn have in common."""

from __future__ import annotations

import copy
import inspect
import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.compiling import release_memory
from ..core.gaussian import Gaussian
from ..engine.result import Status
from ..layers.activation import SmoothLeakyRelu
from ..layers.dense import Dense
from ..layers.layer import Layer, Observation
from ..learner.learner import Learner
from ..learner.passes import Part, learn_from_the_start, learn_in_passes
from ..learner.report import Report
from ..network.batch import PREDICT_SIZES
from ..network.sequential import Sequential
from .input_model import InputModel
from .validation import moments, roomy, text_column

SIGMA = 0.05  # of the layers that are there by default
_FEW, _ROOTS = 25, 2.0  # a batch has so many examples, or so many times the root of all if that is more
_JOINT = 200  # targets of a batch that is learnt from jointly: matrices have so many rows
_LEAST_TRUST = 1e-6  # of an example, however wild: a batch without any weight is none
_FAR = 1e9  # standard deviations, beyond which float32 is not precise enough


class GBPEstimator(BaseEstimator):
    """Scales and checks inputs, and learns in passes; a subclass adds the head and the targets."""

    _units = 64

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
        random_state: Any = 0,
    ):
        self.hidden_layers = hidden_layers
        self.image_shape = image_shape
        self.iterations = iterations
        self.passes = passes
        self.batch_size = batch_size
        self.forgetting = forgetting
        self.process_noise = process_noise
        self.standardise = standardise
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle; older ones have fewer parameters."""
        new = {
            name: p.default for name, p in inspect.signature(type(self).__init__).parameters.items() if name != "self"
        }
        super().__setstate__(new | state)

    def _anew(self) -> Self:
        """A copy to fit: if that fails, the estimator stays as it was."""
        out = copy.copy(self)
        if hasattr(self, "learner_"):
            out.learner_ = copy.copy(self.learner_)
        return out

    def _become(self, old: Self) -> Self:
        old.__dict__.update(self.__dict__)
        return old

    # Inputs.

    def _inputs(self, X: Any, first: bool) -> np.ndarray:
        try:
            x: Any = validate_data(self, X, reset=first, dtype=np.float64, ensure_all_finite="allow-nan")
        except ValueError as error:
            found = text_column(X)
            if found is None:
                raise
            how = f"ColumnTransformer([('onehot', OneHotEncoder(), [{found[0]!r}])], remainder='passthrough')"
            raise ValueError(
                f"column {found[0]!r} of X holds text ({found[1]!r}), not numbers: encode it first, "
                f"with scikit-learn's {how}"
            ) from error
        if self.image_shape is not None and math.prod(self.image_shape) != x.shape[1]:
            raise ValueError(f"image_shape {tuple(self.image_shape)} does not fit X with {x.shape[1]} features")
        return x

    @property
    def _jointly(self) -> bool:
        """Whether batches are learnt from jointly, by vectors: exact where there is no hidden layer."""
        return not self._hidden()

    def _begin(self, x: np.ndarray, weight: np.ndarray, head: tuple[Layer, ...]) -> None:
        """Scales, a model of the inputs, and a learner that has learnt nothing yet."""
        for name, least in (("iterations", 2), ("passes", 1), ("batch_size", 2)):
            value = getattr(self, name)
            if not _is_whole(value, least) and not (name == "batch_size" and value is None):
                raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
        seed = self.random_state
        if not isinstance(seed, numbers.Integral):
            seed = check_random_state(seed).randint(2**31)
        if int(seed) < 0:
            raise ValueError(f"random_state must be >= 0, got {seed}")
        shape = (x.shape[1],) if self.image_shape is None else tuple(self.image_shape)
        net = Sequential(*self._hidden(), *head, input_shape=shape)
        self.learner_ = Learner(
            net,
            activations="vector" if self._jointly else "scalar",
            iterations=self.iterations,
            forgetting=self.forgetting,
            process_noise=self.process_noise,
            unusual="learn",  # no row of a table is left out unless inference fails
            strained="learn",
            seed=int(seed),
        )
        self.mean_, self.scale_ = np.zeros(x.shape[1]), np.ones(x.shape[1])
        self.input_model_ = InputModel(*moments(x, weight))
        if self.standardise:
            # The pixels of an image have one scale, so that filters work the same everywhere.
            channels = x.shape[1] if self.image_shape is None else self.image_shape[-1]
            mean, scale = moments(x.reshape(-1, channels), np.repeat(weight, x.shape[1] // channels))
            self.mean_, self.scale_ = (np.tile(a, x.shape[1] // channels) for a in (mean, scale))
            self.input_model_ = InputModel(*moments((x - self.mean_) / self.scale_, weight))
        self.reports_: list[Report] = []

    @staticmethod
    def _dense(units: int) -> Dense:
        return Dense(units, SmoothLeakyRelu(width=SIGMA), sigma=SIGMA, weight_prior=None, bias_prior=0.5)

    def _hidden(self) -> tuple[Layer, ...]:
        if self.hidden_layers is None:
            return (self._dense(self._units),)
        given = (
            self.hidden_layers if isinstance(self.hidden_layers, (list, tuple, np.ndarray)) else (self.hidden_layers,)
        )
        return tuple(self._hidden_layer(h) for h in given)

    def _hidden_layer(self, given: Any) -> Layer:
        if _is_whole(given, 1):
            return self._dense(int(given))
        if isinstance(given, Layer) and not isinstance(given, Observation):
            return given
        expected = "numbers of units, or layers such as gbp.Dense(32) that are no observations"
        raise ValueError(f"hidden_layers must be {expected}, got {given!r}")

    def _scaled(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs in their scales, 0 where they are missing, and the mask of those that are observed."""
        observed = ~np.isnan(x)
        z = np.where(observed, (x - self.mean_) / self.scale_, 0)
        far = np.abs(z).max(0) > _FAR
        if far.any():
            raise ValueError(f"feature {int(far.argmax())} of X lies more than {_FAR:g} standard deviations away")
        return z, observed

    def _learner_arguments(self, x: np.ndarray, observed: np.ndarray, inputs: InputModel) -> dict[str, Any]:
        """Inputs as arguments of the learner; missing ones have their belief by the model of the inputs as prior."""
        shape = (len(x), *self.learner_.input_shape)
        if observed.all():
            return {"x": x.reshape(shape)}
        mean, std = inputs.fill(x, observed)
        std = np.where(observed, 1, np.maximum(std, 1e-3))
        prior = Gaussian.from_moments(mean=jnp.asarray(mean), std=jnp.asarray(std))
        return {
            "x": x.reshape(shape),
            "x_observed": observed.reshape(shape),
            "x_prior": Gaussian(prior.eta.reshape(shape), prior.lam.reshape(shape)),
        }

    # Learning.

    def _learn(self, x: np.ndarray, y: np.ndarray, known: np.ndarray, weight: np.ndarray) -> None:
        """From examples that are all different, batch after batch, in several passes."""
        learner = self.learner_
        order = np.random.default_rng([learner.seed, learner.batches]).permutation(len(x))
        z, observed = self._scaled(x)
        batches = np.array_split(order, -(-len(x) // self._size(len(x))))
        for rows in batches:
            self.input_model_ = self.input_model_.learnt(z[rows], observed[rows], weight[rows])
        labelled = [rows for rows in batches if known[rows].any()]  # the others train the model of the inputs only
        if not labelled:
            return
        size = roomy(max(map(len, labelled)))
        new = learner.expect_size(size)  # examples of other folds, a few more or fewer, then share the compiled program

        def update(rows: np.ndarray) -> Report:
            given = self._learner_arguments(z[rows], observed[rows], self.input_model_)
            trust = weight[rows] * np.maximum(self._trust(given, y[rows], known[rows]), _LEAST_TRUST)
            return learner.update(y=y[rows], y_observed=known[rows], sample_weight=trust, **given)

        learn = learn_from_the_start if learner.activations == "vector" else learn_in_passes
        parts, reports = learn(learner, labelled, update, self.passes)
        if new:
            release_memory()
        self.reports_ = [*self.reports_, *reports]
        self.n_iter_ = max(r.iterations for r in reports)
        self._warn(parts)

    def _trust(self, given: dict[str, Any], y: np.ndarray, known: np.ndarray) -> np.ndarray | float:
        """The weight of each of some examples, by how well they fit what was learnt without them."""
        return 1.0

    def _size(self, count: int) -> int:
        """The size of the batches of so many examples."""
        if self.batch_size is not None:
            return self.batch_size
        if self.learner_.activations == "vector":
            return max(_FEW, _JOINT // self.learner_.net.shapes(self.learner_.input_shape)[self.learner_.net.output][0])
        return max(_FEW, round(_ROOTS * math.sqrt(count)))

    def _warn(self, parts: list[Part]) -> None:
        """Warn of batches that were left out, or had not settled when they were visited last."""
        lost = sum(len(p.rows) for p in parts if p.report is None)
        restless = sum(p.report is not None and _restless(p.report, self.iterations) for p in parts)
        every = sum(len(p.rows) for p in parts)
        if lost:
            text = f"inference ended badly for {lost} of {every} examples, which were left out: see reports_"
            warnings.warn(text, ConvergenceWarning, stacklevel=5)
        if restless:
            limit = f"the limit of {self.iterations} iterations before the parameters had settled"
            text = f"{restless} of {len(parts)} batches ended at {limit}: give more iterations=, or see reports_"
            warnings.warn(text, ConvergenceWarning, stacklevel=5)

    def _predict_table(self, X: Any, parameters: str) -> Gaussian:
        """The belief of the outputs for a table as users have it."""
        check_is_fitted(self, "learner_")
        given = self._learner_arguments(*self._scaled(self._inputs(X, first=False)), self.input_model_)
        return self._predict_batch(given, parameters)

    def _predict_batch(self, given: dict[str, Any], parameters: str) -> Gaussian:
        """The belief of the outputs for arguments of the learner."""
        # One program for any number of examples: none depends on the others, not even in its last digit.
        count = len(given["x"])
        rows = np.minimum(np.arange(-(-count // PREDICT_SIZES[-1]) * PREDICT_SIZES[-1]), count - 1)
        return self.learner_.predict(**{name: a[rows] for name, a in given.items()}, parameters=parameters)[:count]


def _restless(report: Report, limit: int) -> bool:
    """Whether a batch ran out of iterations (of layers that do not hold there is another status)."""
    strained = report.status is Status.STRAINED and report.iterations >= limit
    return strained or report.status is Status.ITERATION_LIMIT


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
