"""What the passes over images are run with: chosen on 9,000 training images that were held back, never on test images.

The search is `benchmarks/image_search.py`, its trials are in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...factors.operators import Shape
from ...layers.dense import Dense
from ...layers.features import Features
from ...layers.softmax import SoftmaxObservation
from ...network.layer_graph import LayerGraph
from ...network.sequential import Sequential
from ...network.zoo import (
    dense_classifier,
    dense_vector_classifier,
    lenet,
    paper_classifier,
    patches_classifier,
    patches_features,
    residual_network,
    small_vgg,
    smooth_lenet,
    vector_classifier,
)
from ..baselines.cnn import GradientClassifier
from ..baselines.diagonal_ekf import DiagonalEKF

# Of the paper's standard deviations one is changed, that of the logits: at its 2.0 the network is not sure enough.
NETWORKS: dict[str, Callable[[], LayerGraph]] = {
    "convolutional": partial(paper_classifier, logit_prior=5.0),
    "dense": dense_classifier,
    "vector": vector_classifier,  # the paper's layers, with vector beliefs and activations
    "dense-vector": dense_vector_classifier,
    "lenet": lenet,
    "wide-lenet": partial(lenet, filters=(16, 32), units=(128,)),
    "smooth-lenet": smooth_lenet,
    "small-vgg": small_vgg,
    "residual": residual_network,
    "patches": patches_classifier,  # behind features that are no part of the graph
}
# Of the learner; of the others "scalar".
ACTIVATIONS: dict[str, str] = {
    "vector": "vector",
    "dense-vector": "vector",
    "lenet": "vector",
    "wide-lenet": "vector",
    "smooth-lenet": "vector",
    "small-vgg": "vector",
    "residual": "vector",
    "patches": "vector",
}
# Images a batch, and of message passing at most so many iterations for each.
BATCH, ITERATIONS = 50, 50

# By data set: step sizes of Adam and steps a batch, prior and wandering of the Kalman filter. Temperatures are the best
# for the held-back images.
_KALMAN = {"prior_std": 0.3, "process_noise": 0.0}
CHOSEN: dict[str, dict[str, dict[str, Any]]] = {
    "mnist": {
        "adam": {"rate": 0.003, "steps": 1, "temperature": 0.958},
        "adam cosine": {"rate": 0.003, "steps": 10, "temperature": 1.424},
        "kalman": _KALMAN,
        "linear": {"rate": 0.001, "steps": 10},
    },
    "fashion-mnist": {
        "adam": {"rate": 0.001, "steps": 3, "temperature": 1.003},
        "adam cosine": {"rate": 0.001, "steps": 10, "temperature": 1.010},
        "kalman": _KALMAN,
        "linear": {"rate": 0.001, "steps": 10},
    },
    "cifar10": {
        "adam": {"rate": 0.001, "steps": 3, "temperature": 1.019},
        "adam cosine": {"rate": 0.001, "steps": 10, "temperature": 0.989},
        "linear": {"rate": 0.001, "steps": 3},
    },
}

# The same with the other networks that are compared with gradients on their own layers.
CHOSEN_DEEP: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    graph: {data: {"adam cosine": {"rate": 0.001, "steps": 3}} for data in CHOSEN}
    for graph in ("dense-vector", "lenet", "wide-lenet", "smooth-lenet", "small-vgg", "residual")
}

Build = Callable[[Shape, int], Any]


def network(graph: str) -> LayerGraph:
    """The factor graph to learn."""
    if graph not in NETWORKS:
        raise ValueError(f"graph must be one of {', '.join(NETWORKS)}, got {graph!r}")
    return NETWORKS[graph]()


def features(graph: str, data: str) -> Features | None:
    """What stands in front of it. Digits and letters are not what their mirror images are."""
    return patches_features(mirrored=data == "cifar10") if graph == "patches" else None


def baseline(name: str, chosen: dict[str, Any], batches: int, graph: str = "convolutional") -> Build:
    """How something to compare with is made, from the shape of an image and a seed.

    **Arguments:**

    - `name`: "adam", "adam cosine", "kalman", "linear".
    - `chosen`: its settings.
    - `batches`: of the pass, over which a step size falls.
    - `graph`: whose layers it has: those of `CHOSEN_DEEP` have their own, all others the paper's.
    """
    deep: LayerGraph = dense_classifier() if graph == "dense-vector" else paper_classifier()
    if graph in ("lenet", "wide-lenet", "small-vgg", "residual"):
        deep = NETWORKS[graph]()
    elif graph == "smooth-lenet":
        deep = smooth_lenet(length_scale=None)
    net = Sequential(Dense(10), SoftmaxObservation()) if name == "linear" else deep
    how = {k: v for k, v in chosen.items() if k != "temperature"}
    if name == "kalman":
        return lambda shape, seed: DiagonalEKF(net, shape, seed=seed, **how)
    falls = None if name == "adam" else batches
    return lambda shape, seed: GradientClassifier(net, shape, falls_over=falls, seed=seed, **how)


def baselines(data: str, batches: int, graph: str = "convolutional") -> dict[str, tuple[Build, dict[str, Any]]]:
    """All that a data set and a graph are compared with: how it is made, and its settings."""
    chosen = CHOSEN_DEEP.get(graph, CHOSEN)[data]
    return {name: (baseline(name, how, batches, graph), how) for name, how in chosen.items()}
