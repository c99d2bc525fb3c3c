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
adds nothing to the messages to the *other* variables; the message to the variable itself is finite. Factors of few
variables are in that case treated by elimination (`elimination.py`), where it needs no case of its own.

Of a pooled edge set only the product of all messages into a unit is kept. Its factors take *beliefs* in the
place of cavities, with means `m` and variances `v`, and each has one number `g`, its own share of what moved these
means (the reaction term of approximate message passing):

    S = Sy + sum_j J_j² v_j
    R = y - h(x0) - sum_j J_j (m_j - x0_j) + sum_{pooled j} g J_j² v_j
    lam = sum_f J_f² / S_f ,   eta = sum_f J_f R_f / S_f + lam m ,   g <- R / S

and `g` is damped like the messages that it stands for: a factor has one for its parameters, one for its activations.
At rest `g = (y - h) / Sy` at the means, so the means of a linear graph are exact, whatever the number of edges.

`S` and `R` are computed in `prediction.py`; here messages are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from ..core import linalg
from ..core.gaussian import Gaussian
from ..core.linalg import others_in_list, sum_of_others
from ..kernels.registry import kernels
from .elimination import Side, message_by_loop
from .prediction import (
    Edge,
    GeneralPrediction,
    PooledEdges,
    definite_moments,
    limit_moments,
    plus,
    predict_general,
    predict_scalar,
    same_f,
    unknown_directions,
)

# Factors of so many variables at most are treated by elimination, where something may be unknown of these.
_FEW_SIDES = 4
# ... and up to so many of them always: it takes half the time to compile. Fewer, if blocks are known to be proper:
# then the definite form is the quicker one (100 poses: 0.13 instead of 0.17 ms an iteration, one CPU second more to
# compile two groups).
_FEW_FACTORS, _FEWER_FACTORS = 1_000, 200


class PooledMessages(NamedTuple):
    """The product of the messages of a pooled edge set into each unit, and the new reaction of each factor."""

    message: Gaussian
    reaction: Float[Array, "f 1"]


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
    found = predict_scalar(edges, pools, residual[:, None])
    # k / (variance + k rest): the robust scale belongs to the noise, variance / k, and may be 0.
    k = 1.0 if scale is None else scale[:, None]
    out = []
    for i, (e, rest) in enumerate(zip(edges, found.others)):
        weight = 1.0 if scale is None else e.rows.lift(scale[:, None])
        gain = e.jacobian * (weight / (e.rows.lift(variance[:, None]) + weight * rest))
        out.append(Gaussian(gain * found.explained_by(i, e), gain * e.jacobian))
    count = None
    if found.unknown is not None:
        unknown, count = found.unknown
        # No other edge is unknown; counts are exact.
        informed = [e.rows.lift(count) - u < 0.5 for e, u in zip(edges, unknown)]
        out = [Gaussian(jnp.where(h, g.eta, 0), jnp.where(h, g.lam, 0)) for g, h in zip(out, informed)]
    if not pools:
        return out, []
    gain = k / (variance[:, None] + k * found.spread)
    gain = jnp.broadcast_to(gain if count is None else jnp.where(count < 0.5, gain, 0), (residual.shape[0], 1))
    share = gain * found.innovation
    summed = []
    for p in pools:
        summed.append(PooledMessages(p.belief.absorb(p.mean, p.jacobian, p.edges, gain, share), share))
    return out, summed


def general_messages(
    edges: list[Edge],
    residual: Float[Array, "f m"],
    covariance: Float[Array, "f m m"],
    scale: Float[Array, "f m"] | None,
    whitening: Array | None = None,
) -> list[Gaussian]:
    """Messages of factors with any M over scalars and blocks, all in block form. Arguments as `scalar_messages`.

    **Arguments:** `whitening`: of the noise (`Group.whitening`), if that is known beforehand.
    """
    found = kernels().many_outputs(edges, residual, covariance, scale)
    if found is not None:
        return [Gaussian(eta[..., None], lam[..., None, None]) for eta, lam in found]
    certain = all(e.proper for e in edges)
    sides = sum(e.jacobian.shape[1] for e in edges)
    few = sides <= _FEW_SIDES
    scalars = all(e.jacobian.shape[3] == 1 for e in edges)
    most = _FEW_FACTORS if not certain else 0 if scalars or sides == 1 else _FEWER_FACTORS
    if few and residual.shape[0] <= most:
        return _by_elimination(edges, residual, covariance, scale, whitening)
    # In units of the noise, metres beside radians do no harm.
    whiten = lax.rsqrt(linalg.diagonal(covariance))
    unit = covariance * whiten[:, :, None] * whiten[:, None, :]
    if scale is not None:
        whiten = whiten * linalg.safe_sqrt(scale)
    left = residual * whiten
    white, apart = _joined([e._replace(jacobian=e.jacobian * whiten[:, None, :, None]) for e in edges])
    inverses = [linalg.definite_inverse(e.cavity.lam) for e in white]

    found = predict_general(white, left, [definite_moments(e, v) for e, (v, _) in zip(white, inverses)])

    def definite() -> list[Gaussian]:
        return apart(_definite(found, unit))

    def limit() -> list[Gaussian]:
        if few:
            return _by_elimination(edges, residual, covariance, scale, whitening)
        return apart(_limit(white, left, unit))

    if certain and scalars:
        return definite()
    # Blocks with a proper prior too: in a direction 1e4 times vaguer than another float32 leaves no precision.
    good = [jnp.all(good) for _, good in inverses]
    if few:
        # A direction that is known well, beside one that is not, would be lost in the sum of the two that is `S`.
        good += [jnp.all(linalg.keeps_digits(e.cavity.lam)) for e in white]
        good += [jnp.all(linalg.keeps_digits(unit[:, None] + p)) for p in found.parts if p is not None]
    return lax.cond(linalg.all_true(jnp.stack(good)), definite, limit)


