"""Sequential: shapes, names, prediction, noise."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from helpers import actions


def small(**options):
    return gbp.Sequential(
        gbp.Dense(3, activation="tanh", sigma=0.1, weight_prior=1.0, bias_prior=1.0),
        gbp.Dense(2, sigma=0.1, weight_prior=1.0, bias_prior=1.0),
        gbp.SoftmaxObservation(sigma=0.1),
        **options,
    )


def test_table_counts_what_there_is():
    text = str(small(input_shape=(4,)))
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    # One factor an output; its edges: weights, bias, output, and (second layer) inputs; those of the first are fixed.
    assert rows["dense"] == ["dense", "Dense", "3", "3", str(3 * (4 + 1 + 1)), str(4 * 3 + 3)]
    assert rows["dense_1"] == ["dense_1", "Dense", "2", "2", str(2 * (3 + 3 + 1 + 1)), str(3 * 2 + 2)]
    assert rows["softmax"] == ["softmax", "SoftmaxObservation", "1", "2", "0"]
    assert rows["total"][1:] == ["6", "36", "23"]
    assert "?" in str(small())


def test_counts_are_those_of_the_graph():
    net = small(input_shape=(4,))
    graph = net.graph(np.zeros((1, 4)), [0])
    groups = graph.problem().groups
    assert [g.edges for g in groups] == [18, 16, 2]
    assert list(graph.variables) == [
        "input",
        "dense/weight",
        "dense/bias",
        "dense",
        "dense_1/weight",
        "dense_1/bias",
        "dense_1",
    ]


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: gbp.Sequential(), "at least one layer"),
        (lambda: gbp.Sequential(gbp.SoftmaxObservation(), gbp.GaussianObservation()), "at least one layer"),
        (lambda: gbp.Sequential(gbp.Dense(2), gbp.SoftmaxObservation(), gbp.Dense(2)), "'softmax'"),
        (
            lambda: gbp.Sequential(gbp.Dense(1), gbp.SoftmaxObservation(), input_shape=(2,)),
            "layer 'softmax'.*2 classes",
        ),
        (lambda: gbp.Sequential(gbp.Dense(2), input_shape=()), "layer 'dense'"),
        (lambda: gbp.Sequential(gbp.Dense(2), input_shape=(0,)), "length 0"),
        (lambda: gbp.Sequential(gbp.Dense(2, name="a"), gbp.Dense(2, name="a")), "called 'a'"),
        (lambda: gbp.Sequential(gbp.Dense(2, name="input")), "'input'"),
        (lambda: gbp.Dense(0), "units"),
        (lambda: gbp.Dense(2, sigma=0.0), "sigma"),
        (lambda: gbp.Dense(2, activation="cosine"), "cosine"),
        (lambda: gbp.Dense(2, weight_init=-1.0), "weight_init"),
        (lambda: gbp.Dense(2, direction="back"), "direction"),
        (lambda: gbp.SoftmaxObservation(sigma=-1.0), "sigma"),
        (lambda: gbp.GaussianObservation(sigma="guess"), "'learn'"),
        (lambda: gbp.Prior(std=0.0), "std"),
        (lambda: gbp.LearnNoise(start=0.0), "start"),
        (lambda: small().graph(np.zeros((2, 3)), [0]), r"layer 'softmax'.*\(2,\)"),
        (lambda: small().graph(np.zeros((2, 3)), [0, 2]), r"layer 'softmax'.*0 ... 1"),
        (lambda: small().graph(np.zeros((2, 3)), [0, 0.5]), "whole numbers"),
        (lambda: small().graph(np.zeros((2, 3)), [[1.0, 1.0], [0.0, 1.0]]), "sum to 1"),
        (lambda: small().graph(np.full((2, 3), np.nan)), "NaN"),
        (lambda: small(input_shape=(4,)).graph(np.zeros((2, 3))), r"\(4,\)"),
        (lambda: small().graph(np.zeros((2, 3)), beliefs={"dens/weight": gbp.Gaussian.flat((1,))}), "dens/weight"),
        (lambda: small().graph(np.zeros((2, 3)), beliefs={"dense/bias": gbp.Gaussian.flat((1,))}), "dense/bias"),
        (lambda: small().graph(np.zeros((2, 3)), parameters="free"), "parameters"),
        (lambda: small().priors(), "input_shape"),
        (lambda: small().graph(np.zeros((2, 3)), start={"dense/weight": np.zeros(7)}), "dense/weight"),
        (lambda: small().graph(np.zeros((2, 3)), start={"dens": 0.0}), "dens"),
        (lambda: small().graph(np.zeros((2, 3)), start={"dense": np.zeros(9)}), "dense"),
        (lambda: small().graph(np.zeros((2, 3)), noise={"softmax": 0.1}), "softmax"),
        (lambda: small().graph([["a"]]), "numbers"),
        (lambda: small().predict(np.zeros((2, 3)), {}), "dense/weight"),
        (lambda: small().learn(np.zeros((2, 3)), [0, 1], init=None), "beliefs="),
        (lambda: gbp.Dense(2, activation=jnp.sum), "elementwise"),
        (lambda: gbp.Dense(2, activation=np.tanh), "JAX function"),
        (lambda: gbp.Sequential(gbp.Dense(2)).graph(np.zeros((2, 3)), [0, 1]), "no observation"),
    ],
)
def test_impossible_networks_are_refused_by_name(build, named):
    with pytest.raises(ValueError, match=named):
        build()


def test_layers_only():
    with pytest.raises(TypeError, match="takes layers"):
        gbp.Sequential(gbp.Dense)


def test_prior_means_are_drawn_once_by_seed():
    net = gbp.Sequential(gbp.Dense(200, weight_prior=0.5, weight_init=2.0, bias_prior=0.3), input_shape=(50,))
    first, again, other = net.priors(seed=1), net.priors(seed=1), net.priors(seed=2)
    w = np.asarray(first["dense/weight"].mean)
    np.testing.assert_array_equal(w, again["dense/weight"].mean)
    assert not np.allclose(w, other["dense/weight"].mean)
    assert w.std() == pytest.approx(2.0, rel=0.02)  # 10,000 draws
    np.testing.assert_allclose(first["dense/weight"].std, 0.5, rtol=1e-6)
    np.testing.assert_array_equal(first["dense/bias"].mean, 0)


def test_a_held_variable_counts_with_its_uncertainty_and_learns_nothing():
    """y = x . w with w held: the belief of y in closed form."""
    x = np.array([[1.0, 2.0], [0.5, -1.0]])
    mean, std = np.array([[0.3], [-0.2]]), np.array([[0.5], [0.4]])
    layer = gbp.Dense(1, sigma=0.1, prior=3.0)
    net = gbp.Sequential(layer, gbp.GaussianObservation(sigma=0.2))
    known = {
        "dense/weight": gbp.Gaussian.from_moments(mean, std),
        "dense/bias": gbp.Gaussian.from_moments(np.array([0.6]), np.array([0.3])),
    }
    predicted = net.predict(x, known, parameters="random")
    m = x @ mean + 0.6
    v = x**2 @ std**2 + 0.3**2 + 0.1**2
    lam = 1 / v + 1 / 9
    np.testing.assert_allclose(predicted.mean, m / v / lam, rtol=1e-5)
    np.testing.assert_allclose(predicted.std, lam**-0.5, rtol=1e-5)

    observed = net.graph(x, [[1.0], [2.0]], parameters="random", beliefs=known)
    result = gbp.infer(observed)
    for name, belief in known.items():
        np.testing.assert_array_equal(result[name].eta, belief.eta)
        np.testing.assert_array_equal(result[name].lam, belief.lam)
    # Each example alone: log N(y; m, v + prior ...) of what is known of the output.
    y = np.array([[1.0], [2.0]])
    s, at = 1 / lam + 0.2**2, m / v / lam
    evidence = -0.5 * ((y - at) ** 2 / s + np.log(2 * np.pi * s)) - 0.5 * (m**2 / (v + 9) + np.log(2 * np.pi * (v + 9)))
    assert result.log_evidence == pytest.approx(float(evidence.sum()), abs=1e-3)


def test_holding_in_the_general_path_is_holding_in_the_quick_one():
    """The same factor with M = 1, and as one of two outputs."""
    found = []
    for wide in (False, True):
        graph = gbp.FactorGraph()
        w = graph.variable("w", (3,), prior=gbp.Gaussian.from_moments([0.5, -1.0, 2.0], [0.3, 0.2, 0.1]))
        y = graph.variable("y", (4,), prior=gbp.Gaussian.from_moments(0.0, 2.0))
        x = np.random.default_rng(0).standard_normal((4, 3))
        h = (lambda x, w, y: jnp.stack([y - jnp.tanh(x @ w), y])) if wide else (lambda x, w, y: y - jnp.tanh(x @ w))
        sigma = [0.1, 1e3] if wide else 0.1
        graph.add(gbp.Factor(h, (x, w[None], y), sigma=sigma, robust=gbp.Huber(1.0), robust_over=() if wide else None))
        graph.hold("w")
        found.append(gbp.infer(graph)["y"])
    np.testing.assert_allclose(found[0].mean, found[1].mean, rtol=1e-4)
    np.testing.assert_allclose(found[0].std, found[1].std, rtol=1e-4)


@pytest.mark.parametrize("parameters", ["fixed", "random"])
def test_no_example_depends_on_another(parameters):
    net = small(input_shape=(2,))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 2))
    known = net.priors(seed=1)
    options = {"parameters": parameters, "iterations": 30, "tolerance": 0.0}
    together = net.predict(x, known, **options)
    np.testing.assert_allclose(net.predict(x[::-1], known, **options).mean[::-1], together.mean, atol=1e-5)
    np.testing.assert_allclose(net.predict(x + np.eye(6, 2), known, **options).mean[2:], together.mean[2:], atol=1e-6)
    np.testing.assert_allclose(net.predict(x + np.eye(6, 2), known, **options).std[2:], together.std[2:], atol=1e-6)


def test_prediction_is_the_forward_pass_where_nothing_else_is_known():
    """Fixed parameters, exact layers and vague priors leave the function itself; random ones are less sure of it."""
    net = gbp.Sequential(
        gbp.Dense(3, activation="tanh", sigma=1e-3, weight_prior=0.5, prior=100.0),
        gbp.Dense(2, sigma=1e-3, weight_prior=0.5, prior=100.0),
        input_shape=(2,),
    )
    x, known = np.random.default_rng(0).standard_normal((4, 2)), net.priors(seed=0)
    fixed = net.predict(x, known, iterations=50)
    np.testing.assert_allclose(fixed.mean, net.forward(x, known)["dense_1"], atol=1e-4)
    random = net.predict(x, known, parameters="random", iterations=50)
    assert (random.std > 10 * fixed.std).all()


def test_posterior_becomes_prior():
    net = small(input_shape=(2,))
    x, y = np.random.default_rng(0).standard_normal((4, 2)), [0, 1, 0, 1]
    first = gbp.infer(net.graph(x, y), iterations=20, tolerance=0.0, damping=0.5, guard=False)
    graph = net.graph(x[:2], y[:2], beliefs=first)
    for name in net.priors():
        np.testing.assert_array_equal(graph.priors()[name].lam, first[name].lam)
        assert (np.asarray(first[name].std) < np.asarray(net.priors()[name].std)).any()


def test_factors_can_be_joined_to_a_network():
    """A weight that is known to be 1, by a factor of the user's own."""
    net = small(input_shape=(2,))
    graph = net.graph(np.zeros((1, 2)))
    w = graph.variables["dense/weight"]
    graph.add(gbp.Factor(lambda a: a, (w[0:1, 1],), y=1.0, sigma=1e-3, name="known"))
    result = gbp.infer(graph)
    assert float(result["dense/weight"].mean[0, 1]) == pytest.approx(1.0, abs=1e-3)


