"""The prediction of a factor: how uncertain its measurement is, and what of it is left to be explained.

A factor with measurement `y = h(x) + noise`, linearised at `x0` with Jacobian columns `J_i`, predicts `h` from what is
known of its variables without it: cavities with means `m_i` and variances `v_i`.

    S = sum_i J_i v_i J_i'                   the predicted covariance of h
    R = y - h(x0) - sum_i J_i (m_i - x0_i)   the innovation

Messages, the noise that is learnt and the evidence all follow from these two. They are computed here, and nowhere else:

- Pooled edge sets have beliefs in the place of cavities, and a reaction term `g` for each factor: their part of `R` is
  `- J (m - x0) + g J² v`.
- Messages take `S` and `R` without one edge, `S_-i` and `R_-i`. Nothing is subtracted to leave it out: where one edge
  holds most of `S`, or its cavity lies far away, nothing would be left but rounding.
- A cavity of zero precision has infinite variance. It counts as known at `x0` here, and the factor as not `known`: in
  that limit messages to the *other* variables are 0, the message to the variable itself is finite.
- Variables held at a belief add their spread to the noise; the robust scale `k` belongs to the noise alone, which is
  `Sy / k`. `k` may be 0, so that `k` times all is computed: `k (Sy / k + S)^-1 = (Sy + k S)^-1 k`.

Scalar slots have Jacobians `(F, n)` when M = 1. The general form has blocks throughout: Jacobians `(F, n, M, d)`,
cavities in block form, scalars being blocks of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from ..core import linalg
from ..core.gaussian import Gaussian
from ..core.linalg import add_all, others_in_list, sum_of_others
from ..core.vector import Belief, VectorGaussian
from ..edges.base import ROWS, Edges, Rows
from ..factors.measurement import Linear
from ..factors.operators import Operator, UnitRows
from ..graph.group import Group, Slot

# In rows of up to so many edges one may be far vaguer than the rest.
_SHORT = 16


class Edge(NamedTuple):
    """One edge set: the arrays that a prediction takes of it."""

    jacobian: Array  # (F | 1, n), or (F | 1, n, M, d)
    cavity: Gaussian  # (F, n), or (F, n, d) in block form
    point: Array  # linearisation point: (F | 1, n), or (F | 1, n, d)
    proper: bool  # known never to have a cavity of zero precision
    rows: Rows = ROWS  # how edges lie in these arrays, if not like this
    by_hand: bool = True  # of a function of the user's, not of a layer: priors may be as vague as they like


class PooledEdges(NamedTuple):
    """One pooled edge set: the arrays that a prediction takes of it."""

    jacobian: Operator
    edges: Edges
    belief: Gaussian  # of the variable, in its own shape, everywhere proper
    mean: Array
    move: Array | None  # from the linearisation point to the mean; None where that is none
    reaction: Float[Array, "f 1"]  # g


def edge_sets(
    group: Group,
    linear: Linear,
    cavities: Sequence[Gaussian],
    reactions: Sequence[Array | None],
    means: Mapping[str, Array],
    points: Mapping[str, Array],
) -> tuple[list[Edge], list[PooledEdges]]:
    """The edge sets of a group that have cavities, and those that are pooled, each in the order of the slots.

    **Arguments:**

    - `cavities`: of each slot its cavities, or if it is pooled the belief.
    - `reactions`: of each pooled slot.
    - `means`: of the beliefs of what is pooled; those that are the very arrays in `points` have not moved.
    """
    edges, pools, by_hand = [], [], not group.measurement.whole
    for s, j, c, r in zip(group.slots, group.operators(linear), cavities, reactions):
        x = points[s.variable]
        if s.table is not None:
            assert isinstance(j, UnitRows)
            point = x.reshape(1, 1) if x.ndim == 0 else s.from_table(j.numbers(x))
            edges.append(Edge(s.from_table(j.slope), c, point, s.proper, s.edges.rows, by_hand))
            continue
        if r is not None:
            mean = means[s.variable]
            pools.append(PooledEdges(j, s.edges, c, mean, None if x is mean else mean - x, r))
            continue
        point = x if x.ndim == 0 else s.edges.spread(x)
        if group.scalar:
            edges.append(Edge(j.each(), c, point, s.proper, s.edges.rows, by_hand))
            continue
        wide = c.as_vectors()
        edges.append(Edge(j.each(), wide, _wide_point(point, s, wide), s.proper))
    return edges, pools


def _wide_point(x: Array, slot: Slot, cavity: Gaussian) -> Array:
    """A linearisation point in block layout."""
    if x.ndim == 0:
        return jnp.broadcast_to(x, (1, *cavity.shape[1:]))
    return slot.family.as_vectors(x)


class Predicted(NamedTuple):
    """`S` and `R` of each factor, of any form."""

    covariance: Float[Array, "f m m"]  # S: of h, without noise
    innovation: Float[Array, "f m"]  # R
    known: Bool[Array, " f"]  # whether every cavity is proper: else both are of those that are


def predict(
    group: Group, edges: list[Edge], pools: Sequence[PooledEdges], residual: Array, held: Array | None
) -> Predicted:
    """`S` and `R` of each factor of a group.

    **Arguments:**

    - `edges`, `pools`: its edge sets.
    - `residual`: `y - h(x0)`, `(F | 1, M)`.
    - `held`: the spread that comes from variables held at a belief (`held_spread`), None for none.
    """
    residual = group.every_factor(residual)
    if group.scalar:
        scalar = predict_scalar(edges, pools, residual)
        covariance, innovation = scalar.spread[..., None], scalar.innovation
        known = None if scalar.unknown is None else scalar.unknown[1][:, 0] < 0.5
    else:
        moments = [_known_moments(e) for e in edges]
        general = predict_general(edges, residual, [m[:2] for m in moments])
        covariance, innovation = general.spread(), general.innovation()
        known = jnp.all(jnp.stack([jnp.broadcast_to(jnp.all(m[2], 1), group.factors) for m in moments]), 0)
    if held is not None:
        covariance = covariance + held.reshape(-1, group.outputs, group.outputs)
    shape = (group.factors, group.outputs)
    return Predicted(
        jnp.broadcast_to(covariance, (*shape, group.outputs)),
        jnp.broadcast_to(innovation, shape),
        jnp.broadcast_to(True if known is None else known, (group.factors,)),
    )


def predicted_covariance(group: Group, edges: list[Edge], pools: Sequence[PooledEdges]) -> Float[Array, "f m m"]:
    """`S` alone of each factor of a group, all of whose cavities are proper."""
    nothing = jnp.zeros((group.factors, group.outputs), group.y.dtype)
    if group.scalar:
        spread = predict_scalar([e._replace(proper=True) for e in edges], pools, nothing).spread[..., None]
    else:
        moments = [definite_moments(e, linalg.definite_inverse(e.cavity.lam)[0]) for e in edges]
        spread = predict_general(edges, nothing, moments).spread()
    return jnp.broadcast_to(spread, (group.factors, group.outputs, group.outputs))


def held_spread(group: Group, held: Mapping[str, Belief], linear: Linear) -> Array | None:
    """The part of `S` that comes from variables held at a belief; None if there are none.

    Variances `(F, 1)` if the group is `scalar`, else covariances `(F, M, M)`.
    """
    parts = []
    for slot, operator in zip((*group.slots, *group.held), group.operators(linear)):
        if slot.variable not in held:
            continue
        belief = held[slot.variable]
        if isinstance(belief, VectorGaussian):
            assert isinstance(operator, UnitRows)
            parts.append(slot.from_table(operator.slope**2 * belief.variance_along(operator.rows)))
            continue
        along = belief.variance_along if group.scalar else belief.covariance_along
        spread = along(operator, slot.edges)
        parts.append(jnp.broadcast_to(spread, (group.factors, *spread.shape[1:])))
    return add_all(parts) if parts else None


def noise_with_held(group: Group, held: Array | None, scale: Array | None) -> Array:
    """`Sy` of each factor with what is held, `k` times that: variances `(F,)` if `scalar`, else matrices `(F, M, M)`.

    The robust scale belongs to the noise alone, so that what is held is multiplied by it here, as `S` will be.
    """
    if group.scalar:
        variance = jnp.broadcast_to(group.noise.reshape(-1), (group.factors,))
        if held is None:
            return variance
        return variance + held[:, 0] * (1.0 if scale is None else scale[:, 0])
    covariance = group.covariance()
    if held is not None:
        root = 1.0 if scale is None else linalg.safe_sqrt(scale[:, :, None] * scale[:, None, :])
        covariance = covariance + held * root
    return jnp.broadcast_to(covariance, (group.factors, *covariance.shape[1:]))


class ScalarPrediction(NamedTuple):
    """`S` and `R` of factors with one measurement of scalars; edge by edge where messages need that."""

    means: list[Array]  # of the cavities of each edge set
    spread: Array  # S (F | 1, 1)
    others: list[Array]  # S_-i of each edge
    innovation: Array  # R (F, 1)
    most: list[Array | None]  # which edge holds most of S; None where none can
    left: Array  # R without that edge's part (F, 1)
    unknown: tuple[list[Array], Array] | None  # which cavities are improper, and how many of a factor; None: none is

    def explained_by(self, i: int, edge: Edge) -> Array:
        """`R_-i` of each edge of the `i`-th edge set."""
        out, top = edge.rows.lift(self.innovation) + edge.jacobian * self.means[i], self.most[i]
        if top is None:
            return out
        return jnp.where(top, edge.rows.lift(self.left) + edge.jacobian * edge.point, out)


def predict_scalar(edges: list[Edge], pools: Sequence[PooledEdges], residual: Float[Array, "f 1"]) -> ScalarPrediction:
    """The prediction of factors with one measurement of scalars; `residual`: `y - h(x0)`."""
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
    wide = [p.belief.variance_along(p.jacobian, p.edges, proper=True) for p in pools]
    moves = [p.jacobian.times(p.move) for p in pools if p.move is not None]
    moves += [-p.reaction * v for p, v in zip(pools, wide)]
    if pools:
        others = [o + e.rows.lift(add_all(wide)) for e, o in zip(edges, others)]
    shifts = [e.jacobian * (m - e.point) for e, m in zip(edges, means)]
    spread = add_all([*totals, *wide])
    # In layers, and in long rows, no edge is vaguer than all others by as much as float32 has digits: no check there.
    half = 0.5 * spread
    most = [t > e.rows.lift(half) if _is_short(e) else None for e, t in zip(edges, terms)]
    moves += [e.rows.total(x if top is None else jnp.where(top, 0, x)) for e, top, x in zip(edges, most, shifts)]
    left = residual - add_all(moves)
    own = [e.rows.total(jnp.where(top, x, 0)) for e, top, x in zip(edges, most, shifts) if top is not None]
    unknown = None
    if not all(e.proper for e in edges):
        flags = [((e.cavity.lam <= 0) & (e.jacobian != 0)).astype(residual.dtype) for e in edges]
        unknown = flags, add_all([e.rows.total(u) for e, u in zip(edges, flags)])
    return ScalarPrediction(means, spread, others, left - add_all(own) if own else left, most, left, unknown)


def _leave_one_out(edges: list[Edge], terms: list[Array], totals: list[Array]) -> list[Array]:
    """Terms of every edge and their totals -> for each edge the sum over all other edges of its factor."""
    across = others_in_list(totals)
    return [plus(e.rows.others(t), None if a is None else e.rows.lift(a)) for e, t, a in zip(edges, terms, across)]


def _is_short(edge: Edge) -> bool:
    return edge.by_hand and edge.jacobian.ndim == 2 and edge.jacobian.shape[1] <= _SHORT


def plus(a: Array, b: Array | None) -> Array:
    """`a + b`, where `b` may be nothing."""
    return a if b is None else a + b


class GeneralPrediction(NamedTuple):
    """`S` and `R` of factors in the general form; edge by edge where messages need that."""

    edges: list[Edge]  # with Jacobians `(F, n, M, d)`
    residual: Array  # y - h(x0), (F, M)
    means: list[Array]  # of the cavities of each edge set (F, n, d)
    covariances: list[Array]  # (F, n, d, d)
    parts: list[Array | None]  # J v J' of each edge (F, n, M, M); None for edge sets with many scalars
    totals: list[Array]  # the same, of all edges of an edge set (F, M, M)
    shifts: list[Array]  # J (m - x0) of each edge (F, n, M)

    def spread(self) -> Float[Array, "f m m"]:
        """`S`."""
        return add_all(self.totals)

    def innovation(self) -> Float[Array, "f m"]:
        """`R`."""
        return self.residual - add_all([x.sum(1) for x in self.shifts])

    def of_other_sets(self) -> list[tuple[Array | None, Array | None]]:
        """For each edge set `S` and the shifts of all others; None if there are none."""
        return list(zip(others_in_list(self.totals), others_in_list([x.sum(1) for x in self.shifts])))

    def left_by_others(self, i: int, across: Array | None) -> Array:
        """`R_-j` of every edge of the `i`-th set `(F, n, M)`; `across`: the shifts of all other sets."""
        e = self.edges[i]
        left = (self.residual if across is None else self.residual - across)[:, None] - sum_of_others(self.shifts[i], 1)
        return left + jnp.einsum("fnmd,fnd->fnm", *same_f(e.jacobian, e.point))


def predict_general(
    edges: list[Edge], residual: Float[Array, "f m"], moments: Sequence[tuple[Array, Array]], all_parts: bool = False
) -> GeneralPrediction:
    """The prediction of factors in the general form.

    **Arguments:**

    - `residual`: `y - h(x0)`.
    - `moments`: of each edge set mean `(F, n, d)` and covariance `(F, n, d, d)` of its cavities.
    - `all_parts`: edge by edge, also where an edge set has many scalars.
    """
    means, covariances = ([m[k] for m in moments] for k in (0, 1))
    edges = [e._replace(jacobian=same_f(e.jacobian, v)[0]) for e, v in zip(edges, covariances)]
    shifts = [jnp.einsum("fnmd,fnd->fnm", *same_f(e.jacobian, m - e.point)) for e, m in zip(edges, means)]
    count = 2 * residual.shape[1]
    few = [all_parts or e.jacobian.shape[1] < count or e.jacobian.shape[3] > 1 for e in edges]
    parts = [_covariances(e.jacobian, v) if short else None for e, v, short in zip(edges, covariances, few)]
    totals = [
        jnp.einsum("fnad,fnde,fnbe->fab", *same_f(e.jacobian, v), e.jacobian) if p is None else p.sum(1)
        for e, v, p in zip(edges, covariances, parts)
    ]
    return GeneralPrediction(edges, residual, means, covariances, parts, totals, shifts)


def definite_moments(edge: Edge, covariance: Array) -> tuple[Array, Array]:
    """Mean and covariance of cavities that are all proper."""
    return jnp.einsum("fnij,fnj->fni", covariance, edge.cavity.eta), covariance


def limit_moments(edge: Edge) -> tuple[Array, Array, Array]:
    """Mean and covariance of cavities along what is known, and the directions of which nothing is."""
    covariance, null = linalg.split_semidefinite(edge.cavity.lam)
    off = edge.cavity.eta - jnp.einsum("fnij,fnj->fni", *same_f(edge.cavity.lam, edge.point))
    return edge.point + jnp.einsum("fnij,fnj->fni", covariance, off), covariance, null


def _known_moments(edge: Edge) -> tuple[Array, Array, Array]:
    """Mean and covariance of cavities, and which are proper `(F, n)`: the others count as known at `x0`."""
    covariance, good = linalg.definite_inverse(edge.cavity.lam)
    mean, _ = definite_moments(edge, covariance)
    return jnp.where(good[..., None], mean, edge.point), jnp.where(good[..., None, None], covariance, 0), good


def unknown_directions(jacobian: Array, null: Array, outputs: int) -> Array:
    """Directions of the measurement that an unknown direction moves, each of unit length or (rounding) zero: `U U'`."""
    moved = jacobian @ null
    size = jnp.sum(moved**2, -2, keepdims=True)
    full = jnp.sum(jacobian**2, (-2, -1), keepdims=True) * jnp.sum(null**2, -2, keepdims=True)
    real = size > linalg.pivot_tolerance(jacobian.dtype, outputs) ** 2 * full
    moved = jnp.where(real, moved * lax.rsqrt(jnp.where(real, size, 1)), 0)
    return moved @ linalg.transpose(moved)


def same_f(a: Array, b: Array) -> tuple[Array, Array]:
    """Broadcast the factor axes of two arrays against each other."""
    f = max(a.shape[0], b.shape[0])
    return jnp.broadcast_to(a, (f, *a.shape[1:])), jnp.broadcast_to(b, (f, *b.shape[1:]))


def _covariances(jacobian: Array, cov: Array) -> Array:
    return linalg.symmetric(jacobian @ cov @ linalg.transpose(jacobian))
