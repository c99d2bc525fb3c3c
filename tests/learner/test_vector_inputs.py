"""Vector activations whose inputs are not known exactly: against dense solves of the linearised model, and scalars."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import chain
from gbplearn.network.vector_activations import VectorActivations, as_vectors

NOISE, LAYER, HELD = 0.3, 0.05, 5.0


def network(*hidden, posterior="block", weight_init=None, observed=None, inputs=3, prior=HELD):
    first = () if observed is None else (gbp.GaussianObservation(sigma=observed, name="seen"),)
    return gbp.Sequential(
        *first,
        *hidden,
        gbp.Dense(
            2,
            sigma=LAYER,
            weight_prior=0.7,
            bias_prior=0.5,
            weight_init=weight_init,
            prior=prior,
            posterior=posterior,
        ),
        gbp.GaussianObservation(sigma=NOISE),
        input_shape=(inputs,),
    )


def data(n=8, inputs=3, seed=0):
    r = np.random.default_rng(seed)
    x, y = r.standard_normal((n, inputs)).astype(np.float32), r.standard_normal((n, 2)).astype(np.float32)
    prior = gbp.Gaussian.from_moments(mean=r.standard_normal(x.shape), std=r.uniform(0.2, 1.0, x.shape))
    return x, y, r.random(x.shape) < 0.6, prior


def dense_update(net, m, v, y):
    """All parameters as one vector, the network linearised at inputs `m`, which add `G V G'` to the noise; in NumPy."""
    links = VectorActivations(net, net.input_shape, np.float32).links
    beliefs = as_vectors(net.priors(), links, np.float32)
    means = {n: b.mean for n, b in beliefs.items()}

    def outputs(means, x):
        for link in links:
            x = link.outputs([x], means)
        return x

    j = jax.jacrev(outputs)(means, m)
    g = np.asarray(jax.vmap(jax.jacrev(lambda x: outputs(means, x[None])[0]))(m), float)
    j = np.concatenate([np.asarray(part, float).reshape(y.size, -1) for part in j.values()], 1)
    p = np.diag(np.concatenate([np.asarray(b.variance, float).ravel() for b in beliefs.values()]))
    noise = np.asarray(chain.linearise(links, means, m).noise, float) + np.einsum("bci,bi,bdi->bcd", g, v, g)
    s = j @ p @ j.T
    for b, r in enumerate(noise):
        s[2 * b : 2 * b + 2, 2 * b : 2 * b + 2] += r
    precision = NOISE**-2 + HELD**-2
    off = (y * NOISE**-2 / precision - np.asarray(outputs(means, m), float)).ravel()
    gain = p @ j.T @ np.linalg.inv(s + np.eye(y.size) / precision)
    first = np.concatenate([np.asarray(mean, float).ravel() for mean in means.values()])
    return first + gain @ off, p - gain @ j @ p, noise


def check(learner, net, m, v, y):
    mean, covariance, _ = dense_update(net, jnp.asarray(m, np.float32), v, y)
    place = 0
    for name in (n for n in learner.posterior if n.endswith("parameters")):
        belief = learner.posterior[name]
        units, p = belief.shape
        np.testing.assert_allclose(np.ravel(belief.mean), mean[place : place + units * p], atol=2e-4)
        for unit in range(units):
            of = slice(place + unit * p, place + (unit + 1) * p)
            np.testing.assert_allclose(belief.covariance[unit], covariance[of, of], atol=2e-4)
        place += units * p


@pytest.mark.parametrize(
    "hidden", [(), (gbp.Dense(4, "tanh", sigma=0.05, weight_prior=0.15, bias_prior=0.15, posterior="block"),)]
)
@pytest.mark.parametrize("known", ["missing", "noisy", "both", "observed by the network"])
def test_an_update_is_a_dense_solve(hidden, known):
    (x, y, observed, prior), sigma = data(), None if known == "missing" else 0.2
    by_network = known == "observed by the network"
    net = network(*hidden, observed=sigma if by_network else None)
    learner = gbp.Learner(net, activations="vector", input_sigma=None if by_network else sigma)
    given = {} if known == "noisy" else {"x_observed": observed, "x_prior": prior}
    assert learner.update(np.where(observed, x, np.nan) if given else x, y, **given).accepted
    m, v = x, np.full(x.shape, (sigma or 0.0) ** 2)
    if given:
        m, v = np.where(observed, x, prior.mean), np.where(observed, v, prior.variance)
    check(learner, net, m, v, y)


def test_a_prior_of_the_learner_and_padding():
    """What is missing has the learner's `input_prior`, N(0, 1) by default; padding has no inputs that count."""
    x, y, observed, _ = data(8)
    for prior, mean, variance in ((None, 0.0, 1.0), (gbp.Gaussian.from_moments(mean=0.5, std=0.3), 0.5, 0.09)):
        net = network()
        learner = gbp.Learner(net, activations="vector", input_prior=prior)
        learner.expect_size(11)
        learner.update(x, y, x_observed=observed)
        check(learner, net, np.where(observed, x, mean), np.where(observed, 0, variance), y)


