"""Vector variables, against dense linear algebra in double precision."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gbplearn.core import vector
from gbplearn.core.vector import Projection, RowMessages, VectorGaussian

SHAPES = [(5, 8, 3), (8, 8, 2), (30, 8, 3), (1, 4, 1), (9, 1, 2)]  # rows, numbers of a vector, units


def example(n, p, u, shared, seed=0, strength=1.0, twice=False):
    """A prior, rows and messages; the first row has none."""
    r = np.random.default_rng(seed)
    root = (r.standard_normal((1 if shared else u, p, p)) / np.sqrt(p) + 0.3 * np.eye(p)).astype(np.float32)
    prior = VectorGaussian(jnp.asarray(r.standard_normal((u, p)), jnp.float32), jnp.asarray(root))
    rows = r.standard_normal((n, p)).astype(np.float32)
    lam = (strength * r.random((n, u))).astype(np.float32)
    lam[0] = 0
    if twice:
        rows[-1] = rows[0]
    return prior, *map(jnp.asarray, (rows, (lam * r.standard_normal((n, u))).astype(np.float32), lam))


def dense(prior, rows, eta, lam, unit, without=None):
    """Mean and covariance of a unit, by its precision matrix; `without` one row."""
    root = np.asarray(prior.root, float)[unit if len(prior.root) > 1 else 0]
    first = np.linalg.inv(root @ root.T)
    rows, eta, lam = (np.asarray(a) for a in (rows, eta, lam))
    keep = np.arange(len(rows)) != without
    x, c, e = rows[keep].astype(float), lam[keep, unit].astype(float), eta[keep, unit].astype(float)
    covariance = np.linalg.inv(first + x.T @ (c[:, None] * x))
    return covariance @ (first @ np.asarray(prior.mean[unit], float) + x.T @ e), covariance


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_along_rows_is_the_dense_posterior_and_its_cavities(shape, shared):
    prior, rows, eta, lam = example(*shape, shared)
    found = jax.jit(lambda x, e, c: prior.along(prior.projected(x), e, c))(rows, eta, lam)
    for u in range(shape[2]):
        mean, covariance = dense(prior, rows, eta, lam, u)
        np.testing.assert_allclose(found.weights[u], mean, atol=2e-5)
        np.testing.assert_allclose(found.mean[:, u], rows @ mean, atol=3e-5)
        np.testing.assert_allclose(found.variance[:, u], np.einsum("np,pq,nq->n", rows, covariance, rows), rtol=2e-5)
        for n in range(shape[0]):
            mean, covariance = dense(prior, rows, eta, lam, u, without=n)
            variance = rows[n] @ covariance @ rows[n]
            np.testing.assert_allclose(found.cavity_variance[n, u], variance, rtol=5e-5)
            np.testing.assert_allclose(found.cavity_mean[n, u], rows[n] @ mean, atol=5e-5 * (1 + variance**0.5))
        root = np.asarray(prior.root, float)[u if len(prior.root) > 1 else 0]
        smaller = 2 * np.linalg.slogdet(root)[1] - np.linalg.slogdet(dense(prior, rows, eta, lam, u)[1])[1]
        np.testing.assert_allclose(found.log_det[u], smaller, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 8, 3), (8, 8, 3)])
def test_primal_equals_dual(shape):
    prior, rows, eta, lam = example(*shape, shared=False)
    dual, primal = prior.along(prior.projected(rows), eta, lam), prior.along(Projection(rows), eta, lam)
    for a, b in zip(dual, primal):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_absorbed_is_the_dense_posterior_and_says_what_was_gained(shape):
    prior, rows, eta, lam = example(*shape, shared=False)
    mean = prior.along(prior.projected(rows), eta, lam).weights
    after = prior.absorbed(RowMessages(Projection(rows), eta, lam, mean))
    for u in range(shape[2]):
        expected = dense(prior, rows, eta, lam, u)
        np.testing.assert_allclose(after.mean[u], expected[0], atol=2e-5)
        np.testing.assert_allclose(after.covariance[u], expected[1], atol=1e-5 * expected[1].max())
    np.testing.assert_allclose(after.gained, after.kl(prior).sum(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_a_shared_covariance_is_the_mean_of_those_of_the_units(shape):
    prior, rows, eta, lam = example(*shape, shared=True)
    mean = prior.along(prior.projected(rows), eta, lam).weights
    after = prior.absorbed(RowMessages(Projection(rows), eta, lam, mean))
    expected = np.mean([dense(prior, rows, eta, lam, u)[1] for u in range(shape[2])], 0)
    np.testing.assert_allclose(after.covariance[0], expected, atol=1e-5 * expected.max())


@hypothesis.given(
    st.sampled_from([(4, 6), (9, 3)]), st.integers(0, 1000), st.floats(-6, 8), st.booleans(), st.booleans()
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_beliefs_stay_proper_whatever_the_strength_of_messages(shape, seed, digits, shared, twice):
    """Also where rows are repeated, and messages are 10⁸ times as precise as the prior."""
    prior, rows, eta, lam = example(*shape, 2, shared, seed, 10.0**digits, twice)
    found = prior.along(prior.projected(rows), eta, lam)
    assert all(np.isfinite(np.asarray(a)).all() for a in found)
    assert (np.asarray(found.variance) > 0).all()
    assert (np.asarray(found.cavity_variance) >= np.asarray(found.variance)).all()
    messages = RowMessages(Projection(rows), eta, lam, found.weights)
    after = prior.absorbed(messages)
    assert after.all_proper()
    assert (np.asarray(after.variance) <= np.asarray(prior.variance) * (1 + 1e-3)).all()


def test_moments_sampling_and_kl():
    prior, *_ = example(4, 3, 2, shared=False)
    draws = np.asarray(prior.sample(jax.random.PRNGKey(0), (20_000,)))
    for u in range(2):
        np.testing.assert_allclose(np.cov(draws[:, u].T), prior.covariance[u], atol=0.05)
    np.testing.assert_allclose(prior.kl(prior), 0, atol=1e-9)
    wide = prior.scaled(2.0)
    # Of p numbers whose standard deviations are half: (p / 4 - p + p log 4) / 2.
    np.testing.assert_allclose(prior.kl(wide), 0.5 * (3 / 4 - 3 + 3 * np.log(4)), rtol=1e-5)


def test_drift_is_what_filtering_says():
    prior, *_ = example(4, 3, 2, shared=True)
    original = VectorGaussian.from_moments(np.ones((2, 3)), 2.0, shared=True)
    forgot = prior.drifted(original, 0.0, 0.0, 0.5)
    np.testing.assert_allclose(forgot.covariance, 2 * prior.covariance, rtol=1e-5)
    moved = prior.drifted(original, 0.25, 0.5, 1.0)
    expected = 0.75 * (np.asarray(prior.covariance) + 0.25 * np.eye(3)) + 0.25 * np.asarray(original.covariance)
    np.testing.assert_allclose(moved.covariance, expected, atol=1e-5)
    np.testing.assert_allclose(moved.mean, 0.75 * np.asarray(prior.mean) + 0.25, atol=1e-6)
    np.testing.assert_allclose(prior.drifted(original, 1.0, 0.0, 1.0).covariance, original.covariance, atol=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match="does not fit"):
        VectorGaussian(jnp.zeros((3, 2)), jnp.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="every std"):
        VectorGaussian.from_moments(np.zeros((2, 2)), 0.0, shared=False)
    with pytest.raises(ValueError, match="same std"):
        VectorGaussian.from_moments(np.zeros((2, 2)), [[1.0, 1.0], [2.0, 1.0]], shared=True)
    with pytest.raises(ValueError, match="positive definite"):
        VectorGaussian.from_covariance(np.zeros((1, 2)), -np.eye(2)[None], jnp.float32)


@pytest.mark.parametrize("least", [1e-2, 1e-9])
def test_roots_of_what_is_left(least):
    """By a Cholesky factor, or by eigenvectors where hardly anything is left of a direction."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((2, 6, 6)))[0]
    values = np.array([least, 0.1, 0.5, 0.9, 1.0, 1.0])
    n = (turn * values) @ np.swapaxes(turn, 1, 2)
    root, spread = vector._root_of_definite(n)
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2), n, atol=1e-12)
    assert spread == pytest.approx(2 * (values - 1 - np.log(values)).sum(), rel=1e-5)
