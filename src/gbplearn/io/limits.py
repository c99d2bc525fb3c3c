"""Limits of the numbers in a checkpoint: which of them inference can compute with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .values import is_number, is_whole

# Standard deviations and the like: their squares are divided by.
_SCALES = (
    "sigma",
    "std",
    "prior",
    "weight_prior",
    "bias_prior",
    "start",
    "threshold",
    "input_sigma",
    "forgetting",
    "gain",
    "length_scale",
)


class Limits:
    """Of a type of floats: what can be squared, and inverted, without a loss of all digits.

    **Arguments:**

    - `dtype`: "float32" or "float64".
    """

    def __init__(self, dtype: str):
        self.dtype = dtype
        tiny, most = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)
        self.smallest, self.largest = math.sqrt(tiny), math.sqrt(most)
        self.precisions = tiny, 1 / tiny  # of a density: least and most

    def check(self, value: Any, what: str) -> None:
        """A `ValueError` names a number that is too large, or a scale that is too small.

        **Arguments:**

        - `value`: a number, or a layer, a setting or the like with numbers in it.
        """
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self.check(inner, f"{what}: {name}")
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                self.check(getattr(value, field.name), f"{what}: {field.name}")
        elif isinstance(value, (tuple, list)):
            for inner in value:
                self.check(inner, what)
        elif is_number(value):
            least = self.smallest if what.rpartition(" ")[2] in _SCALES else 0.0
            if abs(value) > self.largest:
                raise ValueError(f"{what} is too large for {self.dtype}: {value!r}")
            if abs(value) < least:
                raise ValueError(f"{what} is too small for {self.dtype}: {value!r}")


def check_whole(value: Any, what: str, least: int = 0, most: int | None = None) -> None:
    """A `ValueError` names what is no whole number, or too small or large."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        upto = f">= {least}" if most is None else f"from {least} to {most:,}"
        raise ValueError(f"{what} must be a whole number {upto}, got {value!r}"[:300])
