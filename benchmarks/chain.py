"""A chain of 10,000 steps: the tree order against a smoother (Rauch, Tung, Striebel) as a NumPy loop, in one process.

    python benchmarks/chain.py --write

Of each dimension and each kind of chain: CPU seconds of `gbp.infer` when all is compiled and of the NumPy loop, their
ratio, iterations, and the largest errors of means and standard deviations against the loop (float64), in standard
deviations. Adds a line for each to results/ledger.jsonl; `--write` puts them into chain.json and docs/performance.md.

Kinds: a "stationary" chain forgets within 20 steps; a "tight" one, of precise transitions and imprecise measurements,
remembers 30; a "walk" leads far away from 0, where float32 itself rounds means to 1e-5 standard deviations.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from engine import write_down
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line

HERE = Path(__file__).parent
LEDGER = HERE.parent / "results" / "ledger.jsonl"
KINDS = ("stationary", "tight", "walk")


def scalar_step(f, a, b):
    return b - f * a


def matrix_step(f, a, b):
    return b - f @ a


def same(a):
    return a


def made(kind: str, steps: int, d: int, seed: int):
    """Transition, its noise and the measurements (noise 1, prior N(0, 1) of the first step), all float32 numbers."""
    rng = np.random.default_rng([seed, d])
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0] if d > 1 else np.eye(1)
    f = np.float32(0.95 * turn if kind == "stationary" else np.eye(d)).astype(float)
    sigma = float(np.float32(0.03 if kind == "tight" else 0.3))
    x = np.zeros((steps, d))
    for t in range(1, steps):
        x[t] = f @ x[t - 1] + sigma * rng.standard_normal(d)
    return f, sigma, np.float32(x + rng.standard_normal((steps, d))).astype(float)


def smoothed(f: np.ndarray, sigma: float, y: np.ndarray):
    """Means and covariances, step by step."""
    steps, d = y.shape
    q, r, h = sigma**2 * np.eye(d), np.eye(d), np.eye(d)
    means, covs = np.zeros((steps, d)), np.zeros((steps, d, d))
    before, spread = np.zeros((steps, d)), np.zeros((steps, d, d))
    m, p = np.zeros(d), np.eye(d)
    for t in range(steps):
        if t:
            m, p = f @ m, f @ p @ f.T + q
        before[t], spread[t] = m, p
        s = h @ p @ h.T + r
        gain = np.linalg.solve(s, h @ p).T
        m, p = m + gain @ (y[t] - h @ m), p - gain @ s @ gain.T
        means[t], covs[t] = m, p
    for t in range(steps - 2, -1, -1):
        gain = np.linalg.solve(spread[t + 1], f @ covs[t]).T
        means[t] = means[t] + gain @ (means[t + 1] - before[t + 1])
        covs[t] = covs[t] + gain @ (covs[t + 1] - spread[t + 1]) @ gain.T
    return means, covs


def graph_of(f: np.ndarray, sigma: float, y: np.ndarray) -> gbp.FactorGraph:
    steps, d = y.shape
    first = np.zeros((steps, d, d), np.float32)
    first[0] = np.eye(d)
    graph = gbp.FactorGraph()
    if d == 1:
        x = graph.variable("x", (steps,), prior=gbp.Gaussian(jnp.zeros(steps), jnp.asarray(first[:, 0, 0])))
        graph.add(gbp.Factor(scalar_step, (f[0], x[:-1], x[1:]), sigma=sigma, linear=True, name="steps"))
        graph.add(gbp.Factor(same, (x,), y=y[:, 0], sigma=1.0, linear=True, name="measured"))
        return graph
    prior = gbp.Gaussian(jnp.zeros((steps, d)), jnp.asarray(first))
    x = graph.variable("x", (steps, d), prior=prior, block=True)
    graph.add(gbp.Factor(matrix_step, (f[None], x[:-1], x[1:]), sigma=sigma, linear=True, name="steps"))
    graph.add(gbp.Factor(same, (x,), y=y, sigma=1.0, linear=True, name="measured"))
    return graph


def clocked(function, repeats: int) -> tuple:
    """What it returns, and the least CPU seconds of some calls."""
    least = np.inf
    for _ in range(repeats):
        begin = time.process_time()
        found = function()
        least = min(least, time.process_time() - begin)
    return found, least


def table(report: list[dict]) -> str:
    out = [
        "| dimension | chain | CPU ms | NumPy loop | ratio | error of a mean, sd | of a std | largest mean, sd |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in report:
        cells = (
            str(row["dimension"]),
            row["kind"],
            f"{1e3 * row['CPU seconds']:.0f}",
            f"{1e3 * row['NumPy/CPU seconds']:.0f}",
            f"{row['ratio of CPU seconds']:.2f}",
            f"{row['error of a mean, sd']:.0e}",
            f"{row['error of a standard deviation']:.0e}",
            f"{row['largest mean, sd']:.0f}",
        )
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write chain.json and the table in docs/performance.md")
    given = parser.parse_args()
    report = []
    for d in given.dims:
        for kind in given.kinds:
            clock = Clock()
            f, sigma, y = made(kind, given.steps, d, given.seed)
            graph = graph_of(f, sigma, y)

            def infer(graph=graph):
                found = gbp.infer(graph, schedule=gbp.TreeOrder())
                return found, jax.block_until_ready((found["x"].mean, found["x"].std))

            begin = time.process_time()
            infer()
            compiling = time.process_time() - begin
            (result, (mean, std)), ours = clocked(infer, given.repeats)
            (right, cov), theirs = clocked(lambda f=f, s=sigma, y=y: smoothed(f, s, y), given.repeats)
            sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
            mean, std = (np.asarray(a, float).reshape(sd.shape) for a in (mean, std))
            metrics = {
                "CPU seconds": round(ours, 4),
                "NumPy/CPU seconds": round(theirs, 4),
                "ratio of CPU seconds": round(ours / theirs, 3),
                "CPU seconds of the first call, compiling": round(compiling, 2),
                "iterations": result.iterations,
                "error of a mean, sd": float(f"{np.abs((mean - right) / sd).max():.2g}"),
                "error of a standard deviation": float(f"{np.abs(std / sd - 1).max():.2g}"),
                "largest mean, sd": round(float(np.abs(right / sd).max()), 1),
                "load average": round(os.getloadavg()[0], 2),
            }
            chosen = {"steps": given.steps, "dimension": d, "kind": kind}
            read_out = {"error of a mean, sd": "GBP, beliefs of one iteration of gbp.TreeOrder()"}
            append_to_ledger(LEDGER, ledger_line("chain", chosen, given.seed, metrics, read_out, clock))
            report.append({**chosen, "status": result.status.name, **metrics})
            print(json.dumps(report[-1]), flush=True)
    if given.write:
        write_down("chain", report, table(report))


if __name__ == "__main__":
    main()
