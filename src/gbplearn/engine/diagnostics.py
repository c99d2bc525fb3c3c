"""Diagnostics of all groups: what their visits reported of themselves (`visit_diagnostics.py`), as arrays.

On these numbers it is decided whether inference has converged, whether it diverges (the guard), and which group a
residual schedule visits next. Of each group its newest visit counts.

The *priority* of a group, for schedules that pick, is how far others have moved its variables since its last visit, and
the share of its own residual that damping held back.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..graph.problem import Problem
from .visit_diagnostics import VisitDiagnostics


class Diagnostics(NamedTuple):
    """The newest diagnostics of each group. All arrays have an element a group, `prior` an element a variable."""

    residual: Array  # how far the undamped messages would move the beliefs, of the worst unit
    settling: Array  # how far its parameters would move, in root mean square the larger of means and log precisions
    energy: Array  # of the factors
    switched: Array  # the share of robust factors with a scale below 1
    prior: Array  # energy of the prior of each variable
    priority: Array  # what a schedule that picks groups goes by
    quiet: Array  # visits in a row (one an iteration counts) at which no group had a residual above the tolerance

    def total(self) -> Array:
        """Energy of all groups and priors."""
        return jnp.sum(self.energy) + jnp.sum(self.prior)


def no_diagnostics(problem: Problem) -> Diagnostics:
    """Before the first visit: every residual is infinite."""
    dtype = next(iter(problem.prior.values())).dtype if problem.prior else jnp.result_type(float)
    # Made by NumPy: outside of compiled code JAX would compile every operation for itself.
    zeros, infinite = np.zeros(len(problem.groups), dtype), np.full(len(problem.groups), np.inf, dtype)
    residual = np.where([bool(g.slots) for g in problem.groups], infinite, 0).astype(dtype)
    learnt = [any(name in problem.parameters for name in g.variables) for g in problem.groups]
    settling = np.where(learnt, infinite, 0).astype(dtype)
    quiet = np.zeros(len(problem.groups), np.int32)
    parts = residual, settling, zeros, zeros, np.zeros(len(problem.prior), dtype), infinite, quiet
    return Diagnostics(*map(jax.device_put, parts))


def put(problem: Problem, latest: Diagnostics, g: int, found: VisitDiagnostics) -> Diagnostics:
    """`latest` with the diagnostics of group `g`, as its visit reported them."""
    settling, prior = latest.settling, latest.prior
    if found.settling is not None:
        settling = settling.at[g].set(found.settling)
    for i, name in enumerate(problem.prior):
        if name in found.priors:
            prior = prior.at[i].set(found.priors[name])
    return latest._replace(
        residual=latest.residual.at[g].set(found.residual(latest.residual[g])),
        settling=settling,
        energy=latest.energy.at[g].set(found.energy),
        switched=latest.switched.at[g].set(found.switched),
        prior=prior,
    )


def priorities(problem: Problem, latest: Diagnostics, g: int, damping: Array, moved: dict[str, Array]) -> Array:
    """The priorities of all groups after a visit of group `g`, for schedules that pick.

    The group itself keeps the share of its residual that `damping` held back. Each neighbour is raised by how far the
    variables that it shares with the group moved (`moved`, by name).
    """
    priority = latest.priority.at[g].set(damping * latest.residual[g])
    for other, neighbour in enumerate(problem.groups):
        shared = [moved[name] for name in neighbour.variables if name in moved]
        if other != g and shared:
            priority = priority.at[other].add(jnp.max(jnp.stack(shared)))
    return priority
