"""Image layers against the same factors written as plain functions, explicit loops and explicit Jacobians."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.layers.convolution import Convolution
from helpers import QUICK, Linear, assert_same, run_iterations
from image_factors import join
from layers_by_hand import ACTIVATIONS, CONVOLUTIONS, as_function, as_layer, draw, geometry, pair, shapes_of


def conv(*args, **options):
    return gbp.Conv2D(*args, sigma=0.3, **options)


def paint(*args, **options):
    return gbp.ConvTranspose2D(*args, sigma=0.3, **options)


SIGMA = {"sigma": 0.4}
CASES = {
    "conv": (conv(3, kernel=(3, 2), activation="tanh"), (2, 5, 4, 2)),
    "conv, same, even by odd": (conv(2, kernel=(2, 3), activation="leaky_relu", padding="same"), (2, 5, 4, 2)),
    "conv, same, stride 2": (conv(2, kernel=3, stride=2, activation="tanh", padding="same"), (2, 5, 4, 1)),
    "paint, full": (paint(2, kernel=(3, 2), activation="tanh"), (2, 5, 4, 2)),
    "paint, full, stride 2": (paint(2, kernel=(3, 2), stride=2), (2, 5, 4, 2)),
    "paint, valid, strides 1 and 3": (paint(2, kernel=(2, 3), stride=(1, 3), borders="valid"), (2, 5, 4, 2)),
    "max": (gbp.MaxPool2D(2, **SIGMA), (2, 4, 6, 2)),
    "max, with a rest": (gbp.MaxPool2D((3, 2), **SIGMA), (2, 4, 5, 3)),
    "max, most left out": (gbp.MaxPool2D(4, **SIGMA), (1, 7, 7, 1)),
    "average": (gbp.AvgPool2D(2, **SIGMA), (2, 4, 6, 2)),
    "average, with a rest": (gbp.AvgPool2D((3, 2), **SIGMA), (2, 4, 5, 3)),
    "average, most left out": (gbp.AvgPool2D(4, **SIGMA), (1, 7, 7, 1)),
    "upsample": (gbp.Upsample2D(2, **SIGMA), (2, 4, 6, 2)),
    "upsample, wide": (gbp.Upsample2D((1, 3), **SIGMA), (2, 2, 3, 3)),
    "upsample, tall": (gbp.Upsample2D((3, 2), **SIGMA), (1, 6, 2, 1)),
    "smooth": (gbp.PairwiseSmoothing(**SIGMA), (2, 5, 4, 2)),
    "smooth, two rows": (gbp.PairwiseSmoothing(**SIGMA), (2, 2, 3, 1)),
    "smooth, one row": (gbp.PairwiseSmoothing(**SIGMA), (3, 1, 4, 2)),
}
MORE = {
    "conv, strides": (conv(2, kernel=(3, 2), stride=(2, 1), activation="sigmoid"), (2, 6, 5, 3)),
    "conv, gaps between windows": (conv(2, kernel=(1, 2), stride=3), (2, 4, 6, 2)),
    "conv, windows apart, one filter": (conv(1, kernel=2, stride=2, padding="same"), (2, 5, 4, 2)),
    "conv, few pixels seen": (conv(1, kernel=1, stride=3, activation="tanh"), (2, 5, 4, 2)),
    "conv, 1 x 1": (conv(2, kernel=1, padding="same"), (2, 3, 4, 2)),
    "conv, same, kernel larger than the image": (conv(2, kernel=(4, 5), padding="same"), (2, 3, 4, 1)),
    "conv, one window": (conv(2, kernel=(3, 4)), (2, 3, 4, 1)),
    "conv, many edges a pixel": (conv(5, kernel=4, padding="same"), (1, 5, 6, 2)),
    "paint, full, tiles": (paint(2, kernel=2, stride=2, activation="sigmoid"), (2, 4, 6, 3)),
    "paint, full, kernel 4 every 3": (paint(1, kernel=4, stride=3), (2, 7, 4, 2)),
    "paint, full, one patch": (paint(2, kernel=(3, 4)), (2, 3, 4, 1)),
    "paint, full, 3 x 3 every 2": (paint(2, kernel=3, stride=2), (2, 5, 3, 2)),
    "paint, valid": (paint(2, kernel=3, borders="valid", activation="tanh"), (2, 4, 3, 2)),
    "paint, valid, stride 2": (paint(2, kernel=(3, 4), stride=2, borders="valid"), (2, 4, 5, 1)),
    "paint, valid, tiles": (paint(2, kernel=2, stride=2, borders="valid"), (2, 4, 5, 1)),
    "paint, 1 x 1": (paint(1, kernel=1), (2, 3, 4, 2)),
    "max, rows": (gbp.MaxPool2D((1, 3), **SIGMA), (2, 3, 7, 2)),
    "average, single pixels": (gbp.AvgPool2D(1, **SIGMA), (2, 3, 4, 2)),
    "smooth, two columns": (gbp.PairwiseSmoothing(**SIGMA), (1, 6, 2, 3)),
}


# The plain ones have a cousin with a rest, a stride or a margin.
PLAIN = ("conv", "paint, full", "max", "average", "upsample", "smooth, one row", "smooth", "conv, same, even by odd")
PLAIN += ("max, most left out", "average, most left out", "upsample, tall")


@pytest.mark.parametrize(
    "name",
    [
        *(n for n in CASES if n not in PLAIN),
        *(pytest.param(n, marks=pytest.mark.slow) for n in (*PLAIN, *MORE)),
    ],
)
def test_layers_are_the_function_written_out(name):
    layer, shape = {**CASES, **MORE}[name]
    drawn = draw(layer, shape, seed=1)
    plain, real = as_function(layer, drawn)
    assert_same([as_layer(layer, drawn), plain], real=real)


POOLED = ["conv, same, stride 2", "paint, valid, strides 1 and 3", "smooth"]


@pytest.mark.parametrize("name", [POOLED[0], *(pytest.param(n, marks=pytest.mark.slow) for n in POOLED[1:])])
def test_layers_are_the_function_written_out_with_pooled_messages(name):
    """Here the engine uses the operators of whole Jacobians instead of edges."""
    layer, shape = CASES[name]
    drawn = draw(layer, shape, seed=2)
    plain, real = as_function(layer, drawn)
    assert_same([as_layer(layer, drawn), plain], real=real, messages="pooled")


def activations_by_hand(layer, x, w, d, y):
    """`a` of every factor of a convolution layer, by the energies in the docstrings. `x` are inputs, `y` outputs."""
    (kh, kw), (sh, sw) = pair(layer.kernel), pair(layer.stride)
    if isinstance(layer, gbp.ConvTranspose2D):
        a = np.zeros(x.shape) + d
        margin = (kh - 1, kw - 1) if layer.borders == "full" else (0, 0)
        for b, p, q, f in np.ndindex(*y.shape):
            for t, u in np.ndindex(kh, kw):
                i, j = sh * p + margin[0] - t, sw * q + margin[1] - u
                if 0 <= i < x.shape[1] and 0 <= j < x.shape[2]:
                    a[b, i, j] += w[t, u, f] * y[b, p, q, f]
        return a
    a = np.zeros(y.shape) + d
    before = [geometry(layer, x.shape)[0][axis].places[0] for axis in (0, 1)]
    for b, i, j in np.ndindex(*y.shape[:3]):
        for t, u, f in np.ndindex(*w.shape[:3]):
            r, s = sh * i + t - before[0], sw * j + u - before[1]
            if 0 <= r < x.shape[1] and 0 <= s < x.shape[2]:
                a[b, i, j] += w[t, u, f] * x[b, r, s, f]
    return a


def residuals_by_hand(layer, values):
    """`h` of every factor, as arrays with the channels last; one a group."""
    x = values["x"]
    if isinstance(layer, gbp.PairwiseSmoothing):
        return [np.diff(x, axis=axis) for axis in (1, 2)]
    out = x if isinstance(layer, gbp.ConvTranspose2D) else values["y"]
    a = activations_by_hand(layer, x, values["weight"], values["bias"], values["y"])
    return [out - np.asarray(ACTIVATIONS[layer.activation](a))]


@pytest.mark.parametrize(
    "name", [pytest.param("conv, same, even by odd", marks=pytest.mark.slow), "paint, full, stride 2", "smooth"]
)
def test_a_robust_switch_is_shared_over_channels(name):
    """With energies summed over the channels of a place, all of its factors have the weight `min(1, N² / d²)`."""
    layer, shape = CASES[name]
    drawn = draw(layer, shape, seed=3)
    threshold = 1.5
    distances = [
        ((r / layer.sigma) ** 2).sum(-1, keepdims=True) + 0 * r
        for r in residuals_by_hand(layer, {n: start for n, (_, _, start) in drawn.items()})
    ]
    weights = [np.minimum(1, threshold**2 / d2) for d2 in distances]
    for k in weights:
        assert 0.1 < (k < 1).mean() < 0.98  # some are switched, some are not
        assert shape[3] > 1
    robust = dataclasses.replace(layer, robust=gbp.Tukey(threshold), robust_over=-1)
    plain, real = as_function(layer, drawn, weights)
    assert_same([as_layer(robust, drawn), plain], iterations=1, real=real)


def test_a_robust_switch_may_be_shared_over_a_patch():
    """Upsample's factors are `(batch, height / size, size, width / size, size, channels)`."""
    layer, shape = CASES["upsample"]
    drawn = draw(layer, shape, seed=4)
    x, y = (drawn[n][2] for n in "xy")
    squares = ((x - y.repeat(2, 1).repeat(2, 2)) / layer.sigma) ** 2
    patches = squares.reshape(2, 2, 2, 3, 2, 2)
    weights = np.minimum(1, 3.0**2 / patches.sum((2, 4), keepdims=True)) + 0 * patches
    assert 0.1 < (weights < 1).mean() < 0.9
    robust = dataclasses.replace(layer, robust=gbp.Tukey(3.0), robust_over=(2, 4))
    assert_same([as_layer(robust, drawn), as_function(layer, drawn, [weights])[0]], iterations=1)


