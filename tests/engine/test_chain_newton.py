"""Updates of one batch again and again (`engine/chain_newton.py`): where they rest, against derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import chain
from gbplearn.network.vector_activations import VectorActivations, as_vectors

LAYERS, PRIOR = 0.02, 1e3


def network(*hidden, sigma=None):
    return gbp.Sequential(
        *hidden,
        gbp.Dense(1, sigma=LAYERS, weight_prior=1.0, bias_prior=1.0, prior=PRIOR, weight_init=0.5, posterior="block"),
        gbp.GaussianObservation(sigma=gbp.LearnNoise(0.3, 2.0) if sigma is None else sigma),
        input_shape=(1,),
    )


def hidden():
    return gbp.Dense(4, "tanh", sigma=LAYERS, weight_prior=2.0, bias_prior=1.0, bias_init=0.5, posterior="block")


def data(n=40, seed=0):
    r = np.random.default_rng(seed)
    x = r.uniform(-1, 1, (n, 1)).astype(np.float32)
    return x, (np.sin(3 * x) + 0.1 * r.standard_normal((n, 1))).astype(np.float32)


def test_at_rest_no_parameter_wants_to_move():
    """Energy of targets, given the noise of layers there, and of the prior: its derivatives vanish."""
    (x, y), net = data(), network(hidden())
    vectors, priors = VectorActivations(net, (1,), np.float32), net.priors(seed=1)
    mode = vectors.most_probable(net.batch(x, y), priors)
    beliefs, links = as_vectors(priors, vectors.links, np.float32), vectors.links
    layers = chain.linearise(links, mode.means, jnp.asarray(x)).noise[:, :, 0]

    def energy(means):
        off = jnp.asarray(y) - chain.outputs_at(links, means, jnp.asarray(x))
        prior = sum(jnp.sum((means[n] - b.mean) ** 2 / b.variance) for n, b in beliefs.items())
        return 0.5 * (jnp.sum(off**2 / (mode.noise + layers)) + prior)

    first = jax.grad(energy)({n: b.mean for n, b in beliefs.items()})
    last = jax.grad(energy)(mode.means)
    for name in last:
        assert np.abs(last[name]).max() < 0.01 * np.abs(first[name]).max()
    assert energy(mode.means) == pytest.approx(mode.energy, abs=0.05)
    assert np.sqrt(mode.noise) == pytest.approx(0.1, rel=0.3)
    # An update there stays there, and its noise is at rest.
    result = vectors.learn(net.batch(x, y), priors, 1, 0.0, mode=mode)
    (noise,) = result.noise.values()
    assert noise == pytest.approx(np.sqrt(mode.noise), rel=0.03)
    for name, mean in mode.means.items():
        off = (np.asarray(result[f"{name}/parameters"].mean) - mean) / np.asarray(result[f"{name}/parameters"].std)
        assert np.abs(off).max() < 0.1


def test_examples_without_a_target_have_the_covariance_of_all_parameters():
    """Laplace's approximation of the whole network, written out."""
    (x, y), (new, _) = data(), data(7, seed=2)
    net = network(hidden())
    vectors, priors = VectorActivations(net, (1,), np.float32), net.priors(seed=1)
    mode = vectors.most_probable(net.batch(x, y), priors)
    whole, there = np.concatenate([x, new]), np.arange(47) < 40
    batch = net.batch(whole, np.r_[y, np.zeros((7, 1))], y_observed=there)
    found = vectors.learn(batch, priors, 1, 0.0, mode=mode)[net.output]
    links, beliefs = vectors.links, as_vectors(priors, vectors.links, np.float32)
    j = jax.jacrev(lambda means: chain.outputs_at(links, means, jnp.asarray(whole))[:, 0])(mode.means)
    j = np.concatenate([np.asarray(part, float).reshape(47, -1) for part in j.values()], 1)
    p = np.concatenate([np.asarray(b.variance, float).ravel() for b in beliefs.values()])
    layers = np.asarray(chain.linearise(links, mode.means, jnp.asarray(whole)).noise, float)[:, 0, 0]
    precision = np.diag(1 / p) + j[there].T @ (j[there] / (mode.noise + layers[there])[:, None])
    expected = np.einsum("np,pq,nq->n", j[~there], np.linalg.inv(precision), j[~there]) + layers[~there]
    np.testing.assert_allclose(found.variance[40:, 0], expected, rtol=0.01)


def test_a_linear_network_rests_where_one_update_leads():
    x, y = data()
    net = network()
    vectors, priors = VectorActivations(net, (1,), np.float32), net.priors(seed=0)
    mode, once = vectors.most_probable(net.batch(x, y), priors), vectors.learn(net.batch(x, y), priors, 1, 0.0)
    (noise,) = once.noise.values()
    assert np.sqrt(mode.noise) == pytest.approx(noise, rel=0.01)
    np.testing.assert_allclose(mode.means["dense"], once["dense/parameters"].mean, atol=0.01)


def test_what_it_is_not_for_is_refused():
    x, y = data()
    for net in (network(sigma=0.1), network(gbp.Dense(4, "tanh"))):
        with pytest.raises(ValueError, match="most_probable needs layers"):
            VectorActivations(net, (1,), np.float32).most_probable(net.batch(x, y), net.priors())
