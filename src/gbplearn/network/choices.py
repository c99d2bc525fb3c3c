"""What "auto" stands for: which activations a learner has, and what beliefs keep of each layer's weights.

With vector activations filters are blocks as long as these are small; the last layer has one covariance for its units,
if its inputs are not too many; all other layers keep variances along their principal axes, or of each weight where it
would take minutes to find these. Measurements:
`docs/concepts/vectors.md`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from ..factors.operators import Shape
from ..layers.categorical import CategoricalObservation
from ..layers.dense import Dense
from ..layers.layer import of_vectors
from .layer_graph import LayerGraph
from .vector_activations import links_of

# Weights of a unit, of which a covariance is kept: an update takes time as the square of their number.
_LONGEST_FILTER, _LONGEST_ROW = 512, 6400


def choose_activations(net: LayerGraph, shape: Shape, scalars_only: Iterable[str]) -> str:
    """ "vector" for feed-forward classifiers that observe classes by their likelihood, else "scalar".

    **Arguments:** `scalars_only`: names of arguments that were given and that vector activations do not take.
    """
    if not isinstance(net.layers[-1], CategoricalObservation) or any(True for _ in scalars_only):
        return "scalar"
    try:
        chosen = choose_posteriors(net, shape)
        links_of(chosen.places, chosen.shapes(shape))
    except ValueError:  # a layer that only scalars can have
        return "scalar"
    return "vector"


def choose_posteriors(net: LayerGraph, shape: Shape) -> LayerGraph:
    """The network for vector activations, with a family of beliefs for each layer that leaves it to us."""
    shapes, layers = net.shapes(shape), []
    last = max((i for i, place in enumerate(net.places) if hasattr(place.layer, "posterior")), default=None)
    for i, place in enumerate(net.places):
        layer: Any = place.layer
        if getattr(layer, "posterior", None) == "auto":
            weight = next(iter(place.parameters(shapes).values()))
            inputs = weight.shape[-1] - 1 if of_vectors(weight.posterior) else math.prod(weight.shape[:-1])
            layer = dataclasses.replace(layer, posterior=_family(layer, i == last, inputs))
        layers.append(layer)
    return net if all(a is b for a, b in zip(layers, net.layers)) else net.with_layers(layers)


def _family(layer: Any, last: bool, inputs: int) -> str:
    dense, alike = isinstance(layer, Dense), getattr(layer, "length_scale", None) is not None
    if inputs > _LONGEST_ROW:
        return "rotated" if alike else "diagonal"
    if dense and last:
        return "shared"
    return "block" if not dense and inputs <= _LONGEST_FILTER else "rotated"
