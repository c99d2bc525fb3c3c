"""Edge sets of views: units chosen by slices or by index arrays, or shared by all factors of a group."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core.linalg import sum_of_others
from .base import Edges


class SliceEdges(Edges):
    """Units chosen by slices: copies are slices and paddings, which the compiler fuses into its loops."""

    slices: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    unit_shape: tuple[int, ...] = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)

    @property
    def injective(self) -> bool:
        """No unit occurs twice."""
        return True

    @property
    def row(self) -> int:
        """By the shape of the edges."""
        return self.shape[1]

    @property
    def dense(self) -> bool:
        """By the sizes of the slices."""
        return 2 * math.prod(self.shape) >= math.prod(self.unit_shape)

    def apart(self, other: Edges) -> bool:
        """Slices of the same sizes that begin at different places, one unit a factor."""
        if not isinstance(other, SliceEdges) or self.row > 1 or self.slices == other.slices:
            return False
        return [x[1:] for x in self.slices] == [x[1:] for x in other.slices]

    def spread(self, x: Array) -> Array:
        """Slice."""
        trail = x.shape[len(self.unit_shape) :]
        starts = [a for a, _, _ in self.slices]
        limits = [a + (n - 1) * step + 1 if n else a for a, n, step in self.slices]
        steps = [step for _, _, step in self.slices]
        zeros, ones = [0] * len(trail), [1] * len(trail)
        cut = lax.slice(x, starts + zeros, limits + list(trail), steps + ones)
        return cut.reshape(*self.shape, *trail)

    def pool(self, e: Array) -> Array:
        """Pad with zeros."""
        trail = e.shape[2:]
        sizes = [n for _, n, _ in self.slices]
        config = []
        for (start, size, step), length in zip(self.slices, self.unit_shape):
            covered = (size - 1) * step + 1 if size else 0
            config.append((start, length - start - covered, step - 1))
        config += [(0, 0, 0)] * len(trail)
        return lax.pad(e.reshape(*sizes, *trail), jnp.zeros((), e.dtype), config)

    def others(self, e: Array) -> Array:
        """None: a slice holds every unit once."""
        return jnp.zeros_like(e)


class IndexEdges(Edges):
    """Units chosen by an index array in which none occurs twice."""

    index: Array  # (F, n): the unit of each edge
    edge_of: Array  # (units,): the edge of each unit, or F n where it has none
    unit_shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def injective(self) -> bool:
        """No unit occurs twice."""
        return True

    @property
    def row(self) -> int:
        """By the shape of the index."""
        return self.index.shape[1]

    @property
    def dense(self) -> bool:
        """By the size of the index."""
        return 2 * self.index.size >= self.edge_of.size

    def spread(self, x: Array) -> Array:
        """Gather."""
        return _take(x.reshape(-1, *x.shape[len(self.unit_shape) :]), self.index)

    def pool(self, e: Array) -> Array:
        """Gather by the inverse index: cheaper than a scatter."""
        trail = e.shape[2:]
        return _take(_with_zero(e.reshape(-1, *trail)), self.edge_of).reshape(*self.unit_shape, *trail)

    def others(self, e: Array) -> Array:
        """None: every unit occurs once."""
        return jnp.zeros_like(e)


class RepeatedEdges(Edges):
    """Units chosen by an index array, any number of times.

    Units are sorted into buckets by how many edges they have, rounded up to a power of four, so that the edges of a
    bucket form a rectangle padded with zeros: sums over all edges, and over all but one, are then operations on rows.
    (Powers of two would pad less and take longer to compile.)
    """

    index: Array  # (F, n)
    buckets: tuple[Array, ...]  # each (units in it, width): edge numbers, F n for padding
    unit_at: Array  # (units,): position of a unit in the joined buckets
    edge_at: Array  # (F n,): position of an edge in the joined, flattened buckets
    unit_shape: tuple[int, ...] = eqx.field(static=True)

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

    def spread(self, x: Array) -> Array:
        """Gather."""
        return _take(x.reshape(-1, *x.shape[len(self.unit_shape) :]), self.index)

    def pool(self, e: Array) -> Array:
        """Row sums of the buckets."""
        trail = e.shape[2:]
        flat = _with_zero(e.reshape(-1, *trail))
        sums = jnp.concatenate([_take(flat, b).sum(1) for b in self.buckets])
        return _take(_with_zero(sums), self.unit_at).reshape(*self.unit_shape, *trail)

    def others(self, e: Array) -> Array:
        """Row sums of the buckets, without the edge itself."""
        trail = e.shape[2:]
        flat = _with_zero(e.reshape(-1, *trail))
        rows = [sum_of_others(_take(flat, b), 1).reshape(-1, *trail) for b in self.buckets]
        return _take(jnp.concatenate(rows), self.edge_at).reshape(e.shape)


class SharedEdges(Edges):
    """The same units in every factor of the group."""

    inner: Edges  # of a group of one factor
    factors: int = eqx.field(static=True)
    unit_shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def injective(self) -> bool:
        """Units may occur in several factors."""
        return False

    @property
    def row(self) -> int:
        """As in one factor."""
        return self.inner.row

    @property
    def dense(self) -> bool:
        """Not injective."""
        return False

    def spread(self, x: Array) -> Array:
        """One row, which broadcasts over the factors."""
        return self.inner.spread(x)

    def pool(self, e: Array) -> Array:
        """Sum over the factors."""
        return self.inner.pool(e.sum(0, keepdims=True))

    def others(self, e: Array) -> Array:
        """Sum over the other factors."""
        return sum_of_others(e, 0)


def index_edges(ids: np.ndarray, unit_shape: tuple[int, ...]) -> IndexEdges | RepeatedEdges:
    """The edge set of an index array: `ids (F, n)` are flat numbers of the units."""
    units, edges = math.prod(unit_shape), ids.size
    counts = np.bincount(ids.ravel(), minlength=units)
    index = jax.device_put(np.asarray(ids, np.int32))
    if counts.max(initial=0) <= 1:
        edge_of = np.full(units, edges, np.int32)
        edge_of[ids.ravel()] = np.arange(edges, dtype=np.int32)
        return IndexEdges(index=index, edge_of=jax.device_put(edge_of), unit_shape=unit_shape)
    order = np.argsort(ids.ravel(), kind="stable").astype(np.int32)  # edges, those of a unit side by side
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    unit_at = np.full(units, np.count_nonzero(counts), np.int32)
    edge_at = np.zeros(edges, np.int32)
    buckets, units_before, slots_before, low, width = [], 0, 0, 0, 1
    while low < counts.max():
        inside = np.flatnonzero((counts > low) & (counts <= width))
        if len(inside):
            slot = np.arange(width)
            present = slot < counts[inside, None]
            bucket = np.where(present, order[np.minimum(first[inside, None] + slot, edges - 1)], edges)
            buckets.append(jax.device_put(bucket.astype(np.int32)))
            unit_at[inside] = units_before + np.arange(len(inside))
            edge_at[bucket[present]] = slots_before + np.flatnonzero(present.ravel())
            units_before, slots_before = units_before + len(inside), slots_before + bucket.size
        low, width = width, 4 * width
    return RepeatedEdges(
        index=index,
        buckets=tuple(buckets),
        unit_at=jax.device_put(unit_at),
        edge_at=jax.device_put(edge_at),
        unit_shape=unit_shape,
    )


def _take(x: Array, index: Array) -> Array:
    return jnp.take(x, index, axis=0, mode="clip")


def _with_zero(x: Array) -> Array:
    """One more row of zeros, for positions without an edge to point to."""
    return jnp.concatenate([x, jnp.zeros((1, *x.shape[1:]), x.dtype)])
