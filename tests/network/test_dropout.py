"""`gbp.Dropout`: units left out while a batch is learnt from, against the network with the mask written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import chain
from gbplearn.network.initial import dropout_masks
from gbplearn.network.vector_activations import VectorActivations, as_vectors

HOW = {"weight_prior": 0.8, "bias_prior": 0.3}


def network(*between, name="drop", rate=0.4, **more):
    layers = between or (gbp.Dropout(rate, name=name, sigma=0.02),)
    return gbp.Sequential(
        gbp.Dense(6, "tanh", name="first", **HOW, **more),
        *layers,
        gbp.Dense(2, name="last", **HOW, **more),
        gbp.GaussianObservation(sigma=0.2),
        input_shape=3,
    )


def batch(n=8, seed=0):
    r = np.random.default_rng(seed)
    return r.standard_normal((n, 3)), r.standard_normal((n, 2))


def masks_of(net, n, seed):
    return dropout_masks(net.places, {"drop": (n, 6)}, seed)["drop/mask"]


def same(one, other):
    """Bit for bit."""
    for name in one.posterior:
        pairs = zip(jax.tree.leaves(one.posterior[name]), jax.tree.leaves(other.posterior[name]), strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)


def test_a_mask_drops_as_many_as_it_should_and_keeps_the_mean():
    r = np.random.default_rng(0)
    mask = gbp.Dropout(0.3).mask((200, 10, 10, 3), r)
    assert set(np.unique(mask)) == {0.0, 1 / 0.7}
    assert np.mean(mask == 0) == pytest.approx(0.3, abs=0.01)
    assert mask.mean() == pytest.approx(1, abs=0.01)
    channels = gbp.Dropout(0.3, channels=True).mask((2000, 4, 5, 3), r)
    assert (channels == channels[:, :1, :1]).all()
    assert np.mean(channels[:, 0, 0] == 0) == pytest.approx(0.3, abs=0.02)
    assert np.ptp(channels[:, 0, 0], axis=1).max() > 0  # one by one


@pytest.mark.parametrize("activations", ["vector", "scalar"])
def test_a_rate_of_0_is_a_layer_that_hands_on(activations):
    """The mask is 1: the beliefs are those with a part that is the whole."""
    x, y = batch()
    nets = network(rate=0.0), network(gbp.Part(0, 6, name="drop", sigma=0.02))
    one, other = (gbp.Learner(net, activations=activations, iterations=40) for net in nets)
    for learner in (one, other):
        for _ in range(2):
            learner.update(x, y)
    for name in one.posterior:
        np.testing.assert_allclose(one.posterior[name].mean, other.posterior[name].mean, atol=1e-4)
        np.testing.assert_allclose(one.posterior[name].variance, other.posterior[name].variance, rtol=1e-4)
    np.testing.assert_allclose(one.predict(x).mean, other.predict(x).mean, atol=1e-4)


def test_one_joint_update_is_a_dense_solve_with_the_mask(x64):
    net, (x, y) = network(posterior="block"), batch()
    vectors = VectorActivations(net, (3,), np.float64)
    beliefs = as_vectors(net.priors(), vectors.links, np.float64)
    means = {n: b.mean for n, b in beliefs.items()}
    mask = masks_of(net, 8, seed=7)
    assert 0 < np.mean(mask == 0) < 1
    found = vectors.learn(net.batch(x, y), net.priors(), 10, 1e-9, seed=7)
    assert found.status is gbp.Status.CONVERGED

    def plainly(m):
        h = mask * jnp.tanh(x @ m["first"][:, :-1].T + m["first"][:, -1])
        return h @ m["last"][:, :-1].T + m["last"][:, -1]

    of, names = jax.jacrev(plainly)(means), list(means)
    j = np.concatenate([np.asarray(of[n]).reshape(y.size, -1) for n in names], 1)
    prior = jax.scipy.linalg.block_diag(*(c for n in names for c in beliefs[n].covariance))
    noise, last = np.zeros((y.size, y.size)), np.asarray(means["last"][:, :-1])
    for b in range(8):
        own = slice(2 * b, 2 * b + 2)
        noise[own, own] = 0.01**2 * ((last * mask[b] ** 2) @ last.T + np.eye(2)) + 0.02**2 * last @ last.T
    d = 1 / 0.2**2 + net.layers[2].output_prior ** -2
    gain = prior @ j.T @ np.linalg.inv(j @ prior @ j.T + noise + np.eye(y.size) / d)
    mean = np.concatenate([np.ravel(means[n]) for n in names])
    mean = mean + gain @ (y / 0.2**2 / d - np.asarray(plainly(means))).ravel()
    got = np.concatenate([np.ravel(found[f"{n}/parameters"].mean) for n in names])
    np.testing.assert_allclose(got, mean, atol=1e-8)
    blocks = np.diagonal(prior - gain @ j @ prior)
    variance = np.concatenate([np.ravel(found[f"{n}/parameters"].variance) for n in names])
    np.testing.assert_allclose(variance, blocks, atol=1e-8)
    # Other masks are data of the same link: the same tree, the same static parts.
    drop = vectors.links[1]
    assert len({jax.tree.structure(drop.with_mask(masks_of(net, 8, seed))) for seed in (1, 2)}) == 1


def test_a_graph_of_scalars_has_the_mask_as_what_is_known():
    """Means at rest of a linear layer with known weights: those of one linear regression on the masked inputs."""
    net = gbp.Sequential(
        gbp.Dropout(0.4, name="drop", sigma=0.02, prior=1e3),
        gbp.Dense(2, name="last", sigma=0.05, weight_init=0.0, prior=1e3, **HOW),
        gbp.GaussianObservation(sigma=0.2),
        input_shape=6,
    )
    x, (_, y) = np.random.default_rng(3).standard_normal((8, 6)), batch()
    mask = masks_of(net, 8, seed=5)
    assert 0 < np.mean(mask == 0) < 1
    found = gbp.infer(net.graph(x, y, seed=5), iterations=3000, tolerance=1e-6, damping=0.5)
    assert found.status is gbp.Status.CONVERGED
    np.testing.assert_allclose(np.asarray(found["drop"].mean)[mask == 0], 0, atol=0.02)
    # By hand, with the noise of dropping (0.02 a number) and of the weights taken at their means: a fixed point.
    h = np.asarray(found["drop"].mean)
    rows = np.c_[h, np.ones(8)]
    noise = 0.05**2 + 0.2**2
    prior = np.r_[np.full(6, HOW["weight_prior"]), HOW["bias_prior"]] ** -2.0
    w = np.linalg.solve(np.diag(prior) + rows.T @ rows / noise, rows.T @ y / noise)
    np.testing.assert_allclose(found["last/weight"].mean, w[:6], atol=0.02)
    np.testing.assert_allclose(found["last/bias"].mean, w[6], atol=0.02)
    assert np.abs(h - mask * x).max() < 0.1
    predicted = net.predict(x, found, iterations=200, tolerance=1e-6)
    w, d = (np.asarray(found[f"last/{n}"].mean) for n in ("weight", "bias"))
    np.testing.assert_allclose(predicted.mean, x @ w + d, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("activations", ["vector", "scalar"])
def test_masks_change_from_batch_to_batch_and_come_again_with_the_seed(activations, tmp_path):
    net, (x, y) = network(), batch()

    def fresh(seed=0):
        return gbp.Learner(net, activations=activations, iterations=20, seed=seed)

    one, other = fresh(), fresh()
    for learner in (one, other):
        learner.update(x, y)
    same(one, other)
    one.save(tmp_path / "begun")
    again = gbp.Learner.load(tmp_path / "begun")
    assert again.net.layers[1] == net.layers[1]
    compiled = len(net._programs)
    for learner in (one, other, again):
        learner.update(x, y)
    assert len(net._programs) == compiled  # masks are data
    same(one, other)
    same(one, again)
    first, second = (masks_of(net, 8, seed) for seed in (0, 1))
    assert (first != second).any()
    np.testing.assert_array_equal(masks_of(net, 16, 0)[:8], first)  # padding changes nothing
    # Nothing is dropped where nothing is learnt.
    np.testing.assert_array_equal(one.predict(x).mean, one.predict(x).mean)
    w = {n: np.asarray(b.mean) for n, b in one.posterior.items()}
    if activations == "scalar":
        h = np.tanh(x @ w["first/weight"] + w["first/bias"])
        np.testing.assert_allclose(one.forward(x), h @ w["last/weight"] + w["last/bias"], atol=1e-5)
        hidden = one.query("drop", x=x).mean
        np.testing.assert_allclose(hidden, h, atol=0.02)
    else:
        np.testing.assert_allclose(one.predict(x).mean, one.forward(x), rtol=1e-3, atol=1e-4)


def test_whole_channels_of_images_in_a_network_of_nodes(tmp_path):
    net = gbp.Network(
        {
            "conv": gbp.Conv2D(4, kernel=3, activation="leaky_relu"),
            "drop": gbp.Dropout(0.5, channels=True),
            "logits": gbp.Dense(3),
            "class": gbp.CategoricalObservation(),
        },
        input_shape=(6, 6, 1),
    )
    learner = gbp.Learner(net)
    x = np.random.default_rng(0).standard_normal((10, 6, 6, 1))
    assert learner.activations == "vector"
    assert learner.update(x, np.arange(10) % 3).accepted
    scalar = gbp.Learner(net, activations="scalar", iterations=10)
    assert scalar.update(x, np.arange(10) % 3).accepted
    net.draw(tmp_path / "net.svg")
    assert "observed" in (tmp_path / "net.svg").read_text()
    drop = next(line for line in str(net).splitlines() if line.startswith("drop")).split()
    assert drop == ["drop", "Dropout", "4x4x4", "64", "128", "0"]
    assert net.memory(10)["auto"] > 0


def test_labels_and_weights_work_as_elsewhere():
    """An example without a label, and one of no weight, teach nothing, whatever is dropped."""
    net, (x, y) = network(), batch()
    for how in ({"y_observed": np.arange(8) < 7}, {"sample_weight": (np.arange(8) < 7) * 1.0}):
        for activations in ("vector", "scalar"):
            one, other = (gbp.Learner(net, activations=activations, iterations=20) for _ in range(2))
            changed = np.where(np.arange(8)[:, None] < 7, x, 5.0)
            one.update(x, y, **how)
            other.update(changed, y, **how)
            for name in one.posterior:
                np.testing.assert_allclose(one.posterior[name].mean, other.posterior[name].mean, atol=1e-5)


REFUSED = {
    "all": (lambda: gbp.Dropout(1.0), "rate must be a number >= 0 and < 1, got 1.0"),
    "less than nothing": (lambda: gbp.Dropout(-0.1), "rate must be a number"),
    "not a number": (lambda: gbp.Dropout(float("nan")), "rate must be a number"),
    "channels of a row": (
        lambda: gbp.Sequential(gbp.Dropout(0.1, channels=True), gbp.Dense(2), input_shape=3),
        "channels=True needs images",
    ),
    "two nodes": (
        lambda: gbp.Network({"a": gbp.Dense(2), "b": (gbp.Dropout(0.1), "input", "a")}, input_shape=2),
        "Dropout takes one node, got 2",
    ),
    "no noise": (lambda: gbp.Dropout(0.1, sigma=0.0), "Dropout: sigma must be a number > 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(name):
    make, text = REFUSED[name]
    with pytest.raises(ValueError, match=text):
        make()


def test_a_linear_chain_and_its_transpose():
    """What comes down to a layer below a mask is masked, too."""
    net, (x, _) = network(posterior="block"), batch()
    vectors = VectorActivations(net, (3,), np.float32)
    means = {n: b.mean for n, b in as_vectors(net.priors(), vectors.links, np.float32).items()}
    mask = masks_of(net, 8, seed=3).astype(np.float32)
    links = [link.with_mask(mask if link.name == "drop" else None) for link in vectors.links]
    found = chain.linearise(links, means, jnp.asarray(x, jnp.float32))

    def plainly(m):
        h = mask * jnp.tanh(x @ m["first"][:, :-1].T + m["first"][:, -1])
        return h @ m["last"][:, :-1].T + m["last"][:, -1]

    np.testing.assert_allclose(found.outputs, plainly(means), atol=1e-5)
    expected = jax.jacrev(plainly)(means)
    for name, of in found.sensitivities.items():
        each = np.einsum("bcu,bp->bcup", of.slopes, of.rows)
        np.testing.assert_allclose(each, expected[name], atol=1e-5)
