"""Diagnostics of one visit: how far the group would still move the beliefs, and the energy at the means.

All of them are local: they come from the inbox, from what belonged to the group before and after the visit, and from
its undamped messages. `diagnostics.py` puts them beside those of the other groups.

- The *changes* are how far the undamped messages would move the belief of each variable: the largest of
  `|new mean - mean| / std` and `|log precision ratio|` over all units. They are taken without damping, since strong
  damping makes every step small, far from a fixed point as well as near it.
- *Settling* is the same for the parameters alone, as a root mean square: single units at a kink may never rest.
- *Energies* are those of the factors, and of the priors, at the means before the visit.
- *Switched* is the share of robust factors with a scale below 1.

Where a kernel made the visit, it has computed some of them on its way (`kernels.registry.KernelDiagnostics`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..core.gaussian import Gaussian
from ..core.vector import VectorBelief
from ..graph.local import LocalGroup
from ..kernels.registry import KernelDiagnostics
from .group_options import GroupOptions
from .inbox import Inbox, beliefs_with, means_of
from .state import Own


class VisitDiagnostics(NamedTuple):
    """What a visit reports of itself."""

    changes: list[Array]  # of each variable, and of the noise if it is learnt
    settling: Array | None  # of the parameters among its variables, in root mean square; None if there are none
    energy: Array  # of the factors
    switched: Array | float  # the share of robust factors with a scale below 1
    priors: dict[str, Array]  # energies of the priors that it reports (`LocalGroup.reports`)
    fresh: Array | None  # whether it was linearised at this visit; None: at every visit

    def residual(self, last: Array) -> Array:
        """How far its undamped messages would move the beliefs, of the worst unit; `last`: of its last visit."""
        worst = jnp.max(jnp.stack(self.changes))
        worst = jnp.where(jnp.isnan(worst), jnp.inf, worst)  # NaN cannot hide
        if self.fresh is None:
            return worst
        # Between two linearisations messages come to rest that the next one will move again.
        return jnp.where(self.fresh, worst, jnp.maximum(worst, last))


def change(old: Gaussian, before: Array, new: Gaussian, after: Array) -> Array:
    """How far a belief moves: the larger of `|new mean - mean| / std` and `|log precision ratio|` over all units.

    **Arguments:** the old belief and its mean, the new belief and its mean.
    """
    step = after - before
    # A step within the rounding of the mean itself is none: else precise variables would never come to rest.
    rounding = 16 * jnp.finfo(step.dtype).eps * jnp.maximum(jnp.abs(before), jnp.abs(after))
    step = jnp.where(jnp.abs(step) <= rounding, 0, step)
    squared, a, b = old.quadratic(step), old.precisions, new.precisions
    tiny = jnp.finfo(step.dtype).tiny
    ratio = jnp.max((jnp.maximum(a, b) + tiny) / (jnp.minimum(a, b) + tiny))
    return jnp.maximum(jnp.sqrt(jnp.max(squared)), jnp.log(ratio))


class VectorStep(NamedTuple):
    """How far messages move the numbers that factors see of a vector variable."""

    squares: Array  # in standard deviations
    grown: Array  # log ratios of the variances, squared
    prior_energy: Array  # at the old means

    @classmethod
    def of(cls, old: VectorBelief, new: VectorBelief) -> VectorStep:
        """Along the rows of the new messages."""
        along = new.messages.projection
        a, b = (v.prior.along(along, v.messages.eta, v.messages.lam) for v in (old, new))
        step = b.mean - a.mean
        rounding = 16 * jnp.finfo(step.dtype).eps * jnp.maximum(jnp.abs(a.mean), jnp.abs(b.mean))
        step = jnp.where(jnp.abs(step) <= rounding, 0, step)
        return cls(step * step / a.variance, jnp.log(b.variance / a.variance) ** 2, a.prior_energy)

    def change(self) -> Array:
        """The larger of the two, of the worst number."""
        return jnp.sqrt(jnp.maximum(jnp.max(self.squares), jnp.max(self.grown)))


def _precisions(belief: Gaussian) -> Array:
    return belief.precisions + jnp.finfo(belief.dtype).tiny


def _mean_of_all(local: LocalGroup, arrays: dict[str, Array]) -> Array:
    """Over all units of some variables. Those that are not in use are 0, and do not count."""
    shares = {n: 1.0 if n not in local.used else local.used[n] / local.start[n].size for n in arrays}
    total = sum(a.size * shares[n] for n, a in arrays.items())
    return jnp.sum(jnp.stack([jnp.sum(a) for a in arrays.values()])) / total


def diagnose_visit(
    local: LocalGroup,
    inbox: Inbox,
    before: Own,
    after: Own,
    proposed: list[Any],
    options: GroupOptions,
    reported: KernelDiagnostics | None,
) -> VisitDiagnostics:
    """The diagnostics of a visit.

    **Arguments:**

    - `before`, `after`: what belongs to the group, before and after the visit.
    - `proposed`: of each slot the product of the undamped messages into each unit.
    - `reported`: by the kernel, if one made the visit.
    """
    group, outside = local.group, inbox.outside()
    known = {} if reported is None else reported.changes
    old, full = (beliefs_with(group, outside, own) for own in (before.outbox(group), proposed))
    means = means_of(local, old)
    # Along directions of which nothing is known a step does not count: any mean will do.
    # Both in the same way: where nothing changes, rounding must not either.
    near, new = (
        {n: b.any_mean(means[n], n in local.proper) for n, b in of.items() if isinstance(b, Gaussian)}
        for of in (old, full)
    )
    vectors = {n: VectorStep.of(old[n], full[n]) for n in group.variables if isinstance(old[n], VectorBelief)}
    changes = [v.change() for v in vectors.values()]
    others = [n for n in group.variables if n not in vectors]
    changes += [known[n] if n in known else change(old[n], near[n], full[n], new[n]) for n in others]
    learnt, settling = [n for n in group.variables if n in local.parameters], None
    if learnt:
        steps = {n: vectors[n].squares if n in vectors else old[n].quadratic(new[n] - near[n]) for n in learnt}
        # Means may be at rest long before the messages of a whole batch have arrived: then precisions still grow.
        grown = {
            n: vectors[n].grown if n in vectors else jnp.log(_precisions(full[n]) / _precisions(old[n])) ** 2
            for n in learnt
        }
        rms = jnp.sqrt(jnp.maximum(_mean_of_all(local, steps), _mean_of_all(local, grown)))
        settling = jnp.where(jnp.isnan(rms), jnp.inf, rms)
    if after.noise is not None and before.noise is not None and group.noise_prior is not None:
        changes.append(jnp.abs(jnp.log(after.noise / before.noise)) / (1 - options.strongest()))
        group = group.with_noise(after.noise)
    if reported is None:
        energy, _, switched = group.measure(group.every_factor(group.y - local.value(means)))
    else:
        energy, switched = reported.energy, reported.switched
    priors = {} if reported is None else {n: e for n, e in reported.priors.items() if n in local.reports}
    for name in group.variables:
        if name in local.reports and name in vectors:
            priors[name] = vectors[name].prior_energy
        elif name in local.reports and name not in priors:
            priors[name] = 0.5 * jnp.sum(inbox.prior(name).squares(means[name]))
    every, fresh = options.relinearise, None
    if local.frozen is None and before.points is not None and isinstance(every, int):
        fresh = before.visits % every == 0
    return VisitDiagnostics(changes, settling, energy, switched, priors, fresh)


def moved(local: LocalGroup, inbox: Inbox, before: Own, outbox: list[Any]) -> dict[str, Array]:
    """How far a visit has moved the belief of each variable, by the messages that it sent."""
    outside = inbox.outside()
    old, now = (beliefs_with(local.group, outside, own) for own in (before.outbox(local.group), outbox))
    old_means, means = means_of(local, old), means_of(local, now)
    return {
        n: VectorStep.of(old[n], now[n]).change()
        if isinstance(old[n], VectorBelief)
        else change(old[n], old_means[n], now[n], means[n])
        for n in local.group.variables
    }
