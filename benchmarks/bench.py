"""`gbplearn bench` for the docs: all workloads, and how the time a factor changes with batch and filters.

    GBPLEARN_DATA=FOLDER python benchmarks/bench.py --write

Writes bench.json and baseline.json here, the tables between the marks in docs/performance.md, and the plot among the
images of the docs.
"""

import argparse
import json

from engine import HERE, write_down
from gbplearn.apps.bench.measure import measure_apart
from gbplearn.apps.bench.report import plot, table, write_baseline
from gbplearn.apps.bench.workloads import SCALING, WORKLOADS
from gbplearn.core.progress import progress

# Processes, by turns; the median counts: times of neighbours are compared, and a busy minute must not hit one alone.
SCALING_RUNS = 3


def scaling_table(report: dict) -> str:
    """CPU milliseconds an iteration; and of a factor, against the smallest size."""
    out = ["| | CPU ms an iteration | CPU time a factor, against the first |", "|---|---|---|"]
    for kind in ("batch", "filters"):
        rows = {int(n.split("-")[1]): r["CPU ms an iteration"] for n, r in report.items() if n.startswith(f"{kind}-")}
        first = min(rows)
        for size, ms in rows.items():
            out.append(f"| {kind} {size} | {ms:.1f} | {(ms / size) / (rows[first] / first):.2f} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the files; else only print")
    given = parser.parse_args()
    report = {name: measure_apart(name) for name in progress([*WORKLOADS], "bench")}
    runs: dict[str, list[dict]] = {name: [] for name in SCALING}
    for name in progress([*SCALING] * SCALING_RUNS, "scaling"):
        runs[name].append(measure_apart(name))
    for name, each in runs.items():
        report[name] = sorted(each, key=lambda r: r["CPU ms an iteration"])[SCALING_RUNS // 2]
    main_part = {name: report[name] for name in WORKLOADS}
    text = f"{table(main_part)}\n\n{scaling_table(report)}"
    print(text)
    print(json.dumps(report, indent=1))
    if given.write:
        write_down("bench", report, text)
        write_baseline(HERE / "baseline.json", main_part)
        plot(main_part, HERE.parent / "docs" / "images")


if __name__ == "__main__":
    main()
