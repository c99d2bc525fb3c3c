"""What all figures share. No pyplot: nothing global, no display needed."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import matplotlib
from matplotlib.figure import Figure

from ..files import write_whole

# Told apart by the colour-blind too.
BLUE, ORANGE, GREEN, GREY, PALE = "#0072b2", "#d55e00", "#009e73", "#555555", "#dcdcdc"


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG.

    **Returns:** the paths.
    """
    paths = []
    for kind in ("png", "svg"):

        def write(file: BinaryIO, kind: str = kind) -> None:
            # Without salt and date the same figure would be another file every time.
            with matplotlib.rc_context({"svg.hashsalt": name}):
                figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)

        paths.append(folder / f"{name}.{kind}")
        write_whole(paths[-1], write)
    return paths
