"""What sample efficiency is measured with: for each method and each size of the training set, chosen by random search.

The search is `benchmarks/sample_search.py`, on training images that were held back; its trials are in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .one_pass import ADAM, CONVERGED, COSINE, GBP, LINEAR, REPLAY, check_method

SIZES = (50, 100, 200, 400, 800, 3200, 12800, 60000)
TRIALS = 16
# The settings found at these sizes hold for the sizes below them that are not listed before.
SEARCHED = {400: (50, 100, 200, 400, 800), 3200: (3200,), 12800: (12800, 60000)}

Draw = Callable[[np.random.Generator, int], dict[str, Any]]


def _one(rng: np.random.Generator, *of: Any) -> Any:
    return of[int(rng.integers(len(of)))]


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """A number whose logarithm is uniform, to two digits."""
    return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.2g}")


def _steps(size: int) -> tuple[int, ...]:
    """A hundred steps a batch on a long stream would take most of the budget."""
    return (1, 3, 10, 30, 100) if size <= 800 else (1, 3, 10, 30)


def _gbp(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {
        "class_sigma": _between(rng, 0.003, 0.1),
        "logit_prior": _one(rng, 2.0, 5.0, 10.0),
        "conv_prior": _between(rng, 0.05, 0.5),
        "dense_prior": _between(rng, 0.03, 0.3),
        "sigma": _one(rng, 0.01, 0.03),
        "iterations": _one(rng, 50, 100, 200),
    }


def _adam(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {"rate": _between(rng, 3e-4, 1e-2), "steps": _one(rng, *_steps(size))}


def _replay(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {
        "rate": _between(rng, 3e-4, 1e-2),
        "steps": _one(rng, 1, 3, 10),
        "replay_steps": _one(rng, *_steps(size)),
        "replay_rate": _one(rng, 1.0, 0.3, 0.1),
    }


def _converged(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {
        "rate": _between(rng, 3e-4, 1e-2),
        "weight_decay": _between(rng, 1e-3, 1.0),
        "least_steps": _one(rng, 500, 1500),
        "rounds": _one(rng, 5, 10),
    }


SPACES: dict[str, Draw] = {
    GBP: _gbp,
    ADAM: _adam,
    COSINE: _adam,
    CONVERGED: _converged,
    **dict.fromkeys(REPLAY, _replay),
}
# The settings of the experiment mnist are the first trial of GBP; those of its twins the first of Adam.
FIRST: dict[str, dict[str, Any]] = {
    GBP: {"logit_prior": 5.0, "iterations": 50},
    ADAM: {"rate": 0.003, "steps": 1},
    COSINE: {"rate": 0.003, "steps": 10},
}
# Of the linear classifier: times half the sum of squares.
PENALTIES = tuple(float(f"{p:.2g}") for p in np.geomspace(0.01, 300, TRIALS))


def trials(method: str, size: int) -> list[dict[str, Any]]:
    """What is tried at a size, the same every time: sixteen settings, drawn at random but for the first."""
    check_method(method)
    if method == LINEAR:
        return [{"penalty": p} for p in PENALTIES]
    rng = np.random.default_rng((size, sorted(SPACES).index(method)))
    drawn = [SPACES[method](rng, size) for _ in range(TRIALS)]
    return [FIRST[method], *drawn[1:]] if method in FIRST else drawn


# By method, then by the size at which it was found.
CHOSEN: dict[str, dict[int, dict[str, Any]]] = {}


def chosen_for(method: str, size: int) -> dict[str, Any]:
    """The settings of a method for a training set of this size."""
    check_method(method)
    if method == LINEAR:
        return CHOSEN[method][size]
    (searched,) = (at for at, sizes in SEARCHED.items() if size in sizes)
    return CHOSEN[method][searched]
