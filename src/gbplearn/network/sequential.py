"""`gbp.Sequential`: layer after layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..factors.operators import Shape
from ..layers.layer import Layer, Observation
from .layer_graph import LayerGraph
from .places import place_layers


class Sequential(LayerGraph):
    """A network as a factor graph: layer after layer, each joined to the variables of the one before.

    ```python
    net = gbp.Sequential(
        gbp.Dense(8, activation="leaky_relu", sigma=0.1, weight_prior=3.0, bias_prior=1.0, prior=5.0),
        gbp.Dense(2, sigma=0.1, weight_prior=3.0, bias_prior=1.0, prior=2.0),
        gbp.SoftmaxObservation(sigma=0.1),
        input_shape=(2,),
    )
    print(net)
    graph = net.graph(x, y)
    ```

    Variables are named after their layers: `input`, `dense` (its outputs), `dense/weight`, `dense/bias`, `dense_1`, ...
    Inputs are fixed at what is given, unless the first layer is an observation (`gbp.GaussianObservation`) of them.
    An observation at the end is the head: it takes the `y` of `graph(x, y)`, and is left out where there is none.

    **Arguments:**

    - `layers`: `gbp.Dense(...)`, ..., and `gbp.Prior(...)` behind any of them. A layer with parameters stands in one
        place: the same object twice is refused.
    - `input_shape`: of one example. If it is given, all shapes are checked at once and `print(net)` knows all sizes.
    """

    def __init__(self, *layers: Any, input_shape: Shape | int | None = None):
        for layer in layers:
            if not isinstance(layer, Layer):
                raise TypeError(f"Sequential takes layers such as gbp.Dense(10), got {layer!r}")
        places = place_layers(layers)
        inner = [place.name for place in places[1:-1] if isinstance(place.layer, Observation)]
        if inner:
            raise ValueError(f"an observation stands first (of the input) or last (the head), not as '{inner[0]}'")
        super().__init__(places, input_shape)

    def with_layers(self, layers: Sequence[Layer]) -> Sequential:
        """The same network with other layers in the same places."""
        return Sequential(*layers, input_shape=self.input_shape)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle; older ones have no places, or without what they take."""
        held = {name: value for name, value in state.items() if name != "sites"}
        super().__setstate__(held | {"places": place_layers(state["layers"])})

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"
