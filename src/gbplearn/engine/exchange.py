"""Between the state and the visits: the inbox of a group is taken from the state, what a visit changes is put back.

A visit is local (`visit.py`); here, and nowhere else, a group meets the rest of the graph. Whoever keeps groups apart
(other devices, actors) fills inboxes from outboxes in its own way, and needs nothing of this file.
"""

from __future__ import annotations

import equinox as eqx
import jax

from ..graph.problem import Problem
from ..kernels.registry import Call
from .inbox import EdgeSet, Inbox
from .options import Options
from .state import State, message_product
from .visit import Visited, visit


def read_inbox(problem: Problem, state: State, g: int) -> Inbox:
    """The inbox of group `g`: priors, and the message products of all other groups' edge sets."""
    parts, senders = {}, {}
    for name in problem.groups[g].variables:
        others = [EdgeSet(*edge_set) for edge_set in problem.touching(name) if edge_set[0] != g]
        parts[name] = [problem.prior[name], *(message_product(problem, state, *other) for other in others)]
        # Where a state has them on the edges alone, they lie nowhere on the units.
        senders[name] = [e if state.messages[e.group][e.slot].summed is not None else None for e in others]
    return Inbox(parts, {name: problem.uniform[name] for name in parts if name in problem.uniform}, senders)


def visit_group(
    problem: Problem, state: State, options: Options, g: int, diagnosed: bool = False, call: Call | None = None
) -> tuple[State, Visited]:
    """Visit group `g` of a problem.

    **Arguments:** `diagnosed`, `call` as `visit.visit`.

    **Returns:** the new state, and what the visit returned.
    """
    draw = None
    if options.dropping:
        key, draw = jax.random.split(state.key)
        state = eqx.tree_at(lambda s: s.key, state, key)
    inbox, own = read_inbox(problem, state, g), state.own(g)
    visited = visit(problem.local(g), inbox, own, options.of(g), draw, diagnosed, call)
    return state.with_own(g, visited.own), visited
