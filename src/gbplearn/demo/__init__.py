"""`gbplearn demo`: denoise a picture and fit a pose graph, both made here, in under a minute."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

from . import denoise, poses
from .figures import draw_denoised, draw_fitted, save_figure
from .files import make_folder, write_whole


def run_demo(out: str | Path, seed: int = 0, *, side: int = 128, pose_count: int = 100) -> dict:
    """Run both parts, print a table, and write their pictures and `results.json`.

    **Arguments:**

    - `out`: folder for what is written; made if it is missing.
    - `seed`: of all noise.
    - `side`: of the picture, in pixels.
    - `pose_count`: poses of the robot; loop closures in proportion.

    **Returns:** what `results.json` holds.
    """
    folder = Path(out)
    make_folder(folder)
    begin = time.perf_counter()
    settings = {
        "denoise": denoise.Settings(side=side),
        "poses": poses.Settings(poses=pose_count, closures=6 * pose_count // 25, wrong=pose_count // 25),
    }

    print(f"Denoising {side} x {side} pixels ...", flush=True)
    denoised = denoise.denoise(seed, settings["denoise"])
    pictures = save_figure(draw_denoised(denoised), folder, "denoise")
    print(f"Fitting {pose_count} poses ...", flush=True)
    fitted = poses.fit(seed, settings["poses"])
    pictures += save_figure(draw_fitted(fitted), folder, "poses")

    results = {
        "experiment": "demo",
        "settings": {"seed": seed, **{name: dataclasses.asdict(s) for name, s in settings.items()}},
        "metrics": {"denoise": denoised.metrics(), "poses": fitted.metrics()},
        "seconds": time.perf_counter() - begin,
    }
    report = folder / "results.json"
    write_whole(report, lambda file: file.write((json.dumps(results, indent=2) + "\n").encode()))
    print(_table(denoised, fitted))
    print("\n".join(str(path) for path in (*pictures, report)))
    return results


def _table(denoised: denoise.Denoised, fitted: poses.Fitted) -> str:
    image, path = denoised.metrics(), fitted.metrics()
    rows = [
        ("picture", "noisy", f"{image['psnr_noisy']:.1f} dB", ""),
        ("", "3 x 3 median", f"{image['psnr_median']:.1f} dB", ""),
        ("", "GBP", f"{image['psnr_gbp']:.1f} dB", _how(image)),
        ("poses", "odometry", f"{path['rmse_odometry']:.2f} m", ""),
        ("", "GBP", f"{path['rmse_gbp']:.2f} m", _how(path)),
    ]
    lines = [f"{'':10}{'estimate':14}{'PSNR / RMSE':>12}   how it ended"]
    lines += [f"{what:10}{who:14}{value:>12}   {how}".rstrip() for what, who, value, how in rows]
    return "\n" + "\n".join(lines) + "\n"


def _how(metrics: dict) -> str:
    return f"{metrics['status']}, {metrics['iterations']} iterations, {metrics['seconds']:.1f} s"
