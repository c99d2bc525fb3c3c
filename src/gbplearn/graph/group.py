"""Factor groups as arrays: edge sets, measurements, noise, and the linearisation of all factors at once."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from ..core import linalg
from ..core.family import Family
from ..core.noise import NoisePrior
from ..core.robust import Kernel
from ..core.vector import Belief
from ..edges.axes import AxesEdges
from ..edges.base import Edges
from ..factors.likelihood import Likelihood
from ..factors.measurement import Linear, Measurement
from ..factors.operators import Entries, Operator, UnitRows
from .factor import Factor, check_noise_range
from .variable import View


class Role(enum.Enum):
    """What an argument of a group is."""

    SLOT = enum.auto()  # a variable that messages go to
    HELD = enum.auto()  # a variable that is held at a belief
    FIXED = enum.auto()  # a variable that is wholly observed
    CONSTANT = enum.auto()


class Slot(eqx.Module):
    """One argument of a group that is a variable: the edge set between them."""

    edges: Edges
    variable: str = eqx.field(static=True)
    row_shape: tuple[int, ...] = eqx.field(static=True)
    family: Family = eqx.field(static=True)  # of the variable
    proper: bool = eqx.field(static=True)  # the variable has a proper prior everywhere
    # Only the sum of the messages into each unit is kept, and the reaction term by this slot of the group.
    reaction: int | None = eqx.field(static=True, default=None)
    # Of a vector variable: its factors as a table `(rows, units)`, each of which sees one number.
    table: tuple[int, int] | None = eqx.field(static=True, default=None)

    @property
    def pooled(self) -> bool:
        """Whether only the sum of the messages into each unit is kept."""
        return self.reaction is not None

    @property
    def units(self) -> int:
        """Units a factor."""
        return self.edges.row

    def to_table(self, each: Array) -> Array:
        """Numbers of the factors `(F, 1)` in the table of a vector variable; 0 where a row has no factor."""
        assert self.table is not None
        if each.size == self.table[0] * self.table[1]:
            return each.reshape(self.table)
        return jnp.where(self._own_unit(), each, 0)

    def from_table(self, table: Array) -> Array:
        """The numbers of the factors `(F, 1)`."""
        if table.size == self.table_factors:
            return table.reshape(-1, 1)
        return jnp.sum(jnp.where(self._own_unit(), table, 0), 1, keepdims=True)

    @property
    def table_factors(self) -> int:
        """How many factors the table has."""
        assert self.table is not None
        one_unit = isinstance(self.edges, AxesEdges) or self.table[1] == 1
        return self.table[0] * (self.table[1] if one_unit else 1)

    def _own_unit(self) -> Array:
        """Of a user's factors, which unit each of them sees `(rows, units)`."""
        assert self.table is not None
        units = jnp.arange(self.table[1])
        return jnp.broadcast_to(self.edges.spread(units), (self.table[0], 1)) == units

    def rows(self, x: Array) -> Array:
        """Values of a variable `unit_shape (+ d)` as arguments of h: `(F | 1,) + row_shape`."""
        return self.edges.spread(x).reshape(-1, *self.row_shape)


class Measured(NamedTuple):
    """A group's residual at a point: energy, robust scale `(F | 1, M)` (None: 1), share of switched factors."""

    energy: Array
    scale: Array | None
    switched: Array


