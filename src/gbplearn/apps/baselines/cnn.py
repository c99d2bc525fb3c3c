"""The same network trained by gradients: cross-entropy, Adam, a step size that is constant or falls like a cosine.

Loss of a batch of `B` labelled examples with logits `l_b = f(x_b; w)` and classes `c_b`:

    L(w) = -1/B sum_b log softmax(l_b)_{c_b}
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float

from ...factors.operators import Shape
from ...network.layer_graph import LayerGraph
from ..scores import accuracy

if TYPE_CHECKING:
    from ..data.images import Pixels

_SLOPE = 0.2  # of leaky ReLU for negative numbers


class GradientClassifier:
    """A feed-forward network of gbplearn's layers, with numbers for parameters, trained with Adam on a stream.

    Every batch is used once, for `steps` gradient steps of size `rate`, and then again with others out of a buffer of
    the last examples, if there is one. The layers' forward functions are those of the factor graph; standard deviations
    and priors play no part. Weights start at `N(0, 2 / ((1 + 0.2²) n))` for `n` inputs (He et al. 2015, for leaky
    ReLU), biases at 0.

    **Arguments:**

    - `net`: `gbp.Sequential(...)` without generative layers, its outputs the logits of the classes.
    - `input_shape`: of one example; not needed if the network knows.
    - `rate`: step size.
    - `steps`: a batch.
    - `falls_over`: with this many batches the step size falls to zero, like `(1 + cos(pi t / T)) / 2`; None: it stays.
    - `weight_decay`: of all parameters, as AdamW: a step is `w - rate (Adam(gradient) + weight_decay w)`.
    - `replay`: how many examples the buffer holds; the oldest make room for the newest.
    - `replay_steps`: a batch, each with as many examples as the batch, drawn from the buffer at random.
    - `replay_rate`: their step size, as a share of that of the others.
    - `seed`: of the first weights, and of what is drawn from the buffer.
    """

    def __init__(
        self,
        net: LayerGraph,
        input_shape: Shape | None = None,
        *,
        rate: float,
        steps: int = 1,
        falls_over: int | None = None,
        weight_decay: float = 0.0,
        replay: int = 0,
        replay_steps: int = 0,
        replay_rate: float = 1.0,
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
        for name, value in (("weight_decay", weight_decay), ("replay_rate", replay_rate)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number >= 0, got {value!r}")
        if replay < 0 or replay_steps < 0 or (replay_steps and not replay):
            raise ValueError(f"replay_steps need a buffer: replay {replay!r}, replay_steps {replay_steps!r}")
        self.net, self.rate, self.steps, self.falls_over = net, rate, steps, falls_over
        self.weight_decay, self.replay_steps, self.replay_rate = weight_decay, replay_steps, replay_rate
        self.batches = 0
        self._buffer: deque[tuple[np.ndarray, int]] = deque(maxlen=replay)
        self._rng = np.random.default_rng((seed, 1))
        self.parameters = first_parameters(net, input_shape, seed)
        self._moments = optax.scale_by_adam().init(self.parameters)

    def update(self, x: np.ndarray, y: np.ndarray, y_observed: np.ndarray | None = None) -> None:
        """Learn from a batch; examples whose label was not observed count nothing."""
        observed = np.ones(len(y), bool) if y_observed is None else np.asarray(y_observed, bool)
        if not observed.any():
            return  # without this the momentum would move the parameters
        rate = self.rate
        if self.falls_over is not None:
            rate *= (1 + np.cos(np.pi * min(1.0, self.batches / self.falls_over))) / 2
        # Labels that were not observed may be anything.
        self.step(x, np.where(observed, y, 0), observed, rate, self.steps)
        if self.replay_steps:
            self._buffer.extend((x[i], int(y[i])) for i in np.flatnonzero(observed))
            for _ in range(self.replay_steps):
                count = min(len(y), len(self._buffer))
                drawn = [self._buffer[i] for i in self._rng.choice(len(self._buffer), count, replace=False)]
                old_x, old_y = np.stack([a for a, _ in drawn]), np.array([b for _, b in drawn])
                self.step(old_x, old_y, np.ones(count, bool), rate * self.replay_rate, 1)
        jax.block_until_ready(self.parameters)  # whoever takes the time means the work
        self.batches += 1

    def step(self, x: np.ndarray, y: np.ndarray, observed: np.ndarray, rate: float, steps: int) -> None:
        """So many gradient steps on examples, of which some have an observed label."""
        batch = jnp.asarray(x), jnp.asarray(y), jnp.asarray(observed)
        for _ in range(steps):
            self.parameters, self._moments = _descend(
                self.net, self.parameters, self._moments, *batch, rate, self.weight_decay
            )

    def predict(self, x: np.ndarray) -> Float[np.ndarray, "batch classes"]:
        """The logits."""
        return np.asarray(logits_of(self.net, self.parameters, jnp.asarray(x)))


def train_in_rounds(
    model: GradientClassifier, x: np.ndarray | Pixels, y: np.ndarray, *, batches: int, batch: int = 50, seed: int = 0
) -> None:
    """Go through all examples again and again, in a new order each time: what one would do without a stream.

    **Arguments:**

    - `batches`: in all. What is left at the end of a round, less than a batch, is left out of that round.
    """
    rng, order = np.random.default_rng((seed, 2)), np.zeros(0, int)
    size = min(batch, len(y))
    for _ in range(batches):
        if len(order) < size:
            order = rng.permutation(len(y))
        rows, order = order[:size], order[size:]
        model.update(x[rows], y[rows])


def first_parameters(net: LayerGraph, input_shape: Shape | None, seed: int) -> dict[str, Array]:
    """Weights `N(0, 2 / ((1 + 0.2²) n))` for `n` inputs, biases 0, by name."""
    rng, out = np.random.default_rng(seed), {}
    for name, prior in net.priors(input_shape).items():
        inputs = np.prod(prior.shape[:-1])
        scale = np.sqrt(2 / ((1 + _SLOPE**2) * inputs)) if name.endswith("/weight") else 0.0
        out[name] = jnp.asarray(scale * rng.standard_normal(prior.shape), jnp.result_type(float))
    return out


def choose(
    net: LayerGraph,
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
def logits_of(net: LayerGraph, parameters: dict[str, Array], x: Array) -> Array:
    """By a forward pass, compiled once for a network."""
    return net.forward(x, parameters)[net.output]


@partial(jax.jit, static_argnums=0)
def _descend(net: LayerGraph, parameters, moments, x: Array, y: Array, observed: Array, rate: float, decay: float):
    """A step. It is not a loop of steps: in the body of a loop XLA:CPU has but slow convolutions."""

    def loss(values: dict[str, Array]) -> Array:
        each = optax.softmax_cross_entropy_with_integer_labels(logits_of(net, values, x), y)
        return jnp.sum(jnp.where(observed, each, 0.0)) / jnp.sum(observed)

    updates, moments = optax.scale_by_adam().update(jax.grad(loss)(parameters), moments)
    return jax.tree.map(lambda v, u: v - rate * (u + decay * v), parameters, updates), moments
