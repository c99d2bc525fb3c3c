"""Infer the poses of a pose graph in a .g2o file, as SLAM programs write them, and write what was found.

Without a file it makes one: a robot that drives on the streets of a Manhattan, with odometry that drifts, and a loop
closure now and then where it comes by a second time.

    python examples/g2o.py [--file INPUT.g2o] FOLDER
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import gbplearn as gbp
from gbplearn.core.files import make_folder
from gbplearn.graph.poses import composed, relative
from gbplearn.show.figures import BLUE, GREEN, save_figure

_DIRECTIONS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
# Standard deviations of metres forward and sideways, and of radians.
_ODOMETRY, _CLOSURE = (0.04, 0.04, 0.015), (0.05, 0.05, 0.03)


def manhattan(seed: int, poses: int = 400, side: int = 10, closures: int = 200) -> gbp.PoseGraph:
    """Odometry along the streets of a square town, and measurements between poses at the same corner."""
    rng = np.random.default_rng(seed)
    path = _streets(rng, poses, side)
    corners = np.round(path[:, :2]).astype(int)
    again = (corners[:, None] == corners[None]).all(2) & (np.subtract.outer(range(poses), range(poses)) < -10)
    pairs = np.argwhere(again)
    pairs = pairs[np.sort(rng.permutation(len(pairs))[:closures])]
    edges = np.concatenate([np.stack([np.arange(poses - 1), np.arange(1, poses)], axis=1), pairs])
    sigma = np.where(np.arange(len(edges))[:, None] < poses - 1, _ODOMETRY, _CLOSURE)
    noise = sigma * rng.standard_normal(sigma.shape)
    measured = composed(relative(path[edges[:, 0]], path[edges[:, 1]]), noise)
    start = [path[0]]
    for step in measured[: poses - 1]:
        start.append(composed(start[-1], step))
    information = np.eye(3) / sigma[:, None] ** 2
    none = np.zeros(poses, bool)
    return gbp.PoseGraph(np.stack(start), edges, measured, information, none, np.arange(poses))


def _streets(rng: np.random.Generator, poses: int, side: int) -> np.ndarray:
    """A walk from corner to corner that turns at random, and at the town's edge."""
    corner, heading, path = np.zeros(2, int), 0, [np.zeros(3)]

    def inside(way: int) -> bool:
        there = corner + _DIRECTIONS[way % 4]
        return bool((there >= 0).all() and (there < side).all())

    while len(path) < poses:
        if rng.random() < 0.35 or not inside(heading):
            heading = int(rng.choice([way for way in (heading + 1, heading - 1) if inside(way)])) % 4
        corner = corner + _DIRECTIONS[heading]
        path.append(np.array([*corner, heading * np.pi / 2]))
    return np.stack(path)


def draw(before: gbp.PoseGraph, after: gbp.PoseGraph) -> Figure:
    """Both graphs from above."""
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    for ax, graph, title in zip(figure.subplots(1, 2), (before, after), ("as read", "after inference")):
        _draw_one(ax, graph)
        ax.set_title(f"{title}: $\\chi^2$ = {graph.chi2():,.0f}")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_one(ax: Axes, graph: gbp.PoseGraph) -> None:
    position, follows = graph.poses[:, :2], np.abs(np.diff(graph.edges, axis=1)[:, 0]) == 1
    for rows, colour, width, label in ((~follows, GREEN, 1.2, "loop closures"), (follows, BLUE, 1.0, "odometry")):
        ax.add_collection(
            LineCollection(list(position[graph.edges[rows]]), colors=colour, linewidths=width, label=label)
        )
    ax.plot(*position.T, ".", color=BLUE, markersize=3)
    ax.set(aspect="equal", xlabel="x in metres", ylabel="y in metres")
    ax.spines[["top", "right"]].set_visible(False)


def main() -> None:
    gbp.cache_programs()  # the next run need not compile anew
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("."), help="folder for pictures and found.g2o")
    parser.add_argument("--file", type=Path, help="a pose graph; by default one is made")
    parser.add_argument("--robust", type=float, metavar="N", help="loop closures count no more beyond N sigma (Tukey)")
    parser.add_argument("--damping", type=float, default=0.0, help="of the messages")
    parser.add_argument("--iterations", type=int, default=4000, help="at most")
    asked = parser.parse_args()
    make_folder(asked.out)
    source = asked.file
    if source is None:
        source = asked.out / "manhattan.g2o"
        gbp.write_g2o(source, manhattan(seed=0))
    try:
        graph = gbp.read_g2o(source)
    except ValueError as error:
        parser.error(str(error))
    robust = None if asked.robust is None else gbp.Tukey(asked.robust)
    begin = time.perf_counter()
    result = gbp.infer(graph.graph(robust), iterations=asked.iterations, damping=asked.damping, throw=False)
    found = graph.at(result)
    print(f"poses       {len(graph.poses)}\nedges       {len(graph.edges)}")
    print(f"chi2        {graph.chi2():.6g} -> {found.chi2():.6g}")
    print(
        f"iterations  {result.iterations}\nstatus      {result.message}\nseconds     {time.perf_counter() - begin:.1f}"
    )
    gbp.write_g2o(asked.out / "found.g2o", found)
    print(*save_figure(draw(graph, found), asked.out, "g2o"), asked.out / "found.g2o", sep="\n")


if __name__ == "__main__":
    main()
