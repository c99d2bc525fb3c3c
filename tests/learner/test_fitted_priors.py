"""Learners whose prior means follow from the first images: when these are found, and that nothing is lost."""

import copy
import pickle

import jax
import numpy as np
import pytest

import gbplearn as gbp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 7, 7, 1)).cumsum(1)
Y = (X[:, 6, :, 0].mean(1) > 0).astype(int)


def learner(weight_prior="auto", **options):
    net = gbp.Sequential(
        gbp.Conv2D(3, kernel=3, activation="leaky_relu", weight_init="patches"),
        gbp.MaxPool2D(2),
        gbp.Dense(2, weight_prior=weight_prior),
        gbp.CategoricalObservation(),
        input_shape=(7, 7, 1),
    )
    return gbp.Learner(net, **options)


def same(a, b):
    """Beliefs by name, bit for bit."""
    return all(
        np.array_equal(x, y)
        for name in a
        for x, y in zip(jax.tree.leaves(a[name]), jax.tree.leaves(b[name]), strict=True)
    )


@pytest.mark.parametrize("activations", ["vector", "scalar"])
def test_they_are_found_by_the_first_batch(activations):
    model = learner(activations=activations)
    drawn = model.prior
    expected = model.net.fitted_priors(X[:20], drawn, seed=0)
    assert model.update(X[:20], Y[:20]).accepted
    assert same(model.prior, expected)
    name = next(iter(drawn))
    assert not np.allclose(drawn[name].mean, model.prior[name].mean, atol=1e-2)
    model.update(X[20:40], Y[20:40])
    assert same(model.prior, expected)


def test_a_batch_that_is_refused_leaves_the_prior_alone():
    """Covariances of the outputs are too large for float32."""
    model = learner(weight_prior=1e30, activations="vector")
    before = model.prior, model.posterior
    assert not model.update(X[:20], Y[:20]).accepted
    assert model.prior is before[0]
    assert same(model.posterior, before[1])
    assert not model.state.fitted
    model = learner()
    with pytest.raises(ValueError, match="layer 'conv': Conv2D: the first images have no contrast"):
        model.update(np.zeros((4, 7, 7, 1)), Y[:4])
    assert model.update(X[:20], Y[:20]).accepted


def test_examples_of_no_weight_do_not_count():
    model, other = learner(), learner()
    weight = np.r_[np.ones(20), np.zeros(10)]
    model.update(np.concatenate([X[:20], 50 * X[20:30]]), Y[:30], sample_weight=weight)
    other.update(X[:20], Y[:20])
    assert same(model.prior, other.prior)


def test_fit_priors_is_the_first_batch_beforehand():
    model, other = learner(), learner()
    model.fit_priors(X[:20])
    for one in (model, other):
        one.update(X[:20], Y[:20])
    assert same(model.prior, other.prior)
    assert same(model.posterior, other.posterior)
    with pytest.raises(ValueError, match="before anything is learnt"):
        model.fit_priors(X)
    plain = gbp.Learner(gbp.Sequential(gbp.Dense(2), gbp.CategoricalObservation(), input_shape=(3,)))
    with pytest.raises(ValueError, match="no prior means"):
        plain.fit_priors(np.zeros((2, 3)))


def test_a_fit_that_fails_changes_nothing():
    model = learner()
    model.fit_priors(X[:20])
    before = model.prior
    with pytest.raises(ValueError, match="no contrast"):
        model.fit_priors(np.zeros((4, 7, 7, 1)))
    assert model.state.fitted
    model.update(X[20:40], Y[20:40])
    assert model.prior is before


def test_pixels_that_are_missing_are_at_their_prior_mean():
    """As they are while the batch is learnt from."""
    x, there = 5 + X[:20], RNG.random((20, 7, 7, 1)) < 0.7
    model = learner(input_prior=gbp.Gaussian.from_moments(mean=5.0, std=1.0))
    assert model.update(np.where(there, x, np.nan), Y[:20], x_observed=there).accepted
    expected = model.net.fitted_priors(np.where(there, x, 5.0), learner().prior, seed=0)
    assert same(model.prior, expected)


def test_learners_with_the_same_ones_can_be_merged():
    apart = learner(), learner()
    for one, rows in zip(apart, (slice(0, 20), slice(20, 40))):
        one.fit_priors(X[:20])
        one.update(X[rows], Y[rows])
    merged = gbp.merge(apart)
    assert merged.state.fitted
    assert merged.update(X[40:], Y[40:]).accepted
    assert same(merged.prior, apart[0].prior)
    other = learner()
    other.update(X[20:40], Y[20:40])
    with pytest.raises(ValueError, match="fit_priors"):
        gbp.merge([apart[0], other])


@pytest.mark.parametrize("batches", [0, 1])
def test_checkpoints_go_on_as_if_nothing_had_happened(tmp_path, batches):
    model = learner()
    for i in range(batches):
        model.update(X[20 * i : 20 * i + 20], Y[20 * i : 20 * i + 20])
    model.save(tmp_path / "a.safetensors")
    others = [gbp.Learner.load(tmp_path / "a.safetensors"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for one in (model, *others):
        one.update(X[40:], Y[40:])
        assert one.state.fitted
        assert same(one.prior, model.prior)
        assert same(one.posterior, model.posterior)


def test_the_first_batch_can_be_forgotten():
    """What is left is the prior that it was learnt from."""
    model = learner(record=True)
    report = model.update(X[:20], Y[:20])
    model.forget(report.batch)
    assert same(model.posterior, model.prior)
    assert model.update(X[20:40], Y[20:40]).accepted
    assert model.state.fitted


def test_features_come_first():
    """Filters are windows of what the network takes."""
    features = gbp.WhitenedPatches(2, kernel=2, regions=4)
    net = gbp.Sequential(gbp.Conv2D(3, kernel=2, weight_init="patches"), gbp.Dense(2), gbp.CategoricalObservation())
    model = gbp.Learner(net, (7, 7, 1), features=features)
    model.update(X[:20], Y[:20])
    found = features.computed(X[:20], features.fit(X[:20], 0), np.dtype(np.float32))
    expected = model.net.fitted_priors(found, gbp.Learner(net, (4, 4, 4)).prior, seed=0)
    assert same({"a": model.prior["conv/parameters"]}, {"a": expected["conv/parameters"]})
    late = gbp.Learner(net, (7, 7, 1), features=features)
    late.fit_features(X[40:])
    late.fit_priors(X[40:])
    late.fit_features(X[:20])  # filters are found anew, too
    late.update(X[:20], Y[:20])
    assert same(late.prior, model.prior)
