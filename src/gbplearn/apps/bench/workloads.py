"""What is timed: one iteration of inference on graphs that people use, each with what it is compared to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ...core.gaussian import Gaussian
from ...engine.damping import Damping
from ...engine.diagnostics import no_diagnostics
from ...engine.guard.guard import Guard
from ...engine.loop import CHUNK, Enough, advance
from ...engine.moves import fixed_order
from ...engine.options import make_options
from ...engine.program import prepared
from ...engine.state import empty_state
from ...graph.factor import Factor
from ...graph.graph import FactorGraph
from ...graph.problem import Problem
from ...network.sequential import Sequential
from ...network.zoo import five_layer_denoiser, pairwise_denoiser, paper_classifier, single_layer_denoiser
from ..baselines.adam_steps import WAYS, first_moments, first_values, make_steps
from ..data.images import load_images

MNIST, CIFAR = (28, 28, 1), (32, 32, 3)
Run = Callable[[int], None]  # so many rounds, to the end
FRAME = (258, 454, 3)  # of the paper's video


@dataclasses.dataclass(frozen=True)
class Workload:
    """Something to time.

    **Arguments:**

    - `run`: so many iterations, diagnosed as often as `gbp.infer` does it.
    - `messages`: sent in one iteration; `traffic`: bytes that one must move at least.
    - `references`: what else is timed, by turns with it; the fastest counts.
    """

    run: Run
    messages: int
    traffic: int
    references: dict[str, Run]


def traffic_of(problem: Problem, order: tuple[int, ...]) -> int:
    """Bytes that must move: messages of a group are read and written, what its variables receive from others is read.

    Pooled edge sets have a message a unit, and a reaction a factor. (Observed inputs and parameters are left out: they
    are small, or stay in the cache.)
    """
    total = 0
    for g in order:
        group = problem.groups[g]
        for i, slot in enumerate(group.slots):
            units = int(np.prod(slot.edges.unit_shape))
            total += 16 * (units if slot.pooled or slot.edges.injective else group.factors * slot.units)
            total += 8 * units
            total += 8 * group.factors * (slot.reaction == i)
    return total


def workload_of(graph: FactorGraph, damping: Damping, messages: str, references: dict[str, Run]) -> Workload:
    """Iterations of inference on a graph, beside its references."""
    problem = graph.problem(None, messages)
    options = make_options(graph, problem, damping, 0.0, None, 1)
    problem = prepared(problem, options)
    order = fixed_order(problem, options)
    assert order is not None
    large = problem.edges > Guard().large
    box = [empty_state(problem, jax.random.PRNGKey(0), False), no_diagnostics(problem)]

    def run(iterations: int) -> None:
        left = iterations
        while left:
            box[0], box[1], diagnosed = advance(problem, box[0], options, box[1], min(left, CHUNK), Enough(-1.0), large)
            left -= len(diagnosed.residual)
        jax.block_until_ready(box[0])

    sent = sum(problem.groups[g].edges for g in order)
    return Workload(run, sent, traffic_of(problem, order), references)


def _images(shape: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """MNIST's or CIFAR10's, if they are at hand; else noise: for MNIST with as many zeros, for CIFAR10 so faint that
    messages stay finite."""
    name = "mnist" if shape == MNIST else "cifar10"
    folder = os.environ.get("GBPLEARN_DATA")
    if folder and (Path(folder) / name).is_dir():
        data = load_images(name)
        return np.asarray(data.train_x[:count]), np.asarray(data.train_y[:count])
    rng = np.random.default_rng(0)
    x = rng.random((count, *shape), dtype=np.float32)
    if shape == MNIST:
        x[:, :5] = x[:, -5:] = x[:, :, :5] = x[:, :, -5:] = 0
    else:
        x *= 0.2
    return x, rng.integers(0, 10, count)


def _adam(x: np.ndarray, y: np.ndarray) -> dict[str, Run]:
    images, labels = jnp.asarray(x, jnp.float32), jnp.asarray(y)

    def make(way: str) -> Run:
        values = first_values(x.shape[1:])
        steps, box = make_steps(way), [values, first_moments(values)]

        def run(count: int) -> None:
            for _ in range(count):
                box[:] = steps.step(box[0], box[1], images, labels)
                jax.block_until_ready(box)

        return run

    return {f"Adam step, {way}": make(way) for way in WAYS}


def _forward(x: np.ndarray) -> dict[str, Run]:
    images, values = jnp.asarray(x, jnp.float32), first_values(x.shape[1:])

    def make(way: str) -> Run:
        logits = make_steps(way).logits

        def run(count: int) -> None:
            for _ in range(count):
                logits(values, images).block_until_ready()

        return run

    return {f"forward pass, {way}": make(way) for way in WAYS}


def _train(shape: tuple[int, ...], messages: str, batch: int = 50, filters: int | None = None) -> Workload:
    x, y = _images(shape, batch)
    net = paper_classifier() if filters is None else paper_classifier(filters)
    graph = net.graph(net.batch(x, y).padded(batch))
    return workload_of(graph, Damping(0.95, 0.5), messages, _adam(x, y) if filters is None else {})


def _predict(messages: str) -> Workload:
    x, _ = _images((28, 28, 1), 200)
    net = paper_classifier()
    graph = net.graph(net.batch(x).padded(200), parameters="fixed")
    return workload_of(graph, Damping(0.0, 0.0), messages, _forward(x))


def _video(model: Callable[[], Sequential]) -> Workload:
    x, net = np.random.default_rng(0).random((1, *FRAME), dtype=np.float32), model()
    return workload_of(net.graph(net.batch(x)), Damping(0.8, 0.8), "auto", {})


def _difference(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.sin(b) - a


def _million() -> Workload:
    """A million factors of a user's own function, nonlinear, over a chain of scalars by index arrays."""
    count, rng = 1_000_000, np.random.default_rng(0)
    graph = FactorGraph()
    x = graph.variable("x", (count + 1,), prior=Gaussian.from_moments(0.0, 1.0))
    order = rng.permutation(count)
    graph.add(Factor(_difference, (x[order], x[order + 1]), y=0.1, sigma=0.5, name="chain"))
    return workload_of(graph, Damping(0.0, 0.0), "per-edge", {})


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mnist-train-pooled": partial(_train, MNIST, "pooled"),
    "mnist-train-per-edge": partial(_train, MNIST, "per-edge"),
    "mnist-predict-pooled": partial(_predict, "pooled"),
    "mnist-predict-per-edge": partial(_predict, "per-edge"),
    "cifar10-train-pooled": partial(_train, CIFAR, "pooled"),
    "video-1-layer": partial(_video, single_layer_denoiser),
    "video-5-layers": partial(_video, five_layer_denoiser),
    "pairwise": partial(_video, pairwise_denoiser),
    "million-factors": _million,
}
# How the time a factor changes with the size of the batch, and the number of filters.
SCALING: dict[str, Callable[[], Workload]] = {
    **{f"batch-{n}": partial(_train, MNIST, "pooled", n, 16) for n in (50, 100, 200, 400)},
    **{f"filters-{n}": partial(_train, MNIST, "pooled", 50, n) for n in (8, 16, 32, 64)},
}
