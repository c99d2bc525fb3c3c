"""Edge sets: how the messages of one argument of a factor group meet the units of a variable.

Arrays on the variable side have shape `unit_shape + trail`, arrays on the factor side `(F, n) + trail`: `F`
factors with `n` units each. `trail` is empty for scalars, and for blocks `(d,)` (information) or `(d, d)`.
(`Rows` has the exception.) Nothing here knows what a message means; all operations are sums and copies.
"""

from __future__ import annotations

import abc
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .linalg import sum_along, sum_of_others
from .rows import ROWS, Rows
from .view import View


class Edges(eqx.Module):
    """One edge set."""

    unit_shape: eqx.AbstractVar[tuple[int, ...]]

    @property
    def units(self) -> int:
        """How many units the variable has."""
        return math.prod(self.unit_shape)

    @property
    @abc.abstractmethod
    def injective(self) -> bool:
        """No unit occurs twice, so a pooled message is the message itself."""

    @property
    @abc.abstractmethod
    def row(self) -> int:
        """n, the edges of one factor."""

    @property
    @abc.abstractmethod
    def dense(self) -> bool:
        """Injective, and at least half of the units have an edge: messages are then kept on the units."""

    @property
    def rows(self) -> Rows:
        """How its edges lie in arrays."""
        return ROWS

    def apart(self, other: Edges) -> bool:
        """Whether it is known that no factor has a unit in both of two edge sets of one variable."""
        return False

    def present(self) -> Array | None:
        """Which edges there are `(F, n)`, where rows would be longer than a factor has units; None if all are."""
        return None

    @abc.abstractmethod
    def spread(self, x: Array) -> Array:
        """From units to edges: every edge gets its unit's value. The first axis may be 1 for shared units."""

    @abc.abstractmethod
    def pool(self, e: Array) -> Array:
        """From edges to units: the sum of the edges of each unit; zero for units without an edge."""

    @abc.abstractmethod
    def others(self, e: Array) -> Array:
        """For each edge the sum of the *other* edges of its unit in this set, summed without cancellation."""


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
    bucket form a rectangle padded with zeros: sums over all edges, and over all but one, are then plain row operations.
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


class AxesEdges(Edges):
    """Edges on a grid of factors and row positions: a variable along some axes of it, repeated along the others.

    A dense layer has factors `(batch, output)` and rows `(input,)`; its inputs are repeated along `output`, its
    weights along `batch`.
    """

    unit_shape: tuple[int, ...] = eqx.field(static=True)
    axes: tuple[int, ...] = eqx.field(static=True)  # for each axis of the variable, the axis of the grid it lies along
    grid: tuple[int, ...] = eqx.field(static=True)  # sizes of all axes: those of the factors, then one of the row
    joined: tuple[int, ...] = eqx.field(static=True)  # unit_shape with axes that lie along one axis of the grid joined

    def __init__(self, unit_shape: tuple[int, ...], axes: tuple[int, ...], grid: tuple[int, ...]):
        self.unit_shape, self.axes, self.grid = tuple(unit_shape), tuple(axes), tuple(grid)
        self.joined = tuple(grid[a] for a in axes)
        if math.prod(self.joined) != math.prod(unit_shape):
            raise ValueError(f"a variable of shape {self.unit_shape} does not lie along axes {axes} of the grid {grid}")

    @property
    def row(self) -> int:
        """The last axis of the grid."""
        return self.grid[-1]

    @property
    def repeated(self) -> tuple[int, ...]:
        """Axes of the grid along which the variable is repeated."""
        return tuple(a for a, n in enumerate(self.grid) if a not in self.axes and n > 1)

    @property
    def injective(self) -> bool:
        """Nothing is repeated."""
        return not self.repeated

    @property
    def dense(self) -> bool:
        """A grid covers the whole variable."""
        return self.injective

    def spread(self, x: Array) -> Array:
        """Broadcast."""
        trail = x.shape[len(self.unit_shape) :]
        x = x.reshape(*self.joined, *trail)
        order = sorted(range(len(self.axes)), key=lambda i: self.axes[i])
        if order != list(range(len(order))):
            x = _transposed(x, (*order, *range(len(self.axes), x.ndim)))
        sizes = [n if a in self.axes else 1 for a, n in enumerate(self.grid)]
        wide = jnp.broadcast_to(x.reshape(*sizes, *trail), (*self.grid, *trail))
        return wide.reshape(-1, self.row, *trail)

    def pool(self, e: Array) -> Array:
        """Sum over the axes along which the variable is repeated."""
        trail = e.shape[2:]
        missing = tuple(a for a in range(len(self.grid)) if a not in self.axes)
        e = jnp.broadcast_to(e, (math.prod(self.grid[:-1]), *e.shape[1:])).reshape(*self.grid, *trail)
        for axis in missing:
            e = sum_along(e, axis)
        e = e.squeeze(missing)
        left = sorted(self.axes)
        e = e.transpose(*(left.index(a) for a in self.axes), *range(len(left), e.ndim))
        return e.reshape(*self.unit_shape, *trail)

    def others(self, e: Array) -> Array:
        """Sum over the other places along the repeated axes."""
        repeated = self.repeated
        if not repeated:
            return jnp.zeros_like(e)
        wide = e.reshape(*self.grid, *e.shape[2:])
        if len(repeated) == 1:
            return sum_of_others(wide, repeated[0]).reshape(e.shape)
        front = jnp.moveaxis(wide, repeated, range(len(repeated)))
        out = sum_of_others(front.reshape(-1, *front.shape[len(repeated) :]), 0).reshape(front.shape)
        return jnp.moveaxis(out, range(len(repeated)), repeated).reshape(e.shape)


