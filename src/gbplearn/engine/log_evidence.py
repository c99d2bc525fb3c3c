"""Log evidence from converged messages: the Bethe free energy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..core import linalg
from ..core.compiling import lean_jit
from ..core.gaussian import Gaussian
from ..core.linalg import add_all
from ..core.vector import Belief, VectorBelief, VectorGaussian
from ..factors.likelihood import Likelihood
from ..graph.problem import Problem
from .guard.proximal import with_settled_noise
from .prediction import edge_sets, predicted_covariance
from .state import State, belief, cavity, message_product


@lean_jit
def log_evidence(problem: Problem, prior: dict[str, Belief], state: State, means: dict[str, Array]) -> Array:
    """`log Z`, exact on trees of linear factors.

    At a fixed point of belief propagation the Bethe approximation is

        log Z = - E(means) + sum_v log |lam_prior| / |lam_belief| / 2
                - sum_f log |2 pi S_f| / 2 + sum_edges log |lam_belief| / |lam_cavity| / 2

    where `E` is the energy of all factors and priors at the belief means and `S_f` the predicted covariance of a
    factor's measurement; the determinants are of precisions alone. Robust factors count `exp(-rho)`, with the noise
    scaled at the means; variables held at a belief add to the noise of each factor. Likelihoods that are not Gaussian
    have `S_f` by their expansion, and no `2 pi`. Flat priors count as the constant 1, observed variables with their
    prior density at the value.

    **Arguments:**

    - `prior`: the priors without evidence.
    """
    variables, factors = _terms(problem, prior, state, means)
    return add_all([jnp.sum(t) for t in (*variables, *factors)])


@lean_jit
def log_evidence_by_example(problem: Problem, prior: dict[str, Belief], state: State, means: dict[str, Array]) -> Array:
    """The same sum, by the first axis of variables and factors: where it runs over examples that nothing joins.

    **Arguments:**

    - `prior`: without the variables that all examples share, which are fixed or held.
    """
    variables, factors = _terms(problem, prior, state, means)
    factors = [t.reshape(group.grid) for t, group in zip(factors, problem.groups)]
    return add_all([t.reshape(t.shape[0], -1).sum(1) for t in (*variables, *factors)])


def _terms(
    problem: Problem, prior: dict[str, Belief], state: State, means: dict[str, Array]
) -> tuple[list[Array], list[Array]]:
    """The terms of the sum: of each unit of every variable, and of each factor `(F,)` with its edges."""
    held = problem.held
    problem = with_settled_noise(problem, state, means)
    beliefs = {name: belief(problem, state, name) for name in problem.prior}
    full = {**means, **problem.fixed}
    variables = [
        _vector(beliefs[name])
        if isinstance(used, VectorGaussian)
        else _variable(used, prior[name], beliefs[name]) - 0.5 * used.squares(means[name])
        for name, used in problem.prior.items()
    ]
    fixed = {name: x for name, x in problem.fixed.items() if name in prior and name not in held}
    variables += [_at_value(prior[name], x) for name, x in fixed.items() if isinstance(prior[name], Gaussian)]
    factors = []
    for g, group in enumerate(problem.groups):
        # A likelihood is a density already.
        unit = 1.0 if isinstance(group.measurement, Likelihood) else 2 * jnp.pi
        normaliser = linalg.log_determinant(group.covariance()) + group.outputs * jnp.log(unit)
        there = 1.0 if group.weight is None else jnp.broadcast_to(group.weight, (group.factors, 1))[:, 0]
        energies = jnp.broadcast_to(group.energies(group.y - group.value(full)), (group.factors,))
        factors.append(_group(problem, state, beliefs, means, g) - energies - 0.5 * there * normaliser)
    return variables, factors


def _vector(belief: Any) -> Array:
    """`log |lam_prior| / |lam_belief| / 2` of each unit, and the energy of the prior. (Fixed ones are constants.)"""
    if not isinstance(belief, VectorBelief):  # no factor sees it
        return jnp.zeros((), belief.dtype)
    messages = belief.messages
    found = belief.prior.along(messages.projection, messages.eta, messages.lam)
    return -0.5 * found.log_det - found.prior_energy / found.log_det.size


def _at_value(prior: Gaussian, value: Array) -> Array:
    """Density of an observed value under its prior; 0 where the prior is flat."""
    return jnp.where(prior.proper, prior.log_density(value), 0)


def _variable(used: Gaussian, prior: Gaussian, now: Gaussian) -> Array:
    """`log |lam_prior| / |lam_belief| / 2` of a unit, or for observed units the prior density of the value."""
    observed = used.observed
    safe = jnp.where(observed, jnp.zeros((), used.dtype), 0.5 * used.log_determinant)
    flat = 0.5 * now.dim * jnp.log(2 * jnp.pi)
    start = jnp.where(used.proper, safe, flat)
    end = jnp.where(observed, 0.0, 0.5 * now.log_determinant)
    return jnp.where(observed, _at_value(prior, used.mean), start - end)


def _group(problem: Problem, state: State, beliefs: dict[str, Belief], means: dict[str, Array], g: int) -> Array:
    """`-log |S_f| / |Sy| / 2` and `log |lam_belief| / |lam_cavity| / 2` of its edges, for each factor `(F,)`."""
    group = problem.groups[g]
    if not group.slots:
        return jnp.zeros((group.factors,), group.y.dtype)
    linear = group.linearise({**means, **problem.fixed}, beliefs)
    scale = group.measure(group.y - linear.value).scale
    noise = group.covariance()
    used, edges = [], jnp.zeros((group.factors,), noise.dtype)
    for s, slot in enumerate(group.slots):
        if slot.table is not None:
            now = beliefs[slot.variable]
            assert isinstance(now, VectorBelief)
            found = now.prior.along(now.messages.projection, now.messages.eta, now.messages.lam)
            lam = 1 / slot.from_table(found.cavity_variance)
            used.append(Gaussian(slot.from_table(found.cavity_mean) * lam, lam))
            # |lam_belief| / |lam_cavity| = s_cavity / s
            edges = edges + 0.5 * slot.from_table(jnp.log(found.cavity_variance / found.variance))[:, 0]
            continue
        if slot.pooled:
            used.append(beliefs[slot.variable])
            continue
        each = state.messages[g][s].on_edges(slot.edges)
        found = cavity(slot, _outside(problem, state, g, s), state.messages[g][s])
        full = jax.tree.map(slot.edges.spread, beliefs[slot.variable]).broadcast_to(each.shape)
        # A flat cavity's infinite variance cancels between S_f and the edge: a tiny precision stands in for zero.
        used.append(found.broadcast_to(each.shape).lifted(full, 100 * float(jnp.finfo(found.dtype).eps)))
        ratios = full.log_determinant - used[-1].log_determinant
        present = slot.edges.present()
        ratios = ratios if present is None else jnp.where(present, ratios, 0)
        edges = edges + 0.5 * slot.edges.rows.total(ratios)[:, 0]
    # Of the prediction S alone is needed, which does not depend on means or reactions.
    reactions = [jnp.zeros((), noise.dtype) if slot.pooled else None for slot in group.slots]
    at = {slot.variable: jnp.zeros((), noise.dtype) for slot in group.slots}
    sets, pools = edge_sets(group, linear, used, reactions, at, at)
    spread_by_noise = predicted_covariance(group, sets, pools)
    if scale is not None:
        root = jnp.sqrt(scale)
        spread_by_noise = spread_by_noise * root[:, :, None] * root[:, None, :]
    total = noise + spread_by_noise
    if pools:  # log |lam_belief| / |lam_cavity| to first order: each message is a small share of the belief
        k = 1.0 if scale is None else scale
        edges = edges + 0.5 * (k * predicted_covariance(group, [], pools)[..., 0] / total[..., 0])[:, 0]
    noise = jnp.broadcast_to(noise, total.shape)
    return edges - 0.5 * (linalg.log_determinant(total) - linalg.log_determinant(noise))


def _outside(problem: Problem, state: State, g: int, s: int) -> Gaussian:
    name = problem.groups[g].slots[s].variable
    others = [edge_set for edge_set in problem.touching(name) if edge_set != (g, s)]
    return Gaussian.product([problem.prior[name], *(message_product(problem, state, *o) for o in others)])
