"""One step of Adam on the paper's CNN in three ways, the fastest that we know: what an iteration is measured against.

Convolution, pooling and dense layer of `gbp.models.paper_classifier`, cross-entropy, Adam: the same network with
numbers for parameters. The three differ in how convolution and pooling are written: XLA's own convolution, windows by
one gather and a matrix product, windows by slices and a matrix product. All are float32, compiled, and stepped from
Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from ...factors.operators import Shape

KERNEL, FILTERS, CLASSES, SLOPE = 5, 16, 10, 0.2
Values = dict[str, Array]


class Steps(NamedTuple):
    """A way to train: the step `(values, moments, x, y) -> (values, moments)`, and the logits `(values, x)`."""

    step: Callable[..., tuple[Values, optax.OptState]]
    logits: Callable[[Values, Array], Array]


def _by_xla(x: Array, w: Array) -> Array:
    return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _by_gather(x: Array, w: Array) -> Array:
    k, (_, height, width, channels) = w.shape[0], x.shape
    rows, columns = (np.arange(n - k + 1)[:, None] + np.arange(k) for n in (height, width))
    windows = x[:, rows[:, None, :, None], columns[None, :, None, :]].reshape(-1, k * k * channels)
    return (windows @ w.reshape(-1, w.shape[3])).reshape(x.shape[0], len(rows), len(columns), w.shape[3])


def _by_slices(x: Array, w: Array) -> Array:
    k, (_, height, width, _) = w.shape[0], x.shape
    h, v = height - k + 1, width - k + 1
    windows = jnp.concatenate([x[:, i : i + h, j : j + v] for i in range(k) for j in range(k)], -1)
    flat = windows.reshape(-1, windows.shape[3])
    return (flat @ w.reshape(-1, w.shape[3])).reshape(x.shape[0], h, v, w.shape[3])


def _largest(a: Array) -> Array:
    """Of tiles of 2 x 2, by comparing slices: on XLA:CPU half the time of its own pooling."""
    tiles = a[:, : a.shape[1] // 2 * 2, : a.shape[2] // 2 * 2]
    first, second = (jnp.maximum(tiles[:, i::2, ::2], tiles[:, i::2, 1::2]) for i in (0, 1))
    return jnp.maximum(first, second)


def _largest_by_reshape(a: Array) -> Array:
    b, h, w, c = a.shape
    return a.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))


WAYS: dict[str, tuple[Callable[[Array, Array], Array], Callable[[Array], Array]]] = {
    "XLA's convolution": (_by_xla, _largest_by_reshape),
    "windows by a gather": (_by_gather, _largest_by_reshape),
    "windows by slices": (_by_slices, _largest),
}


def first_values(shape: Shape, seed: int = 0) -> Values:
    """Weights `N(0, 2 / ((1 + 0.2²) n))` for `n` inputs, biases 0."""
    rng, (height, width, channels) = np.random.default_rng(seed), shape
    inputs = (height - KERNEL + 1) // 2 * ((width - KERNEL + 1) // 2) * FILTERS

    def weights(*shape: int) -> Array:
        scale = np.sqrt(2 / ((1 + SLOPE**2) * np.prod(shape[:-1])))
        return jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)

    return {
        "conv": weights(KERNEL, KERNEL, channels, FILTERS),
        "conv bias": jnp.zeros(FILTERS, jnp.float32),
        "dense": weights(inputs, CLASSES),
        "dense bias": jnp.zeros(CLASSES, jnp.float32),
    }


def make_steps(way: str, rate: float = 1e-3) -> Steps:
    """The step and the logits in one of the `WAYS`."""
    convolve, pool = WAYS[way]
    adam = optax.adam(rate)

    def logits(values: Values, x: Array) -> Array:
        a = convolve(x, values["conv"]) + values["conv bias"]
        pooled = pool(jnp.where(a > 0, a, SLOPE * a))
        return pooled.reshape(x.shape[0], -1) @ values["dense"] + values["dense bias"]

    def loss(values: Values, x: Array, y: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(values, x), y).mean()

    def step(values: Values, moments: optax.OptState, x: Array, y: Array) -> tuple[Values, optax.OptState]:
        updates, moments = adam.update(jax.grad(loss)(values, x, y), moments)
        new = jax.tree.map(jnp.add, values, updates)
        return new, moments

    return Steps(jax.jit(step), jax.jit(logits))


def first_moments(values: Values) -> optax.OptState:
    """Of Adam."""
    return optax.adam(1e-3).init(values)
