"""Converts layers, schedules and other settings to JSON data, and back.

An object is a dictionary `{type: {field: value}}`. What comes back is made by the constructors of a fixed list of
types, which check what they are given; data from a stranger cannot name anything else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax import Array

from ..core.noise import LearnNoise
from ..core.robust import Huber, Tukey
from ..engine.damping import Damping
from ..engine.guard.guard import Guard
from ..engine.schedules import Order, RandomLayers, Residual, Sweep, TreeOrder
from ..layers.activation import LeakyRelu, SmoothLeakyRelu
from ..layers.avg_pool2d import AvgPool2D
from ..layers.categorical import CategoricalObservation
from ..layers.conv2d import Conv2D
from ..layers.conv_transpose2d import ConvTranspose2D
from ..layers.dense import Dense
from ..layers.dropout import Dropout
from ..layers.gaussian_observation import GaussianObservation
from ..layers.global_avg_pool2d import GlobalAvgPool2D
from ..layers.join import Add, Concatenate, Part
from ..layers.layer import Layer
from ..layers.max_pool2d import MaxPool2D
from ..layers.pairwise_smoothing import PairwiseSmoothing
from ..layers.prior import Prior
from ..layers.softmax import SoftmaxObservation
from ..layers.transposed_dense import TransposedDense
from ..layers.upsample2d import Upsample2D
from ..layers.whitened_patches import WhitenedPatches
from ..learner.unusual import BatchStatistics, Spread


def _by_name(*types: type) -> dict[str, type]:
    return {t.__name__: t for t in types}


LAYERS = _by_name(
    Add,
    AvgPool2D,
    CategoricalObservation,
    Concatenate,
    Conv2D,
    ConvTranspose2D,
    Dense,
    Dropout,
    GaussianObservation,
    GlobalAvgPool2D,
    MaxPool2D,
    PairwiseSmoothing,
    Part,
    Prior,
    SoftmaxObservation,
    TransposedDense,
    Upsample2D,
)
FEATURES = _by_name(WhitenedPatches)
VALUES = _by_name(
    BatchStatistics,
    Damping,
    Guard,
    Huber,
    LeakyRelu,
    LearnNoise,
    Order,
    RandomLayers,
    Residual,
    SmoothLeakyRelu,
    Spread,
    Sweep,
    TreeOrder,
    Tukey,
)
# Those whose constructors do not take their fields.
_MAKERS: dict[str, Callable[..., Any]] = {
    "Damping": lambda parameters, activations, by_name: Damping(parameters, activations, dict(by_name)),
    "Order": lambda names: Order(*names),
}
_LISTS = ("kernel", "stride", "size", "robust_over", "by_name", "names")  # fields that may be lists
_LARGEST = 2**63


def to_json(value: Any, what: str) -> Any:
    """A value as JSON data; a `ValueError` names `what` cannot be saved."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.generic, np.ndarray, Array)) and value.ndim == 0:
        return to_json(value.item(), what)
    if isinstance(value, (int, float)):
        if not _sound(value):
            raise ValueError(f"{what} cannot be saved: {value!r}")
        return value
    if isinstance(value, (tuple, list)):
        return [to_json(v, what) for v in value]
    name = type(value).__name__
    known = {**VALUES, **LAYERS, **FEATURES}.get(name)
    if known is not None and known is type(value):
        fields = [f.name for f in dataclasses.fields(known)]
        return {name: {f: to_json(getattr(value, f), f"{what}: {f}") for f in fields}}
    own = "a function" if callable(value) and not isinstance(value, Layer) else f"of the type {name}"
    raise ValueError(f"{what} cannot be saved: it is {own} that only your program knows")


# Fields that older files do not have, with what they had been.
_LATER = {"posterior": "diagonal", "gain": 1.0, "length_scale": None}


def from_json(data: Any, what: str, known: Mapping[str, type] = VALUES, lists: bool = False) -> Any:
    """The value again.

    **Arguments:**

    - `what`: the name of the value in a `ValueError`.
    - `known`: types that may be named.
    - `lists`: whether it may be a list.
    """
    if data is None or isinstance(data, (bool, str)):
        return data
    if isinstance(data, (int, float)):
        if not _sound(data):
            raise ValueError(f"{what}: a number is too large")
        return data
    if isinstance(data, list) and lists:
        return tuple(from_json(v, what, {}, lists) for v in data)
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError(f"{what} is not what it should be")
    ((name, fields),) = data.items()
    if name not in known:
        raise ValueError(f"{what}: unknown type {name!r} (known: {', '.join(known) or 'none'})")
    expected = {f.name: f for f in dataclasses.fields(known[name])}
    if isinstance(fields, dict):
        fields = {n: value for n, value in _LATER.items() if n in expected} | fields
    if not isinstance(fields, dict) or fields.keys() != expected.keys():
        raise ValueError(f"{what}: {name} has the fields {', '.join(sorted(expected))}")
    for f, v in fields.items():
        if v is None and "None" not in str(expected[f].type):
            raise ValueError(f"{what}: {f} is missing")
    values = {f: from_json(v, f"{what}: {f}", lists=f in _LISTS) for f, v in fields.items()}
    axes = values.get("robust_over")  # which constructors leave to the factor
    if axes is not None and not all(map(is_whole, axes if isinstance(axes, tuple) else (axes,))):
        raise ValueError(f"{what}: robust_over must be whole numbers, got {axes!r}")
    try:
        return _MAKERS.get(name, known[name])(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from None


def is_whole(value: Any) -> bool:
    """Whether it is a whole number (True is none)."""
    return isinstance(value, int) and not isinstance(value, bool) and _sound(value)


def is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    return is_whole(value) or (isinstance(value, float) and _sound(value))


def _sound(value: int | float) -> bool:
    return abs(value) < _LARGEST if isinstance(value, int) else math.isfinite(value)
