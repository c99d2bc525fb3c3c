"""The same network trained by gradients: cross-entropy, Adam, a step size that is constant or falls like a cosine.

Loss of a batch of `B` labelled examples with logits `l_b = f(x_b; w)` and classes `c_b`:

    L(w) = -1/B sum_b log softmax(l_b)_{c_b}
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float

from ..measurement import Shape
from ..network import Sequential
from ..scores import accuracy

_SLOPE = 0.2  # of leaky ReLU for negative numbers


class GradientClassifier:
    """A feed-forward network of gbplearn's layers, its parameters plain numbers, trained with Adam on a stream.

    Every batch is seen once, for `steps` gradient steps of size `rate`. The layers' forward functions are those of the
    factor graph; standard deviations and priors play no part. Weights start at `N(0, 2 / ((1 + 0.2²) n))` for `n`
    inputs (He et al. 2015, for leaky ReLU), biases at 0.

    **Arguments:**

    - `net`: `gbp.Sequential(...)` without generative layers, its outputs the logits of the classes.
    - `input_shape`: of one example; not needed if the network knows.
    - `rate`: step size.
    - `steps`: a batch.
    - `falls_over`: with this many batches the step size falls to zero, like `(1 + cos(pi t / T)) / 2`; None: it stays.
    - `seed`: of the first weights.
    """

    def __init__(
        self,
        net: Sequential,
        input_shape: Shape | None = None,
        *,
        rate: float,
        steps: int = 1,
        falls_over: int | None = None,
        seed: int = 0,
    ):
        if net.generative:
            raise ValueError("a network with generative layers has no forward pass to take gradients of")
        if not 0 < rate < float("inf"):
            raise ValueError(f"rate must be a number > 0, got {rate!r}")
        if steps < 1:
            raise ValueError(f"steps must be 1 or larger, got {steps!r}")
        if falls_over is not None and falls_over < 1:
            raise ValueError(f"falls_over must be 1 or larger, got {falls_over!r}")
        self.net, self.rate, self.steps, self.falls_over = net, rate, steps, falls_over
        self.batches = 0
        self.parameters = first_parameters(net, input_shape, seed)
        self._moments = optax.scale_by_adam().init(self.parameters)

    def update(self, x: np.ndarray, y: np.ndarray, y_observed: np.ndarray | None = None) -> None:
        """Learn from a batch; examples whose label was not observed count nothing."""
        seen = np.ones(len(y), bool) if y_observed is None else np.asarray(y_observed, bool)
        if not seen.any():
            return  # without this the momentum would move the parameters
        batch = (
            jnp.asarray(x),
            jnp.asarray(np.where(seen, y, 0)),
            jnp.asarray(seen),
        )  # what was not seen may be anything
        rate = self.rate
        if self.falls_over is not None:
            rate *= (1 + np.cos(np.pi * min(1.0, self.batches / self.falls_over))) / 2
        for _ in range(self.steps):
            self.parameters, self._moments = _descend(self.net, self.parameters, self._moments, *batch, rate)
        jax.block_until_ready(self.parameters)  # whoever takes the time means the work
        self.batches += 1

    def predict(self, x: np.ndarray) -> Float[np.ndarray, "batch classes"]:
        """The logits."""
        return np.asarray(_logits(self.net, self.parameters, jnp.asarray(x)))


def first_parameters(net: Sequential, input_shape: Shape | None, seed: int) -> dict[str, Array]:
    """Weights `N(0, 2 / ((1 + 0.2²) n))` for `n` inputs, biases 0, by name."""
    rng, out = np.random.default_rng(seed), {}
    for name, prior in net.priors(input_shape).items():
        inputs = np.prod(prior.shape[:-1])
        scale = np.sqrt(2 / ((1 + _SLOPE**2) * inputs)) if name.endswith("/weight") else 0.0
        out[name] = jnp.asarray(scale * rng.standard_normal(prior.shape), jnp.result_type(float))
    return out


def choose(
    net: Sequential,
    x: np.ndarray,
    y: np.ndarray,
    *,
    rates: Sequence[float],
    steps: Sequence[int] = (1,),
    batch: int = 50,
    held_back: float = 0.2,
    seed: int = 0,
) -> dict[str, float | int]:
    """The step size and the number of steps a batch that do best after one pass.

    Each pair learns from the first of the examples and is tested on the last, a share of `held_back`; those of ties are
    the first ones. No test data are needed.

    **Returns:** `rate`, `steps`, and the `accuracy` that they had.
    """
    split = round(len(y) * (1 - held_back))
    best: dict[str, float | int] = {}
    for rate, count in itertools.product(rates, steps):
        model = GradientClassifier(net, x.shape[1:], rate=rate, steps=count, seed=seed)
        for i in range(0, split, batch):
            model.update(x[i : min(i + batch, split)], y[i : min(i + batch, split)])
        right = accuracy(model.predict(x[split:]), y[split:])
        if not best or right > best["accuracy"]:
            best = {"rate": rate, "steps": count, "accuracy": right}
    return best


@partial(jax.jit, static_argnums=0)
def _logits(net: Sequential, parameters: dict[str, Array], x: Array) -> Array:
    return net.forward(x, parameters)[net.output]


@partial(jax.jit, static_argnums=0)
def _descend(net: Sequential, parameters, moments, x: Array, y: Array, seen: Array, rate: float):
    """A step. It is not a loop of steps: in the body of a loop XLA:CPU has but slow convolutions."""

    def loss(values: dict[str, Array]) -> Array:
        each = optax.softmax_cross_entropy_with_integer_labels(_logits(net, values, x), y)
        return jnp.sum(jnp.where(seen, each, 0.0)) / jnp.sum(seen)

    updates, moments = optax.scale_by_adam().update(jax.grad(loss)(parameters), moments)
    return jax.tree.map(lambda v, u: v - rate * u, parameters, updates), moments