class Group(eqx.Module):
    """Many factors of one kind. `F` factors, `M` measurements each."""

    slots: tuple[Slot, ...]
    held: tuple[Slot, ...]  # arguments held at a belief: they enter with their variance, and receive no messages
    fixed: tuple[Slot, ...]  # arguments that are wholly observed: no messages go there
    constants: tuple[Array, ...]
    y: Float[Array, "f m"]
    noise: Array  # variances (F | 1, M), or covariances (F | 1, M, M)
    noise_prior: NoisePrior | None  # where the noise is learnt: one variance for all
    weight: Array | None  # on the precision, (F | 1, 1): 0 for a factor that is not there; None: 1
    robust: Kernel | None
    measurement: Measurement
    name: str = eqx.field(static=True)
    linear: bool = eqx.field(static=True)
    arguments: tuple[tuple[Role, int], ...] = eqx.field(static=True)  # of `h`: which of the above, and its number
    grid: tuple[int, ...] = eqx.field(static=True)  # the factors, as an array
    h_shape: tuple[int, ...] = eqx.field(static=True)
    switch_axes: tuple[int, ...] = eqx.field(static=True)
    weight_repeat: int = eqx.field(static=True, default=1)  # so many factors in a row have the same weight
    numbers: Array | None = None  # where the group grows: of the factor in each row; -1 for a row that is not in use
    white: Array | None = None  # of covariances, what makes their noise white (`linalg.whitening`): by `with_known`

    @property
    def factors(self) -> int:
        """F."""
        return math.prod(self.grid)

    def compact_weight(self) -> Array:
        """The weights once for those factors in a row that have the same, in a shape that broadcasts to the grid."""
        assert self.weight is not None
        sizes, left = [], self.weight_repeat
        for n in reversed(self.grid):
            sizes.append(1 if left >= n and left % n == 0 else n)
            left = left // n if sizes[-1] == 1 else 1
        return self.weight[:: self.weight_repeat, 0].reshape(sizes[::-1])

    @property
    def outputs(self) -> int:
        """M."""
        return math.prod(self.h_shape)

    @property
    def scalar(self) -> bool:
        """Whether the quick update for M = 1 over scalars applies."""
        return self.outputs == 1 and all(s.family.scalar for s in (*self.slots, *self.held))

    @property
    def edges(self) -> int:
        """How many messages it sends."""
        return self.factors * sum(s.units for s in self.slots)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables it sends messages to, each once."""
        return tuple(dict.fromkeys(s.variable for s in self.slots))

    def slots_of(self, variable: str) -> list[int]:
        """The slots of a variable."""
        return [s for s, slot in enumerate(self.slots) if slot.variable == variable]

    def arguments_at(self, values: dict[str, Array]) -> list[Array]:
        """What `h` takes: whole variables, or one row a factor."""

        def of(slot: Slot) -> Array:
            x = values[slot.variable]
            return x if self.measurement.whole else slot.rows(x)

        by_role = {
            Role.SLOT: [of(s) for s in self.slots],
            Role.HELD: [of(s) for s in self.held],
            Role.FIXED: [of(s) for s in self.fixed],
            Role.CONSTANT: list(self.constants),
        }
        return [by_role[role][i] for role, i in self.arguments]

    def with_known(self, fixed: dict[str, Array]) -> Group:
        """The same group, with what depends on observed values and constants alone computed once for all."""
        known: list[Array | None] = []
        for role, i in self.arguments:
            constant = self.constants[i] if role is Role.CONSTANT else None
            known.append(fixed[self.fixed[i].variable] if role is Role.FIXED else constant)
        white = linalg.whitening(self.noise) if self.white is None and self.noise.ndim == 3 else self.white
        return dataclasses.replace(self, measurement=self.measurement.with_known(known), white=white)

    def value(self, values: dict[str, Array]) -> Float[Array, "f m"]:
        """`h` of every factor at the values of the variables."""
        return self.measurement.value(*self.arguments_at(values)).reshape(-1, self.outputs)

    def linearise(self, values: dict[str, Array], beliefs: Mapping[str, Belief] | None = None) -> Linear:
        """Linearise at the values of the variables: Jacobians of the slots, then of what is held.

        **Arguments:** `beliefs`: of the slots' variables, whose variances a likelihood takes; None: as if they were 0.
        """
        if isinstance(self.measurement, Likelihood):
            return self._expand(self.measurement, values, beliefs or {})
        places = [self.arguments.index((Role.SLOT, i)) for i in range(len(self.slots))]
        places += [self.arguments.index((Role.HELD, i)) for i in range(len(self.held))]
        value, jacobians = self.measurement.linearise(self.arguments_at(values), places)
        slots = (*self.slots, *self.held)
        shaped = [j if isinstance(j, Operator) else self._shape(slot, j) for slot, j in zip(slots, jacobians)]
        return Linear(value.reshape(-1, self.outputs), tuple(shaped))

    def _expand(self, kind: Likelihood, values: dict[str, Array], beliefs: Mapping[str, Belief]) -> Linear:
        (slot,), (x,) = (*self.slots, *self.held, *self.fixed), self.arguments_at(values)
        variance = jnp.zeros_like(x)
        if slot.variable in beliefs:
            lam = beliefs[slot.variable].lam
            variance = jnp.where(lam > 0, 1 / jnp.where(lam > 0, lam, 1), 0)
        residual, jacobian = kind.expand(self.every_factor(self.y), x, variance)
        return Linear(self.y - residual, (jacobian,) if self.slots or self.held else ())

    def operators(self, linear: Linear) -> list[Operator]:
        """The Jacobian of each slot, and of what is held, as an operator."""
        return [
            j if isinstance(j, Operator) else Entries(s.edges, j, s.family)
            for s, j in zip((*self.slots, *self.held), linear.jacobians)
        ]

    def with_noise(self, variance: Array) -> Group:
        """The same group with another noise variance for all."""
        return dataclasses.replace(self, noise=jnp.broadcast_to(variance, (1, self.outputs)), white=None)

    def _shape(self, slot: Slot, j: Array) -> Array | Operator:
        """From `(F, M) + row_shape` to the layout of the message update."""
        if slot.table is not None:
            rows = jnp.broadcast_to(j.reshape(j.shape[0], -1), (self.factors, slot.row_shape[-1]))
            return UnitRows(rows, jnp.ones(slot.table, j.dtype))
        if self.scalar:
            return j.reshape(j.shape[0], -1)
        d = slot.family.dim(slot.row_shape)
        return jnp.moveaxis(j.reshape(j.shape[0], self.outputs, -1, d), 1, 2)

    def measure(self, residual: Float[Array, "f m"]) -> Measured:
        """Energy `sum rho`, robust scales and the share of factors whose scale is below 1."""
        if isinstance(self.measurement, Likelihood):
            return Measured(jnp.sum(self.energies(residual)), self.weights(), jnp.zeros((), residual.dtype))
        if self.robust is None:
            energy = 0.5 * jnp.sum(self._weighted(self._squared_distances(residual)))
            if self.noise_prior is not None:
                energy = energy + self.noise_prior.energy(self.noise[0, 0], self.measurements())
            return Measured(energy, self.weights(), jnp.zeros((), residual.dtype))
        summed, weight, shape = self._over_switches(residual)
        scale = self.robust.scale(summed)
        energy = jnp.sum(weight * self.robust.energy(summed))
        wide = jnp.broadcast_to(scale, shape).reshape(residual.shape[0], -1)
        if self.weight is not None:
            wide = wide * self.weight
        switched = (scale < 1).astype(residual.dtype)
        if self.numbers is None:
            share = jnp.mean(switched)
        else:  # of those that are there
            there = jnp.broadcast_to(jnp.asarray(weight) > 0, scale.shape).astype(residual.dtype)
            share = jnp.sum(switched * there) / jnp.maximum(jnp.sum(there), 1)
        return Measured(energy, jnp.broadcast_to(wide, residual.shape), share)

    def energies(self, residual: Float[Array, "f m"]) -> Float[Array, " f"]:
        """Energy of each factor; those with a common switch have equal shares."""
        if isinstance(self.measurement, Likelihood):
            each = self.measurement.energies(self.every_factor(self.y), self.every_factor(self.y - residual))
            return self._weighted(each[:, None])[:, 0]
        if self.robust is None:
            return 0.5 * jnp.sum(self._weighted(self._squared_distances(residual)), 1)
        summed, weight, shape = self._over_switches(residual)
        shares = weight * self.robust.energy(summed) * (summed.size / math.prod(shape))
        return jnp.broadcast_to(shares, shape).reshape(residual.shape[0], -1).sum(1)

    def _over_switches(self, residual: Float[Array, "f m"]) -> tuple[Array, Array | float, tuple[int, ...]]:
        """Squared distances summed over what has one robust switch, weights of the switches, and the shape of all.

        Energies are `w rho(d²)`, as of `w` factors that are equal: what has no weight does not count in `d²`, and a
        switch has the largest weight of what it sums up.
        """
        squares = self._squared_distances(residual)
        if squares.shape[1] == self.outputs and self.outputs > 1:
            axes, shape = self.switch_axes, (*self.grid, *self.h_shape)
        else:
            axes, shape = tuple(a for a in self.switch_axes if a < len(self.grid)), self.grid
        if self.weight is None:
            return jnp.sum(squares.reshape(shape), axes, keepdims=True), 1.0, shape
        weight = jnp.broadcast_to(self.weight, squares.shape).reshape(shape)
        there = jnp.where(weight > 0, squares.reshape(shape), 0)
        return jnp.sum(there, axes, keepdims=True), jnp.max(weight, axes, keepdims=True), shape

    def _weighted(self, squares: Array) -> Array:
        return squares if self.weight is None else squares * self.weight

    def every_factor(self, residual: Array) -> Float[Array, "f m"]:
        """Residuals `(F | 1, M)` as `(F, M)`: one that all factors share is repeated."""
        return jnp.broadcast_to(residual, (self.factors, self.outputs))

    def weights(self) -> Array | None:
        """The weight of each measurement `(F, M)`; None for 1."""
        return None if self.weight is None else jnp.broadcast_to(self.weight, (self.factors, self.outputs))

    def measurements(self) -> Array:
        """How many measurements there are, those of no weight left out."""
        if self.weight is None:
            return jnp.asarray(self.factors * self.outputs, self.noise.dtype)
        each = jnp.broadcast_to(self.weight, (self.factors, 1))[:: self.weight_repeat]
        return jnp.sum(each) * (self.weight_repeat * self.outputs)

    def _squared_distances(self, residual: Float[Array, "f m"]) -> Array:
        """Squared Mahalanobis distances: of each output `(F, M)`, with full covariance a factor `(F, 1)`."""
        if self.noise.ndim == 2:
            return residual * residual / self.noise
        white = linalg.whitening(self.noise) if self.white is None else self.white
        return jnp.sum((white @ residual[..., None])[..., 0] ** 2, 1, keepdims=True)

    def whitening(self) -> Array | None:
        """What makes the noise white: of each measurement `(F | 1, M)`, or matrices; None if it is not known yet."""
        return lax.rsqrt(self.noise) if self.noise.ndim == 2 else self.white

    def covariance(self) -> Float[Array, "f m m"]:
        """Noise covariance as matrices."""
        if self.noise.ndim == 3:
            return self.noise
        return self.noise[:, :, None] * jnp.eye(self.outputs, dtype=self.noise.dtype)


@jax.jit
def linearise(group: Group, values: dict[str, Array]) -> Linear:
    """`group.linearise(values)`, compiled: for callers outside the loop."""
    return group.linearise(values)


# How messages may be kept.
MODES = ("auto", "per-edge", "pooled")


def check_mode(messages: str) -> None:
    """Raise unless it is one of `MODES`."""
    if messages not in MODES:
        raise ValueError(f"messages must be 'auto', 'per-edge' or 'pooled', got {messages!r}")


# From here on an edge set is worth pooling: see docs/concepts/messages.md for the measurements behind both numbers.
POOLED_EDGES = 65_536
POOLED_MESSAGES = 8


def is_pooled(messages: str, factor: Factor, edges: Edges) -> bool:
    """Whether the messages of an edge set are pooled.

    "auto" pools the large edge sets of layers: at least `POOLED_EDGES` edges in all, and at least `POOLED_MESSAGES`
    into a unit on average; and with the weights of a layer its bias, however small. Units with one edge never are:
    their pooled message is the message.
    """
    if messages == "per-edge" or edges.injective:
        return False
    if messages == "pooled":
        return True
    count = factor.factors * edges.row
    return factor.layout is not None and count >= POOLED_EDGES and count >= POOLED_MESSAGES * edges.units


def _each(numbers: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """Numbers that broadcast to the factors, one for each `(F, 1)`."""
    return np.ascontiguousarray(np.broadcast_to(numbers, grid)).reshape(-1, 1)


def _repeat(numbers: np.ndarray, grid: tuple[int, ...]) -> int:
    """How many factors in a row have the same, by the shape of the numbers that broadcast to the grid."""
    padded = (1,) * (len(grid) - numbers.ndim) + numbers.shape
    last = max((a for a, n in enumerate(padded) if n > 1), default=-1)
    return math.prod(grid[last + 1 :])


def _pooled_kinds(
    factor: Factor, views: list[View | None], known: frozenset[str], kinds: Mapping[str, str]
) -> set[str]:
    """Kinds of variables of which one edge set is pooled: so are the others, which share its reaction term."""
    if factor.layout is None:
        return set()
    pairs = [(v.variable.name, e) for v, e in zip(views, factor.layout.edges) if v is not None]
    return {kinds.get(name, "") for name, e in pairs if name not in known and is_pooled("auto", factor, e)}


def _table(factor: Factor, view: View, scalar: bool) -> tuple[int, int]:
    """The factors of a vector variable as rows and units; a `ValueError` if they do not see it through one number."""
    name, units = view.variable.name, view.variable.shape[0]
    if not scalar or len(view.variable.shape) != 2 or view.units != 1:
        raise ValueError(
            f"factor '{factor.name}': '{name}' is an array (units, numbers) of vector variables: a factor sees one of "
            "them, with one measurement, and else scalars"
        )
    if factor.layout is None:
        return factor.factors, units
    if factor.grid[-1] != units:
        raise ValueError(f"factor '{factor.name}': the last axis of its factors must be the units of '{name}'")
    return factor.factors // units, units


def make_group(
    factor: Factor,
    views: list[View | None],
    fixed: frozenset[str],
    held: frozenset[str],
    proper: frozenset[str],
    kinds: Mapping[str, str],
    messages: str,
    dtype: jnp.dtype,
) -> Group:
    """Lay a factor out as arrays.

    **Arguments:**

    - `views`: for every argument its view with ties resolved, None for constants.
    - `fixed`: variables that are wholly observed.
    - `held`: variables that are held at a belief.
    - `proper`: variables whose prior is proper everywhere.
    - `kinds`: of the variables. Pooled edge sets of one kind share a reaction term.
    - `messages`: "per-edge", "pooled" or "auto".
    """
    # By NumPy: outside of compiled code JAX would compile every operation for itself.
    noise = np.asarray(factor.noise, dtype)
    check_noise_range(factor.name, noise, dtype)
    scalar = factor.outputs == 1 and all(v is None or v.variable.family.scalar for v in views)
    parts: dict[Role, list[Any]] = {role: [] for role in Role}
    arguments, holders = [], {}
    together = _pooled_kinds(factor, views, fixed | held, kinds) if messages == "auto" else set()
    for place, (argument, view) in enumerate(zip(factor.args, views)):
        if view is None:
            array = np.asarray(argument)
            floats = jnp.issubdtype(array.dtype, jnp.floating)
            role, item = Role.CONSTANT, jax.device_put(array.astype(dtype) if floats else array)
        else:
            name = view.variable.name
            role = Role.FIXED if name in fixed else Role.HELD if name in held else Role.SLOT
            edges = view.edges(factor.factors) if factor.layout is None else factor.layout.edges[place]
            family, known = view.variable.family, name in proper
            reaction = None
            mode = "pooled" if kinds.get(name, "") in together else messages
            table = None
            if view.variable.vector:
                table = _table(factor, view, scalar)
            elif role is Role.SLOT and scalar and known and is_pooled(mode, factor, edges):
                reaction = holders.setdefault(kinds.get(name, ""), len(parts[role]))
            item = Slot(edges, name, view.row_shape, family, known, reaction, table)
        arguments.append((role, len(parts[role])))
        parts[role].append(item)
    learnt = None
    if factor.learn is not None:
        start, weight = np.asarray(factor.learn.start, dtype), np.asarray(factor.learn.weight, dtype)
        learnt = NoisePrior(*map(jax.device_put, (start * start, weight)))
    return Group(
        tuple(parts[Role.SLOT]),
        tuple(parts[Role.HELD]),
        tuple(parts[Role.FIXED]),
        tuple(parts[Role.CONSTANT]),
        jax.device_put(np.asarray(factor.y, dtype)),
        jax.device_put(noise),
        learnt,
        None if factor.weights is None else jax.device_put(_each(factor.weights.astype(dtype), factor.grid)),
        factor.robust,
        factor.measurement,
        name=factor.name,
        linear=factor.linear,
        arguments=tuple(arguments),
        grid=factor.grid,
        h_shape=factor.h_shape,
        switch_axes=factor.switch_axes,
        weight_repeat=1 if factor.weights is None else _repeat(factor.weights, factor.grid),
    )
