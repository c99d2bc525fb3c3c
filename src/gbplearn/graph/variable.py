"""Variables, and the views of them that factors are connected to."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ..core.block import BLOCK
from ..core.diagonal import DIAGONAL
from ..core.family import Family
from ..edges.base import Edges
from ..edges.indexed import SharedEdges, SliceEdges, index_edges

_INTEGER_VIEW = "{name}[{key}] is one element: the first axis of a view runs over the factors, use {name}[{key}:{next}]"


@dataclasses.dataclass(frozen=True)
class Variable:
    """A named array of scalar Gaussian variables; with `block` or `vector`, of vector variables along its last axis.

    Of a block a message is a vector and a matrix. A `vector` may be long: factors see it through one number each, and a
    message is two numbers (`core/vector.py`).

    Indexing gives a `View`. Made by `FactorGraph.variable`.
    """

    name: str
    shape: tuple[int, ...]
    block: bool = False
    vector: bool = False

    @property
    def family(self) -> Family:
        """The family of beliefs that was declared; of a vector, that of the numbers that factors see."""
        return BLOCK if self.block else DIAGONAL

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """The shape in units: what exchanges one message, a scalar or a vector."""
        return self.shape[:-1] if self.vector else self.family.unit_shape(self.shape)

    @property
    def dim(self) -> int:
        """Length of a unit: 1 for scalars."""
        return self.family.dim(self.shape)

    def __getitem__(self, key: Any) -> View:
        """A view: slices, index arrays, `None` for a new axis. See `View`."""
        keys = list(key) if isinstance(key, tuple) else [key]
        keys = self._spell_out(keys)
        if keys and isinstance(keys[0], (int, np.integer)) and not isinstance(keys[0], bool):
            k = int(keys[0])
            raise IndexError(_INTEGER_VIEW.format(name=self.name, key=k, next="" if k == -1 else k + 1))
        if all(k is None or isinstance(k, (int, np.integer)) or _forward(k) for k in keys):
            return self._slice(keys)
        units = np.arange(math.prod(self.unit_shape), dtype=np.int32).reshape(self.unit_shape)
        try:
            ids = units[tuple(np.asarray(k) if isinstance(k, list) else k for k in keys)]
        except (IndexError, TypeError) as error:
            raise IndexError(f"variable '{self.name}' of shape {self.shape}: {error}") from None
        return View(self, tuple(ids.shape), ids=ids)

    def _spell_out(self, keys: list[Any]) -> list[Any]:
        """Replace `...` by slices, add the missing ones, and refuse to cut a block."""
        counted = sum(_axes(k) for k in keys)
        if sum(k is Ellipsis for k in keys) > 1:
            raise IndexError(f"variable '{self.name}': an index can have one ellipsis ('...')")
        if counted > len(self.shape):
            raise IndexError(f"variable '{self.name}' has {len(self.shape)} axes, indexed with {counted}")
        fill = [slice(None)] * (len(self.shape) - counted)
        if any(k is Ellipsis for k in keys):
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            keys = keys[:at] + fill + keys[at + 1 :]
        else:
            keys = keys + fill
        if self.block or self.vector:
            last = keys.pop()
            if not (isinstance(last, slice) and last == slice(None)):
                raise IndexError(f"the last axis of '{self.name}' is one vector variable and cannot be indexed")
        return keys

    def _slice(self, keys: list[Any]) -> View:
        slices, shape, axis = [], [], 0
        for k in keys:
            if k is None:
                shape.append(1)
                continue
            length = self.unit_shape[axis]
            if isinstance(k, slice):
                start, stop, step = k.indices(length)
                size = len(range(start, stop, step))
                shape.append(size)
            else:
                if not -length <= k < length:
                    raise IndexError(f"variable '{self.name}': index {k} is outside axis {axis} of length {length}")
                start, size, step = int(k) % length, 1, 1
            slices.append((start, size, step))
            axis += 1
        return View(self, tuple(shape), slices=tuple(slices))


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Which units of a variable the factors of a group are connected to.

    The first axis runs over the factors; what is left of each row is one argument of the measurement function.
    A first axis of length 1 (`w[None]`) is shared by all factors. `shape` counts units: a block is one unit.
    """

    variable: Variable
    shape: tuple[int, ...]
    slices: tuple[tuple[int, int, int], ...] | None = None  # (start, size, step) of each axis of the variable
    ids: np.ndarray | None = None  # flat numbers of the units, where they are not slices

    def reshape(self, *shape: int) -> View:
        """The same units in the same order with other axes, e.g. `x[:, 1:].reshape(-1)`: one pixel a factor.

        Blocks count as one: their last axis is not part of the shape.
        """
        if len(shape) == 1 and isinstance(shape[0], tuple):
            shape = shape[0]
        count = math.prod(self.shape)
        known = math.prod(s for s in shape if s != -1)
        if shape.count(-1) == 1 and known and count % known == 0:
            shape = tuple(count // known if s == -1 else s for s in shape)
        if math.prod(shape) != count:
            raise ValueError(f"view of '{self.variable.name}': {self.shape} cannot be reshaped to {shape}")
        ids = None if self.ids is None else self.ids.reshape(shape)
        return View(self.variable, tuple(shape), self.slices, ids)

    @property
    def whole(self) -> bool:
        """The variable itself: every unit once, in its own shape."""
        full = tuple((0, n, 1) for n in self.variable.unit_shape)
        return self.slices == full and self.shape == self.variable.unit_shape

    @property
    def units(self) -> int:
        """Units a factor: the size of a row."""
        return math.prod(self.shape[1:])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one argument of the measurement function."""
        variable = self.variable
        return (*self.shape[1:], *(variable.shape[-1:] if variable.vector else variable.family.trail(variable.shape)))

    def unit_ids(self) -> np.ndarray:
        """Flat unit numbers, one row a factor: `(first axis, units)`."""
        if self.ids is not None:
            return self.ids.reshape(self.shape[0], self.units)
        assert self.slices is not None
        grid = np.zeros((1,) * len(self.slices), np.int32)
        for axis, (start, size, step) in enumerate(self.slices):
            stride = math.prod(self.variable.unit_shape[axis + 1 :])
            line = (start + step * np.arange(size, dtype=np.int32)) * np.int32(stride)
            grid = grid + line.reshape((-1,) + (1,) * (len(self.slices) - 1 - axis))
        return grid.reshape(self.shape[0], self.units)

    def edges(self, factors: int) -> Edges:
        """The edge set between the variable and a group of `factors` factors."""
        unit_shape = self.variable.unit_shape
        if self.shape[0] == 1 and factors > 1:
            return SharedEdges(inner=self.edges(1), factors=factors, unit_shape=unit_shape)
        if self.slices is not None:
            return SliceEdges(slices=self.slices, unit_shape=unit_shape, shape=(self.shape[0], self.units))
        return index_edges(self.unit_ids(), unit_shape)


def _axes(key: Any) -> int:
    """How many axes of the variable one entry of an index takes up."""
    if key is None or key is Ellipsis:
        return 0
    array = np.asarray(key) if not isinstance(key, slice) else None
    return array.ndim if array is not None and array.dtype == bool else 1


def _forward(key: Any) -> bool:
    return isinstance(key, slice) and (key.step is None or key.step > 0)


def check_once(name: str, factors: int, views: list[View]) -> None:
    """Raise if a unit occurs twice in one factor. `views` are all views of one variable in a group."""
    if len(views) == 1 and views[0].slices is not None:
        return  # a slice holds every unit once
    rows = [v.unit_ids() for v in views]
    width = sum(r.shape[1] for r in rows)
    chunk = max(1, 4_000_000 // width)
    for start in range(0, factors, chunk):
        stop = min(factors, start + chunk)
        part = np.concatenate(
            [np.broadcast_to(r if len(r) == 1 else r[start:stop], (stop - start, r.shape[1])) for r in rows], axis=1
        )
        part.sort(axis=1)
        twice = np.flatnonzero((part[:, 1:] == part[:, :-1]).any(axis=1))
        if len(twice):
            i = int(twice[0])
            row = part[i]
            unit = int(row[1:][row[1:] == row[:-1]][0])
            variable = views[0].variable
            where = ", ".join(str(int(k)) for k in np.unravel_index(unit, variable.unit_shape))
            raise ValueError(
                f"factor '{name}': {variable.name}[{where}] occurs twice in factor {start + i}; "
                "a scalar (or block) may occur at most once in a factor"
            )
