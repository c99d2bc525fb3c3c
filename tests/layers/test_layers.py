"""Layers against the same factors written as plain functions, and their operators against explicit Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.factors.operators import Identity, Product, Shared
from gbplearn.io.values import from_json, to_json
from gbplearn.layers.activation import ACTIVATIONS, find_activation, value_and_slope
from gbplearn.layers.dense import DenseKind
from gbplearn.layers.gaussian_observation import UnaryKind
from gbplearn.layers.softmax import SoftmaxKind
from helpers import Linear, assert_same, check_operators

SETTINGS = {"sigma": 0.3, "damping": 0.4}


def plain_dense(activation):
    """`h` of one dense factor, for the general path."""
    g = {
        "linear": lambda a: a,
        "leaky_relu": lambda a: jnp.where(a > 0, a, 0.2 * a),
        "relu": lambda a: jnp.where(a > 0, a, 0.0),
        "sigmoid": lambda a: 1 / (1 + jnp.exp(-a)),
        "tanh": jnp.tanh,
        "elu": lambda a: jnp.where(a > 0, a, jnp.expm1(jnp.minimum(a, 0))),
        "softplus": lambda a: jnp.log1p(jnp.exp(a)),
    }.get(activation, activation)
    return lambda x, w, d, y: y - g(x @ w + d)


def variables(graph, x_shape, outputs, rng):
    """x, w, d and y with random proper priors, started away from their means."""
    inputs = int(np.prod(x_shape[1:]))
    out = []
    for name, shape in (("x", x_shape), ("w", (inputs, outputs)), ("d", (outputs,)), ("y", (x_shape[0], outputs))):
        prior = gbp.Gaussian.from_moments(rng.standard_normal(shape), rng.uniform(0.3, 1.0, shape))
        out.append(graph.variable(name, shape, prior=prior, start=rng.standard_normal(shape)))
    return out


def as_layer(graph, x, w, d, y, activation):
    graph.add(gbp.Factor(DenseKind(find_activation(activation)), (x, w, d, y), y=0.0, sigma=0.3, name="dense"))


def as_function(graph, x, w, d, y, activation):
    batch, (inputs, outputs) = x.shape[0], w.shape
    b, o = (i.ravel() for i in np.indices((batch, outputs)))
    units = np.arange(batch * inputs).reshape(batch, inputs)[b]
    args = (
        x[np.unravel_index(units, x.shape)],
        w[np.arange(inputs)[None], o[:, None]],
        d[o],
        y[b, o],
    )
    graph.add(gbp.Factor(plain_dense(activation), args, y=0.0, sigma=0.3, name="dense"))


CASES = [((3, 4), 5, name) for name in ACTIVATIONS]
CASES += [((1, 1), 1, "tanh"), ((5, 2, 3), 2, "sigmoid"), ((20, 18), 3, "tanh"), ((2, 3), 2, gbp.LeakyRelu(0.05))]
CASES += [((3, 4), 5, gbp.SmoothLeakyRelu(0.2, 0.3))]


@pytest.mark.parametrize(("x_shape", "outputs", "activation"), CASES)
def test_dense_is_the_function_written_out(x_shape, outputs, activation):
    graphs = []
    for build in (as_layer, as_function):
        graph = gbp.FactorGraph()
        build(graph, *variables(graph, x_shape, outputs, np.random.default_rng(1)), activation)
        graphs.append(graph)
    assert_same(graphs)


def test_a_kink_rounded_off():
    """Far from the kink it is the leaky ReLU, at the kink its slope is halfway; nowhere is it far off."""
    a, sharp, smooth = jnp.linspace(-2, 2, 401), gbp.LeakyRelu(0.2), gbp.SmoothLeakyRelu(0.2, 0.05)
    np.testing.assert_allclose(smooth(a), sharp(a), atol=0.8 * 0.05 * np.log(2) + 1e-6)
    np.testing.assert_allclose(smooth(a)[np.abs(a) > 0.5], sharp(a)[np.abs(a) > 0.5], atol=1e-5)
    _, slope = value_and_slope(smooth, jnp.asarray([0.0, -2.0, 2.0]))
    np.testing.assert_allclose(slope, [0.6, 0.2, 1.0], rtol=1e-6)
    assert from_json(to_json(smooth, "it"), "it") == smooth
    with pytest.raises(ValueError, match="width must be > 0"):
        gbp.SmoothLeakyRelu(width=0.0)


@pytest.mark.parametrize("direction", ["forward", "generative"])
def test_both_directions_of_a_network_are_the_function_written_out(direction):
    """The layer as `Sequential` lays it out, inputs observed with noise, against factors by hand."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 3))
    layer = gbp.Dense(2, activation="tanh", sigma=0.3, weight_prior=0.8, bias_prior=0.5, prior=2.0, direction=direction)
    net = gbp.Sequential(gbp.GaussianObservation(sigma=0.2), layer)
    ours = net.graph(x, seed=3)
    priors = net.priors((3,), seed=3)
    theirs = gbp.FactorGraph()
    start = ours.problem().start
    inputs = theirs.variable("input", (4, 3), start=x, prior=gbp.Gaussian.from_moments(x, 0.2))
    w = theirs.variable(
        "dense/weight", priors["dense/weight"].shape, prior=priors["dense/weight"], start=start["dense/weight"]
    )
    d = theirs.variable("dense/bias", priors["dense/bias"].shape, prior=priors["dense/bias"], start=start["dense/bias"])
    y = theirs.variable("dense", (4, 2), prior=gbp.Gaussian.from_moments(0.0, 2.0), start=start["dense"])
    as_function(theirs, *((inputs, w, d, y) if direction == "forward" else (y, w, d, inputs)), "tanh")
    assert_same([ours, theirs])
    assert w.shape == ((3, 2) if direction == "forward" else (2, 3))


