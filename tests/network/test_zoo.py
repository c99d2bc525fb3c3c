"""Networks with known settings: sizes against their papers, functions against plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.network import zoo


def parameters(net, shape):
    return sum(int(np.prod(p.shape)) for p in net.parameters(shape).values())


def test_lenet_has_the_parameters_of_lenet():
    """Those of LeCun et al. (1998), whose third layer is joined to some channels only, with all of them: 61,706."""
    assert parameters(zoo.lenet(), (28, 28, 1)) == 61706
    assert zoo.lenet().shapes((28, 28, 1))["max_pool_1"] == (5, 5, 16)


def test_small_vgg_has_the_parameters_that_were_published():
    """And the shapes: 32 x 32 pixels, two valid convolutions and pooling, twice."""
    net = zoo.small_vgg()
    assert parameters(net, (32, 32, 3)) == 890_410
    shapes = net.shapes((32, 32, 3))
    assert (shapes["max_pool"], shapes["max_pool_1"]) == ((14, 14, 32), (5, 5, 64))


def test_smooth_lenet_is_alike_for_neighbouring_places():
    """In the prior of its head: correlation `(1 + a) exp(-a)` at one pooled pixel, `a = √3 / 1.5`."""
    net = zoo.smooth_lenet(3, filters=(2, 4), start="patches")
    assert net.shapes((12, 12, 1))["max_pool_1"] == (3, 3, 4)
    root = np.asarray(net.priors((12, 12, 1))["dense/parameters"].root[0], float)
    c = root @ root.T
    a = 3**0.5 / 1.5
    assert abs(c[0, 4] / c[0, 0] - (1 + a) * np.exp(-a)) < 1e-5
    assert [place.name for place in net.places if getattr(place.layer, "fits_means", False)] == ["conv", "conv_1"]


def filtered(x, weight, bias):
    out = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return out + bias


def leaky(a):
    return jnp.where(a > 0, a, 0.2 * a)


def test_the_residual_network_is_the_plain_function():
    net = zoo.residual_network(classes=3, filters=4)
    shape = (9, 8, 2)
    known = {n: jnp.asarray(p.mean) for n, p in net.priors(shape, seed=3).items()}
    assert len({n.split("/")[0] for n in known}) == 10
    x = np.random.default_rng(0).standard_normal((5, *shape)).astype(np.float32)
    h = leaky(filtered(x, known["stem/weight"], known["stem/bias"]))
    for block in range(1, 5):
        inner = leaky(filtered(h, known[f"first_{block}/weight"], known[f"first_{block}/bias"]))
        h = h + filtered(inner, known[f"second_{block}/weight"], known[f"second_{block}/bias"])
        if block <= 2:
            rows, columns = h.shape[1] // 2, h.shape[2] // 2
            h = h[:, : 2 * rows, : 2 * columns].reshape(5, rows, 2, columns, 2, 4).max((2, 4))
    expected = h.reshape(5, -1) @ known["logits/weight"] + known["logits/bias"]
    np.testing.assert_allclose(net.forward(x, known)["logits"], expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def digits():
    from gbplearn.data.images import load_images

    return load_images("digits")


def test_ten_layers_learn_digits_with_the_priors_that_are_theirs(digits):
    """A batch at the beginning may count less, where the layers are not linear so far; none is refused."""
    learner, strained = gbp.Learner(zoo.residual_network(filters=4), (8, 8, 1)), 0
    for i in range(0, 300, 50):
        report = learner.update(digits.train_x[i : i + 50], digits.train_y[i : i + 50])
        assert report.accepted
        strained += report.status is gbp.Status.STRAINED
    assert strained < 4
    assert (np.asarray(learner.predict_proba(digits.test_x)).argmax(1) == digits.test_y).mean() > 0.8


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_depth_does_not_hurt(digits, depth):
    """Scalars had 81 and 52 % with three and five hidden layers, and refused half of the batches."""
    hidden = [gbp.Dense(64, "leaky_relu") for _ in range(depth)]
    learner = gbp.Learner(gbp.Sequential(*hidden, gbp.Dense(10), gbp.CategoricalObservation()), (8, 8, 1))
    for i in range(0, 800, 50):
        assert learner.update(digits.train_x[i : i + 50], digits.train_y[i : i + 50]).status is gbp.Status.CONVERGED
    assert (np.asarray(learner.predict_proba(digits.test_x)).argmax(1) == digits.test_y).mean() > 0.93


def test_the_autoencoder_finds_what_principal_components_find(digits):
    pixels = np.asarray(digits.train_x).reshape(-1, 64)[:250]
    pixels = pixels - pixels.mean(0)
    learner = gbp.Learner(zoo.autoencoder(64, code=6), activations="vector")
    for i in range(0, 250, 10):
        learner.update(pixels[i : i + 10], pixels[i : i + 10])
    error = np.sqrt(np.mean((np.asarray(learner.predict(pixels).mean) - pixels) ** 2))
    values = np.linalg.svd(pixels, compute_uv=False)
    assert error < 1.3 * np.sqrt((values[6:] ** 2).sum() / pixels.size)
    code = learner.net.forward(pixels[:3], learner.posterior)["code"]
    assert code.shape == (3, 6)
