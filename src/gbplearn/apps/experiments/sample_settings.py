"""What sample efficiency is measured with: settings of each method, found by random search at three sizes.

The linear classifier has a grid of penalties at every size. The search is `benchmarks/sample_search.py`, on training
images that were held back; its trials are in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .one_pass import ADAM, CONVERGED, COSINE, GBP, LINEAR, ONE_SETTING, REPLAY, VECTORS, check_method

SIZES = (50, 100, 200, 400, 800, 3200, 12800, 60000)
TRIALS = 16
# The sizes at which settings are searched, and those that they are used for.
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


def _vectors(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {
        "filter_prior": _between(rng, 0.1, 1.0),
        "filter_init": _between(rng, 0.1, 1.0),
        "dense_prior": _between(rng, 0.1, 1.0),
        "length_scale": _one(rng, 1.0, 2.0, 3.0),
        "logit_prior": _one(rng, 20.0, 50.0, 100.0),
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
    VECTORS: _vectors,  # the last in the order of names, by which methods draw
}
# The settings of the experiment mnist are the first trial of GBP; those of its twins the first of Adam.
FIRST: dict[str, dict[str, Any]] = {
    GBP: {"logit_prior": 5.0, "iterations": 50},
    ADAM: {"rate": 0.003, "steps": 1},
    COSINE: {"rate": 0.003, "steps": 10},
    VECTORS: {},
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


# Settings by method, then by the size at which they were found.
Chosen = Mapping[str, Mapping[int, dict[str, Any]]]
CHOSEN: Chosen = {
    "gbp": {
        400: {
            "class_sigma": 0.0041,
            "conv_prior": 0.051,
            "dense_prior": 0.11,
            "iterations": 100,
            "logit_prior": 2.0,
            "sigma": 0.03,
        },
        3200: {"iterations": 50, "logit_prior": 5.0},
        12800: {
            "class_sigma": 0.0083,
            "conv_prior": 0.083,
            "dense_prior": 0.093,
            "iterations": 200,
            "logit_prior": 2.0,
            "sigma": 0.01,
        },
    },
    "adam": {
        400: {"rate": 0.0081, "steps": 10},
        3200: {"rate": 0.0035, "steps": 3},
        12800: {"rate": 0.0035, "steps": 3},
    },
    "replay 0.3 %": {
        400: {"rate": 0.0095, "replay_rate": 0.3, "replay_steps": 100, "steps": 10},
        3200: {"rate": 0.004, "replay_rate": 0.3, "replay_steps": 10, "steps": 10},
        12800: {"rate": 0.004, "replay_rate": 0.3, "replay_steps": 10, "steps": 10},
    },
    "replay 1 %": {
        400: {"rate": 0.0053, "replay_rate": 0.1, "replay_steps": 100, "steps": 10},
        3200: {"rate": 0.0031, "replay_rate": 1.0, "replay_steps": 10, "steps": 1},
        12800: {"rate": 0.0031, "replay_rate": 1.0, "replay_steps": 10, "steps": 1},
    },
    "replay 3 %": {
        400: {"rate": 0.0053, "replay_rate": 0.1, "replay_steps": 100, "steps": 10},
        3200: {"rate": 0.004, "replay_rate": 1.0, "replay_steps": 30, "steps": 1},
        12800: {"rate": 0.0019, "replay_rate": 1.0, "replay_steps": 30, "steps": 1},
    },
    "replay 6 %": {
        400: {"rate": 0.0053, "replay_rate": 0.1, "replay_steps": 100, "steps": 10},
        3200: {"rate": 0.0012, "replay_rate": 1.0, "replay_steps": 30, "steps": 10},
        12800: {"rate": 0.00056, "replay_rate": 1.0, "replay_steps": 30, "steps": 3},
    },
    "replay 10 %": {
        400: {"rate": 0.0053, "replay_rate": 0.1, "replay_steps": 100, "steps": 10},
        3200: {"rate": 0.0012, "replay_rate": 1.0, "replay_steps": 30, "steps": 10},
        12800: {"rate": 0.00056, "replay_rate": 1.0, "replay_steps": 30, "steps": 3},
    },
    "adam cosine": {
        400: {"rate": 0.0051, "steps": 100},
        3200: {"rate": 0.0047, "steps": 10},
        12800: {"rate": 0.0047, "steps": 10},
    },
    "linear converged": {
        50: {"penalty": 0.079},
        100: {"penalty": 0.079},
        200: {"penalty": 0.16},
        400: {"penalty": 1.2},
        800: {"penalty": 4.9},
        3200: {"penalty": 4.9},
        12800: {"penalty": 9.7},
        60000: {"penalty": 9.7},
    },
    "cnn converged": {
        400: {"least_steps": 1500, "rate": 0.0043, "rounds": 10, "weight_decay": 0.97},
        3200: {"least_steps": 1500, "rate": 0.0091, "rounds": 5, "weight_decay": 0.56},
        12800: {"least_steps": 1500, "rate": 0.0085, "rounds": 5, "weight_decay": 0.09},
    },
    "vectors": {
        400: {"dense_prior": 0.62, "filter_init": 0.43, "filter_prior": 0.1, "length_scale": 3.0, "logit_prior": 20.0}
    },
    ONE_SETTING: {400: {}},
}


def chosen_for(method: str, size: int, chosen: Chosen = CHOSEN) -> dict[str, Any]:
    """The settings of a method for a training set of this size, out of those that were `chosen`."""
    check_method(method)
    searched = [size] if method == LINEAR else [at for at, sizes in SEARCHED.items() if size in sizes]
    if not searched or searched[0] not in chosen.get(method, {}):
        raise ValueError(f"no settings of {method} for {size} images: run benchmarks/sample_search.py, and add them")
    return chosen[method][searched[0]]
