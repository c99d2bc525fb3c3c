"""Colours and files of all figures of matplotlib. No pyplot: nothing global, no display needed."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import BinaryIO

import matplotlib
from matplotlib.figure import Figure

from ..core.files import write_whole

# Distinguishable for the colour-blind too.
BLUE, ORANGE, GREEN, GREY, PALE = "#0072b2", "#d55e00", "#009e73", "#555555", "#dcdcdc"


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG.

    **Returns:** the paths.
    """
    paths = []
    for kind in ("png", "svg"):
        paths.append(folder / f"{name}.{kind}")
        write_whole(paths[-1], partial(_write, figure, name, kind))
    return paths


def picture(figure: Figure, name: str, words: str, folder: Path | None) -> tuple[bytes, str]:
    """A figure with its words as a `Section` takes it; also written to the folder, if there is one."""
    if folder is not None:
        save_figure(figure, folder, name)
    file = io.BytesIO()
    _write(figure, name, "svg", file)
    return file.getvalue(), words


def _write(figure: Figure, name: str, kind: str, file: BinaryIO) -> None:
    # Without salt and date the same figure would be another file every time.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
