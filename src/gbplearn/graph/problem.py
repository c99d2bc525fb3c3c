"""A factor graph with its evidence as arrays: what inference works on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..core.gaussian import Gaussian
from ..factors.measurement import Linear
from .group import Group
from .local import LocalGroup


class Problem(eqx.Module):
    """A factor graph and its evidence as arrays. Its structure is what is compiled; its values never recompile."""

    groups: tuple[Group, ...]
    frozen: tuple[Linear | None, ...]  # linear groups, linearised once
    prior: dict[str, Gaussian]  # of every variable that is not fixed; observed units have a point prior
    start: dict[str, Array]  # linearisation point where nothing is known yet
    fixed: dict[str, Array]  # values of wholly observed variables, and means of those held at a belief
    held: dict[str, Gaussian]  # beliefs of variables that are held: these receive no messages
    uniform: dict[str, Gaussian]  # priors that are one for all units, as that one
    proper: frozenset[str] = eqx.field(static=True)  # variables whose prior is proper everywhere
    started: frozenset[str] = eqx.field(static=True)  # variables whose start the user gave
    parameters: frozenset[str] = eqx.field(static=True, default=frozenset())  # of this kind
    native: bool = eqx.field(static=True, default=False)  # known to have most of its messages sent by kernels

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
            names & self.proper,
            names & self.started,
            names & self.parameters,
            frozenset(name for name in names if self.touching(name)[0][0] == g),
        )

    @property
    def edges(self) -> int:
        """How many messages all groups send."""
        return sum(g.edges for g in self.groups)

    def with_known(self) -> Problem:
        """The same, with what depends on observed values alone computed once for all iterations."""
        return dataclasses.replace(self, groups=tuple(g.with_known(self.fixed) for g in self.groups))

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
