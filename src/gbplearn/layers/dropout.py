"""Dropout of units: a layer that multiplies its inputs by a mask while the network learns.

Energy, one factor (M = 1) for each number, with inputs `x`, a mask `m` that is known, and outputs `y`:

    E_i = (y_i - m_i x_i)² / (2 sigma²)

While a batch is learnt from, each `m_i` is 0 with the probability `rate`, else `1 / (1 - rate)`; at prediction it is 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jax import Array

from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Entries, Identity, Operator, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .join import Join, one_each


class MaskKind(FactorKind):
    """`h = y - m x`, measured to be 0. Arguments: `x`, `m`, `y`, all of one shape."""

    def layout(self, *shapes: Shape) -> Layout:
        """One factor for each number."""
        if len(set(shapes)) != 1:
            raise ValueError(f"a mask cannot join arrays of shapes {shapes}")
        return Layout(shapes[0], (), tuple(one_each(s) for s in shapes))

    def value(self, *args: Array) -> Array:
        """`y - m x`."""
        x, m, y = args
        return y - m * x

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`-m`, `-x`, 1."""
        x, m, y = args
        edges = one_each(y.shape)
        return Entries(edges, -m.reshape(-1, 1)), Entries(edges, -x.reshape(-1, 1)), Identity(y.shape, y.dtype)


@dataclasses.dataclass(frozen=True)
class Dropout(Join):
    """Drops units while the network learns: `outputs ~ N(mask x inputs / (1 - rate), sigma²)`; elsewhere the identity.

    ```python
    net = gbp.Sequential(gbp.Dense(64, "leaky_relu"), gbp.Dropout(0.2), gbp.Dense(10), gbp.CategoricalObservation())
    ```

    Each batch has its own mask, another one for each example, drawn from the seed of the learner and from how many
    batches it has learnt from. Predictions, queries and forward passes drop nothing. (`gbp.Learner(dropout=)` is
    another thing, as `gbp.infer` has it, and drops no units.)

    **Arguments:**

    - `rate`: the probability that a unit is dropped; 0 <= rate < 1.
    - `channels`: drop whole channels, the last axis, of images.
    - `sigma`, `prior`: of the outputs, as `gbp.Dense`.
    """

    rate: float
    channels: bool = dataclasses.field(default=False, kw_only=True)
    label: ClassVar[str] = "dropout"

    def __post_init__(self):
        super().__post_init__()
        number = isinstance(self.rate, (int, float, np.number)) and not isinstance(self.rate, bool)
        if not (number and 0 <= self.rate < 1):
            raise ValueError(f"Dropout: rate must be a number >= 0 and < 1, got {self.rate!r}")
        if not isinstance(self.channels, bool):
            raise ValueError(f"Dropout: channels must be True or False, got {self.channels!r}")

    def joined_shape(self, *shapes: Shape) -> Shape:
        """That of the inputs."""
        if len(shapes) != 1:
            raise ValueError(f"Dropout takes one node, got {len(shapes)}")
        if self.channels and len(shapes[0]) < 2:
            raise ValueError(f"Dropout: channels=True needs images (height, width, channels), got inputs {shapes[0]}")
        return shapes[0]

    def joined(self, *inputs: Array) -> Array:
        """The inputs; with a mask their product."""
        return inputs[0] if len(inputs) == 1 else inputs[0] * inputs[1]

    def join(self, name: str, inputs: Sequence[Variable], outputs: Variable) -> list[Factor]:
        """One group, with the mask as a variable that is observed."""
        x, mask = inputs
        return [Factor(MaskKind(), (x, mask, outputs), y=0.0, sigma=self.sigma, name=name)]

    def mask(self, shape: Shape, generator: np.random.Generator) -> np.ndarray:
        """A mask for a batch of inputs of this shape, at random."""
        drawn = (shape[0], *[1] * (len(shape) - 2), shape[-1]) if self.channels else shape
        kept = generator.random(drawn) >= self.rate
        return np.broadcast_to(kept / (1 - self.rate), shape)
