"""One visit of a factor group: the only place where messages change.

    visit(group, inbox, own, options) -> own', outbox, diagnostics

A visit is pure, and local: it takes the group with what belongs to it, what others say of its variables, and its own
messages, and knows nothing else of the graph. It sends the messages of the group to all of its variables:

1. Read the inbox: of each variable the prior and the other groups' messages, and the belief (`inbox.py`).
2. Take the cavity of every edge: all messages into its unit but its own (`state.cavity`). Pooled edge sets take the
   beliefs, and correct them by their reaction term.
3. Linearise `h` at the current means, or at stored points (`linearisation.py`); expand a likelihood that is not
   Gaussian under the beliefs (`factors/likelihood.py`).
4. Update the noise variance, if it is learnt (`noise_update.py`).
5. Compute the undamped messages (`propose`, by the equations of `update.py` from the prediction of `prediction.py`),
   with the robust scales of the residuals `y - h` at the linearisation points.
6. Damp them, drop some out, and put them in the place of the old ones.

It returns what belongs to the group afterwards, what others read of it (the outbox), and if wanted its diagnostics: how
far the undamped messages would move the beliefs (`visit_diagnostics.py`).

A group whose plan (`kernels/registry.py`) has a native kernel is visited by that kernel instead: the same messages, up
to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core.gaussian import Gaussian
from ..core.vector import Projection, RowMessages, VectorGaussian
from ..factors.operators import UnitRows
from ..graph.group import Group, Slot
from ..graph.local import LocalGroup
from ..kernels.registry import Call, kernel_for
from .group_options import GroupOptions
from .inbox import Inbox, beliefs_with, means_of, undamped
from .linearisation import AfterVisit, linearisation_points
from .noise_update import learn_noise
from .prediction import Edge, PooledEdges, edge_sets, held_spread, noise_with_held, predict
from .state import Messages, Own, cavity
from .update import PooledMessages, general_messages, scalar_messages
from .visit_diagnostics import VisitDiagnostics, diagnose_visit


class Visited(NamedTuple):
    """What a visit returns."""

    own: Own  # what belongs to the group, after the visit
    outbox: list[Any]  # of each slot the product of the messages into each unit
    proposed: list[Any]  # the same, undamped
    diagnostics: VisitDiagnostics | None  # None where none were wanted


def propose(
    group: Group,
    edges: list[Edge],
    pools: list[PooledEdges],
    residual: Array,
    scale: Array | None,
    held: Array | None,
) -> list[Gaussian | PooledMessages]:
    """The undamped messages of a group, slot by slot.

    **Arguments:**

    - `edges`, `pools`: its edge sets (`prediction.edge_sets`).
    - `residual`: `y - h` at the linearisation point.
    - `scale`: robust factor on the precision, None for 1.
    - `held`: the spread that comes from variables held at a belief.
    """
    residual, noise = group.every_factor(residual), noise_with_held(group, held, scale)
    if group.scalar:
        k = None if scale is None else scale[:, 0]
        each, pooled_ones = (iter(m) for m in scalar_messages(edges, residual[:, 0], noise, k, pools))
        return [next(pooled_ones if s.pooled else each) for s in group.slots]
    out = general_messages(edges, residual, noise, scale, group.whitening() if held is None else None)
    return [Gaussian.from_vectors(s.family, m) for m, s in zip(out, group.slots)]


def _flat(messages: Gaussian) -> Array:
    """Edges along which nothing was sent yet, or nothing that was known."""
    return jnp.all(messages.family.as_matrices(messages.lam) == 0, (-2, -1))


def _draw_lots(group: Group, key: Array) -> list[Array]:
    """For each slot uniform numbers, one an edge."""
    sizes = [0 if s.pooled else group.factors * s.units for s in group.slots]
    return jnp.split(cheap_uniform(key, sum(sizes)), np.cumsum(sizes)[:-1])


def cheap_uniform(key: Array, count: int) -> Array:
    """Numbers in [0, 1), the same for the same key: a counter, hashed.

    Masks need not be as random as samples: two rounds of a 32-bit hash (Wellons' lowbias32, each word of the key going
    into one) take a tenth of the time of JAX's own generator, which more than doubled the cost of an iteration.
    """
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    x = lax.iota(jnp.uint32, count)
    for word in (words[0], words[-1]):
        x = x ^ word
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ (x >> shift)) * jnp.uint32(factor)
        x = x ^ (x >> 16)
    return (x >> 8).astype(jnp.float32) * jnp.float32(2**-24)


def _mix_pooled(old: Messages, new: PooledMessages, weight: Array) -> Messages:
    """Damped message of a pooled edge set, and the reaction if it holds one."""
    assert old.summed is not None
    held = None if old.reaction is None else weight * old.reaction + (1 - weight) * new.reaction
    return Messages(None, old.summed.mix(new.message, weight), held)


# Between two visits that are diagnosed, rows are taken anew every so many visits: along long vectors it is costly.
_ROWS_EVERY = 10


def _projection(prior: VectorGaussian, rows: Array, before: RowMessages, visits: Array, diagnosed: bool) -> Projection:
    """The rows through which factors take a vector variable at this visit, with the prior along them.

    Those of a visit that is diagnosed are the rows of now, so that at rest nothing is old. In between they may be those
    of an earlier visit: the direction of a Jacobian is then a few visits old, its value and slope are not.
    """
    if diagnosed:
        return prior.projected(rows)
    due = visits % _ROWS_EVERY == 0
    return lax.cond(due, lambda: prior.projected(rows), lambda: before.projection)


def _vector_cavity(slot: Slot, prior: VectorGaussian, projection: Projection, before: RowMessages) -> Gaussian:
    """What is known without it of the number that each factor sees of a vector variable `(F, 1)`.

    The messages of before count along the rows of now: at rest these are the same.
    """
    found = prior.along(projection, before.eta, before.lam)
    lam = 1 / slot.from_table(found.cavity_variance)
    return Gaussian(slot.from_table(found.cavity_mean) * lam, lam)


def _along_rows(
    slot: Slot, prior: VectorGaussian, projection: Projection, old: RowMessages, proposal: Gaussian, weight: Array
) -> tuple[Messages, RowMessages]:
    """The messages to a vector variable, damped and with the mean that they lead to; and undamped."""
    eta, lam = slot.to_table(proposal.eta), slot.to_table(proposal.lam)
    e, c = weight * old.eta + (1 - weight) * eta, weight * old.lam + (1 - weight) * lam
    mean = prior.along(projection, e, c).weights
    new = Messages(None, None, along=RowMessages(projection, e, c, mean))
    return new, RowMessages(projection, eta, lam, mean)


def visit(
    local: LocalGroup,
    inbox: Inbox,
    own: Own,
    options: GroupOptions,
    key: Array | None = None,
    diagnosed: bool = False,
    call: Call | None = None,
) -> Visited:
    """Visit one group: relinearise, send its messages, damp, drop out.

    **Arguments:**

    - `local`: the group with what belongs to it.
    - `inbox`: of each of its variables the prior, and what other groups send there.
    - `own`: its messages, points and noise before the visit.
    - `key`: for dropout; None where there is none.
    - `diagnosed`: diagnostics of this visit are wanted: a kernel then computes its share of them on its way.
    - `call`: how a kernel is called, None for at once.
    """
    kernel = kernel_for(local, options) if own.points is None else None
    if kernel is not None:
        messages, proposed, reported = kernel.visit(local, inbox, own, options, diagnosed, call)
        after = Own(tuple(messages), None, own.visits + 1, own.noise)
    else:
        (after, proposed), reported = _send(local, inbox, own, options, key, diagnosed), None
    found = diagnose_visit(local, inbox, own, after, proposed, options, reported) if diagnosed else None
    return Visited(after, after.outbox(local.group), proposed, found)


def _send(
    local: LocalGroup, inbox: Inbox, own: Own, options: GroupOptions, key: Array | None, diagnosed: bool
) -> tuple[Own, list[Any]]:
    """A visit without a kernel: what belongs to the group afterwards, and the undamped messages on the units."""
    group, outside, sent_before = local.group, inbox.outside(), own.outbox(local.group)
    old = beliefs_with(group, outside, sent_before)
    cavities: list[Any] = []
    for s, slot in enumerate(group.slots):
        if slot.table is not None:
            cavities.append(None)  # once the rows are known
            continue
        rest = Gaussian.product(
            [outside[slot.variable], *(sent_before[i] for i in group.slots_of(slot.variable) if i != s)]
        )
        cavities.append(old[slot.variable] if slot.pooled else cavity(slot, rest, own.messages[s]))
    reactions = [None if s.reaction is None else own.messages[s.reaction].reaction for s in group.slots]
    first = own.visits == 0
    if local.frozen is not None and group.robust is None:
        points = {name: jnp.zeros((), old[name].dtype) for name in group.variables}  # the same from everywhere
        means = means_of(local, {slot.variable: old[slot.variable] for slot in group.slots if slot.pooled})
        linear, stored = local.frozen, own.points
    else:
        means = means_of(local, old)
        points, stored = linearisation_points(local, options.relinearise, own, means, old)
        linear = local.linearise(points, old)
    projections: dict[int, Projection] = {}
    for s, (slot, j) in enumerate(zip(group.slots, group.operators(linear))):
        if slot.table is not None:
            prior, before = outside[slot.variable], own.messages[s].along
            assert isinstance(j, UnitRows)
            assert before is not None
            projections[s] = _projection(prior, j.rows, before, own.visits, diagnosed)
            cavities[s] = _vector_cavity(slot, prior, projections[s], before)
            along = UnitRows(projections[s].rows, j.slope)
            linear = linear._replace(jacobians=(*linear.jacobians[:s], along, *linear.jacobians[s + 1 :]))
    variance, held, residual = own.noise, held_spread(group, local.held, linear), group.y - linear.value
    edges, pools = edge_sets(group, linear, cavities, reactions, means, points)
    if variance is not None and group.noise_prior is not None:
        variance = learn_noise(group, predict(group, edges, pools, residual, held), variance, options.strongest())
        group = group.with_noise(variance)
    scale = group.weights() if group.robust is None else group.measure(group.every_factor(residual)).scale
    proposals = propose(group, edges, pools, residual, scale, held)

    lots = _draw_lots(group, key) if options.dropping and key is not None else []
    messages, proposed = [], []
    for s, (slot, proposal) in enumerate(zip(group.slots, proposals)):
        if isinstance(proposal, PooledMessages):
            # Also the first: a sum of many messages, each computed without the others, overshoots.
            weight = options.kept(s).astype(sent_before[s].dtype)
            messages.append(_mix_pooled(own.messages[s], proposal, weight))
            proposed.append(proposal.message)
            continue
        # The first message of an edge is taken whole.
        after, weight = proposal, jnp.where(first, 0, options.damping[s]).astype(proposal.dtype)
        if slot.table is not None:
            prior, before = outside[slot.variable], own.messages[s].along
            assert before is not None
            new, undamped_ones = _along_rows(slot, prior, projections[s], before, proposal, weight)
            messages.append(new)
            proposed.append(undamped_ones)
            continue
        sent = own.messages[s].on_edges(slot.edges)
        growing = group.numbers is not None
        if options.damped:
            after = sent.mix(after, weight)
            if growing:  # among those of factors that were there before
                after = proposal.where(_flat(sent), after)
        if options.dropping:  # one mask for all natural parameters of an edge
            lot = lots[s].reshape(sent.unit_shape)
            after = sent.where((lot < options.dropout[s]) & ~first, after)
        packed = Messages.pack(slot.edges, after)
        messages.append(packed)
        # Pooling is linear, so damping can be undone on the units, which are fewer.
        if options.dropping or (options.damped and growing):
            proposed.append(jax.tree.map(slot.edges.pool, proposal))
        elif options.damped:
            proposed.append(undamped(sent_before[s], packed.on_units(slot.edges), weight))
        else:
            proposed.append(packed.on_units(slot.edges))
    after = Own(tuple(messages), stored, own.visits + 1, variance)
    if stored is not None and isinstance(options.relinearise, AfterVisit):
        after = after._replace(points=means_of(local, beliefs_with(group, outside, after.outbox(group))))
    return after, proposed
