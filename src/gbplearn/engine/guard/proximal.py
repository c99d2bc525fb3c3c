"""Proximal steps: the calculations on a whole graph that the guard makes its decisions from."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core import linalg
from ...core.compiling import is_small, lean_jit
from ...core.gaussian import POINT, Gaussian
from ...core.linalg import add_all
from ...factors.likelihood import Expanded, Likelihood
from ...factors.measurement import Linear
from ...factors.operators import Operator
from ...graph.group import Group, Slot, linearise
from ...graph.problem import Problem
from ..prediction import held_spread
from ..state import Messages, State, all_means

Values = dict[str, Array]


def inner(a: Values, b: Values) -> Array:
    """Inner product over all variables."""
    return add_all([jnp.vdot(a[k], b[k]) for k in a])


def free(problem: Problem, x: Values) -> Values:
    """Zero for observed units: they do not move."""
    out = {}
    for name, prior in problem.prior.items():
        out[name] = jnp.where(prior.precisions >= POINT / 2, 0, x[name])
    return out


def _prior_pull(problem: Problem, x: Values) -> Values:
    """Gradient of the priors' energies."""
    out = {}
    for name, p in problem.prior.items():
        out[name] = p.information(x[name]) - p.eta
    return out


def _weighted(group: Group, residual: Array, scale: Array | None) -> Array:
    """`k Sy^-1 residual`."""
    if group.noise.ndim == 2:
        out = residual / group.noise
    else:
        noise = jnp.broadcast_to(group.noise, (residual.shape[0], *group.noise.shape[1:]))
        out = linalg.spd_solve(noise, residual[..., None])[..., 0]
    return out if scale is None else scale * out


def _scales(problem: Problem, x: Values) -> list[Array | None]:
    full = {**x, **problem.fixed}
    return [g.measure(g.y - g.value(full)).scale for g in problem.groups]


def _model_energy(problem: Problem, x: Values, scales: list[Array | None]) -> Array:
    """Energy with the robust scales held: what messages descend on."""
    full = {**x, **problem.fixed}
    total = jnp.zeros((), next(iter(x.values())).dtype)
    for group, scale in zip(problem.groups, scales):
        r = group.y - group.value(full)
        if isinstance(group.measurement, Likelihood):
            total = total + group.measure(r).energy
        else:
            total = total + 0.5 * jnp.sum(r * _weighted(group, r, scale))
    _, priors = problem.energies(x)
    return add_all([total, *priors.values()])


@lean_jit
def descent(problem: Problem, x: Values) -> Values:
    """Minus the gradient of the energy with the robust scales held."""
    full = {**x, **problem.fixed}
    out = jax.tree.map(jnp.negative, _prior_pull(problem, x))
    for group, scale in zip(problem.groups, _scales(problem, x)):
        value, back = jax.vjp(lambda v, g=group: g.value({**full, **v}), x)
        if isinstance(group.measurement, Likelihood):
            (pull,) = back(jax.grad(lambda h, g=group: -g.measure(g.y - h).energy)(value))
        else:
            (pull,) = back(_weighted(group, group.y - value, scale))
        out = jax.tree.map(jnp.add, out, pull)
    return free(problem, out)


@lean_jit
def curvature(problem: Problem, x: Values, d: Values) -> Array:
    """`d' H d` with the Gauss-Newton Hessian at `x`."""
    full = {**x, **problem.fixed}
    parts = []
    for group, scale in zip(problem.groups, _scales(problem, x)):
        if isinstance(group.measurement, Likelihood):
            operators = group.operators(group.linearise(full))
            moves = [j.times(d[s.variable]) for s, j in zip(group.slots, operators)]
            along = add_all([jnp.zeros_like(group.y), *moves])
        else:
            _, along = jax.jvp(lambda v, g=group: g.value({**full, **v}), (x,), (d,))
        parts.append(jnp.sum(along * _weighted(group, along, scale)))
    for name, p in problem.prior.items():
        flat = jnp.where(jnp.abs(d[name]) > 0, d[name], 0)
        along = p.information(flat)
        parts.append(jnp.vdot(flat, along))
    return add_all(parts)


@lean_jit
def compare(problem: Problem, x: Values, y: Values) -> tuple[Array, Array]:
    """Model energies at `x` and at `y`, with the robust scales of `x`."""
    scales = _scales(problem, x)
    return _model_energy(problem, x, scales), _model_energy(problem, y, scales)


@lean_jit
def total_energy(problem: Problem, x: Values) -> Array:
    """Energy of all groups and priors."""
    groups, priors = problem.energies(x)
    return add_all([*groups, *priors.values()])