def convolutions(cases):
    return [name for name, (layer, _) in cases.items() if isinstance(layer, CONVOLUTIONS)]


@pytest.mark.parametrize(
    "name", [*convolutions(CASES), *(pytest.param(n, marks=pytest.mark.slow) for n in convolutions(MORE))]
)
def test_convolutions_are_explicit_loops(name):
    """Their values; also as a function of the filters, which is written another way; and the way forward."""
    layer, shape = {**CASES, **MORE}[name]
    values = {n: start for n, (_, _, start) in draw(layer, shape, seed=5).items()}
    x, w, d, y = (values[n].astype(np.float32) for n in ("x", "weight", "bias", "y"))
    kind = join(layer, x.shape, y.shape, w.shape, d.shape).h

    def found(x, w, d, y):
        args = (y, w, d, x) if isinstance(layer, gbp.ConvTranspose2D) else (x, w, d, y)
        values = kind.value(*args), Convolution(kind.windows).of_image(w, args[0])
        return *values, layer.forward(x, {"weight": w, "bias": d})

    value, total, ahead = jax.jit(found, compiler_options=QUICK)(*map(jnp.asarray, (x, w, d, y)))
    residual = residuals_by_hand(layer, values)[0]
    np.testing.assert_allclose(value, residual, atol=1e-5)
    without_bias = activations_by_hand(layer, values["x"], values["weight"], 0.0, values["y"])
    np.testing.assert_allclose(total, without_bias, atol=1e-5)
    if isinstance(layer, gbp.Conv2D):
        np.testing.assert_allclose(ahead, values["y"] - residual, atol=1e-5)
    else:
        assert ahead is None


