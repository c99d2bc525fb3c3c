"""What the general engine costs: time against edges, against variables a factor, and time to compile.

    python benchmarks/engine.py [--quick] [--write]

Each iteration is timed inside the compiled loop that `gbp.infer` runs. The yardstick of the smoothing graph,
`y = a x + b` over arrays of the same bytes as all messages, is timed alternately with it, both with buffers that are
already there (donated): fresh ones would cost the yardstick page faults that make the engine look good. Medians; the
load of the machine stands beside them. `--write` puts the numbers into benchmarks/engine.json and docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.engine import loop as propagate
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.loop import Enough, advance, run_in_place
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state

HERE = pathlib.Path(__file__).parent


def difference(a, b):
    return b - a


def smoothing_graph(side: int, indexed: bool = False) -> gbp.FactorGraph:
    """A noisy image, neighbours alike: 4 edge sets, 4 messages a pixel."""
    graph = gbp.FactorGraph()
    image = np.random.default_rng(0).random((side, side))
    x = graph.variable("x", (side, side), prior=gbp.Gaussian.from_moments(image, 0.3))
    if indexed:
        i = np.arange(side * side).reshape(side, side)
        pairs = ((i[:, :-1], i[:, 1:]), (i[:-1], i[1:]))
        across, down = (tuple(x[np.unravel_index(a.ravel(), (side, side))] for a in pair) for pair in pairs)
    else:
        across = x[:, :-1].reshape(-1), x[:, 1:].reshape(-1)
        down = x[:-1].reshape(-1), x[1:].reshape(-1)
    graph.add(gbp.Factor(difference, across, y=0.0, sigma=0.1, linear=True, name="across"))
    graph.add(gbp.Factor(difference, down, y=0.0, sigma=0.1, linear=True, name="down"))
    return graph


def regression_graph(factors: int, variables: int, outputs: int) -> gbp.FactorGraph:
    """Factors over `variables` scalars of their own, `outputs` measurements each."""
    rng = np.random.default_rng(0)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (factors, variables), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    if outputs == 1:
        a = rng.standard_normal((factors, variables))
        graph.add(gbp.Factor(jnp.dot, (a, x[:]), y=0.0, sigma=0.5, linear=True, name="rows"))
    else:
        a = rng.standard_normal((factors, outputs, variables))
        graph.add(gbp.Factor(jnp.matmul, (a, x[:]), y=0.0, sigma=0.5, linear=True, name="rows"))
    return graph


class Stepper:
    """The compiled loop of a graph, to be called for some iterations at a time."""

    def __init__(self, graph: gbp.FactorGraph, schedule: gbp.Schedule | None = None):
        self.problem = graph.problem()
        self.state = empty_state(self.problem, jax.random.PRNGKey(0), False)
        self.options = make_options(graph, self.problem, 0.0, 0.0, schedule, 1)
        self.latest = no_diagnostics(self.problem)

    def messages_bytes(self) -> int:
        """Of one message an edge, information and precision."""
        pairs = [(g.slots, row) for g, row in zip(self.problem.groups, self.state.messages)]
        return sum(8 * m.on_edges(s.edges).eta.size for slots, row in pairs for s, m in zip(slots, row))

    def __call__(self, iterations: int) -> float:
        """Seconds an iteration, with the looks of `gbp.infer`."""
        begin = time.perf_counter()
        self.state, _, rows = advance(self.problem, self.state, self.options, self.latest, iterations, Enough(-1.0))
        jax.block_until_ready(self.state)
        assert len(rows.residual) == iterations
        return (time.perf_counter() - begin) / iterations


def line(a, x, b, y):
    return a * x + b


def yardstick(nbytes: int):
    """`y = a x + b` into a `y` that is already there."""
    n = nbytes // 4
    x, y = jnp.ones(n), jnp.zeros(n)
    step = jax.jit(line, donate_argnums=3, keep_unused=True)
    box = [step(2.0, x, 1.0, y)]

    def timed() -> float:
        begin = time.perf_counter()
        box[0] = step(2.0, x, 1.0, box[0])
        box[0].block_until_ready()
        return time.perf_counter() - begin

    return timed


def smoothing(sides, repeats: int, indexed: bool) -> list[dict]:
    rows = []
    for side in sides:
        stepper = Stepper(smoothing_graph(side, indexed))
        unit = yardstick(stepper.messages_bytes())
        iterations = 10
        stepper(1), stepper(iterations), unit()
        times, units = [], []
        for _ in range(repeats):
            times.append(stepper(iterations))
            units += [unit() for _ in range(3)]
        rows.append(
            {
                "side": side,
                "edges": 4 * side * (side - 1),
                "ms": 1e3 * float(np.median(times)),
                "line_ms": 1e3 * float(np.median(units)),
                "ratio": float(np.median(times) / np.median(units)),
                "load": os.getloadavg()[0],
            }
        )
    return rows


def exponent(counts, outputs: int, repeats: int) -> dict:
    """Fitted power of the time an iteration over the number of variables a factor, the number of factors held."""
    factors = 1000 if outputs == 1 else 200
    propagate.LARGE = 10**12  # else large graphs are looked at less often
    steppers = {v: Stepper(regression_graph(factors, v, outputs)) for v in counts}
    for s in steppers.values():
        s(1)
    times = {v: [] for v in counts}
    for _ in range(repeats):
        for v, s in steppers.items():
            times[v].append(s(10))
    ms = [1e3 * float(np.median(times[v])) for v in counts]
    return {"M": outputs, "V": list(counts), "ms": ms, "exponent": float(np.polyfit(np.log(counts), np.log(ms), 1)[0])}


def five_groups(factors: int) -> gbp.FactorGraph:
    rng = np.random.default_rng(0)
    graph = gbp.FactorGraph()
    n = factors // 5
    x = graph.variable("x", (n + 1,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    z = graph.variable("z", (n,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    some = rng.permutation(n)
    graph.add(gbp.Factor(lambda a, b: b - a, (x[:-1], x[1:]), y=1.0, sigma=0.1, linear=True, name="chain"))
    graph.add(gbp.Factor(lambda a, b: a * b, (x[:-1], z[:]), y=0.5, sigma=0.2, name="product"))
    graph.add(gbp.Factor(jnp.sin, (z[some],), y=0.1, sigma=0.3, robust=gbp.Tukey(2.0), name="sine"))
    graph.add(gbp.Factor(lambda a, b: a + b, (z[some], x[some]), y=0.0, sigma=1.0, linear=True, name="index"))
    graph.add(gbp.Factor(lambda a: a**2, (x[np.repeat(np.arange(n // 2), 2)],), y=1.0, sigma=1.0, name="square"))
    return graph


def compile_times(repeats: int) -> dict:
    out = {}
    for factors in (1_000, 1_000_000):
        graph = five_groups(factors)
        stepper = Stepper(graph)
        seconds = []
        for _ in range(repeats):
            jax.clear_caches()
            begin = time.process_time()
            numbers = jnp.asarray(1), Enough(jnp.asarray(0.0))
            lowered = run_in_place.lower(stepper.problem, stepper.state, stepper.options, stepper.latest, *numbers)
            lowered.compile()
            seconds.append(time.process_time() - begin)
        out[str(factors)] = float(np.median(seconds))
    out["ratio"] = out["1000000"] / out["1000"]
    return out


def tables(report: dict) -> str:
    """The numbers as Markdown."""
    out = [
        "| views | image | edges | ms an iteration | y = a x + b | ratio | time / edges, against 512 squared |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in ("slices", "index"):
        first = report[kind][0]
        for r in report[kind]:
            growth = (r["ms"] / first["ms"]) / (r["edges"] / first["edges"])
            name = "slices" if kind == "slices" else "index arrays"
            out.append(
                f"| {name} | {r['side']} x {r['side']} | {r['edges']:,} | {r['ms']:.1f} | {r['line_ms']:.1f} ms "
                f"| {r['ratio']:.1f} | {growth:.2f} |"
            )
    out += ["", "| M | variables a factor | ms an iteration | fitted exponent |", "|---|---|---|---|"]
    for r in report["variables"]:
        counts, ms = ", ".join(str(v) for v in r["V"]), ", ".join(f"{t:.1f}" for t in r["ms"])
        out.append(f"| {r['M']} | {counts} | {ms} | {r['exponent']:.2f} |")
    c = report["compile"]
    out += [
        "",
        f"Tracing and compiling five groups took {c['1000']:.2f} CPU seconds for 10^3 factors and "
        f"{c['1000000']:.2f} for 10^6: a ratio of {c['ratio']:.2f}.",
    ]
    return "\n".join(out)


def write_down(name: str, report: dict, text: str) -> None:
    """Put a report into benchmarks/NAME.json, and its tables between the marks of NAME.py in docs/performance.md."""
    (HERE / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    page = HERE.parent / "docs" / "performance.md"
    begin, end = f"<!-- {name}.py writes from here -->", "<!-- to here -->"
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def main() -> int:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, for a first look")
    parser.add_argument("--write", action="store_true", help="write engine.json and the tables in docs/performance.md")
    args = parser.parse_args()
    repeats = 3 if args.quick else 7
    sides = (512, 1024) if args.quick else (512, 1024, 2048)
    report = {
        "slices": smoothing(sides, repeats, indexed=False),
        "index": smoothing(sides, repeats, indexed=True),
        "variables": [
            exponent((512, 1024, 2048, 4096, 8192), 1, repeats),
            exponent((512, 1024, 2048, 4096, 8192), 10, repeats),
        ],
        "compile": compile_times(repeats),
    }
    print(json.dumps(report, indent=1))
    if args.write:
        write_down("engine", report, tables(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
