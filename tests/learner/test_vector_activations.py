"""Learners whose activations are one variable a layer: streams, missing labels, predictions, files, refusals."""

import copy
import pickle

import numpy as np
import pytest

import gbplearn as gbp

NOISE = 0.3


def regression(n=40, p=5, seed=0):
    r = np.random.default_rng(seed)
    x = (r.standard_normal((n, p)) @ (0.2 * np.eye(p) + r.standard_normal((p, p)))).astype(np.float32)
    return x, (x @ r.standard_normal((p, 2)) + NOISE * r.standard_normal((n, 2))).astype(np.float32)


def linear(posterior="block", **more):
    net = gbp.Sequential(
        gbp.Dense(2, sigma=1e-3, weight_prior=1.0, bias_prior=1.0, prior=1e3, weight_init=0.0, posterior=posterior),
        gbp.GaussianObservation(sigma=NOISE),
        input_shape=(5,),
    )
    return gbp.Learner(net, **{"activations": "vector", "unusual": "learn", **more})


def classifier(hidden="block", last="shared", seed=0, **more):
    net = gbp.Sequential(
        gbp.Dense(8, activation="leaky_relu", weight_prior=0.5, bias_prior=0.5, posterior=hidden),
        gbp.Dense(3, weight_prior=1.0, bias_prior=1.0, prior=30.0, weight_init=0.0, posterior=last),
        gbp.CategoricalObservation(),
        input_shape=(2,),
    )
    return gbp.Learner(net, **{"activations": "vector", "seed": seed, **more})


def rings(n=200, seed=0):
    r = np.random.default_rng(seed)
    y, turn = r.integers(0, 3, n), r.uniform(0, 2 * np.pi, n)
    radius = 0.5 + y + 0.1 * r.standard_normal(n)
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], 1).astype(np.float32), y


def dense_posterior(x, y):
    rows = np.c_[x, np.ones(len(x))].astype(float)
    covariance = np.linalg.inv(np.eye(rows.shape[1]) + rows.T @ rows / (NOISE**2 + 1e-6))
    return covariance @ rows.T @ y / (NOISE**2 + 1e-6), covariance


@pytest.mark.parametrize("posterior", ["block", "shared"])
@pytest.mark.parametrize("batch", [40, 10, 3])
def test_batches_one_after_the_other_are_one_batch(posterior, batch):
    (x, y), learner = regression(), linear(posterior)
    evidence = sum(
        learner.update(x[i : i + batch], y[i : i + batch], evidence=True).log_evidence for i in range(0, 40, batch)
    )
    found, (mean, covariance) = learner.posterior["dense/parameters"], dense_posterior(x, y)
    std = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((np.asarray(found.mean).T - mean) / std[:, None], 0, atol=2e-3)
    for one in np.asarray(found.covariance):
        np.testing.assert_allclose(one / np.outer(std, std), covariance / np.outer(std, std), atol=1e-4)
    rows = np.c_[x, np.ones(40)].astype(float)
    s = rows @ rows.T + (NOISE**2 + 1e-6) * np.eye(40)
    squares = np.einsum("nu,nm,mu->", y, np.linalg.inv(s), y)
    np.testing.assert_allclose(evidence, -0.5 * squares - np.linalg.slogdet(2 * np.pi * s)[1], atol=0.05)


def test_scalars_keep_the_exact_marginals_of_one_batch():
    """Loopy messages among scalars are too sure of themselves; a joint update is not."""
    (x, y), learner = regression(), linear("diagonal")
    learner.update(x, y)
    mean, covariance = dense_posterior(x, y)
    weight, bias = learner.posterior["dense/weight"], learner.posterior["dense/bias"]
    np.testing.assert_allclose(np.r_[weight.mean, bias.mean[None]], mean, atol=1e-3)
    std = np.sqrt(np.diag(covariance))[:, None] * np.ones(2)
    np.testing.assert_allclose(np.r_[weight.std, bias.std[None]], std, rtol=1e-3)


