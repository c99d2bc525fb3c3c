"""Options of inference: damping, dropout, linearisation and schedule, checked and laid out for a problem."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..graph.graph import FactorGraph
from ..graph.problem import Problem
from .damping import Damping, per_slot
from .linearisation import AfterVisit, OnMovement, Relinearise
from .schedules import Schedule, Sweep, TreeOrder
from .tree import TreePlan, deep_linear_plan, tree_plan


class Options(eqx.Module):
    """How messages are sent. Numbers are data; what is static changes the compiled code."""

    damping: tuple[tuple[Array, ...], ...]  # of each group, of each slot
    dropout: tuple[tuple[Array, ...], ...]
    damped: bool = eqx.field(static=True)
    dropping: bool = eqx.field(static=True)
    relinearise: Relinearise = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)
    plan: TreePlan | None = None  # of the tree order

    def kept(self, g: int, s: int) -> Array:
        """How much of a pooled message stays as it was: of many edges, those that keep theirs keep their share."""
        return self.damping[g][s] + (1 - self.damping[g][s]) * self.dropout[g][s]

    def noise_damping(self, g: int) -> Array:
        """The damping of a noise variance that is learnt."""
        return jnp.max(jnp.stack(self.damping[g]))


def make_options(
    graph: FactorGraph,
    problem: Problem,
    damping: float | Damping,
    dropout: float | Damping,
    schedule: Schedule | None,
    relinearise: Relinearise,
) -> Options:
    """The arguments of `gbp.infer`, checked, for a problem of a graph."""
    known = (isinstance(relinearise, int) and relinearise >= 1) or isinstance(relinearise, (OnMovement, AfterVisit))
    if not known:
        ways = "a number of visits >= 1, gbp.OnMovement(...) or gbp.AfterVisit()"
        raise ValueError(f"relinearise must be {ways}, got {relinearise!r}")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise TypeError(f"schedule must be a gbp.Schedule such as gbp.Sweep(), got {schedule!r}")
    damp = per_slot("damping", damping, problem.groups, graph.kinds)
    drop = per_slot("dropout", dropout, problem.groups, graph.kinds)
    damped, dropping = (any(d > 0 for row in rows for d in row) for rows in (damp, drop))
    damp, drop = (jax.tree.map(lambda d: jnp.asarray(np.asarray(d, graph.dtype)), rows) for rows in (damp, drop))
    plan = None
    if isinstance(schedule, TreeOrder):
        if damped or dropping:
            raise ValueError("schedule: gbp.TreeOrder() is exact without damping and dropout; leave them at 0")
        plan = tree_plan(problem)
    elif schedule is None:
        plan = None if damped or dropping else deep_linear_plan(problem)
        schedule = Sweep() if plan is None else TreeOrder()
    return Options(damp, drop, damped, dropping, relinearise, schedule, plan)