def test_predictions_add_what_inputs_leave_open():
    """Of a linear network with known parameters that is all there is: exact, and what scalars find.

    (With a wide prior of the outputs: to scalars that of one output says something of the inputs, so of the other one.)
    """
    (x, y, observed, prior), beliefs, wide = data(), {}, 1e3
    for activations in ("vector", "scalar"):
        learner = gbp.Learner(network(posterior="diagonal", weight_init=1.0, prior=wide), activations=activations)
        beliefs[activations] = learner.predict(x, x_observed=observed, x_prior=prior)
    weight, bias = learner.posterior["dense/weight"].mean, learner.posterior["dense/bias"].mean
    m, v = np.where(observed, x, prior.mean), np.where(observed, 0, prior.variance)
    held = wide**-2
    precision = held + 1 / (LAYER**2 + v @ np.asarray(weight) ** 2)
    np.testing.assert_allclose(beliefs["vector"].variance, 1 / precision, rtol=1e-4)
    np.testing.assert_allclose(beliefs["vector"].mean, (m @ weight + bias) * (1 - held / precision), atol=1e-5)
    np.testing.assert_allclose(beliefs["scalar"].mean, beliefs["vector"].mean, atol=1e-4)
    np.testing.assert_allclose(beliefs["scalar"].std, beliefs["vector"].std, rtol=1e-4)
    noisy = gbp.Learner(
        network(posterior="diagonal", weight_init=1.0, prior=wide), activations="vector", input_sigma=0.2
    )
    precision = held + 1 / (LAYER**2 + 0.04 * np.sum(np.asarray(weight) ** 2, 0))
    np.testing.assert_allclose(noisy.predict(x).variance, np.broadcast_to(1 / precision, y.shape), rtol=1e-4)


def test_what_is_observed_exactly_costs_nothing_and_changes_nothing():
    (x, y, _, prior), found = data(), []
    for given in (
        {},
        {"x_observed": np.ones(x.shape, bool)},
        {"x_observed": True * np.ones(8, bool), "x_prior": prior},
    ):
        learner = gbp.Learner(network(), activations="vector")
        learner.update(x, y, **given)
        found.append(np.asarray(learner.posterior["dense/parameters"].covariance))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_images_of_which_pixels_are_missing():
    """Filters and pooling hand the variances on: against draws of the missing pixels, where these move little."""
    net = gbp.Sequential(
        gbp.Conv2D(3, kernel=3, activation="tanh", sigma=0.01, weight_prior=0.4, bias_prior=0.3, posterior="block"),
        gbp.AvgPool2D(2, sigma=0.01),
        gbp.Dense(2, sigma=0.01, weight_prior=0.6, bias_prior=0.2, prior=100.0, posterior="block"),
        gbp.GaussianObservation(sigma=NOISE),
        input_shape=(6, 6, 1),
    )
    r = np.random.default_rng(0)
    x, observed = r.standard_normal((3, 6, 6, 1)).astype(np.float32), r.random((3, 6, 6, 1)) < 0.7
    prior = gbp.Gaussian.from_moments(mean=x, std=0.05)
    learner = gbp.Learner(net, activations="vector")
    extra = learner.predict(x, x_observed=observed, x_prior=prior).variance - learner.predict(x).variance
    draws = x + 0.05 * ~observed * r.standard_normal((2000, *x.shape)).astype(np.float32)
    expected = np.asarray(learner.forward(draws.reshape(-1, 6, 6, 1))).reshape(2000, 3, 2).var(0)
    np.testing.assert_allclose(extra, expected, rtol=0.15)
