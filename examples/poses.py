"""Fit a pose graph: a robot drives two rounds of a figure eight and finds out where it has been.

Odometry says how each pose follows from the last one; its errors add up. Loop closures say where a pose lies relative
to a much earlier one. A few of them are wrong, as when two places look alike: a robust energy has to find out which.

On a graph with loops belief propagation counts evidence more than once: the means are good, the covariances too small.

    python examples/poses.py FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import gbplearn as gbp
from gbplearn.core.files import make_folder
from gbplearn.graph.poses import composed, pose_error, relative
from gbplearn.show.figures import BLUE, GREEN, GREY, ORANGE, PALE, save_figure

Poses = Float[np.ndarray, "n 3"]  # x and y in metres, heading in radians

_ANCHOR_SIGMA = 0.01
_NEAR, _FAR = 1.5, 5.0  # metres: true loop closures join poses nearer than this, wrong ones poses farther apart


@dataclasses.dataclass(frozen=True)
class Settings:
    """Drive and model; standard deviations of forward and sideways metres, and of radians."""

    poses: int = 100
    closures: int = 24
    wrong: int = 4  # so many of the closures
    odometry_sigma: tuple[float, float, float] = (0.05, 0.05, 0.015)
    closure_sigma: tuple[float, float, float] = (0.15, 0.15, 0.08)
    threshold: float = 5.0  # Tukey, of the closures, in standard deviations
    damping: float = 0.3
    iterations: int = 2000


@dataclasses.dataclass(frozen=True)
class Drive:
    """A true path, and what was measured of it."""

    path: Poses
    odometry: Poses  # of each pose but the first relative to the one before it
    start: Poses  # the odometry added up
    pairs: Int[np.ndarray, "closures 2"]
    closures: Poses  # of the second pose of each pair relative to the first
    wrong: Bool[np.ndarray, " closures"]


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What went in and what came out."""

    drive: Drive
    mean: Poses
    covariance: Float[np.ndarray, "n 3 3"]
    result: gbp.Result
    seconds: float

    def metrics(self) -> dict[str, float | int | str]:
        """The numbers of results.json."""
        return {
            "rmse_odometry": position_rmse(self.drive.start, self.drive.path),
            "rmse_gbp": position_rmse(self.mean, self.drive.path),
            "closures": len(self.drive.wrong),
            "wrong_closures": int(self.drive.wrong.sum()),
            "iterations": self.result.iterations,
            "status": str(self.result.status),
            "seconds": self.seconds,
        }


def position_rmse(estimate: Poses, path: Poses) -> float:
    """Root of the mean squared distance to the true positions, in metres."""
    return float(np.sqrt(np.mean(np.sum((estimate - path)[:, :2] ** 2, axis=1))))


def drive(seed: int, settings: Settings) -> Drive:
    """Two rounds of a figure eight, the second a little beside the first."""
    rng = np.random.default_rng(seed)
    count = settings.poses
    t = np.linspace(0, 4 * np.pi, count)
    position = np.stack([8 * np.sin(t) + 0.5 * np.cos(t / 2), 4.2 * np.sin(2 * t) + 0.7 * np.sin(t / 2)], axis=1)
    velocity = np.stack([8 * np.cos(t) - 0.25 * np.sin(t / 2), 8.4 * np.cos(2 * t) + 0.35 * np.cos(t / 2)], axis=1)
    path = np.column_stack([position, np.arctan2(velocity[:, 1], velocity[:, 0])])

    odometry = relative(path[:-1], path[1:])
    odometry = odometry + np.array(settings.odometry_sigma) * rng.standard_normal(odometry.shape)
    start = _added_up(path[0], odometry)

    distance = np.linalg.norm(position[:, None] - position[None], axis=2)
    number = np.arange(count)
    apart = number[None] - number[:, None] > count // 10
    near = np.argwhere((distance < _NEAR) & apart)
    far = np.argwhere((distance > _FAR) & apart)
    right = near[np.linspace(0, len(near) - 1, settings.closures - settings.wrong).astype(int)]
    pairs = np.concatenate([right, far[rng.choice(len(far), settings.wrong, replace=False)]])
    wrong = np.arange(settings.closures) >= len(right)
    closures = relative(path[pairs[:, 0]], path[pairs[:, 1]])
    # A wrong closure takes two places for one: the poses seem to be near each other.
    closures[wrong, :2] = rng.uniform(-1, 1, (settings.wrong, 2))
    closures[wrong, 2] = rng.uniform(-np.pi, np.pi, settings.wrong)
    closures += np.array(settings.closure_sigma) * rng.standard_normal(closures.shape)
    return Drive(path, odometry, start, pairs, closures, wrong)


