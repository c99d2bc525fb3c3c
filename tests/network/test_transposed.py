"""`gbp.Tied(node, transposed=True)`: weights turned round, against plain functions and dense solves."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import chain
from gbplearn.network import zoo
from gbplearn.network.choices import choose_layers
from gbplearn.network.vector_activations import VectorActivations, as_vectors

INPUTS, UNITS = 5, 3


def nodes(posterior="block", last=True, **more):
    """An encoder, its weights transposed in two places, and, if asked for, a layer behind them."""
    how = {"weight_prior": 0.5, "bias_prior": 0.3, "posterior": posterior, **more}
    between = {
        "code": gbp.Dense(UNITS, "tanh", **how),
        "back": gbp.Tied("code", transposed=True, activation="tanh", sigma=0.02, prior=30.0),
        "other": (gbp.Dense(UNITS, **how), "input"),
        "back_again": (gbp.Tied("code", transposed=True, sigma=0.03), "other"),
        "sum": (gbp.Add(sigma=0.04), "back", "back_again"),
    }
    if last:
        between["values"] = gbp.Dense(2, **how)
    return {**between, "target": gbp.GaussianObservation(sigma=0.3)}


def plainly(means, x):
    """The same for a batch; of each unit all weights, then the bias."""

    def dense(w, x):
        return x @ w[:, :-1].T + w[:, -1]

    w = means["code"][:, :-1].T
    total = jnp.tanh(jnp.tanh(dense(means["code"], x)) @ w.T) + dense(means["other"], x) @ w.T
    return dense(means["values"], total) if "values" in means else total


def prepared(net, dtype=np.float32, seed=0):
    links = VectorActivations(net, net.input_shape, dtype).links
    beliefs = as_vectors(net.priors(seed=seed), links, dtype)
    return links, beliefs, {n: b.mean for n, b in beliefs.items()}


def batch(n=6, outputs=2, seed=0):
    r = np.random.default_rng(seed)
    return r.standard_normal((n, INPUTS)), r.standard_normal((n, outputs))


@pytest.mark.parametrize("posterior", ["block", "diagonal"])
def test_outputs_and_their_derivatives_are_those_of_the_plain_function(posterior):
    net, (x, _) = gbp.Network(nodes(posterior), input_shape=INPUTS), batch()
    links, _, means = prepared(net)
    found = chain.linearise(links, means, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found.outputs, plainly(means, x), atol=1e-5)
    expected = jax.jacrev(lambda m: plainly(m, x))(means)
    assert set(found.sensitivities) == {"code", "other", "values"}
    for name, of in found.sensitivities.items():
        each = of.each if hasattr(of, "each") else np.einsum("bcu,bp->bcup", of.slopes, of.rows)
        np.testing.assert_allclose(each, expected[name], atol=2e-5)
    of_inputs = jax.vmap(jax.jacrev(lambda i: plainly(means, i[None])[0]))(jnp.asarray(x, jnp.float32))
    noisy = chain.linearise(links, means, jnp.asarray(x, jnp.float32), jnp.full(x.shape, 0.2**2))
    added = 0.2**2 * of_inputs @ jnp.swapaxes(of_inputs, 1, 2)
    np.testing.assert_allclose(noisy.noise - found.noise, added, rtol=1e-3, atol=1e-5)


def test_one_update_is_a_dense_solve(x64):
    """Of all parameters together, linearised at their means; of the covariance blocks keep those of each unit."""
    net, (x, y) = gbp.Network(nodes(last=False), input_shape=INPUTS), batch(4, INPUTS)
    vectors = VectorActivations(net, (INPUTS,), np.float64)
    _, beliefs, means = prepared(net, np.float64)
    found = vectors.learn(net.batch(x, y), net.priors(), 10, 1e-9)
    assert found.status is gbp.Status.CONVERGED
    names = list(means)
    of = jax.jacrev(lambda m: plainly(m, x))(means)
    j = np.concatenate([np.asarray(of[n]).reshape(x.size, -1) for n in names], 1)
    prior = jax.scipy.linalg.block_diag(*(c for n in names for c in beliefs[n].covariance))
    m = np.concatenate([np.ravel(means[n]) for n in names])
    # Noise of the layers, example by example: where an error of theirs comes out.
    noise = np.zeros((x.size, x.size))
    w = np.asarray(means["code"][:, :-1].T)
    for b, row in enumerate(x):
        code = np.tanh(row @ w + np.asarray(means["code"][:, -1]))
        slope = 1 - np.tanh(code @ w.T) ** 2
        own = slice(b * INPUTS, (b + 1) * INPUTS)
        through = slope[:, None] * w
        both = 0.01**2 * (through @ through.T + w @ w.T)
        noise[own, own] = both + np.diag(0.02**2 * np.ones(INPUTS) + 0.03**2 + 0.04**2)
    # Targets, and the prior N(0, 10²) of the sum.
    d = 1 / 0.3**2 + 1 / 10.0**2
    gain = prior @ j.T @ np.linalg.inv(j @ prior @ j.T + noise + np.eye(x.size) / d)
    mean = m + gain @ ((y / 0.3**2 / d - np.asarray(plainly(means, x))).ravel())
    covariance = prior - gain @ j @ prior
    start = 0
    for name in names:
        belief = found[f"{name}/parameters"]
        units, p = belief.shape
        for u in range(units):
            own = slice(start, start + p)
            np.testing.assert_allclose(belief.mean[u], mean[own], atol=1e-8)
            np.testing.assert_allclose(belief.covariance[u], covariance[own, own], atol=1e-8)
            start += p


def test_scalars_have_the_same_energy_and_the_same_forward_pass():
    net, (x, y) = gbp.Network(nodes("diagonal"), input_shape=INPUTS), batch()
    known = {n: np.asarray(b.mean) for n, b in net.priors(seed=3).items()}
    means = {n: jnp.concatenate([known[f"{n}/weight"].T, known[f"{n}/bias"][:, None]], 1)
             for n in ("code", "other", "values")}  # fmt: skip
    out = net.forward(x, known)
    np.testing.assert_allclose(out["values"], plainly(means, x), atol=1e-5)
    graph = net.graph(x, y)
    r = np.random.default_rng(1)
    values = {n: r.standard_normal(v.shape) for n, v in graph.variables.items() if n != "input"} | {"input": x}
    back = values["back"] - np.tanh(values["code"] @ values["code/weight"].T)
    again = values["back_again"] - values["other"] @ values["code/weight"].T
    for name, h, sigma in (("back", back, 0.02), ("back_again", again, 0.03)):
        factor = graph.factors[name]
        assert [v.variable.name for v in factor.views][1] == "code/weight"
        found = factor.h.value(*(jnp.asarray(values[v.variable.name], jnp.float32) for v in factor.views))
        np.testing.assert_allclose(found, h, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(factor.noise, sigma**2)
    learner = gbp.Learner(net, activations="scalar", iterations=100)
    assert learner.update(x, y).accepted
    assert np.isfinite(np.asarray(learner.predict(x).mean)).all()


def test_the_encoder_is_no_last_layer():
    """Whose prior means are 0: nothing would tell units apart. The outputs have the prior of one."""
    net = gbp.Network(
        {"code": gbp.Dense(4), "outputs": gbp.Tied("code", transposed=True), "target": gbp.GaussianObservation(0.1)},
        input_shape=(2, 3),
    )
    assert net.shapes((2, 3)) == {"input": (2, 3), "code": (4,), "outputs": (6,)}
    chosen = choose_layers(net, (2, 3))
    code, outputs, _ = (p.layer for p in chosen.places)
    assert (code.posterior, code.gain, code.weight_init, outputs.prior) == ("rotated", 2.0, None, 50.0)
    learner = gbp.Learner(net, activations="vector")
    assert np.asarray(learner.posterior["code/parameters"].mean).std() > 0.1
    x = np.random.default_rng(0).standard_normal((8, 2, 3))
    assert learner.update(x, x.reshape(8, 6)).accepted


def test_it_is_saved_copied_drawn_and_counted(tmp_path):
    net, (x, y) = gbp.Network(nodes(), input_shape=INPUTS), batch()
    learner = gbp.Learner(net, activations="vector")
    assert learner.update(x, y).accepted
    learner.save(tmp_path / "net.safetensors")
    again = gbp.Learner.load(tmp_path / "net.safetensors")
    assert again.net.nodes == learner.net.nodes == learner.net.with_layers(learner.net.layers).nodes
    for other in (again, copy.copy(learner), pickle.loads(pickle.dumps(learner))):
        np.testing.assert_array_equal(other.predict(x).mean, learner.predict(x).mean)
    net.draw(tmp_path / "net.svg")
    assert "back" in (tmp_path / "net.svg").read_text()
    counted = 2 * (INPUTS + 1) * UNITS + (INPUTS + 1) * 2
    assert str(net).splitlines()[-2].split()[-1] == str(counted)


def test_sensitivities_count_in_the_memory_of_a_batch():
    tied, apart = (
        VectorActivations(zoo.autoencoder(100, 20, tied=tied), (100,), np.float32).memory(10) for tied in (True, False)
    )
    assert tied - apart > 4 * (10 * 100) * 20 * 101


def dense(**more):
    return gbp.Network({"a": gbp.Dense(3), **more}, input_shape=(5,))


REFUSED = {
    "too many inputs": (
        lambda: dense(c=(gbp.Tied("a", transposed=True), "input")),
        r"layer 'c': transposed, it takes 3 numbers, got inputs \(5,\)",
    ),
    "a convolution": (
        lambda: gbp.Network({"a": gbp.Conv2D(3, kernel=2), "c": gbp.Tied("a", transposed=True)}),
        r"'c': only a feed-forward gbp\.Dense can be tied transposed, not a Conv2D",
    ),
    "a layer turned twice": (
        lambda: dense(b=gbp.Tied("a", transposed=True), c=gbp.Tied("b", transposed=True)),
        "not a TransposedDense",
    ),
    "a generative layer": (
        lambda: gbp.Network({"a": gbp.Dense(3, direction="generative"), "c": gbp.Tied("a", transposed=True)}),
        r"only a feed-forward gbp\.Dense",
    ),
    "nothing": (lambda: dense(c=gbp.Tied("z", transposed=True)), r"Tied\('z'\) must name a layer"),
    "an activation that is that of the node": (lambda: gbp.Tied("a", activation="tanh"), "unless it is transposed"),
    "no such activation": (lambda: dense(c=gbp.Tied("a", transposed=True, activation="none")), "activation"),
    "no noise": (lambda: dense(c=gbp.Tied("a", transposed=True, sigma=0.0)), "Tied: sigma must be a number > 0"),
    "vectors of scalars": (
        lambda: gbp.Learner(gbp.Network(nodes("block"), input_shape=INPUTS), activations="scalar").update(*batch()),
        "'code/parameters' is a vector variable of 'code': only one group of factors can have it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(name):
    make, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        make()


def test_a_layer_turned_again_is_the_same_layer():
    net = dense(b=gbp.Tied("a", transposed=True), c=gbp.Tied("a"), d=gbp.Tied("b"))
    assert net.shapes((5,))["d"] == (5,)
    assert list(net.parameters((5,))) == ["a/weight", "a/bias"]
    known = {n: np.asarray(b.mean) for n, b in net.priors().items()}
    x = np.ones((2, 5), np.float32)
    w, bias = known["a/weight"], known["a/bias"]
    np.testing.assert_allclose(net.forward(x, known)["d"], ((x @ w + bias) @ w.T @ w + bias) @ w.T, rtol=1e-4)
