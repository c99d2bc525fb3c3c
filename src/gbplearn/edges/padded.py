"""Edge sets with room for more edges: their arrays have the same shapes however many edges are in use."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.linalg import add_all, sum_of_others
from .base import Edges

# How many edges of a unit, or chunks of them, are summed at once.
WIDTH = 4


class PaddedEdges(Edges):
    """Units chosen by an index array, any number of times, with rows that are not in use.

    The edges of a unit are cut into chunks of `WIDTH`, the chunks again into chunks of `WIDTH`, and so on: after
    `levels` of them a unit has one. Sums over all edges go up through the levels, sums over all but one come down
    again, and every array has a shape that depends on the room alone, and on the number of levels: 1 up to `WIDTH`
    edges a unit, 2 up to `WIDTH²`. Rows that are not in use are in no chunk: nothing that stands there is ever summed.
    """

    index: Array | np.ndarray  # (F, n): the unit of each edge; where a row is not in use, any
    tables: tuple[Array | np.ndarray, ...]  # of each level (chunks, WIDTH): edges, or chunks of the level before
    places: tuple[Array | np.ndarray, ...]  # of each level: where its edges or chunks stand in its table, flattened
    used: Array | np.ndarray  # (F, 1): which rows are in use
    unit_shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All of its arrays, in the order of its fields."""
        return self.index, *self.tables, *self.places, self.used

    @property
    def injective(self) -> bool:
        """Units may occur in several factors."""
        return False

    @property
    def row(self) -> int:
        """By the shape of the index."""
        return self.index.shape[1]

    @property
    def dense(self) -> bool:
        """Not injective."""
        return False

    def present(self) -> Array:
        """Those of the rows that are in use."""
        return jnp.broadcast_to(self.used, self.index.shape)

    def spread(self, x: Array) -> Array:
        """Gather."""
        return _take(x.reshape(-1, *x.shape[len(self.unit_shape) :]), self.index)

    def _chunks(self, e: Array) -> list[Array]:
        """Of each level what its chunks hold, `(chunks, WIDTH)`."""
        out = [_rows(e.reshape(-1, *e.shape[2:]), self.tables[0])]
        for table in self.tables[1:]:
            out.append(_rows(_total(out[-1]), table))
        return out

    def pool(self, e: Array) -> Array:
        """Sums of chunks, of chunks of chunks, of units."""
        e = jnp.broadcast_to(e, (*self.index.shape, *e.shape[2:]))
        return _total(self._chunks(e)[-1]).reshape(*self.unit_shape, *e.shape[2:])

    def others(self, e: Array) -> Array:
        """The others of its chunk, and all other chunks of its unit."""
        trail, rest = e.shape[2:], None
        for chunks, places in zip(reversed(self._chunks(e)), reversed(self.places)):
            others = sum_of_others(chunks, 1)
            others = others if rest is None else others + rest[:, None]
            rest = _take(others.reshape(-1, *trail), places)
        assert rest is not None
        return rest.reshape(e.shape)


def levels_for(most: int) -> int:
    """How many levels it takes for units with so many edges."""
    levels, room = 1, WIDTH
    while room < most:
        levels, room = levels + 1, room * WIDTH
    return levels


def padded_edges(ids: np.ndarray, used: np.ndarray, unit_shape: tuple[int, ...], levels: int) -> PaddedEdges:
    """The edge set of an index array, some of whose rows are in use.

    **Arguments:**

    - `ids`: `(F, n)`, flat numbers of the units.
    - `used`: `(F,)`, which rows are in use.
    - `levels`: at least `levels_for` the number of edges of the unit that has most.

    **Returns:** the edge set; its arrays are NumPy's, to be handed to compiled code.
    """
    units, (factors, n) = math.prod(unit_shape), ids.shape
    items = np.flatnonzero(np.repeat(used, n)).astype(np.int32)  # the edges in use
    owners = ids.reshape(-1)[items]
    count, tables, places = factors * n, [], []
    for level in range(levels):
        order = np.argsort(owners, kind="stable")
        items, owners = items[order], owners[order]
        new = np.ones(len(owners), bool)
        new[1:] = owners[1:] != owners[:-1]
        starts = np.flatnonzero(new)
        rank = np.arange(len(owners)) - np.repeat(starts, np.diff(np.append(starts, len(owners))))
        last = level == levels - 1
        if last:
            chunk, room = owners, units
        else:  # a chunk more for each unit than its edges fill
            chunk, room = np.cumsum(rank % WIDTH == 0) - 1, min(count, units + count // WIDTH)
        at = (chunk * WIDTH + rank % WIDTH).astype(np.int32)
        table = np.full(room * WIDTH, count, np.int32)
        table[at] = items
        place = np.zeros(count, np.int32)
        place[items] = at
        tables.append(table.reshape(room, WIDTH))
        places.append(place)
        if not last:
            heads = rank % WIDTH == 0
            items, owners, count = chunk[heads].astype(np.int32), owners[heads], room
    index = np.ascontiguousarray(ids, np.int32)
    return PaddedEdges(
        index=index, tables=tuple(tables), places=tuple(places), used=used[:, None].copy(), unit_shape=unit_shape
    )


def _take(x: Array, index: Any) -> Array:
    return jnp.take(x, index, axis=0, mode="clip")


def _rows(x: Array, table: Any) -> Array:
    """What a table names, 0 where it names none."""
    return _take(jnp.concatenate([x, jnp.zeros((1, *x.shape[1:]), x.dtype)]), table)


def _total(chunks: Array) -> Array:
    return add_all([chunks[:, i] for i in range(chunks.shape[1])])
