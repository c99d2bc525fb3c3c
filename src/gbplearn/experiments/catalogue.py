"""Experiments by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..report.page import write_page
from .digits import Digits
from .experiment import Experiment, as_text, run, table_rows
from .regression import Regression
from .xor import Xor

EXPERIMENTS: dict[str, type[Experiment]] = {e.name: e for e in (Xor, Regression, Digits)}


def run_by_name(name: str, seeds: int | None, out: Path, ledger: Path) -> dict[str, Any]:
    """Run an experiment with its own settings, print its table, and write its report.

    **Returns:** what `results.json` holds.
    """
    experiment = EXPERIMENTS[name]()
    results, section = run(experiment, range(experiment.seeds if seeds is None else seeds), out, ledger)
    lead = (
        f"{len(results['settings']['seeds'])} seeds, {results['seconds']:.0f} s on {results['environment']['device']}"
    )
    page = write_page(out / "report.html", f"gbplearn: {experiment.title}", lead, [section])
    print(as_text(table_rows(results)))
    print(f"\n{out / 'results.json'}\n{page}")
    return results