def test_predictions_have_the_exact_variance():
    (x, y), learner = regression(), linear()
    learner.update(x, y)
    _, covariance = dense_posterior(x, y)
    new = regression(7, seed=1)[0]
    rows = np.c_[new, np.ones(7)]
    expected = np.einsum("np,pq,nq->n", rows, covariance, rows) + 1e-6
    found = learner.predict(new, parameters="random")
    np.testing.assert_allclose(found.variance, expected[:, None] * np.ones(2), rtol=1e-3)
    np.testing.assert_allclose(learner.predict(new).std, 1e-3, rtol=1e-3)
    one = learner.predict(new[2:3], parameters="random")
    np.testing.assert_allclose(one.mean, found.mean[2:3], atol=1e-5)
    y_new = regression(7, seed=1)[1]
    total = expected[:, None] + NOISE**2
    density = -0.5 * ((y_new - np.asarray(found.mean)) ** 2 / total + np.log(2 * np.pi * total))
    np.testing.assert_allclose(learner.log_evidence(new, y_new, parameters="random"), density.sum(1), rtol=1e-3)


def test_missing_labels_and_weights():
    """An example without a label teaches nothing; one of weight 2 teaches like two; padding does not count."""
    (x, y), seen = rings(20), np.arange(20) % 3 > 0
    some, others = classifier(tolerance=1e-5), classifier(tolerance=1e-5)
    some.update(x, y, y_observed=seen)
    others.update(x[seen], y[seen])
    twice, double = classifier(tolerance=1e-5), classifier(tolerance=1e-5)
    twice.update(np.r_[x, x[:5]], np.r_[y, y[:5]])
    double.update(x, y, sample_weight=1.0 + (np.arange(20) < 5))
    for a, b in ((some, others), (twice, double)):
        for name, belief in a.posterior.items():
            np.testing.assert_allclose(belief.mean, b.posterior[name].mean, atol=2e-3)
            np.testing.assert_allclose(belief.std, b.posterior[name].std, rtol=5e-3)
    none, before = classifier(), classifier()
    assert none.update(x, y, y_observed=np.zeros(20, bool)).accepted
    for name, belief in none.posterior.items():
        np.testing.assert_allclose(belief.mean, before.posterior[name].mean, atol=1e-5)
        np.testing.assert_allclose(belief.std, before.posterior[name].std, rtol=1e-5)


def test_an_example_of_weight_two_is_two():
    """Also where layers are noisy and their outputs have a tight prior: both belong to an example."""
    (x, y), posteriors = regression(12), []
    for given in ({"x": np.r_[x, x], "y": np.r_[y, y]}, {"x": x, "y": y, "sample_weight": np.full(12, 2.0)}):
        net = gbp.Sequential(
            gbp.Dense(2, sigma=0.3, weight_prior=1.0, bias_prior=1.0, prior=1.0, weight_init=0.0, posterior="block"),
            gbp.GaussianObservation(sigma=0.1),
            input_shape=(5,),
        )
        learner = gbp.Learner(net, activations="vector")
        learner.update(**given)
        posteriors.append(learner.posterior["dense/parameters"])
    np.testing.assert_allclose(posteriors[0].mean, posteriors[1].mean, atol=1e-4)
    np.testing.assert_allclose(posteriors[0].covariance, posteriors[1].covariance, atol=1e-5)


@pytest.mark.parametrize("posterior", ["diagonal", "block", "shared"])
@pytest.mark.parametrize(("noise", "examples", "inputs"), [(0.01, 50, 8), (0.1, 100, 50), (0.003, 100, 20)])
def test_precise_targets(posterior, noise, examples, inputs):
    """Far more precise than the prior, inputs far from 0: float32 alone would be off by standard deviations."""
    r = np.random.default_rng(0)
    x = (5 + r.standard_normal((examples, inputs))).astype(np.float32)
    y = (x @ r.standard_normal((inputs, 1)) + noise * r.standard_normal((examples, 1))).astype(np.float32)
    net = gbp.Sequential(
        gbp.Dense(1, sigma=1e-3, weight_prior=3.0, bias_prior=3.0, prior=1e4, weight_init=0.0, posterior=posterior),
        gbp.GaussianObservation(sigma=noise),
        input_shape=(inputs,),
    )
    learner = gbp.Learner(net, activations="vector", unusual="learn")
    assert learner.update(x, y).accepted
    rows, variance = np.c_[x, np.ones(examples)].astype(float), noise**2 + 1e-6
    covariance = np.linalg.inv(np.eye(inputs + 1) / 9 + rows.T @ rows / variance)
    mean, std = covariance @ rows.T @ y.ravel() / variance, np.sqrt(np.diag(covariance))
    belief = learner.posterior
    if posterior == "diagonal":
        found = np.r_[belief["dense/weight"].mean.ravel(), belief["dense/bias"].mean]
    else:
        found = np.asarray(belief["dense/parameters"].mean)[0]
        np.testing.assert_allclose(np.asarray(belief["dense/parameters"].std)[0], std, rtol=1e-3)
    # A mean is rounded to 6e-8 of itself.
    np.testing.assert_array_less(np.abs(found - mean), 1e-3 * std + 1e-6 * np.abs(mean).max())