def test_prior_layer_multiplies():
    net = gbp.Sequential(gbp.Dense(1, sigma=1.0, prior=2.0), gbp.Prior(mean=1.0, std=0.5), input_shape=(1,))
    result = gbp.infer(net.graph(np.zeros((1, 1)), parameters="fixed", beliefs=net.priors()))
    lam = 1 / 1.0 + 1 / 4 + 1 / 0.25  # the dense factor says 0, the two priors 0 and 1
    assert float(result["dense"].mean[0, 0]) == pytest.approx(4 / lam, rel=1e-5)
    assert float(result["dense"].std[0, 0]) == pytest.approx(lam**-0.5, rel=1e-5)


def test_learnt_noise_of_a_mean_in_closed_form():
    """N measurements of one unknown number, no prior: sigma² = (weight start² + SS) / (weight + N - 1)."""
    y = np.random.default_rng(0).normal(3.0, 0.7, 12)
    graph = gbp.FactorGraph()
    mu = graph.variable("mu", (1,))
    noise = gbp.LearnNoise(start=0.2, weight=2.0)
    graph.add(
        gbp.Factor(lambda a, one: a[0] * one, (mu[None], np.ones(12)), y=y, sigma=noise, linear=True, name="measured")
    )
    result = gbp.infer(graph, tolerance=1e-6)
    expected = (2.0 * 0.2**2 + ((y - y.mean()) ** 2).sum()) / (2.0 + 12 - 1)
    assert result.noise["measured"] == pytest.approx(expected**0.5, rel=1e-3)
    assert float(result["mu"].std[0]) == pytest.approx((expected / 12) ** 0.5, rel=1e-3)


