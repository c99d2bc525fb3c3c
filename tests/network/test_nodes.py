"""`gbp.Network`: nodes that take any nodes before them, against plain functions, dense solves and its short form."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import chain
from gbplearn.network.vector_activations import VectorActivations, as_vectors

SHAPE = (4, 4, 2)


def conv(channels=3, **more):
    return gbp.Conv2D(channels, kernel=3, padding="same", activation="tanh", weight_prior=None, bias_prior=0.2, **more)


def everything(**more):
    """A skip connection, two side by side, a part, a layer twice, and what is taken twice."""
    return gbp.Network(
        {
            "first": conv(**more),
            "second": conv(**more),
            "sum": (gbp.Add(sigma=0.02), "first", "second"),
            "again": (gbp.Tied("second"), "sum"),
            "both": (gbp.Concatenate(sigma=0.03), "again", "first"),
            "part": gbp.Part(1, 5, sigma=0.04),
            "mean": gbp.GlobalAvgPool2D(sigma=0.05),
            "values": gbp.Dense(2, weight_prior=0.6, bias_prior=0.3, **more),
            "target": gbp.GaussianObservation(sigma=0.3),
        },
        input_shape=SHAPE,
    )


def plain(means, x):
    """The same function, written out with `jax.lax` for one image."""

    def filtered(image, w):
        kernel = w[:, :-1].T.reshape(3, 3, image.shape[2], len(w))
        out = jax.lax.conv_general_dilated(
            image[None], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.tanh(out[0] + w[:, -1])

    first = filtered(x, means["first"])
    second = filtered(first, means["second"])
    again = filtered(first + second, means["second"])
    both = jnp.concatenate([again, first], -1)
    pooled = both[..., 1:5].mean((0, 1))
    return means["values"][:, :-1] @ pooled + means["values"][:, -1]


def images(n=5, seed=0):
    r = np.random.default_rng(seed)
    return r.standard_normal((n, *SHAPE)).astype(np.float32), r.standard_normal((n, 2)).astype(np.float32)


def prepared(net):
    links = VectorActivations(net, net.input_shape, np.float32).links
    beliefs = as_vectors(net.priors(), links, np.float32)
    return links, beliefs, {n: b.mean for n, b in beliefs.items()}


def test_outputs_and_their_derivatives_are_those_of_the_plain_function():
    net, (x, _) = everything(posterior="block"), images()
    links, _, means = prepared(net)
    found = chain.linearise(links, means, jnp.asarray(x))
    np.testing.assert_allclose(found.outputs, jax.vmap(lambda i: plain(means, i))(x), atol=1e-5)
    expected = jax.jacrev(lambda m: jax.vmap(lambda i: plain(m, i))(x))(means)
    assert set(found.sensitivities) == {"first", "second", "values"}
    for name, of in found.sensitivities.items():
        each = of.each if hasattr(of, "each") else np.einsum("bcu,bp->bcup", of.slopes, of.rows)
        np.testing.assert_allclose(each, expected[name], atol=2e-5)
    forward = net.forward(x, {f"{n}/parameters": m for n, m in means.items()})
    np.testing.assert_allclose(forward["values"], found.outputs, atol=1e-5)


def test_inputs_that_are_not_known_exactly_come_through_every_path():
    net, (x, _) = everything(posterior="block"), images()
    links, _, means = prepared(net)
    spread = jnp.full(x.shape, 0.3**2)
    noisy, exact = (chain.linearise(links, means, jnp.asarray(x), s).noise for s in (spread, None))
    j = np.asarray(jax.vmap(jax.jacrev(lambda i: plain(means, i)))(x)).reshape(len(x), 2, -1)
    np.testing.assert_allclose(noisy - exact, 0.3**2 * j @ j.transpose(0, 2, 1), rtol=1e-3, atol=1e-6)


def test_the_residual_block_of_the_guide_is_the_plain_function():
    """docs/guides/networks.md: a stem, two convolutions, their sum with the stem, pooling, logits."""
    how = {"kernel": 3, "padding": "same", "weight_prior": None, "bias_prior": 0.2, "posterior": "block"}
    net = gbp.Network(
        {
            "stem": gbp.Conv2D(3, activation="leaky_relu", **how),
            "first": gbp.Conv2D(3, activation="leaky_relu", **how),
            "second": gbp.Conv2D(3, **how),
            "sum": (gbp.Add(), "stem", "second"),
            "pool": gbp.MaxPool2D(2),
            "logits": gbp.Dense(4, weight_prior=0.5, posterior="block"),
            "class": gbp.CategoricalObservation(),
        },
        input_shape=SHAPE,
    )

    def plainly(means, x):
        def filtered(x, w):
            kernel = w[:, :-1].T.reshape(3, 3, x.shape[-1], len(w))
            out = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return out + w[:, -1]

        def leaky(a):
            return jnp.where(a > 0, a, 0.2 * a)

        stem = leaky(filtered(x, means["stem"]))
        total = stem + filtered(leaky(filtered(stem, means["first"])), means["second"])
        pooled = total.reshape(len(x), 2, 2, 2, 2, 3).max((2, 4)).reshape(len(x), -1)
        return pooled @ means["logits"][:, :-1].T + means["logits"][:, -1]

    (x, _), (links, _, means) = images(4, seed=3), prepared(net)
    found = chain.linearise(links, means, jnp.asarray(x))
    np.testing.assert_allclose(found.outputs, plainly(means, x), atol=1e-5)
    expected = jax.jacrev(lambda m: plainly(m, x))(means)
    assert set(found.sensitivities) == {"stem", "first", "second", "logits"}
    for name, of in found.sensitivities.items():
        each = of.each if hasattr(of, "each") else np.einsum("bcu,bp->bcup", of.slopes, of.rows)
        np.testing.assert_allclose(each, expected[name], atol=2e-5)


def linear_network(**more):
    """Two parts of the input through one layer and another, added: a linear regression of 2 x 3 + 1 weights."""
    more = {"weight_prior": 1.0, "bias_prior": 1.0, "weight_init": 0.0, "sigma": 1e-3, "prior": 1e3, **more}
    return gbp.Network(
        {
            "left": (gbp.Part(0, 3, sigma=1e-4, prior=1e3), "input"),
            "right": (gbp.Part(3, 6, sigma=1e-4, prior=1e3), "input"),
            "of_left": (gbp.Dense(1, **more), "left"),
            "of_right": (gbp.Tied("of_left"), "right"),
            "own": (gbp.Dense(1, **more), "right"),
            "sum": (gbp.Add(sigma=1e-3, prior=1e3), "of_left", "of_right", "own"),
            "target": gbp.GaussianObservation(sigma=0.2),
        },
        input_shape=(6,),
    )


def regression(x, y):
    """Its posterior by a dense solve: weights of the first layer see the sum of both parts, its bias counts twice."""
    one = np.ones((len(x), 1))
    rows = np.concatenate([x[:, :3] + x[:, 3:], 2 * one, x[:, 3:], one], 1)
    noise = 0.2**2 + 3 * 1e-6
    precision = np.eye(8) + rows.T @ rows / noise
    return np.linalg.solve(precision, rows.T @ y[:, 0] / noise), np.linalg.inv(precision)


@pytest.mark.parametrize("batch", [40, 8])
def test_a_linear_network_with_a_tied_layer_is_a_regression(batch):
    """Blocks keep the covariance inside of a layer; of both together only the means of one batch are exact."""
    r = np.random.default_rng(1)
    x = r.standard_normal((40, 6)).astype(np.float32)
    y = (x @ r.standard_normal((6, 1)) + 0.1 * r.standard_normal((40, 1))).astype(np.float32)
    learner = gbp.Learner(linear_network(posterior="block"), activations="vector")
    for i in range(0, 40, batch):
        learner.update(x[i : i + batch], y[i : i + batch])
    mean, covariance = regression(x, y)
    found = [learner.posterior[f"{n}/parameters"] for n in ("of_left", "own")]
    if batch == 40:
        np.testing.assert_allclose(np.concatenate([f.mean[0] for f in found]), mean, atol=2e-3)
        for f, part in zip(found, (slice(0, 4), slice(4, 8))):
            np.testing.assert_allclose(f.covariance[0], covariance[part, part], rtol=0.05, atol=1e-4)
    predicted = np.asarray(learner.predict(x).mean)[:, 0]
    assert np.corrcoef(predicted, y[:, 0])[0, 1] > 0.99


def test_the_general_engine_finds_the_same_means():
    """Scalars on the graph of the batch, loops and all: means of a linear graph at rest are exact."""
    r = np.random.default_rng(2)
    x = r.standard_normal((30, 6))
    y = x @ r.standard_normal((6, 1)) + 0.1 * r.standard_normal((30, 1))
    more = {"sigma": 0.1}
    net = linear_network(**more)
    for node in ("left", "right", "sum"):
        assert node in net.nodes
    result = gbp.infer(net.graph(x, y), iterations=4000, tolerance=1e-6, damping=0.7)
    joint = gbp.Learner(linear_network(posterior="block", **more), activations="vector")
    joint.update(x, y)
    weights = [np.asarray(joint.posterior[f"{n}/parameters"].mean)[0, :3] for n in ("of_left", "own")]
    found = [np.asarray(result[f"{n}/weight"].mean)[:, 0] for n in ("of_left", "own")]
    np.testing.assert_allclose(found, weights, atol=5e-3)


def test_a_chain_of_nodes_is_a_sequential():
    """The same layers and names: the same beliefs, bit for bit."""
    layers = {
        "conv": conv(),
        "max_pool": gbp.MaxPool2D(2),
        "dense": gbp.Dense(3, weight_init=0.0, prior=20.0),
        "class": gbp.CategoricalObservation(name="class"),
    }
    x, _ = images(12)
    y = np.arange(12) % 3
    nets = gbp.Network(layers, input_shape=SHAPE), gbp.Sequential(*layers.values(), input_shape=SHAPE)
    for activations in ("vector", "scalar"):
        one, other = (gbp.Learner(net, activations=activations, iterations=30) for net in nets)
        for learner in (one, other):
            learner.update(x, y)
        for name, belief in one.posterior.items():
            for a, b in zip(jax.tree.leaves(belief), jax.tree.leaves(other.posterior[name])):
                np.testing.assert_array_equal(a, b)


def test_it_is_saved_copied_drawn_and_counted(tmp_path):
    net = gbp.Network(
        {
            **{n: node for n, node in everything().nodes.items() if n != "target"},
            "class": gbp.CategoricalObservation(),
        },
        input_shape=SHAPE,
    )
    x, _ = images(20)
    learner = gbp.Learner(net)
    assert learner.activations == "vector"
    assert learner.update(x, np.arange(20) % 2).accepted
    learner.save(tmp_path / "net.safetensors")
    again = gbp.Learner.load(tmp_path / "net.safetensors")
    assert again.net.nodes == learner.net.nodes
    for other in (again, copy.copy(learner), pickle.loads(pickle.dumps(learner))):
        np.testing.assert_array_equal(other.predict(x).mean, learner.predict(x).mean)
    drawn = net.draw(tmp_path / "net.svg")
    assert "again" in (tmp_path / "net.svg").read_text()
    assert drawn is not None
    table = str(net)
    assert table.splitlines()[-2].split()[-1] == f"{(9 * 2 + 1) * 3 + (9 * 3 + 1) * 3 + (4 + 1) * 2}"  # tied: once
    assert net.memory(10)["auto"] > 0


def dense(**nodes):
    return gbp.Network({"a": gbp.Dense(3), "b": (gbp.Dense(4), "input"), **nodes}, input_shape=(5,))


REFUSED = {
    "no such node": (lambda: dense(c=(gbp.Dense(2), "z")), "'c' takes 'z', which is no node with outputs before it"),
    "a later node": (lambda: gbp.Network({"a": (gbp.Dense(2), "b"), "b": gbp.Dense(2)}), "'a' takes 'b'"),
    "other shapes": (lambda: dense(c=(gbp.Add(), "a", "b")), "layer 'c': Add: all inputs must have one shape"),
    "two of one": (lambda: dense(c=(gbp.Dense(2), "a", "b")), "'c': a Dense takes one node, got 2"),
    "tied to nothing": (lambda: dense(c=gbp.Tied("z")), r"'c': Tied\('z'\) must name a layer"),
    "tied to another size": (lambda: dense(c=(gbp.Tied("a"), "b")), "'c' is tied to 'a', but takes another number"),
    "no part": (lambda: dense(c=(gbp.Part(2, 9), "a")), "layer 'c': Part: inputs"),
    "an empty part": (lambda: gbp.Part(2, 2), "0 <= begin < end must hold"),
    "half a part": (lambda: gbp.Part(0, True), "end must be a whole number"),
    "half an axis": (lambda: gbp.Concatenate(True), "axis must be a whole number"),
    "a node twice": (lambda: dense(c=(gbp.Add(), "a", "a")), "'c': Add takes a node once"),
    "a slash": (lambda: gbp.Network({"a/b": gbp.Dense(2)}), "cannot be called 'a/b'"),
    "the input": (lambda: gbp.Network({"input": gbp.Dense(2)}), "cannot be called 'input'"),
    "nothing": (lambda: gbp.Network({}), "at least one layer"),
    "one object twice": (
        lambda: (lambda d: gbp.Network({"a": d, "b": d}, input_shape=(4,)))(gbp.Dense(4)),
        "one object",
    ),
    "side by side": (
        lambda: gbp.Network({"a": gbp.Dense(3), "b": (gbp.Concatenate(axis=1), "a")}, input_shape=(2,)),
        "have no axis 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(name):
    make, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        make()


def test_no_layer():
    for nothing in (3, ()):
        with pytest.raises(TypeError, match=r"'a' must be a layer such as gbp\.Dense"):
            gbp.Network({"a": nothing})
    with pytest.raises(TypeError, match=r"'c': \(layer, names\.\.\.\) takes names of nodes as strings"):
        dense(c=(gbp.Add(), ["a", "b"]))


def test_a_node_that_the_head_does_not_depend_on_is_refused():
    """Its prior would pass for evidence of the layers before it, although nothing of it was ever observed."""
    with pytest.raises(ValueError, match="nothing that 'target' observes depends on 'b': leave it out"):
        dense(logits=(gbp.Dense(2), "a"), target=gbp.CategoricalObservation())
    assert dense(logits=(gbp.Dense(2), "a")).head is None  # without a head there is no such evidence


def generative(*names):
    """Nodes that explain the input, and the same node twice in another order."""
    how = {"direction": "generative", "sigma": 1.0, "prior": 1e-3, "weight_prior": 1e-3, "bias_prior": 1e-3}
    return {name: (gbp.Dense(1, **how), "input") for name in names}


def test_a_density_is_one_if_its_layers_are():
    """Two densities of one variable are none together: the evidence is then divided by their integral."""
    x = np.linspace(-8, 8, 81)[:, None]
    for names in (("z",), ("z", "w")):
        net = gbp.Network(generative(*names), input_shape=1)
        learner = gbp.Learner(net, activations="scalar", iterations=50)
        assert np.exp(learner.log_evidence(x)).sum() * 0.2 == pytest.approx(1.0, abs=0.02)


@pytest.mark.filterwarnings("error")
def test_which_node_explains_the_input_does_not_depend_on_their_order():
    found = []
    for names in (("g", "f"), ("f", "g")):
        nodes = {"g": (gbp.Dense(2, direction="generative", sigma=0.1), "input"), "f": (gbp.Dense(3), "input")}
        net = gbp.Network({**{n: nodes[n] for n in names}, "class": (gbp.CategoricalObservation(), "f")}, input_shape=4)
        learner = gbp.Learner(net, activations="scalar", iterations=20)
        seen = np.array([[1, 1, 0, 0]] * 2, bool)
        found.append(learner.query("input", x=np.ones((2, 4)), x_observed=seen).mean.shape)
    assert found == [(2, 4), (2, 4)]


def test_a_node_may_be_called_output():
    net = gbp.Network({"output": gbp.Dense(5, "tanh"), "logits": gbp.Dense(3), "class": gbp.CategoricalObservation()})
    learner = gbp.Learner(net, (4,), activations="scalar", iterations=5)
    assert learner.query(x=np.ones((2, 4))).mean.shape == learner.predict(np.ones((2, 4))).mean.shape == (2, 3)


def test_the_last_layer_may_stand_in_two_places():
    nodes = {
        "left": gbp.Part(0, 2),
        "scores": gbp.Dense(3),
        "right": (gbp.Part(2, 4), "input"),
        "again": (gbp.Tied("scores"), "right"),
        "sum": (gbp.Add(), "scores", "again"),
        "class": gbp.CategoricalObservation(),
    }
    learner = gbp.Learner(gbp.Network(nodes, input_shape=4))
    weights = learner.posterior["scores/parameters"]
    assert weights.root.shape == (1, 3, 3)  # shared, as of any last layer; prior means are 0
    assert not np.any(weights.mean)
    assert learner.update(np.ones((2, 4)), [0, 1]).accepted


def test_a_network_without_parameters_keeps_scalars():
    net = gbp.Network({"part": gbp.Part(0, 2), "class": gbp.CategoricalObservation()}, input_shape=4)
    assert gbp.Learner(net).activations == "scalar"
    with pytest.raises(ValueError, match="no layer of the network has parameters"):
        gbp.Learner(net, activations="vector")


def test_few_filters_behind_few_filters():
    """Convolutions that go plane by plane: derivatives against JAX's own of the plain convolution."""
    nodes = {
        "a": gbp.Conv2D(2, kernel=3, padding="same", activation="tanh", weight_prior=0.5, posterior="block"),
        "b": gbp.Conv2D(2, kernel=3, padding="same", activation="tanh", weight_prior=0.5, posterior="block"),
        "mean": gbp.GlobalAvgPool2D(),
        "target": gbp.GaussianObservation(sigma=0.3),
    }
    net = gbp.Network(nodes, input_shape=(16, 16, 1))
    links, _, means = prepared(net)
    x = np.random.default_rng(0).standard_normal((50, 16, 16, 1)).astype(np.float32)
    found = chain.linearise(links, means, jnp.asarray(x)).sensitivities["a"].each[:3]

    def plainly(w, image):
        for each in (w, means["b"]):
            kernel = each[:, :-1].T.reshape(3, 3, image.shape[-1], 2)
            image = jax.lax.conv_general_dilated(
                image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            image = jnp.tanh(image + each[:, -1])
        return image.mean((1, 2))

    np.testing.assert_allclose(found, jax.jacrev(plainly)(means["a"], x[:3]), atol=2e-5)
