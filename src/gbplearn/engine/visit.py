"""One visit of a factor group: the only place where messages change.

A visit sends the messages of one group to all of its variables:

1. Read the inbox: of each variable the prior and the other groups' messages, and the belief (`inbox.py`).
2. Take the cavity of every edge: all messages into its unit but its own (`state.cavity`). Pooled edge sets take the
   beliefs, and correct them by their reaction term.
3. Linearise `h` at the current means, or at stored points (`linearisation.py`).
4. Update the noise variance, if it is learnt (`noise_update.py`).
5. Compute the undamped messages (`propose`, by the equations of `update.py`), with the robust scales of the residuals
   `y - h` at the linearisation points.
6. Damp them, drop some out, and put them in the place of the old ones.

A visit returns the new state, and the undamped messages: how far these would move the beliefs is the residual of the
group (`diagnostics.py`).

A group whose factors have a form that there is a native kernel for is visited by that kernel instead
(`kernels/registry.py`): the same messages, up to rounding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core import linalg
from ..core.gaussian import Gaussian
from ..core.linalg import add_all
from ..factors.measurement import Linear
from ..graph.group import Group, Slot
from ..graph.problem import Problem
from ..kernels.registry import Call, KernelDiagnostics, kernels
from .inbox import means_of, product, read_inbox, undamped
from .linearisation import AfterVisit, linearisation_points
from .noise_update import learn_noise
from .options import Options
from .state import Messages, State, cavity
from .update import Edge, PooledEdges, PooledMessages, general_messages, scalar_messages


def linearise_at(problem: Problem, g: int, points: dict[str, Array]) -> Linear:
    """A group linearised at the values of its variables; linear groups have been, once for all."""
    group, frozen = problem.groups[g], problem.frozen[g]
    if frozen is None:
        return group.linearise({**points, **problem.fixed})
    moves = [j.times(points[slot.variable]) for slot, j in zip(group.slots, group.operators(frozen))]
    return Linear(frozen.value + add_all(moves), frozen.jacobians)


def propose(
    group: Group,
    linear: Linear,
    cavities: list[Gaussian],
    reactions: list[Array | None],
    means: dict[str, Array],
    points: dict[str, Array],
    residual: Array,
    scale: Array | None,
    held_spread: Array | None,
) -> list[Gaussian | PooledMessages]:
    """The undamped messages of a group, slot by slot.

    **Arguments:**

    - `cavities`: of each slot its cavities, or if it is pooled the belief.
    - `reactions`: of each pooled slot.
    - `means`: of the beliefs of what is pooled; those that are the very arrays in `points` have not moved.
    - `held_spread`: the variance of `h` that comes from variables held at a belief.
    """
    rows = group.factors
    residual = jnp.broadcast_to(residual, (rows, group.outputs))
    operators = group.operators(linear)
    if group.scalar:
        edges, pools, by_hand = [], [], not group.measurement.whole
        for s, j, g, r in zip(group.slots, operators, cavities, reactions):
            if r is not None:
                mean = means[s.variable]
                move = None if points[s.variable] is mean else mean - points[s.variable]
                pools.append(PooledEdges(j, mean, 1 / g.lam, move, r))
            else:
                edges.append(Edge(j.each(), g, _spread(s, points), s.proper, s.edges.rows, by_hand))
        k = None if scale is None else scale[:, 0]
        variance = jnp.broadcast_to(group.noise.reshape(-1), (rows,))
        if held_spread is not None:  # the robust scale belongs to the noise alone
            variance = variance + held_spread[:, 0] * (1.0 if k is None else k)
        each, pooled_ones = (iter(m) for m in scalar_messages(edges, residual[:, 0], variance, k, pools))
        return [next(each if r is None else pooled_ones) for r in reactions]
    edges = []
    for j, c, s in zip(operators, cavities, group.slots):
        wide = c if s.block else Gaussian(c.eta[..., None], c.lam[..., None, None])
        edges.append(Edge(j.each(), wide, _point(_spread(s, points), s, wide), s.proper))
    covariance = group.covariance()
    if held_spread is not None:
        root = 1.0 if scale is None else linalg.safe_sqrt(scale[:, :, None] * scale[:, None, :])
        covariance = covariance + held_spread * root
    out = general_messages(edges, residual, jnp.broadcast_to(covariance, (rows, *covariance.shape[1:])), scale)
    return [m if s.block else Gaussian(m.eta[..., 0], m.lam[..., 0, 0]) for m, s in zip(out, group.slots)]


def _spread(slot: Slot, points: dict[str, Array]) -> Array:
    """The linearisation point at every edge; a scalar stays one."""
    x = points[slot.variable]
    return x if x.ndim == 0 else slot.edges.spread(x)


def _point(x: Array, slot: Slot, cavity: Gaussian) -> Array:
    """A linearisation point in block layout."""
    if x.ndim == 0:
        return jnp.broadcast_to(x, (1, *cavity.shape[1:]))
    return x if slot.block else x[..., None]


def _draw_lots(group: Group, key: Array) -> tuple[Array, list[Array]]:
    """The next key, and for each slot uniform numbers, one an edge."""
    key, draw = jax.random.split(key)
    sizes = [0 if s.pooled else group.factors * s.units for s in group.slots]
    return key, jnp.split(cheap_uniform(draw, sum(sizes)), np.cumsum(sizes)[:-1])


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


def visit(
    problem: Problem, state: State, options: Options, g: int, diagnosed: bool = False, call: Call | None = None
) -> tuple[State, list[Gaussian], KernelDiagnostics | None]:
    """Visit one group: relinearise, send its messages, damp, drop out.

    **Arguments:**

    - `diagnosed`: diagnostics of this visit are wanted: a kernel then computes its share of them on its way.
    - `call`: how a kernel is called, None for at once.

    **Returns:** the new state; of each slot the product of the undamped messages into each unit; and the diagnostics of
    a kernel, if one made the visit and they are wanted.
    """
    group = problem.groups[g]
    kernel = kernels().visit_kernel(problem, options, g) if state.points[g] is None else None
    if kernel is not None:
        messages, proposed, reported = kernel(problem, state, options, g, diagnosed, call)
        return _after(state, g, messages, None, state.key, state.noise[g]), proposed, reported
    outside, own, old = read_inbox(problem, state, g)
    cavities = []
    for s, slot in enumerate(group.slots):
        rest = product([outside[slot.variable], *(own[i] for i in group.slots_of(slot.variable) if i != s)])
        cavities.append(old[slot.variable] if slot.pooled else cavity(slot, rest, state.messages[g][s]))
    reactions = [None if s.reaction is None else state.messages[g][s.reaction].reaction for s in group.slots]
    frozen, first = problem.frozen[g], state.visits[g] == 0
    if frozen is not None and group.robust is None:
        points = {name: jnp.zeros((), old[name].dtype) for name in group.variables}  # the same from everywhere
        means = means_of(problem, {slot.variable: old[slot.variable] for slot in group.slots if slot.pooled})
        linear, stored = frozen, state.points[g]
    else:
        means = means_of(problem, old)
        points, stored = linearisation_points(problem, options.relinearise, state, g, means, old)
        linear = linearise_at(problem, g, points)
    variance = state.noise[g]
    held_spread = group.spread_of(problem.held, linear)
    if variance is not None and group.noise_prior is not None:
        damping = options.noise_damping(g)
        variance = learn_noise(group, linear, cavities, reactions, points, held_spread, variance, damping)
        group = group.with_noise(variance)
    residual = group.y - linear.value
    scale = group.weights() if group.robust is None else group.measure(every_factor(group, residual)).scale
    proposals = propose(group, linear, cavities, reactions, means, points, residual, scale, held_spread)

    key, lots = _draw_lots(group, state.key) if options.dropping else (state.key, [])
    messages, proposed = [], []
    for s, (slot, proposal) in enumerate(zip(group.slots, proposals)):
        if isinstance(proposal, PooledMessages):
            # Also the first: a sum of many messages, each computed without the others, overshoots.
            weight = options.kept(g, s).astype(own[s].dtype)
            messages.append(_mix_pooled(state.messages[g][s], proposal, weight))
            proposed.append(proposal.message)
            continue
        # The first message of an edge is taken whole.
        after, weight = proposal, jnp.where(first, 0, options.damping[g][s]).astype(proposal.dtype)
        sent = state.messages[g][s].on_edges(slot.edges)
        if options.damped:
            after = sent.mix(after, weight)
        if options.dropping:  # one mask for all natural parameters of an edge
            lot = lots[s].reshape(sent.shape[:-1] if sent.block else sent.shape)
            after = sent.where((lot < options.dropout[g][s]) & ~first, after)
        packed = Messages.pack(slot.edges, after)
        messages.append(packed)
        # Pooling is linear, so damping can be undone on the units, which are fewer.
        if options.dropping:
            proposed.append(jax.tree.map(slot.edges.pool, proposal))
        elif options.damped:
            proposed.append(undamped(own[s], packed.on_units(slot.edges), weight))
        else:
            proposed.append(packed.on_units(slot.edges))
    after = _after(state, g, messages, stored, key, variance)
    if stored is not None and isinstance(options.relinearise, AfterVisit):
        moved = means_of(problem, read_inbox(problem, after, g)[2])
        after = _after(state, g, messages, moved, key, variance)
    return after, proposed, None


def _after(
    state: State, g: int, messages: list[Messages], stored: dict[str, Array] | None, key: Array, variance: Array | None
) -> State:
    """The state after a visit of a group."""
    return State(
        (*state.messages[:g], tuple(messages), *state.messages[g + 1 :]),
        (*state.points[:g], stored, *state.points[g + 1 :]),
        state.visits.at[g].add(1),
        key,
        (*state.noise[:g], variance, *state.noise[g + 1 :]),
    )


def every_factor(group: Group, residual: Array) -> Array:
    """Residuals `(F | 1, M)` as `(F, M)`: one that all factors share is repeated."""
    return jnp.broadcast_to(residual, (group.factors, group.outputs))
