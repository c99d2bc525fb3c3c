"""How the guard does on regressions where plain belief propagation diverges: the table of docs/concepts/divergence.md.

python benchmarks/guard.py [--write]
"""

from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np

import gbplearn as gbp

KINDS = {
    "26 features U(0, 1), 1,000 rows": ("uncentred", 1000, 26, (1.0, 10.0)),
    "26 features of rank 5 plus noise 0.1, 1,000 rows": ("rank", 1000, 26, (1.0, 10.0)),
    "100 features U(0, 1), 200 rows": ("uncentred", 200, 100, (1.0,)),
}


def predict(row, w):
    return row @ w


def features(kind: str, n: int, p: int, rng) -> np.ndarray:
    if kind == "uncentred":
        return rng.random((n, p))
    return rng.standard_normal((n, 5)) @ rng.standard_normal((5, p)) + 0.1 * rng.standard_normal((n, p))


def one(kind: str, n: int, p: int, prior: float, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    rows = features(kind, n, p, rng)
    y = rows @ rng.standard_normal(p) + 0.1 * rng.standard_normal(n)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (p,), prior=gbp.Gaussian.from_moments(0.0, prior))
    graph.add(gbp.Factor(predict, (rows, w[None]), y=y, sigma=0.1, linear=True, name="rows"))
    lam = rows.T @ rows / 0.01 + np.eye(p) / prior**2
    std = np.sqrt(np.diag(np.linalg.inv(lam)))
    plain = gbp.infer(graph, iterations=2000, guard=False, throw=False)
    result = gbp.infer(graph, iterations=2000)
    off = (np.asarray(result["w"].mean) - np.linalg.solve(lam, rows.T @ y / 0.01)) / std
    ratio = np.asarray(result["w"].std) / std
    return {
        "plain": str(plain.status),
        "status": str(result.status),
        "iterations": result.iterations,
        "error": float(np.abs(off).max()),
        "std_ratio": [float(ratio.min()), float(ratio.max())],
    }


def main() -> int:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write guard.json")
    args = parser.parse_args()
    report = {}
    for name, (kind, n, p, priors) in KINDS.items():
        runs = [one(kind, n, p, prior, seed) for prior in priors for seed in range(3)]
        report[name] = runs
        steps, errors = [r["iterations"] for r in runs], [r["error"] for r in runs]
        low, high = min(r["std_ratio"][0] for r in runs), max(r["std_ratio"][1] for r in runs)
        print(f"| {name} | {runs[0]['plain'].split(';')[0]} | {min(steps)} - {max(steps)} | {max(errors):.1g} sd |")
        print(f"    std ratio {low:.2f} - {high:.2f}; all { ({r['status'] for r in runs}) }")
    if args.write:
        (pathlib.Path(__file__).parent / "guard.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