@pytest.mark.parametrize(("layer", "reduce"), [(gbp.MaxPool2D((3, 2)), np.max), (gbp.AvgPool2D((3, 2)), np.mean)])
def test_poolings_are_explicit_loops(layer, reduce):
    x = np.random.default_rng(0).standard_normal((2, 7, 5, 3)).astype(np.float32)
    expected = np.empty((2, 2, 2, 3))
    for b, i, j, c in np.ndindex(*expected.shape):
        expected[b, i, j, c] = reduce(x[b, 3 * i : 3 * i + 3, 2 * j : 2 * j + 2, c])
    np.testing.assert_allclose(layer.forward(jnp.asarray(x), {}), expected, atol=1e-6)
    assert layer.output_shape((7, 5, 3)) == (2, 2, 3)
    assert layer.parameters((7, 5, 3)) == {}


def test_pixels_receive_the_precision_of_the_windows_over_them_and_borders_none():
    """`lam = sum J² / S` over the factors of a pixel, where `S` holds the noise and all others of the factor."""
    layer, shape = CASES["conv, same, stride 2"]
    drawn = draw(layer, shape, seed=6)
    graph = as_layer(layer, drawn)
    _, beliefs = run_iterations(graph, 1)
    assert {name: b.shape for name, b in beliefs.items()} == shapes_of(layer, shape)
    values = {n: start for n, (_, _, start) in drawn.items()}
    x, w, y = values["x"], values["weight"], values["y"]
    g = np.tanh(activations_by_hand(layer, x, w, values["bias"], y))
    v = {n: std**2 for n, (_, std, _) in drawn.items()}
    received = {n: np.zeros(a.shape) for n, a in v.items()}
    before = [axis.places[0] for axis in geometry(layer, shape)[0]]
    for b, i, j, c in np.ndindex(*y.shape):
        slope = 1 - g[b, i, j, c] ** 2
        edges = [("y", (b, i, j, c), 1.0), ("bias", (c,), -slope)]
        for t, u, f in np.ndindex(*w.shape[:3]):
            p = (b, 2 * i + t - before[0], 2 * j + u - before[1], f)
            if 0 <= p[1] < shape[1] and 0 <= p[2] < shape[2]:  # what lies outside holds nothing, and tells no weight
                edges += [("x", p, -slope * w[t, u, f, c]), ("weight", (t, u, f, c), -slope * x[p])]
        total = layer.sigma**2 + sum(k * k * v[n][p] for n, p, k in edges)
        for n, p, k in edges:
            received[n][p] += k * k / (total - k * k * v[n][p])
    for n in v:
        np.testing.assert_allclose(beliefs[n].lam, 1 / v[n] + received[n], rtol=1e-4)


