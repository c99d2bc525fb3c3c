"""Options of inference: damping, dropout, linearisation and schedule, checked and laid out for a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jax import Array

from ..graph.problem import Problem
from .damping import Damping, per_slot
from .group_options import GroupOptions
from .linearisation import AfterVisit, OnMovement, Relinearise
from .schedules import Schedule, Sweep, TreeOrder
from .tree import TreePlan, deep_linear_plan, tree_plan


class Options(eqx.Module):
    """How messages are sent. Numbers are data; what is static changes the compiled code."""

    damping: tuple[tuple[Array | np.ndarray, ...], ...]  # of each group, of each slot
    dropout: tuple[tuple[Array | np.ndarray, ...], ...]
    damped: bool = eqx.field(static=True)
    dropping: bool = eqx.field(static=True)
    relinearise: Relinearise = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)
    plan: TreePlan | None = None  # of the tree order

    def of(self, g: int) -> GroupOptions:
        """The options of one group."""
        return GroupOptions(self.damping[g], self.dropout[g], self.damped, self.dropping, self.relinearise)


@runtime_checkable
class Kinds(Protocol):
    """What options need to know of a graph, or of its program."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kind of each variable."""
        ...

    @property
    def dtype(self) -> Any:
        """Of all messages."""
        ...


def check_schedule(schedule: object) -> None:
    """A `TypeError` if it is none."""
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a gbp.Schedule such as gbp.Sweep(), got {schedule!r}")


def make_options(
    graph: Kinds,
    problem: Problem,
    damping: float | Damping,
    dropout: float | Damping,
    schedule: Schedule | None,
    relinearise: Relinearise,
    edges: Callable[[], Problem] | None = None,
) -> Options:
    """The arguments of `gbp.infer`, checked, for a problem of a graph.

    **Arguments:** `edges`: gives the problem with its numbers, where `problem` has shapes in the place of them.
    """
    known = (isinstance(relinearise, int) and relinearise >= 1) or isinstance(relinearise, (OnMovement, AfterVisit))
    if not known:
        ways = "a number of visits >= 1, gbp.OnMovement(...) or gbp.AfterVisit()"
        raise ValueError(f"relinearise must be {ways}, got {relinearise!r}")
    check_schedule(schedule)
    vectors = [s.variable for g in problem.groups for s in g.slots if s.table is not None]
    if vectors and isinstance(relinearise, OnMovement):
        raise ValueError(f"relinearise: '{vectors[0]}' is a vector variable, which gbp.OnMovement does not take")
    damp = per_slot("damping", damping, problem.groups, graph.kinds)
    drop = per_slot("dropout", dropout, problem.groups, graph.kinds)
    damped, dropping = (any(d > 0 for row in rows for d in row) for rows in (damp, drop))
    # By NumPy: outside of compiled code JAX would make an array of each for itself.
    damp, drop = (jax.tree.map(lambda d: np.asarray(d, graph.dtype), rows) for rows in (damp, drop))
    edges = (lambda: problem) if edges is None else edges
    plan = None
    if isinstance(schedule, TreeOrder):
        if damped or dropping:
            raise ValueError("schedule: gbp.TreeOrder() takes neither damping nor dropout; leave them at 0")
        plan = tree_plan(edges())
    elif schedule is None:
        plan = None if damped or dropping else deep_linear_plan(problem, edges)
        schedule = Sweep() if plan is None else TreeOrder()
    return Options(damp, drop, damped, dropping, relinearise, schedule, plan)