def _by_elimination(
    edges: list[Edge], residual: Array, covariance: Array, scale: Array | None, whitening: Array | None
) -> list[Gaussian]:
    """Messages of factors of few variables (`elimination.py`): those of one dimension at once."""
    f, m = residual.shape
    # The robust scale belongs to the noise alone, and is in the covariance where that has more than noise in it.
    known = whitening is not None
    root = None if known or scale is None else linalg.safe_sqrt(scale)
    whiten = linalg.whitening(covariance) if whitening is None else whitening
    whiten = whiten if root is None else whiten * root[:, None, :]
    weight = scale if known and scale is not None else jnp.ones_like(residual)

    def white(x: Array) -> Array:  # (F, M, k)
        return whiten[..., None] * x if whiten.ndim == 2 else whiten @ x

    # Of each variable of a factor, with the factors along the last axis; about the step from the linearisation point.
    sides: list[tuple[int, int, Side]] = []
    for i, e in enumerate(edges):
        off = e.cavity.eta - jnp.einsum("fnij,fnj->fni", *same_f(e.cavity.lam, e.point))
        for n in range(e.jacobian.shape[1]):
            d = e.jacobian.shape[3]
            j = jnp.broadcast_to(white(e.jacobian[:, n]), (f, m, d))
            eta, lam = (jnp.broadcast_to(a[:, n], (f, *a.shape[2:])) for a in (off, e.cavity.lam))
            sides.append((i, n, Side(*(jnp.moveaxis(a, 0, -1) for a in (j, eta, lam)))))
    rest = white(residual[..., None])[..., 0]
    found: dict[tuple[int, int], Gaussian] = {}
    for d in dict.fromkeys(s.eta.shape[0] for _, _, s in sides):
        same = [k for k, (_, _, s) in enumerate(sides) if s.eta.shape[0] == d]
        others = [_together([s for i, (_, _, s) in enumerate(sides) if i != k], m, f, residual.dtype) for k in same]
        stacked = Side(*(jnp.stack(a, -2) for a in zip(*others)))
        to = jnp.stack([sides[k][2].jacobian for k in same], -2)
        left, weights = (jnp.stack([a.T] * len(same), -2) for a in (rest, weight))
        eta, lam = message_by_loop(to, left, weights, stacked)
        for t, k in enumerate(same):
            i, n, _ = sides[k]
            found[i, n] = Gaussian(eta[:, t].T, jnp.moveaxis(lam[:, :, t], -1, 0))
    out = []
    for i, e in enumerate(edges):
        mine = [found[i, n] for n in range(e.jacobian.shape[1])]
        each = jax.tree.map(lambda *a: jnp.stack(a, 1), *mine)
        point = jnp.broadcast_to(e.point, each.eta.shape)
        out.append(Gaussian(each.eta + linalg.information(each.lam, point), each.lam))
    return out


def _together(sides: list[Side], m: int, f: int, dtype: jnp.dtype) -> Side:
    """Variables as one, of which nothing joins the parts."""
    if len(sides) == 1:
        return sides[0]
    k = sum(s.eta.shape[0] for s in sides)
    lam, at = jnp.zeros((k, k, f), dtype), 0
    for s in sides:
        end = at + s.eta.shape[0]
        lam, at = lam.at[at:end, at:end].set(s.lam), end
    jacobian, eta = jnp.zeros((m, 0, f), dtype), jnp.zeros((0, f), dtype)
    return Side(
        jnp.concatenate([jacobian, *(s.jacobian for s in sides)], 1),
        jnp.concatenate([eta, *(s.eta for s in sides)]),
        lam,
    )