@pytest.mark.parametrize("name", ["conv, same, stride 2"])
def test_patches_of_a_known_image_change_nothing(name):
    """Only the image that was given counts, not the one that is passed with the other arguments."""
    layer, shape = CASES[name]
    values = {n: start.astype(np.float32) for n, (_, _, start) in draw(layer, shape, seed=5).items()}
    x, w, d, y = (jnp.asarray(values[n]) for n in ("x", "weight", "bias", "y"))
    kind = join(layer, x.shape, y.shape, w.shape, d.shape).h
    known = kind.with_known([x, None, None, None])
    assert known.patches is not None
    assert kind.with_known([None, w, d, y]).patches is None
    np.testing.assert_allclose(known.value(x, w, d, y), kind.value(x, w, d, y), atol=1e-6)
    np.testing.assert_allclose(known.value(0 * x, w, d, y), kind.value(x, w, d, y), atol=1e-6)
    for a, b in zip(known.jacobian(x, w, d, y), kind.jacobian(x, w, d, y)):
        np.testing.assert_allclose(a.each(), b.each(), atol=1e-6)


def test_the_first_of_equal_pixels_gets_the_message():
    """In the order of rows; with the start as linearisation point, and precision `1 / (sigma² + variance of y)`."""
    image = np.array([[3.0, 3.0, 1.0, 3.0, 1.0, 0.0, 0.0, 0.0], [3.0, 3.0, 3.0, 2.0, 4.0, 4.0, 0.0, 5.0]])
    first = np.array([[1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1, 2, 8, 1), prior=gbp.Gaussian.from_moments(0.0, 1.0), start=image[None, :, :, None])
    y = graph.variable("y", (1, 1, 4, 1), prior=gbp.Gaussian.from_moments(0.5, 0.8))
    graph.add(gbp.MaxPool2D(2, sigma=0.6).factor("max", x, {}, y))
    _, beliefs = run_iterations(graph, 1)
    lam = first / (0.6**2 + 0.8**2)
    np.testing.assert_allclose(beliefs["x"].lam[0, :, :, 0], 1 + lam, rtol=1e-6)
    np.testing.assert_allclose(beliefs["x"].eta[0, :, :, 0], 0.5 * lam, rtol=1e-5)


def test_a_painted_and_smoothed_image_is_a_dense_solve():
    """With filters and bias observed all is linear: the means come to rest at the exact ones. Groups share pixels."""
    rng = np.random.default_rng(7)
    paint, smooth = gbp.ConvTranspose2D(2, kernel=2, sigma=0.5), gbp.PairwiseSmoothing(sigma=0.8)
    shape, hidden = (1, 3, 4, 1), (1, 2, 3, 2)
    w, d, pixels = rng.standard_normal((2, 2, 2, 1)), rng.standard_normal(1), rng.standard_normal(shape)
    graph = gbp.FactorGraph()
    x = graph.variable("x", shape, prior=gbp.Gaussian.from_moments(pixels, 0.6))
    y = graph.variable("y", hidden, prior=gbp.Gaussian.from_moments(0.0, 1.0))
    own = {"weight": graph.variable("w", w.shape), "bias": graph.variable("d", d.shape)}
    graph.observe("w", w)
    graph.observe("d", d)
    graph.add(paint.factor("paint", x, own, y))
    for factor in smooth.factors("smooth", x):
        graph.add(factor)
    model = Linear(12 + 12)
    model.prior(np.arange(12), pixels.ravel(), 0.36 * np.eye(12))
    model.prior(np.arange(12, 24), np.zeros(12), np.eye(12))
    base = activations_by_hand(paint, pixels, w, d, np.zeros(hidden)).ravel()
    columns = [activations_by_hand(paint, pixels, w, d, c.reshape(hidden)).ravel() - base for c in np.eye(12)]
    model.measure(np.concatenate([np.eye(12), -np.stack(columns, 1)], 1), base, 0.25 * np.eye(12))
    units = np.eye(24)[:12].reshape(3, 4, 24)
    rows = np.concatenate([np.diff(units, axis=a).reshape(-1, 24) for a in (0, 1)])
    model.measure(rows, np.zeros(len(rows)), 0.64 * np.eye(len(rows)))
    mean, cov = model.solve()
    _, beliefs = run_iterations(graph, 200)
    found = np.concatenate([np.ravel(beliefs[n].eta / beliefs[n].lam) for n in "xy"])
    assert np.abs((found - mean) / np.sqrt(np.diag(cov))).max() < 1e-3
