"""The dense layer.

Energy of example `b` and output `o`, one factor (M = 1) each, with inputs `x`, weights `w`, bias `d`, outputs `y` and
activation function `g`:

    E_bo = (y_bo - g(a_bo))² / (2 sigma²) ,   a_bo = sum_i x_bi w_io + d_o

The *generative* direction is the same energy with the layer's outputs in the place of `x` and its inputs in the place
of `y`: the outputs explain the inputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from ..core.image_correlation import ImageCorrelation
from ..edges.axes import AxesEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Identity, Operator, Product, Shape, Shared, UnitRows
from ..graph.factor import Factor
from ..graph.variable import Variable
from ..kernels.forms import MatrixForm
from .activation import Elementwise, find_activation, negative_slope, value_and_slope
from .layer import (
    AUTO,
    Parameter,
    Transform,
    check_not_negative,
    check_positive,
    check_positive_or_auto,
    check_posterior,
    check_whole,
    given_or,
    of_vectors,
    unit_parameters,
    weight_scale,
)

_WEIGHT_PRIOR = 0.15  # of scalars, where none is given


class DenseKind(FactorKind):
    """`h = y - g(x w + d)`, measured to be 0. Arguments: `x (B, ...)`, `w (I, O)`, `d (O,)`, `y (B, ...)`."""

    activation: Elementwise = eqx.field(static=True)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example and output; its row runs over the inputs."""
        x, w, d, y = shapes
        (batch, *_), (inputs, outputs) = x, w
        if math.prod(x[1:]) != inputs or y[0] != batch or math.prod(y[1:]) != outputs or d != (outputs,):
            raise ValueError(f"a dense layer cannot join x {x}, weights {w}, bias {d} and y {y}")
        grid = (batch, outputs)
        return Layout(
            grid,
            (),
            (
                AxesEdges(x, (0, 2), (*grid, inputs)),
                AxesEdges(w, (2, 1), (*grid, inputs)),
                AxesEdges(d, (1,), (*grid, 1)),
                AxesEdges(y, (0, 1), (*grid, 1)),
            ),
        )

    def value(self, *args: Array) -> Float[Array, "b o"]:
        """`y - g(a)`."""
        x, w, d, y = args
        return y.reshape(y.shape[0], -1) - self.activation(_matrix(w, x) + d)

    def form(self, *args: Array) -> MatrixForm | None:
        """The rows are the examples."""
        slope = negative_slope(self.activation) if type(self) is DenseKind else None
        return None if slope is None else MatrixForm(args[0].reshape(args[0].shape[0], -1), slope)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`-g' w`, `-g' x`, `-g'`, `1`."""
        x, w, d, y = args
        edges = self.layout(*(a.shape for a in args)).edges
        slope = -value_and_slope(self.activation, _matrix(w, x) + d)[1]
        return (
            Product(w, slope, edges[1], edges[0], _matrix),
            Product(x, slope, edges[0], edges[1], _weights),
            Shared(slope),
            Identity(y.shape, y.dtype),
        )


class DenseUnitsKind(FactorKind):
    """The same with the parameters of a unit as one vector. Arguments: `x (B, ...)`, `w (O, I + 1)`, `y (B, ...)`."""

    activation: Elementwise = eqx.field(static=True)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example and output."""
        x, w, y = shapes
        (batch, *_), (outputs, numbers) = x, w
        if math.prod(x[1:]) + 1 != numbers or y[0] != batch or math.prod(y[1:]) != outputs:
            raise ValueError(f"a dense layer cannot join x {x}, parameters {w} and y {y}")
        grid = (batch, outputs)
        return Layout(
            grid,
            (),
            (
                AxesEdges(x, (0, 2), (*grid, numbers - 1)),
                AxesEdges((outputs,), (1,), (*grid, 1)),
                AxesEdges(y, (0, 1), (*grid, 1)),
            ),
        )

    def value(self, *args: Array) -> Float[Array, "b o"]:
        """`y - g(a)`."""
        x, w, y = args
        return y.reshape(y.shape[0], -1) - self.activation(_with_one(x) @ w.T)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`-g' w`, `-g'` along the rows `(x, 1)`, `1`."""
        x, w, y = args
        edges = self.layout(*(a.shape for a in args)).edges
        rows, weight = _with_one(x), w[:, :-1].T
        slope = -value_and_slope(self.activation, rows @ w.T)[1]
        of_weights = AxesEdges(weight.shape, (2, 1), (*slope.shape, weight.shape[0]))
        return (
            Product(weight, slope, of_weights, edges[0], _matrix),
            UnitRows(rows, slope),
            Identity(y.shape, y.dtype),
        )


def _with_one(x: Array) -> Float[Array, "b p"]:
    flat = x.reshape(x.shape[0], -1)
    return jnp.concatenate([flat, jnp.ones((flat.shape[0], 1), flat.dtype)], 1)


def _matrix(w: Array, x: Array) -> Float[Array, "b o"]:
    return x.reshape(x.shape[0], -1) @ w


def _weights(x: Array, w: Array) -> Float[Array, "b o"]:
    return _matrix(w, x)


@dataclasses.dataclass(frozen=True)
class Dense(Transform):
    """A fully connected layer: `outputs ~ N(g(inputs w + d), sigma²)`. Inputs of any shape are flattened.

    ```python
    gbp.Dense(8, activation="leaky_relu", sigma=0.1, weight_prior=3.0, bias_prior=1.0, prior=5.0)
    ```

    **Arguments:**

    - `units`: number of outputs.
    - `activation`: "linear", "leaky_relu" (slope 0.2), "relu", "sigmoid", "tanh", "elu", "softplus",
        `gbp.LeakyRelu(slope)`, `gbp.SmoothLeakyRelu(slope, width)`, or any elementwise JAX function.
    - `sigma`: standard deviation of the outputs around `g(inputs w + d)`.
    - `weight_prior`, `bias_prior`: standard deviations of the priors of the parameters. `weight_prior=None` is
        `gain / √n` for weights that add `n` numbers up: with a gain of 1 the sum is then as large as these are. "auto"
        is 0.15 with scalar activations; with vector ones a learner chooses, for inputs about as large as 1.
    - `weight_init`, `bias_init`: standard deviations of the random prior *means*; `weight_init` is `weight_prior` by
        default, `bias_init` 0. With all means zero all hidden units would stay equal.
    - `prior`: standard deviation of the prior of the outputs; "auto" is 3, and 50 for the last layer with vector
        activations.
    - `direction`: "forward", or "generative": the outputs explain the inputs, with weights `(units, inputs)` and a bias
        for each input.
    - `posterior`: what beliefs keep of the parameters: "diagonal", a variance of each; "block", a covariance of all
        weights into a unit and its bias, which are then one variable `name/parameters (units, inputs + 1)`; "shared",
        one covariance for all units; "rotated", variances along the principal axes of the layer (vector activations
        only). "auto" is "diagonal" with scalar activations; with vector ones a learner chooses.
    - `gain`: on `weight_prior=None`.
    - `length_scale`: for inputs that are images, in pixels: in the prior weights of a channel are the more alike, the
        nearer to each other their pixels are (correlation `(1 + a) exp(-a)` with `a = √3 distance / length_scale`).
        None: weights are independent in the prior. Scalar beliefs cannot express it; `posterior="auto"` is then
        "shared" with scalar activations, too.
    - `name`: of its variables: `name/weight`, `name/bias`, and `name` for the outputs.
    """

    units: int
    activation: str | Elementwise = "linear"
    sigma: float = 0.01
    weight_prior: float | str | None = AUTO
    bias_prior: float | str = AUTO
    prior: float | str = AUTO
    weight_init: float | None = None
    bias_init: float = 0.0
    direction: str = "forward"
    name: str | None = None
    posterior: str = "auto"
    gain: float = 1.0
    length_scale: float | None = None
    label: ClassVar[str] = "dense"

    def __post_init__(self):
        check_whole("Dense", units=self.units)
        if self.direction not in ("forward", "generative"):
            raise ValueError(f"Dense: direction must be 'forward' or 'generative', got {self.direction!r}")
        check_positive("Dense", sigma=self.sigma, gain=self.gain)
        check_positive_or_auto("Dense", bias_prior=self.bias_prior, prior=self.prior)
        if self.weight_prior is not None:
            check_positive_or_auto("Dense", weight_prior=self.weight_prior)
        if self.length_scale is not None:
            check_positive("Dense", length_scale=self.length_scale)
            if self.generative:
                raise ValueError("Dense: length_scale is for weights that look at an image: direction='forward'")
            if self.posterior == "diagonal":
                raise ValueError("Dense: length_scale needs posterior='block', 'shared' or 'rotated', got 'diagonal'")
        check_not_negative("Dense", weight_init=self.weight_init, bias_init=self.bias_init)
        find_activation(self.activation)
        check_posterior("Dense", self.posterior)

    @property
    def _kept(self) -> str:
        return "shared" if self.posterior == "auto" and self.length_scale is not None else self.posterior

    @property
    def generative(self) -> bool:
        """By its direction."""
        return self.direction == "generative"

    def output_shape(self, shape: Shape) -> Shape:
        """`(units,)`."""
        if not shape:
            raise ValueError("Dense needs inputs with at least one axis beside the batch")
        return (self.units,)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """Weights and bias."""
        inputs = math.prod(shape)
        forward = self.direction == "forward"
        weight = (inputs, self.units) if forward else (self.units, inputs)
        prior = weight_scale(self.weight_prior, _WEIGHT_PRIOR, self.gain, weight[0])
        init = prior if self.weight_init is None else self.weight_init
        bias = Parameter(weight[1:], given_or(self.bias_prior, _WEIGHT_PRIOR), self.bias_init)
        alike = None
        if self.length_scale is not None:
            if len(shape) != 3:
                raise ValueError(f"Dense: length_scale needs images (height, width, channels), got inputs {shape}")
            alike = ImageCorrelation(*shape, self.length_scale)
        weights = Parameter(weight, prior, init, correlation=alike)
        if of_vectors(self._kept):
            return unit_parameters(self._kept, weights, bias)
        return {"weight": weights, "bias": bias}

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """`DenseKind`, either way round."""
        ends = (inputs, outputs) if self.direction == "forward" else (outputs, inputs)
        activation = find_activation(self.activation)
        if of_vectors(self._kept):
            args = (ends[0], parameters["parameters"], ends[1])
            return Factor(DenseUnitsKind(activation), args, y=0.0, sigma=self.sigma, name=name)
        kind = DenseKind(activation)
        args = (ends[0], parameters["weight"], parameters["bias"], ends[1])
        return Factor(kind, args, y=0.0, sigma=self.sigma, name=name)

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array | None:
        """`g(x w + d)`."""
        if self.direction == "generative":
            return None
        activation = find_activation(self.activation)
        if of_vectors(self._kept):
            return activation(_with_one(x) @ parameters["parameters"].T)
        return activation(_matrix(parameters["weight"], x) + parameters["bias"])
