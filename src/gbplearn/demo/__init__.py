"""`gbplearn demo`: learn two small networks, denoise a picture and fit a pose graph, in about a minute."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..experiments.experiment import as_text, run
from ..experiments.regression import Regression
from ..experiments.xor import Xor
from ..files import make_folder
from ..report.figures import save_figure
from ..report.page import Section, write_page
from ..report.record import Clock, environment, write_json
from . import denoise, poses
from .figures import draw_denoised, draw_fitted


def run_demo(
    out: str | Path,
    seed: int = 0,
    *,
    side: int = 128,
    pose_count: int = 100,
    xor: Xor | None = None,
    regression: Regression | None = None,
) -> dict[str, Any]:
    """Run all parts, print a table, and write pictures, `results.json` and `report.html`.

    **Arguments:**

    - `out`: folder for what is written; made if it is missing.
    - `seed`: of all noise.
    - `side`: of the picture, in pixels.
    - `pose_count`: poses of the robot; loop closures in proportion.
    - `xor`, `regression`: settings of the two networks, by default the paper's (but for 300 test iterations).

    **Returns:** what `results.json` holds.
    """
    folder, clock = Path(out), Clock()
    make_folder(folder)
    sections, metrics, settings, rows = [], {}, {}, [("what", "how it was read out", "number", "how it ended")]

    for experiment in (xor or Xor(), regression or Regression(test_iterations=300)):
        print(f"{experiment.title} ...", flush=True)
        results, section = run(experiment, [seed], folder / experiment.name, None)
        sections.append(section)
        settings[experiment.name] = experiment.settings()
        metrics[experiment.name] = {name: m["mean"] for name, m in results["metrics"].items()}
    grid, curve = metrics["xor"], metrics["regression"]
    for how in ("fixed", "random"):
        rows.append(
            ("exclusive or", f"GBP, parameters {how}", f"{grid[f'grid right/{how}']:.1%} of the grid right", "")
        )
    for how in ("fixed", "random"):
        rows.append(("regression", f"GBP, parameters {how}", f"RMSE {curve[f'rmse/{how}']:.3f}", ""))

    picture = denoise.Settings(side=side)
    robot = poses.Settings(poses=pose_count, closures=6 * pose_count // 25, wrong=pose_count // 25)
    print(f"Denoising {side} x {side} pixels ...", flush=True)
    denoised = denoise.denoise(seed, picture)
    print(f"Fitting {pose_count} poses ...", flush=True)
    fitted = poses.fit(seed, robot)
    for name, setting, result, figure, title, words in (
        ("denoise", picture, denoised, draw_denoised(denoised), "A picture with nonsense pixels", _DENOISED),
        ("poses", robot, fitted, draw_fitted(fitted), "A robot's path with wrong loop closures", _FITTED),
    ):
        settings[name], metrics[name] = dataclasses.asdict(setting), result.metrics()
        files = save_figure(figure, folder, name)
        shown = [("metric", "value"), *((k.replace("_", " "), _spelt(v)) for k, v in metrics[name].items())]
        sections.append(Section(title, words, shown, [(p, title) for p in files if p.suffix == ".svg"], settings[name]))
    image, path = metrics["denoise"], metrics["poses"]
    rows += [
        ("picture", "noisy", f"{image['psnr_noisy']:.1f} dB", ""),
        ("", "3 x 3 median", f"{image['psnr_median']:.1f} dB", ""),
        ("", "GBP", f"{image['psnr_gbp']:.1f} dB", _how(image)),
        ("poses", "odometry", f"{path['rmse_odometry']:.2f} m", ""),
        ("", "GBP", f"{path['rmse_gbp']:.2f} m", _how(path)),
    ]

    results = {
        "experiment": "demo",
        "settings": {"seed": seed, **settings},
        "metrics": metrics,
        **clock.read(),
        "environment": environment(),
    }
    write_json(folder / "results.json", results)
    lead = f"Learnt and inferred by Gaussian belief propagation in {results['seconds']:.0f} seconds."
    page = write_page(folder / "report.html", "gbplearn demo", lead, [Section("In short", "", rows), *sections])
    print(f"\n{as_text(rows)}\n\nOpen {page}")
    return results


_DENOISED = "Every pixel is a variable, observed once and like its neighbours, both with robust energies."
_FITTED = "Poses are block variables; loop closures have a robust energy, and the wrong ones are left out."


def _how(metrics: dict[str, Any]) -> str:
    return f"{metrics['status']}, {metrics['iterations']} iterations, {metrics['seconds']:.1f} s"


def _spelt(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
