"""What dense layers cost: time an iteration against width C, depth L and batch B (the paper: O(B L C²)).

    python benchmarks/dense.py [--quick] [--write]

Stacks of `L` dense layers of width `C`, inputs and outputs observed with noise, so that all layers are alike: each is
visited twice an iteration (forward and back) and sends messages to inputs, weights, biases and outputs, one an edge.
Timed inside the compiled loop of `gbp.infer`; medians. `--write` puts the numbers into benchmarks/dense.json and
docs/performance.md, and the figure into docs/images.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

import gbplearn as gbp
from engine import HERE, Stepper, write_down

BASE = {"B": 16, "L": 1, "C": 256}
SWEEPS = {"C": (64, 128, 256, 512, 1024), "L": (1, 2, 4, 8), "B": (16, 32, 64, 128, 256)}
EXPECTED = {"C": (2, 0.25), "L": (1, 0.15), "B": (1, 0.15)}
NAMES = {"C": "width C", "L": "depth L", "B": "batch B"}


def stack(batch: int, depth: int, width: int) -> gbp.FactorGraph:
    rng = np.random.default_rng(0)
    layers = [
        gbp.Dense(width, activation="tanh", sigma=0.1, weight_prior=width**-0.5, name=f"dense{i}") for i in range(depth)
    ]
    ends = (gbp.GaussianObservation(sigma=0.1, name=name) for name in ("first", "last"))
    net = gbp.Sequential(next(ends), *layers, next(ends), input_shape=(width,))
    return net.graph(rng.standard_normal((batch, width)), rng.standard_normal((batch, width)))


def measure(size: dict[str, int], repeats: int) -> dict:
    graph = stack(size["B"], size["L"], size["C"])
    names = list(graph.factors)
    stepper = Stepper(graph, gbp.Order(*names, *reversed(names)))
    edges = sum(g.edges for g in stepper.problem.groups)
    iterations = min(50, max(5, 10_000_000 // edges))  # infer makes up to 50 a call
    stepper(1), stepper(iterations)
    ms = 1e3 * float(np.median([stepper(iterations) for _ in range(repeats)]))
    print(size, f"{edges:,} edges, {ms:.1f} ms an iteration, {1e6 * ms / edges:.1f} ns an edge", flush=True)
    return {**size, "edges": edges, "ms": ms, "load": os.getloadavg()[0]}


def sweep(along: str, values, repeats: int) -> dict:
    rows = [measure({**BASE, along: v}, repeats) for v in values]
    power = float(np.polyfit(np.log(values), np.log([r["ms"] for r in rows]), 1)[0])
    print(f"exponent in {NAMES[along]}: {power:.2f}", flush=True)
    return {"along": along, "exponent": power, "rows": rows}


def draw(results: dict) -> None:
    from matplotlib.figure import Figure

    from gbplearn.show.figures import BLUE, GREY, save_figure

    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    for ax, s in zip(figure.subplots(1, 3, sharey=True), results["sweeps"]):
        x, y = np.array([r[s["along"]] for r in s["rows"]]), np.array([r["ms"] for r in s["rows"]])
        ideal = EXPECTED[s["along"]][0]
        ax.loglog(x, y, "o-", color=BLUE, label=f"measured: exponent {s['exponent']:.2f}")
        middle = np.exp(np.mean(np.log(y) - ideal * np.log(x)))
        ax.loglog(x, middle * x**ideal, "--", color=GREY, label=f"exponent {ideal}")
        held = ", ".join(f"{k} = {v}" for k, v in BASE.items() if k != s["along"])
        ax.set_title(f"{NAMES[s['along']]} ({held})", fontsize=10)
        ax.set_xticks(x, [str(v) for v in x])
        ax.minorticks_off()
        ax.legend(frameon=False, fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("ms an iteration")
    folder = HERE.parent / "docs" / "images"
    for path in save_figure(figure, folder, "dense-scaling"):
        if path.suffix == ".svg":
            path.unlink()  # the docs show the PNG


def table(results: dict) -> str:
    lines = ["| along | values | ms an iteration | fitted exponent | expected |", "|---|---|---|---|---|"]
    for s in results["sweeps"]:
        ideal, slack = EXPECTED[s["along"]]
        values = ", ".join(str(r[s["along"]]) for r in s["rows"])
        times = ", ".join(f"{r['ms']:.1f}" for r in s["rows"])
        lines.append(f"| {NAMES[s['along']]} | {values} | {times} | {s['exponent']:.2f} | {ideal} ± {slack} |")
    return "\n".join(lines)


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument(
        "--write", action="store_true", help="update benchmarks/dense.json, docs/performance.md and the figure"
    )
    args = parser.parse_args()
    cut, repeats = (2, 2) if args.quick else (None, 5)
    results = {"sweeps": [sweep(along, values[:cut], repeats) for along, values in SWEEPS.items()]}
    print(table(results))
    if args.write:
        write_down("dense", results, table(results))
        draw(results)


if __name__ == "__main__":
    main()