def itself(a):
    return a


def one_step(a, b):
    return b - a


def two_steps(a, b, c):
    return jnp.stack([b - a, c - b])


def random_walk(noise, wide=False):
    """60 steps of a random walk with step noise 0.5, each place observed with noise 0.2."""
    rng = np.random.default_rng(1)
    steps = 0.5 * rng.standard_normal(60)
    y = np.cumsum(steps) + 0.2 * rng.standard_normal(60)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (60,))  # no prior
    graph.add(gbp.Factor(itself, (x[:],), y=y, sigma=0.2, linear=True, name="seen"))
    views = (x[0:58:2], x[1:59:2], x[2:60:2]) if wide else (x[:-1], x[1:])
    graph.add(gbp.Factor(two_steps if wide else one_step, views, sigma=noise, linear=True, name="steps"))
    return graph


@pytest.mark.parametrize("wide", [False, True])
def test_learnt_noise_of_a_chain_is_the_most_likely(wide):
    """On a tree the log evidence is exact, so EM ends where it is largest (the prior counts next to nothing)."""
    result = gbp.infer(random_walk(gbp.LearnNoise(start=0.1, weight=1e-3), wide), tolerance=1e-4, iterations=2000)
    found = result.noise["steps"]
    best, lower, higher = (gbp.infer(random_walk(found * k, wide)).log_evidence for k in (1.0, 0.93, 1.07))
    assert best > lower
    assert best > higher
    assert found == pytest.approx(0.5, abs=0.15)
    assert result.log_evidence == pytest.approx(best, abs=0.02)
    assert result.status is gbp.Status.CONVERGED


