"""Numbers of a run: `results.json`, and a line for each seed in the ledger, so that days add up."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np

from ... import native
from ...core.files import write_whole
from ...core.version import __version__
from ...show.page import Section


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard error over the seeds, and the value of each."""
    array = np.asarray(values, float)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return {"mean": float(array.mean()), "standard_error": error, "values": array.tolist()}


def environment(of: str | None) -> dict[str, Any]:
    """Where the numbers come from: the commit, and what else there is."""
    kernels = native.status()
    return {
        "gbplearn": __version__,
        "commit": of,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
        "device": jax.devices()[0].platform,
        "kernels": {"state": kernels.state.name, "sentence": str(kernels)},
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def how_it_was_run(settings: Mapping[str, Any], results: Mapping[str, Any]) -> Section:
    """The last section of a report: what it cost, where it was run, and all settings.

    **Arguments:**

    - `results`: with `seconds`, `cpu_seconds`, `environment`, and perhaps `peak_memory_mb`.
    """
    where, memory = results["environment"], results.get("peak_memory_mb")
    cost = f"{results['seconds']:.0f} s ({results['cpu_seconds']:.0f} CPU s), without this report"
    cost += "" if memory is None else f", at most {memory:,.0f} MB of memory"
    versions = f"gbplearn {where['gbplearn']} (commit {where['commit'] or 'unknown'}), JAX {where['jax']}"
    machine = f"Python {where['python']}, {where['cores']} cores, {where['device']}, {where['system']}"
    kernels = where.get("kernels")  # records from before do not have it
    text = f"{cost}; {versions}, {machine}" + (f"; {kernels['sentence']}." if kernels else ".")
    return Section("How it was run", text, details={"Settings": settings, "Environment": where})


def commit() -> str | None:
    """The commit of the checkout this package is in, with a `+` if files were changed; None without one."""
    folder = Path(__file__).parent
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True).stdout
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", str(folder.parent)])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+" if changed.strip() else "")


def peak_memory_mb() -> float:
    """The most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024 * 1024)


class Clock:
    """Seconds and CPU seconds since it was made, and the commit at that time."""

    def __init__(self):
        self.commit = commit()
        self._begin = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """`seconds` and `cpu_seconds`."""
        return {
            "seconds": round(time.perf_counter() - self._begin[0], 3),
            "cpu_seconds": round(time.process_time() - self._begin[1], 3),
        }

    def cost(self) -> dict[str, Any]:
        """`commit`, `seconds`, `cpu_seconds` and `peak_memory_mb`: what a run has cost so far."""
        return {"commit": self.commit, **self.read(), "peak_memory_mb": round(peak_memory_mb(), 1)}


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Runs with the same settings have the same."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of JSON, whole or not at all."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def ledger_line(
    experiment: str,
    chosen: Mapping[str, Any],
    seed: int,
    metrics: Mapping[str, float],
    read_out: Mapping[str, str],
    clock: Clock,
    cost: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What the ledger says of a run of one seed: commit, settings with their hash, numbers, how they were read out.

    **Arguments:**

    - `cost`: commit, seconds, CPU seconds and memory, if the run was not (all) this process's.
    """
    return {
        "experiment": experiment,
        "commit": clock.commit,
        "settings": settings_hash(chosen),
        "chosen": dict(chosen),
        "seed": seed,
        "metrics": dict(metrics),
        "read_out": dict(read_out),
        "jaxlib": jaxlib.version.__version__,
        "kernels": native.status().state.name,
        "peak_memory_mb": round(peak_memory_mb(), 1),
        **clock.read(),
        **(cost or {}),
    }


def append_to_ledger(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the ledger in one write, so that runs side by side do not mix theirs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(line, sort_keys=True, allow_nan=False) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, text.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def in_ledger(path: Path, experiment: str, chosen: Mapping[str, Any], seed: int) -> bool:
    """Whether the ledger has a line of this experiment with these settings and this seed."""
    wanted = experiment, settings_hash(chosen), seed
    if not path.exists():
        return False
    for number, text in enumerate(path.read_text().splitlines()):
        try:
            line = json.loads(text)
            if (line["experiment"], line["settings"], line["seed"]) == wanted:
                return True
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: line {number + 1} is damaged") from None
    return False
