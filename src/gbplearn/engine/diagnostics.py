"""Diagnostics of a visit: how far the group would still move the beliefs (its residual), and the energy at the means.

On these numbers it is decided whether inference has converged, whether it diverges (the guard), and which group a
residual schedule visits next. They are computed after a visit, from the states before and after it:

- The *residual* of a group is how far its undamped messages would move the beliefs of its variables: the largest of
  `|new mean - mean| / std` and `|log precision ratio|` over all units. It is taken without damping, since strong
  damping makes every step small, far from a fixed point as well as near it.
- *Settling* is the same for the parameters alone, as a root mean square: single units at a kink may never rest.
- *Energies* are those of the factors, and of the priors, at the means before the visit.
- *Switched* is the share of robust factors with a scale below 1.
- The *priority* of a group, for schedules that pick, is how far others have moved its variables since its last visit,
  and the share of its own residual that damping held back.

Where a kernel made the visit, it has computed some of them on its way (`kernels.registry.KernelDiagnostics`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import linalg
from ..core.gaussian import Gaussian
from ..graph.problem import Problem, prior_energy
from ..kernels.registry import KernelDiagnostics
from .inbox import beliefs_with, means_of, read_inbox
from .options import Options
from .state import State, message_product
from .visit import every_factor, linearise_at


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
    return Diagnostics(*map(jnp.asarray, parts))


def change(old: Gaussian, before: Array, new: Gaussian, after: Array) -> Array:
    """How far a belief moves: the larger of `|new mean - mean| / std` and `|log precision ratio|` over all units.

    **Arguments:** the old belief and its mean, the new belief and its mean.
    """
    step = after - before
    # A step within the rounding of the mean itself is none: else precise variables would never come to rest.
    rounding = 16 * jnp.finfo(step.dtype).eps * jnp.maximum(jnp.abs(before), jnp.abs(after))
    step = jnp.where(jnp.abs(step) <= rounding, 0, step)
    squared, a, b = _squared_step(old, step), old.lam, new.lam
    if old.block:
        a, b = (jnp.diagonal(x, axis1=-2, axis2=-1) for x in (a, b))
    tiny = jnp.finfo(step.dtype).tiny
    ratio = jnp.max((jnp.maximum(a, b) + tiny) / (jnp.minimum(a, b) + tiny))
    return jnp.maximum(jnp.sqrt(jnp.max(squared)), jnp.log(ratio))


def _squared_step(belief: Gaussian, step: Array) -> Array:
    """In standard deviations, of each unit; of a block along its directions together."""
    return linalg.quadratic(belief.lam, step) if belief.block else step * step * belief.lam


def _precisions(belief: Gaussian) -> Array:
    lam = jnp.diagonal(belief.lam, axis1=-2, axis2=-1) if belief.block else belief.lam
    return lam + jnp.finfo(lam.dtype).tiny


def _mean_of_all(arrays: list[Array]) -> Array:
    return jnp.sum(jnp.stack([jnp.sum(a) for a in arrays])) / sum(a.size for a in arrays)


class Visit(NamedTuple):
    """A visit of a group: the states before and after it, and its undamped messages on the units."""

    before: State
    after: State
    proposed: list[Gaussian]
    reported: KernelDiagnostics | None = None  # by the kernel, if one made the visit


def diagnose(problem: Problem, options: Options, visit: Visit, latest: Diagnostics, g: int) -> Diagnostics:
    """`latest` with the diagnostics of group `g`, as of this visit.

    The residual is how far its undamped messages would move the beliefs of its variables; energies are at the means
    before the visit.
    """
    group, (before, after, proposed, reported) = problem.groups[g], visit
    known = {} if reported is None else reported.changes
    outside, _, old = read_inbox(problem, before, g)
    full = beliefs_with(group, outside, proposed)
    means, new = means_of(problem, old), means_of(problem, full)
    changes = [known[n] if n in known else change(old[n], means[n], full[n], new[n]) for n in group.variables]
    learnt, settling = [n for n in group.variables if n in problem.parameters], latest.settling
    if learnt:
        steps = [_squared_step(old[n], new[n] - means[n]) for n in learnt]
        # Means may be at rest long before the messages of a whole batch have arrived: then precisions still grow.
        grown = [jnp.log(_precisions(full[n]) / _precisions(old[n])) ** 2 for n in learnt]
        rms = jnp.sqrt(jnp.maximum(_mean_of_all(steps), _mean_of_all(grown)))
        settling = settling.at[g].set(jnp.where(jnp.isnan(rms), jnp.inf, rms))
    variance, last = after.noise[g], before.noise[g]
    if variance is not None and last is not None and group.noise_prior is not None:
        changes.append(jnp.abs(jnp.log(variance / last)) / (1 - options.noise_damping(g)))
        group = group.with_noise(variance)
    worst = jnp.max(jnp.stack(changes))
    worst = jnp.where(jnp.isnan(worst), jnp.inf, worst)  # NaN cannot hide
    if problem.frozen[g] is None and before.points[g] is not None and isinstance(options.relinearise, int):
        # Between two linearisations messages come to rest that the next one will move again.
        fresh = before.visits[g] % options.relinearise == 0
        worst = jnp.where(fresh, worst, jnp.maximum(worst, latest.residual[g]))
    if reported is None:
        energy, _, switched = group.measure(every_factor(group, group.y - linearise_at(problem, g, means).value))
    else:
        energy, switched = reported.energy, reported.switched
    prior, priors = latest.prior, {} if reported is None else reported.priors
    for i, name in enumerate(problem.prior):
        if name in group.variables and problem.touching(name)[0][0] == g:
            value = priors[name] if name in priors else prior_energy(problem.prior[name], means[name])
            prior = prior.at[i].set(value)
    return latest._replace(
        residual=latest.residual.at[g].set(worst),
        settling=settling,
        energy=latest.energy.at[g].set(energy),
        switched=latest.switched.at[g].set(switched),
        prior=prior,
    )


def priorities(problem: Problem, options: Options, visit: Visit, latest: Diagnostics, g: int) -> Array:
    """The priorities of all groups after a visit of one, for schedules that pick.

    The group itself keeps the share of its residual that damping held back. Each neighbour is raised by how far the
    variables that it shares with the group moved.
    """
    group = problem.groups[g]
    outside, _, old = read_inbox(problem, visit.before, g)
    now = beliefs_with(group, outside, [message_product(problem, visit.after, g, s) for s in range(len(group.slots))])
    old_means, means = means_of(problem, old), means_of(problem, now)
    moved = {n: change(old[n], old_means[n], now[n], means[n]) for n in group.variables}
    kept_back = jnp.max(jnp.stack(options.damping[g]))
    priority = latest.priority.at[g].set(kept_back * latest.residual[g])
    for other, neighbour in enumerate(problem.groups):
        shared = [moved[name] for name in neighbour.variables if name in moved]
        if other != g and shared:
            priority = priority.at[other].add(jnp.max(jnp.stack(shared)))
    return priority
