"""What all experiments share: seeds, results, ledger, figure."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...core.files import make_folder
from ...core.progress import progress
from ...show.page import Section
from ..report.record import (
    Clock,
    append_to_ledger,
    environment,
    in_ledger,
    ledger_line,
    peak_memory_mb,
    summary,
    write_json,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The ways in which a trained network is asked.
READ_OUT = {
    "fixed": "GBP with the parameters fixed at their posterior means and the observation at the end removed",
    "random": "the same with the parameters at their posteriors",
    "forward": "a forward pass of the posterior means, no messages",
    "training": "beliefs of the training graph",
}


@dataclasses.dataclass(frozen=True)
class SeedRun:
    """One seed: its numbers, and what the figure needs."""

    seed: int
    metrics: dict[str, float]
    kept: Any
    before: bool = False  # whether it was finished by an earlier run
    cost: dict[str, Any] | None = None  # commit, seconds, CPU seconds, memory: if not all was spent by this process


class Experiment(abc.ABC):
    """An experiment is a frozen dataclass: its fields are its settings.

    Metrics are named `quantity/read-out`; `read_out` says what each read-out is.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    seeds: ClassVar[int]  # by default
    read_out: ClassVar[dict[str, str]]
    published: ClassVar[dict[str, str]]  # what others report, by metric
    caption: ClassVar[str]  # the figure in words

    @abc.abstractmethod
    def run_seed(self, seed: int) -> SeedRun:
        """Everything that depends on a seed."""

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """The same for an experiment that takes long: goes on with what an earlier run left in the folder."""
        return self.run_seed(seed)

    @abc.abstractmethod
    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """The figure."""

    def pictures(self, runs: Sequence[SeedRun]) -> dict[str, tuple[Figure, str]]:
        """More figures by name, each with its caption."""
        return {}

    def inside(self, runs: Sequence[SeedRun], folder: Path) -> list[Section]:
        """More sections of the report: what is inside of one of its networks; figures go to the folder."""
        return []

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """The table of its results, headings first."""
        return table_rows(results)

    def settings(self) -> dict[str, Any]:
        """Its fields, but for the folder of the data: that is none."""
        assert dataclasses.is_dataclass(self)
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "data_dir"}


def run(
    experiment: Experiment, seeds: Sequence[int], out: Path, ledger: Path | None
) -> tuple[dict[str, Any], list[SeedRun], Section]:
    """Run an experiment for some seeds.

    Writes `results.json` and the figures (PNG and SVG) to the folder `out`, and a line for each seed to `ledger` as
    soon as that seed is done.

    **Returns:** what `results.json` holds, the runs, and a section for a report.
    """
    from ...show.figures import picture

    make_folder(out)
    if ledger is not None:
        make_folder(ledger.parent)
    whole, runs = Clock(), []
    settings = experiment.settings()
    for seed in progress(list(seeds), experiment.name):
        clock = Clock()
        runs.append(experiment.resume_seed(seed, out))
        if ledger is not None and not (runs[-1].before and in_ledger(ledger, experiment.name, settings, seed)):
            metrics, cost = runs[-1].metrics, runs[-1].cost
            line = ledger_line(experiment.name, settings, seed, metrics, experiment.read_out, clock, cost)
            append_to_ledger(ledger, line)
    results = {
        "experiment": experiment.name,
        "settings": {"seeds": list(seeds), **settings},
        # What takes long may have been measured for some seeds only.
        "metrics": {name: summary([r.metrics[name] for r in runs if name in r.metrics]) for name in runs[0].metrics},
        "published": experiment.published,
        "read_out": experiment.read_out,
        **_spent(runs, whole),
        "environment": environment(_commits(runs, whole)),
    }
    figures = {experiment.name: (experiment.draw(runs), experiment.caption)}
    figures |= {f"{experiment.name}-{name}": drawn for name, drawn in experiment.pictures(runs).items()}
    pictures = [picture(figure, name, words, out) for name, (figure, words) in figures.items()]
    write_json(out / "results.json", results)
    read_outs = " ".join(f"{name}: {words}." for name, words in experiment.read_out.items())
    return results, runs, Section("Results", read_outs, experiment.rows(results), pictures)


def _commits(runs: Sequence[SeedRun], clock: Clock) -> str | None:
    """With which the seeds were run: one, as a rule."""
    return _joined([clock.commit if r.cost is None else r.cost["commit"] for r in runs])


def _joined(commits: Sequence[str | None]) -> str | None:
    """Each once, of lists that may have several."""
    return ", ".join(dict.fromkeys(name for c in commits for name in (c or "").split(", ") if name)) or None


def _spent(runs: Sequence[SeedRun], clock: Clock) -> dict[str, Any]:
    """By all seeds, those included that an earlier process has finished."""
    costs = [r.cost for r in runs if r.cost is not None]
    if len(costs) < len(runs):
        return {**clock.read(), "peak_memory_mb": round(peak_memory_mb(), 1)}
    return {what: value for what, value in total_cost(costs).items() if what != "commit"}


def total_cost(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of parts that were run one after the other: commits, seconds, CPU seconds, and the most memory of any."""
    return {
        "commit": _joined([c["commit"] for c in costs]),
        **{what: round(sum(c[what] for c in costs), 3) for what in ("seconds", "cpu_seconds")},
        "peak_memory_mb": max(c["peak_memory_mb"] for c in costs),
    }


def table_rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """Each metric with its spread over the seeds, beside what was published."""
    rows: list[tuple[str, ...]] = [("metric / read-out", "mean", "standard error", "lowest", "highest", "published")]
    for name, m in results["metrics"].items():
        error = "" if m["standard_error"] is None else f"{m['standard_error']:.2g}"
        low, high = (f"{f(m['values']):.4g}" for f in (min, max))
        rows.append((name, f"{m['mean']:.4g}", error, low, high, results["published"].get(name, "")))
    return rows


def rows_by_read_out(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """A column for each read-out: mean ± standard error, with the number of seeds where it is not that of all."""
    metrics, seeds = results["metrics"], len(results["settings"]["seeds"])
    quantities, hows = (list(dict.fromkeys(name.rsplit("/", 1)[i] for name in metrics)) for i in (0, 1))

    def cell(name: str) -> str:
        if name not in metrics:
            return ""
        m = metrics[name]
        error = "" if m["standard_error"] is None else f" ± {m['standard_error']:.2g}"
        few = len(m["values"])
        mean = f"{m['mean']:.4f}" if abs(m["mean"]) < 1 else f"{m['mean']:.4g}"
        return f"{mean}{error}" + ("" if few == seeds else f" ({few} seed{'s' if few > 1 else ''})")

    rows: list[tuple[str, ...]] = [("", *hows, "published")]
    for q in quantities:
        rows.append((q, *(cell(f"{q}/{how}") for how in hows), results["published"].get(f"{q}/{hows[0]}", "")))
    return rows


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """A table for the terminal."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows)