def test_weights_without_a_prior_keep_the_size_of_what_they_add_up():
    """Sums of `n` products of independent numbers with variances 1 and `1/n` have variance 1."""
    for direction, added in (("forward", 400), ("generative", 25)):
        net = gbp.Sequential(gbp.Dense(25, weight_prior=None, direction=direction), input_shape=(20, 20))
        prior = net.priors(seed=1)["dense/weight"]
        np.testing.assert_allclose(prior.std, added**-0.5, rtol=1e-6)
        assert np.std(prior.mean) == pytest.approx(added**-0.5, rel=0.05)


def test_softmax_head_is_the_function_written_out():
    rng = np.random.default_rng(0)
    graphs = []
    for kind in (SoftmaxKind(), jax.nn.softmax):
        rng = np.random.default_rng(0)
        graph = gbp.FactorGraph()
        f = graph.variable("f", (6, 4), prior=gbp.Gaussian.from_moments(rng.standard_normal((6, 4)), 1.5))
        graph.add(gbp.Factor(kind, (f[:],), y=np.eye(4)[rng.integers(0, 4, 6)], sigma=0.2, name="softmax"))
        graphs.append(graph)
    assert_same(graphs)


def test_gaussian_head_is_the_function_written_out():
    graphs = []
    for kind in (UnaryKind(), lambda a: a):
        rng = np.random.default_rng(0)
        graph = gbp.FactorGraph()
        x = graph.variable("x", (3, 4), prior=gbp.Gaussian.from_moments(rng.standard_normal((3, 4)), 1.5))
        view, y = (x[:], rng.standard_normal((3, 4))) if isinstance(kind, UnaryKind) else (x[:].reshape(-1), None)
        y = rng.standard_normal((3, 4)).ravel() if y is None else y
        graph.add(gbp.Factor(kind, (view,), y=y, sigma=0.2, robust=gbp.Tukey(1.0), name="gaussian"))
        graphs.append(graph)
    assert_same(graphs)


def test_one_factor_for_all_outputs_and_one_for_each_have_the_same_means():
    """A linear dense layer on fixed inputs, M = 3 in one factor against 3 factors with M = 1, and a dense solve."""
    rng = np.random.default_rng(4)
    x, target = rng.standard_normal((5, 2)), rng.standard_normal((5, 3))
    layer = gbp.Dense(3, sigma=0.4, weight_prior=1.0, bias_prior=1.0, weight_init=0.5, prior=3.0)
    net = gbp.Sequential(layer, gbp.GaussianObservation(sigma=0.3))
    graph = net.graph(x, target)
    whole = gbp.FactorGraph()
    priors = net.priors((2,))
    w, d = (
        whole.variable(f"dense/{n}", priors[f"dense/{n}"].shape, prior=priors[f"dense/{n}"]) for n in ("weight", "bias")
    )
    y = whole.variable("dense", (5, 3), prior=gbp.Gaussian.from_moments(0.0, 3.0))
    together = gbp.Factor(
        lambda x, w, d, y: y - (x @ w + d), (x, w[None], d[None], y), sigma=0.4, linear=True, name="dense"
    )
    whole.add(together)
    whole.add(gbp.Factor(lambda a: a, (y[:],), y=target, sigma=0.3, linear=True, name="gaussian"))
    model = Linear(6 + 3 + 15)
    model.prior(np.arange(6), np.asarray(priors["dense/weight"].mean).ravel(), np.eye(6))
    model.prior(np.arange(6, 9), np.zeros(3), np.eye(3))
    model.prior(np.arange(9, 24), np.zeros(15), 9 * np.eye(15))
    for b in range(5):
        for o in range(3):
            row = np.zeros(24)
            row[[o, 3 + o, 6 + o]], row[9 + 3 * b + o] = [-x[b, 0], -x[b, 1], -1], 1
            model.measure(row[None], 0.0, 0.4**2)
            model.measure(np.eye(24)[[9 + 3 * b + o]], target[b, o], 0.3**2)
    mean, cov = model.solve()
    std = np.sqrt(np.diag(cov))
    for g in (graph, whole):
        result = gbp.infer(g, iterations=500, tolerance=1e-5)
        assert result.status is gbp.Status.CONVERGED
        found = np.concatenate([np.asarray(result[n].mean).ravel() for n in ("dense/weight", "dense/bias", "dense")])
        assert np.abs((found - mean) / std).max() < 1e-3


