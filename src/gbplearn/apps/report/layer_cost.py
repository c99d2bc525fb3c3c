"""What each layer of a graph costs: time of a visit, and memory."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import jax

from ...engine.damping import Damping
from ...engine.exchange import visit_group
from ...engine.moves import fixed_order
from ...engine.options import make_options
from ...engine.program import prepared
from ...engine.schedules import Schedule
from ...engine.state import empty_state
from ...graph.graph import FactorGraph

_REPEATS = 7


class GroupCost(NamedTuple):
    """Of one factor group."""

    name: str
    factors: int
    edges: int
    visits: int | None  # in an iteration; None where the schedule picks
    milliseconds: float  # of a visit, the median of some
    messages: int  # bytes that are kept from visit to visit
    temporary: int | None  # bytes that the compiled visit needs beside; None where the compiler does not say


def group_costs(
    graph: FactorGraph,
    *,
    damping: float | Damping = 0.5,
    schedule: Schedule | None = None,
    messages: str = "auto",
    repeats: int = _REPEATS,
) -> list[GroupCost]:
    """Visit each group for itself, and time it.

    In an iteration visits are compiled together, which may be faster than the sum of these.
    """
    problem = graph.problem(None, messages)
    options = make_options(graph, problem, damping, 0.0, schedule, 1)
    problem = prepared(problem, options)
    order, out = fixed_order(problem, options), []
    state = empty_state(problem, jax.random.PRNGKey(0), False)
    for g in problem.active():
        group = problem.groups[g]
        # In place, as inference works: else every visit would be charged with a copy of all messages.
        compiled = jax.jit(lambda p, s, o, g=g: visit_group(p, s, o, g)[0], donate_argnums=1)
        program = compiled.lower(problem, state, options).compile()
        times = []
        for _ in range(repeats + 1):
            begin = time.perf_counter()
            state = jax.block_until_ready(program(problem, state, options))
            times.append(1e3 * (time.perf_counter() - begin))
        used = program.memory_analysis()
        out.append(
            GroupCost(
                group.name,
                group.factors,
                group.edges,
                None if order is None else order.count(g),
                statistics.median(times[1:]),  # without the first, which warms up
                sum(leaf.nbytes for leaf in jax.tree.leaves(state.messages[g])),
                None if used is None else int(used.temp_size_in_bytes),
            )
        )
    return out


def cost_rows(costs: list[GroupCost]) -> list[tuple[str, ...]]:
    """As a table, with a sum of what adds up."""
    rows: list[tuple[str, ...]] = [
        ("layer", "factors", "edges", "visits an iteration", "ms a visit", "ms an iteration", "messages", "temporary")
    ]
    for c in costs:
        visits, whole = "", ""
        if c.visits is not None:
            visits, whole = str(c.visits), f"{c.visits * c.milliseconds:.2f}"
        sizes = _size(c.messages), _size(c.temporary)
        rows.append((c.name, f"{c.factors:,}", f"{c.edges:,}", visits, f"{c.milliseconds:.2f}", whole, *sizes))
    many = f"{sum(c.factors for c in costs):,}", f"{sum(c.edges for c in costs):,}"
    known = [c.visits * c.milliseconds for c in costs if c.visits is not None]
    whole = f"{sum(known):.2f}" if len(known) == len(costs) else ""
    rows.append(("together", *many, "", "", whole, _size(sum(c.messages for c in costs)), ""))
    return rows


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