def make_edges(view: View, factors: int) -> Edges:
    """The edge set of a view in a group of `factors` factors."""
    if view.shape[0] == 1 and factors > 1:
        return SharedEdges(inner=make_edges(view, 1), factors=factors, unit_shape=view.variable.unit_shape)
    unit_shape = view.variable.unit_shape
    if view.slices is not None:
        return SliceEdges(slices=view.slices, unit_shape=unit_shape, shape=(view.shape[0], view.units))
    ids = view.unit_ids()
    units, edges = math.prod(unit_shape), ids.size
    counts = np.bincount(ids.ravel(), minlength=units)
    index = jnp.asarray(ids, jnp.int32)
    if counts.max(initial=0) <= 1:
        edge_of = np.full(units, edges, np.int32)
        edge_of[ids.ravel()] = np.arange(edges, dtype=np.int32)
        return IndexEdges(index=index, edge_of=jnp.asarray(edge_of), unit_shape=unit_shape)
    order = np.argsort(ids.ravel(), kind="stable").astype(np.int32)  # edges, those of a unit side by side
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    unit_at = np.full(units, np.count_nonzero(counts), np.int32)
    edge_at = np.zeros(edges, np.int32)
    buckets, seen_units, seen_slots, low, width = [], 0, 0, 0, 1
    while low < counts.max():
        inside = np.flatnonzero((counts > low) & (counts <= width))
        if len(inside):
            slot = np.arange(width)
            present = slot < counts[inside, None]
            bucket = np.where(present, order[np.minimum(first[inside, None] + slot, edges - 1)], edges)
            buckets.append(jnp.asarray(bucket, jnp.int32))
            unit_at[inside] = seen_units + np.arange(len(inside))
            edge_at[bucket[present]] = seen_slots + np.flatnonzero(present.ravel())
            seen_units, seen_slots = seen_units + len(inside), seen_slots + bucket.size
        low, width = width, 4 * width
    return RepeatedEdges(
        index=index,
        buckets=tuple(buckets),
        unit_at=jnp.asarray(unit_at),
        edge_at=jnp.asarray(edge_at),
        unit_shape=unit_shape,
    )


def _transposed(x: Array, order: tuple[int, ...]) -> Array:
    """Transposed once, not at every edge that reads it.

    XLA:CPU would fold the transpose into each reader, which then goes down the columns: out of the cache at every
    step where their length is a power of two. The results of a conditional it must write down.
    """
    if x.size < 100_000:
        return x.transpose(order)
    first = x.reshape(-1)[0]
    # Flat, because of a matrix it would only write down that it is to be read the other way round.
    flat = lax.cond(
        first == first, lambda a: a.transpose(order).reshape(-1), lambda a: (1 * a.transpose(order)).reshape(-1), x
    )
    return flat.reshape([x.shape[i] for i in order])


def _take(x: Array, index: Array) -> Array:
    return jnp.take(x, index, axis=0, mode="clip")


def _with_zero(x: Array) -> Array:
    """One more row of zeros, for positions without an edge to point to."""
    return jnp.concatenate([x, jnp.zeros((1, *x.shape[1:]), x.dtype)])
