"""A sweep over a forest: all messages from the leaves to the roots and back, each of them once.

One sweep is one iteration of `gbp.TreeOrder()`. All groups are linearised at the current means `x0` first; the rest is
about the *step* from there, so that float32 holds means that are many standard deviations away from 0:

1. Factors of one unit send their messages, which with the priors are all that is known *locally* of a unit; and with
   the messages of factors outside of the forest.
2. Up, from the leaves: each joint takes the cavities of its children, complete by then, and sends a message to its
   parent.
3. Down, from the roots: the cavity of the parent is what is known locally, the messages of the other joints below it
   (multiplied up without the joint's own, never divided out) and the one from above.

The messages of a linear forest are then at their fixed point. How far the means moved tells how much rounding may have
moved them, too: where it is more than a fraction of a standard deviation, a second sweep from the means of the first
takes it back. Nonlinear and robust factors are linearised anew in the next iteration instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..core import linalg
from ..core.gaussian import Gaussian
from ..core.linalg import add_all
from ..graph.group import Group
from ..graph.problem import Problem
from .elimination import Side, message_to, scalar_message_to_first, scalar_messages_to_all
from .linearisation import AfterVisit, linearisation_points
from .options import Options
from .prediction import held_spread
from .state import Messages, State, all_means, belief
from .tree import Cohort, TreePlan, dimension, is_linear, joins, unit_pools, units_of

# Sweeps of a linear forest at most, and the largest step (in standard deviations) after which it needs no other.
_MOST_SWEEPS, _SMALL_STEP = 3, 0.05

Values = dict[str, Array]
AllMessages = tuple[tuple[Messages, ...], ...]  # of each group, of each slot
Pools = dict[int, Gaussian]  # by dimension: of all units of it, in block form


class Rows(NamedTuple):
    """The measurements of a group, linearised at the means, their noise independent."""

    jacobians: tuple[Array, ...]  # of each slot (F, n, M, d)
    residual: Array  # (F, M): y - h
    weight: Array  # (F, M): precision of the noise


def sweep(problem: Problem, state: State, options: Options, plan: TreePlan) -> State:
    """The state after a sweep, undamped.

    **Arguments:** `plan`: of this problem (`tree.tree_plan`).
    """
    names = problem.prior
    beliefs = {n: belief(problem, state, n) for n in names}
    x0 = all_means(problem, state)
    unvisited = jnp.all(state.visits == 0)
    x0 = {n: jnp.where(unvisited, problem.start[n], x) if n in problem.started else x for n, x in x0.items()}
    active = [g for g in problem.active() if g in plan.message or not joins(problem.groups[g])]
    outside = _from_outside(problem, state, plan)
    stored = list(state.points)
    fixed_rows: dict[int, Rows] = {}
    for g in active:
        group = _with_learnt_noise(problem, state, g)
        if not is_linear(problem, g):
            points = {n: x0[n] for n in group.variables}
            if state.points[g] is not None:
                old = {n: beliefs[n] for n in group.variables}
                local, own = problem.local(g), state.own(g)
                points, stored[g] = linearisation_points(local, options.relinearise, own, points, old)
            fixed_rows[g] = _rows_at(problem, group, g, points, x0)

    def once(x: Values) -> tuple[AllMessages, Values, Array]:
        """All messages, the step that they make up, and its length in standard deviations."""
        rows = dict(fixed_rows)
        for g in active:
            if g not in rows:
                rows[g] = _rows_at(problem, problem.groups[g], g, x, x)
        found, beliefs = _solve(problem, plan, rows, outside, x)
        step, length = _step(problem, beliefs)
        return _absolute(problem, state, plan, found, x), step, length

    if fixed_rows:
        messages = once(x0)[0]
    else:

        def again(carry: tuple[Array, Values, Values, Array, AllMessages]):
            count, x, step, _, _ = carry
            x = jax.tree.map(jnp.add, x, step)
            messages, step, length = once(x)
            return count + 1, x, step, length, messages

        def going(carry: tuple[Array, Values, Values, Array, AllMessages]) -> Array:
            count, _, _, length, _ = carry
            return (count == 0) | ((count < _MOST_SWEEPS) & (length > _SMALL_STEP))

        nowhere, length = jax.tree.map(jnp.zeros_like, x0), jnp.zeros((), next(iter(x0.values())).dtype)
        messages = lax.while_loop(going, again, (jnp.zeros((), jnp.int32), x0, nowhere, length, state.messages))[-1]
    visited = jnp.asarray([int(g in active) for g in range(len(problem.groups))], state.visits.dtype)
    after = dataclasses.replace(state, messages=messages, points=tuple(stored), visits=state.visits + visited)
    if isinstance(options.relinearise, AfterVisit):
        means = all_means(problem, after)
        kept = tuple(p if p is None or g not in active else {n: means[n] for n in p} for g, p in enumerate(stored))
        after = dataclasses.replace(after, points=kept)
    return after


def _with_learnt_noise(problem: Problem, state: State, g: int) -> Group:
    group, variance = problem.groups[g], state.noise[g]
    return group if variance is None or group.noise_prior is None else group.with_noise(variance)


def _rows_at(problem: Problem, group: Group, g: int, points: Values, x0: Values) -> Rows:
    """A group linearised at its points, as measurements of the step from `x0`."""
    linear = problem.local(g).linearise({n: points[n] for n in group.variables})
    operators = group.operators(linear)
    at_points = group.every_factor(group.y - linear.value)
    scale = group.weights() if group.robust is None else group.measure(at_points).scale
    residual = at_points
    moved = [n for n in group.variables if points[n] is not x0[n]]
    if moved:
        moves = [
            j.times(x0[s.variable] - points[s.variable]) for s, j in zip(group.slots, operators) if s.variable in moved
        ]
        residual = residual - add_all(moves)
    f, m = group.factors, group.outputs
    jacobians = []
    for operator in operators[: len(group.slots)]:
        j = operator.each()
        j = j.reshape(*j.shape, 1, 1) if j.ndim == 2 else j
        jacobians.append(jnp.broadcast_to(j, (f, *j.shape[1:])))
    spread = held_spread(group, problem.held, linear)
    if group.noise.ndim == 2 and (spread is None or m == 1):
        variance = jnp.broadcast_to(group.noise, (f, m))
        k = jnp.ones_like(variance) if scale is None else scale
        if spread is not None:  # the robust scale belongs to the noise alone
            variance = variance + k * spread.reshape(f, 1)
        return Rows(tuple(jacobians), residual, k / variance)
    covariance = jnp.broadcast_to(group.covariance(), (f, m, m))
    root = jnp.ones((f, m), covariance.dtype) if scale is None else jnp.sqrt(scale)
    if spread is not None:
        covariance = covariance + spread * root[:, :, None] * root[:, None, :]
    factor, unit, _ = linalg.scaled_cholesky(covariance)

    def whiten(x: Array) -> Array:  # (F, M, k)
        return linalg.triangular_solve(factor, x * (unit * root)[..., None])

    white = []
    for j in jacobians:
        flat = jnp.moveaxis(j, 1, 2)  # (F, M, n, d)
        white.append(jnp.moveaxis(whiten(flat.reshape(f, m, -1)).reshape(flat.shape), 2, 1))
    return Rows(tuple(white), whiten(residual[..., None])[..., 0], jnp.ones((f, m), residual.dtype))


def _solve(
    problem: Problem, plan: TreePlan, rows: dict[int, Rows], outside: dict[str, list[Gaussian]], x: Values
) -> tuple[dict[int, tuple[Gaussian, ...]], Pools]:
    """All messages about the step, of each group slot by slot in block form `(F, n, d)`; and the beliefs."""
    local, found = _local(problem, rows, outside, x)
    lanes = [_gather(problem, c, rows) for c in plan.cohorts]
    up, known = _upwards(plan, lanes, local)
    down, above = _downwards(plan, lanes, _without_own(plan, up, local), known)
    joined: dict[int, list[Gaussian]] = {}
    for cohort, one, others in zip(plan.cohorts, up, down):
        for d, message in zip(cohort.dims, (one, *others)):
            joined.setdefault(d, []).append(message)
    all_of = {d: _joined(parts) for d, parts in joined.items()}
    for g, places in plan.message.items():
        pools = [all_of[dimension(problem, s.variable)] for s in problem.groups[g].slots]
        found[g] = tuple(Gaussian(m.eta[at], m.lam[at]) for m, at in zip(pools, places))
    return found, {d: known[d] * above[d] for d in known}


def _joined(parts: list[Gaussian]) -> Gaussian:
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a), *parts)


def _from_outside(problem: Problem, state: State, plan: TreePlan) -> dict[str, list[Gaussian]]:
    """Of each variable the messages of factors that are not in the forest, multiplied on the units."""
    out: dict[str, list[Gaussian]] = {}
    for g in plan.outside:
        for slot, messages in zip(problem.groups[g].slots, state.messages[g]):
            found = messages.on_units(slot.edges)
            if g in plan.inside:
                each = messages.on_edges(slot.edges)
                there = plan.inside[g].reshape(-1, *[1] * (len(each.unit_shape) - 1))
                found = jax.tree.map(slot.edges.pool, each.flat_units(each.unit_shape).where(there, each))
            out.setdefault(slot.variable, []).append(found)
    return out


def _local(
    problem: Problem, rows: dict[int, Rows], outside: dict[str, list[Gaussian]], x: Values
) -> tuple[Pools, dict[int, tuple[Gaussian, ...]]]:
    """Priors, messages from outside and messages of factors of one unit, multiplied; and the latter."""
    parts: dict[str, list[Gaussian]] = {}
    for name, prior in problem.prior.items():
        d, parts[name] = dimension(problem, name), []
        for known in (prior, *outside.get(name, ())):
            shift = known.eta - linalg.information(known.lam, x[name])
            parts[name].append(Gaussian(shift.reshape(-1, d), known.lam.reshape(-1, d, d)))
    alone = {}
    for g, row in rows.items():
        group = problem.groups[g]
        if joins(group):
            continue
        (slot,), (j,) = group.slots, row.jacobians
        weighted = row.weight[:, None, :, None] * j  # (F, 1, M, d)
        lam = add_all([weighted[:, :, m, :, None] * j[:, :, m, None, :] for m in range(group.outputs)])
        eta = add_all([weighted[:, :, m] * row.residual[:, None, m, None] for m in range(group.outputs)])
        d = eta.shape[-1]
        pooled = slot.edges.pool(eta).reshape(-1, d), slot.edges.pool(lam).reshape(-1, d, d)
        parts[slot.variable].append(Gaussian(*pooled))
        alone[g] = (Gaussian(eta, lam),)
    whole = {n: jax.tree.map(lambda *a: add_all([*a]), *p) for n, p in parts.items()}
    return {d: _joined([whole[n] for n in names]) for d, names in unit_pools(problem).items()}, alone


class _Lanes(NamedTuple):
    """What a cohort takes of its group, at its places, which lie along the last axis."""

    jacobians: tuple[Array, ...]  # of each edge, from the parent on (M, d, P)
    residual: Array  # (M, P)
    weight: Array  # (M, P); 0 where there is no factor


def _gather(problem: Problem, cohort: Cohort, rows: dict[int, Rows]) -> _Lanes:
    by_dimension: dict[int, list[Array]] = {d: [] for d in cohort.dims}
    for g in cohort.groups:
        slots = problem.groups[g].slots
        for d, parts in by_dimension.items():
            parts.append(
                _in_a_row([j for j, s in zip(rows[g].jacobians, slots) if dimension(problem, s.variable) == d], 1)
            )
    whole = {d: _in_a_row(parts, 0) for d, parts in by_dimension.items()}
    jacobians = [jnp.moveaxis(whole[d][cohort.row, p], 0, -1) for d, p in zip(cohort.dims, cohort.position.T)]
    residual, weight = (_in_a_row([getattr(rows[g], of) for g in cohort.groups], 0) for of in ("residual", "weight"))
    there = cohort.there.astype(weight.dtype)
    return _Lanes(tuple(jacobians), residual[cohort.row].T, weight[cohort.row].T * there)


def _in_a_row(parts: list[Array], axis: int) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


class _Last(NamedTuple):
    """Gaussians in block form, with what there are many of along the last axis: `eta (d, W)`, `lam (d, d, W)`."""

    eta: Array
    lam: Array

    @classmethod
    def of(cls, g: Gaussian) -> _Last:
        """From `(W, d)`."""
        return cls(g.eta.T, jnp.moveaxis(g.lam, 0, -1))

    def rows(self) -> Gaussian:
        """Back to `(W, d)`."""
        return Gaussian(self.eta.T, jnp.moveaxis(self.lam, -1, 0))

    def times(self, other: _Last) -> _Last:
        """The product."""
        return _Last(self.eta + other.eta, self.lam + other.lam)


def _is_scalar(cohort: Cohort, lanes: _Lanes) -> bool:
    return lanes.residual.shape[0] == 1 and set(cohort.dims) == {1}


def _message_up(cohort: Cohort, lanes: _Lanes, children: list[_Last]) -> _Last:
    """The message to the parent, from the cavities of the children."""
    if not _is_scalar(cohort, lanes):
        others = [Side(j, *c) for j, c in zip(lanes.jacobians[1:], children)]
        return _Last(*message_to(lanes.jacobians[0], lanes.residual, lanes.weight, others))
    return _scalar_message(lanes, lanes.jacobians, children)


def _scalar_message(lanes: _Lanes, jacobians: Sequence[Array], others: list[_Last]) -> _Last:
    """The message to the first of some scalars."""
    j, eta = jnp.concatenate([a[0] for a in jacobians]), jnp.concatenate([c.eta for c in others])
    lam = jnp.concatenate([c.lam[0] for c in others])
    eta, lam = scalar_message_to_first(j, lanes.residual[0], lanes.weight[0], eta, lam)
    return _Last(eta[None], lam[None, None])


def _messages_down(cohort: Cohort, lanes: _Lanes, parent: _Last, children: list[_Last]) -> list[_Last]:
    """The messages to all children, from the cavities of the parent and of the children.

    **Arguments:** `children`: not used, and may be empty, where there is only one.
    """
    count = len(cohort.dims) - 1
    if _is_scalar(cohort, lanes):
        if count == 1:
            return [_scalar_message(lanes, lanes.jacobians[::-1], [parent])]
        j = jnp.concatenate([a[0] for a in lanes.jacobians])
        eta = jnp.concatenate([c.eta for c in (parent, *children)])
        lam = jnp.concatenate([c.lam[0] for c in (parent, *children)])
        etas, lams = scalar_messages_to_all(j, lanes.residual[0], lanes.weight[0], eta, lam)
        return [_Last(etas[i : i + 1], lams[None, i : i + 1]) for i in range(1, count + 1)]
    out: dict[int, _Last] = {}
    sides = [Side(j, *c) for j, c in zip(lanes.jacobians, (parent, *children))]
    for d in set(cohort.dims[1:]):
        # Children of one dimension at once: without one of them, the others have the same dimensions in a row.
        targets = [i for i in range(1, count + 1) if cohort.dims[i] == d]
        left = [[k for k in range(count + 1) if k != i] for i in targets]
        others = [Side(*(jnp.stack(a, -2) for a in zip(*(sides[k] for k in same)))) for same in zip(*left)]
        to = jnp.stack([lanes.jacobians[i] for i in targets], -2)
        residual, weight = (jnp.stack([a] * len(targets), -2) for a in (lanes.residual, lanes.weight))
        eta, lam = message_to(to, residual, weight, others)
        out |= {i: _Last(eta[..., k, :], lam[..., k, :]) for k, i in enumerate(targets)}
    return [out[i] for i in range(1, count + 1)]


class _Stretch(NamedTuple):
    """The places of a run: of each cohort that has any."""

    cohort: int
    first: int
    levels: int
    width: int

    def cut(self, x: Array) -> Array:
        """From places along the last axis to levels along the first, lanes along the last."""
        mine = x[..., self.first : self.first + self.levels * self.width]
        return jnp.moveaxis(mine.reshape(*x.shape[:-1], self.levels, self.width), -2, 0)


def _stretches(plan: TreePlan) -> list[list[_Stretch]]:
    """Of each run."""
    out, at = [], [0] * len(plan.cohorts)
    for run in plan.runs:
        out.append([_Stretch(c, at[c], run.levels, w) for c, w in enumerate(run.widths) if w])
        at = [a + run.levels * w for a, w in zip(at, run.widths)]
    return out


def _in_places(ys: Any) -> Any:
    """From levels and lanes `(L, ..., W)` to places along the last axis."""
    return jax.tree.map(lambda y: jnp.moveaxis(y, 0, -2).reshape(*y.shape[1:-1], -1), ys)


def _over_levels(body: Any, carry: Any, xs: Any, levels: int, reverse: bool) -> tuple[Any, Any]:
    """`lax.scan`; of one level without a loop."""
    if levels > 1:
        return lax.scan(body, carry, xs, reverse=reverse)
    carry, y = body(carry, jax.tree.map(lambda x: x[0], xs))
    return carry, jax.tree.map(lambda a: a[None], y)


def _added(pool: Gaussian, unit: Array, message: _Last) -> Gaussian:
    """Messages multiplied to what is known of some units."""
    rows = message.rows()
    return Gaussian(pool.eta.at[unit].add(rows.eta), pool.lam.at[unit].add(rows.lam))


def _at(pool: Gaussian, unit: Array) -> _Last:
    return _Last.of(Gaussian(pool.eta[unit], pool.lam[unit]))


def _upwards(plan: TreePlan, lanes: list[_Lanes], local: Pools) -> tuple[list[Gaussian], Pools]:
    """From the leaves: of each cohort its messages to the parents; and what is known of all units from below."""
    known, pieces = dict(local), [[] for _ in plan.cohorts]
    for run, stretches in reversed([*zip(plan.runs, _stretches(plan))]):
        cohorts = [plan.cohorts[s.cohort] for s in stretches]
        units = [s.cut(c.unit.T) for s, c in zip(stretches, cohorts)]  # (L, n, W)
        inputs = [jax.tree.map(s.cut, lanes[s.cohort]) for s in stretches]
        if run.straight:
            (cohort,), (unit,), (mine,), d = cohorts, units, inputs, cohorts[0].dims[0]
            below = jax.vmap(lambda u, pool=known[d]: _at(pool, u))(unit[:, 1])

            def body(message: _Last, x: tuple[_Lanes, _Last], cohort: Cohort = cohort) -> tuple[_Last, _Last]:
                message = _message_up(cohort, x[0], [x[1].times(message)])
                return message, message

            nothing = jax.tree.map(lambda a: jnp.zeros_like(a[0]), below)
            ys = [_over_levels(body, nothing, (mine, below), run.levels, True)[1]]
            known[d] = _added(known[d], _in_places(unit[:, 0]), _in_places(ys[0]))
        else:

            def level(known: Pools, x: Any, cohorts: list[Cohort] = cohorts) -> tuple[Pools, list[_Last]]:
                messages = []
                for cohort, unit, mine in zip(cohorts, *x):
                    children = [_at(known[d], u) for d, u in zip(cohort.dims[1:], unit[1:])]
                    messages.append(_message_up(cohort, mine, children))
                after = dict(known)
                for cohort, unit, message in zip(cohorts, x[0], messages):
                    d = cohort.dims[0]
                    after[d] = _added(after[d], unit[0], message)
                return after, messages

            known, ys = _over_levels(level, known, (units, inputs), run.levels, True)
        for stretch, y in zip(stretches, ys):
            pieces[stretch.cohort].insert(0, _in_places(y).rows())
    return [_joined(p) for p in pieces], known


def _without_own(plan: TreePlan, up: list[Gaussian], local: Pools) -> list[_Last]:
    """At each place, what is known of the parent from below, but for the message of the joint itself."""
    beside: dict[int, Gaussian] = {}
    for d, edges in plan.parents.items():
        mine = _joined([m for m, c in zip(up, plan.cohorts) if c.dims[0] == d])
        place, joint = plan.place[d][:, None], plan.joint[d]
        # Places without a factor take anything.
        beside[d] = jax.tree.map(
            lambda a, e=edges, p=place, j=joint: jnp.take(e.others(a[p])[:, 0], j, 0, mode="clip"), mine
        )
    out, at = [], dict.fromkeys(plan.parents, 0)
    for cohort, message in zip(plan.cohorts, up):
        d, count = cohort.dims[0], message.eta.shape[0]
        mine = jax.tree.map(lambda a, i=at[d], n=count: a[i : i + n], beside[d])
        unit, at[d] = cohort.unit[:, 0], at[d] + count
        out.append(_Last.of(mine * Gaussian(local[d].eta[unit], local[d].lam[unit])))
    return out


def _downwards(
    plan: TreePlan, lanes: list[_Lanes], beside: list[_Last], known: Pools
) -> tuple[list[list[Gaussian]], Pools]:
    """From the roots: of each cohort its messages to each child; and of all units the message from above.

    **Arguments:** `beside`: of `_without_own`; `known`: of `_upwards`.
    """
    above = {d: jax.tree.map(jnp.zeros_like, pool) for d, pool in known.items()}
    pieces = [[[] for _ in c.dims[1:]] for c in plan.cohorts]
    for run, stretches in zip(plan.runs, _stretches(plan)):
        cohorts = [plan.cohorts[s.cohort] for s in stretches]
        units = [s.cut(c.unit.T) for s, c in zip(stretches, cohorts)]
        inputs = [jax.tree.map(s.cut, (lanes[s.cohort], beside[s.cohort])) for s in stretches]
        if run.straight:
            (cohort,), (unit,), (mine,), d = cohorts, units, inputs, cohorts[0].dims[0]

            def body(message: _Last, x: tuple[_Lanes, _Last], cohort: Cohort = cohort) -> tuple[_Last, _Last]:
                (message,) = _messages_down(cohort, x[0], x[1].times(message), [])
                return message, message

            found = _over_levels(body, _at(above[d], unit[0, 0]), mine, run.levels, False)[1]
            above[d] = _added(above[d], _in_places(unit[:, 1]), _in_places(found))
            ys = [[found]]
        else:

            def level(above: Pools, x: Any, cohorts: list[Cohort] = cohorts) -> tuple[Pools, list[list[_Last]]]:
                messages = []
                for cohort, unit, (mine, rest) in zip(cohorts, *x):
                    parent = rest.times(_at(above[cohort.dims[0]], unit[0]))
                    several = zip(cohort.dims[1:], unit[1:]) if len(cohort.dims) > 2 else ()
                    children = [_at(known[d], u) for d, u in several]
                    messages.append(_messages_down(cohort, mine, parent, children))
                after = dict(above)
                for cohort, unit, sent in zip(cohorts, x[0], messages):
                    for d, u, message in zip(cohort.dims[1:], unit[1:], sent):
                        after[d] = _added(after[d], u, message)
                return after, messages

            above, ys = _over_levels(level, above, (units, inputs), run.levels, False)
        for stretch, sent in zip(stretches, ys):
            for parts, y in zip(pieces[stretch.cohort], sent):
                parts.append(_in_places(y).rows())
    return [[_joined(p) for p in parts] for parts in pieces], above


def _step(problem: Problem, beliefs: Pools) -> tuple[Values, Array]:
    """The mean of each variable's step, and the longest one in standard deviations."""
    out, lengths = {}, []
    for d, names in unit_pools(problem).items():
        eta, lam = beliefs[d].eta, beliefs[d].lam
        step = Gaussian(eta[:, 0], lam[:, 0, 0]).mean[:, None] if d == 1 else beliefs[d].mean
        lengths.append(jnp.max(linalg.quadratic(lam, step), initial=0))
        at = 0
        for name in names:
            count = units_of(problem, name)
            out[name], at = step[at : at + count].reshape(problem.prior[name].shape), at + count
    return out, jnp.sqrt(jnp.max(jnp.stack(lengths)))


def _absolute(
    problem: Problem, before: State, plan: TreePlan, found: dict[int, tuple[Gaussian, ...]], x: Values
) -> AllMessages:
    """Messages about the step from `x` as messages about the variables, as the state keeps them.

    Those of factors outside of the forest are as they were before.
    """
    out = []
    for g, group in enumerate(problem.groups):
        if group.slots and g not in found:
            out.append(before.messages[g])
            continue
        row = []
        for s, (slot, message) in enumerate(zip(group.slots, found.get(g, ()))):
            at = slot.edges.spread(x[slot.variable])
            at = jnp.broadcast_to(slot.family.as_vectors(at), message.eta.shape)
            eta = message.eta + linalg.information(message.lam, at)
            each = Gaussian(slot.family.from_vectors(eta), slot.family.from_matrices(message.lam))
            if g in plan.inside:
                there = plan.inside[g].reshape(-1, *[1] * (len(each.unit_shape) - 1))
                each = each.where(there, before.messages[g][s].on_edges(slot.edges))
            row.append(Messages.pack(slot.edges, each))
        out.append(tuple(row))
    return tuple(out)
