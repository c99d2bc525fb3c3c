"""`S` and `R` of factors against sums written out in NumPy, factor by factor."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.edges.indexed import index_edges
from gbplearn.engine.prediction import (
    Edge,
    PooledEdges,
    edge_sets,
    held_spread,
    noise_with_held,
    predict,
    predict_scalar,
    predicted_covariance,
)
from gbplearn.factors.operators import Entries
from helpers import random_spd


def scalar_edges(rng, factors, lengths, flat=()):
    """Edge sets with random cavities; `flat`: (edge set, factor, edge) that nothing is known of."""
    out = []
    for n in lengths:
        lam, mean = rng.uniform(0.5, 2.0, (factors, n)), rng.standard_normal((factors, n))
        for i, f, e in flat:
            if i == len(out):
                lam[f, e] = 0
        cavity = gbp.Gaussian(jnp.asarray(lam * mean), jnp.asarray(lam))
        j, x0 = (jnp.asarray(rng.standard_normal((factors, n))) for _ in range(2))
        out.append(Edge(j, cavity, x0, not flat))
    return out


def written_out(edges, f):
    """Of one factor the Jacobian, mean, variance and point of each edge, in one row."""
    row = {k: [] for k in "jmvx"}
    for e in edges:
        lam, eta = np.asarray(e.cavity.lam)[f], np.asarray(e.cavity.eta)[f]
        known = lam > 0
        safe = np.where(known, lam, 1)
        row["j"].append(np.asarray(e.jacobian)[f])
        row["m"].append(np.where(known, eta / safe, np.asarray(e.point)[f]))
        row["v"].append(np.where(known, 1 / safe, 0))
        row["x"].append(np.asarray(e.point)[f])
    return (np.concatenate(row[k]) for k in "jmvx")


@pytest.mark.parametrize("pooled", [False, True])
def test_scalars_with_and_without_each_edge(x64, pooled):
    rng = np.random.default_rng(0)
    factors, lengths = 4, (3, 1, 2)
    edges, residual = scalar_edges(rng, factors, lengths), rng.standard_normal((factors, 1))
    pools, s_pool, r_pool = [], np.zeros(factors), np.zeros(factors)
    if pooled:
        index = rng.integers(0, 5, (factors, 2))
        j, m, v, move, g = (rng.standard_normal(s) for s in ((factors, 2), 5, 5, 5, (factors, 1)))
        v = v**2
        at, belief = index_edges(index, (5,)), gbp.Gaussian(jnp.asarray(m / v), jnp.asarray(1 / v))
        pools = [PooledEdges(Entries(at, jnp.asarray(j)), at, belief, *map(jnp.asarray, (m, move, g)))]
        for f in range(factors):
            s_pool[f] = np.sum(j[f] ** 2 * v[index[f]])
            r_pool[f] = g[f, 0] * s_pool[f] - np.sum(j[f] * move[index[f]])
    found = predict_scalar(edges, pools, jnp.asarray(residual))
    ends = np.cumsum([0, *lengths])
    for f in range(factors):
        j, m, v, x = written_out(edges, f)
        np.testing.assert_allclose(found.spread[f, 0], np.sum(j * j * v) + s_pool[f], rtol=1e-12)
        expected = residual[f, 0] - np.sum(j * (m - x)) + r_pool[f]
        np.testing.assert_allclose(found.innovation[f, 0], expected, rtol=1e-10)
        for i, e in enumerate(edges):
            without, left = found.others[i], found.explained_by(i, e)
            for k in range(lengths[i]):
                rest = np.arange(len(j)) != ends[i] + k
                mine = ends[i] + k
                s = np.sum((j * j * v)[rest]) + s_pool[f]
                r = residual[f, 0] + j[mine] * x[mine] - np.sum((j * (m - x))[rest]) + r_pool[f]
                np.testing.assert_allclose(jnp.broadcast_to(without, e.jacobian.shape)[f, k], s, rtol=1e-12)
                np.testing.assert_allclose(left[f, k], r, rtol=1e-10)


def test_the_others_of_a_vague_edge_keep_their_digits():
    """An edge that holds all but 1e-10 of S, far away: by subtraction nothing would be left in float32."""
    j, lam = np.ones((1, 3), np.float32), np.array([[1.0, 1.0, 1e-10]], np.float32)
    mean = np.array([[0.25, -0.5, 3e4]], np.float32)
    edge = Edge(jnp.asarray(j), gbp.Gaussian(jnp.asarray(lam * mean), jnp.asarray(lam)), jnp.zeros((1, 3)), True)
    found = predict_scalar([edge], [], jnp.asarray([[0.125]], jnp.float32))
    np.testing.assert_allclose(found.others[0][0, 2], 2.0, rtol=1e-6)
    np.testing.assert_allclose(found.explained_by(0, edge)[0, 2], 0.125 - 0.25 + 0.5, rtol=1e-6)


def test_unknown_cavities_are_counted():
    edges = scalar_edges(np.random.default_rng(1), 3, (2, 2), flat=[(0, 1, 0), (1, 1, 1), (1, 2, 0)])
    found = predict_scalar(edges, [], jnp.zeros((3, 1)))
    assert found.unknown is not None
    np.testing.assert_array_equal(found.unknown[1][:, 0], [0, 2, 1])
    for f in range(3):
        j, _, v, _ = written_out(edges, f)
        np.testing.assert_allclose(found.spread[f, 0], np.sum(j * j * v), rtol=1e-5)


def blocks_and_scalars():
    rng = np.random.default_rng(2)
    graph = gbp.FactorGraph()
    p = graph.variable("p", (4, 3), prior=gbp.Gaussian.from_moments(np.zeros((4, 3)), covariance=np.eye(3)), block=True)
    s = graph.variable("s", (4,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    k = graph.variable("k", (4,), prior=gbp.Gaussian.from_moments(0.5, rng.uniform(0.1, 0.3, 4)))
    graph.add(
        gbp.Factor(
            lambda a, b, c, d: jnp.stack([a[0] * c + d * b, a[1] - b * c + d]),
            (p[:], s[:], s[::-1], k[:]),
            y=rng.standard_normal((4, 2)),
            sigma=0.5,
            name="f",
        )
    )
    graph.hold("k")
    return graph.problem(None, "auto"), rng


def test_blocks_scalars_and_what_is_held(x64):
    problem, rng = blocks_and_scalars()
    group, points = problem.groups[0], {"p": rng.standard_normal((4, 3)), "s": rng.standard_normal(4)}
    points = {n: jnp.asarray(x) for n, x in points.items()}
    linear = group.linearise({**points, **problem.fixed})
    lam = np.stack([random_spd(rng, 3) for _ in range(4)])[:, None]
    lam[3] = 0  # of one block nothing is known
    eta = np.einsum("fnij,fnj->fni", lam, rng.standard_normal((4, 1, 3)))
    precision, mean = rng.uniform(0.5, 2, (2, 4, 1)), rng.standard_normal((2, 4, 1))
    cavities = [gbp.Gaussian(jnp.asarray(eta), jnp.asarray(lam))]
    cavities += [gbp.Gaussian(jnp.asarray(a * b), jnp.asarray(a)) for a, b in zip(precision, mean)]
    edges, pools = edge_sets(group, linear, cavities, [None] * 3, {}, points)
    held = held_spread(group, problem.held, linear)
    assert held is not None
    found = predict(group, edges, pools, group.y - linear.value, held)
    np.testing.assert_array_equal(found.known, [True] * 3 + [False])
    scale = rng.uniform(0.2, 1, (4, 2))
    noise = noise_with_held(group, held, jnp.asarray(scale))
    jp, js, jr, jk = (np.asarray(j.each()) for j in group.operators(linear))
    p0, s0 = np.asarray(points["p"]), np.asarray(points["s"])
    every = predicted_covariance(group, edges[1:], [])
    for f in range(4):
        held_f = jk[f, 0] @ jk[f, 0].T * float(problem.held["k"].variance[f])
        s = held_f.copy()
        r = np.asarray(group.y - linear.value)[f].copy()
        if f < 3:
            cov = np.linalg.inv(lam[f, 0])
            s += jp[f, 0] @ cov @ jp[f, 0].T
            r -= jp[f, 0] @ (cov @ eta[f, 0] - p0[f])
        scalars = np.zeros((2, 2))
        for i, (j, at) in enumerate(((js, s0[f]), (jr, s0[::-1][f]))):
            scalars += j[f, 0] @ j[f, 0].T / precision[i, f, 0]
            r -= j[f, 0, :, 0] * (mean[i, f, 0] - at)
        np.testing.assert_allclose(found.covariance[f], s + scalars, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.innovation[f], r, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(every[f], scalars, rtol=1e-10, atol=1e-12)
        root = np.sqrt(np.outer(scale[f], scale[f]))
        np.testing.assert_allclose(noise[f], 0.25 * np.eye(2) + held_f * root, rtol=1e-10, atol=1e-12)
