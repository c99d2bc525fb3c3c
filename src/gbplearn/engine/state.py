"""The state of inference: all messages of a problem, and the beliefs and cavities that they make up.

A `Problem` is what is given: factor groups, their edge sets, priors, observations. A `State` is what inference
changes. The rest follows from the two, as products of Gaussians (sums of their natural parameters):

    message product of an edge set   all its messages into a unit
    belief of a unit                 its prior and all messages into it
    cavity of an edge                the same without the message along that edge

A cavity is multiplied up from the other messages, not divided out of the belief: where one message is nearly all of a
belief, the difference of the two precisions would have no digits left in float32.

A state is a value: a visit (`visit.py`) returns the next one. (The loop may give it the same memory.)
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..core.gaussian import Gaussian
from ..core.vector import Belief, RowMessages, product
from ..edges.base import Edges
from ..graph.group import Group, Slot
from ..graph.problem import Problem


class Messages(eqx.Module):
    """Messages of one edge set: each on its edge, or multiplied up on the units, or both.

    Where every unit has at most one edge the two hold the same numbers, and one is enough: on the units if most have
    an edge, since the sums over all edge sets of a variable are taken there, else on the edges. Where units have
    several edges, `summed` is kept beside `each`, since other groups read it at every visit. Edge sets that are pooled
    (`Slot.pooled`) have no `each` at all, but one of them the reaction term of each factor.
    """

    each: Gaussian | None
    summed: Gaussian | None
    reaction: Array | None = None  # (F, 1)
    along: RowMessages | None = None  # to a vector variable: instead of all others

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
        return jax.tree.map(edges.spread, self.summed)

    def on_units(self, edges: Edges) -> Any:
        """The product of the messages into each unit; into a vector, the messages along their rows."""
        if self.along is not None:
            return self.along
        if self.summed is not None:
            return self.summed
        return jax.tree.map(edges.pool, self.each)


class Own(NamedTuple):
    """What of the state belongs to one group: nobody else changes it."""

    messages: tuple[Messages, ...]  # of each slot
    points: dict[str, Array] | None  # the stored linearisation points, if it keeps them
    visits: Array  # how many there were
    noise: Array | None  # the variance, if it is learnt

    def outbox(self, group: Group) -> list[Any]:
        """Of each slot the product of the messages into each unit: what others read of it."""
        return [m.on_units(slot.edges) for m, slot in zip(self.messages, group.slots)]


class State(eqx.Module):
    """All messages of a problem, and the stored linearisation points of groups that keep them."""

    messages: tuple[tuple[Messages, ...], ...]  # of each group, of each slot
    points: tuple[dict[str, Array] | None, ...]
    visits: Array  # (groups,)
    key: Array
    noise: tuple[Array | None, ...]  # of each group whose noise is learnt, its variance
    schedule: Any = None  # that of the schedule (`schedules.py`); None for those that need none

    def own(self, g: int) -> Own:
        """What of it belongs to group `g`."""
        return Own(self.messages[g], self.points[g], self.visits[g], self.noise[g])

    def with_own(self, g: int, own: Own) -> State:
        """The same with what belongs to group `g` replaced."""
        return State(
            (*self.messages[:g], own.messages, *self.messages[g + 1 :]),
            (*self.points[:g], own.points, *self.points[g + 1 :]),
            self.visits.at[g].set(own.visits),
            self.key,
            (*self.noise[:g], own.noise, *self.noise[g + 1 :]),
            self.schedule,
        )


@partial(jax.jit, static_argnums=2)
def empty_state(problem: Problem, key: Array, keep_points: bool) -> State:
    """No messages sent yet."""
    messages, points = [], []
    for group in problem.groups:
        row = []
        for slot in group.slots:
            prior = problem.prior[slot.variable]
            if slot.table is not None:
                row.append(Messages(None, None, along=prior.no_messages(slot.table[0])))
                continue
            if slot.pooled:
                nothing = prior.flat_units(prior.unit_shape)
                holds = slot.reaction == len(row)
                row.append(Messages(None, nothing, jnp.zeros((group.factors, 1), prior.dtype) if holds else None))
                continue
            units = slot.edges.rows.shape(group.factors, slot.units)
            row.append(Messages.pack(slot.edges, prior.flat_units(units)))
        messages.append(tuple(row))
        keep = keep_points and not group.linear and group.slots
        # A copy: the loop gives the buffers of its state away, and the start must stay.
        points.append({v: jnp.copy(problem.start[v]) for v in group.variables} if keep else None)
    noise = tuple(None if g.noise_prior is None else jnp.copy(g.noise_prior.variance) for g in problem.groups)
    return State(tuple(messages), tuple(points), jnp.zeros(len(problem.groups), jnp.int32), key, noise)


def belief(problem: Problem, state: State, variable: str) -> Belief:
    """Product of the prior and all messages into a variable."""
    messages = [message_product(problem, state, g, s) for g, s in problem.touching(variable)]
    return product([problem.prior[variable], *messages])


def with_prior_means(problem: Problem, state: State) -> State:
    """A state of zeros, in which vector variables have the means of their priors."""
    rows = []
    for group, row in zip(problem.groups, state.messages):
        pairs = zip(group.slots, row)
        rows.append(
            tuple(
                m
                if m.along is None
                else dataclasses.replace(m, along=m.along._replace(mean=problem.prior[s.variable].mean))
                for s, m in pairs
            )
        )
    return dataclasses.replace(state, messages=tuple(rows))


def message_product(problem: Problem, state: State, g: int, s: int) -> Any:
    """Product of the messages of one edge set into each unit of its variable."""
    return state.messages[g][s].on_units(problem.groups[g].slots[s].edges)


def cavity(slot: Slot, outside: Gaussian, messages: Messages) -> Gaussian:
    """The cavity of every edge: the product of all that goes into its unit, but for the message along the edge itself.

    `outside` is the product of the prior and all other edge sets of the variable.
    """
    found = jax.tree.map(slot.edges.spread, outside)
    if not slot.edges.injective:
        found = found * jax.tree.map(slot.edges.others, messages.on_edges(slot.edges))
    present = slot.edges.present()
    if present is None:
        return found
    anything = Gaussian(jnp.zeros_like(found.eta), found.family.one(found.shape, found.dtype))  # that is proper
    return found.where(present, anything)


def all_means(problem: Problem, state: State) -> dict[str, Array]:
    """Current mean of every variable that is not fixed."""
    return {
        name: belief(problem, state, name).mean_or(problem.start[name], name in problem.proper)
        for name in problem.prior
    }
