"""The message update against the paper's Schur complement, and its limits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gbplearn.core.gaussian import Gaussian
from gbplearn.core.linalg import limit_inverse, others_in_list, spd_inverse, split_semidefinite, sum_of_others
from gbplearn.engine.update import Edge, general_messages, scalar_messages
from helpers import random_spd, schur_messages


def random_factors(rng, factors, m, dims, precision=(0.3, 3.0)):
    """Random linearised factors: for each variable Jacobian, cavity, and linearisation point away from the mean."""
    out = []
    for d in dims:
        lam = np.stack([random_spd(rng, d) + 0.3 * np.eye(d) for _ in range(factors)])
        lam = lam * np.exp(rng.uniform(*np.log(precision), factors))[:, None, None]
        out.append(
            (
                rng.standard_normal((factors, m, d)),
                rng.standard_normal((factors, d)),
                lam,
                rng.standard_normal((factors, d)),
            )
        )
    y, h0 = rng.standard_normal((2, factors, m))
    noise = np.stack([random_spd(rng, m) + 0.1 * np.eye(m) for _ in range(factors)])
    return out, y, h0, noise


def expected(parts, y, h0, noise):
    rows = []
    for f in range(len(y)):
        js, etas, lams, x0s = ([p[k][f] for p in parts] for k in range(4))
        rows.append(schur_messages(js, etas, lams, x0s, y[f], h0[f], noise[f]))
    return [(np.stack([r[i][0] for r in rows]), np.stack([r[i][1] for r in rows])) for i in range(len(parts))]


def deal(parts, split):
    """Variables dealt into edge sets of the given sizes (all of one dimension within a set), in plain NumPy."""
    ends = np.cumsum(split)
    return [[np.stack([p[k] for p in parts[e - n : e]], 1) for k in range(4)] for e, n in zip(ends, split)]


def as_edges(sets, proper=True):
    return [Edge(j, Gaussian(eta, lam), x0, proper) for j, eta, lam, x0 in sets]


@partial(jax.jit, static_argnames="proper")
def compiled_general(sets, residual, noise, scale, *, proper):
    return general_messages(as_edges(sets, proper), residual, noise, scale)


def general(parts, residual, noise, scale=None, *, split, proper=True):
    return compiled_general(deal(parts, split), residual, noise, scale, proper=proper)


def scalar(parts, residual, noise, *, split, proper=True):
    """The quick update for M = 1 over scalars."""
    return compiled_scalar(deal(parts, split), residual, noise, proper=proper)


@partial(jax.jit, static_argnames="proper")
def compiled_scalar(sets, residual, noise, *, proper):
    edges = [
        Edge(e.jacobian[..., 0, 0], Gaussian(e.cavity.eta[..., 0], e.cavity.lam[..., 0, 0]), e.point[..., 0], proper)
        for e in as_edges(sets)
    ]
    return scalar_messages(edges, residual[:, 0], noise[:, 0, 0], None)[0]


# Every pair of two of the three sizes is in the default run; the slow run has all combinations.
BLOCKS = {(2, 2), (10, 2), (1, 5), (3, 5), (2, 50)}
SIZES = [
    pytest.param(m, v, dim, marks=() if ((m, v) in BLOCKS) == (dim == 3) else pytest.mark.slow)
    for dim in (1, 3) for v in (2, 5, 50) for m in (1, 2, 3, 10)
]  # fmt: skip


@pytest.mark.parametrize(("m", "v", "dim"), SIZES)
def test_messages_equal_the_schur_complement(m, v, dim, x64):
    rng = np.random.default_rng([m, v, dim])
    parts, y, h0, noise = random_factors(rng, 3, m, [dim] * v)
    right = expected(parts, y, h0, noise)
    for split in ((v,), (1, v - 1)):
        got = general(parts, y - h0, noise, split=split)
        eta = np.concatenate([np.asarray(g.eta) for g in got], 1)
        lam = np.concatenate([np.asarray(g.lam) for g in got], 1)
        for i, (right_eta, right_lam) in enumerate(right):
            np.testing.assert_allclose(eta[:, i], right_eta, rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(lam[:, i], right_lam, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("v", [2, 5, 50])
def test_scalar_update_equals_the_schur_complement(v, x64):
    rng = np.random.default_rng(v)
    parts, y, h0, noise = random_factors(rng, 4, 1, [1] * v)
    got = scalar(parts, y - h0, noise, split=(1, v - 1))
    eta = np.concatenate([np.asarray(g.eta) for g in got], 1)
    lam = np.concatenate([np.asarray(g.lam) for g in got], 1)
    for i, (right_eta, right_lam) in enumerate(expected(parts, y, h0, noise)):
        np.testing.assert_allclose(eta[:, i], right_eta[:, 0], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(lam[:, i], right_lam[:, 0, 0], rtol=1e-8, atol=1e-8)


def test_mixed_scalars_and_blocks_equal_the_schur_complement(x64):
    rng = np.random.default_rng(7)
    parts, y, h0, noise = random_factors(rng, 3, 2, [1, 1, 1, 1, 1, 3, 3, 2])
    got = general(parts, y - h0, noise, split=(5, 2, 1))
    flat = [(np.asarray(g.eta[:, i]), np.asarray(g.lam[:, i])) for g in got for i in range(g.shape[1])]
    for (eta, lam), (right_eta, right_lam) in zip(flat, expected(parts, y, h0, noise)):
        np.testing.assert_allclose(eta, right_eta, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(lam, right_lam, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("m", [1, 3])
def test_one_dominating_edge_keeps_its_digits_in_float32(m):
    """One cavity 1e10 times wider than the others: subtracting it from the shared S would leave nothing."""
    rng = np.random.default_rng(m)
    parts, y, h0, noise = random_factors(rng, 3, m, [1] * 12)
    wide = parts[4]
    parts[4] = (wide[0], wide[1] * 1e-10, wide[2] * 1e-10, wide[3])
    right = expected(parts, y, h0, noise)
    got = general(parts, y - h0, noise, split=(12,))[0]
    assert got.lam.dtype == jnp.float32
    np.testing.assert_allclose(got.lam[:, 4], right[4][1], rtol=2e-5)
    if m == 1:
        one = scalar(parts, y - h0, noise, split=(12,))[0]
        np.testing.assert_allclose(one.lam[:, 4], right[4][1][:, 0, 0], rtol=2e-6)


@pytest.mark.parametrize("m", [1, 2])
def test_improper_cavity_is_the_limit_of_a_wide_one(m, x64):
    rng = np.random.default_rng(m)
    parts, y, h0, noise = random_factors(rng, 3, m, [1, 1, 1])
    wide, none = list(parts), list(parts)
    j, eta, lam, x0 = parts[1]
    wide[1] = (j, eta * 0 + 1e-12 * x0, lam * 0 + 1e-12, x0)
    none[1] = (j, eta * 0, lam * 0, x0)
    right = expected(wide, y, h0, noise)
    got = general(none, y - h0, noise, split=(3,), proper=False)[0]
    for i in range(3):
        np.testing.assert_allclose(got.lam[:, i], right[i][1], atol=1e-9)
        np.testing.assert_allclose(got.eta[:, i], right[i][0], atol=1e-9)
    assert bool(jnp.all(got.lam[:, 1] > 0))  # a finite message to itself
    if m == 1:
        assert float(jnp.abs(got.lam[:, [0, 2]]).max()) == 0.0  # and none to the others
        one = scalar(none, y - h0, noise, split=(3,), proper=False)[0]
        np.testing.assert_allclose(one.lam, got.lam[..., 0, 0], atol=1e-12)
        np.testing.assert_allclose(one.eta, got.eta[..., 0], atol=1e-12)


def test_block_known_in_some_directions_passes_on_what_is_known(x64):
    """Nothing known along one direction of a block: others hear about the measurement as far as it is free of that."""
    rng = np.random.default_rng(3)
    parts, y, h0, noise = random_factors(rng, 4, 2, [3, 2])
    j, _, _, x0 = parts[0]
    u = np.array([1.0, 2.0, -1.0])
    lam = np.broadcast_to(4.0 * np.outer(u, u) + np.diag([0, 0, 5.0]), (4, 3, 3))  # rank 2
    eta = np.einsum("fij,fj->fi", lam, rng.standard_normal((4, 3)))
    almost = [(j, eta + 1e-11 * x0, lam + 1e-11 * np.eye(3), x0), parts[1]]
    exact = [(j, eta, lam, x0), parts[1]]
    right = expected(almost, y, h0, noise)
    got = general(exact, y - h0, noise, split=(1, 1), proper=False)
    for g, (right_eta, right_lam) in zip(got, right):
        np.testing.assert_allclose(g.lam[:, 0], right_lam, atol=1e-7)
        np.testing.assert_allclose(g.eta[:, 0], right_eta, atol=1e-7)


def test_robust_scale_is_a_scale_on_the_noise(x64):
    rng = np.random.default_rng(5)
    parts, y, h0, noise = random_factors(rng, 3, 2, [1, 2])
    noise = noise * np.eye(2)
    k = rng.uniform(0.1, 1, (3, 2))
    scaled = noise / np.sqrt(k[:, :, None] * k[:, None, :])
    got = general(parts, y - h0, noise, k, split=(1, 1))
    for g, (right_eta, right_lam) in zip(got, expected(parts, y, h0, scaled)):
        np.testing.assert_allclose(g.lam[:, 0], right_lam, rtol=1e-10)
        np.testing.assert_allclose(g.eta[:, 0], right_eta, rtol=1e-10)
    off = general(parts, y - h0, noise, np.zeros((3, 2)), split=(1, 1))
    assert all(float(jnp.abs(g.lam).max()) == 0.0 for g in off)


@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 40, 300])
def test_sum_of_others_is_a_loop(n):
    x = np.random.default_rng(n).standard_normal((2, n, 3)).astype(np.float32)
    right = np.stack([np.delete(x.astype(float), i, 1).sum(1) for i in range(n)], 1)
    np.testing.assert_allclose(jax.jit(sum_of_others, static_argnums=1)(x, 1), right, atol=1e-5)


def test_sum_of_others_does_not_cancel():
    x = jnp.asarray([1e12, 1.0, 2.0, 3.0] + [0.5] * 30, jnp.float32)
    assert float(sum_of_others(x, 0)[0]) == pytest.approx(6 + 15, rel=1e-6)
    a, b = others_in_list([jnp.asarray(1e12), jnp.asarray(1.0)])
    assert (float(a), float(b)) == (1.0, pytest.approx(1e12))


def test_limit_inverse_and_split(x64):
    rng = np.random.default_rng(0)
    s, g = random_spd(rng, 4) + np.eye(4), rng.standard_normal((4, 2))
    right = np.linalg.inv(s + 1e6 * g @ g.T)  # its own error is 1e-6
    np.testing.assert_allclose(limit_inverse(jnp.asarray(s), jnp.asarray(g @ g.T)), right, atol=1e-5)
    np.testing.assert_allclose(limit_inverse(jnp.asarray(s), jnp.zeros((4, 4))), np.linalg.inv(s), atol=1e-12)
    np.testing.assert_allclose(spd_inverse(jnp.asarray(s)), np.linalg.inv(s), rtol=1e-10)
    inverse, null = split_semidefinite(jnp.asarray(g @ g.T))
    a = g @ g.T
    np.testing.assert_allclose(a @ np.asarray(inverse) @ a, a, atol=1e-10)
    np.testing.assert_allclose(a @ np.asarray(null), 0, atol=1e-6)
    assert int(np.linalg.matrix_rank(np.asarray(null))) == 2
