"""Beliefs along principal axes (`core/rotated.py`) against dense matrices: all weights of a layer as one vector."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.core.rotated import RotatedGaussian
from gbplearn.core.sensitivity import FullSensitivity, RowSensitivity, steps

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))


def turned(r, n):
    return np.linalg.qr(r.standard_normal((n, n)))[0]


def start(r, units, p):
    """A prior whose numbers have standard deviations of their own."""
    return RotatedGaussian.from_moments(r.standard_normal((units, p)), r.uniform(0.3, 2, p))


def belief(r, units, p, batches=2.0):
    """With axes at random; of three batches, after which none are found anew."""
    prior = start(r, units, p)
    axes = np.asarray(prior.prior_root) @ turned(r, p)
    parts = {"spread": r.uniform(0.1, 2, (units, p)), "unit_axes": turned(r, units), "axes": axes}
    return dataclasses.replace(
        prior, batches=jnp.asarray(batches), **{k: jnp.asarray(v, prior.dtype) for k, v in parts.items()}
    )


def axes_of(b):
    """Of all weights, one unit after the other."""
    return np.kron(np.asarray(b.unit_axes, float), np.asarray(b.axes, float))


def dense(b):
    """Its covariance of all weights."""
    return axes_of(b) @ np.diag(np.asarray(b.spread, float).ravel()) @ axes_of(b).T


def along(covariance, b):
    """The diagonal of a covariance of all weights along the axes of a belief."""
    back = np.linalg.inv(axes_of(b))
    return np.diag(back @ covariance @ back.T)


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
    kept_of = along(s - s @ j.T @ gain @ j @ s, b)
    np.testing.assert_allclose(np.asarray(after.spread).ravel(), kept_of, rtol=2e-3, atol=1e-4)
    assert after.gained == pytest.approx(float(after.kl(b)[0]), rel=2e-3, abs=2e-3)
    np.testing.assert_allclose(
        steps(of, after.mean - b.mean).ravel(), (j @ (mean - np.asarray(b.mean).ravel())), rtol=2e-3, atol=2e-3
    )


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_other_axes_are_those_of_what_was_absorbed_and_keep_variances_along_them(shape, seed):
    """In units of the prior: `R'x` are the rows there."""
    (units, p, batch, classes), r = shape, np.random.default_rng(seed)
    rows, slopes = r.standard_normal((batch, p)), r.standard_normal((batch * classes, units))
    sums = {"rows": rows.T @ rows, "slopes": slopes.T @ slopes}
    b = belief(r, units, p)
    after = dataclasses.replace(b, **{n: jnp.asarray(a, b.dtype) for n, a in sums.items()}).with_new_axes()
    root = np.asarray(b.prior_root, float)
    turns = np.linalg.solve(root, np.asarray(after.axes, float))
    for axes, moments in ((turns, root.T @ sums["rows"] @ root), (after.unit_axes, sums["slopes"])):
        u = np.asarray(axes, float)
        np.testing.assert_allclose(u.T @ u, np.eye(len(u)), atol=1e-5)
        found = u.T @ moments @ u
        np.testing.assert_allclose(found, np.diag(np.diag(found)), atol=1e-3 * (1 + np.abs(moments).max()))
    np.testing.assert_allclose(np.asarray(after.spread).ravel(), along(dense(b), after), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(np.asarray(after.spread).sum(), np.asarray(b.spread).sum(), rtol=1e-4)
    np.testing.assert_allclose(after.mean, b.mean, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_the_prior_stays_the_prior_along_whatever_axes(shape, seed):
    (units, p, batch, _), r = shape, np.random.default_rng(seed)
    rows, slopes = r.standard_normal((batch, p)), r.standard_normal((batch, units))
    prior = start(r, units, p)
    sums = {"rows": rows.T @ rows, "slopes": slopes.T @ slopes}
    after = dataclasses.replace(prior, **{n: jnp.asarray(a, prior.dtype) for n, a in sums.items()}).with_new_axes()
    assert float(after.kl(prior)[0]) == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(dense(after), dense(prior), atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_a_batch_without_an_observation_changes_nothing(shape, seed):
    (units, p, batch, classes), r = shape, np.random.default_rng(seed)
    b = belief(r, units, p, batches=3.0)  # the fourth finds axes anew
    of = sensitivity(r, units, p, batch, classes, rows=True)
    nothing = np.zeros((batch * classes, batch * classes))
    after = b.absorb(of, b.output_covariance(of)[1], nothing, np.zeros((batch, classes)), b.mean)
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sigma", [0.1, 0.01, 0.003])
def test_precise_targets_keep_their_digits(sigma):
    """One linear unit, along its own axes: the exact variances of a regression."""
    r = np.random.default_rng(0)
    x = (r.standard_normal((50, 6)) * [1, 2, 3, 1, 2, 3]).astype(np.float32)
    net = gbp.Sequential(
        gbp.Dense(1, sigma=1e-5, weight_prior=1.0, bias_prior=1.0, prior=1e3, weight_init=0.0, posterior="rotated"),
        gbp.GaussianObservation(sigma=sigma),
        input_shape=(6,),
    )
    learner = gbp.Learner(net, activations="vector", unusual="learn")
    learner.update(x, x @ r.standard_normal((6, 1)).astype(np.float32))
    rows = np.c_[x, np.ones(50)].astype(float)
    exact = np.diag(np.linalg.inv(np.eye(7) + rows.T @ rows / sigma**2)) ** 0.5
    # Along axes that are found after the batch, correlations are left out: what lies along the first is exact.
    precision = np.eye(7) + (rows.T @ rows) / sigma**2
    along_weights = np.diag(precision) ** -0.5
    found = np.asarray(learner.posterior["dense/parameters"].std)[0]
    assert (found > 0.98 * along_weights).all()
    assert (found < 1.2 * exact.max()).all()


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
    np.testing.assert_allclose(dense(a.drifted(b, 0.0, 0.0, 0.5)), mine / 0.5, rtol=1e-4, atol=1e-4)
    drifted = a.drifted(b, 0.0, 0.3, 0.5)
    unit = np.asarray(a.prior_root, float)
    unit = unit / np.sqrt((unit**2).sum(1, keepdims=True))
    noise = 0.09 * np.kron(np.eye(units), unit @ unit.T)  # of independent numbers: 0.09 for each
    np.testing.assert_allclose(noise, 0.09 * np.eye(len(d)), atol=1e-6)
    np.testing.assert_allclose(np.asarray(drifted.spread).ravel(), along(mine / 0.5 + noise, a), rtol=1e-3)
    mixed = a.drifted(b, 0.25, 0.0, 1.0)
    np.testing.assert_allclose(np.asarray(mixed.spread).ravel(), along(0.75 * mine + 0.25 * theirs, a), rtol=1e-3)
    np.testing.assert_allclose(a.scaled(2.0).variance, 4 * a.variance, rtol=1e-5)


def test_merging_adds_what_each_has_learnt():
    """Along one set of axes precisions add up; with one that learnt nothing, the other is all there is."""
    r = np.random.default_rng(0)
    some = dataclasses.replace(belief(r, 2, 3), spread=jnp.asarray(r.uniform(0.1, 1, (2, 3)), jnp.float32))
    before, one = dataclasses.replace(some, spread=jnp.ones((2, 3))), some.with_mean(some.mean + 0.5)
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
    vague = RotatedGaussian.merged([one.scaled(10.0), one.scaled(10.0)], before)
    np.testing.assert_allclose(vague.spread, one.scaled(10.0).spread, rtol=1e-5)


def test_samples_have_its_covariance():
    b = belief(np.random.default_rng(1), 2, 3)
    drawn = np.asarray(b.sample(jax.random.PRNGKey(0), (20000,)), float).reshape(20000, -1)
    np.testing.assert_allclose(drawn.mean(0), np.asarray(b.mean).ravel(), atol=0.06)
    np.testing.assert_allclose(np.cov(drawn.T), dense(b), atol=0.08)


def test_refusals():
    with pytest.raises(ValueError, match="every std must be > 0"):
        RotatedGaussian.from_moments(np.zeros((2, 3)), 0.0)
    with pytest.raises(ValueError, match="units must have the same std"):
        RotatedGaussian.from_moments(np.zeros((2, 3)), np.arange(1.0, 7.0).reshape(2, 3))
    b = belief(np.random.default_rng(2), 2, 3)
    assert b.all_proper()
    assert not b.scaled(0.0).all_proper()
    assert not b.with_mean(b.mean * np.nan).all_proper()
