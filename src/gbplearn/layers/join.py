"""Layers without parameters that take several variables, or a part of one: sums, several side by side, parts.

Energies, one factor (M = 1) for each number, with inputs `x`, `z`, ... and outputs `y`:

    Add           E_i = (y_i - x_i - z_i - ...)² / (2 sigma²)
    Concatenate   E_i = (y_i - [x, z, ...]_i)² / (2 sigma²)
    Part          E_i = (y_i - x[part]_i)² / (2 sigma²)
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..edges.axes import AxesEdges
from ..edges.indexed import SliceEdges
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Entries, Identity, Operator, Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .layer import Parameter, Transform, check_positive

Slices = tuple[tuple[int, int, int], ...]  # begin, count and step along each axis


def one_each(shape: Shape) -> AxesEdges:
    """One edge for each factor, to the unit in its place."""
    return AxesEdges(shape, tuple(range(len(shape))), (*shape, 1))


class SumKind(FactorKind):
    """`h = y - x - z - ...`, measured to be 0. Arguments: the summands, then `y`, all of one shape."""

    def layout(self, *shapes: Shape) -> Layout:
        """One factor for each number of `y`."""
        if len(set(shapes)) != 1:
            raise ValueError(f"a sum cannot join arrays of shapes {shapes}")
        return Layout(shapes[-1], (), tuple(one_each(s) for s in shapes))

    def value(self, *args: Array) -> Array:
        """`y - sum`."""
        return args[-1] - sum(args[1:-1], args[0])

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 of the summands, 1."""
        y = args[-1]
        minus = Entries(one_each(y.shape), -jnp.ones((1, 1), y.dtype))
        return *([minus] * (len(args) - 1)), Identity(y.shape, y.dtype)


class PartKind(FactorKind):
    """`h = part - whole[slices]`, measured to be 0. Arguments: `whole`, `part`."""

    slices: Slices = eqx.field(static=True)

    def _edges(self, whole: Shape) -> SliceEdges:
        count = math.prod(n for _, n, _ in self.slices)
        return SliceEdges(slices=self.slices, unit_shape=whole, shape=(count, 1))

    def layout(self, *shapes: Shape) -> Layout:
        """One factor for each number of the part."""
        whole, part = shapes
        if part != tuple(n for _, n, _ in self.slices) or len(whole) != len(part):
            raise ValueError(f"a part {self.slices} of {whole} cannot be {part}")
        return Layout(part, (), (self._edges(whole), one_each(part)))

    def value(self, *args: Array) -> Array:
        """`part - whole[slices]`."""
        whole, part = args
        return part - self._edges(whole.shape).spread(whole).reshape(part.shape)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """-1 where the part is, 1."""
        whole, part = args
        minus = Entries(self._edges(whole.shape), -jnp.ones((1, 1), part.dtype))
        return minus, Identity(part.shape, part.dtype)


def _check_whole(layer: str, **values: int) -> None:
    for what, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ValueError(f"{layer}: {what} must be a whole number, got {value!r}")


def _along_axis(shape: Shape, axis: int, start: int, size: int) -> Slices:
    """Of all other axes everything."""
    own = int(start), int(size), 1
    return tuple(own if a == axis % len(shape) else (0, n, 1) for a, n in enumerate(shape))


@dataclasses.dataclass(frozen=True)
class Join(Transform):
    """A linear layer without parameters that takes any number of nodes of a `gbp.Network`."""

    sigma: float = dataclasses.field(default=0.01, kw_only=True)
    prior: float = dataclasses.field(default=10.0, kw_only=True)
    name: str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        check_positive(type(self).__name__, sigma=self.sigma, prior=self.prior)

    @abc.abstractmethod
    def joined_shape(self, *shapes: Shape) -> Shape:
        """Shape of one example's outputs; a `ValueError` says what does not fit."""

    @abc.abstractmethod
    def joined(self, *inputs: Array) -> Array:
        """Outputs of a batch, linear in the inputs."""

    @abc.abstractmethod
    def join(self, name: str, inputs: Sequence[Variable], outputs: Variable) -> list[Factor]:
        """The factor groups, named `name`, or `name/0`, `name/1`, ... where there are several."""

    def output_shape(self, shape: Shape) -> Shape:
        """Of one input."""
        return self.joined_shape(shape)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """None."""
        return {}

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """Of one input."""
        return self.join(name, [inputs], outputs)[0]

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array:
        """Of one input."""
        return self.joined(x)


