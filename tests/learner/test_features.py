"""Learners with features in front of their network: when these are fitted, and that nothing goes around them."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.network.zoo import patches_classifier, patches_features

RNG = np.random.default_rng(0)
SHAPE = (8, 8, 1)
PATCHES = gbp.WhitenedPatches(6, kernel=3)
BEHIND = (2, 2, 12)
KNOWN = "features are functions of known inputs"


def stripes(n, seed=0):
    """Images with stripes that lie, or stand."""
    r = np.random.default_rng(seed)
    y = r.integers(0, 2, n)
    wave = np.sin(np.arange(8) + r.uniform(0, 6, (n, 1)))
    x = np.where(y[:, None, None] == 0, wave[:, :, None], wave[:, None, :]) + 0.3 * r.standard_normal((n, 8, 8))
    return x[..., None], y


def network():
    return gbp.Sequential(gbp.Dense(2, weight_prior=0.3, weight_init=0.0, prior=30.0), gbp.CategoricalObservation())


def learner(**options):
    return gbp.Learner(network(), SHAPE, **{"features": PATCHES, **options})


X, Y = stripes(80)


def learnt(**options):
    out = learner(**options)
    for i in range(0, 60, 20):
        assert out.update(X[i : i + 20], Y[i : i + 20]).accepted
    return out


def test_the_network_takes_the_features_of_the_first_batch():
    """A learner of the features themselves has the same beliefs, bit for bit."""
    model, fitted = learnt(), PATCHES.fit(X[:20], 0)
    assert model.input_shape == SHAPE
    assert model.net_shape == BEHIND
    for name, value in fitted.items():
        assert np.array_equal(model.state.features[name], value)
    inner, found = gbp.Learner(network(), BEHIND), PATCHES.computed(X, fitted, np.dtype(np.float32))
    for i in range(0, 60, 20):
        inner.update(found[i : i + 20], Y[i : i + 20])
    for name, belief in inner.posterior.items():
        assert all(map(np.array_equal, jax.tree.leaves(belief), jax.tree.leaves(model.posterior[name])))
    x, z = X[60:], found[60:]
    assert np.array_equal(model.predict(x).eta, inner.predict(z).eta)
    assert np.array_equal(model.predict_proba(x, parameters="random"), inner.predict_proba(z, parameters="random"))
    assert np.array_equal(model.forward(x), inner.forward(z))
    assert np.array_equal(model.query(x=x).eta, inner.query(x=z).eta)
    assert np.array_equal(model.sample(x, 3), inner.sample(z, 3))
    assert np.array_equal(model.uncertainty(x).parameters, inner.uncertainty(z).parameters)
    assert np.array_equal(model.log_evidence(x, Y[60:]), inner.log_evidence(z, Y[60:]))
    assert (np.asarray(model.predict_proba(x)).argmax(1) == Y[60:]).mean() > 0.9


def test_fit_is_updates():
    a, b = learnt(), learner().fit((X[i : i + 20], Y[i : i + 20]) for i in range(0, 60, 20))
    assert np.array_equal(a.predict(X).eta, b.predict(X).eta)


def test_scalar_activations_take_features_too():
    model = learner(activations="scalar", iterations=20)
    report = model.update(X[:20], Y[:20], evidence=True)
    assert report.accepted
    assert np.isfinite(report.log_evidence)
    assert model.predict(X[:3]).shape == (3, 2)
    assert model.log_evidence(X[:3], Y[:3]).shape == (3,)


def test_predictions_do_not_depend_on_the_batch():
    model = learnt()
    together = np.asarray(model.predict(X).eta)
    for rows in ([5], [70, 3], range(40)):
        np.testing.assert_allclose(model.predict(X[list(rows)]).eta, together[list(rows)], rtol=1e-5)


def test_nothing_is_predicted_before_features_are_fitted():
    model = learner()
    for call in (
        lambda: model.predict(X),
        lambda: model.forward(X),
        lambda: gbp.forward_function(model),
        lambda: model.log_evidence(X, Y),
    ):
        with pytest.raises(ValueError, match="fitted to the first batch"):
            call()


def fails(model, how, x, y):
    if how == "labels":
        with pytest.raises(ValueError, match="class"):
            model.update(x, np.full(len(x), 7))
    elif how == "not finite":
        with pytest.raises(ValueError, match="NaN"):
            model.update(np.where(x > 1, np.nan, x), y)
    elif how == "blank":
        with pytest.raises(ValueError, match="no contrast"):
            model.update(0 * x, y)
    else:
        assert not model.update(x, y).accepted


@pytest.mark.parametrize("how", ["labels", "not finite", "blank", "diverged"])
def test_a_first_batch_that_fails_changes_nothing(how, monkeypatch):
    model, (other, classes) = learner(), stripes(20, seed=5)
    before = copy.copy(model).posterior
    if how == "diverged":
        result = model.infer_batch

        def diverges(*args):
            found, padded = result(*args)
            found.status = gbp.Status.DIVERGED
            return found, padded

        monkeypatch.setattr(model, "infer_batch", diverges)
    fails(model, how, other, classes)
    monkeypatch.undo()
    assert model.state.features is None
    for name, belief in before.items():
        assert all(map(np.array_equal, jax.tree.leaves(belief), jax.tree.leaves(model.posterior[name])))
    for i in range(0, 60, 20):
        model.update(X[i : i + 20], Y[i : i + 20])
    assert np.array_equal(model.predict(X).eta, learnt().predict(X).eta)


def test_an_unusual_batch_is_known_by_its_inputs():
    """Windows are divided by their contrast: features alone would not show it."""
    model = learnt()
    assert not model.update(1000 * X[60:], Y[60:]).accepted
    assert model.failures == 1


def test_examples_without_weight_are_not_fitted_to():
    weight = np.r_[np.ones(10), np.zeros(10)]
    model = learner()
    model.update(X[:20], Y[:20], sample_weight=weight)
    assert np.array_equal(model.state.features["filters"], PATCHES.fit(X[:10], 0)["filters"])


def test_copies_pickles_and_states_have_them():
    model = learnt()
    for again in (copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(again.predict(X).eta, model.predict(X).eta)
    fresh = learner()
    fresh.restore(model.state)
    assert np.array_equal(fresh.predict(X).eta, model.predict(X).eta)
    copied = copy.copy(learner())
    copied.update(X[:20], Y[:20])
    assert copied.state.features is not None


def test_pickles_of_learners_before_features_load():
    held = gbp.Learner(network(), BEHIND).__getstate__()
    old = gbp.Learner.__new__(gbp.Learner)
    old.__setstate__({name: value for name, value in held.items() if name not in ("features", "_fitted")})
    assert old.features is None
    assert old.state.features is None


def test_forgetting_keeps_them():
    model = learnt(record=True)
    model.forget(2)
    shorter = learner()
    for i in (0, 20):
        shorter.update(X[i : i + 20], Y[i : i + 20])
    np.testing.assert_allclose(model.predict(X).mean, shorter.predict(X).mean, atol=1e-4)
    model.forget(0, again=[(X[20:40], Y[20:40])])
    assert np.array_equal(model.state.features["filters"], PATCHES.fit(X[:20], 0)["filters"])


def test_the_forward_function_maps_its_inputs(tmp_path):
    model = learnt()
    function = gbp.forward_function(model, probabilities=True)
    expected = jax.nn.softmax(model.forward(X))
    np.testing.assert_allclose(jax.jit(function)(jnp.asarray(X)), expected, atol=1e-4)
    gbp.export(model, tmp_path / "net.stablehlo", platforms=("cpu",), probabilities=True)
    call = jax.export.deserialize(bytearray((tmp_path / "net.stablehlo").read_bytes())).call
    for n in (1, 7):
        np.testing.assert_allclose(call(X[:n].astype(np.float32)), expected[:n], atol=1e-4)


def test_learners_with_the_same_features_are_merged():
    one, other = learner(), learner()
    for model, rows in ((one, slice(0, 30)), (other, slice(30, 60))):
        model.fit_features(X[:20])
        model.update(X[rows], Y[rows])
    merged = gbp.merge([one, other])
    assert merged.examples == 60
    assert np.array_equal(merged.state.features["gain"], one.state.features["gain"])
    assert (np.asarray(merged.predict_proba(X[60:])).argmax(1) == Y[60:]).mean() > 0.9


@pytest.mark.parametrize("features", [None, gbp.WhitenedPatches(6, kernel=3, threshold=0.5), PATCHES])
def test_learners_with_other_features_are_not_merged(features):
    one = learner()
    one.update(X[:20], Y[:20])
    other = learner(features=features) if features is not None else gbp.Learner(network(), BEHIND)
    other.update(X[20:40] if features is not None else RNG.standard_normal((20, *BEHIND)), Y[20:40])
    with pytest.raises(ValueError, match=r"differ|same features"):
        gbp.merge([one, other])


def test_features_are_fitted_once():
    model = learnt()
    with pytest.raises(ValueError, match="before anything is learnt"):
        model.fit_features(X)
    with pytest.raises(ValueError, match="has no features"):
        gbp.Learner(network(), BEHIND).fit_features(X)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.update(X[:20], Y[:20], x_observed=X[:20] > 0),
        lambda m: m.update(X[:20], Y[:20], x_prior=gbp.Gaussian.from_moments(np.zeros(X[:20].shape), std=1.0)),
        lambda m: m.update(X[:20], Y[:20], want="input"),
        lambda m: m.predict(X[:20], x_observed=X[:20] > 0),
        lambda m: m.uncertainty(X[:20], x_observed=X[:20] > 0),
        lambda m: m.sample(X[:20], x_observed=X[:20] > 0),
        lambda m: m.log_evidence(X[:20], Y[:20], x_observed=X[:20] > 0),
        lambda m: m.query("input", x=X[:20]),
        lambda m: m.query("output", y=Y[:20]),
        lambda m: learner(input_sigma=0.1),
        lambda m: learner(input_prior=gbp.Gaussian.from_moments(np.zeros(SHAPE), std=1.0)),
    ],
)
def test_inputs_that_are_not_known_are_refused(call):
    with pytest.raises(ValueError, match=KNOWN):
        call(learnt())


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="need input_shape="):
        gbp.Learner(network(), features=PATCHES)
    with pytest.raises(TypeError, match="features"):
        gbp.Learner(network(), SHAPE, features=lambda x: x)
    layers = gbp.Dense(2), gbp.CategoricalObservation()
    with pytest.raises(ValueError, match="takes examples of shape"):
        gbp.Learner(gbp.Sequential(*layers, input_shape=SHAPE), SHAPE, features=PATCHES)
    with pytest.raises(ValueError, match="takes examples of shape"):
        learnt().predict(X[:, :7])
    assert gbp.Learner(gbp.Sequential(*layers, input_shape=BEHIND), SHAPE, features=PATCHES).net_shape == BEHIND


def test_features_of_ones_own():
    @dataclasses.dataclass(frozen=True)
    class Centred(gbp.Features):
        def output_shape(self, shape):
            return shape

        def fitted_shapes(self, shape):
            return {"mean": shape}

        def fit(self, x, seed):
            return {"mean": x.mean(0)}

        def apply(self, x, fitted):
            return x - fitted["mean"]

    model, inner = gbp.Learner(network(), SHAPE, features=Centred()), gbp.Learner(network(), SHAPE)
    model.update(X[:20], Y[:20])
    inner.update(X[:20] - X[:20].mean(0), Y[:20])
    np.testing.assert_allclose(model.predict(X).mean, inner.predict(X - X[:20].mean(0)).mean, atol=1e-4)
    with pytest.raises(ValueError, match="of the type Centred"):
        model.save("nowhere.safetensors")


def test_the_network_of_the_zoo_stands_behind_its_features():
    assert patches_features().output_shape((32, 32, 3)) == (3, 3, 600)
    model = gbp.Learner(patches_classifier(), (8, 8, 1), features=gbp.WhitenedPatches(4, kernel=3, regions=3))
    assert model.activations == "vector"
    assert model.update(X[:20], Y[:20]).accepted
    assert model.posterior["dense/parameters"].shape == (10, 3 * 3 * 8 + 1)


def test_a_notebook_shows_it():
    assert "3 batches" in learnt()._repr_html_()