def _joined(edges: list[Edge]) -> tuple[list[Edge], Callable[[list[Gaussian]], list[Gaussian]]]:
    """Edge sets of blocks of one size as one: what is done to each of them is compiled once.

    **Returns:** the edge sets, and a function that takes their messages apart again.
    """
    sizes = [e.jacobian.shape[3] for e in edges]
    parts = [[i] for i, d in enumerate(sizes) if d == 1]
    parts += [[i for i, size in enumerate(sizes) if size == d] for d in dict.fromkeys(sizes) if d > 1]

    def join(numbers: list[int]) -> Edge:
        if len(numbers) == 1:
            return edges[numbers[0]]
        arrays = [(edges[i].jacobian, edges[i].cavity, edges[i].point) for i in numbers]
        f = max(a.shape[0] for a in jax.tree.leaves(arrays))
        wide = jax.tree.map(lambda a: jnp.broadcast_to(a, (f, *a.shape[1:])), arrays)
        jacobian, cavity, point = jax.tree.map(lambda *a: jnp.concatenate(a, 1), *wide)
        return Edge(jacobian, cavity, point, all(edges[i].proper for i in numbers))

    def apart(found: list[Gaussian]) -> list[Gaussian]:
        out: dict[int, Gaussian] = {}
        for numbers, messages in zip(parts, found):
            begin = 0
            for i in numbers:
                end = begin + edges[i].jacobian.shape[1]
                out[i] = jax.tree.map(lambda x, a=begin, b=end: x[:, a:b], messages)
                begin = end
        return [out[i] for i in range(len(edges))]

    return [join(numbers) for numbers in parts], apart


def _message(jacobian: Array, left: Array, inverse_times) -> Gaussian:
    """`lam = J' A J`, `eta = J' A R_-i` for `A = S_-i^-1`, given as a function that applies it."""
    right = jnp.concatenate([jacobian, left[..., None]], -1)
    solved = linalg.transpose(jacobian) @ inverse_times(right)
    return Gaussian(solved[..., -1], linalg.symmetric(solved[..., :-1]))


def _definite(found: GeneralPrediction, covariance: Array) -> list[Gaussian]:
    """Every cavity proper; `covariance`: of the noise."""
    out = []
    for i, (e, p, (rest, across)) in enumerate(zip(found.edges, found.parts, found.of_other_sets())):
        base = plus(covariance, rest)
        if p is None:
            left = found.residual if across is None else found.residual - across
            out.append(_many_scalars(found, i, left, base))
        else:
            s = base[:, None] + sum_of_others(p, 1)
            left = found.left_by_others(i, across)
            out.append(_message(e.jacobian, left, lambda b, s=s: linalg.spd_solve(s, b)))
    return out


def _many_scalars(found: GeneralPrediction, i: int, residual: Array, base: Array) -> Gaussian:
    """More scalars than 2 M in the `i`-th edge set: one solve with the shared `S`, and `2 M - 1` exact ones.

    `residual (F, M)`: less what the other edge sets shift, `base (F, M, M)`: noise and the other edge sets.
    """
    edge, shift = found.edges[i], found.shifts[i]
    v, mean = found.covariances[i][..., 0, 0], found.means[i][..., 0]
    j, point = edge.jacobian[..., 0], jnp.broadcast_to(edge.point[..., 0], v.shape)
    factors, _, m = j.shape
    innovation = residual - shift.sum(1)
    s = base + jnp.einsum("fn,fna,fnb->fab", v, j, j)
    solved = linalg.spd_solve(s, linalg.transpose(j))  # (F, M, n)
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
    eta, lam = lax.cond(linalg.all_true(~(leverage > 0.5)), lambda: (eta, lam), with_exact_ones)
    return Gaussian(eta[..., None], lam[..., None, None])


def _limit(edges: list[Edge], residual: Array, covariance: Array) -> list[Gaussian]:
    """Some cavities improper: their unknown directions have infinite variance."""
    moments = [limit_moments(e) for e in edges]
    found = predict_general(edges, residual, [m[:2] for m in moments], all_parts=True)
    infinite = [unknown_directions(e.jacobian, m[2], residual.shape[1]) for e, m in zip(found.edges, moments)]
    infinite_across = others_in_list([p.sum(1) for p in infinite])
    out = []
    sets = zip(found.edges, found.parts, infinite, infinite_across, found.of_other_sets())
    for i, (e, p, q, b, (a, across)) in enumerate(sets):
        assert p is not None
        s = plus(covariance, a)[:, None] + sum_of_others(p, 1)
        unknown = sum_of_others(q, 1) if b is None else b[:, None] + sum_of_others(q, 1)
        inverse = linalg.limit_inverse(s, unknown)
        left = found.left_by_others(i, across)
        out.append(_message(e.jacobian, left, lambda right, inverse=inverse: inverse @ right))
    return out
