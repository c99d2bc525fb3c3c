"""What inference works on: a factor graph with its evidence as one pytree, and the state of its messages."""

from __future__ import annotations

import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from . import linalg
from .edges import Edges
from .gaussian import POINT, Gaussian
from .group import Group, Linear, Slot


class Problem(eqx.Module):
    """A factor graph and its evidence as arrays. Its structure is what is compiled; its values never recompile."""

    groups: tuple[Group, ...]
    frozen: tuple[Linear | None, ...]  # linear groups, linearised once
    prior: dict[str, Gaussian]  # of every variable that is not fixed; observed units have a point prior
    start: dict[str, Array]  # linearisation point where nothing is known yet
    fixed: dict[str, Array]  # values of wholly observed variables, and means of those held at a belief
    held: dict[str, Gaussian]  # beliefs that are heard, but told nothing
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

    def with_known(self) -> Problem:
        """The same, with what depends on observed values alone computed once for all iterations."""
        return dataclasses.replace(self, groups=tuple(g.with_known(self.fixed) for g in self.groups))

    def energies(self, values: dict[str, Array]) -> tuple[list[Array], dict[str, Array]]:
        """Energy of each group, and of each prior, at the values of all variables."""
        full = {**values, **self.fixed}
        groups = [g.measure(g.y - g.value(full)).energy for g in self.groups]
        return groups, {name: prior_energy(p, values[name]) for name, p in self.prior.items()}


class Messages(eqx.Module):
    """Messages of one edge set: each on its edge, or multiplied up on the units, or both.

    Where every unit has at most one edge the two hold the same numbers, and one is enough: on the units if most have
    an edge, since the sums over all edge sets of a variable are taken there, else on the edges. Where units have
    several edges, `pooled` is kept beside `each`, since other groups read it at every visit. Edge sets that are pooled
    (`Slot.pooled`) have no `each` at all, but one of them the reaction term of each factor.
    """

    each: Gaussian | None
    pooled: Gaussian | None
    reaction: Array | None = None  # (F, 1)

    @classmethod
    def pack(cls, edges: Edges, each: Gaussian) -> Messages:
        """Keep messages in the form that fits the edge set."""
        if edges.injective and not edges.dense:
            return cls(each, None)
        return cls(None if edges.dense else each, jax.tree.map(edges.pool, each))

    def on_edges(self, edges: Edges) -> Gaussian:
        """One message an edge."""
        if self.each is not None:
            return self.each
        return jax.tree.map(edges.spread, self.pooled)

    def on_units(self, edges: Edges) -> Gaussian:
        """The product of the messages into each unit."""
        if self.pooled is not None:
            return self.pooled
        return jax.tree.map(edges.pool, self.each)


class State(eqx.Module):
    """All messages of a problem, and the stored linearisation points of groups that keep them."""

    messages: tuple[tuple[Messages, ...], ...]  # of each group, of each slot
    points: tuple[dict[str, Array] | None, ...]
    visits: Array  # (groups,)
    key: Array
    noise: tuple[Array | None, ...]  # of each group whose noise is learnt, its variance


def prior_energy(prior: Gaussian, value: Array) -> Array:
    """`sum (x - mean)' lam (x - mean) / 2`; observed units and flat priors count nothing."""
    return 0.5 * jnp.sum(prior_squares(prior, value))


def prior_squares(prior: Gaussian, value: Array) -> Array:
    """`(x - mean)' lam (x - mean)` of each unit; 0 where it is observed."""
    d = value - prior.mean
    if prior.block:
        observed = jnp.diagonal(prior.lam, axis1=-2, axis2=-1).max(-1) >= POINT / 2
        each = jnp.einsum("...i,...ij,...j->...", d, prior.lam, d)
    else:
        observed, each = prior.lam >= POINT / 2, prior.lam * d * d
    return jnp.where(observed, 0, each)


@partial(jax.jit, static_argnums=2)
def empty_state(problem: Problem, key: Array, keep_points: bool) -> State:
    """No messages sent yet."""
    messages, points = [], []
    for group in problem.groups:
        row = []
        for slot in group.slots:
            prior = problem.prior[slot.variable]
            if slot.pooled:
                nothing = Gaussian.flat(prior.shape, dtype=prior.dtype)
                holds = slot.reaction == len(row)
                row.append(Messages(None, nothing, jnp.zeros((group.factors, 1), prior.dtype) if holds else None))
                continue
            shape = slot.edges.rows.shape(group.factors, slot.units)
            shape += (prior.shape[-1],) if prior.block else ()
            row.append(Messages.pack(slot.edges, Gaussian.flat(shape, block=prior.block, dtype=prior.dtype)))
        messages.append(tuple(row))
        keep = keep_points and not group.linear and group.slots
        # A copy: the loop gives the buffers of its state away, and the start must stay.
        points.append({v: jnp.copy(problem.start[v]) for v in group.variables} if keep else None)
    noise = tuple(None if g.noise_prior is None else jnp.copy(g.noise_prior.variance) for g in problem.groups)
    return State(tuple(messages), tuple(points), jnp.zeros(len(problem.groups), jnp.int32), key, noise)


def with_learnt_noise(problem: Problem, state: State) -> Problem:
    """The problem with the noise that has been learnt, which is no longer learnt."""
    groups = [
        g if v is None or g.noise_prior is None else dataclasses.replace(g.with_noise(v), noise_prior=None)
        for g, v in zip(problem.groups, state.noise)
    ]
    return dataclasses.replace(problem, groups=tuple(groups))


def belief(problem: Problem, state: State, variable: str) -> Gaussian:
    """Product of the prior and all messages into a variable."""
    out = problem.prior[variable]
    for g, s in problem.touching(variable):
        out = out * pooled(problem, state, g, s)
    return out


def pooled(problem: Problem, state: State, g: int, s: int) -> Gaussian:
    """Product of the messages of one edge set into each unit of its variable."""
    return state.messages[g][s].on_units(problem.groups[g].slots[s].edges)


def cavity(slot: Slot, outside: Gaussian, messages: Messages) -> Gaussian:
    """What a factor sees of a variable: everything but its own message, multiplied up from the others.

    `outside` is the product of the prior and all other edge sets of the variable.
    """
    seen = jax.tree.map(slot.edges.spread, outside)
    if not slot.edges.injective:
        seen = seen * jax.tree.map(slot.edges.others, messages.on_edges(slot.edges))
    present = slot.edges.present()
    if present is None:
        return seen
    return Gaussian(jnp.where(present, seen.eta, 0), jnp.where(present, seen.lam, 1))  # anything proper will do


def belief_mean(gaussian: Gaussian, start: Array, proper: bool) -> Array:
    """The mean, or the start where nothing (or in a block, not everything) is known.

    `proper`: known to be so; spares scalars the question.
    """
    if not gaussian.block:
        if proper:
            return gaussian.eta / gaussian.lam
        known = gaussian.lam > 0
        return jnp.where(known, gaussian.eta / jnp.where(known, gaussian.lam, 1), start)
    shift = gaussian.eta - linalg.information(gaussian.lam, start)
    return start + Gaussian(shift, gaussian.lam).mean


def all_means(problem: Problem, state: State) -> dict[str, Array]:
    """Current mean of every variable that is not fixed."""
    return {
        name: belief_mean(belief(problem, state, name), problem.start[name], name in problem.proper)
        for name in problem.prior
    }
