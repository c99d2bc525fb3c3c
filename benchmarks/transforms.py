"""What JAX's transformations of `gbp.solve` cost, and how exact they are: the table of docs/performance.md.

    python benchmarks/transforms.py [--write]     # a line a graph in results/ledger.jsonl

Each graph is solved for 100 sets of measurements: by 100 calls of a compiled `gbp.solve`, and by one call of the same
under `jax.vmap`. Both are warm (compiled, and called once); times are CPU seconds of the process in float32, medians,
taken alternately. Differences of beliefs are those in float32 and in float64. The gradient of a function of the MAP and
of the log precisions, in float64, with respect to all measurements and to a noise, is compared with central finite
differences.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line

HERE = pathlib.Path(__file__).parent
LEDGER = HERE.parent / "results" / "ledger.jsonl"
PROBLEMS, REPEATS = 100, 15
BEACONS = np.array([[-2.0, -2.0], [-2.0, 6.0], [8.0, -2.0], [8.0, 6.0]])
READ_OUT = {"gbp.solve": "by messages; the derivatives implicitly, at their fixed point"}


def minus(a, b):
    return b - a


def range_of(beacon, x, y):
    return jnp.hypot(x - beacon[0], y - beacon[1])


def range_of_block(beacon, position):
    return range_of(beacon, position[0], position[1])


def move(a, b):
    c, s, d = jnp.cos(a[2]), jnp.sin(a[2]), b - a
    return jnp.stack([c * d[0] + s * d[1], c * d[1] - s * d[0], d[2]])


def far_apart(a, b):
    return jnp.sqrt(1 + (a - b) ** 2)


def path(steps: int) -> np.ndarray:
    """Where the robot was, and where it headed."""
    t = np.linspace(0, 1, steps)
    positions = np.stack([6 * t, 4 * np.sin(2 * t)], 1)
    way = np.gradient(positions, axis=0)
    return np.concatenate([positions, np.arctan2(way[:, 1], way[:, 0])[:, None]], 1)


Measurements = dict[str, np.ndarray]


def loops(dtype: str, size: int) -> tuple[gbp.FactorGraph, Measurements]:
    """Scalars in a row, measured from one to the next, and nonlinearly from each to the third after it."""
    graph, true = gbp.FactorGraph(dtype=dtype), np.arange(size) * 1.0
    exact = {"links": np.ones(size - 1), "ranges": np.full(size - 3, np.sqrt(10.0))}
    x = graph.variable("x", (size,), prior=gbp.Gaussian.from_moments(true, 1.0))
    graph.add(gbp.Factor(minus, (x[:-1], x[1:]), y=exact["links"], sigma=0.3, linear=True, name="links"))
    graph.add(gbp.Factor(far_apart, (x[:-3], x[3:]), y=exact["ranges"], sigma=0.2, name="ranges"))
    return graph, exact


def scalars(dtype: str, steps: int) -> tuple[gbp.FactorGraph, Measurements]:
    """Coordinates as scalars: odometry is linear, ranges to four beacons are not. Loops at every step."""
    graph, true = gbp.FactorGraph(dtype=dtype), path(steps)
    x, y = (graph.variable(n, (steps,), prior=gbp.Gaussian.from_moments(true[:, i], 1.0)) for i, n in enumerate("xy"))
    exact = {"dx": np.diff(true[:, 0]), "dy": np.diff(true[:, 1]), "ranges": ranges(true)}
    for name, v in (("dx", x), ("dy", y)):
        graph.add(gbp.Factor(minus, (v[:-1], v[1:]), y=exact[name], sigma=0.1, linear=True, name=name))
    i, j = pairs(steps)
    graph.add(gbp.Factor(range_of, (BEACONS[j], x[i], y[i]), y=exact["ranges"], sigma=0.2, name="ranges"))
    return graph, exact


def blocks(dtype: str, steps: int) -> tuple[gbp.FactorGraph, Measurements]:
    """Poses as blocks of three: odometry of turned frames, ranges and bearings. Loops along the path."""
    graph, true = gbp.FactorGraph(dtype=dtype), path(steps)
    pose = graph.variable("pose", (steps, 3), block=True, prior=gbp.Gaussian.from_moments(true, 1.0).as_block())
    exact = {
        "odometry": np.asarray(jax.vmap(move)(true[:-1], true[1:])),
        "jumps": np.asarray(jax.vmap(move)(true[:-5], true[5:])),
        "ranges": ranges(true),
    }
    graph.add(gbp.Factor(move, (pose[:-1], pose[1:]), y=exact["odometry"], sigma=[0.1, 0.1, 0.05], name="odometry"))
    graph.add(gbp.Factor(move, (pose[:-5], pose[5:]), y=exact["jumps"], sigma=[0.3, 0.3, 0.1], name="jumps"))
    i, j = pairs(steps)
    graph.add(gbp.Factor(range_of_block, (BEACONS[j], pose[i]), y=exact["ranges"], sigma=0.2, name="ranges"))
    return graph, exact


def pairs(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(steps), len(BEACONS)), np.tile(np.arange(len(BEACONS)), steps)


def ranges(true: np.ndarray) -> np.ndarray:
    i, j = pairs(len(true))
    return np.linalg.norm(true[i, :2] - BEACONS[j], axis=1)


GRAPHS: dict[str, Callable[[str], tuple[gbp.FactorGraph, Measurements]]] = {
    "8 scalars with loops": partial(loops, size=8),
    "20 scalars with loops": partial(loops, size=20),
    "a path of 6 positions, scalars": partial(scalars, steps=6),
    "a path of 20 positions, scalars": partial(scalars, steps=20),
    "a path of 6 poses, blocks": partial(blocks, steps=6),
    "a path of 20 poses, blocks": partial(blocks, steps=20),
}


def cpu_seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    out = jax.block_until_ready(function())
    return time.process_time() - begin, out


class Batch(NamedTuple):
    """100 problems of a graph, one by one and together, each as a compiled call."""

    one_by_one: Callable[[], list[gbp.Solution]]
    together: Callable[[], gbp.Solution]

    @classmethod
    def of(cls, name: str, dtype: str) -> Batch:
        graph, exact = GRAPHS[name](dtype)
        program, data, rng = gbp.compile(graph), graph.data(), np.random.default_rng(0)
        noisy = {k: (y + 0.1 * rng.standard_normal((PROBLEMS, *y.shape))).astype(dtype) for k, y in exact.items()}
        many = jax.device_put(noisy)
        each = [jax.device_put({k: y[i] for k, y in noisy.items()}) for i in range(PROBLEMS)]

        def solve(y):
            return gbp.solve(program, data.replace(y=y), full=True)

        one, all_of_them = jax.jit(solve), jax.jit(jax.vmap(solve))
        return cls(lambda: [one(y) for y in each], lambda: all_of_them(many))

    def difference(self) -> float:
        """The largest of means and standard deviations, in standard deviations."""
        found, singles, off = self.together(), self.one_by_one(), 0.0
        for variable, beliefs in found.beliefs.items():
            means, stds = (np.stack([getattr(s.beliefs[variable], m) for s in singles]) for m in ("mean", "std"))
            off = max(off, float(np.abs((beliefs.mean - means) / stds).max()))
            off = max(off, float(np.abs(beliefs.std / stds - 1).max()))
        return off


def batch(name: str) -> dict[str, float]:
    """Times and differences."""
    problems = Batch.of(name, "float32")
    found, off = problems.together(), problems.difference()
    assert bool(jnp.all(found.converged))
    pairs = [(cpu_seconds(problems.one_by_one)[0], cpu_seconds(problems.together)[0]) for _ in range(REPEATS)]
    apart, at_once = np.median(pairs, 0)
    jax.config.update("jax_enable_x64", True)
    off_64 = Batch.of(name, "float64").difference()
    jax.config.update("jax_enable_x64", False)
    return {
        "100 calls, CPU ms": 1e3 * float(apart),
        "one call of vmap, CPU ms": 1e3 * float(at_once),
        "ratio": float(apart / at_once),
        "largest difference in float32, sd": off,
        "largest difference in float64, sd": off_64,
        "iterations, mean": float(np.mean(found.iterations)),
        "iterations, most": int(np.max(found.iterations)),
    }


def gradient(name: str) -> dict[str, float]:
    """Against finite differences in float64."""
    jax.config.update("jax_enable_x64", True)
    graph, exact = GRAPHS[name]("float64")
    program, data, rng = gbp.compile(graph), graph.data(), np.random.default_rng(1)
    start = {"y": {k: y + 0.1 * rng.standard_normal(y.shape) for k, y in exact.items()}, "sigma": {"ranges": 0.2}}
    flat, numbers = jax.flatten_util.ravel_pytree(start)

    def value(v, tolerance=None):
        out = 0.0
        for belief in gbp.solve(program, data.replace(**numbers(v)), tolerance=tolerance).values():
            w = jnp.cos(1.0 + jnp.arange(belief.mean.size)).reshape(belief.shape)
            out = out + jnp.sum(w * belief.mean) + jnp.sum(w * jnp.log(belief.variance))
        return out

    solved, differentiated = jax.jit(value), jax.jit(jax.grad(value))
    jax.block_until_ready((solved(flat), differentiated(flat)))
    times = [(cpu_seconds(lambda: solved(flat))[0], cpu_seconds(lambda: differentiated(flat))[0]) for _ in range(20)]
    # Differences of values that are known to 1e-13.
    exactly, h = jax.jit(lambda v: value(v, 1e-13)), 1e-5
    expected = np.array([float(exactly(flat + e) - exactly(flat - e)) / (2 * h) for e in h * np.eye(flat.size)])
    found = np.asarray(differentiated(flat))
    jax.config.update("jax_enable_x64", False)
    forward, both = np.median(times, 0)
    return {
        "gradient, relative error": float(np.linalg.norm(found - expected) / np.linalg.norm(expected)),
        "gradient, largest error": float(np.abs(found - expected).max() / np.abs(expected).max()),
        "derivatives": flat.size,
        "value and gradient, times the value": float(both / forward),
    }


def main() -> int:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write transforms.json, and a line a graph in the ledger")
    write, report = parser.parse_args().write, {}
    for name in GRAPHS:
        clock = Clock()
        report[name] = batch(name) | gradient(name) | {"load": os.getloadavg()[0]}
        for what, number in report[name].items():
            print(f"{name}: {what}: {number:.3g}")
        if write:
            chosen = {"graph": name, "problems": PROBLEMS, "repeats": REPEATS}
            append_to_ledger(LEDGER, ledger_line("transforms", chosen, 0, report[name], READ_OUT, clock))
    if write:
        (HERE / "transforms.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
