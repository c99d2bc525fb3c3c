"""`Conv2D(weight_init="patches")`: filters are whitened windows of the first images, by the definition."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import gbplearn as gbp
from gbplearn.layers.patches import variances, whitened, windows_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 9, 7, 2)).cumsum(1) + 3.0


def windows(x, k):
    return sliding_window_view(x, (k, k), (1, 2)).transpose(0, 1, 2, 4, 5, 3).reshape(-1, k * k * x.shape[3])


def test_windows_are_those_of_a_loop():
    found = windows_of(X, (2, 3), np.random.default_rng(0))
    expected = [X[b, i : i + 2, j : j + 3].ravel() for b in range(8) for i in range(8) for j in range(5)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("posterior", ["block", "diagonal"])
def test_filters_are_whitened_windows(kernel, posterior):
    """`(C + eps I) f` is, but for its length, a window minus the mean; responses have mean 0 and one spread."""
    layer = gbp.Conv2D(6, kernel=kernel, weight_init="patches", posterior=posterior)
    means = layer.fitted_means(X, np.random.default_rng(3))
    if posterior == "block":
        filters, bias = means["parameters"][:, :-1], means["parameters"][:, -1]
    else:
        filters, bias = means["weight"].reshape(-1, 6).T, means["bias"]
    rows = windows(X, kernel)
    centred = rows - rows.mean(0)
    c = centred.T @ centred / len(rows)
    back = filters @ (c + 0.1 * np.linalg.eigvalsh(c).mean() * np.eye(len(c)))
    cosines = (back / np.linalg.norm(back, axis=1, keepdims=True)) @ (
        centred / np.linalg.norm(centred, axis=1, keepdims=True)
    ).T
    np.testing.assert_allclose(cosines.max(1), 1, atol=1e-9)
    responses = rows @ filters.T + bias
    np.testing.assert_allclose(responses.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(responses.std(0), 0.5, rtol=1e-9)
    assert len(np.unique(filters.round(9), axis=0)) == 6


def test_responses_vary_by_one_before_they_are_scaled():
    """In the limit of no `eps`: `d' W C W d = d' d`."""
    rows = windows(X, 2)
    found = whitened(rows, variances(rows), 5, 1e-9, np.random.default_rng(0))
    responses = rows @ found.filters.T - found.offset
    np.testing.assert_allclose(responses.std(0), 1, rtol=1e-5)


def test_windows_without_contrast_become_no_filters():
    x = np.zeros((1, 4, 40, 1))
    x[0, :, :3] = RNG.standard_normal((4, 3, 1))
    means = gbp.Conv2D(20, kernel=2, weight_init="patches", posterior="block").fitted_means(x, RNG)["parameters"]
    rows = windows(x, 2)
    spread = (rows @ means[:, :-1].T).std(0)
    np.testing.assert_allclose(spread, 0.5, rtol=1e-9)  # that of an empty window would be 0, or rounding


def test_the_second_layer_takes_what_the_first_makes_of_the_images():
    net = gbp.Sequential(
        gbp.Conv2D(3, kernel=2, activation="leaky_relu", weight_init="patches", posterior="block", name="a"),
        gbp.MaxPool2D(2),
        gbp.Conv2D(4, kernel=2, weight_init="patches", posterior="block", name="b"),
        gbp.Dense(2, name="c"),
        gbp.CategoricalObservation(),
        input_shape=(9, 7, 2),
    )
    priors = net.priors(seed=5)
    found = net.fitted_priors(X, priors, seed=5)
    assert found["c/weight"] is priors["c/weight"]
    first = np.asarray(found["a/parameters"].mean, float)
    np.testing.assert_array_equal(found["a/parameters"].root, priors["a/parameters"].root)
    responses = np.einsum("bijp,up->biju", windows(X, 2).reshape(8, 8, 6, -1), first[:, :-1]) + first[:, -1]
    values = np.where(responses > 0, responses, 0.2 * responses)[:, :8, :6].reshape(8, 4, 2, 3, 2, 3).max((2, 4))
    second = np.asarray(found["b/parameters"].mean, float)
    outputs = windows(values, 2) @ second[:, :-1].T + second[:, -1]
    np.testing.assert_allclose(outputs.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(outputs.std(0), 0.5, rtol=1e-4)


def test_a_graph_of_its_own_begins_there():
    """`net.learn` without a learner."""
    net = gbp.Sequential(
        gbp.Conv2D(3, kernel=3, weight_init="patches", weight_prior=1e-3, bias_prior=1e-3),
        gbp.Dense(2),
        gbp.SoftmaxObservation(),
        input_shape=(9, 7, 2),
    )
    graph = net.graph(X, np.zeros(8, int), seed=2)
    expected = net.fitted_priors(X, net.priors(seed=2), seed=2)["conv/weight"]
    np.testing.assert_allclose(graph.priors()["conv/weight"].mean, expected.mean, rtol=1e-5)
    np.testing.assert_allclose(graph.priors()["conv/weight"].std, 1e-3, rtol=1e-5)
    predicted = net.graph(X, parameters="fixed", seed=2)  # nothing was learnt: the means as they were drawn
    np.testing.assert_allclose(predicted.priors()["conv/weight"].mean, net.priors(seed=2)["conv/weight"].mean)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 5, 5, 1)), "no contrast"),
        (np.full((2, 5, 5, 1), 4.0), "no contrast"),
        (1e200 * RNG.standard_normal((2, 5, 5, 1)), "too large"),
    ],
)
def test_images_that_say_nothing_are_refused(x, message):
    net = gbp.Sequential(
        gbp.Conv2D(2, kernel=2, weight_init="patches", name="first"),
        gbp.Dense(2),
        gbp.CategoricalObservation(),
        input_shape=(5, 5, 1),
    )
    with pytest.raises(ValueError, match=f"layer 'first': Conv2D: .*{message}"):
        net.fitted_priors(x, net.priors(), seed=0)


def test_windows_of_one_number_and_of_a_margin():
    """Responses of a 1 x 1 filter; and a kernel that is larger than the image, whose windows reach into the margin."""
    means = gbp.Conv2D(3, kernel=1, weight_init="patches", posterior="block").fitted_means(X[..., :1], RNG)
    responses = X[..., :1].reshape(-1, 1) @ means["parameters"][:, :1].T + means["parameters"][:, 1]
    np.testing.assert_allclose(responses.std(0), 0.5, rtol=1e-9)
    wide = gbp.Conv2D(3, kernel=5, padding="same", weight_init="patches", posterior="block")
    x = RNG.standard_normal((20, 3, 3, 1))
    found = wide.fitted_means(x, RNG)["parameters"]
    rows = windows(np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0))), 5)
    np.testing.assert_allclose((rows @ found[:, :-1].T + found[:, -1]).std(0), 0.5, rtol=1e-9)


def test_patches_need_inputs_that_a_forward_pass_knows():
    net = gbp.Sequential(
        gbp.GaussianObservation(0.1),
        gbp.ConvTranspose2D(2, kernel=2),
        gbp.Conv2D(2, kernel=2, weight_init="patches", name="late"),
        input_shape=(5, 5, 1),
    )
    with pytest.raises(ValueError, match="layer 'late': its prior means cannot follow from a generative layer"):
        net.fitted_priors(RNG.standard_normal((3, 5, 5, 1)), net.priors(), seed=0)


def test_given_beliefs_come_before_what_is_fitted_behind_them():
    net = gbp.Sequential(
        gbp.Conv2D(2, kernel=2, weight_init="patches", name="a"),
        gbp.Conv2D(2, kernel=2, weight_init="patches", name="b"),
        gbp.Dense(2),
        gbp.SoftmaxObservation(),
        input_shape=(9, 7, 2),
    )
    known = {n: p for n, p in net.priors(seed=7).items() if n.startswith("a/")}
    found = net.graph(X, np.zeros(8, int), beliefs=known, seed=1).priors()
    assert np.array_equal(found["a/weight"].mean, known["a/weight"].mean)
    first = np.einsum(
        "bijp,pu->biju", windows(X, 2).reshape(8, 8, 6, -1), np.asarray(known["a/weight"].mean).reshape(-1, 2)
    )
    outputs = windows(first, 2) @ np.asarray(found["b/weight"].mean).reshape(-1, 2)
    np.testing.assert_allclose(outputs.std(0), 0.5, rtol=1e-3)


def test_what_weight_init_may_be():
    for odd in ("patch", -1.0, float("nan")):
        with pytest.raises(ValueError, match="Conv2D: weight_init"):
            gbp.Conv2D(2, weight_init=odd)
    with pytest.raises(ValueError, match="ConvTranspose2D: weight_init must be a number"):
        gbp.ConvTranspose2D(2, weight_init="patches")
    assert not gbp.Conv2D(2).fits_means
    assert jnp.isfinite(gbp.Conv2D(2, weight_init="patches").parameters((5, 5, 1))["weight"].init)
