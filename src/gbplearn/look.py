"""What one sees of inference from outside: how far beliefs still move, and the energy at their means."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import linalg
from .compiling import lean_jit
from .gaussian import Gaussian
from .problem import Problem, State, pooled, prior_energy
from .visit import Options, every_factor, join, linearise_at, means_of, see


class Latest(NamedTuple):
    """What was seen last of each group. All arrays have an element a group, `prior` an element a variable."""

    residual: Array
    energy: Array
    switched: Array
    prior: Array
    priority: Array  # what a schedule that picks groups goes by

    def total(self) -> Array:
        """Energy of all groups and priors."""
        return jnp.sum(self.energy) + jnp.sum(self.prior)


def nothing_seen(problem: Problem) -> Latest:
    """Before the first visit: every residual is infinite."""
    dtype = next(iter(problem.prior.values())).dtype if problem.prior else jnp.result_type(float)
    # Made by NumPy: outside of compiled code JAX would compile every operation for itself.
    zeros, infinite = np.zeros(len(problem.groups), dtype), np.full(len(problem.groups), np.inf, dtype)
    residual = np.where([bool(g.slots) for g in problem.groups], infinite, 0).astype(dtype)
    return Latest(*map(jnp.asarray, (residual, zeros, zeros, np.zeros(len(problem.prior), dtype), infinite)))


def change(old: Gaussian, before: Array, new: Gaussian, after: Array) -> Array:
    """How far a belief moves: the larger of `|new mean - mean| / std` and `|log precision ratio|` over all units.

    **Arguments:** the old belief and its mean, the new belief and its mean.
    """
    step = after - before
    # A step within the rounding of the mean itself is none: else precise variables would never come to rest.
    rounding = 16 * jnp.finfo(step.dtype).eps * jnp.maximum(jnp.abs(before), jnp.abs(after))
    step = jnp.where(jnp.abs(step) <= rounding, 0, step)
    if old.block:
        squared = linalg.quadratic(old.lam, step)
        a, b = (jnp.diagonal(x.lam, axis1=-2, axis2=-1) for x in (old, new))
    else:
        squared, a, b = step * step * old.lam, old.lam, new.lam
    tiny = jnp.finfo(step.dtype).tiny
    ratio = jnp.max((jnp.maximum(a, b) + tiny) / (jnp.minimum(a, b) + tiny))
    return jnp.maximum(jnp.sqrt(jnp.max(squared)), jnp.log(ratio))


def _undamped(old: Gaussian, new: Gaussian, weight: Array) -> Gaussian:
    """What was mixed with `weight` of the old message to give the new one."""
    return jax.tree.map(lambda a, b: (b - weight * a) / (1 - weight), old, new)


def _proposed(problem: Problem, options: Options, before: State, after: State, g: int) -> list[Gaussian]:
    """The undamped messages of a group multiplied up on the units, from those before and after its last visits."""
    out = []
    visits = after.visits[g] - before.visits[g]
    for s, slot in enumerate(problem.groups[g].slots):
        new = pooled(problem, after, g, s)
        if options.damped or (options.dropping and slot.pooled):
            # An edge that was dropped out shows no change: `look` makes up for that.
            kept, whole = (options.kept(g, s), 1) if slot.pooled else (options.damping[g][s], before.visits[g] > 0)
            weight = (whole * kept**visits).astype(new.dtype)
            new = _undamped(pooled(problem, before, g, s), new, weight)
        out.append(new)
    return out


def look(problem: Problem, options: Options, before: State, after: State, latest: Latest, g: int) -> Latest:
    """Residual and energy of a group, from the messages before and after its last visit or visits.

    The residual is the undamped change of its variables' beliefs, of everything that it has to say; energies are at
    the means.
    """
    group, frozen = problem.groups[g], problem.frozen[g]
    inbound, _, now = see(problem, after, g)
    old = join(group, inbound, [pooled(problem, before, g, s) for s in range(len(group.slots))])
    full = join(group, inbound, _proposed(problem, options, before, after, g))
    old_means, full_means, means = (means_of(problem, b) for b in (old, full, now))
    changes = [change(old[n], old_means[n], full[n], full_means[n]) for n in group.variables]
    variance, last = after.noise[g], before.noise[g]
    if variance is not None and last is not None and group.noise_prior is not None:
        changes.append(jnp.abs(jnp.log(variance / last)) / (1 - options.noise_damping(g)))
        group = group.with_noise(variance)
    worst = jnp.max(jnp.stack(changes))
    worst = jnp.where(jnp.isnan(worst), jnp.inf, worst)  # NaN cannot hide
    if options.dropping:  # by chance few edges, or none, may have changed
        known = latest.residual[g]
        worst = jnp.maximum(worst, jnp.where(jnp.isfinite(known), 0.5 * known, 0))
    if frozen is None and after.points[g] is not None and isinstance(options.relinearise, int):
        # Between two linearisations messages come to rest that the next one will move again.
        fresh = (after.visits[g] - 1) // options.relinearise * options.relinearise
        worst = jnp.where(fresh >= before.visits[g], worst, jnp.maximum(worst, latest.residual[g]))
    result = group.measure(every_factor(group, group.y - linearise_at(problem, g, means).value))
    prior = latest.prior
    for i, name in enumerate(problem.prior):
        if name in group.variables and problem.touching(name)[0][0] == g:
            prior = prior.at[i].set(prior_energy(problem.prior[name], means[name]))
    return latest._replace(
        residual=latest.residual.at[g].set(worst),
        energy=latest.energy.at[g].set(result.energy),
        switched=latest.switched.at[g].set(result.switched),
        prior=prior,
    )


def news(problem: Problem, options: Options, before: State, after: State, latest: Latest, g: int) -> Array:
    """The priorities of all groups after a visit of one, for schedules that pick.

    What damping held back is still to come; neighbours have news as far as shared variables moved.
    """
    group = problem.groups[g]
    inbound, _, now = see(problem, after, g)
    old = join(group, inbound, [pooled(problem, before, g, s) for s in range(len(group.slots))])
    old_means, means = means_of(problem, old), means_of(problem, now)
    moved = {n: change(old[n], old_means[n], now[n], means[n]) for n in group.variables}
    kept_back = jnp.max(jnp.stack(options.damping[g]))
    priority = latest.priority.at[g].set(kept_back * latest.residual[g])
    for other, neighbour in enumerate(problem.groups):
        shared = [moved[name] for name in neighbour.variables if name in moved]
        if other != g and shared:
            priority = priority.at[other].add(jnp.max(jnp.stack(shared)))
    return priority


@lean_jit
def look_at_all(problem: Problem, options: Options, before: State, after: State, latest: Latest) -> Latest:
    """`look` at every group, compiled for itself: in large graphs that is not done in every iteration."""
    problem = problem.with_known()
    for g in problem.active():
        latest = look(problem, options, before, after, latest, g)
    return latest
