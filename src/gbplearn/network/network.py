"""`gbp.Network`: layers as named nodes, each of which takes any nodes before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..factors.operators import Shape
from ..layers.layer import Layer
from .layer_graph import LayerGraph
from .places import Tied, place_nodes


class Network(LayerGraph):
    """A network of named nodes: skip connections, several parts side by side, layers with the same parameters.

    ```python
    net = gbp.Network(
        {
            "first": gbp.Conv2D(16, kernel=3, padding="same", activation="leaky_relu"),
            "second": gbp.Conv2D(16, kernel=3, padding="same", activation="leaky_relu"),
            "sum": (gbp.Add(), "first", "second"),  # a skip connection
            "mean": gbp.GlobalAvgPool2D(),
            "logits": gbp.Dense(10),
            "class": gbp.CategoricalObservation(),
        },
        input_shape=(8, 8, 1),
    )
    ```

    All that takes a `gbp.Sequential` takes it.

    **Arguments:**

    - `nodes`: by name a layer, which takes the node before it; or a tuple of a layer and the names of the nodes that it
        takes: "input", or any before it. `gbp.Add`, `gbp.Concatenate` take several, `gbp.Part` a part of one.
        `gbp.Tied(name)` in the place of a layer is that of another node, with the same parameters;
        `gbp.Tied(name, transposed=True)` has its weights transposed. An observation that stands first is of the input;
        any other is a head, which takes targets of its own. With several heads targets are given, and predictions
        returned, by the names of these.
    - `input_shape`: of one example. If it is given, all shapes are checked at once and `print(net)` knows all sizes.
    """

    def __init__(self, nodes: Mapping[str, Any], *, input_shape: Shape | int | None = None):
        if not isinstance(nodes, Mapping):
            raise TypeError(f"Network takes a dictionary of nodes by name, got {type(nodes).__name__}")
        super().__init__(place_nodes(nodes), input_shape)

    @property
    def nodes(self) -> dict[str, tuple[Any, ...]]:
        """By name the layer of each, or `gbp.Tied`, and the names of the nodes that it takes."""
        return {p.name: (p.layer if p.tied is None else Tied.of(p.tied, p.layer), *p.inputs) for p in self.places}

    def with_layers(self, layers: Sequence[Layer]) -> Network:
        """The same network with other layers in the same places."""
        given = zip(self.places, layers)
        new = {p.name: (layer if p.tied is None else Tied.of(p.tied, layer), *p.inputs) for p, layer in given}
        return Network(new, input_shape=self.input_shape)

    def __repr__(self) -> str:
        return f"Network({self.nodes!r})"