def test_noise_of_robust_factors_is_not_learnt():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,))
    with pytest.raises(ValueError, match="robust"):
        gbp.Factor(lambda a: a, (x[:],), y=1.0, sigma=gbp.LearnNoise(), robust=gbp.Tukey(1.0))
    with pytest.raises(ValueError, match="robust"):
        gbp.GaussianObservation(sigma="learn", robust=gbp.Tukey(1.0))


def test_the_guard_keeps_learnt_noise():
    """Features so alike that messages diverge: the proximal phase must hand the noise on."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((60, 1)) + 0.3 * rng.standard_normal((60, 40))
    b = a @ rng.standard_normal(40) + 0.1 * rng.standard_normal(60)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (40,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(lambda a, w: a @ w, (a, w[None]), y=b, sigma=gbp.LearnNoise(0.1), linear=True, name="rows"))
    result = gbp.infer(graph, iterations=1500)
    assert gbp.GuardAction.PROXIMAL_FACTORS in actions(result)
    assert 0 < result.noise["rows"] < np.inf
    assert np.isfinite(result.log_evidence)


def test_going_on_from_a_result_takes_its_noise_only_where_noise_is_learnt():
    learning, given = random_walk(gbp.LearnNoise(0.1)), random_walk(0.3)
    result = gbp.infer(learning, iterations=20, tolerance=0.0)
    assert gbp.infer(given, init=result, iterations=1).noise == {}
    again = gbp.infer(learning, init=gbp.infer(given, iterations=5), iterations=1, tolerance=0.0)
    assert again.noise.keys() == {"steps"}
    with pytest.raises(ValueError, match="noise"):
        gbp.step(learning, gbp.init(given))
    # Energies of a result count with the noise it learnt: r² / (2 sigma²), no more.
    x = np.asarray(result["x"].mean)
    assert learning.energy(result)["steps"] == pytest.approx(
        0.5 * (np.diff(x) ** 2).sum() / result.noise["steps"] ** 2, rel=1e-3
    )


def test_noise_of_what_is_wholly_observed_is_not_reported():
    graph = random_walk(gbp.LearnNoise(0.1))
    assert gbp.infer(graph, evidence={"x": np.zeros(60)}).noise == {}


def test_a_float32_network_in_64_bit_mode(x64):
    net = gbp.Sequential(gbp.Dense(2), gbp.GaussianObservation())
    result = gbp.infer(net.graph(np.ones((2, 3)), np.ones((2, 2)), dtype="float32"), iterations=5, guard=False)
    assert result["dense"].mean.dtype == np.float32


def test_an_observed_input_with_learnt_noise_keeps_it_at_prediction():
    net = gbp.Sequential(
        gbp.GaussianObservation(sigma="learn", name="seen"),
        gbp.Dense(1, sigma=0.1, weight_prior=1.0),
        gbp.GaussianObservation(sigma="learn", name="out"),
        input_shape=(1,),
    )
    x = np.random.default_rng(0).standard_normal((8, 1))
    result = net.learn(x, 2 * x, iterations=40, rounds=2, guard=False, damping=0.5, tolerance=0.0)
    assert result.noise.keys() == {"seen", "out"}
    assert result.iterations == len(result.trace.residual) == 40
    options = {"iterations": 30, "tolerance": 0.0}
    alone = net.predict(x[:1], result, **options)
    beside = net.predict(np.concatenate([x[:1], 30 * x[1:]]), result, **options)
    np.testing.assert_allclose(alone.mean[0], beside.mean[0], atol=1e-6)
    np.testing.assert_allclose(alone.std[0], beside.std[0], atol=1e-6)


def test_holding_at_the_prior_follows_ties():
    graph = gbp.FactorGraph()
    for name in ("a", "c"):
        graph.variable(name, (1,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(lambda a: a, (graph.variables["a"][:],), y=3.0, sigma=1.0))
    graph.hold("a")
    graph.tie("c", "a")
    assert float(gbp.infer(graph)["a"].std[0]) == pytest.approx(0.5**0.5, rel=1e-5)


def test_a_network_learns_its_noise():
    """A line with noise 0.3: two parameters, 200 points."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (200, 1))
    y = 0.5 + 2 * x + rng.normal(0, 0.3, x.shape)
    net = gbp.Sequential(
        gbp.Dense(1, sigma=0.01, weight_prior=3.0, bias_prior=3.0, weight_init=0.0, prior=10.0),
        gbp.GaussianObservation(sigma="learn", name="noisy"),
        input_shape=(1,),
    )
    result = net.learn(x, y, iterations=200, rounds=5)
    residual = np.sqrt(np.mean((y - np.polyval(np.polyfit(x[:, 0], y[:, 0], 1), x)) ** 2))
    assert result.noise["noisy"] == pytest.approx(residual, rel=0.02)
    slope, offset = np.polyfit(x[:, 0], y[:, 0], 1)
    assert float(result["dense/weight"].mean[0, 0]) == pytest.approx(slope, abs=0.02)
    assert float(result["dense/bias"].mean[0]) == pytest.approx(offset, abs=0.02)


