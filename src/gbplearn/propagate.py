"""One visit of a factor group, and the loop over visits: the only place where messages change."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import linalg
from .gaussian import Gaussian
from .group import Group, Slot
from .linalg import add_all
from .measurement import Linear
from .messages import Edge, Pool, Pooled, general_messages, scalar_messages
from .noise_update import learn_noise
from .problem import Messages, Problem, State, belief_mean, cavity, pooled, prior_energy
from .schedule import OnMovement, Schedule

# Graphs with more edges than this are looked at every fifth iteration only.
LARGE = 500_000
# How many iterations one compiled call makes at most: the length of its trace.
CHUNK = 50


class Options(eqx.Module):
    """How messages are sent. Numbers are data; what is static changes the compiled code."""

    damping: tuple[tuple[Array, ...], ...]  # of each group, of each slot
    dropout: tuple[tuple[Array, ...], ...]
    every: Array  # iterations from one look at residual and energy to the next
    damped: bool = eqx.field(static=True)
    dropping: bool = eqx.field(static=True)
    relinearise: int | OnMovement = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)


class Latest(NamedTuple):
    """What the last visit of each group saw. All arrays have an element a group, `prior` an element a variable."""

    residual: Array
    energy: Array
    switched: Array
    prior: Array
    priority: Array  # what a schedule that picks groups goes by

    def total(self) -> Array:
        """Energy of all groups and priors."""
        return jnp.sum(self.energy) + jnp.sum(self.prior)


def _inbound(problem: Problem, state: State, g: int) -> dict[str, Gaussian]:
    """For each variable of a group: its prior and the messages of all *other* groups."""
    out = {}
    for name in problem.groups[g].variables:
        others = [pooled(problem, state, other, s) for other, s in problem.touching(name) if other != g]
        out[name] = _product([problem.prior[name], *others])
    return out


def _product(parts: list[Gaussian]) -> Gaussian:
    return Gaussian(add_all([p.eta for p in parts]), add_all([p.lam for p in parts]))


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


def _linearise(problem: Problem, g: int, points: dict[str, Array]) -> Linear:
    group, frozen = problem.groups[g], problem.frozen[g]
    if frozen is None:
        return group.linearise({**points, **problem.fixed})
    moves = [j.times(points[slot.variable]) for slot, j in zip(group.slots, group.operators(frozen))]
    return Linear(frozen.value + add_all(moves), frozen.jacobians)


def propose(
    group: Group,
    linear: Linear,
    seen: list[Gaussian],
    reactions: list[Array | None],
    points: dict[str, Array],
    residual: Array,
    scale: Array | None,
    heard: Array | None,
) -> list[Gaussian | Pooled]:
    """The undamped messages of a group.

    **Arguments:**

    - `seen`: of each slot its cavities, or if it is pooled the belief.
    - `reactions`: of each pooled slot.
    - `heard`: how uncertain variables held at a belief leave `h`.
    """
    rows = group.factors
    residual = jnp.broadcast_to(residual, (rows, group.outputs))
    operators = group.operators(linear)
    if group.scalar:
        edges, pools = [], []
        for s, j, g, r in zip(group.slots, operators, seen, reactions):
            if r is not None:
                pools.append(Pool(j, g, points[s.variable], r))
            else:
                edges.append(Edge(j.each(), g, _spread(s, points), s.proper))
        k = None if scale is None else scale[:, 0]
        variance = jnp.broadcast_to(group.noise.reshape(-1), (rows,))
        if heard is not None:  # the robust scale belongs to the noise alone
            variance = variance + heard[:, 0] * (1.0 if k is None else k)
        each, pooled_ones = (iter(m) for m in scalar_messages(edges, residual[:, 0], variance, k, pools))
        return [next(each if r is None else pooled_ones) for r in reactions]
    edges = []
    for j, c, s in zip(operators, seen, group.slots):
        wide = c if s.block else Gaussian(c.eta[..., None], c.lam[..., None, None])
        edges.append(Edge(j.each(), wide, _point(_spread(s, points), s, wide), s.proper))
    covariance = group.covariance()
    if heard is not None:
        root = 1.0 if scale is None else jnp.sqrt(scale[:, :, None] * scale[:, None, :])
        covariance = covariance + heard * root
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


def _refresh(options: Options, state: State, g: int, means: dict[str, Array], old: dict[str, Gaussian]):
    """The linearisation point of this visit, and what of it is stored."""
    stored = state.points[g]
    if stored is None:
        return means, None
    first = state.visits[g] == 0
    if isinstance(options.relinearise, OnMovement):
        points = {}
        for name, x0 in stored.items():
            lam = jnp.diagonal(old[name].lam, axis1=-2, axis2=-1) if old[name].block else old[name].lam
            far = (means[name] - x0) ** 2 * lam > options.relinearise.threshold**2
            points[name] = jnp.where(first | far, means[name], x0)
    else:
        due = state.visits[g] % options.relinearise == 0
        points = {name: jnp.where(due, means[name], x0) for name, x0 in stored.items()}
    return points, points


def _draw_lots(group: Group, key: Array) -> tuple[Array, list[Array]]:
    """The next key, and for each slot uniform numbers `(F, n)`, all from one draw: a draw is much to compile."""
    key, draw = jax.random.split(key)
    sizes = [0 if s.pooled else group.factors * s.units for s in group.slots]
    parts = jnp.split(jax.random.uniform(draw, (sum(sizes),)), np.cumsum(sizes)[:-1])
    return key, [p if s.pooled else p.reshape(group.factors, s.units) for p, s in zip(parts, group.slots)]


def _undamped(old: Gaussian, new: Gaussian, weight: Array) -> Gaussian:
    """What was mixed with `weight` of the old message to give the new one."""
    return jax.tree.map(lambda a, b: (b - weight * a) / (1 - weight), old, new)


def _mix_pooled(old: Messages, new: Pooled, weight: Array) -> Messages:
    """Damped message and reaction of a pooled edge set."""
    assert old.pooled is not None
    assert old.reaction is not None
    reaction = weight * old.reaction + (1 - weight) * new.reaction
    return Messages(None, old.pooled.mix(new.message, weight), reaction)


def visit(
    problem: Problem, state: State, options: Options, latest: Latest, g: int, watch: Array | None
) -> tuple[State, Latest]:
    """Visit one group: relinearise, send its messages, damp, drop out.

    **Arguments:**

    - `watch`: whether to look at residual and energy; on large graphs that costs as much as the messages. None: never.
    """
    group = problem.groups[g]
    inbound = _inbound(problem, state, g)
    own = [pooled(problem, state, g, s) for s in range(len(group.slots))]
    same = {name: [s for s, slot in enumerate(group.slots) if slot.variable == name] for name in group.variables}
    old = {name: _product([inbound[name], *(own[s] for s in same[name])]) for name in group.variables}

    def mean(name: str, b: Gaussian) -> Array:
        return belief_mean(b, problem.start[name], name in problem.proper)

    seen = []
    for s, slot in enumerate(group.slots):
        outside = _product([inbound[slot.variable], *(own[i] for i in same[slot.variable] if i != s)])
        seen.append(old[slot.variable] if slot.pooled else cavity(slot, outside, state.messages[g][s]))
    reactions = [m.reaction for m in state.messages[g]]
    frozen, stored, measured, means, visits = problem.frozen[g], None, None, None, state.visits[g]
    if frozen is not None and group.robust is None:
        points = {name: jnp.zeros((), old[name].dtype) for name in group.variables}  # the same from everywhere
        linear, stored = frozen, state.points[g]
    else:
        means = {name: mean(name, old[name]) for name in group.variables}
        first = {n: jnp.where(visits == 0, problem.start[n], means[n]) for n in means if n in problem.started}
        points, stored = _refresh(options, state, g, {**means, **first}, old)
        linear = _linearise(problem, g, points)
    variance, restless = state.noise[g], None
    heard = group.spread_of(problem.held, linear)
    if variance is not None and group.noise_prior is not None:
        weight = jnp.max(jnp.stack(options.damping[g]))
        before = variance
        variance = learn_noise(group, linear, seen, reactions, points, heard, variance, weight)
        restless = jnp.abs(jnp.log(variance / before)) / (1 - weight)  # undamped, like the change of a belief
        group = group.with_noise(variance)
    if means is not None:
        measured = group.measure(_every_factor(group, group.y - linear.value))
    scale = measured.scale if measured is not None else group.weights()
    proposals = propose(group, linear, seen, reactions, points, group.y - linear.value, scale, heard)

    key, lots = _draw_lots(group, state.key) if options.dropping else (state.key, [])
    messages, proposed = [], []
    for s, (slot, proposal) in enumerate(zip(group.slots, proposals)):
        first = visits == 0  # the first message is taken whole
        weight = jnp.where(first, 0, options.damping[g][s])
        if isinstance(proposal, Pooled):
            # Of a sum over many edges, those that keep their old message keep their share.
            weight = weight + jnp.where(first, 0, (1 - weight) * options.dropout[g][s])
            mixed = _mix_pooled(state.messages[g][s], proposal, weight.astype(own[s].dtype))
            messages.append(mixed)
            proposed.append(proposal.message)
            continue
        after, weight = proposal, weight.astype(proposal.dtype)
        before = state.messages[g][s].on_edges(slot.edges)
        if options.damped:
            after = before.mix(after, weight)
        if options.dropping:  # one mask for all natural parameters of an edge
            after = before.where((lots[s] < options.dropout[g][s]) & ~first, after)
        packed = Messages.pack(slot.edges, after)
        messages.append(packed)
        # The undamped proposal, pooled. Pooling is linear, so damping can be undone on the units, which are fewer.
        if options.dropping:
            proposed.append(jax.tree.map(slot.edges.pool, proposal))
        elif options.damped:
            proposed.append(_undamped(own[s], packed.on_units(slot.edges), weight))
        else:
            proposed.append(packed.on_units(slot.edges))
    state = State(
        (*state.messages[:g], tuple(messages), *state.messages[g + 1 :]),
        (*state.points[:g], stored, *state.points[g + 1 :]),
        state.visits.at[g].add(1),
        key,
        (*state.noise[:g], variance, *state.noise[g + 1 :]),
    )

    def look(means: dict[str, Array] | None = means) -> Latest:
        if means is None:
            means = {name: mean(name, old[name]) for name in group.variables}
        full = {name: _product([inbound[name], *(proposed[s] for s in same[name])]) for name in group.variables}
        changes = [change(old[n], means[n], full[n], mean(n, full[n])) for n in group.variables]
        worst = jnp.max(jnp.stack(changes if restless is None else [*changes, restless]))
        if frozen is None and stored is not None and isinstance(options.relinearise, int):
            # Between two linearisations messages come to rest that the next one will move again.
            fresh = visits % options.relinearise == 0
            worst = jnp.where(fresh, worst, jnp.maximum(worst, latest.residual[g]))
        result = measured
        if result is None:
            result = group.measure(_every_factor(group, group.y - _linearise(problem, g, means).value))
        prior = latest.prior
        for i, name in enumerate(problem.prior):
            if name in group.variables and problem.touching(name)[0][0] == g:
                prior = prior.at[i].set(prior_energy(problem.prior[name], means[name]))
        return latest._replace(
            residual=latest.residual.at[g].set(jnp.where(jnp.isnan(worst), jnp.inf, worst)),  # NaN cannot hide
            energy=latest.energy.at[g].set(result.energy),
            switched=latest.switched.at[g].set(result.switched),
            prior=prior,
        )

    if watch is not None:
        latest = lax.cond(watch, look, lambda: latest)
    if fixed_order(problem, options) is not None:
        return state, latest
    moved = {}
    for name in group.variables:
        new = _product([inbound[name], *(pooled(problem, state, g, s) for s in same[name])])
        moved[name] = change(old[name], mean(name, old[name]), new, mean(name, new))
    # What damping held back is still to come; neighbours have news as far as shared variables moved.
    kept_back = jnp.max(jnp.stack(options.damping[g]))
    priority = latest.priority.at[g].set(kept_back * latest.residual[g])
    for other, neighbour in enumerate(problem.groups):
        shared = [moved[name] for name in neighbour.variables if name in moved]
        if other != g and shared:
            priority = priority.at[other].add(jnp.max(jnp.stack(shared)))
    return state, latest._replace(priority=priority)


def _every_factor(group: Group, residual: Array) -> Array:
    return jnp.broadcast_to(residual, (group.factors, group.outputs))


def fixed_order(problem: Problem, options: Options) -> tuple[int, ...] | None:
    """The groups of one iteration, or None if the schedule picks them one by one."""
    order = options.schedule.order(tuple(group.name for group in problem.groups))
    return None if order is None else tuple(g for g in order if problem.groups[g].slots)


def iterate(problem: Problem, state: State, options: Options, latest: Latest, watch: Array) -> tuple[State, Latest]:
    """One full schedule."""
    order = fixed_order(problem, options)
    if order is not None:
        for i, g in enumerate(order):
            # What an earlier visit sees would be overwritten, unless it is the one that linearises.
            last = g not in order[i + 1 :] or options.relinearise != 1
            state, latest = visit(problem, state, options, latest, g, watch if last else None)
        return state, latest
    active, watch = problem.active(), jnp.asarray(True)  # what is picked next depends on what is seen

    def picked(_, carry: tuple[State, Latest]) -> tuple[State, Latest]:
        state, latest = carry
        key, draw = jax.random.split(state.key)
        state = eqx.tree_at(lambda s: s.key, state, key)
        chosen = options.schedule.pick(draw, latest.priority[jnp.asarray(active)])
        branches = [lambda s, n, g=g: visit(problem, s, options, n, g, watch) for g in active]
        return lax.switch(chosen, branches, state, latest)

    state, latest = lax.fori_loop(0, len(active), picked, (state, latest))
    # A group that was not visited since its variables moved has that much news, whatever it said last time.
    waiting = jnp.where(jnp.asarray([bool(g.slots) for g in problem.groups]), latest.priority, 0)
    return state, latest._replace(residual=jnp.maximum(latest.residual, waiting))


def nothing_seen(problem: Problem) -> Latest:
    """Before the first visit: every residual is infinite."""
    dtype = next(iter(problem.prior.values())).dtype if problem.prior else jnp.result_type(float)
    # Made by NumPy: outside of compiled code JAX would compile every operation for itself.
    zeros, infinite = np.zeros(len(problem.groups), dtype), np.full(len(problem.groups), np.inf, dtype)
    residual = np.where([bool(g.slots) for g in problem.groups], infinite, 0).astype(dtype)
    return Latest(*map(jnp.asarray, (residual, zeros, zeros, np.zeros(len(problem.prior), dtype), infinite)))


def _run(
    problem: Problem, state: State, options: Options, latest: Latest, limit: Array, tolerance: Array
) -> tuple[State, Latest, Latest, Array]:
    """Up to `limit <= CHUNK` iterations, fewer if all residuals fall to `tolerance` or an energy is not finite.

    Residuals and energies are looked at every `options.every` iterations, and at the last.

    **Returns:** state, what was seen last, the same for each iteration, the number of iterations.
    """
    trace = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), latest)

    def going(carry) -> Array:
        _, latest, _, i = carry
        busy = (jnp.max(latest.residual) > tolerance) & ((i == 0) | jnp.isfinite(latest.total()))
        return (i < limit) & busy

    def body(carry):
        state, latest, trace, i = carry
        watch = (i % options.every == 0) | (i == limit - 1)
        state, latest = iterate(problem, state, options, latest, watch)
        return state, latest, jax.tree.map(lambda t, x: t.at[i].set(x), trace, latest), i + 1

    return lax.while_loop(going, body, (state, latest, trace, jnp.zeros((), jnp.int32)))


run = jax.jit(_run)
# The same with the buffers of the state given away: for callers that keep no other reference to it.
run_in_place = partial(jax.jit, donate_argnums=(1,))(_run)
