"""Draw what one factor of each layer looks like, and how messages are kept: docs/images/concept-*.svg.

    python benchmarks/concept_pictures.py [--png FOLDER]

Circles are variables (orange: parameters, grey: observed), squares factors. Nothing here is measured; what is, is drawn
by concept_runs.py.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

from gbplearn.show.figures import BLUE, GREY, ORANGE, PALE, save_figure

IMAGES = Path(__file__).parents[1] / "docs" / "images"
INCH = 0.95  # of a unit of the drawings
INK, FAINT = "#333333", "#b5d3e6"
RADIUS, PIXEL, SIDE = 0.3, 0.135, 0.24
STEP, RISE = 0.37, 0.15  # from a pixel to the next
FACES = {"variable": ("white", BLUE), "parameter": ("#fff0e4", ORANGE), "observed": (PALE, GREY)}


def board(width: float, height: float) -> tuple[Figure, Axes]:
    """A white figure with (0, 0) in its middle."""
    figure = Figure(figsize=(width * INCH, height * INCH), facecolor="white")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(-width / 2, width / 2), ylim=(-height / 2, height / 2))
    ax.set_axis_off()
    return figure, ax


def variable(ax: Axes, at, label: str = "", kind: str = "variable", radius: float = RADIUS, faint: bool = False):
    face, edge = FACES[kind]
    edge = FAINT if faint else edge
    ax.add_patch(Circle(at, radius, facecolor=face, edgecolor=edge, linewidth=1.6, zorder=0 if faint else 3))
    ax.text(*at, label, ha="center", va="center_baseline", fontsize=12, zorder=4)
    return np.asarray(at, float)


def factor(ax: Axes, at, faint: bool = False):
    (x, y), half = at, SIDE / 2
    ax.add_patch(
        Rectangle(
            (x - half, y - half), SIDE, SIDE, facecolor=INK, edgecolor="none", zorder=3, alpha=0.25 if faint else 1
        )
    )
    return np.asarray(at, float)


def join(ax: Axes, ends, to, faint: bool = False, dashed: bool = False) -> None:
    for end in np.atleast_2d(ends):
        ax.plot(
            (end[0], to[0]),
            (end[1], to[1]),
            color=GREY,
            linewidth=0.7 if faint else 1.2,
            alpha=0.35 if faint else 0.9,
            linestyle=(0, (2, 2)) if dashed else "-",
            zorder=-1 if faint else 1,
        )


def image(ax: Axes, centre, rows: int, columns: int, lit=(), kind: str = "variable"):
    """Pixels by row and column, those that are lit strong, the others faint.

    Columns rise, so that lines to a factor at the side do not fall on each other.
    """
    places = {}
    for i in range(rows):
        for j in range(columns):
            right, down = j - (columns - 1) / 2, i - (rows - 1) / 2
            at = centre[0] + STEP * right, centre[1] - STEP * down + RISE * right
            places[i, j] = variable(ax, at, kind=kind, radius=PIXEL, faint=(i, j) not in lit)
    return places


def say(ax: Axes, at, words: str, size: float = 11, colour: str = INK, **how) -> None:
    ax.text(*at, words, ha=how.pop("ha", "center"), va=how.pop("va", "center"), fontsize=size, color=colour, **how)


def block(rows: int, columns: int, top: int = 0, left: int = 0) -> list[tuple[int, int]]:
    return [(i, j) for i in range(top, top + rows) for j in range(left, left + columns)]


def column(x: float, count: int, step: float = 0.8, middle: float = 0.0) -> list[tuple[float, float]]:
    return [(x, middle + step * ((count - 1) / 2 - i)) for i in range(count)]


def row(y: float, count: int, step: float = 0.75, middle: float = 0.0) -> list[tuple[float, float]]:
    return [(middle + step * (i - (count - 1) / 2), y) for i in range(count)]


def dense() -> Figure:
    figure, ax = board(9.6, 4.0)
    for middle, title, many, one, weights, bias in (
        (-2.4, "forward: inputs explain an output", "x", "y_o", "w_{%d o}", "d_o"),
        (2.4, 'direction="generative": outputs explain an input', "y", "x_i", "w_{%d i}", "d_i"),
    ):
        turn = 1 if many == "x" else -1
        f = factor(ax, (middle, -0.5))
        for n, at in enumerate(column(middle - 1.5 * turn, 3, middle=-0.5), 1):
            join(ax, variable(ax, at, f"${many}_{n}$"), f)
        labels = [f"${weights % n}$" for n in (1, 2, 3)] + [f"${bias}$"]
        for label, at in zip(labels, row(1.15, 4, middle=middle)):
            join(ax, variable(ax, at, label, "parameter"), f)
        join(ax, variable(ax, (middle + 1.5 * turn, -0.5), f"${one}$"), f)
        say(ax, (middle, 1.78), title)
        say(ax, (middle, -0.9), r"$\sigma$", 12)
    return figure


def conv2d() -> Figure:
    figure, ax = board(8.4, 4.2)
    window, other = block(3, 3, 1, 1), block(3, 3, 2, 2)
    pixels = image(ax, (-2.9, -0.2), 5, 5, window)
    weights = image(ax, (-0.1, 1.3), 3, 3, block(3, 3), "parameter")
    outputs = image(ax, (3.0, -0.4), 3, 3, [(1, 1)])
    bias = variable(ax, (1.1, 1.2), "$d_c$", "parameter")
    pale = factor(ax, (0.3, -1.5), faint=True)
    join(ax, [pixels[at] for at in other], pale, faint=True)
    join(ax, [weights[at] for at in block(3, 3)], pale, faint=True)
    join(ax, [bias, outputs[2, 2]], pale, faint=True)
    f = factor(ax, (0.3, -0.4))
    join(ax, [pixels[at] for at in window], f)
    join(ax, [weights[at] for at in block(3, 3)], f)
    join(ax, [bias, outputs[1, 1]], f)
    say(ax, (-2.9, 1.35), "inputs $x$, one window")
    say(ax, (-0.8, 1.55), "filter $w$", ha="right")
    say(ax, (3.0, 0.55), "outputs $y$")
    say(ax, (1.75, -1.7), "another place:\nthe same filter", 9.5, GREY)
    return figure


def conv_transpose2d() -> Figure:
    figure, ax = board(8.4, 3.6)
    cover = block(2, 2, 1, 1)
    pixels = image(ax, (-2.8, -0.4), 5, 5, [(2, 2)])
    weights = image(ax, (-0.1, 1.1), 2, 2, block(2, 2), "parameter")
    outputs = image(ax, (2.8, -0.4), 4, 4, cover)
    bias = variable(ax, (0.85, 1.1), "$d_c$", "parameter")
    f = factor(ax, (0.1, -0.4))
    join(ax, [outputs[at] for at in cover], f)
    join(ax, [weights[at] for at in block(2, 2)], f)
    join(ax, [bias, pixels[2, 2]], f)
    say(ax, (-2.8, 1.05), "inputs $x$, one pixel")
    say(ax, (-0.6, 1.2), "patch $w$", ha="right")
    say(ax, (2.8, 0.95), "outputs $y$ whose\npatch covers it")
    return figure


def pooling(largest: bool) -> Figure:
    figure, ax = board(6.8, 2.9)
    window = block(2, 2, 0, 2)
    pixels = image(ax, (-2.0, -0.25), 4, 4, window)
    outputs = image(ax, (2.2, -0.2), 2, 2, [(0, 1)])
    f = factor(ax, (0.3, 0.1))
    for at in window:
        join(ax, pixels[at], f, dashed=largest and at != (0, 3))
    join(ax, outputs[0, 1], f)
    say(ax, (-2.0, 1.15), "inputs $x$, one window")
    say(ax, (2.2, 0.65), "outputs $y$")
    if largest:
        say(ax, (0.4, -0.85), "only the largest\nis told anything", 9.5, GREY)
    return figure


def max_pool2d() -> Figure:
    return pooling(largest=True)


def avg_pool2d() -> Figure:
    return pooling(largest=False)


def upsample2d() -> Figure:
    figure, ax = board(6.8, 2.9)
    pixels = image(ax, (-2.0, -0.25), 4, 4, block(2, 2, 0, 2))
    outputs = image(ax, (2.2, -0.2), 2, 2, [(0, 1)])
    for number, at in enumerate([(0, 3), (0, 2), (1, 3), (1, 2)]):
        join(ax, [pixels[at], outputs[0, 1]], factor(ax, (0.3, 0.85 - 0.46 * number)))
    say(ax, (-2.0, 1.15), "inputs $x$, one patch")
    say(ax, (2.2, 0.65), "outputs $y$")
    return figure


def pairwise_smoothing() -> Figure:
    figure, ax = board(4.8, 3.0)
    at = {(i, j): np.array([1.1 * (j - 1.5), 0.95 * (1 - i)]) for i in range(3) for j in range(4)}
    for (i, j), place in at.items():
        variable(ax, place, f"$x_{{{i + 1}{j + 1}}}$", radius=0.25)
        for other in ((i + 1, j), (i, j + 1)):
            if other in at:
                join(ax, [place, at[other]], factor(ax, (place + at[other]) / 2))
    return figure


def unary(label: str, seen: str | None, note: str, width: float) -> Figure:
    figure, ax = board(width, 1.2)
    start = -0.75 if seen is None else -1.3
    f = factor(ax, (start + 1.3, 0.1))
    join(ax, variable(ax, (start, 0.1), label), f)
    if seen is not None:
        join(ax, variable(ax, (start + 2.6, 0.1), seen, "observed"), f)
    say(ax, (start + 1.3, -0.3), note)
    return figure


def prior() -> Figure:
    return unary("$x$", None, r"$\mathcal{N}(\mathrm{mean}, \mathrm{std}^2)$", 3.4)


def gaussian_observation() -> Figure:
    return unary("$x$", "$z$", r"$\sigma$", 4.2)


def softmax_observation() -> Figure:
    figure, ax = board(4.8, 2.8)
    f = factor(ax, (0.2, 0.0))
    for n, at in enumerate(column(-1.5, 3), 1):
        join(ax, variable(ax, at, f"$f_{n}$"), f)
    join(ax, variable(ax, (1.6, 0.0), "$c$", "observed"), f)
    say(ax, (0.25, -0.38), r"$\sigma$", 12)
    say(ax, (1.6, -0.5), "class", 9.5, GREY)
    return figure


def messages() -> Figure:
    """Three weights, four examples of one dense output."""
    figure, ax = board(10.4, 4.5)
    for middle, title, pooled in (
        (-2.6, 'messages="per-edge"', False),
        (2.6, 'messages="pooled"', True),
    ):
        weights = [np.array(at) for at in row(1.15, 3, 1.5, middle)]
        factors = [np.array(at) for at in row(-0.95, 4, 1.2, middle)]
        for n, at in enumerate(weights, 1):
            variable(ax, at, f"$w_{n}$", "parameter")
        for n, at in enumerate(factors, 1):
            factor(ax, at)
            say(ax, at + np.array([0, -0.7 if pooled else -0.32]), f"example {n}", 9, GREY)
            for w in weights:
                join(ax, w, at, faint=pooled)
        if not pooled:
            for at in factors:
                for w, part in zip(weights, (0.22, 0.36, 0.5)):
                    letter(ax, at + part * (w - at))
        else:
            for w in weights:
                tag(ax, w + np.array([0, -0.58]), r"$\Sigma\eta, \Sigma\lambda$", ORANGE)
            for n, at in enumerate(factors, 1):
                tag(ax, at + np.array([0, -0.36]), f"$g_{n}$", INK)
        say(ax, (middle, 1.9), title, 12)
        kept = "12 messages are kept: one for each edge" if not pooled else "3 sums and 4 numbers are kept"
        say(ax, (middle, -2.1), kept)
    return figure


def capsule(ax: Axes, at, wide: float, label: str = "", kind: str = "variable", units: int = 0, high: float = 0.42):
    """A vector variable: several numbers in one."""
    (x, y), (face, edge) = at, FACES[kind]
    ax.add_patch(
        FancyBboxPatch(
            (x - wide / 2, y - high / 2),
            wide,
            high,
            boxstyle=f"round,pad=0,rounding_size={high / 2}",
            facecolor=face,
            edgecolor=edge,
            linewidth=1.6,
            zorder=3,
        )
    )
    for n in range(units):
        ax.add_patch(Circle((x + wide * ((n + 0.5) / units - 0.5) * 0.85, y), 0.06, facecolor=edge, zorder=4))
    if label:
        ax.text(x, y, label, ha="center", va="center_baseline", fontsize=12, zorder=4)
    return np.asarray(at, float)


def arrow(ax: Axes, start, end, colour: str = ORANGE) -> None:
    """The way of a message."""
    how = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=end, xytext=start, arrowprops=how, zorder=5)


def vectors() -> Figure:
    """Four weights of a unit and three examples: as scalars, and as one vector."""
    figure, ax = board(10.4, 4.5)
    for middle, title, joint in ((-2.6, 'posterior="diagonal"', False), (2.6, 'posterior="block"', True)):
        factors = [np.array(at) for at in row(-0.95, 3, 1.4, middle)]
        weights = [np.array(at) for at in row(1.0, 4, 1.05, middle)]
        if joint:
            capsule(ax, (middle, 1.0), 4.0, "$w = (w_1, w_2, w_3, w_4)$", "parameter", high=0.6)
        for n, at in enumerate(factors, 1):
            factor(ax, at)
            say(ax, at + np.array([0, -0.32]), f"example {n}", 9, GREY)
            if not joint:
                for w in weights:
                    join(ax, w, at)
                continue
            top = np.array([middle + 0.9 * (n - 2), 0.7])
            join(ax, top, at)
            tag(ax, 0.5 * (top + at), f"$c_{n}, e_{n}$", ORANGE)
        if not joint:
            for n, at in enumerate(weights, 1):
                variable(ax, at, f"$w_{n}$", "parameter")
        say(ax, (middle, 1.85), title, 12)
        kept = (
            "two numbers an example,\na covariance of all weights"
            if joint
            else "two numbers an edge,\na variance a weight"
        )
        say(ax, (middle, -1.85), kept)
    return figure


def chains() -> Figure:
    """Two examples as chains between the same parameters."""
    figure, ax = board(9.8, 5.0)
    heights = {"input": -1.75, "w1": -0.85, "h": 0.0, "w2": 0.85, "z": 1.6}
    middle = {"w1": np.array([0.0, heights["w1"]]), "w2": np.array([0.0, heights["w2"]])}
    for name, label in (("w1", "weights of layer 1"), ("w2", "weights of layer 2")):
        capsule(ax, middle[name], 2.1, label, "parameter")
    for side, number in ((-1, 1), (1, 2)):
        x = 2.75 * side
        capsule(ax, (x, heights["input"]), 1.9, kind="observed", units=7)
        capsule(ax, (x, heights["h"]), 1.5, units=5)
        capsule(ax, (x, heights["z"]), 1.0, units=3)
        ends = {"w1": ("input", "h"), "w2": ("h", "z")}
        for name, (low, high) in ends.items():
            f = factor(ax, (x, heights[name]))
            join(ax, [(x, heights[low] + 0.21), (x, heights[high] - 0.21)], f)
            join(ax, (1.05 * side, heights[name]), f)
        label = variable(ax, (x + 1.5 * side, heights["z"]), "$c$", "observed", 0.24)
        f = factor(ax, (x + 0.9 * side, heights["z"]))
        join(ax, [label, (x + 0.5 * side, heights["z"])], f)
        out = x + 0.35 * side
        arrow(ax, (out, heights["z"] - 0.3), (out, heights["h"] + 0.3))
        arrow(ax, (out, heights["h"] - 0.3), (out, heights["input"] + 0.3))
        say(ax, (x + 0.5 * side, -0.85), "what is\nobserved", 9.5, ORANGE, ha="left" if side > 0 else "right")
        say(ax, (x, -2.2), f"example {number}", 10, GREY)
    say(ax, (0, 0.0), "examples meet\nin the parameters only", 9.5, GREY)
    say(ax, (0, 1.6), "logits: 3 numbers", 9.5, GREY)
    return figure


def categorical_observation() -> Figure:
    figure, ax = board(4.8, 2.8)
    f = factor(ax, (0.2, 0.0))
    for n, at in enumerate(column(-1.5, 3), 1):
        join(ax, variable(ax, at, f"$f_{n}$"), f)
    join(ax, variable(ax, (1.6, 0.0), "$c$", "observed"), f)
    say(ax, (0.3, -0.6), r"$-\log\,\mathrm{softmax}_c(f)$", 11)
    say(ax, (1.6, -0.5), "class", 9.5, GREY)
    return figure


def letter(ax: Axes, at) -> None:
    """A message: an envelope."""
    x, y = at
    ax.add_patch(Rectangle((x - 0.1, y - 0.065), 0.2, 0.13, facecolor="white", edgecolor=ORANGE, linewidth=1, zorder=4))
    ax.plot((x - 0.1, x, x + 0.1), (y + 0.065, y - 0.02, y + 0.065), color=ORANGE, linewidth=1, zorder=5)


def tag(ax: Axes, at, words: str, colour: str) -> None:
    """A number that is kept."""
    x, y = at
    wide = 0.34 if "Sigma" in words else 0.19
    ax.add_patch(
        FancyBboxPatch(
            (x - wide, y - 0.12),
            2 * wide,
            0.24,
            boxstyle="round,pad=0.03",
            facecolor="white",
            edgecolor=colour,
            linewidth=1,
            zorder=4,
        )
    )
    ax.text(x, y, words, ha="center", va="center_baseline", fontsize=9.5, zorder=5)


PICTURES = (
    dense,
    conv2d,
    conv_transpose2d,
    max_pool2d,
    avg_pool2d,
    upsample2d,
    pairwise_smoothing,
    prior,
    gaussian_observation,
    softmax_observation,
    categorical_observation,
    messages,
    vectors,
    chains,
)


def keep(figure: Figure, name: str, png: Path | None = None) -> None:
    """As SVG among the images of the docs, and as PNG in a folder to look at."""
    with tempfile.TemporaryDirectory() as folder:
        for path in save_figure(figure, Path(folder), f"concept-{name}"):
            target = IMAGES if path.suffix == ".svg" else png
            if target is not None:
                shutil.copy(path, target / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", type=Path, help="folder for PNGs")
    asked = parser.parse_args()
    for draw in PICTURES:
        keep(draw(), draw.__name__.replace("_", "-"), asked.png)


if __name__ == "__main__":
    main()
