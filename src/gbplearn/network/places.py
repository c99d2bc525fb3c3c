"""Names of the layers of a network, of the variables that they make, and of those that they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from ..layers.activation import Elementwise
from ..layers.dense import Dense
from ..layers.dropout import Dropout
from ..layers.join import Add, Join
from ..layers.layer import AUTO, Layer, Observation, Parameter, Relation, Transform
from ..layers.transposed_dense import TransposedDense

INPUT = "input"


@dataclasses.dataclass(frozen=True)
class Tied:
    """In a `gbp.Network`: the layer of another node once more, with the same parameters.

    ```python
    net = gbp.Network({"step": gbp.Dense(8), "again": gbp.Tied("step"), "logits": gbp.Dense(2)})
    ```

    Or, of a `gbp.Dense`, its weights transposed: the decoder of an autoencoder, `g(h w')` with the weights
    `w (inputs, units)` of the encoder, without a bias.

    ```python
    net = gbp.Network(
        {"code": gbp.Dense(8), "outputs": gbp.Tied("code", transposed=True), "target": gbp.GaussianObservation()}
    )
    ```

    **Arguments:**

    - `node`: name of the node whose layer it is.
    - `transposed`: outputs are what the other layer takes, as one row of numbers.
    - `activation`, `sigma`, `prior`: of a transposed layer, as `gbp.Dense`; otherwise they are those of the node.
    """

    node: str
    transposed: bool = False
    activation: str | Elementwise = "linear"
    sigma: float = 0.01
    prior: float | str = AUTO

    def __post_init__(self):
        if not self.transposed and (self.activation, self.sigma, self.prior) != ("linear", 0.01, AUTO):
            raise ValueError("Tied: activation, sigma and prior are those of the node, unless it is transposed")

    @classmethod
    def of(cls, node: str, layer: Layer) -> Tied:
        """What stands for a layer that has the parameters of a node."""
        if isinstance(layer, TransposedDense):
            return cls(node, True, layer.activation, layer.sigma, layer.prior)
        return cls(node)


@dataclasses.dataclass(frozen=True)
class Place:
    """A layer in its place in a network, with its name."""

    name: str
    layer: Layer
    variable: str  # the outputs of the layer; of an observation or a relation, the variable that it constrains
    inputs: tuple[str, ...] = (INPUT,)  # the variables that it takes
    tied: str | None = None  # name of the place whose parameters it has; None: its own
    turned: Place | None = None  # that place, if this is its layer transposed

    @property
    def owner(self) -> str:
        """Name of the place whose parameters it has."""
        return self.name if self.tied is None else self.tied

    @property
    def mask(self) -> str | None:
        """Name of the variable that has its mask, which is known; None: it has none."""
        return f"{self.name}/mask" if isinstance(self.layer, Dropout) else None

    def output_shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """Shape of one example's outputs, by those of all variables before; a `ValueError` names the layer."""
        try:
            taken = [shapes[name] for name in self.inputs]
            if self.turned is not None:
                assert isinstance(self.layer, TransposedDense)
                return self.layer.turned_shape(taken[0], shapes[self.turned.inputs[0]], shapes[self.turned.variable])
            if isinstance(self.layer, Join):
                return self.layer.joined_shape(*taken)
            return self.layer.output_shape(taken[0])
        except ValueError as error:
            raise ValueError(f"layer '{self.name}': {error}") from None

    def parameters(self, shapes: Mapping[str, Shape]) -> dict[str, Parameter]:
        """Its parameters by their names in the network, tied or not, by the shapes of all variables before."""
        if self.turned is not None:
            return self.turned.parameters(shapes)
        if not isinstance(self.layer, Transform):
            return {}
        found = self.layer.parameters(shapes[self.inputs[0]])
        return {f"{self.owner}/{name}": p for name, p in found.items()}

    def own(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of its parameters, by their names in the layer."""
        start = f"{self.owner}/"
        return {n.removeprefix(start): v for n, v in named.items() if n.startswith(start)}

    def factors(self, variables: Mapping[str, Variable]) -> list[Factor]:
        """The factor groups of a layer that observes nothing, by all variables."""
        layer, taken = self.layer, [variables[name] for name in self.inputs]
        if isinstance(layer, Join):
            masks = [] if self.mask is None else [variables[self.mask]]
            return layer.join(self.name, [*taken, *masks], variables[self.variable])
        if isinstance(layer, Transform):
            return [layer.factor(self.name, taken[0], self.own(variables), variables[self.variable])]
        if isinstance(layer, Relation):
            return layer.factors(self.name, taken[0])
        raise TypeError(f"layer '{self.name}' is neither a Transform nor a Relation")

    def forward(self, values: Mapping[str, Any], numbers: Mapping[str, Any]) -> Any:
        """Its outputs, by those of all variables before, the parameters and masks; None of a generative layer."""
        layer, taken = self.layer, [values[name] for name in self.inputs]
        if isinstance(layer, Join):
            masks = [numbers[name] for name in (self.mask,) if name is not None and name in numbers]
            return layer.joined(*taken, *masks)
        assert isinstance(layer, Transform)
        return layer.forward(taken[0], self.own(numbers))


def place_layers(layers: tuple[Layer, ...]) -> list[Place]:
    """Name every layer of a sequence: by its own name, or by its label and a number."""
    for layer in layers:
        if layer.name is not None and not isinstance(layer.name, str):
            raise ValueError(f"a layer's name must be a string, got {layer.name!r}")
    given = [layer.name for layer in layers if layer.name is not None]
    check_names(given)
    used, places, before = set(given), [], INPUT
    for layer in layers:
        name, number = layer.name or layer.label, 0
        while layer.name is None and name in used:
            number += 1
            name = f"{layer.label}_{number}"
        used.add(name)
        places.append(Place(name, layer, name if isinstance(layer, Transform) else before, (before,)))
        before = places[-1].variable
    return places


def place_nodes(nodes: Mapping[str, Any]) -> list[Place]:
    """The nodes of a network by name: a layer, or a tuple of a layer and the names of the nodes that it takes.

    A layer alone takes the node before it. A `ValueError` names what does not fit.
    """
    check_names(nodes)
    places: dict[str, Place] = {}
    before = INPUT
    for name, node in nodes.items():
        layer, *inputs = node if isinstance(node, tuple) and node else (node,)
        odd = [one for one in inputs if not isinstance(one, str)]
        if odd:
            raise TypeError(f"'{name}': (layer, names...) takes names of nodes as strings, got {odd[0]!r}")
        tied = turned = None
        if isinstance(layer, Tied):
            first = places.get(layer.node) if isinstance(layer.node, str) else None
            if first is None or not isinstance(first.layer, Transform):
                raise ValueError(f"'{name}': Tied({layer.node!r}) must name a layer with outputs before it")
            tied, turned = first.owner, first.turned
            if layer.transposed:
                if not isinstance(first.layer, Dense) or first.layer.generative:
                    what = f"a {type(first.layer).__name__}"
                    raise ValueError(f"'{name}': only a feed-forward gbp.Dense can be tied transposed, not {what}")
                layer, turned = TransposedDense(layer.activation, layer.sigma, layer.prior), places[tied]
            else:
                layer = first.layer
        elif isinstance(layer, TransposedDense):
            raise TypeError(f"'{name}': a transposed layer is gbp.Tied(node, transposed=True)")
        if not isinstance(layer, Layer):
            raise TypeError(f"'{name}' must be a layer such as gbp.Dense(10), or (layer, names...), got {layer!r}")
        if layer.name not in (None, name) and tied is None:
            raise ValueError(f"'{name}': its layer is called '{layer.name}'; the node's name is enough")
        taken = tuple(inputs) or (before,)
        for one in taken:
            if one != INPUT and (one not in places or not isinstance(places[one].layer, Transform)):
                raise ValueError(f"'{name}' takes {one!r}, which is no node with outputs before it")
        if len(taken) != 1 and not isinstance(layer, Join):
            raise ValueError(f"'{name}': a {type(layer).__name__} takes one node, got {len(taken)}")
        if len(set(taken)) < len(taken) and isinstance(layer, Add):
            raise ValueError(f"'{name}': Add takes a node once, got '{', '.join(taken)}'")
        has_outputs = isinstance(layer, Transform)
        places[name] = Place(name, layer, name if has_outputs else taken[0], taken, tied, turned)
        before = name if has_outputs else before
    return list(places.values())


def check_names(names: Iterable[str]) -> None:
    """Raise unless they can be names of layers."""
    given = list(names)
    odd = [n for n in given if not isinstance(n, str)]
    if odd:
        raise ValueError(f"a layer's name must be a string, got {odd[0]!r}")
    twice = [n for n in given if given.count(n) > 1]
    if twice:
        raise ValueError(f"two layers are called '{twice[0]}'")
    wrong = [n for n in given if n == INPUT or "/" in n or not n]
    if wrong:
        raise ValueError(f"a layer cannot be called '{wrong[0]}'")


def above(places: Sequence[Place], place: Place) -> set[str]:
    """Names of the variables that depend on a layer: its outputs, and all that are made of them."""
    out = {place.variable}
    for other in places[places.index(place) + 1 :]:
        if out & set(other.inputs):
            out.add(other.variable)
    return out


def heads_of(places: Sequence[Place]) -> dict[str, Place]:
    """The observations by name, without that of the input, which stands first."""
    return {place.name: place for place in places[1:] if isinstance(place.layer, Observation)}


def heads_above(places: Sequence[Place]) -> dict[str, set[str]]:
    """By variable, the names of the heads whose targets depend on it."""
    heads, out = heads_of(places), {}
    for place in reversed(places):
        mine = out.setdefault(place.variable, set())
        if place.name in heads:
            mine.add(place.name)
        elif isinstance(place.layer, Transform):
            for name in place.inputs:
                out.setdefault(name, set()).update(mine)
    return out


def layer_of(group: str) -> str:
    """Name of the layer that a factor group belongs to: a layer with several has them as `name/part`."""
    return group.partition("/")[0]
