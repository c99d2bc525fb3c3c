"""Timing: warm-up, then by turns with what it is compared to, the median of 7; each workload in its own process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

REPEATS = 7
_SECONDS = 0.25  # that one repetition takes, about
_COPY = 64 << 20  # bytes that are copied to measure the bandwidth: more than any cache holds

Run = Callable[[int], None]


def _copy() -> Run:
    """Copies an array of `_COPY` bytes into another one that is there already."""
    x, box = jnp.ones(_COPY // 4, jnp.float32), [jnp.zeros(_COPY // 4, jnp.float32)]
    step = jax.jit(lambda x, _: x * 1.0000001, donate_argnums=1, keep_unused=True)

    def run(count: int) -> None:
        for _ in range(count):
            box[0] = step(x, box[0])
            box[0].block_until_ready()

    return run


def _once(run: Run, rounds: int) -> tuple[float, float]:
    """CPU and wall seconds a round."""
    cpu, wall = time.process_time(), time.perf_counter()
    run(rounds)
    return (time.process_time() - cpu) / rounds, (time.perf_counter() - wall) / rounds


def by_turns(runs: dict[str, Run], repeats: int) -> dict[str, tuple[float, float]]:
    """Median CPU and wall seconds a round of each, all timed alternately."""
    rounds = {}
    for name, run in runs.items():
        run(2)
        rounds[name] = max(1, min(50, round(_SECONDS / max(_once(run, 2)[1], 1e-6))))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(_once(run, rounds[name]))
    return {name: (statistics.median(c for c, _ in t), statistics.median(w for _, w in t)) for name, t in times.items()}


def measure(name: str, repeats: int = REPEATS) -> dict[str, object]:
    """Everything that is known of one workload. To be called in a process of its own, for its memory."""
    from ..report.record import peak_memory_mb
    from .workloads import SCALING, WORKLOADS

    cpu = time.process_time()
    workload = {**WORKLOADS, **SCALING}[name]()
    made = time.process_time()
    workload.run(10)  # compiles the loop
    compiling = time.process_time() - made
    memory = peak_memory_mb()
    times = by_turns({"": workload.run, "copy": _copy(), **workload.references}, repeats)
    (own, wall), copy = times.pop(""), times.pop("copy")
    bound = workload.traffic * copy[0] / (2 * _COPY)
    out: dict[str, object] = {
        "CPU ms an iteration": 1e3 * own,
        "wall ms an iteration": 1e3 * wall,
        "messages an iteration": workload.messages,
        "million messages a second": workload.messages / wall / 1e6,
        "CPU ms of the memory traffic alone": 1e3 * bound,
        "against memory traffic": own / bound,
        "copy bandwidth, GB/s": 2 * _COPY / copy[1] / 1e9,
        "compiling, CPU seconds": compiling,
        "building, CPU seconds": made - cpu,
        "peak memory, MB": memory,
        "load average": os.getloadavg()[0],
    }
    if times:
        best = min(times, key=lambda way: times[way][0])
        out |= {
            "reference": best,
            "CPU ms of the reference": 1e3 * times[best][0],
            "against the reference": own / times[best][0],
        }
        out["all references, CPU ms"] = {way: 1e3 * c for way, (c, _) in times.items()}
    return out


def measure_apart(name: str, repeats: int = REPEATS) -> dict[str, object]:
    """`measure` in a new process, with nothing compiled yet."""
    code = (
        f"import json; from gbplearn.apps.bench.measure import measure; print(json.dumps(measure({name!r}, {repeats})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
    return json.loads(done.stdout.strip().splitlines()[-1])