KINDS = {
    "dense": (DenseKind(jnp.tanh), ((3, 2, 2), (4, 5), (5,), (3, 5))),
    "dense, spatial outputs": (DenseKind(jax.nn.softplus), ((3, 4), (4, 6), (6,), (3, 2, 3))),
    "softmax": (SoftmaxKind(), ((3, 4),)),
    "unary": (UnaryKind(), ((2, 3, 2),)),
}


@pytest.mark.parametrize("name", KINDS)
def test_operators_are_those_of_the_jacobian(name):
    """`J m`, `J² v`, `J' r`, `(J²)' s`, and `J` edge by edge, against the whole matrix by automatic differentiation."""
    check_operators(*KINDS[name])


@pytest.mark.parametrize("axes", [(0, 2), (2, 1), (1,), (0, 1, 2), (2,)])
def test_grid_edges_repeat_and_add_up(axes):
    """Copies along the repeated axes; pooling is the transpose; the others are the sum without oneself."""
    from gbplearn.edges.axes import AxesEdges

    grid = (3, 4, 5)
    shape = tuple(grid[a] for a in axes)
    edges = AxesEdges(shape, axes, grid)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    by_hand = np.empty(grid, np.float32)
    for place in np.ndindex(*grid):
        by_hand[place] = x[tuple(place[a] for a in axes)]
    np.testing.assert_array_equal(edges.spread(jnp.asarray(x)), by_hand.reshape(12, 5))
    e = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    pooled = np.zeros(shape, np.float64)
    for place in np.ndindex(*grid):
        pooled[tuple(place[a] for a in axes)] += e.reshape(grid)[place]
    np.testing.assert_allclose(edges.pool(jnp.asarray(e)), pooled, atol=1e-5)
    others = np.empty(grid)
    for place in np.ndindex(*grid):
        others[place] = pooled[tuple(place[a] for a in axes)] - e.reshape(grid)[place]
    np.testing.assert_allclose(edges.others(jnp.asarray(e)), others.reshape(12, 5), atol=1e-5)
    assert edges.injective == (len(axes) == 3)


def test_layer_files_know_nothing_of_inference():
    """The contract: a layer supplies its energy and Jacobian, the engine does everything else."""
    import inspect
    import pathlib
    import re

    import gbplearn.layers

    words = ("cavit", "pool", "damp", "dropout", "guard", "message")

    def found(text):
        """Pooling layers may say what they are; what the engine calls a pool is none of their business."""
        text = re.sub(r"(max|avg|average)[-_]?pool(ing|2d|kind)?\b", "", text.lower())
        return [w for w in words if w in text]

    assert found('label = "avg_pool"; MaxPool2D, MaxPoolKind, the average-pooling layer') == []
    for text in ("edges.pool(e)", "pooled", "max_pooled", "Pool", "pool_max"):
        assert found(text) == ["pool"], text
    seen = set()
    for path in pathlib.Path(gbplearn.layers.__file__).parent.glob("*.py"):
        # The layer that drops units is called as what the engine does with messages.
        text = path.read_text().lower().replace("dropout", "") if path.stem == "dropout" else path.read_text()
        assert not found(text), path.name
        seen.add(path.stem)
    images = {"conv2d", "conv_transpose2d", "max_pool2d", "avg_pool2d", "upsample2d", "pairwise_smoothing"}
    assert {"dense", "softmax", "convolution", "window_layer", *images} <= seen
    for operator in (Product, Shared, Identity):  # those that layers share; `Entries` is for edge sets of any kind
        assert not found(inspect.getsource(operator)), operator.__name__
