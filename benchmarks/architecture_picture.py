"""Draws docs/images/architecture.svg: the rooms, one row a level, as tests/test_architecture.py has them.

Run it after a room was added: `python benchmarks/architecture_picture.py`.
"""

import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from test_architecture import BELOW  # noqa: E402

OUT = HERE.parent / "docs" / "images" / "architecture.svg"
WHAT = {
    "apps": "command line, training, experiments, demo, denoising, bench, data",
    "estimators": "scikit-learn",
    "io": "checkpoints, g2o",
    "show": "drawings, plots, pages",
    "learner": "posterior to prior, history, prediction, merging",
    "network": "layers put together, laid out for a batch",
    "kernels": "cpu: visits in C++, registered",
    "layers": "one factor kind a file",
    "engine": "visits, update, loop, guard, result",
    "kernels.registry": "the door to kernels",
    "graph": "variables, factors, evidence; as arrays",
    "factors": "h, and Jacobians as operators",
    "kernels.forms": "what kernels fit",
    "edges": "who is connected with whom",
    "core": "Gaussian, linalg, noise, files",
}
HEIGHT, GAP, MARGIN, TOTAL = 46, 20, 12, 760


def levels() -> list[list[str]]:
    """Rooms by the longest way down from them: those of a level do not depend on each other."""

    def depth(room: str) -> int:
        return 1 + max((depth(below) for below in BELOW.get(room, ()) if below in BELOW), default=-1)

    rows: dict[int, list[str]] = {}
    for room in BELOW:
        rows.setdefault(depth(room), []).append(room)
    return [rows[d] for d in sorted(rows, reverse=True)]


def main() -> None:
    rows = levels()
    assert {room for row in rows for room in row} == set(WHAT), "a room has no description"
    parts, y = [], MARGIN
    for row in rows:
        width = (TOTAL - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        for i, room in enumerate(row):
            x = MARGIN + i * (width + GAP)
            parts.append(f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{HEIGHT}" rx="6"/>')
            middle = x + width / 2
            parts.append(f'<text x="{middle:.0f}" y="{y + 19}" class="name">{escape(room)}</text>')
            parts.append(f'<text x="{middle:.0f}" y="{y + 36}">{escape(WHAT[room])}</text>')
        y += HEIGHT
        if row is not rows[-1]:
            parts.append(f'<path d="M{TOTAL / 2:.0f} {y + 2} v{GAP - 8}" marker-end="url(#down)"/>')
            y += GAP
    height = y + MARGIN
    style = (
        "text{font:12px sans-serif;text-anchor:middle;fill:#1b1b1b}.name{font-weight:bold;font-size:14px}"
        "rect{fill:#eaf4fb;stroke:#0072b2;stroke-width:1.5}path{stroke:#5a5a5a;stroke-width:1.5}"
        ".paper{fill:#ffffff;stroke:none}marker path{fill:#5a5a5a;stroke:none}"
        "@media (prefers-color-scheme:dark){text{fill:#e8e8e6}rect{fill:#12303f;stroke:#56b4e9}"
        ".paper{fill:#1a1b1e}path{stroke:#9a9ca1}marker path{fill:#9a9ca1}}"
    )
    OUT.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {TOTAL} {height}" role="img" '
        'aria-label="The rooms of gbplearn, from apps at the top down to core">'
        f"<style>{style}</style>"
        '<defs><marker id="down" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        f'<rect class="paper" width="{TOTAL}" height="{height}"/>{"".join(parts)}</svg>\n'
    )
    print(OUT)


if __name__ == "__main__":
    main()
