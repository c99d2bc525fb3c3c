"""Correlated priors of weights that look at an image."""

import math

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.core.image_correlation import ImageCorrelation
from gbplearn.core.rotated import RotatedGaussian


def by_loops(height, width, channels, length):
    """Matérn's correlation of order 3/2 between all weights, the bias behind them."""
    places = [(r, c, k) for r in range(height) for c in range(width) for k in range(channels)]
    out = np.eye(len(places) + 1)
    for i, (r, c, k) in enumerate(places):
        for j, (s, d, m) in enumerate(places):
            if k == m:
                a = math.sqrt(3) * math.hypot(r - s, c - d) / length
                out[i, j] = (1 + a) * math.exp(-a)
    return out


@pytest.mark.parametrize(("shape", "length"), [((3, 4, 2), 1.5), ((1, 5, 1), 0.3), ((4, 4, 3), 6.0)])
def test_it_is_materns(shape, length):
    found = ImageCorrelation(*shape, length)
    expected = by_loops(*shape, length)
    np.testing.assert_allclose(found.root() @ found.root().T, expected, atol=1e-5)
    axes = found.axes()
    np.testing.assert_allclose(axes.T @ axes, np.eye(len(axes)), atol=1e-12)
    np.testing.assert_allclose((axes * found.variances) @ axes.T, expected, atol=1e-5)
    assert (found.variances > 0).all()


@pytest.mark.parametrize("posterior", ["block", "shared", "rotated"])
def test_priors_of_all_families(posterior):
    """Covariances are those of the correlation and the two standard deviations."""
    layer = gbp.Dense(3, weight_prior=0.5, bias_prior=0.2, weight_init=0.0, length_scale=2.0, posterior=posterior)
    net = gbp.Sequential(layer, gbp.CategoricalObservation(), input_shape=(3, 3, 2))
    belief = net.priors()["dense/parameters"]
    std = np.append(np.full(18, 0.5), 0.2)
    expected = std[:, None] * by_loops(3, 3, 2, 2.0) * std
    if isinstance(belief, RotatedGaussian):
        axes = np.asarray(belief.axes)
        for spread in np.asarray(belief.spread):
            np.testing.assert_allclose((axes * spread) @ axes.T, expected, atol=1e-5)
    else:
        np.testing.assert_allclose(belief.covariance, np.broadcast_to(expected, belief.root.shape), atol=1e-5)
    np.testing.assert_allclose(belief.std, np.broadcast_to(std, (3, 19)), rtol=1e-4)


def test_random_prior_means_are_alike_too():
    net = gbp.Sequential(gbp.Dense(2000, weight_prior=1.0, length_scale=2.0), input_shape=(4, 4, 1))
    means = np.asarray(net.priors()["dense/parameters"].mean)
    drawn = means.T @ means / len(means)
    np.testing.assert_allclose(drawn[:-1, :-1], by_loops(4, 4, 1, 2.0)[:-1, :-1], atol=0.12)  # four standard errors


def test_what_it_does_not_fit():
    with pytest.raises(ValueError, match="length_scale"):
        gbp.Dense(3, length_scale=0.0)
    with pytest.raises(ValueError, match="'diagonal'"):
        gbp.Dense(3, length_scale=1.0, posterior="diagonal")
    with pytest.raises(ValueError, match="direction='forward'"):
        gbp.Dense(3, length_scale=1.0, direction="generative")
    with pytest.raises(ValueError, match="images"):
        gbp.Sequential(gbp.Dense(3, length_scale=1.0), input_shape=(5,)).priors()


def test_it_learns_and_is_saved(tmp_path):
    r = np.random.default_rng(0)
    x, y = r.standard_normal((30, 4, 4, 2)).astype(np.float32), np.arange(30) % 3
    net = gbp.Sequential(gbp.Dense(3, weight_init=0.0, length_scale=1.5), gbp.CategoricalObservation())
    for activations in ("vector", "scalar"):
        learner = gbp.Learner(net, (4, 4, 2), activations=activations)
        assert learner.update(x, y).accepted
        learner.save(tmp_path / "learner.safetensors")
        again = gbp.Learner.load(tmp_path / "learner.safetensors")
        assert again.net.layers[0].length_scale == 1.5
        np.testing.assert_array_equal(again.predict_proba(x), learner.predict_proba(x))


@pytest.mark.parametrize(("stride", "patches"), [(1, 9.0), (3, 1.0)])
def test_gain_of_generative_filters(stride, patches):
    """With a gain of 1 a pixel varies as much as the outputs that paint it."""
    layer = gbp.ConvTranspose2D(4, 3, stride=stride, weight_prior=None)
    std = gbp.Sequential(layer, input_shape=(9, 9, 1)).priors()["conv_transpose/weight"].std
    np.testing.assert_allclose(std, 1 / math.sqrt(4 * patches), rtol=1e-5)