def test_probabilities_are_the_mean_softmax():
    logits = gbp.Gaussian.from_moments([[0.0, 0.0], [2.0, 0.0]], [[1.0, 1.0], [1e-6, 1e-6]])
    p = np.asarray(gbp.Sequential.probabilities(logits))
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(p[0], 0.5, atol=1e-5)  # draws come in pairs of opposite sign
    np.testing.assert_allclose(p[1, 0], 1 / (1 + np.exp(-2)), rtol=1e-4)


def test_a_network_can_be_pickled_after_a_forward_pass():
    net = gbp.Sequential(gbp.Dense(2, activation="tanh"), input_shape=3)
    x, values = np.ones((4, 3)), net.priors()
    net.forward(x, values)
    there = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(there.forward(x, values)["dense"], net.forward(x, values)["dense"])


def test_activations_start_where_start_says():
    """Others start at the forward pass, which knows nothing of that; the parameters' start it knows."""
    net, x = small(), np.ones((2, 3))
    first = next(s.variable for s in net.places)
    shape = net.shapes((3,))[first]
    graph = net.graph(x, start={first: np.broadcast_to(0.7, (2, *shape)), f"{first}/weight": 0.0})
    start = graph.problem().start
    np.testing.assert_allclose(start[first], 0.7)
    plain = net.graph(x, start={f"{first}/weight": 0.0}).problem().start
    np.testing.assert_array_equal(start[f"{first}/weight"], 0.0)
    for name in start:
        if name != first:
            np.testing.assert_array_equal(start[name], plain[name])


def test_one_layer_object_in_two_places_is_refused():
    """It would have had separate parameters, where a user may well mean one."""
    layer, pool = gbp.Conv2D(2, kernel=2, padding="same"), gbp.MaxPool2D(2)
    with pytest.raises(ValueError, match="'conv' and 'conv_1' are one object: write the layer twice"):
        gbp.Sequential(layer, layer, input_shape=(8, 8, 1))
    late = gbp.Sequential(layer, pool, layer, gbp.Dense(2), gbp.SoftmaxObservation())
    with pytest.raises(ValueError, match="'conv' and 'conv_1' are one object"):
        gbp.Learner(late, (8, 8, 1))
    without = gbp.Sequential(layer, pool, pool, gbp.Dense(2), gbp.SoftmaxObservation(), input_shape=(8, 8, 1))
    assert [name for name in without.priors() if name.startswith("max_pool")] == []