@lean_jit
def step_problem(problem: Problem, centre: Values, weight: Array) -> Problem:
    """The graph linearised at `centre`, about the step from there, with proximal factors `N(0, (weight D)^-1)`.

    `D` is the precision that each variable would have if the others were known, `lam_prior + sum J' Sy^-1 J`: belief
    precisions are at most that, and come close where data are plenty; but those of messages that have diverged can be
    anything.
    """
    groups, frozen, prior = [], [], {}
    load = {name: _unobserved(p, p.lam) for name, p in problem.prior.items()}
    full = {**centre, **problem.fixed}
    for group in problem.groups:
        linear = group.linearise(full) if group.slots else Linear(group.value(full), ())
        residual = group.y - linear.value
        scale, noise = group.measure(residual).scale, group.noise
        if scale is not None:
            least = jnp.finfo(noise.dtype).tiny ** 0.25  # a factor that is switched off has huge noise instead
            noise = noise / jnp.maximum(scale if noise.ndim == 2 else scale[:, :1, None], least)
        kind = Expanded() if isinstance(group.measurement, Likelihood) else group.measurement
        as_gaussian = dataclasses.replace(group, y=residual, noise=noise, white=None, weight=None, robust=None)
        groups.append(dataclasses.replace(as_gaussian, measurement=kind))
        for slot, j in zip(group.slots, group.operators(linear)):
            pooled = _own_precision(groups[-1], slot, j)
            load[slot.variable] = load[slot.variable] + _unobserved(problem.prior[slot.variable], pooled)
        frozen.append(Linear(jnp.zeros_like(linear.value), linear.jacobians))
    for name, p in problem.prior.items():
        eta = p.information(centre[name])
        prior[name] = Gaussian(p.eta - eta, p.lam + weight * load[name])
    start = jax.tree.map(jnp.zeros_like, problem.start)
    return Problem(
        tuple(groups), tuple(frozen), prior, start, problem.fixed, {}, {}, problem.proper, frozenset(), frozenset(),
        kernels=problem.kernels,
    )  # fmt: skip


@lean_jit
def with_settled_noise(problem: Problem, state: State, x: Values) -> Problem:
    """The problem with the noise learnt so far, and with the uncertainty of held variables (at `x`) as noise.

    Proximal steps descend on one energy; it must not change under them.
    """
    problem = problem.with_learnt_noise(state.noise)
    full, groups = {**x, **problem.fixed}, []
    for group in problem.groups:
        spread = held_spread(group, problem.held, group.linearise(full)) if group.held else None
        if spread is not None:
            noise = spread + (group.noise if group.scalar else group.covariance())
            group = dataclasses.replace(group, noise=noise, white=None)
        groups.append(group)
    return dataclasses.replace(problem, groups=tuple(groups), held={})


def _own_precision(group: Group, slot: Slot, operator: Operator) -> Array:
    """`sum J' Sy^-1 J` over the factors of a group, for each unit."""
    if group.scalar:
        return operator.squared().back(jnp.broadcast_to(1 / group.noise, (group.factors, 1)))
    j = operator.each()
    covariance = jnp.broadcast_to(group.covariance()[:, None], (*j.shape[:2], *group.covariance().shape[1:]))
    out = linalg.transpose(j) @ linalg.spd_solve(covariance, j)
    out = slot.family.from_matrices(out)
    return slot.edges.pool(jnp.broadcast_to(out, (group.factors, *out.shape[1:])))


def _unobserved(prior: Gaussian, lam: Array) -> Array:
    """Precisions, those of observed units set to zero."""
    return jnp.where(prior.family.over_precisions(prior.observed), 0, lam)


@lean_jit
def recentre(problem: Problem, state: State, x: Values) -> State:
    """The same precisions with every message's mean at `x`."""
    groups = []
    for group, row in zip(problem.groups, state.messages):
        new = []
        for slot, m in zip(group.slots, row):
            if m.along is not None:
                at_x = m.along.lam * (m.along.rows @ x[slot.variable].T)
                new.append(Messages(None, None, along=m.along._replace(eta=at_x, mean=x[slot.variable])))
                continue
            if slot.pooled:
                assert m.summed is not None
                at_x = Gaussian(m.summed.lam * x[slot.variable], m.summed.lam)
                new.append(Messages(None, at_x, jax.tree.map(jnp.zeros_like, m.reaction)))
                continue
            each = m.on_edges(slot.edges)
            at = jnp.broadcast_to(slot.edges.spread(x[slot.variable]), each.eta.shape)
            eta = each.information(at)
            new.append(Messages.pack(slot.edges, Gaussian(eta, each.lam)))
        groups.append(tuple(new))
    return dataclasses.replace(state, messages=tuple(groups))


current_means = lean_jit(all_means)


class Candidate(NamedTuple):
    """Means to start from again, their energy, and messages with their means there."""

    values: Values
    energy: Array
    centred: State


@lean_jit
def candidate(problem: Problem, state: State, of: State) -> Candidate:
    """The means of the messages `of`, as those that the messages of `state` may be centred at."""
    values = all_means(problem, of)
    groups, priors = problem.energies(values)
    return Candidate(values, add_all([*groups, *priors.values()]), recentre(problem, state, values))


def broken_group(problem: Problem, x: Values) -> int | None:
    """The first group whose `h` or Jacobian is not finite at `x`."""
    full = {**x, **problem.fixed}
    return next((g for g in problem.active() if not finite(linearise(problem.groups[g], full))), None)


@lean_jit
def at_rest(down: Values, step: Values) -> Array:
    """Whether a step's descent is no more than the rounding of its own sum."""
    size = add_all([jnp.sum(jnp.abs(down[k] * step[k])) for k in down])
    return jnp.abs(inner(down, step)) <= 4 * jnp.finfo(size.dtype).eps * size


@lean_jit
def conjugate(step: Values, memory: list[tuple[Values, Values]]) -> Values:
    """The step made conjugate to earlier directions `d`, kept with `H d`."""
    for direction, bend in memory:
        share = inner(step, bend) / inner(direction, bend)
        share = jnp.where(jnp.isfinite(share), share, 0)
        step = jax.tree.map(lambda s, d, a=share: s - a * d, step, direction)
    return step


def finite(tree: Any) -> bool:
    """Whether every number of a pytree is finite."""
    leaves = jax.tree.leaves(tree)
    if is_small(leaves):  # nothing to compile
        return all(np.isfinite(x).all() for x in leaves)
    return bool(_finite(leaves))


@lean_jit
def _finite(leaves: list[Array]) -> Array:
    return jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in leaves]))
