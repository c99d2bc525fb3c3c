"""Gaussian algebra: closed forms and invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import gbplearn as gbp
from helpers import random_spd

finite = st.floats(-1e3, 1e3, width=32)
positive = st.floats(0.0625, 1e3, width=32)


@given(st.tuples(finite, positive), st.tuples(finite, positive), finite)
def test_product_is_the_product_of_densities(a, b, x):
    """log p_a(x) + log p_b(x) and log p_ab(x) differ by a constant in x."""
    p, q = gbp.Gaussian.from_moments(*a), gbp.Gaussian.from_moments(*b)
    lam = 1 / a[1] ** 2 + 1 / b[1] ** 2
    mean = (a[0] / a[1] ** 2 + b[0] / b[1] ** 2) / lam
    product = p * q
    assert float(product.mean) == pytest.approx(mean, rel=1e-4, abs=1e-3 * max(a[1], b[1]))
    assert float(product.std) == pytest.approx(lam**-0.5, rel=1e-5)


@given(st.tuples(finite, positive), st.tuples(finite, positive))
def test_quotient_undoes_product(a, b):
    p, q = gbp.Gaussian.from_moments(*a), gbp.Gaussian.from_moments(*b)
    back = (p * q) / q
    scale = float(p.lam + q.lam)
    assert float(back.lam) == pytest.approx(float(p.lam), abs=1e-6 * scale)
    assert float(back.eta) == pytest.approx(float(p.eta), abs=1e-5 * (abs(float(p.eta)) + abs(float(q.eta)) + 1e-3))


def test_block_moments_log_density_and_kl(x64):
    rng = np.random.default_rng(0)
    mean, other = rng.standard_normal((2, 5, 3))
    cov = np.stack([random_spd(rng, 3) + 0.2 * np.eye(3) for _ in range(5)])
    cov_other = np.stack([random_spd(rng, 3) + 0.2 * np.eye(3) for _ in range(5)])
    p = gbp.Gaussian.from_moments(mean, covariance=cov)
    q = gbp.Gaussian.from_moments(other, covariance=cov_other)
    np.testing.assert_allclose(p.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(p.covariance, cov, rtol=1e-10)
    np.testing.assert_allclose(p.std, np.sqrt(np.diagonal(cov, axis1=1, axis2=2)), rtol=1e-10)
    x = rng.standard_normal((5, 3))
    right = [stats.multivariate_normal(m, c).logpdf(v) for m, c, v in zip(mean, cov, x)]
    np.testing.assert_allclose(p.log_density(x), right, rtol=1e-10)
    for i in range(5):
        inv = np.linalg.inv(cov_other[i])
        d = mean[i] - other[i]
        logs = np.linalg.slogdet(cov_other[i])[1] - np.linalg.slogdet(cov[i])[1]
        kl = 0.5 * (np.trace(inv @ cov[i]) - 3 + logs + d @ inv @ d)
        assert float(p.kl(q)[i]) == pytest.approx(kl, rel=1e-9)
    np.testing.assert_allclose((p * q / q).covariance, cov, rtol=1e-8)
    np.testing.assert_allclose(p[1:3].mean, mean[1:3], rtol=1e-10)


def test_scalar_log_density_and_kl(x64):
    p, q = gbp.Gaussian.from_moments([0.3, -1.0], [0.5, 2.0]), gbp.Gaussian.from_moments([0.0, 1.0], [1.0, 0.7])
    np.testing.assert_allclose(p.log_density(0.2), stats.norm([0.3, -1.0], [0.5, 2.0]).logpdf(0.2), rtol=1e-12)
    m, s, n, t = np.array([0.3, -1.0]), np.array([0.5, 2.0]), np.array([0.0, 1.0]), np.array([1.0, 0.7])
    right = np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5
    np.testing.assert_allclose(p.kl(q), right, rtol=1e-12)
    np.testing.assert_allclose(p.kl(p), 0, atol=1e-15)


def test_samples_have_the_moments():
    rng = np.random.default_rng(1)
    cov = random_spd(rng, 3) + 0.2 * np.eye(3)
    p = gbp.Gaussian.from_moments(np.array([1.0, 2.0, 3.0]), covariance=cov)
    draws = np.asarray(p.sample(jax.random.PRNGKey(0), (20_000,)))
    assert draws.shape == (20_000, 3)
    # Four standard errors of the mean, and of a covariance estimate.
    assert np.abs(draws.mean(0) - [1, 2, 3]).max() < 4 * np.sqrt(np.diag(cov).max() / 20_000)
    assert np.abs(np.cov(draws.T) - cov).max() < 4 * np.diag(cov).max() * np.sqrt(2 / 20_000)
    s = gbp.Gaussian.from_moments([1.0, -1.0], [0.1, 2.0]).sample(jax.random.PRNGKey(1), (20_000,))
    np.testing.assert_allclose(s.std(0), [0.1, 2.0], rtol=0.03)


def test_nothing_known_is_neither_nan_nor_a_number():
    flat = gbp.Gaussian.flat((2,))
    assert np.asarray(flat.mean).tolist() == [0.0, 0.0]
    assert np.isinf(np.asarray(flat.std)).all()
    assert not bool(flat.proper.any())
    block = gbp.Gaussian(jnp.asarray([[2.0, 0.0]]), jnp.asarray([[[4.0, 0.0], [0.0, 0.0]]]))  # second direction unknown
    np.testing.assert_allclose(block.mean, [[0.5, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(block.std, [[0.5, np.inf]])
    assert np.isinf(block.covariance[0, 1, 1])


@given(st.floats(-(2.0**40), 2.0**40, width=32))
def test_point_holds_its_value_exactly(value):
    p = gbp.Gaussian.point(value)
    assert float(p.mean) == np.float32(value)
    other = gbp.Gaussian.from_moments(7.0, 0.01)
    assert float((p * other).mean) == pytest.approx(np.float32(value), rel=1e-7, abs=1e-18)
    assert float(p.std) < 1e-11


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gbp.Gaussian.from_moments(0.0, 0.0), "std must be > 0"),
        (lambda: gbp.Gaussian.from_moments(np.nan, 1.0), "NaN"),
        (lambda: gbp.Gaussian.from_moments(0.0), "one of std and covariance"),
        (lambda: gbp.Gaussian.from_moments([0.0, 1.0], covariance=np.eye(3)), "does not fit"),
        (lambda: gbp.Gaussian.from_moments([0.0, 1.0], covariance=-np.eye(2)), "positive definite"),
        (lambda: gbp.Gaussian(jnp.zeros(3), jnp.zeros(2)), "same shape"),
        (lambda: gbp.Gaussian.flat((2, 2)) * gbp.Gaussian.flat((2, 2), block=True), "do not mix"),
        (lambda: gbp.Gaussian.flat((2, 2)).covariance, "block form"),
    ],
)
def test_bad_gaussians_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_means_of_blocks_are_differentiable():
    """`m = lam^-1 eta`, so `d(sum m) / d eta = lam^-1 1`."""
    lam = jnp.asarray([[2.0, 0.5], [0.5, 1.0]])
    slope = jax.grad(lambda eta: gbp.Gaussian(eta, lam).mean.sum())(jnp.asarray([1.0, 2.0]))
    np.testing.assert_allclose(slope, np.linalg.solve(lam, np.ones(2)), rtol=1e-5)
