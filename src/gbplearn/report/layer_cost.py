"""What each layer of a graph costs: time of a visit, and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from ..graph import FactorGraph
from ..inference import _options
from ..problem import State, empty_state, with_known
from ..propagate import fixed_order
from ..schedule import Damping, Schedule
from ..visit import visit

_REPEATS = 7


class GroupCost(NamedTuple):
    """Of one factor group."""

    name: str
    factors: int
    edges: int
    visits: float  # in an iteration
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
    """Visit each group for itself, and look at the clock.

    In an iteration visits are compiled together, which may be faster than the sum of these.
    """
    problem = with_known(graph.problem(None, messages))
    options = _options(graph, problem, damping, 0.0, schedule, 1)
    order = fixed_order(problem, options)
    state, out = empty_state(problem, jax.random.PRNGKey(0), False), []
    for g in problem.active():
        group = problem.groups[g]
        compiled = jax.jit(lambda problem, state, options, g=g: visit(problem, state, options, g)[0])
        program = compiled.lower(problem, state, options).compile()

        def once(program: Callable[..., State] = program) -> float:
            begin = time.perf_counter()
            jax.block_until_ready(program(problem, state, options))
            return 1e3 * (time.perf_counter() - begin)

        once()
        used = program.memory_analysis()
        kept = sum(leaf.nbytes for leaf in jax.tree.leaves(state.messages[g]))
        out.append(
            GroupCost(
                group.name,
                group.factors,
                group.edges,
                1.0 if order is None else float(order.count(g)),
                statistics.median(once() for _ in range(repeats)),
                kept,
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
        ms = f"{c.milliseconds:.2f}", f"{c.visits * c.milliseconds:.2f}"
        rows.append(
            (c.name, f"{c.factors:,}", f"{c.edges:,}", f"{c.visits:g}", *ms, _size(c.messages), _size(c.temporary))
        )
    sums = sum(c.factors for c in costs), sum(c.edges for c in costs)
    total = f"{sum(c.visits * c.milliseconds for c in costs):.2f}", _size(sum(c.messages for c in costs))
    rows.append(("together", *(f"{n:,}" for n in sums), "", "", *total, ""))
    return rows


def _size(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
