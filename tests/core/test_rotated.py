"""Beliefs along principal axes (`core/rotated.py`) against dense matrices: all weights of a layer as one vector."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbplearn.core.rotated import RotatedGaussian
from gbplearn.core.sensitivity import FullSensitivity, RowSensitivity, steps

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))


def turned(r, n):
    return np.linalg.qr(r.standard_normal((n, n)))[0]


def belief(r, units, p, batches=2.0):
    """With axes at random; of three batches, after which none are found anew."""
    start = RotatedGaussian.from_moments(r.standard_normal((units, p)), 1.0)
    parts = {"spread": r.uniform(0.1, 2, (units, p)), "unit_axes": turned(r, units), "axes": turned(r, p)}
    return dataclasses.replace(
        start, batches=jnp.asarray(batches), **{k: jnp.asarray(v, start.dtype) for k, v in parts.items()}
    )


def dense(b):
    """Its covariance of all weights, one unit after the other."""
    axes = np.kron(np.asarray(b.unit_axes, float), np.asarray(b.axes, float))
    return axes @ np.diag(np.asarray(b.spread, float).ravel()) @ axes.T


def sensitivity(r, units, p, batch, classes, rows):
    if rows:
        return RowSensitivity(
            jnp.asarray(r.standard_normal((batch, p)), jnp.float32),
            jnp.asarray(r.standard_normal((batch, classes, units)), jnp.float32),
        )
    return FullSensitivity(jnp.asarray(r.standard_normal((batch, classes, units, p)), jnp.float32))


def jacobian(of):
    if isinstance(of, RowSensitivity):
        each = np.einsum("bcu,bp->bcup", np.asarray(of.slopes, float), np.asarray(of.rows, float))
    else:
        each = np.asarray(of.each, float)
    return each.reshape(each.shape[0] * each.shape[1], -1)


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.booleans(), st.integers(0, 1000))
def test_a_joint_update_keeps_the_diagonal_of_the_dense_posterior(shape, rows, seed):
    (units, p, batch, classes), r = shape, np.random.default_rng(seed)
    b = belief(r, units, p)
    of = sensitivity(r, units, p, batch, classes, rows)
    j, s = jacobian(of), dense(b)
    found, kept = b.output_covariance(of)
    np.testing.assert_allclose(found, j @ s @ j.T, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found, b.output_covariance(of, True)[0], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(b.output_variance(of).ravel(), np.diag(j @ s @ j.T), rtol=2e-4, atol=2e-4)

    d = np.diag(r.uniform(0.5, 2, len(j)))
    gain = np.linalg.inv(np.linalg.inv(d) + j @ s @ j.T)
    alpha = r.standard_normal((batch, classes))
    after = b.absorb(of, kept, gain, alpha, jnp.asarray(b.moved(of, kept, alpha)))
    mean = np.asarray(b.mean, float).ravel() + s @ j.T @ alpha.ravel()
    np.testing.assert_allclose(np.asarray(after.mean).ravel(), mean, rtol=1e-3, atol=1e-3)
    axes = np.kron(np.asarray(b.unit_axes, float), np.asarray(b.axes, float))
    kept_of = np.diag(axes.T @ (s - s @ j.T @ gain @ j @ s) @ axes)
    np.testing.assert_allclose(np.asarray(after.spread).ravel(), kept_of, rtol=2e-3, atol=1e-4)
    assert after.gained == pytest.approx(float(after.kl(b)[0]), rel=2e-3, abs=2e-3)
    np.testing.assert_allclose(
        steps(of, after.mean - b.mean).ravel(), (j @ (mean - np.asarray(b.mean).ravel())), rtol=2e-3, atol=2e-3
    )


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_other_axes_are_those_of_what_was_absorbed_and_keep_variances_along_them(shape, seed):
    (units, p, batch, classes), r = shape, np.random.default_rng(seed)
    b = belief(r, units, p, batches=3.0)  # the fourth finds them anew
    of = sensitivity(r, units, p, batch, classes, rows=True)
    nothing = np.zeros((batch * classes, batch * classes))
    after = b.absorb(of, b.output_covariance(of)[1], nothing, np.zeros((batch, classes)), b.mean)
    rows, slopes = np.asarray(of.rows, float), np.asarray(of.slopes, float).reshape(-1, units)
    for axes, moments in ((after.axes, rows.T @ rows), (after.unit_axes, slopes.T @ slopes)):
        u = np.asarray(axes, float)
        np.testing.assert_allclose(u.T @ u, np.eye(len(u)), atol=1e-5)
        along = u.T @ moments @ u
        np.testing.assert_allclose(along, np.diag(np.diag(along)), atol=1e-3 * (1 + np.abs(moments).max()))
    axes = np.kron(np.asarray(after.unit_axes, float), np.asarray(after.axes, float))
    np.testing.assert_allclose(
        np.asarray(after.spread).ravel(), np.diag(axes.T @ dense(b) @ axes), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_allclose(np.asarray(after.spread).sum(), np.trace(dense(b)), rtol=1e-4)
    np.testing.assert_allclose(after.mean, b.mean, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 1000))
def test_divergence_variance_and_drift_are_those_of_dense_covariances(units, p, seed):
    r = np.random.default_rng(seed)
    a, b = belief(r, units, p), belief(r, units, p)
    mine, theirs = dense(a), dense(b)
    d = (np.asarray(a.mean, float) - np.asarray(b.mean, float)).ravel()
    back = np.linalg.inv(theirs)
    expected = 0.5 * (
        np.trace(back @ mine) - len(d) + np.linalg.slogdet(theirs)[1] - np.linalg.slogdet(mine)[1] + d @ back @ d
    )
    assert float(a.kl(b).sum()) == pytest.approx(expected, rel=1e-3, abs=1e-3)
    np.testing.assert_allclose(np.asarray(a.variance).ravel(), np.diag(mine), rtol=1e-4)
    drifted = a.drifted(b, 0.0, 0.3, 0.5)
    np.testing.assert_allclose(dense(drifted), mine / 0.5 + 0.09 * np.eye(len(d)), rtol=1e-4, atol=1e-4)
    mixed = a.drifted(b, 0.25, 0.0, 1.0)
    axes = np.kron(np.asarray(a.unit_axes, float), np.asarray(a.axes, float))
    along = np.diag(axes.T @ (0.75 * mine + 0.25 * theirs) @ axes)
    np.testing.assert_allclose(np.asarray(mixed.spread).ravel(), along, rtol=1e-4)
    np.testing.assert_allclose(a.scaled(2.0).variance, 4 * a.variance, rtol=1e-5)


def test_merging_adds_what_each_has_learnt():
    """Along one set of axes precisions add up; with one that learnt nothing, the other is all there is."""
    r = np.random.default_rng(0)
    before = RotatedGaussian.from_moments(r.standard_normal((2, 3)), 1.5)
    one = dataclasses.replace(belief(r, 2, 3), spread=jnp.asarray(r.uniform(0.1, 1, (2, 3)), jnp.float32))
    alone = RotatedGaussian.merged([one, before], before)
    np.testing.assert_allclose(alone.mean, one.mean, atol=1e-5)
    np.testing.assert_allclose(alone.spread, one.spread, rtol=1e-5)
    other = one.with_mean(one.mean + 1)
    both = RotatedGaussian.merged([one, other], before)
    lam = 2 * np.linalg.inv(dense(one)) - np.linalg.inv(dense(before))
    eta = np.linalg.inv(dense(one)) @ (np.asarray(one.mean + other.mean, float).ravel())
    eta -= np.linalg.inv(dense(before)) @ np.asarray(before.mean, float).ravel()
    np.testing.assert_allclose(np.asarray(both.mean).ravel(), np.linalg.solve(lam, eta), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dense(both), np.linalg.inv(lam), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="vaguer"):
        RotatedGaussian.merged([one.scaled(10.0), one.scaled(10.0)], before)


def test_samples_have_its_covariance():
    b = belief(np.random.default_rng(1), 2, 3)
    drawn = np.asarray(b.sample(jax.random.PRNGKey(0), (20000,)), float).reshape(20000, -1)
    np.testing.assert_allclose(drawn.mean(0), np.asarray(b.mean).ravel(), atol=0.06)
    np.testing.assert_allclose(np.cov(drawn.T), dense(b), atol=0.08)


def test_refusals():
    with pytest.raises(ValueError, match="every std must be > 0"):
        RotatedGaussian.from_moments(np.zeros((2, 3)), 0.0)
    b = belief(np.random.default_rng(2), 2, 3)
    assert b.all_proper()
    assert not b.scaled(0.0).all_proper()
    assert not b.with_mean(b.mean * np.nan).all_proper()
