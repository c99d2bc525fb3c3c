"""Initial values of the graph of a network: beliefs of its parameters, and points of the first linearisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.gaussian import Gaussian, Numbers
from ..core.rotated import RotatedGaussian
from ..core.vector import Belief, VectorGaussian
from ..engine.result import Result
from ..factors.operators import Shape
from ..graph.evidence import as_numbers
from ..layers.dropout import Dropout
from ..layers.layer import Parameter, of_vectors
from .places import Place


def belief_kind(parameter: Parameter) -> type:
    """The family of beliefs that a parameter has."""
    if parameter.posterior == "rotated":
        return RotatedGaussian
    return VectorGaussian if of_vectors(parameter.posterior) else Gaussian


def known_beliefs(parameters: Mapping[str, Parameter], beliefs: Mapping[str, Any] | None) -> dict[str, Belief]:
    """The beliefs of parameters among those given, checked.

    A `Result` may also hold beliefs of other variables; other mappings may not.
    """
    out = {}
    for name, p in parameters.items():
        if beliefs is None or name not in beliefs:
            continue
        kind = belief_kind(p)
        if not isinstance(beliefs[name], kind):
            raise ValueError(f"the belief of '{name}' must be a gbp.{kind.__name__}")
        if beliefs[name].shape != p.shape:
            raise ValueError(f"the belief of '{name}' has shape {beliefs[name].shape}, the network needs {p.shape}")
        out[name] = beliefs[name]
    if beliefs is not None and not isinstance(beliefs, Result):
        unknown = [n for n in beliefs if n not in out]
        if unknown:
            raise ValueError(f"the network has no parameter '{unknown[0]}'")
    return out


def first_values(
    start: Mapping[str, Numbers], priors: Mapping[str, Belief], outputs: Mapping[str, Shape]
) -> dict[str, Array]:
    """The values given for parameters and activations, checked.

    **Arguments:**

    - `priors`: of all parameters; `outputs`: shapes of all activations of the batch.
    """
    out = {}
    for name, value in start.items():
        if name in priors:
            out[name] = jnp.asarray(as_numbers(name, value, priors[name].shape, "start"), priors[name].dtype)
        elif name in outputs:
            out[name] = jnp.asarray(as_numbers(name, value, outputs[name], "start"))
        else:
            raise ValueError(f"start: the network has no parameter or activation '{name}'")
    return out


def random_starts(parameters: Mapping[str, Parameter], beliefs: Mapping[str, Belief], seed: int) -> dict[str, Array]:
    """Where parameters that have a `start` are linearised first: at random, if nothing is known but their prior.

    Else at their means, given all the same: so that it is one program.
    """
    out = {}
    for i, (name, p) in enumerate(parameters.items()):
        if np.any(p.start):
            mean, std = beliefs[name].mean, beliefs[name].std
            unknown = np.allclose(std, p.prior, rtol=1e-4) and (np.all(p.init > 0) or not np.any(mean))
            out[name] = mean + jnp.asarray(unknown * _draw(p.start, p.shape, seed, i), beliefs[name].dtype)
    return out


def random_outputs(places: Sequence[Place], outputs: Mapping[str, Shape], seed: int) -> dict[str, Array]:
    """Where the outputs of layers with an `output_start` are linearised first."""
    drawn = [(i, s.variable, getattr(s.layer, "output_start", 0.0)) for i, s in enumerate(places)]
    return {name: jnp.asarray(_draw(std, outputs[name], seed, -1 - i)) for i, name, std in drawn if std}


def dropout_masks(
    places: Sequence[Place], outputs: Mapping[str, Shape], seed: int | None, dtype: Any = float
) -> dict[str, np.ndarray]:
    """The masks of a batch by name, drawn with a seed; without one nothing is dropped: 1."""
    out = {}
    for i, place in enumerate(places):
        if not isinstance(place.layer, Dropout) or place.mask is None:
            continue
        shape = outputs[place.variable]
        drawn = 1.0 if seed is None else place.layer.mask(shape, np.random.default_rng([seed, i, 2]))
        out[place.mask] = np.ascontiguousarray(np.broadcast_to(drawn, shape), dtype)
    return out


def _draw(std: float | np.ndarray, shape: Shape, seed: int, place: int) -> np.ndarray:
    return std * np.random.default_rng([seed, abs(place), 1 + (place < 0)]).standard_normal(shape)
