"""A pose graph that grows: 300 steps, each a pose, its odometry and now and then a loop closure.

    python benchmarks/growing.py [--capacity 512] [--profile]

A step is what a robot does: add a pose and its factors, infer from the last result on, read the newest pose. Time is
CPU time of the whole process, of each step; XLA's compilations are counted. At the end the poses are compared with a
dense Gauss-Newton solution of all measurements (NumPy, float64), in its standard deviations. Appends to the ledger.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line

SIGMA = np.array([0.05, 0.05, 0.02])
ANCHOR = 0.01
READ_OUT = {"all": "messages: means of beliefs, no forward pass"}


def relative(a, b):
    """Pose `b` in the frame of pose `a`; the angle is wrapped where it is compared."""
    c, s, d = jnp.cos(a[2]), jnp.sin(a[2]), b - a
    return jnp.stack([c * d[0] + s * d[1], c * d[1] - s * d[0], d[2]])


def error(z, a, b):
    """What is left of a measured relative pose."""
    e = relative(a, b) - z
    return e.at[2].set(jnp.arctan2(jnp.sin(e[2]), jnp.cos(e[2])))


def world(steps: int, seed: int, every: int):
    """Where the robot is, and what it measures: for each step, rows `(i, j, z)`; odometry first."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4 * np.pi, steps + 1)
    path = np.stack([20 * np.sin(t), 12 * np.sin(2 * t + 0.3)], 1)
    ahead = np.diff(path, axis=0, append=2 * path[-1:] - path[-2:-1])
    true = np.column_stack([path, np.unwrap(np.arctan2(ahead[:, 1], ahead[:, 0]))])

    def measure(i, j):
        return np.asarray(_relative(true[i], true[j])) + SIGMA * rng.standard_normal(3)

    measured, last = [], 0
    for k in range(1, steps + 1):
        rows = [(k - 1, k, measure(k - 1, k))]
        old = np.arange(k - 20)
        near = old[np.linalg.norm(path[old] - path[k], axis=1) < 3.0] if k > 20 else []
        if len(near) and k - last >= every:
            closed = int(rng.choice(near))
            rows.append((closed, k, measure(closed, k)))
            last = k
        measured.append(rows)
    return true, measured


def _relative(a, b):
    c, s, d = np.cos(a[2]), np.sin(a[2]), b - a
    return np.array([c * d[0] + s * d[1], c * d[1] - s * d[0], np.arctan2(np.sin(d[2]), np.cos(d[2]))])


def composed(a, z):
    """The pose that lies at `z` from pose `a`."""
    c, s = np.cos(a[2]), np.sin(a[2])
    return np.array([a[0] + c * z[0] - s * z[1], a[1] + s * z[0] + c * z[1], a[2] + z[2]])


def dense(true, measured, start, rounds=20):
    """Means and standard deviations of all poses, by Gauss-Newton on the whole system."""
    x = start.astype(float).copy()
    rows = [r for step in measured for r in step]
    for _ in range(rounds):
        lam, eta = np.zeros((x.size, x.size)), np.zeros(x.size)
        lam[:3, :3] += np.eye(3) / ANCHOR**2
        eta[:3] += (true[0] - x[0]) / ANCHOR**2
        for i, j, z in rows:
            a, b = x[i], x[j]
            c, s, d = np.cos(a[2]), np.sin(a[2]), b - a
            e = _relative(a, b) - z
            e[2] = np.arctan2(np.sin(e[2]), np.cos(e[2]))
            ja = np.array([[-c, -s, -s * d[0] + c * d[1]], [s, -c, -c * d[0] - s * d[1]], [0, 0, -1]])
            jb = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
            full = np.zeros((3, x.size))
            full[:, 3 * i : 3 * i + 3], full[:, 3 * j : 3 * j + 3] = ja, jb
            white = full / SIGMA[:, None]
            at = np.r_[3 * i : 3 * i + 3, 3 * j : 3 * j + 3]
            lam[np.ix_(at, at)] += white[:, at].T @ white[:, at]
            eta[at] -= white[:, at].T @ (e / SIGMA)
        step = np.linalg.solve(lam, eta).reshape(x.shape)
        x += step
        if np.abs(step).max() < 1e-9:
            break
    return x, np.sqrt(np.diag(np.linalg.inv(lam))).reshape(x.shape)


