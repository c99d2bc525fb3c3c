"""Class probabilities of uncertain logits: averages over 256 draws that all examples share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.gaussian import Gaussian


def probabilities(logits: Gaussian) -> Array:
    """`E softmax(f)`, a row an example."""
    return _mean_softmax(logits.mean, logits.std, _draws(logits))


def expected_entropy(logits: Gaussian) -> Array:
    """`E H(softmax(f))` in nats: how uncertain the class would still be if the logits were known."""
    return _mean_entropy(logits.mean, logits.std, _draws(logits))


def _draws(logits: Gaussian) -> Array:
    draws = np.random.default_rng(0).standard_normal((128, logits.shape[-1]))
    return jnp.asarray(np.concatenate([draws, -draws]), logits.dtype)


@jax.jit
def _mean_softmax(mean: Array, std: Array, draws: Array) -> Array:
    return jax.lax.map(lambda d: jax.nn.softmax(mean + std * d), draws).mean(0)


@jax.jit
def _mean_entropy(mean: Array, std: Array, draws: Array) -> Array:
    def entropy(d: Array) -> Array:
        log_p = jax.nn.log_softmax(mean + std * d)
        return -jnp.sum(jnp.exp(log_p) * log_p, -1)

    return jax.lax.map(entropy, draws).mean(0)
