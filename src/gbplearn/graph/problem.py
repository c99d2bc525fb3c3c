"""A factor graph with its evidence as arrays: what inference works on.

A `Problem` is a structure with numbers in it. `split` takes the two apart: the structure, which is compiled once, and
the numbers (`data.py`), which are new for every batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.vector import Belief
from ..factors.measurement import FactorKind, Linear
from .data import Data, FactorData
from .group import Group
from .local import LocalGroup


class Problem(eqx.Module):
    """A factor graph and its evidence as arrays. Its structure is what is compiled; its values never recompile."""

    groups: tuple[Group, ...]
    frozen: tuple[Linear | None, ...]  # linear groups, linearised once: by `with_known`
    prior: dict[str, Belief]  # of every variable that is not fixed; observed units have a point prior
    start: dict[str, Array]  # linearisation point where nothing is known yet
    fixed: dict[str, Array]  # values of wholly observed variables, and means of those held at a belief
    held: dict[str, Belief]  # beliefs of variables that are held: these receive no messages
    uniform: dict[str, Belief]  # priors that are one for all units, as that one
    proper: frozenset[str] = eqx.field(static=True)  # variables whose prior is proper everywhere
    started: frozenset[str] = eqx.field(static=True)  # variables whose start the user gave
    parameters: frozenset[str] = eqx.field(static=True, default=frozenset())  # of this kind
    native: bool = eqx.field(static=True, default=False)  # known to have most of its messages sent by kernels
    kernels: Any = eqx.field(static=True, default=None)  # that visits are compiled with (hashable); None: of the moment
    plans: tuple[Any, ...] | None = eqx.field(static=True, default=None)  # of each group: how it is visited (hashable)
    used: dict[str, Any] = eqx.field(default_factory=dict)  # of variables that grow, how many scalars are in use

    def touching(self, variable: str) -> list[tuple[int, int]]:
        """The edge sets `(group, slot)` of a variable."""
        return [
            (g, s) for g, group in enumerate(self.groups) for s, x in enumerate(group.slots) if x.variable == variable
        ]

    def active(self) -> tuple[int, ...]:
        """Groups with anything to infer."""
        return tuple(g for g, group in enumerate(self.groups) if group.slots)

    def local(self, g: int) -> LocalGroup:
        """Group `g` with what belongs to it, and nothing of the others."""
        group = self.groups[g]
        names, held = frozenset(group.variables), [slot.variable for slot in group.held]
        return LocalGroup(
            group,
            self.frozen[g],
            {name: self.start[name] for name in group.variables},
            {name: self.fixed[name] for name in (*held, *(slot.variable for slot in group.fixed))},
            {name: self.held[name] for name in held if name in self.held},
            {name: self.used[name] for name in group.variables if name in self.used},
            g,
            names & self.proper,
            names & self.started,
            names & self.parameters,
            frozenset(name for name in names if self.touching(name)[0][0] == g),
            None if self.plans is None else self.plans[g],
        )

    @property
    def edges(self) -> int:
        """How many messages all groups send."""
        return sum(g.edges for g in self.groups)

    def with_known(self) -> Problem:
        """The same, with what depends on observed values alone computed once for all iterations.

        That is, linear groups are linearised, and windows of known images are made.
        """
        groups = tuple(g.with_known(self.fixed) for g in self.groups)
        frozen = tuple(
            f if f is not None or not (g.linear and g.slots) else self._freeze(g) for g, f in zip(groups, self.frozen)
        )
        return dataclasses.replace(self, groups=groups, frozen=frozen)

    def _freeze(self, group: Group) -> Linear:
        """A linear group linearised once, at 0. What is the same for all factors is kept once."""
        zeros = {name: jnp.zeros(self.prior[name].shape, self.prior[name].dtype) for name in group.variables}
        linear = group.linearise({**self.fixed, **zeros})
        if group.fixed or group.held or group.constants or isinstance(group.measurement, FactorKind):
            return linear
        return jax.tree.map(lambda x: x[:1], linear)

    def with_learnt_noise(self, noise: Sequence[Array | None]) -> Problem:
        """The same with the noise that has been learnt, which is no longer learnt.

        **Arguments:** `noise`: of each group its variance; None for a group that learns none.
        """
        groups = [
            g if v is None or g.noise_prior is None else dataclasses.replace(g.with_noise(v), noise_prior=None)
            for g, v in zip(self.groups, noise)
        ]
        return dataclasses.replace(self, groups=tuple(groups))

    def energies(self, values: dict[str, Array]) -> tuple[list[Array], dict[str, Array]]:
        """Energy of each group, and of each prior, at the values of all variables."""
        full = {**values, **self.fixed}
        groups = [g.measure(g.y - g.value(full)).energy for g in self.groups]
        return groups, {name: 0.5 * jnp.sum(p.squares(values[name])) for name, p in self.prior.items()}


class Structure:
    """A problem without its numbers. Equal structures are compiled once."""

    def __init__(self, problem: Problem):
        """Of a problem whose weights have been laid out; its numbers are left out."""
        numbers, kind = jax.tree.flatten(problem)
        shapes = tuple(jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in numbers)
        self._key = kind, shapes
        self._hash = hash((tuple(g.name for g in problem.groups), tuple(problem.prior), shapes))
        self._bare = jax.tree.unflatten(kind, shapes)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and self._key == other._key)

    @property
    def problem(self) -> Problem:
        """The problem with shapes in the place of numbers."""
        return self._bare

    def with_data(self, data: Data) -> Problem:
        """The problem with these numbers: the opposite of `data_of`."""
        data, groups = jax.tree.map(jnp.asarray, data), []
        for group in self._bare.groups:
            groups.append(group_with(group, data.factors[group.name]))
        return dataclasses.replace(
            self._bare,
            groups=tuple(groups),
            prior=data.prior,
            start=data.start,
            fixed=data.fixed,
            held=data.held,
            uniform=data.uniform,
            used=data.used,
        )


def _numbers(group: Group) -> tuple:
    return group.y, group.noise, group.weight, group.constants, group.noise_prior, group.numbers


def _without_numbers(group: Group) -> Group:
    return eqx.tree_at(_numbers, group, (None,) * 6, is_leaf=lambda x: x is None)


def group_with(group: Group, given: FactorData) -> Group:
    """The group with these numbers in the place of its own."""
    bare = jax.tree.unflatten(jax.tree.structure(_without_numbers(group)), given.edges)
    weight = given.weight
    if weight is not None:
        xp = np if isinstance(weight, np.ndarray) else jnp
        # (With the last axis from the beginning XLA need not lay it out again.)
        weight = xp.broadcast_to(weight[..., None], (*group.grid, 1)).reshape(-1, 1)
    numbers = given.y, given.noise, weight, given.constants, given.noise_prior, given.numbers
    return eqx.tree_at(_numbers, bare, numbers, is_leaf=lambda x: x is None)


def data_of(problem: Problem) -> Data:
    """The numbers of a problem."""
    factors = {g.name: data_of_group(g) for g in problem.groups}
    return Data(problem.prior, problem.start, problem.fixed, problem.held, problem.uniform, factors, problem.used)


def data_of_group(group: Group) -> FactorData:
    """The numbers of a group."""
    weight, edges = None if group.weight is None else group.compact_weight(), edge_arrays(group)
    return FactorData(group.y, group.noise, weight, group.constants, group.noise_prior, edges, group.numbers)


def edge_arrays(group: Group) -> tuple[Any, ...]:
    """All arrays of a group but its numbers, in the order in which they stand in it."""
    return tuple(jax.tree.leaves((group.slots, group.held, group.fixed, group.robust, group.measurement)))