def run(settings: dict, seed: int, profile: bool = False) -> tuple[dict, dict]:
    """All steps; numbers of the ledger, and numbers of each step."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if name.endswith("backend_compile_duration") else None
    )
    true, measured = world(settings["steps"], seed, settings["closure_every"])
    capacity = settings["capacity"]
    graph = gbp.FactorGraph()
    anchor = gbp.Gaussian.from_moments(true[:1], covariance=ANCHOR**2 * np.eye(3))
    pose = graph.variable("pose", (1, 3), block=True, prior=anchor, start=true[:1], capacity=capacity)
    result, newest, seconds, counts, iterations = None, true[0], [], [len(compiled)], []
    profiler = cProfile.Profile()
    for k, rows in enumerate(measured):
        if profile and k == len(measured) // 2:
            profiler.enable()
        begin = time.process_time()
        graph.grow("pose", start=composed(newest, rows[0][2]))
        for i, j, z in rows:
            if "between" in graph.factors if k == 0 else True:
                graph.extend("between", (z[None], pose[i : i + 1], pose[j : j + 1]))
            else:
                args = (z[None], pose[i : i + 1], pose[j : j + 1])
                graph.add(gbp.Factor(error, args, sigma=SIGMA, name="between", capacity=capacity or 256))
        result = gbp.infer(
            graph, init=result, tolerance=settings["tolerance"], iterations=settings["iterations"],
            damping=settings["damping"],
        )  # fmt: skip
        newest = np.asarray(result["pose"].mean[-1], float)
        seconds.append(time.process_time() - begin)
        counts.append(len(compiled))
        iterations.append(result.iterations)
    profiler.disable()
    if profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(60)
    exact, std = dense(true, measured, np.asarray(result["pose"].mean, float))
    off = np.asarray(result["pose"].mean) - exact
    off[:, 2] = np.arctan2(np.sin(off[:, 2]), np.cos(off[:, 2]))
    warm = [t for t, a, b in zip(seconds, counts, counts[1:]) if a == b]
    closing = [t for t, rows in zip(seconds, measured) if len(rows) > 1]
    metrics = {
        "median_step_ms": 1e3 * float(np.median(seconds)),
        "fastest_tenth_ms": 1e3 * float(np.quantile(seconds, 0.1)),
        "mean_step_ms_without_compiling": 1e3 * float(np.mean(warm)),
        "median_closing_step_ms": 1e3 * float(np.median(closing)) if closing else 0.0,
        "compilations": len(compiled),
        "steps_that_compiled": len(seconds) - len(warm),
        "compile_seconds": float(sum(compiled)),
        "closures": len(closing),
        "median_iterations": float(np.median(iterations)),
        "most_iterations": int(max(iterations)),
        "largest_error_sd": float(np.abs(off / std).max()),
        "rms_error_sd": float(np.sqrt(np.mean((off / std) ** 2))),
    }
    return metrics, {"seconds": seconds, "iterations": iterations, "compiled": np.diff(counts).tolist()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--capacity", type=int, default=None, help="by default what the library begins with")
    parser.add_argument("--tolerance", type=float, default=1e-2)
    parser.add_argument("--damping", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=10, help="steps between closures, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--write", action="store_true", help="append to the ledger")
    given = parser.parse_args()
    settings = {
        "steps": given.steps,
        "capacity": given.capacity,
        "tolerance": given.tolerance,
        "damping": given.damping,
        "iterations": 1000,
        "closure_every": given.every,
    }
    clock = Clock()
    metrics, steps = run(settings, given.seed, given.profile)
    for name, value in metrics.items():
        print(f"{name:34s} {value:.4g}")
    print("compiled at steps", {k: n for k, n in enumerate(steps["compiled"]) if n})
    if given.write:
        line = ledger_line("growing", settings, given.seed, metrics, READ_OUT, clock)
        append_to_ledger(Path(__file__).parents[1] / "results" / "ledger.jsonl", line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
