"""The table and the plot of a benchmark, and the gate that keeps it from getting worse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.files import write_whole

Measured = Mapping[str, Mapping[str, Any]]
RATIOS = ("against the reference", "against memory traffic")
# A ratio may be so much larger than in the baseline: that much it moves from run to run on a shared machine.
SLACK = 1.5


def ratios(report: Measured) -> dict[str, dict[str, float]]:
    """What a baseline holds: of each workload the ratios, which say the same on a slow day."""
    return {name: {r: round(found[r], 3) for r in RATIOS if r in found} for name, found in report.items()}


def regressions(report: Measured, baseline: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each ratio that is more than `SLACK` times that of the baseline."""
    out = []
    for name, found in ratios(report).items():
        for ratio, now in found.items():
            before = baseline.get(name, {}).get(ratio)
            if before is not None and now > SLACK * before:
                out.append(f"{name}: {ratio} {now:.2f}, was {before:.2f}")
    return out


def read_baseline(path: Path) -> dict[str, dict[str, float]]:
    """The committed ratios; a `ValueError` says what is wrong with the file."""
    try:
        found = json.loads(path.read_text())
    except OSError:
        raise ValueError(f"there is no baseline {path}: run from a checkout, or give --baseline") from None
    except ValueError:
        raise ValueError(f"{path} is no JSON") from None
    sound = isinstance(found, dict) and all(isinstance(v, dict) for v in found.values())
    if not sound or not all(isinstance(r, (int, float)) for v in found.values() for r in v.values()):
        raise ValueError(f"{path} must hold ratios by workload")
    return found


def write_baseline(path: Path, report: Measured) -> None:
    """Put the ratios of the workloads that were run into a baseline; others stay."""
    known = read_baseline(path) if path.exists() else {}
    text = json.dumps({**known, **ratios(report)}, indent=1) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def table(report: Measured) -> str:
    """As Markdown."""
    out = [
        "| workload | CPU ms an iteration | wall ms | million messages a second | against Adam step or forward pass "
        "| against memory traffic | compiling, CPU s | peak memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in report.items():
        against = f"{found['against the reference']:.2f}" if "against the reference" in found else ""
        out.append(
            f"| {name} | {found['CPU ms an iteration']:.2f} | {found['wall ms an iteration']:.2f} "
            f"| {found['million messages a second']:,.0f} | {against} | {found['against memory traffic']:.1f} "
            f"| {found['compiling, CPU seconds']:.1f} | {found['peak memory, MB']:.0f} MB |"
        )
    return "\n".join(out)


def plot(report: Measured, folder: Path) -> list[Path]:
    """Time an iteration of every workload, beside its reference and what memory traffic alone would take."""
    from matplotlib.figure import Figure

    from ...show.figures import BLUE, GREY, ORANGE, save_figure

    names = list(report)[::-1]
    figure = Figure(figsize=(7.5, 0.62 * len(names) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    parts = (
        ("memory traffic alone", "CPU ms of the memory traffic alone", GREY, -0.27),
        ("Adam step, or forward pass", "CPU ms of the reference", ORANGE, 0.0),
        ("iteration", "CPU ms an iteration", BLUE, 0.27),
    )
    for label, key, colour, shift in parts:
        rows = [(i + shift, report[n][key]) for i, n in enumerate(names) if key in report[n]]
        axes.barh([y for y, _ in rows], [v for _, v in rows], height=0.25, color=colour, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.set_xlabel("CPU milliseconds")
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
    return save_figure(figure, folder, "bench")