def test_numbers_that_overflow_refuse_the_batch():
    (x, y), learner = rings(20), classifier(unusual="learn")
    before = learner.posterior
    report = learner.update(x * np.float32(1e19), y, evidence=True)
    assert report.status is gbp.Status.DIVERGED
    assert np.isnan(report.log_evidence)
    assert learner.failures == 1
    assert sum(learner.posterior.diff(before).values()) == 0


@pytest.mark.parametrize("hidden", ["diagonal", "block", "shared"])
def test_a_network_learns(hidden):
    """Rings, which no linear network tells apart: a fifth of the errors of guessing (67 %), each example used once."""
    (x, y), learner = rings(600), classifier(hidden)
    likely = [learner.update(x[i : i + 20], y[i : i + 20], evidence=True) for i in range(0, 600, 20)]
    assert all(r.accepted and r.status is gbp.Status.CONVERGED for r in likely)
    first, last = (np.mean([r.log_evidence for r in part]) for part in (likely[:5], likely[-5:]))
    assert last > first + 5
    x_new, y_new = rings(300, seed=1)
    p = np.asarray(learner.predict_proba(x_new, parameters="random"))
    assert (p.argmax(1) == y_new).mean() > 0.87
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-4)


def test_files_copies_and_pickles(tmp_path):
    (x, y), learner = rings(60), classifier("diagonal")
    learner.update(x[:40], y[:40])
    learner.save(tmp_path / "run.safetensors")
    others = [gbp.Learner.load(tmp_path / "run.safetensors"), copy.copy(learner), pickle.loads(pickle.dumps(learner))]
    learner.update(x[40:], y[40:])
    for other in others:
        assert other.activations == "vector"
        other.update(x[40:], y[40:])
        for name, belief in learner.posterior.items():
            np.testing.assert_array_equal(other.posterior[name].mean, belief.mean)


def test_refusals():
    with pytest.raises(ValueError, match="activations must be one of 'auto', 'scalar', 'vector'"):
        linear(activations="matrix")
    for odd in ({"dropout": 0.1}, {"guard": False}, {"messages": "pooled"}):
        with pytest.raises(ValueError, match=f"vector activations take no {next(iter(odd))}"):
            linear(**odd)
    for odd in ({"iterations": 0}, {"tolerance": -1.0}):
        with pytest.raises(ValueError, match=next(iter(odd))):
            linear(**odd)
    with pytest.raises(ValueError, match="one kind of activations"):
        gbp.merge([linear(), linear(activations="scalar")])
    values = gbp.GaussianObservation(sigma=1.0)
    wild = gbp.GaussianObservation(sigma=1.0, robust=gbp.Tukey(3.0))
    noisy = gbp.GaussianObservation(sigma="learn")
    for layers, shape, wrong in (
        ((gbp.Dense(2), gbp.SoftmaxObservation()), (2,), r"'softmax' must be a gbp\.CategoricalObservation"),
        ((gbp.Dense(2), wild), (2,), r"'gaussian' must be a gbp\.CategoricalObservation, or"),
        (
            (noisy, gbp.Dense(2), values),
            (2,),
            "'gaussian', of the input, must be a gbp",
        ),
        ((gbp.Dense(2, direction="generative"), values), (2,), "'dense' is no feed-forward layer"),
        ((gbp.Conv2D(2, kernel=1), values), (3, 3, 1), "must have outputs"),
        ((gbp.Dense(2),), (2,), "needs a head"),
    ):
        net = gbp.Sequential(*layers, input_shape=shape)
        with pytest.raises(ValueError, match=wrong):
            gbp.Learner(net, activations="vector")
    (x, y), learner = regression(), linear()
    with pytest.raises(ValueError, match="want must be 'output'"):
        learner.update(x, y, want="input")
    with pytest.raises(ValueError, match="a query takes no y"):
        learner.query(x=x, y=y)
    assert learner.update(x, y, want="output").belief.shape == (40, 2)
