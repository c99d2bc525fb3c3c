"""Whitened patches beside loops written out in NumPy, and what they refuse."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 9, 8, 2)).cumsum(1)
F32 = np.dtype(np.float32)


def by_hand(features, fitted, x):
    """Window by window, region by region."""
    f = {name: np.asarray(value, float) for name, value in fitted.items()}
    k, filters = features.kernel, np.asarray(f["filters"], float).reshape(-1, features.patches)
    out = np.zeros((len(x), *features.output_shape(x.shape[1:])))
    for b, image in enumerate(x - f["middle"]):
        high, wide = image.shape[0] - k + 1, image.shape[1] - k + 1
        both = np.zeros((high, wide, 2 * features.patches))
        for i, j in itertools.product(range(high), range(wide)):
            window = image[i : i + k, j : j + k].ravel()
            response = window @ filters
            if features.contrast is not None:
                response = response / np.sqrt(window.var() + f["floor"])
            response = response - f["offset"]
            both[i, j] = np.maximum(np.concatenate([response, -response]) - features.threshold, 0)
        for r, c in itertools.product(range(features.regions), repeat=2):
            rows, columns = (
                slice(q * n // features.regions, (q + 1) * n // features.regions) for q, n in ((r, high), (c, wide))
            )
            out[b, r, c] = both[rows, columns].mean((0, 1))
    return out


def finished(features, fitted, raw):
    raw = np.sqrt(raw + 1e-6) if features.root else raw
    return (raw - fitted["mean"]) * fitted["gain"]


@pytest.mark.parametrize("contrast", [0.05, None])
@pytest.mark.parametrize(("regions", "root"), [(1, True), (2, False), (2, True), (3, False)])
def test_features_are_those_of_a_loop(regions, root, contrast):
    features = gbp.WhitenedPatches(5, kernel=3, regions=regions, contrast=contrast, root=root)
    fitted = features.fit(X[:4], 0)
    assert {name: value.shape for name, value in fitted.items()} == features.fitted_shapes(X.shape[1:])
    found = features.computed(X, fitted, F32)
    assert found.shape == (6, regions, regions, 10)
    assert found.dtype == F32
    np.testing.assert_allclose(
        found, finished(features, fitted, by_hand(features, fitted, X)), atol=5e-3 if root else 2e-4
    )


def test_responses_are_products_of_whitened_windows():
    """`d' W (n - mu)`, with the whitening written out."""
    features = gbp.WhitenedPatches(4, kernel=2, whitening=0.3, contrast=0.1)
    fitted, k = features.fit(X, 1), 2
    x = X - X.mean()
    windows = np.array(
        [x[b, i : i + k, j : j + k].ravel() for b, i, j in itertools.product(range(6), range(8), range(7))]
    )
    floor = 0.1 * windows.var(1).mean()
    n = (windows - windows.mean(1, keepdims=True)) / np.sqrt(windows.var(1) + floor)[:, None]
    centred = n - n.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(n))
    whitened = centred @ (vectors / np.sqrt(values + 0.3 * values.mean())) @ vectors.T
    units = whitened / np.linalg.norm(whitened, axis=1, keepdims=True)
    filters = np.asarray(fitted["filters"]).reshape(-1, 4)
    responses = (windows @ filters) / np.sqrt(windows.var(1) + floor)[:, None] - fitted["offset"]
    likely = whitened @ units.T  # of every window as the patch
    for response in responses.T:
        assert np.abs(likely - response[:, None]).max(0).min() < 1e-4


def test_features_of_the_first_images_have_mean_0_and_variance_near_1():
    x = RNG.standard_normal((50, 12, 12, 1)).cumsum(1).cumsum(2)
    for much in (1.0, 255.0):
        features = gbp.WhitenedPatches(30, kernel=4)
        found = features.computed(much * x, features.fit(much * x, 0), F32)
        np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=1e-4)
        assert 0.8 < found.var((0, 1, 2)).min() <= found.var((0, 1, 2)).max() < 1.3


def test_scale_and_offset_of_the_images_do_not_matter():
    features = gbp.WhitenedPatches(5, kernel=3)
    a, b = (features.computed(x, features.fit(x, 0), F32) for x in (X, 200 * X + 3000))
    np.testing.assert_allclose(a, b, atol=0.02)


def test_mirrored_features_are_those_of_the_mirror_image():
    features = gbp.WhitenedPatches(5, kernel=3, mirrored=True)
    fitted = features.fit(X, 0)
    one, other = (features.computed(x, fitted, F32) for x in (X, X[:, :, ::-1]))
    np.testing.assert_allclose(one, other, atol=1e-5)
    parts = [by_hand(features, fitted, x) for x in (X, X[:, :, ::-1])]
    np.testing.assert_allclose(one, finished(features, fitted, 0.5 * sum(parts)), atol=5e-3)


def test_an_example_does_not_depend_on_the_others():
    features = gbp.WhitenedPatches(7, kernel=3)
    fitted, many = features.fit(X, 0), RNG.standard_normal((230, *X.shape[1:]))
    together = features.computed(many, fitted, F32)
    for rows in ([0], [3, 229], range(60), range(100, 230)):
        assert features.computed(many[list(rows)], fitted, F32).tobytes() == together[list(rows)].tobytes()


def test_the_seed_chooses_the_patches():
    features = gbp.WhitenedPatches(5, kernel=3)
    a, again, b = (features.fit(X, seed)["filters"] for seed in (0, 0, 1))
    assert np.array_equal(a, again)
    assert not np.array_equal(a, b)


def test_few_and_flat_windows_are_enough():
    """More patches than windows that are no blank, and one image."""
    x = np.zeros((1, 6, 6, 1))
    x[0, 2, 3] = 1.0
    features = gbp.WhitenedPatches(40, kernel=2)
    fitted = features.fit(x, 0)
    assert all(np.isfinite(value).all() for value in fitted.values())
    assert np.isfinite(features.computed(x, fitted, F32)).all()
    assert np.isfinite(features.computed(np.zeros((1, 6, 6, 1)), fitted, F32)).all()


def test_many_images_are_drawn_from():
    x = RNG.standard_normal((1200, 8, 8, 1))
    features = gbp.WhitenedPatches(3, kernel=3)
    assert np.isfinite(features.fit(x, 0)["filters"]).all()


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_images_without_contrast_tell_nothing(value):
    with pytest.raises(ValueError, match="no contrast"):
        gbp.WhitenedPatches(3, kernel=3).fit(np.full((5, 8, 8, 1), value), 0)


def test_images_whose_squares_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="too large"):
        gbp.WhitenedPatches(3, kernel=3).fit(1e300 * X, 0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"patches": 0}, "patches must be a whole number"),
        ({"patches": 2, "kernel": 0}, "kernel must be a whole number"),
        ({"patches": 2, "regions": True}, "regions must be a whole number"),
        ({"patches": 2, "threshold": -1.0}, "threshold must be a number"),
        ({"patches": 2, "whitening": 0.0}, "whitening must be a number > 0"),
        ({"patches": 2, "contrast": -0.1}, "contrast must be a number > 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        gbp.WhitenedPatches(**wrong)


def test_images_that_are_too_small_are_refused():
    features = gbp.WhitenedPatches(2, kernel=6, regions=2)
    assert features.output_shape((7, 7, 3)) == (2, 2, 4)
    with pytest.raises(ValueError, match="too small for a kernel of 6"):
        features.output_shape((6, 9, 3))
    with pytest.raises(ValueError, match=r"takes images \(height, width, channels\)"):
        features.output_shape((36,))


def test_apply_takes_one_image():
    features = gbp.WhitenedPatches(2, kernel=3)
    fitted = features.fit(X, 0)
    one = features.apply(jnp.asarray(X[0]), {name: jnp.asarray(value) for name, value in fitted.items()})
    np.testing.assert_allclose(one, features.computed(X[:1], fitted, F32)[0], atol=1e-5)
