"""A dense layer turned round: the weights of another one, transposed, as in the decoder of an autoencoder.

Energy of example `b` and output `j`, one factor (M = 1) each, with inputs `h`, outputs `y`, activation function `g` and
the weights `w (inputs, units)` of the other layer, which takes what this one makes:

    E_bj = (y_bj - g(a_bj))² / (2 sigma²) ,   a_bj = sum_u w_ju h_bu

There is no bias. Which layer the weights belong to is known to the network alone (`gbp.Tied(node, transposed=True)`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
from jax import Array
from jaxtyping import Float

from ..edges.axes import AxesEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Identity, Operator, Product, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .activation import Elementwise, find_activation, value_and_slope
from .layer import AUTO, Parameter, Transform, check_positive, check_positive_or_auto


class TransposedDenseKind(FactorKind):
    """`h = y - g(x w')`, measured to be 0. Arguments: `x (B, ...)`, `w (I, U)`, `y (B, ...)`."""

    activation: Elementwise = eqx.field(static=True)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example and output; its row runs over the units."""
        x, w, y = shapes
        (batch, *_), (outputs, units) = x, w
        if math.prod(x[1:]) != units or y[0] != batch or math.prod(y[1:]) != outputs:
            raise ValueError(f"a transposed dense layer cannot join x {x}, weights {w} and y {y}")
        grid = (batch, outputs)
        return Layout(
            grid,
            (),
            (
                AxesEdges(x, (0, 2), (*grid, units)),
                AxesEdges(w, (1, 2), (*grid, units)),
                AxesEdges(y, (0, 1), (*grid, 1)),
            ),
        )

    def value(self, *args: Array) -> Float[Array, "b o"]:
        """`y - g(a)`."""
        x, w, y = args
        return y.reshape(y.shape[0], -1) - self.activation(_matrix(w, x))

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`-g' w`, `-g' x`, `1`."""
        x, w, y = args
        edges = self.layout(*(a.shape for a in args)).edges
        slope = -value_and_slope(self.activation, _matrix(w, x))[1]
        return (
            Product(w, slope, edges[1], edges[0], _matrix),
            Product(x, slope, edges[0], edges[1], _weights),
            Identity(y.shape, y.dtype),
        )


class TransposedUnitsKind(FactorKind):
    """The same with the weights of a unit, and its bias, as one vector. Arguments: `x`, `w (U, I + 1)`, `y`.

    A factor depends on one number of every vector. The engine knows vectors along the rows of a layer, so that these
    factors have an energy, and take part in joint updates, and nothing else.
    """

    activation: Elementwise = eqx.field(static=True)

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example and output; its row runs over the units."""
        x, (units, numbers), y = shapes
        found = TransposedDenseKind(self.activation).layout(x, (numbers - 1, units), y)
        ends, (batch, outputs) = found.edges, found.grid
        return Layout(found.grid, (), (ends[0], AxesEdges((units,), (2,), (batch, outputs, units)), ends[2]))

    def value(self, *args: Array) -> Float[Array, "b o"]:
        """`y - g(a)`."""
        x, w, y = args
        return TransposedDenseKind(self.activation).value(x, w[:, :-1].T, y)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """Refused."""
        raise ValueError("with scalar activations, weights that are tied transposed need posterior='diagonal'")


def _matrix(w: Array, x: Array) -> Float[Array, "b o"]:
    return x.reshape(x.shape[0], -1) @ w.T


def _weights(x: Array, w: Array) -> Float[Array, "b o"]:
    return _matrix(w, x)


@dataclasses.dataclass(frozen=True)
class TransposedDense(Transform):
    """What `gbp.Tied(node, transposed=True)` puts in its place: `outputs ~ N(g(inputs w'), sigma²)`."""

    activation: str | Elementwise = "linear"
    sigma: float = 0.01
    prior: float | str = AUTO
    name: str | None = None
    label: ClassVar[str] = "transposed"

    def __post_init__(self):
        check_positive("Tied", sigma=self.sigma)
        check_positive_or_auto("Tied", prior=self.prior)
        find_activation(self.activation)

    def output_shape(self, shape: Shape) -> Shape:
        """Refused: it depends on the other layer."""
        raise ValueError("a transposed layer has the shape of what another one takes: gbp.Tied in a gbp.Network")

    def turned_shape(self, shape: Shape, taken: Shape, made: Shape) -> Shape:
        """For inputs of a shape; the other layer makes outputs of shape `made` of what it has `taken`."""
        if math.prod(shape) != math.prod(made):
            raise ValueError(f"transposed, it takes {math.prod(made)} numbers, got inputs {shape}")
        return (math.prod(taken),)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """None of its own."""
        return {}

    @property
    def kind(self) -> TransposedDenseKind:
        """Of its factors."""
        return TransposedDenseKind(find_activation(self.activation))

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """With the weights of the other layer."""
        if "weight" in parameters:
            return Factor(self.kind, (inputs, parameters["weight"], outputs), y=0.0, sigma=self.sigma, name=name)
        kind = TransposedUnitsKind(find_activation(self.activation))
        return Factor(kind, (inputs, parameters["parameters"], outputs), y=0.0, sigma=self.sigma, name=name)

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array:
        """`g(x w')`."""
        return find_activation(self.activation)(_matrix(weights_of(parameters), x))


def weights_of(parameters: Mapping[str, Array]) -> Float[Array, "i u"]:
    """The weights of a dense layer, whose units may be vectors with their biases at the end."""
    return parameters["weight"] if "weight" in parameters else parameters["parameters"][:, :-1].T
