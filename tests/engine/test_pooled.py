"""Pooled messages: against dense solves, against messages kept edge by edge, and against a loop in plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state
from gbplearn.graph.group import POOLED_EDGES, POOLED_MESSAGES, is_pooled
from gbplearn.layers.dense import DenseKind
from gbplearn.network.summary import factors_of
from helpers import Linear, one_iteration


def pooled_slots(problem):
    """Which variables of each group get pooled messages."""
    return {g.name: {s.variable for s in g.slots if s.pooled} for g in problem.groups}


# Linear regression as a network.

ROWS, MOST = 50, 2304


def ridge(x, y, prior, sigma):
    """Mean and standard deviation of the weights of `y = x w + noise`, by the matrix of the rows."""
    gram = np.linalg.inv(prior**2 * x @ x.T + sigma**2 * np.eye(len(x)))
    mean = prior**2 * x.T @ gram @ y
    return mean, np.sqrt(prior**2 - prior**4 * np.einsum("np,nm,mp->p", x, gram, x))


@pytest.mark.parametrize("parameters", [2, 15, 150, 2305])
def test_regression_agrees_with_the_dense_solve_whatever_the_number_of_weights(parameters):
    """P / N = 0.03 ... 46. One program for all: features beyond the first P - 1 are zero.

    Without the reaction term the last one would be off by far: there the prediction is mostly uncertain by P weights.
    """
    rng, features = np.random.default_rng(parameters), parameters - 1
    x = np.zeros((ROWS, MOST))
    x[:, :features] = rng.standard_normal((ROWS, features))
    y = x @ rng.standard_normal(MOST) / np.sqrt(parameters) + 0.3 + 0.1 * rng.standard_normal(ROWS)
    layer, seen, wide = 0.05, 0.1, 3.0
    net = gbp.Sequential(
        gbp.Dense(1, sigma=layer, weight_prior=1.0, bias_prior=1.0, weight_init=0.0, prior=wide),
        gbp.GaussianObservation(sigma=seen),
    )
    result = gbp.infer(net.graph(x, y), messages="pooled", damping=0.5, tolerance=1e-5, guard=False)
    assert result.status is gbp.Status.CONVERGED
    # Prior and observation of an output together, then the noise of the layer.
    lam = wide**-2 + seen**-2
    mean, std = ridge(
        np.concatenate([x[:, :features], np.ones((ROWS, 1))], 1), y / seen**2 / lam, 1.0, np.sqrt(layer**2 + 1 / lam)
    )
    found = np.concatenate([result["dense/weight"].mean[:features, 0], result["dense/bias"].mean])
    assert np.abs((found - mean) / std).max() < 0.01
    np.testing.assert_array_equal(result["dense/weight"].mean[features:], 0)


# Against messages kept edge by edge.


def noisy_outputs(net, x, spread, sigma, seed):
    """What the network says with parameters drawn from their priors, and noise."""
    rng = np.random.default_rng(seed)
    truth = {n: p.mean + spread * rng.standard_normal(p.shape) for n, p in net.priors().items()}
    out = np.asarray(net.forward(x, truth)[net.output])
    return out + sigma * rng.standard_normal(out.shape)


def tanh_network(hidden):
    """60 examples, noise of the size of the priors: messages converge with damping 0.5."""
    how = {"sigma": 0.3, "weight_prior": 0.3, "weight_init": 1.0, "bias_prior": 0.3}
    layers = [gbp.Dense(3, activation="tanh", **how) for _ in range(hidden)]
    net = gbp.Sequential(
        *layers, gbp.Dense(2, activation="tanh", **how), gbp.GaussianObservation(0.3), input_shape=(2,)
    )
    x = np.random.default_rng(0).standard_normal((60, 2))
    return net, x, noisy_outputs(net, x, 0.3, 0.3, 1)


def conv_network():
    """Two filters on 3 x 3 images, one pooling window each. Small noise: no window changes its mind."""
    net = gbp.Sequential(
        gbp.Conv2D(2, kernel=2, activation="leaky_relu", sigma=0.1, weight_prior=0.2, weight_init=1.0, bias_prior=0.2),
        gbp.MaxPool2D(2, sigma=0.1),
        gbp.GaussianObservation(sigma=0.1),
        input_shape=(3, 3, 1),
    )
    x = np.random.default_rng(3).standard_normal((15, 3, 3, 1))
    return net, x, noisy_outputs(net, x, 0.2, 0.1, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: tanh_network(0),
        pytest.param(lambda: tanh_network(1), marks=pytest.mark.slow),
        pytest.param(conv_network, marks=pytest.mark.slow),
    ],
    ids=["one layer", "two layers", "filters"],
)
def test_small_networks_agree_with_messages_kept_edge_by_edge(build):
    net, x, y = build()
    options = {"damping": 0.5, "iterations": 1000, "tolerance": 1e-3, "guard": False}
    options["schedule"] = gbp.Order(*net.graph(x, y).factors)  # less to compile than forth and back
    oracle, ours = (gbp.infer(net.graph(x, y), messages=m, **options) for m in ("per-edge", "pooled"))
    problem = net.graph(x, y).problem(None, "pooled")
    first = net.places[0].name
    assert pooled_slots(problem)[first] == {f"{first}/weight", f"{first}/bias"}
    assert oracle.status is ours.status is gbp.Status.CONVERGED
    for name, prior in net.priors().items():
        a, b = oracle[name], ours[name]
        assert (np.asarray(a.std) < np.asarray(prior.std)).all()
        assert float(jnp.max(jnp.abs(b.mean - a.mean) / a.std)) < 0.05
        np.testing.assert_allclose(b.std, a.std, rtol=0.2)


# The update itself.


def dense_graph(robust=None, weight=None, seed=0):
    """Five examples, three inputs, two outputs, all of them uncertain; and the same numbers as arrays."""
    rng = np.random.default_rng(seed)
    shapes = {"x": (5, 3), "w": (3, 2), "d": (2,), "y": (5, 2)}
    mean = {n: rng.standard_normal(s) for n, s in shapes.items()}
    std = {n: rng.uniform(0.2, 0.6, s) for n, s in shapes.items()}
    graph = gbp.FactorGraph()
    kinds = {"w": "parameter", "d": "parameter"}
    of = [
        graph.variable(n, s, prior=gbp.Gaussian.from_moments(mean[n], std[n]), kind=kinds.get(n, "activation"))
        for n, s in shapes.items()
    ]
    kind = DenseKind(jnp.tanh)
    graph.add(gbp.Factor(kind, tuple(of), y=0.0, sigma=0.3, robust=robust, weight=weight, name="layer"))
    return graph, mean, std


def iterations(graph, count, damping, dropout=0.0, messages="pooled"):
    """Beliefs after `count` iterations."""
    problem = graph.problem(None, messages)
    options = make_options(graph, problem, damping, dropout, None, 1)
    empty = jax.eval_shape(lambda: empty_state(problem, jax.random.PRNGKey(0), False))
    state, beliefs = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), empty), {}
    for _ in range(count):
        state, _, beliefs = one_iteration(problem, state, options, {})
    return beliefs


def loop(mean, std, threshold, weight, count, damping, sigma=0.3):
    """The pooled update of `h = y - tanh(x w + d)`, measured to be 0, factor by factor.

    `y` has one edge a unit: its message leaves its own share out. Everything else is pooled, with a reaction `g` of the
    activations, damped with `x`, and one of the parameters, damped with `w`. Also the
    first pooled message is damped; the first one to `y`, which has a single edge, is taken whole.
    """
    prior = {n: (mean[n] / std[n] ** 2, std[n] ** -2) for n in mean}
    told = {n: (np.zeros_like(mean[n]), np.zeros_like(mean[n])) for n in mean}
    g, holder = {n: np.zeros((5, 2)) for n in "xw"}, {"x": "x", "w": "w", "d": "w"}
    for visit in range(count):
        belief = {n: (prior[n][0] + told[n][0], prior[n][1] + told[n][1]) for n in mean}
        m, v = {n: b[0] / b[1] for n, b in belief.items()}, {n: 1 / b[1] for n, b in belief.items()}
        new = {n: (np.zeros_like(mean[n]), np.zeros_like(mean[n])) for n in mean}
        new_g = {n: np.zeros((5, 2)) for n in g}
        for b in range(5):
            for o in range(2):
                z = np.tanh(m["x"][b] @ m["w"][:, o] + m["d"][o])
                slope = 1 - z * z
                units = [("x", (b, i), -slope * m["w"][i, o]) for i in range(3)]
                units += [("w", (i, o), -slope * m["x"][b, i]) for i in range(3)]
                units += [("d", (o,), -slope)]
                off = 0 - (m["y"][b, o] - z)
                d2 = off**2 / sigma**2
                k = weight[b, o] * (1.0 if d2 <= threshold**2 else threshold**2 / d2)  # Tukey
                # To y: from the mean of its cavity, which is its prior.
                cavity = mean["y"][b, o]
                spread = {n: sum(j * j * v[n][u] for name, u, j in units if name == n) for n in "xwd"}
                reaction = sum(g[holder[n]][b, o] * spread[n] for n in "xwd")
                innovation = off - (cavity - m["y"][b, o]) + reaction
                if k == 0:
                    continue
                rest = sigma**2 / k + sum(spread.values())
                new["y"][0][b, o], new["y"][1][b, o] = (innovation + cavity) / rest, 1 / rest
                s = rest + std["y"][b, o] ** 2
                for n, u, j in units:
                    new[n][0][u] += j * innovation / s + j * j / s * m[n][u]
                    new[n][1][u] += j * j / s
                for n in g:
                    new_g[n][b, o] = innovation / s
        for n in mean:
            old = 0.0 if visit == 0 and n == "y" else damping[n]
            told[n] = tuple(old * a + (1 - old) * b for a, b in zip(told[n], new[n]))
            if n in g:
                g[n] = old * g[n] + (1 - old) * new_g[n]
    return {n: (prior[n][0] + told[n][0], prior[n][1] + told[n][1]) for n in mean}


@pytest.mark.parametrize("scaled", [False, True])
def test_three_iterations_are_those_of_a_loop_in_numpy(scaled):
    damping = {"x": 0.3, "w": 0.6, "d": 0.5, "y": 0.2}
    weight = np.random.default_rng(1).uniform(0.2, 2.0, (5, 2)) if scaled else np.ones((5, 2))
    if scaled:
        weight[0, 1] = weight[3, 0] = 0.0
    graph, mean, std = dense_graph(*((gbp.Tukey(1.5), weight) if scaled else (None, None)))
    assert pooled_slots(graph.problem(None, "pooled"))["layer"] == {"x", "w", "d"}
    ours = iterations(graph, 3, gbp.Damping(by_name=damping))
    theirs = loop(mean, std, 1.5 if scaled else np.inf, weight, 3, damping)
    for name, (eta, lam) in theirs.items():
        np.testing.assert_allclose(ours[name].lam, lam, rtol=1e-5)
        np.testing.assert_allclose(ours[name].eta, eta, rtol=1e-5, atol=1e-5 * np.abs(eta).max())


def test_dropout_of_a_pooled_sum_is_its_expectation():
    """Each edge keeps its old message with probability p: on average damping d + (1 - d) p."""
    graph, _, _ = dense_graph()
    damping, dropped = {"x": 0.3, "w": 0.6, "d": 0.1, "y": 0.2}, {"x": 0.5, "w": 0.25, "d": 0.0, "y": 0.0}
    more = {n: d + (1 - d) * dropped[n] for n, d in damping.items()}
    ours = iterations(graph, 3, gbp.Damping(by_name=damping), gbp.Damping(by_name=dropped))
    theirs = iterations(graph, 3, gbp.Damping(by_name=more))
    less = iterations(graph, 3, gbp.Damping(by_name=damping))
    for name in damping:
        np.testing.assert_allclose(ours[name].eta, theirs[name].eta, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours[name].lam, theirs[name].lam, rtol=1e-5)
    assert np.abs(ours["w"].lam - less["w"].lam).max() > 1e-3


# What is pooled.


def dense_factor(batch, inputs, outputs):
    """A layer between variables, which need no numbers for that."""
    shapes = {"x": (batch, inputs), "w": (inputs, outputs), "d": (outputs,), "y": (batch, outputs)}
    return gbp.Factor(DenseKind(jnp.tanh), tuple(gbp.Variable(n, s) for n, s in shapes.items()), sigma=0.1)


def pooled_edges(factor, messages):
    return {v.variable.name for v, e in zip(factor.views, factor.layout.edges) if is_pooled(messages, factor, e)}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((64, 64, 16), {"x", "w"}),  # 65,536 edges: 64 into a weight, 16 into an input; the bias has few, y one a unit
        ((63, 64, 16), set()),  # 64,512
        ((2048, 8, 4), {"w"}),  # 4 into an input
        ((4, 128, 128), {"x"}),  # 4 into a weight
        ((4096, 1, 16), {"w", "d", "x"}),
        ((4, 3, 2), set()),
    ],
)
def test_auto_pools_large_layers_only(size, expected):
    assert (POOLED_EDGES, POOLED_MESSAGES) == (65_536, 8)
    factor = dense_factor(*size)
    assert pooled_edges(factor, "auto") == expected
    assert pooled_edges(factor, "per-edge") == set()
    assert pooled_edges(factor, "pooled") == {"x", "w", "d"}


def test_the_paper_s_network_is_pooled_where_it_is_large():
    net = gbp.Sequential(
        gbp.Conv2D(16, kernel=5, activation="leaky_relu"),
        gbp.MaxPool2D(2),
        gbp.Dense(10),
        gbp.SoftmaxObservation(),
    )
    found = [pooled_edges(f, "auto") for (f,) in factors_of(net.places, net.shapes((28, 28, 1)), 50)]
    # 50 x 24 x 24 x 16 factors, of one input channel; windows that do not overlap: one edge a unit.
    assert found == [{"conv/weight", "conv/bias", "input"}, set(), {"dense/weight", "max_pool"}, set()]
    assert all(not pooled_edges(f, "auto") for (f,) in factors_of(net.places, net.shapes((8, 8, 1)), 2))


def test_auto_on_a_graph():
    """One large layer among the variables of a graph, and a user's factor as large, which stays as it is.

    The bias is small, but goes with what it shares a reaction term with.
    """
    graph, prior = gbp.FactorGraph(), gbp.Gaussian.from_moments(0.0, 1.0)
    of = [graph.variable(n, s, prior=prior) for n, s in {"x": (64, 64), "w": (64, 16), "d": 16, "y": (64, 16)}.items()]
    graph.add(gbp.Factor(DenseKind(jnp.tanh), tuple(of), sigma=0.1, name="layer"))
    rows = np.ones((1024, 64))
    graph.add(gbp.Factor(lambda row, w: row @ w, (rows, of[0][0:1]), sigma=0.1, name="mine"))
    assert pooled_slots(graph.problem()) == {"layer": {"x", "w", "d"}, "mine": set()}
    assert pooled_slots(graph.problem(None, "per-edge")) == {"layer": set(), "mine": set()}
    assert pooled_slots(graph.problem(None, "pooled")) == {"layer": {"x", "w", "d"}, "mine": {"x"}}


def predict(row, w):
    return row @ w


def hand_made(prior, wide=False):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 4))
    y = rows @ [1.0, -1.0, 0.5, 0.0] + 0.1 * rng.standard_normal(40)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (4,), prior=prior)
    h = (lambda row, w: jnp.stack([row @ w, w[0]])) if wide else predict
    seen, sigma = (np.stack([y, np.ones(40)], 1), [0.1, 1.0]) if wide else (y, 0.1)
    graph.add(gbp.Factor(h, (rows, w[None]), y=seen, sigma=sigma, linear=True, name="rows"))
    return graph, rows, y


def test_hand_made_graphs_are_pooled_when_asked_to():
    graph, rows, y = hand_made(gbp.Gaussian.from_moments(0.0, 1.0))
    assert pooled_slots(graph.problem())["rows"] == set()
    assert pooled_slots(graph.problem(None, "pooled"))["rows"] == {"w"}
    result = gbp.infer(graph, messages="pooled", tolerance=1e-5)
    mean, std = ridge(rows, y, 1.0, 0.1)
    assert np.abs((np.asarray(result["w"].mean) - mean) / std).max() < 1e-3
    np.testing.assert_allclose(result["w"].std, std, rtol=0.2)
    with pytest.raises(ValueError, match="'pooled'"):
        gbp.infer(graph, messages="summed")


def test_what_cannot_be_pooled_is_kept_edge_by_edge():
    """Factors of two measurements; and improper priors, whose beliefs have no variance to begin with."""
    graph, *_ = hand_made(gbp.Gaussian.from_moments(0.0, 1.0), wide=True)
    assert pooled_slots(graph.problem(None, "pooled"))["rows"] == set()
    lam = np.array([1.0, 1.0, 1.0, 0.0], np.float32)  # nothing is known of the last weight
    graph, rows, y = hand_made(gbp.Gaussian(jnp.zeros(4), jnp.asarray(lam)))
    assert pooled_slots(graph.problem(None, "pooled"))["rows"] == set()
    result = gbp.infer(graph, messages="pooled", tolerance=1e-5)
    precision = rows.T @ rows / 0.01 + np.diag(lam)
    np.testing.assert_allclose(result["w"].mean, np.linalg.solve(precision, rows.T @ y / 0.01), atol=1e-4)


# Weights of factors.


def step_between(a, b):
    return b - a


def walk(weight):
    """A random walk with its first place seen, and the same as a dense system of the steps that are there."""
    rng = np.random.default_rng(3)
    y = rng.standard_normal(4)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (5,), prior=gbp.Gaussian.from_moments(0.0, 2.0))
    graph.add(gbp.Factor(step_between, (x[:-1], x[1:]), y=y, sigma=0.5, weight=weight, linear=True, name="steps"))
    graph.add(gbp.Factor(lambda a: a, (x[:],), y=1.0, sigma=0.7, weight=[1, 0, 0, 2, 0], linear=True, name="seen"))
    dense = Linear(5)
    for i in range(5):
        dense.prior(i, 0.0, 4.0)
    for i in (0, 3, 3):
        dense.prior(i, 1.0, 0.49)
    for i, count in enumerate(weight):
        for _ in range(count):
            dense.measure(np.eye(5)[[i + 1]] - np.eye(5)[[i]], y[i], 0.25)
    return graph, dense, y


@pytest.mark.parametrize("weight", [[1, 0, 1, 1], [2, 1, 0, 2]])
def test_a_weight_counts_the_factor(weight):
    """0: it is not there; 2: it is there twice (which is still a tree: the two are one with half the variance)."""
    graph, dense, y = walk(weight)
    result = gbp.infer(graph, tolerance=1e-6)
    mean, cov = dense.solve()
    std = np.sqrt(np.diag(cov))
    np.testing.assert_allclose(result["x"].mean, mean, atol=1e-4 * std.max())
    np.testing.assert_allclose(result["x"].std, std, rtol=1e-4)
    assert result.log_evidence == pytest.approx(dense.log_evidence(), abs=1e-3)
    at = np.asarray(result["x"].mean, float)
    energy = 0.5 * (np.array(weight) * (y - np.diff(at)) ** 2).sum() / 0.25
    assert graph.energy(result)["steps"] == pytest.approx(energy, rel=1e-4)


@pytest.mark.parametrize("weight", [-1.0, [1, 1, 1, np.nan], [1.0, 2.0], "heavy", np.inf])
def test_bad_weights_are_refused(weight):
    graph = gbp.FactorGraph()
    x = graph.variable("x", (5,))
    with pytest.raises(ValueError, match=r"'steps'.*weight"):
        gbp.Factor(step_between, (x[:-1], x[1:]), sigma=1.0, weight=weight, name="steps")


def test_going_on_with_other_evidence_when_the_slot_that_holds_the_reaction_is_observed():
    graph, mean, _ = dense_graph()
    first = gbp.infer(graph, messages="pooled", damping=0.5)
    given = gbp.infer(graph, messages="pooled", damping=0.5, init=first, evidence={"w": mean["w"]})
    alone = gbp.infer(graph, messages="pooled", damping=0.5, evidence={"w": mean["w"]})
    again = gbp.infer(graph, messages="pooled", damping=0.5, init=given)
    for a, b in ((given, alone), (again, first)):
        for name in ("d", "y"):
            np.testing.assert_allclose(a[name].mean, b[name].mean, atol=5e-3)
