"""Names of the layers of a network, and of the variables that they make."""

from __future__ import annotations

import dataclasses

from ..layers.layer import Layer, Transform

INPUT = "input"


@dataclasses.dataclass(frozen=True)
class Place:
    """A layer in its place in a network, with its name."""

    name: str
    layer: Layer
    variable: str  # the outputs of the layer; of an observation or a relation, the variable that it constrains


def place_layers(layers: tuple[Layer, ...]) -> list[Place]:
    """Name every layer: by its own name, or by its label and a number."""
    for layer in layers:
        if layer.name is not None and not isinstance(layer.name, str):
            raise ValueError(f"a layer's name must be a string, got {layer.name!r}")
    given = [layer.name for layer in layers if layer.name is not None]
    twice = [n for n in given if given.count(n) > 1]
    if twice:
        raise ValueError(f"two layers are called '{twice[0]}'")
    wrong = [n for n in given if n == INPUT or "/" in n or not n]
    if wrong:
        raise ValueError(f"a layer cannot be called '{wrong[0]}'")
    used, places, variable = set(given), [], INPUT
    for layer in layers:
        name, number = layer.name or layer.label, 0
        while layer.name is None and name in used:
            number += 1
            name = f"{layer.label}_{number}"
        used.add(name)
        variable = name if isinstance(layer, Transform) else variable
        places.append(Place(name, layer, variable))
    return places
