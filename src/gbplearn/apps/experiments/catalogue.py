"""Experiments by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...show.page import write_page
from ..report.record import how_it_was_run
from .async_layers import AsyncLayers
from .cifar10 import Cifar10
from .denoisers import DenoiserAblation, Denoisers
from .digits import Digits
from .estimators import Estimators
from .experiment import Experiment, as_text, run
from .fashion_mnist import FashionMnist
from .fill_in import FillIn
from .iterations import Iterations
from .mnist import Mnist
from .published import Published
from .regression import Regression
from .sample_efficiency import SampleEfficiency, SampleEfficiencyVectors
from .stability import Stability
from .variances import Variances
from .video import Video, VideoAlpha
from .xor import Xor

EXPERIMENTS: dict[str, type[Experiment]] = {
    e.name: e
    for e in (
        Xor,
        Regression,
        Digits,
        FillIn,
        Estimators,
        Mnist,
        FashionMnist,
        Cifar10,
        Published,
        SampleEfficiency,
        SampleEfficiencyVectors,
        AsyncLayers,
        Iterations,
        Stability,
        Variances,
        Video,
        VideoAlpha,
        Denoisers,
        DenoiserAblation,
    )
}


def run_by_name(
    name: str, seeds: int | None, out: Path, ledger: Path, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run an experiment with its own settings, print its table, and write its report.

    **Arguments:**

    - `options`: settings that are not its own; a `ValueError` names one that it does not have.

    **Returns:** what `results.json` holds.
    """
    kind = EXPERIMENTS[name]
    for option in options or {}:
        if option not in {f.name for f in dataclasses.fields(kind)}:  # pyright: ignore[reportArgumentType]
            raise ValueError(f"--{option.replace('_', '-')} is no option of {name}")
    experiment = kind(**(options or {}))
    results, runs, section = run(experiment, range(experiment.seeds if seeds is None else seeds), out, ledger)
    report = [section, *experiment.inside(runs, out), how_it_was_run(results["settings"], results)]
    count = len(results["settings"]["seeds"])
    lead = f"{count} seed{'s' if count > 1 else ''}, {results['seconds']:.0f} s on {results['environment']['device']}."
    page = write_page(out / "report.html", f"gbplearn: {experiment.title}", lead, report)
    print(as_text(experiment.rows(results)))
    print(f"\n{out / 'results.json'}\nOpen {page}")
    return results
