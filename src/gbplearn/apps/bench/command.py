"""`gbplearn bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.files import write_whole
from ...core.progress import progress
from .measure import REPEATS, measure_apart
from .report import plot, read_baseline, regressions, table, write_baseline
from .workloads import SCALING, WORKLOADS


class Slower(Exception):
    """A ratio is worse than in the baseline; the text, a line each, says which."""


def run_bench(
    names: Sequence[str], out: Path, baseline: Path, *, gate: bool, update: bool, repeats: int = REPEATS
) -> None:
    """Measure, print the table, write bench.json and the plot; then the gate.

    **Arguments:**

    - `names`: of workloads; none for all but those of `SCALING`.
    - `out`: folder.
    - `gate`: raise `Slower` if a ratio is much larger than in the baseline.
    - `update`: put the ratios into the baseline.
    """
    known = {**WORKLOADS, **SCALING}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise ValueError(f"there is no workload '{unknown[0]}' (there are: {', '.join(known)})")
    if repeats < 1:
        raise ValueError(f"--repeats must be 1 or larger, got {repeats}")
    before = read_baseline(baseline) if gate else {}
    report: dict[str, dict[str, Any]] = {}
    for name in progress(list(names) or list(WORKLOADS), "bench"):
        report[name] = measure_apart(name, repeats)
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1) + "\n"
    write_whole(out / "bench.json", lambda file: file.write(text.encode()))
    paths = [out / "bench.json", *plot(report, out)]
    print(table(report))
    print("wrote", ", ".join(str(p) for p in paths))
    if update:
        write_baseline(baseline, report)
    worse = regressions(report, before)
    if worse:
        raise Slower("slower than the baseline: " + "; ".join(worse))
