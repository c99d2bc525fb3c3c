"""Features in checkpoints: settings and numbers come back, and are checked."""

import numpy as np
import pytest

import gbplearn as gbp
from checkpoint_files import classifier, parts, put_together, refused
from gbplearn.io import checkpoint

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((30, 7, 8, 2)), RNG.integers(0, 3, 30)
PATCHES = gbp.WhitenedPatches(4, kernel=3, regions=3, threshold=0.0, contrast=None, mirrored=True)


def learner():
    net = gbp.Sequential(gbp.Dense(3, weight_init=0.0), gbp.CategoricalObservation())
    return gbp.Learner(net, (7, 8, 2), features=PATCHES)


def test_a_learner_goes_on_with_the_same_features(tmp_path):
    model = learner()
    model.update(X[:10], Y[:10])
    model.save(tmp_path / "a.safetensors")
    again = gbp.Learner.load(tmp_path / "a.safetensors")
    assert again.features == PATCHES
    for name, value in model.state.features.items():
        assert again.state.features[name].tobytes() == value.tobytes()
    for one in (model, again):
        one.update(X[10:20], Y[10:20])
    assert np.array_equal(model.predict(X).eta, again.predict(X).eta)
    assert "features: WhitenedPatches(patches=4, kernel=3" in checkpoint.describe(tmp_path / "a.safetensors")


def test_features_that_are_not_fitted_yet_are_fitted_after_it(tmp_path):
    model = learner()
    model.save(tmp_path / "a.safetensors")
    assert "not fitted yet" in checkpoint.describe(tmp_path / "a.safetensors")
    again = gbp.Learner.load(tmp_path / "a.safetensors")
    assert again.state.features is None
    for one in (model, again):
        one.update(X[:10], Y[:10])
    assert np.array_equal(model.predict(X).eta, again.predict(X).eta)


def test_files_from_before_features_load(tmp_path):
    facts, header, body = parts(checkpoint.encode(classifier(), {}))
    del facts["features"], facts["features_fitted"]
    (tmp_path / "old.safetensors").write_bytes(put_together(facts, header, body))
    assert gbp.Learner.load(tmp_path / "old.safetensors").features is None


def wrong(change):
    model = learner()
    model.update(X[:10], Y[:10])
    facts, header, body = parts(checkpoint.encode(model, {}))
    body = bytearray(body)
    change(facts, header, body)
    return put_together(facts, header, bytes(body))


def patches_of(facts):
    return facts["features"]["WhitenedPatches"]


def not_finite(facts, header, body):
    begin, _ = header["features/gain"]["data_offsets"]
    body[begin : begin + 4] = np.float32(np.nan).tobytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f, h, b: patches_of(f).update(patches=5), "must be"),
        (lambda f, h, b: patches_of(f).update(kernel=0), "kernel must be a whole number"),
        (lambda f, h, b: patches_of(f).update(kernel=7), "too small for a kernel of 7"),
        (lambda f, h, b: patches_of(f).update(patches=10**15), "more than 10,000,000 features"),
        (lambda f, h, b: patches_of(f).update(contrast=-1.0), "contrast must be a number"),
        (lambda f, h, b: patches_of(f).pop("regions"), "has the fields"),
        (lambda f, h, b: f.update(features={"Dense": {}}), "unknown type 'Dense'"),
        (lambda f, h, b: f.update(features=3), "must be an object"),
        (lambda f, h, b: f.update(features=None), "features_fitted must be"),
        (lambda f, h, b: f.update(features_fitted=1), "features_fitted must be"),
        (lambda f, h, b: f.update(features_fitted=False), "does not belong there"),
        (lambda f, h, b: h.pop("features/gain"), "is missing"),
        (not_finite, "features/gain"),
    ],
)
def test_what_does_not_fit_is_refused(change, words, tmp_path):
    refused(wrong(change), tmp_path, words)
