"""What "auto" stands for: which activations a learner has, what beliefs keep of each layer's weights, and priors.

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
from ..layers.layer import AUTO, of_vectors
from .layer_graph import LayerGraph
from .places import above, heads_above
from .vector_activations import links_of

# Weights of a unit, of which a covariance is kept: an update takes time as the square of their number.
_LONGEST_FILTER, _LONGEST_ROW = 512, 6400
# Of weights that add n numbers up the standard deviation is a gain / √n: of hidden layers, and of the last, whose prior
# means are 0. Then of all biases, and of the last outputs. How they were chosen: `docs/decisions.md`.
_GAIN, _LAST_GAIN, _BIAS_PRIOR, _LAST_PRIOR = 2.0, 2.5, 0.2, 50.0


def choose_activations(net: LayerGraph, shape: Shape, scalars_only: Iterable[str]) -> str:
    """ "vector" for feed-forward networks of which a head observes classes by their likelihood, else "scalar".

    **Arguments:** `scalars_only`: names of arguments that were given and that vector activations do not take.
    """
    classes = any(isinstance(place.layer, CategoricalObservation) for place in net.heads.values())
    if not classes or any(True for _ in scalars_only):
        return "scalar"
    try:
        chosen = choose_layers(net, shape)
        links_of(chosen.places, chosen.shapes(shape))
    except ValueError:  # a layer that only scalars can have
        return "scalar"
    return "vector"


def choose_layers(net: LayerGraph, shape: Shape) -> LayerGraph:
    """The network for vector activations, with a family of beliefs and priors for each layer that leaves them to us."""
    shapes, layers, last = net.shapes(shape), [], _last_layers(net)
    for place in net.places:
        layer: Any = place.layer
        if getattr(layer, "posterior", None) == AUTO:
            weight = next(iter(place.parameters(shapes).values()))
            inputs = weight.shape[-1] - 1 if of_vectors(weight.posterior) else math.prod(weight.shape[:-1])
            layer = dataclasses.replace(layer, posterior=_family(layer, place.name in last, inputs))
        layers.append(_with_priors(layer, place.name in last))
    return net if all(a is b for a, b in zip(layers, net.layers)) else net.with_layers(layers)


def _last_layers(net: LayerGraph) -> set[str]:
    """Of each head the last layer with parameters, unless those of other heads stand above it.

    (A tied layer is chosen for where it stands first; one that is transposed has weights that are chosen there.)
    """
    learnt = [place for place in net.places if hasattr(place.layer, "posterior") or place.turned is not None]
    out: set[str] = set()
    heads = heads_above(net.places)
    for name in net.heads or (None,):
        own = [place for place in learnt if name is None or name in heads[place.variable]]
        if own and not any(place.variable in above(net.places, own[-1]) for place in learnt if place is not own[-1]):
            out.add(own[-1].owner if own[-1].turned is None else own[-1].name)
    return out


def _with_priors(layer: Any, last: bool) -> Any:
    new: dict[str, Any] = {}
    if getattr(layer, "weight_prior", None) == AUTO:
        new |= {"weight_prior": None, "gain": layer.gain * (_LAST_GAIN if last else _GAIN)}
        if last and layer.weight_init is None:
            new["weight_init"] = 0.0
    if getattr(layer, "bias_prior", None) == AUTO:
        new["bias_prior"] = _BIAS_PRIOR
    if last and layer.prior == AUTO:
        new["prior"] = _LAST_PRIOR
    return dataclasses.replace(layer, **new) if new else layer


def _family(layer: Any, last: bool, inputs: int) -> str:
    dense, alike = isinstance(layer, Dense), getattr(layer, "length_scale", None) is not None
    if inputs > _LONGEST_ROW:
        return "rotated" if alike else "diagonal"
    if dense and last:
        return "shared"
    return "block" if not dense and inputs <= _LONGEST_FILTER else "rotated"
