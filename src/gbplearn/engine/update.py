"""The message update: the messages of a linearised factor to each of its variables.

A factor with measurement `y = h(x) + noise`, `noise ~ N(0, Sy)`, linearised at `x0` with Jacobian columns `J_i`, and
cavities with means `m_i` and variances `v_i`:

    S_-i = Sy + sum_{j != i} J_j v_j J_j'                          what the others leave uncertain about the measurement
    R_-i = y - h(x0) + J_i x0_i - sum_{j != i} J_j (m_j - x0_j)    what they leave of it to be explained
    lam_i = J_i' S_-i^-1 J_i
    eta_i = J_i' S_-i^-1 R_-i

This is the exact marginal of the linearised factor times the other cavities. The architecture's form with one
shared `S` and one innovation `R = R_-i - J_i m_i` follows by `S_-i = S - J_i v_i J_i'`; it is used where these
subtractions keep their digits, that is for edges with leverage `v_i J_i' S^-1 J_i <= 1/2`. Leverages of a factor sum
to less than M, so fewer than 2 M edges lie above: for these `S_-i` and `R_-i` are summed from the others (for M = 1 the
one edge that holds more than half of `S`). A vague cavity far away would else leave its own rounding in `eta_i`.

A cavity of zero precision has infinite variance. In that limit the measurement along `J_i` times the unknown directions
adds nothing to the messages to the *other* variables; the message to the variable itself is finite.

Of a pooled edge set only the product of all messages into a unit is kept. Its factors take *beliefs* in the
place of cavities, with means `m` and variances `v`, and each has one number `g`, its own share of what moved these
means (the reaction term of approximate message passing):

    S = Sy + sum_j J_j² v_j
    R = y - h(x0) - sum_j J_j (m_j - x0_j) + sum_{pooled j} g J_j² v_j
    lam = sum_f J_f² / S_f ,   eta = sum_f J_f R_f / S_f + lam m ,   g <- R / S

and `g` is damped like the messages that it stands for: a factor has one for its parameters, one for its activations.
At rest `g = (y - h) / Sy` at the means, so the means of a linear graph are exact, whatever the number of edges.

Scalar slots have Jacobians `(F, n)` when M = 1. The general form has blocks throughout: Jacobians `(F, n, M, d)`,
cavities in block form, scalars being blocks of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from ..core import linalg
from ..core.gaussian import Gaussian
from ..core.linalg import add_all, others_in_list, sum_of_others
from ..edges.base import ROWS, Rows
from ..factors.operators import Operator
from ..kernels.registry import kernels

# In rows of up to so many edges one may be far vaguer than the rest.
_SHORT = 16


class Edge(NamedTuple):
    """One edge set: the arrays that the update takes of it."""

    jacobian: Array  # (F | 1, n), or (F | 1, n, M, d)
    cavity: Gaussian  # (F, n), or (F, n, d) in block form
    point: Array  # linearisation point: (F | 1, n), or (F | 1, n, d)
    proper: bool  # known never to have a cavity of zero precision
    rows: Rows = ROWS  # how edges lie in these arrays, if not like this
    by_hand: bool = True  # of a function of the user's, not of a layer: priors may be as vague as they like


class PooledEdges(NamedTuple):
    """One pooled edge set: the arrays that the update takes of it."""

    jacobian: Operator
    mean: Array  # of the belief of the variable, in its own shape, everywhere proper
    variance: Array
    move: Array | None  # from the linearisation point to the mean; None where that is none
    reaction: Float[Array, "f 1"]  # g


class PooledMessages(NamedTuple):
    """The product of the messages of a pooled edge set into each unit, and the new reaction of each factor."""

    message: Gaussian
    reaction: Float[Array, "f 1"]


def _plus(a: Array, b: Array | None) -> Array:
    return a if b is None else a + b


def _leave_one_out(edges: list[Edge], terms: list[Array], totals: list[Array]) -> list[Array]:
    """Terms of every edge and their totals -> for each edge the sum over all other edges of its factor."""
    across = others_in_list(totals)
    return [_plus(e.rows.others(t), None if a is None else e.rows.lift(a)) for e, t, a in zip(edges, terms, across)]


def _is_short(edge: Edge) -> bool:
    return edge.by_hand and edge.jacobian.ndim == 2 and edge.jacobian.shape[1] <= _SHORT


def scalar_messages(
    edges: list[Edge],
    residual: Float[Array, " f"],
    variance: Float[Array, " f"],
    scale: Float[Array, " f"] | None,
    pools: Sequence[PooledEdges] = (),
) -> tuple[list[Gaussian], list[PooledMessages]]:
    """Messages of M = 1 factors over scalar variables.

    **Arguments:**

    - `edges`: the edge sets of the group.
    - `residual`: `y - h(x0)`.
    - `variance`: noise variance.
    - `scale`: robust factor on the precision, None for 1.
    - `pools`: the pooled edge sets of the group.
    """
    means, spreads = [], []
    for e in edges:
        known = e.cavity.lam > 0
        lam = e.cavity.lam if e.proper else jnp.where(known, e.cavity.lam, 1)
        v = 1 / lam
        means.append(e.cavity.eta * v if e.proper else jnp.where(known, e.cavity.eta * v, e.point))
        spreads.append(v if e.proper else jnp.where(known, v, 0))
    terms = [e.jacobian * e.jacobian * v for e, v in zip(edges, spreads)]
    totals = [e.rows.total(t) for e, t in zip(edges, terms)]
    others: list[Array] = _leave_one_out(edges, terms, totals) if edges else []
    wide = [p.jacobian.squared().times(p.variance) for p in pools]
    moves = [p.jacobian.times(p.move) for p in pools if p.move is not None]
    moves += [-p.reaction * v for p, v in zip(pools, wide)]
    if pools:
        others = [o + e.rows.lift(add_all(wide)) for e, o in zip(edges, others)]
    shifts = [e.jacobian * (m - e.point) for e, m in zip(edges, means)]
    # In layers, and in long rows, no edge is vaguer than all others by as much as float32 has digits: no check there.
    half = 0.5 * add_all([*totals, *wide])
    most = [t > e.rows.lift(half) if _is_short(e) else None for e, t in zip(edges, terms)]
    moves += [e.rows.total(x if top is None else jnp.where(top, 0, x)) for e, top, x in zip(edges, most, shifts)]
    left = residual[:, None] - add_all(moves)  # by all but the edge that holds most of S
    own = [e.rows.total(jnp.where(top, x, 0)) for e, top, x in zip(edges, most, shifts) if top is not None]
    innovation = left - add_all(own) if own else left
    # k / (variance + k rest): the robust scale belongs to the noise, variance / k, and may be 0.
    k = 1.0 if scale is None else scale[:, None]
    out = []
    for e, m, rest, top in zip(edges, means, others, most):
        weight = 1.0 if scale is None else e.rows.lift(scale[:, None])
        gain = e.jacobian * (weight / (e.rows.lift(variance[:, None]) + weight * rest))
        explained = e.rows.lift(innovation) + e.jacobian * m
        if top is not None:
            explained = jnp.where(top, e.rows.lift(left) + e.jacobian * e.point, explained)
        out.append(Gaussian(gain * explained, gain * e.jacobian))
    count = None
    if not all(e.proper for e in edges):
        unknown = [((e.cavity.lam <= 0) & (e.jacobian != 0)).astype(residual.dtype) for e in edges]
        count = add_all([e.rows.total(u) for e, u in zip(edges, unknown)])
        # No other edge is unknown; counts are exact.
        informed = [e.rows.lift(count) - u < 0.5 for e, u in zip(edges, unknown)]
        out = [Gaussian(jnp.where(h, g.eta, 0), jnp.where(h, g.lam, 0)) for g, h in zip(out, informed)]
    if not pools:
        return out, []
    gain = k / (variance[:, None] + k * add_all([*totals, *wide]))
    gain = jnp.broadcast_to(gain if count is None else jnp.where(count < 0.5, gain, 0), (residual.shape[0], 1))
    share = gain * innovation
    summed = []
    for p in pools:
        lam = p.jacobian.squared().back(gain)
        summed.append(PooledMessages(Gaussian(p.jacobian.back(share) + lam * p.mean, lam), share))
    return out, summed


def general_messages(
    edges: list[Edge],
    residual: Float[Array, "f m"],
    covariance: Float[Array, "f m m"],
    scale: Float[Array, "f m"] | None,
) -> list[Gaussian]:
    """Messages of factors with any M over scalars and blocks, all in block form. Arguments as `scalar_messages`."""
    found = kernels().many_outputs(edges, residual, covariance, scale)
    if found is not None:
        return [Gaussian(eta[..., None], lam[..., None, None]) for eta, lam in found]
    # In units of the noise, metres beside radians do no harm.
    whiten = lax.rsqrt(linalg.diagonal(covariance))
    covariance = covariance * whiten[:, :, None] * whiten[:, None, :]
    if scale is not None:
        whiten = whiten * jnp.sqrt(scale)
    residual = residual * whiten
    edges = [e._replace(jacobian=e.jacobian * whiten[:, None, :, None]) for e in edges]
    edges, apart = _joined(edges)
    inverses = [linalg.definite_inverse(e.cavity.lam) for e in edges]
    if all(e.proper and e.jacobian.shape[3] == 1 for e in edges):
        return apart(_definite(edges, [v for v, _ in inverses], residual, covariance))
    # Blocks with a proper prior too: in a direction 1e4 times vaguer than another float32 leaves no precision.
    return apart(
        lax.cond(
            jnp.all(jnp.stack([jnp.all(good) for _, good in inverses])),
            lambda: _definite(edges, [v for v, _ in inverses], residual, covariance),
            lambda: _limit(edges, residual, covariance),
        )
    )


def _joined(edges: list[Edge]) -> tuple[list[Edge], Callable[[list[Gaussian]], list[Gaussian]]]:
    """Edge sets of blocks of one size as one: what is done to each of them is compiled once.

    **Returns:** the edge sets, and a function that takes their messages apart again.
    """
    sizes = [e.jacobian.shape[3] for e in edges]
    like = {d: [i for i, size in enumerate(sizes) if size == d] for d in dict.fromkeys(sizes)}
    parts = [[i] for i in like.get(1, [])] + [numbers for d, numbers in like.items() if d > 1]

    def join(numbers: list[int]) -> Edge:
        if len(numbers) == 1:
            return edges[numbers[0]]
        f = max(a.shape[0] for i in numbers for a in jax.tree.leaves((edges[i].jacobian, edges[i].cavity)))
        jacobian, cavity, point = jax.tree.map(
            lambda *x: jnp.concatenate([jnp.broadcast_to(a, (f, *a.shape[1:])) for a in x], 1),
            *((edges[i].jacobian, edges[i].cavity, edges[i].point) for i in numbers),
        )
        return Edge(jacobian, cavity, point, all(edges[i].proper for i in numbers))

    def apart(found: list[Gaussian]) -> list[Gaussian]:
        out: dict[int, Gaussian] = {}
        for numbers, messages in zip(parts, found):
            ends = np.cumsum([edges[i].jacobian.shape[1] for i in numbers])
            for i, end in zip(numbers, ends):
                begin = end - edges[i].jacobian.shape[1]
                out[i] = jax.tree.map(lambda x, a=begin, b=end: x[:, a:b], messages)
        return [out[i] for i in range(len(edges))]

    return [join(numbers) for numbers in parts], apart


def _shifts(edges: list[Edge], means: list[Array]) -> list[Array]:
    """`J (m - x0)` of every edge, `(F, n, M)`."""
    return [jnp.einsum("fnmd,fnd->fnm", *_same_f(e.jacobian, m - e.point)) for e, m in zip(edges, means)]


def _left_by_others(edge: Edge, residual: Array, shift: Array, across: Array | None) -> Array:
    """`R_-i` of every edge `(F, n, M)`; `across`: the shifts of all other edge sets, added up."""
    left = (residual if across is None else residual - across)[:, None] - sum_of_others(shift, 1)
    return left + jnp.einsum("fnmd,fnd->fnm", *_same_f(edge.jacobian, edge.point))


def _same_f(a: Array, b: Array) -> tuple[Array, Array]:
    """Broadcast the factor axes of two arrays against each other."""
    f = max(a.shape[0], b.shape[0])
    return jnp.broadcast_to(a, (f, *a.shape[1:])), jnp.broadcast_to(b, (f, *b.shape[1:]))


def _message(jacobian: Array, left: Array, inverse_times) -> Gaussian:
    """`lam = J' A J`, `eta = J' A R_-i` for `A = S_-i^-1`, given as a function that applies it."""
    right = jnp.concatenate([jacobian, left[..., None]], -1)
    solved = linalg.transpose(jacobian) @ inverse_times(right)
    return Gaussian(solved[..., -1], linalg.symmetric(solved[..., :-1]))


def _covariances(jacobian: Array, cov: Array) -> Array:
    return linalg.symmetric(jacobian @ cov @ linalg.transpose(jacobian))


def _definite(edges: list[Edge], covs: list[Array], residual: Array, covariance: Array) -> list[Gaussian]:
    """Every cavity proper, with the covariances `covs`."""
    means = [jnp.einsum("fnij,fnj->fni", v, e.cavity.eta) for v, e in zip(covs, edges)]
    edges = [e._replace(jacobian=_same_f(e.jacobian, m)[0]) for e, m in zip(edges, means)]
    shifts = _shifts(edges, means)
    m = residual.shape[1]
    few = [e.jacobian.shape[1] < 2 * m or e.jacobian.shape[3] > 1 for e in edges]
    parts = [_covariances(e.jacobian, v) if short else None for e, v, short in zip(edges, covs, few)]
    totals = [
        jnp.einsum("fnad,fnde,fnbe->fab", e.jacobian, v, e.jacobian) if p is None else p.sum(1)
        for e, v, p in zip(edges, covs, parts)
    ]
    out = []
    across = others_in_list([x.sum(1) for x in shifts])
    for e, v, mean, p, rest, shift, x in zip(edges, covs, means, parts, others_in_list(totals), shifts, across):
        base = _plus(covariance, rest)
        if p is None:
            left = residual if x is None else residual - x
            out.append(_many_scalars(e, v[..., 0, 0], mean[..., 0], left, shift, base))
        else:
            s = base[:, None] + sum_of_others(p, 1)
            left = _left_by_others(e, residual, shift, x)
            out.append(_message(e.jacobian, left, lambda b, s=s: linalg.spd_solve(s, b)))
    return out


def _many_scalars(edge: Edge, v: Array, mean: Array, residual: Array, shift: Array, base: Array) -> Gaussian:
    """More scalars than 2 M in one edge set: one solve with the shared `S`, and `2 M - 1` exact ones.

    `v`, `mean (F, n)`, `residual (F, M)`: less what the other edge sets shift, `shift (F, n, M)`, `base (F, M, M)`:
    noise and the other edge sets.
    """
    j, point = edge.jacobian[..., 0], jnp.broadcast_to(edge.point[..., 0], v.shape)
    factors, _, m = j.shape
    innovation = residual - shift.sum(1)
    s = base + jnp.einsum("fn,fna,fnb->fab", v, j, j)
    factor, unit, _ = linalg.scaled_cholesky(s)
    solved = linalg.factor_solve(factor, unit, linalg.transpose(j))  # (F, M, n)
    precision = jnp.einsum("fnm,fmn->fn", j, solved)
    leverage = v * precision
    left = 1 - jnp.minimum(leverage, 0.75)  # those above 1/2 are replaced below
    lam = precision / left
    eta = jnp.einsum("fmn,fm->fn", solved, innovation) / left + lam * mean

    def with_exact_ones() -> tuple[Array, Array]:
        _, top = lax.top_k(leverage, 2 * m - 1)
        row = jnp.arange(factors)[:, None]
        j_top, v_top = j[row, top], v[row, top]
        rest = base + jnp.einsum("fn,fna,fnb->fab", v.at[row, top].set(0), j, j)
        parts = v_top[..., None, None] * j_top[..., :, None] * j_top[..., None, :]
        s_top = rest[:, None] + sum_of_others(parts, 1)
        left = (residual - shift.at[row, top].set(0).sum(1))[:, None] - sum_of_others(shift[row, top], 1)
        left = left + j_top * point[row, top][..., None]
        exact = _message(j_top[..., None], left, lambda b: linalg.spd_solve(s_top, b))
        return eta.at[row, top].set(exact.eta[..., 0]), lam.at[row, top].set(exact.lam[..., 0, 0])

    # With many variables a leverage above 1/2 is rare, and to search for one costs less than the exact solves.
    eta, lam = lax.cond(jnp.any(leverage > 0.5), with_exact_ones, lambda: (eta, lam))
    return Gaussian(eta[..., None], lam[..., None, None])


def _limit(edges: list[Edge], residual: Array, covariance: Array) -> list[Gaussian]:
    """Some cavities improper: their unknown directions have infinite variance."""
    tolerance = linalg.pivot_tolerance(residual.dtype, residual.shape[1])
    means, parts, infinite, jacobians = [], [], [], []
    for e in edges:
        cov, null = linalg.split_semidefinite(e.cavity.lam)
        off = e.cavity.eta - jnp.einsum("fnij,fnj->fni", *_same_f(e.cavity.lam, e.point))
        means.append(e.point + jnp.einsum("fnij,fnj->fni", cov, off))
        jacobian = _same_f(e.jacobian, cov)[0]
        jacobians.append(jacobian)
        parts.append(_covariances(jacobian, cov))
        # Directions of the measurement that an unknown direction moves, each of unit length or (rounding) zero.
        moved = jacobian @ null
        size = jnp.sum(moved**2, -2, keepdims=True)
        full = jnp.sum(jacobian**2, (-2, -1), keepdims=True) * jnp.sum(null**2, -2, keepdims=True)
        real = size > tolerance**2 * full
        moved = jnp.where(real, moved * lax.rsqrt(jnp.where(real, size, 1)), 0)
        infinite.append(moved @ linalg.transpose(moved))
    edges = [e._replace(jacobian=j) for e, j in zip(edges, jacobians)]
    shifts = _shifts(edges, means)
    shift_across = others_in_list([x.sum(1) for x in shifts])
    finite_across = others_in_list([p.sum(1) for p in parts])
    infinite_across = others_in_list([p.sum(1) for p in infinite])
    out = []
    for e, p, q, x, a, b, c in zip(edges, parts, infinite, shifts, finite_across, infinite_across, shift_across):
        s = _plus(covariance, a)[:, None] + sum_of_others(p, 1)
        unknown = sum_of_others(q, 1) if b is None else b[:, None] + sum_of_others(q, 1)
        inverse = linalg.limit_inverse(s, unknown)
        left = _left_by_others(e, residual, x, c)
        out.append(_message(e.jacobian, left, lambda right, inverse=inverse: inverse @ right))
    return out
