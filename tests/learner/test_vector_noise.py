"""Vector activations whose head learns its noise: against a loop in NumPy, scikit-learn, and streams of batches."""

import copy

import numpy as np
import pytest
from sklearn.linear_model import BayesianRidge

import gbplearn as gbp

START, WEIGHT = 0.7, 3.0
PRIOR = 0.8  # of weights and bias


def data(n=60, p=4, outputs=1, noise=0.3, seed=0):
    r = np.random.default_rng(seed)
    x = r.standard_normal((n, p)).astype(np.float32)
    return x, (x @ r.standard_normal((p, outputs)) + noise * r.standard_normal((n, outputs))).astype(np.float32)


def learner(p=4, outputs=1, prior=1e3, sigma=1e-3, hidden=(), noise=None, **more):
    net = gbp.Sequential(
        *hidden,
        gbp.Dense(
            outputs, sigma=sigma, weight_prior=PRIOR, bias_prior=PRIOR, weight_init=0.0, prior=prior, posterior="block"
        ),
        gbp.GaussianObservation(sigma=gbp.LearnNoise(START, WEIGHT) if noise is None else noise, name="head"),
        input_shape=(p,),
    )
    return gbp.Learner(net, activations="vector", unusual="learn", **more)


def by_hand(x, y, each, layer=1e-6, held=1e-6, rounds=3000):
    """Weights and noise in turn; `each` is the weight of every target. Outputs with the noise of their layer."""
    rows, variance = np.c_[x, np.ones(len(x))].astype(float), START**2
    for _ in range(rounds):
        squares = 0.0
        for target, w in zip(np.asarray(y, float).T, each.T):
            there = w > 0
            s = PRIOR**2 * rows @ rows.T + layer * np.eye(len(x))
            d = np.where(there, w / variance + held, held)
            known = np.linalg.inv(np.linalg.inv(s) + np.diag(d))
            mean = known @ (w * target / variance)
            squares += np.sum(w * ((target - mean) ** 2 + np.diag(known)))
        new = (WEIGHT * START**2 + squares) / (WEIGHT + each.sum())
        if abs(new - variance) < 1e-9 * new:
            break
        variance = new
    return np.sqrt(variance)


@pytest.mark.parametrize("posterior", ["diagonal", "block", "shared"])
def test_against_a_loop_in_numpy(posterior):
    """Several outputs, of which some are missing, a tight prior of the outputs, noisy layers."""
    (x, y), r = data(30, outputs=2), np.random.default_rng(1)
    observed = r.random(y.shape) < 0.8
    found = learner(outputs=2, prior=4.0, sigma=0.1)
    report = found.update(x, y, y_observed=observed)
    assert report.status is gbp.Status.CONVERGED
    expected = by_hand(x, y, observed.astype(float), 0.01, 1 / 16)
    np.testing.assert_allclose(found.noise["head"].start, expected, rtol=1e-4)
    assert found.noise["head"].weight == WEIGHT + observed.sum()


def test_against_bayesian_ridge():
    """Whose prior of the weights is given, and of the noise is the same: it finds the same point by other steps."""
    x, y = data(40, 6, noise=0.5)
    x -= x.mean(0)
    y -= y.mean()
    ridge = BayesianRidge(
        alpha_1=WEIGHT / 2,
        alpha_2=WEIGHT * START**2 / 2,
        lambda_1=1e12,
        lambda_2=1e12 * PRIOR**2,
        fit_intercept=False,
        tol=1e-12,
        max_iter=10_000,
    ).fit(np.c_[x, np.ones(40)], y[:, 0])
    found = learner(6)
    found.update(x, y)
    belief = found.posterior["dense/parameters"]
    np.testing.assert_allclose(found.noise["head"].start, ridge.alpha_**-0.5, rtol=1e-4)
    np.testing.assert_allclose(belief.mean[0], ridge.coef_, atol=1e-4)
    np.testing.assert_allclose(belief.covariance[0], ridge.sigma_, atol=1e-5)
    mean, std = ridge.predict(np.c_[x, np.ones(40)], return_std=True)
    outputs = found.predict(x, parameters="random")
    np.testing.assert_allclose(outputs.mean[:, 0], mean, atol=1e-4)
    np.testing.assert_allclose(np.hypot(outputs.std[:, 0], found.noise["head"].start), std, rtol=1e-4)
    given = learner(6, noise=float(found.noise["head"].start))
    given.update(x, y)
    np.testing.assert_allclose(given.posterior["dense/parameters"].mean, belief.mean, atol=1e-5)
    density = given.log_evidence(x, y, parameters="random")
    np.testing.assert_allclose(found.log_evidence(x, y, parameters="random"), density, atol=1e-4)


def test_weights_count_and_missing_labels_do_not():
    (x, y), seen = data(24), np.arange(24) % 4 > 0
    pairs = (
        ({"x": x, "y": y, "y_observed": seen}, {"x": x[seen], "y": y[seen]}),
        ({"x": np.r_[x, x[:6]], "y": np.r_[y, y[:6]]}, {"x": x, "y": y, "sample_weight": 1.0 + (np.arange(24) < 6)}),
    )
    for pair in pairs:
        a, b = learner(), learner()
        a.update(**pair[0])
        b.update(**pair[1])
        np.testing.assert_allclose(a.noise["head"].start, b.noise["head"].start, rtol=1e-4)
        assert a.noise["head"].weight == b.noise["head"].weight
        np.testing.assert_allclose(
            a.posterior["dense/parameters"].mean, b.posterior["dense/parameters"].mean, atol=1e-4
        )


def test_streams_files_and_copies(tmp_path):
    """Noise goes from batch to batch as the posterior does, and is known to what is saved and copied."""
    x, y = data(400, noise=0.3)
    found = learner()
    for i in range(0, 200, 20):
        found.update(x[i : i + 20], y[i : i + 20])
    assert found.noise["head"].weight == WEIGHT + 200
    found.save(tmp_path / "run.safetensors")
    others = [gbp.Learner.load(tmp_path / "run.safetensors"), copy.copy(found)]
    for i in range(200, 400, 20):
        for each in (found, *others):
            each.update(x[i : i + 20], y[i : i + 20])
    assert found.noise["head"].start == pytest.approx(0.3, rel=0.1)  # 400 values know it to 4 %
    for other in others:
        assert other.noise == found.noise
    whole = learner()
    whole.update(x, y)
    np.testing.assert_allclose(found.noise["head"].start, whole.noise["head"].start, rtol=0.02)
    halves = [learner(), learner()]
    for half, part in zip(halves, (slice(0, 200), slice(200, 400))):
        half.update(x[part], y[part])
    merged = gbp.merge(halves)
    assert merged.noise["head"].weight == WEIGHT + 400
    np.testing.assert_allclose(merged.noise["head"].start, whole.noise["head"].start, rtol=0.02)


def test_where_a_network_is_not_linear_the_noise_is_that_of_its_own_outputs():
    """At its new parameters they are off by more than the linear ones."""
    r = np.random.default_rng(0)
    x = r.uniform(-2, 2, (40, 1)).astype(np.float32)
    y = (np.sin(2 * x) + 0.05 * r.standard_normal((40, 1))).astype(np.float32)
    hidden = gbp.Dense(20, activation="tanh", sigma=1e-3, weight_prior=2.0, bias_prior=2.0, posterior="block")
    found = learner(1, hidden=(hidden,))
    assert found.update(x, y).accepted
    off = np.sqrt(np.mean((np.asarray(found.predict(x).mean) - y) ** 2))
    assert 0.9 * off < found.noise["head"].start < 3 * off
