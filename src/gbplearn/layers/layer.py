"""The contract of a layer with `Sequential`: shapes, parameters, and the factor that joins them.

The mathematics of a layer (its energy and Jacobian) is its `FactorKind`; this is how it is put into a graph.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from jax import Array

from ..core.image_correlation import ImageCorrelation
from ..core.robust import Kernel
from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Prior of a parameter: `N(w0, prior²)`, with `w0 ~ N(0, init²)` drawn once.

    As long as nothing is known but the prior, the first linearisation is `start` off from there, at random.
    """

    shape: Shape
    prior: float | np.ndarray  # arrays broadcast to the shape
    init: float | np.ndarray
    start: float | np.ndarray = 0.0
    posterior: str = "diagonal"  # else the last axis is one vector variable (`core/vector.py`), see `POSTERIORS`
    correlation: ImageCorrelation | None = None  # of the numbers of a vector

    def draw(self, generator: np.random.Generator) -> np.ndarray:
        """The random prior means."""
        drawn = generator.standard_normal(self.shape)
        if self.correlation is not None and np.any(self.init):
            drawn = drawn @ self.correlation.root().T
        return self.init * drawn


# What a belief keeps of the weights of a layer. "auto" is "diagonal" where activations are scalars; where they are
# vectors, a learner chooses (`network/choices.py`).
POSTERIORS = ("auto", "diagonal", "block", "shared", "rotated")


def of_vectors(posterior: str) -> bool:
    """Whether the weights and the bias of a unit are one vector variable."""
    return posterior not in ("auto", "diagonal")


def check_posterior(layer: str, posterior: str) -> None:
    """Raise unless it is one of `POSTERIORS`."""
    if posterior not in POSTERIORS:
        raise ValueError(f"{layer}: posterior must be one of {', '.join(map(repr, POSTERIORS))}, got {posterior!r}")


def unit_parameters(posterior: str, weight: Parameter, bias: Parameter) -> dict[str, Parameter]:
    """Weights and biases of a layer as one vector a unit: all incoming weights, then the bias.

    **Arguments:** `weight`, `bias`: with the units along their last axis, as a layer of scalars has them.
    """
    units, inputs = weight.shape[-1], math.prod(weight.shape[:-1])
    prior, init, start = (
        np.append(np.full(inputs, of_weight), of_bias)
        for of_weight, of_bias in ((weight.prior, bias.prior), (weight.init, bias.init), (weight.start, bias.start))
    )
    return {"parameters": Parameter((units, inputs + 1), prior, init, start, posterior, weight.correlation)}


# Of a number that the user leaves to us: with scalar activations it is that of the published networks, with vector ones
# a learner chooses (`network/choices.py`).
AUTO = "auto"
OUTPUT_PRIOR = 3.0


def given_or(value: Any, default: float) -> Any:
    """A number, or the default for `AUTO`."""
    return default if isinstance(value, str) else value


def weight_scale(value: Any, default: float, gain: float, summed: int | float) -> Any:
    """Standard deviation of weights: as given; `AUTO`: the default; None: by how many numbers they add up."""
    return gain / math.sqrt(summed) if value is None else given_or(value, default)


class Layer(abc.ABC):
    """A part of a network, as the user writes it down."""

    label: ClassVar[str]  # what variables and factors are named after unless `name` is given
    name: str | None

    @abc.abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Shape of one example's outputs for inputs of `shape`; a `ValueError` says what does not fit."""


class Transform(Layer):
    """A layer with outputs of its own: new variables, joined to the inputs by one factor group."""

    prior: Any  # standard deviation of the outputs' prior N(0, prior²), or `AUTO`
    passes_few: ClassVar[bool] = False  # whether most derivatives of outputs with respect to its inputs are 0

    @property
    def output_prior(self) -> float:
        """The standard deviation of the outputs' prior."""
        return float(given_or(self.prior, OUTPUT_PRIOR))

    @property
    def generative(self) -> bool:
        """Whether the outputs explain the inputs, and not the other way round."""
        return False

    @abc.abstractmethod
    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """The parameters for inputs of `shape`."""

    @property
    def fits_means(self) -> bool:
        """Whether prior means of its parameters follow from the first inputs that it takes (`fitted_means`)."""
        return False

    def fitted_means(self, x: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Prior means of its parameters, by name, given its first inputs `(n, ...)`; a `ValueError` if none follow."""
        return {}

    @abc.abstractmethod
    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """The factor group that joins them."""

    @abc.abstractmethod
    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array | None:
        """Outputs as a function of inputs, to start from, in JAX's operations (it is compiled).

        None if the layer does not run that way.
        """


class Relation(Layer):
    """Something known beforehand of the variables it stands behind: it adds factors among them, no new variables."""

    @abc.abstractmethod
    def factors(self, name: str, variable: Variable) -> list[Factor]:
        """The factor groups, with the batch as the first axis of each grid."""


class Observation(Layer):
    """Something measured of the variables it stands behind: a head, or the input itself."""

    whole_rows: ClassVar[bool] = False  # what is measured of an example is one thing, known or not

    def output_shape(self, shape: Shape) -> Shape:
        """No new variables."""
        return shape

    @abc.abstractmethod
    def target(self, y: Any, shape: Shape) -> np.ndarray:
        """What the user observed of variables of `shape` (with the batch), as numbers.

        A `ValueError` says what does not fit.
        """

    @abc.abstractmethod
    def factor(self, name: str, variable: Variable, target: np.ndarray) -> Factor:
        """The factor group that observes a variable."""


def check_whole(layer: str, **values: int) -> None:
    """Raise unless every number is a whole one >= 1."""
    for what, value in values.items():
        if isinstance(value, bool) or not (isinstance(value, (int, np.integer)) and value >= 1):
            raise ValueError(f"{layer}: {what} must be a whole number >= 1, got {value!r}")


def check_positive(layer: str, **values: float | None) -> None:
    """Raise unless every number is > 0 and finite."""
    for what, value in values.items():
        number = not isinstance(value, bool) and isinstance(value, numbers.Real | np.number | np.ndarray | Array)
        if value is None or not number or np.ndim(value) or not (0 < value < math.inf):
            raise ValueError(f"{layer}: {what} must be a number > 0, got {value!r}")


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def check_positive_or_auto(layer: str, **values: Any) -> None:
    """The same, but for `AUTO`."""
    check_positive(layer, **{what: value for what, value in values.items() if not _is_auto(value)})


def check_robust(layer: str, robust: Any) -> None:
    """Raise unless it is a robust kernel, or None."""
    if robust is not None and not isinstance(robust, Kernel):
        raise ValueError(f"{layer}: robust must be gbp.Tukey(...) or the like, got {robust!r}")


def check_not_negative(layer: str, **values: float | None) -> None:
    """Raise unless every number is >= 0 and finite, or None."""
    check_positive(layer, **{what: value for what, value in values.items() if value is not None and value != 0})