def _added_up(first: np.ndarray, odometry: Poses) -> Poses:
    out = [first]
    for step in odometry:
        out.append(composed(out[-1], step))
    return np.stack(out)


def fit(seed: int, settings: Settings) -> Fitted:
    """Drive, and fit the poses to what was measured."""
    driven = drive(seed, settings)
    begin = time.perf_counter()
    result = gbp.infer(
        pose_graph(driven, settings), iterations=settings.iterations, damping=settings.damping, throw=False
    )
    mean = np.asarray(result["pose"].mean, float)
    seconds = time.perf_counter() - begin
    return Fitted(driven, mean, np.asarray(result["pose"].covariance, float), result, seconds)


def pose_graph(driven: Drive, settings: Settings) -> gbp.FactorGraph:
    """Poses without a prior: the first is anchored, odometry and closures hold the others."""
    graph = gbp.FactorGraph()
    x = graph.variable("pose", driven.start.shape, block=True, start=driven.start)
    graph.add(gbp.Factor(_itself, (x[0:1],), y=driven.start[0], sigma=_ANCHOR_SIGMA, linear=True, name="anchor"))
    graph.add(gbp.Factor(pose_error, (driven.odometry, x[:-1], x[1:]), sigma=settings.odometry_sigma, name="odometry"))
    one, other = driven.pairs.T
    graph.add(
        gbp.Factor(
            pose_error,
            (driven.closures, x[one], x[other]),
            sigma=settings.closure_sigma,
            robust=gbp.Tukey(settings.threshold),
            name="closures",
        )
    )
    return graph


def _itself(a):
    return a


def draw(f: Fitted) -> Figure:
    """True path, odometry and estimate, with ellipses of two standard deviations and the loop closures."""
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    ax = figure.subplots()
    truth, start, mean = f.drive.path, f.drive.start, f.mean
    before, after = position_rmse(start, truth), position_rmse(mean, truth)
    for wrong, style, colour, label in (
        (False, "-", GREEN, "loop closure"),
        (True, "--", ORANGE, "wrong loop closure"),
    ):
        for number, (i, j) in enumerate(f.drive.pairs[f.drive.wrong == wrong]):
            line = ax.plot(*mean[[i, j], :2].T, style, color=colour, linewidth=1.4, zorder=2)[0]
            line.set_label(label if number == 0 else None)
    ax.plot(*truth[:, :2].T, color=PALE, linewidth=6, label="true path", zorder=0)
    ax.plot(*start[:, :2].T, ":", color=GREY, linewidth=1.5, label=f"odometry: {before:.2f} m RMSE", zorder=1)
    ax.plot(*mean[:, :2].T, ".-", color=BLUE, linewidth=1.2, markersize=4, label=f"GBP: {after:.2f} m RMSE", zorder=4)

    every = max(1, len(mean) // 30)
    values, vectors = np.linalg.eigh(f.covariance[::every, :2, :2])
    widths = 4 * np.sqrt(np.maximum(values, 0))  # from minus to plus two standard deviations
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    ax.add_collection(
        EllipseCollection(
            widths[:, 1],
            widths[:, 0],
            angles,
            units="xy",
            offsets=mean[::every, :2],
            offset_transform=ax.transData,
            facecolor=BLUE,
            edgecolor="none",
            alpha=0.3,
            zorder=1,
        )
    )
    handles, labels = ax.get_legend_handles_labels()
    handles.append(Patch(facecolor=BLUE, alpha=0.3))
    labels.append("GBP: 2 standard deviations")
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    ax.set_aspect("equal")
    ax.set_xlabel("x in metres")
    ax.set_ylabel("y in metres")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    gbp.cache_programs()  # the next run need not compile anew
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("."), help="folder for the pictures")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    asked = parser.parse_args()
    make_folder(asked.out)
    result = fit(asked.seed, Settings())
    for name, value in result.metrics().items():
        print(f"{name:16}  {value:.4g}" if isinstance(value, float) else f"{name:16}  {value}")
    print(*save_figure(draw(result), asked.out, "poses"), sep="\n")


if __name__ == "__main__":
    main()
