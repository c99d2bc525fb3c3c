"""Log evidence from converged messages: the Bethe free energy."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from . import linalg
from .compiling import lean_jit
from .gaussian import POINT, Gaussian
from .linalg import add_all
from .problem import Problem, State, belief, cavity, pooled
from .proximal import with_settled_noise


@lean_jit
def log_evidence(problem: Problem, prior: dict[str, Gaussian], state: State, means: dict[str, Array]) -> Array:
    """`log Z`, exact on trees of linear factors.

    At a fixed point of belief propagation the Bethe approximation is

        log Z = - E(means) + sum_v log |lam_prior| / |lam_belief| / 2
                - sum_f log |2 pi S_f| / 2 + sum_edges log |lam_belief| / |lam_cavity| / 2

    where `E` is the energy of all factors and priors at the belief means and `S_f` the predicted covariance of a
    factor's measurement; the determinants see only precisions. Robust factors count `exp(-rho)`, with the noise scaled
    at the means; variables held at a belief add to the noise of each factor. Flat priors count as the constant 1,
    observed variables with their prior density at the value.

    **Arguments:**

    - `prior`: the priors without evidence.
    """
    held = problem.held
    problem = with_settled_noise(problem, state, means)
    energies, priors = problem.energies(means)
    total = -add_all([*energies, *priors.values()])
    beliefs = {name: belief(problem, state, name) for name in problem.prior}
    for name, used in problem.prior.items():
        total = total + jnp.sum(_variable(used, prior[name], beliefs[name]))
    for name, value in problem.fixed.items():
        if name in held:
            continue
        total = total + jnp.sum(_at_value(prior[name], value))
    for g, group in enumerate(problem.groups):
        total = total + _group(problem, state, beliefs, means, g)
        normaliser = _log_det(group.covariance(), matrix=True) + group.outputs * jnp.log(2 * jnp.pi)
        there = 1.0 if group.weight is None else jnp.broadcast_to(group.weight, (group.factors, 1))[:, 0]
        total = total - 0.5 * jnp.sum(jnp.broadcast_to(there * normaliser, (group.factors,)))
    return total


def _log_det(lam: Array, matrix: bool) -> Array:
    if matrix:
        return linalg.log_determinant(lam)
    return jnp.log(jnp.where(lam > 0, lam, 1))


def _at_value(prior: Gaussian, value: Array) -> Array:
    """Density of an observed value under its prior; 0 where the prior is flat."""
    return jnp.where(prior.proper, prior.log_density(value), 0)


def _variable(used: Gaussian, prior: Gaussian, now: Gaussian) -> Array:
    """`log |lam_prior| / |lam_belief| / 2` of a unit, or for observed units the prior density of the value."""
    n = now.shape[-1] if now.block else 1
    largest = jnp.diagonal(used.lam, axis1=-2, axis2=-1).max(-1) if used.block else used.lam
    observed = largest >= POINT / 2
    safe = jnp.where(observed, jnp.zeros((), used.dtype), 0.5 * _log_det(used.lam, used.block))
    flat = 0.5 * n * jnp.log(2 * jnp.pi)
    start = jnp.where(used.proper, safe, flat)
    end = jnp.where(observed, 0.0, 0.5 * _log_det(now.lam, now.block))
    return jnp.where(observed, _at_value(prior, used.mean), start - end)


def _group(problem: Problem, state: State, beliefs: dict[str, Gaussian], means: dict[str, Array], g: int) -> Array:
    """`-log |S_f| / |Sy| / 2` and `log |lam_belief| / |lam_cavity| / 2` of all edges."""
    group = problem.groups[g]
    if not group.slots:
        return jnp.zeros((), group.y.dtype)
    values = {**means, **problem.fixed}
    linear = group.linearise(values)
    scale = group.measure(group.y - linear.value).scale
    noise = group.covariance()
    spread_by_noise = jnp.zeros((group.factors, group.outputs, group.outputs), noise.dtype)
    edges = jnp.zeros((), noise.dtype)
    pools = []
    for s, (slot, operator) in enumerate(zip(group.slots, group.operators(linear))):
        if slot.pooled:
            pools.append(operator.squared().times(1 / beliefs[slot.variable].lam))
            spread_by_noise = spread_by_noise + pools[-1][..., None]
            continue
        j = operator.each()
        each = state.messages[g][s].on_edges(slot.edges)
        outside = _outside(problem, state, g, s)
        seen = cavity(slot, outside, state.messages[g][s])
        lam = jnp.broadcast_to(seen.lam, each.lam.shape)
        full = jnp.broadcast_to(slot.edges.spread(beliefs[slot.variable].lam), lam.shape)
        # A flat cavity's infinite variance cancels between S_f and the edge: a tiny precision stands in for zero.
        tiny = 100 * jnp.finfo(lam.dtype).eps
        if slot.block:
            floor = tiny * jnp.diagonal(full, axis1=-2, axis2=-1)
            lam = lam + floor[..., None] * jnp.eye(lam.shape[-1], dtype=lam.dtype)
            lam = jnp.where(linalg.scaled_cholesky(seen.lam)[2][..., None, None], seen.lam, lam)
            cov, jac = linalg.spd_inverse(lam), j
        else:
            lam = jnp.where(lam > 0, lam, tiny * full)
            cov, jac = (1 / lam)[..., None, None], j
        edges = edges + 0.5 * jnp.sum(_log_det(full, slot.block) - _log_det(lam, slot.block))
        if group.scalar:
            spread_by_noise = spread_by_noise + slot.edges.rows.total(j * j / lam)[..., None]
            continue
        jac = jnp.broadcast_to(jac, (group.factors, *jac.shape[1:]))
        spread_by_noise = spread_by_noise + jnp.einsum("fnad,fnde,fnbe->fab", jac, cov, jac)
    if scale is not None:
        root = jnp.sqrt(scale)
        spread_by_noise = spread_by_noise * root[:, :, None] * root[:, None, :]
    total = noise + spread_by_noise
    if pools:  # log |lam_belief| / |lam_cavity| to first order: each message is a small share of the belief
        k = 1.0 if scale is None else scale
        edges = edges + 0.5 * jnp.sum(k * add_all(pools) / total[..., 0])
    noise = jnp.broadcast_to(noise, total.shape)
    return edges - 0.5 * jnp.sum(_log_det(total, matrix=True) - _log_det(noise, matrix=True))


def _outside(problem: Problem, state: State, g: int, s: int) -> Gaussian:
    name = problem.groups[g].slots[s].variable
    out = problem.prior[name]
    for edge_set in problem.touching(name):
        if edge_set != (g, s):
            out = out * pooled(problem, state, *edge_set)
    return out
