"""Targets and outputs come to rest, also where logits are vague: the expansion of the class likelihood may swing."""

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import chain
from gbplearn.network.vector_activations import targets_of

CLASSES = 10


def vague_logits(seed, examples, features, scale=25.0):
    """A joint covariance of all logits of a batch, as deep networks have it before they have seen much; and labels."""
    r = np.random.default_rng(seed)
    x = r.standard_normal((examples, features))
    covariance = scale**2 * np.kron(x @ x.T / features, np.eye(CLASSES)) + 1e-3 * np.eye(examples * CLASSES)
    return covariance, np.eye(CLASSES)[r.integers(0, CLASSES, examples)]


@pytest.mark.parametrize(("seed", "features"), [(0, 5), (8, 5), (0, 25), (5, 25), (2, 60), (3, 60), (7, 60), (9, 60)])
def test_vague_logits_come_to_rest(seed, features):
    """With damping that rose at every small step, these used up all of their 200 iterations."""
    covariance, y = vague_logits(seed, 50, features)
    net = gbp.Sequential(gbp.Dense(CLASSES), gbp.CategoricalObservation())
    targets = targets_of(net, net.batch(np.zeros((len(y), 3)), y), jnp.float32)
    start, held, weight = np.zeros(y.shape), np.full(len(y), 50.0**-2), np.ones(len(y))
    found = chain.condition(start, covariance, targets, held, weight, 200, 0.03)
    assert found.settled
    assert len(found.moves) < 60
    # At rest: expanded where it has led, the targets lead to the same means.
    precision, gradient = targets.expand(found.mean, found.variance)
    information = gradient + np.einsum("bcd,bd->bc", precision, found.mean)
    again = chain.Joint.of(start, covariance, precision + held[0] * np.eye(CLASSES), information)
    assert (np.abs(again.mean - found.mean) / np.sqrt(found.variance)).max() < 0.1