@dataclasses.dataclass(frozen=True)
class Add(Join):
    """The sum of nodes of one shape: `outputs ~ N(a + b + ..., sigma²)`. A skip connection is a sum.

    ```python
    net = gbp.Network({
        "a": gbp.Dense(8, "leaky_relu"),
        "b": gbp.Dense(8),
        "sum": (gbp.Add(), "a", "b"),
    })
    ```

    **Arguments:** `sigma`, `prior`: of the outputs, as `gbp.Dense`.
    """

    label: ClassVar[str] = "add"

    def joined_shape(self, *shapes: Shape) -> Shape:
        """That of all."""
        if len(set(shapes)) != 1:
            raise ValueError(f"Add: all inputs must have one shape, got {', '.join(map(str, shapes))}")
        return shapes[0]

    def joined(self, *inputs: Array) -> Array:
        """Their sum."""
        return sum(inputs[1:], inputs[0])

    def join(self, name: str, inputs: Sequence[Variable], outputs: Variable) -> list[Factor]:
        """One group."""
        return [Factor(SumKind(), (*inputs, outputs), y=0.0, sigma=self.sigma, linear=True, name=name)]


@dataclasses.dataclass(frozen=True)
class Concatenate(Join):
    """Nodes side by side along an axis: `outputs ~ N([a, b, ...], sigma²)`; arguments as `gbp.Add`.

    **Arguments:** `axis`: of an example, without the batch.
    """

    axis: int = -1
    label: ClassVar[str] = "concatenate"

    def __post_init__(self):
        super().__post_init__()
        _check_whole("Concatenate", axis=self.axis)

    def joined_shape(self, *shapes: Shape) -> Shape:
        """The other axes must be the same."""
        first = shapes[0]
        if not -len(first) <= self.axis < len(first):
            raise ValueError(f"Concatenate: inputs {first} have no axis {self.axis}")
        at = self.axis % len(first)
        if any(len(s) != len(first) or s[:at] + s[at + 1 :] != first[:at] + first[at + 1 :] for s in shapes):
            raise ValueError(f"Concatenate: inputs {', '.join(map(str, shapes))} differ in more than axis {self.axis}")
        return (*first[:at], sum(s[at] for s in shapes), *first[at + 1 :])

    def _of_batch(self, axes: int) -> int:
        return self.axis + 1 if self.axis >= 0 else self.axis + axes

    def joined(self, *inputs: Array) -> Array:
        """Side by side."""
        return jnp.concatenate(inputs, self._of_batch(inputs[0].ndim))

    def join(self, name: str, inputs: Sequence[Variable], outputs: Variable) -> list[Factor]:
        """A group for each input, which is a part of the outputs."""
        axis = self._of_batch(len(outputs.shape))
        sizes = [x.shape[axis] for x in inputs]
        starts = [0, *accumulate(sizes)]
        kinds = [PartKind(_along_axis((*x.shape,), axis, start, n)) for x, start, n in zip(inputs, starts, sizes)]
        return [
            Factor(kind, (outputs, x), y=0.0, sigma=self.sigma, linear=True, name=f"{name}/{i}")
            for i, (kind, x) in enumerate(zip(kinds, inputs))
        ]


@dataclasses.dataclass(frozen=True)
class Part(Join):
    """A part of one node, along an axis: `outputs ~ N(inputs[begin:end], sigma²)`.

    Several inputs of a network are parts of one; so are the steps of a sequence.

    **Arguments:**

    - `begin`, `end`: the first of them, and the first that is not among them.
    - `axis`: of an example, without the batch.
    - `sigma`, `prior`: as `gbp.Add`.
    """

    begin: int
    end: int
    axis: int = -1
    label: ClassVar[str] = "part"

    def __post_init__(self):
        super().__post_init__()
        _check_whole("Part", begin=self.begin, end=self.end, axis=self.axis)
        if not 0 <= self.begin < self.end:
            raise ValueError(f"Part: 0 <= begin < end must hold, got {self!r}")

    def joined_shape(self, *shapes: Shape) -> Shape:
        """Of one input."""
        if len(shapes) != 1:
            raise ValueError(f"Part takes one node, got {len(shapes)}")
        (shape,) = shapes
        if not -len(shape) <= self.axis < len(shape) or self.end > shape[self.axis]:
            raise ValueError(f"Part: inputs {shape} have no {self.begin} to {self.end} along axis {self.axis}")
        at = self.axis % len(shape)
        return (*shape[:at], int(self.end - self.begin), *shape[at + 1 :])

    def _slices(self, shape: Shape) -> Slices:
        axis = self.axis + 1 if self.axis >= 0 else self.axis
        return _along_axis(shape, axis, self.begin, self.end - self.begin)

    def joined(self, *inputs: Array) -> Array:
        """Sliced."""
        (x,) = inputs
        return x[tuple(slice(start, start + n) for start, n, _ in self._slices(x.shape))]

    def join(self, name: str, inputs: Sequence[Variable], outputs: Variable) -> list[Factor]:
        """One group."""
        (x,) = inputs
        kind = PartKind(self._slices(x.shape))
        return [Factor(kind, (x, outputs), y=0.0, sigma=self.sigma, linear=True, name=name)]
