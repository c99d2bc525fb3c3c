"""Linear graphs with loops of many kinds, each with its dense solution.

Smoothing over edges `ij` of a graph, of values measured with noise 1, with smoothness `r`:

    E = sum_i (x_i - z_i)² / 2 + r sum_ij (x_j - x_i)² / 2 ,   Lambda = 1 + r L     (L: the graph's Laplacian)

Linear regression, rows `n`, with noise `s` and prior `N(0, 1)` of the weights:

    E = sum_n (y_n - sum_j X_nj w_j)² / (2 s²) + sum_j w_j² / 2 ,   Lambda = 1 + X' X / s²

Pose graphs, linearised at their solution, with errors `e` and Jacobians `A`, `B`; the first pose is known:

    E = sum_ij |e_ij + A_ij d_i + B_ij d_j|² / 2 in standard deviations ,   Lambda = J' J
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax import Array
from jaxtyping import Float, Int

from ...core.gaussian import Gaussian
from ...graph.factor import Factor
from ...graph.graph import FactorGraph
from ...graph.poses import composed, pose_error, relative
from ...layers.activation import linear
from ...layers.dense import DenseKind

# Standard deviations of metres forward and sideways, and of radians.
_ODOMETRY, _CLOSURE = (0.04, 0.04, 0.015), (0.05, 0.05, 0.03)
_RADIUS = 5.0  # of the round that is driven, in metres
_FRESH = 200  # rows of a regression whose outputs are predicted
_NUDGE = 1e-6  # of central differences
_GAUSS_NEWTON = 10  # steps, from the true path: the last ones change nothing


class Solved(NamedTuple):
    """A graph with one unknown variable, and what a dense solve says about each of its numbers."""

    graph: FactorGraph
    evidence: dict[str, Any]
    variable: str
    asked: slice  # rows of the variable that are unknown
    mean: np.ndarray
    std: np.ndarray
    fresh: Float[np.ndarray, "k n"] | None = None  # rows whose products with the variable are predicted
    fresh_std: np.ndarray | None = None  # right ones, of these products


def _dense(precision: np.ndarray, information: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    covariance = np.linalg.inv(precision)
    return covariance @ information, np.sqrt(np.diag(covariance))


def tree_edges(size: int, seed: int) -> Int[np.ndarray, "m 2"]:
    """A random tree: every variable but the first hangs on one before it."""
    rng = np.random.default_rng(seed)
    return np.array([(rng.integers(i), i) for i in range(1, size)])


def loop_edges(size: int) -> Int[np.ndarray, "m 2"]:
    """A single loop."""
    return np.stack([np.arange(size), (np.arange(size) + 1) % size], 1)


def grid_edges(side: int) -> Int[np.ndarray, "m 2"]:
    """Neighbours on a square grid."""
    number = np.arange(side * side).reshape(side, side)
    pairs = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:])
    return np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs])


def _difference(a: Array, b: Array) -> Array:
    return b - a


def smoothing(edges: Int[np.ndarray, "m 2"], size: int, smoothness: float, seed: int) -> Solved:
    """Values measured with noise 1, neighbours alike to `1 / sqrt(smoothness)`."""
    measured = np.random.default_rng(seed).standard_normal(size)
    graph = FactorGraph()
    x = graph.variable("x", (size,), prior=Gaussian.from_moments(measured, 1.0))
    ends = x[edges[:, 0]], x[edges[:, 1]]
    graph.add(Factor(_difference, ends, sigma=smoothness**-0.5, linear=True, name="alike"))
    rows = np.zeros((len(edges), size))
    rows[np.arange(len(edges)), edges[:, 0]], rows[np.arange(len(edges)), edges[:, 1]] = -1, 1
    return Solved(graph, {}, "x", slice(None), *_dense(np.eye(size) + smoothness * rows.T @ rows, measured))


def _row(features: Array, w: Array) -> Array:
    return features @ w


def regression(rows: int, features: int, correlation: float, noise: float, block: bool, seed: int) -> Solved:
    """Features of variance 1 with the same correlation between any two; the weights scalars, or one block."""
    rng = np.random.default_rng(seed)
    count = rows + _FRESH
    shared = rng.standard_normal((count, 1))
    drawn = np.sqrt(1 - correlation) * rng.standard_normal((count, features)) + np.sqrt(correlation) * shared
    x, fresh = drawn[:rows], drawn[rows:]
    y = x @ rng.standard_normal(features) + noise * rng.standard_normal(rows)
    precision = np.eye(features) + x.T @ x / noise**2
    fresh_std = np.sqrt(np.sum(fresh * np.linalg.solve(precision, fresh.T).T, 1))
    answer = (*_dense(precision, x.T @ y / noise**2), fresh, fresh_std)
    graph = FactorGraph()
    if block:
        prior = Gaussian.from_moments(np.zeros((1, features)), covariance=np.eye(features)[None])
        w = graph.variable("w", (1, features), block=True, prior=prior)
        graph.add(Factor(_row, (x, w[:]), y=y, sigma=noise, linear=True, name="rows"))
        return Solved(graph, {}, "w", slice(None), *answer)
    w = graph.variable("w", (features, 1), prior=Gaussian.from_moments(0.0, 1.0))
    known = {"x": x, "bias": np.zeros(1), "y": y[:, None]}
    given = {name: graph.variable(name, value.shape) for name, value in known.items()}
    joined = given["x"], w, given["bias"], given["y"]
    graph.add(Factor(DenseKind(linear), joined, y=0.0, sigma=noise, linear=True, name="rows"))
    return Solved(graph, known, "w", slice(None), *answer)


def _linear_error(at_a: Array, at_b: Array, a: Array, b: Array) -> Array:
    return at_a @ a + at_b @ b


def poses(count: int, rounds: int, closures: int, block: bool, seed: int) -> Solved:
    """A robot drives rounds; now and then it knows a place again, so many times in all.

    Linearised at the solution; unknown are the steps from there, each a block of three, or three scalars.
    """
    rng = np.random.default_rng(seed)
    lap = count // rounds
    angle = 2 * np.pi * np.arange(count) / lap
    path = np.stack([_RADIUS * np.sin(angle), -_RADIUS * np.cos(angle), angle], 1)
    again = np.array([(i, j) for i in range(count) for j in range(i + lap, count, lap)])
    chosen = again[np.sort(rng.choice(len(again), closures, replace=False))]
    edges = np.concatenate([np.stack([np.arange(count - 1), np.arange(1, count)], 1), chosen])
    sigma = np.where(np.arange(len(edges))[:, None] < count - 1, _ODOMETRY, _CLOSURE)
    i, j = edges.T
    measured = composed(relative(path[i], path[j]), sigma * rng.standard_normal(sigma.shape))
    for _ in range(_GAUSS_NEWTON):
        step, _ = _dense(*_normal_equations(edges, sigma, *_linearised(measured, path[i], path[j])))
        path = path + np.concatenate([np.zeros((1, 3)), step.reshape(-1, 3)])
    error, jacobians = _linearised(measured, path[i], path[j])
    answer = _dense(*_normal_equations(edges, sigma, error, jacobians))
    graph = FactorGraph()
    d = graph.variable("step", path.shape, block=block)
    graph.observe("step", np.zeros(path.shape), mask=np.arange(count) == 0 if block else np.arange(count)[:, None] == 0)
    graph.add(Factor(_linear_error, (*jacobians, d[i], d[j]), y=-error, sigma=sigma, linear=True, name="edges"))
    return Solved(graph, {}, "step", slice(1, None), *answer)


def _normal_equations(
    edges: Int[np.ndarray, "m 2"], sigma: np.ndarray, error: np.ndarray, jacobians: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """`J' J` and `-J' e` of all poses but the first, which is known."""
    rows = np.zeros((len(edges), 3, edges.max() + 1, 3))
    for end, jacobian in zip(edges.T, jacobians):
        rows[np.arange(len(edges)), :, end] += jacobian / sigma[..., None]
    flat = rows[:, :, 1:].reshape(3 * len(edges), -1)
    return flat.T @ flat, -flat.T @ (error / sigma).ravel()


def _linearised(measured: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Errors, and their Jacobians with respect to both poses, in double precision by central differences."""
    jacobians: list[Float[np.ndarray, "m 3 3"]] = []
    for which in (0, 1):
        columns = []
        for nudge in _NUDGE * np.eye(3):
            up, down = ([a, b], [a, b])
            up[which], down[which] = up[which] + nudge, down[which] - nudge
            columns.append((pose_error(measured, *up) - pose_error(measured, *down)) / (2 * _NUDGE))
        jacobians.append(np.stack(columns, -1))
    return pose_error(measured, a, b), jacobians
