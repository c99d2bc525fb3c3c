"""Drawings of factor graphs: variables as rounded boxes, factor groups as square ones, as SVG."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..core.files import write_whole
from .placement import Placement, depths, place_boxes

_FONT, _LINE, _PAD, _MARGIN = 13.0, 17.0, 9.0, 14.0
_LONGEST = 32  # characters of a line; the whole name is in the tooltip
_WIDE = 1000.0  # from this width on layers go from left to right, if that is narrower
# Of a notebook, these rules reach the whole page: hence the long names. The paper is painted, for pages whose own
# colours do not follow the reader's.
_CSS = """
.gbp-drawing { max-width: 100%; height: auto; }
.gbp-drawing text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; text-anchor: middle; }
.gbp-drawing text { fill: #1b1b1b; }
.gbp-drawing text.gbp-name { font-weight: bold; }
.gbp-paper { fill: #ffffff; }
.gbp-link { fill: none; stroke: #8a8a8a; stroke-width: 1.5; }
.gbp-no-messages { stroke-dasharray: 3 3; }
.gbp-box { stroke-width: 1.5; }
.gbp-activation { fill: #eaf4fb; stroke: #0072b2; }
.gbp-parameter { fill: #fdeee3; stroke: #d55e00; }
.gbp-observed { fill: #dcdcdc; }
.gbp-held { stroke-dasharray: 5 3; }
.gbp-factor { fill: #3a3a3a; stroke: #3a3a3a; }
.gbp-drawing text.gbp-of-factor { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
.gbp-drawing text { fill: #e8e8e6; }
.gbp-paper { fill: #1a1b1e; }
.gbp-link { stroke: #8f9196; }
.gbp-activation { fill: #12303f; stroke: #56b4e9; }
.gbp-parameter { fill: #43260f; stroke: #f08a4b; }
.gbp-observed { fill: #4a4c51; }
.gbp-factor { fill: #d6d6d3; stroke: #d6d6d3; }
.gbp-drawing text.gbp-of-factor { fill: #1b1b1b; }
}
"""


@dataclasses.dataclass(frozen=True)
class Box:
    """A variable or a factor group of a drawing."""

    name: str
    lines: tuple[str, ...]  # below the name
    style: tuple[str, ...]  # "factor"; or "activation" or "parameter", and perhaps "observed" or "held"

    @property
    def is_factor(self) -> bool:
        """Whether it is a factor group."""
        return self.style == ("factor",)

    @property
    def texts(self) -> tuple[str, ...]:
        """What stands in it, line by line."""
        return tuple(map(_shortened, (self.name, *self.lines)))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height that hold its text in any font."""
        return max(map(text_width, self.texts)) + 2 * _PAD + 4, _LINE * len(self.texts) + 2 * _PAD


@dataclasses.dataclass(frozen=True)
class Link:
    """All edges between a factor group and a variable."""

    variable: int  # numbers of boxes
    factor: int
    edges: int
    observed: bool  # the variable is wholly observed: no messages


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A picture of a factor graph: in a notebook it shows itself, elsewhere `save` it.

    Variables are rounded boxes, those that are observed grey, parameters orange; factor groups are dark and square. A
    line stands for all edges between a group and a variable; it is dashed where the variable is wholly observed: there
    no messages pass, and the edges are not counted.
    """

    title: str
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]

    @property
    def svg(self) -> str:
        """The picture as text."""
        return _svg(self)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        groups = sum(b.is_factor for b in self.boxes)
        return f"Drawing({self.title!r}: {len(self.boxes) - groups} variables, {groups} factor groups)"

    def save(self, path: str | Path) -> None:
        """Write an SVG file, which appears whole or not at all."""
        path = Path(path)
        if path.suffix.lower() != ".svg":
            raise ValueError(f"a drawing is saved as .svg, got '{path.name}'")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.parent}")
        write_whole(path, lambda file: file.write(self.svg.encode()))


def counted(number: int, thing: str) -> str:
    """Such as "1 factor", "1,000 edges"."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _printable(text: str) -> str:
    """Without line breaks and what XML cannot hold."""
    return re.sub(r"[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u2028\u2029]", "\ufffd", text)


def _shortened(text: str) -> str:
    text = _printable(text)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[1 - half :]}"


def text_width(text: str) -> float:
    """Of a line in a monospaced font, rather too much; characters of other scripts count twice."""
    narrow = sum(ord(c) < 0x2100 and unicodedata.east_asian_width(c) not in "WF" for c in text)
    return 0.62 * _FONT * (narrow + 2 * (len(text) - narrow))


def _placed(drawing: Drawing) -> Placement:
    """Parameters of one group stand beside what they are multiplied with; the rest by distance from the first one."""
    boxes = drawing.boxes
    neighbours: list[list[int]] = [[] for _ in boxes]
    for link in drawing.links:
        neighbours[link.variable].append(link.factor)
        neighbours[link.factor].append(link.variable)
    alone = {i for i, b in enumerate(boxes) if "parameter" in b.style and len(neighbours[i]) == 1}
    beside = frozenset(i for i in alone if not alone.issuperset(neighbours[neighbours[i][0]]))
    starts = sorted((i for i, b in enumerate(boxes) if not b.is_factor), key=lambda i: "parameter" in boxes[i].style)
    depth, sizes = depths(neighbours, starts, beside), [b.size for b in boxes]
    down = place_boxes(sizes, neighbours, depth, beside, downwards=True)
    if down.width <= _WIDE:
        return down
    right = place_boxes(sizes, neighbours, depth, beside, downwards=False)
    return right if right.width < down.width else down


def _svg(drawing: Drawing) -> str:
    placement = _placed(drawing)
    width, height = placement.width + 2 * _MARGIN, placement.height + 2 * _MARGIN
    boxes = drawing.boxes
    texts = [f"{b.name}: {', '.join(b.lines)}" for b in boxes]
    kinds = [("Variables", [t for t, b in zip(texts, boxes) if not b.is_factor])]
    kinds += [("Factor groups", [t for t, b in zip(texts, boxes) if b.is_factor])]
    words = " ".join(f"{kind}: {'; '.join(several) or 'none'}." for kind, several in kinds)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="gbp-drawing" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}">',
        f"<title>{_escaped(drawing.title)}</title>",
        f"<desc>{_escaped(words)}</desc>",
        f"<style>{_CSS}</style>",
        f'<rect class="gbp-paper" width="{width:.1f}" height="{height:.1f}" rx="6"/>',
    ]
    for link in drawing.links:
        ends = f"{boxes[link.factor].name} - {boxes[link.variable].name}: {counted(link.edges, 'edge')}"
        tooltip = f"{ends}, no messages" if link.observed else ends
        style = "gbp-link gbp-no-messages" if link.observed else "gbp-link"
        path = _curve(link, placement, boxes)
        parts.append(f'<path class="{style}" d="{path}"><title>{_escaped(tooltip)}</title></path>')
    for box, (x, y), words in zip(boxes, placement.centres, texts):
        parts.append(_box(box, x + _MARGIN, y + _MARGIN, words))
    return "\n".join([*parts, "</svg>\n"])


def _curve(link: Link, placement: Placement, boxes: Sequence[Box]) -> str:
    """From box to box, straight as far as their layers reach, then bent."""
    ends = sorted((link.variable, link.factor), key=lambda i: placement.layers[i])
    axis = 1 if placement.downwards else 0
    (a, out), (b, into) = ((i, placement.layers[i]) for i in ends)
    half = [boxes[i].size[axis] / 2 for i in ends]
    along = (
        placement.centres[a][axis] + half[0],
        out[1],
        (out[1] + into[0]) / 2,
        into[0],
        placement.centres[b][axis] - half[1],
    )
    start, end = placement.centres[a][1 - axis], placement.centres[b][1 - axis]

    def point(along: float, across: float) -> str:
        x, y = (across, along) if placement.downwards else (along, across)
        return f"{x + _MARGIN:.1f} {y + _MARGIN:.1f}"

    bend = f"C{point(along[2], start)} {point(along[2], end)} {point(along[3], end)}"
    return f"M{point(along[0], start)} L{point(along[1], start)} {bend} L{point(along[4], end)}"


def _box(box: Box, x: float, y: float, words: str) -> str:
    width, height = box.size
    style = " ".join(f"gbp-{part}" for part in ("box", *box.style))
    round_corners = "" if box.is_factor else f' rx="{height / 3:.1f}"'
    parts = [
        f"<g><title>{_escaped(words)}</title>",
        f'<rect class="{style}" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}"{round_corners}/>',
    ]
    for i, text in enumerate(box.texts):
        names = [*(["gbp-name"] if i == 0 else []), *(["gbp-of-factor"] if box.is_factor else [])]
        style = f' class="{" ".join(names)}"' if names else ""
        # Letters of a font that nobody foresaw are squeezed into the box.
        exact = "" if text.isascii() or i else f' textLength="{text_width(text):.1f}" lengthAdjust="spacingAndGlyphs"'
        line = y + (i - (len(box.texts) - 1) / 2) * _LINE + 0.35 * _FONT
        parts.append(f'<text{style} x="{x:.1f}" y="{line:.1f}"{exact}>{_escaped(text)}</text>')
    return "".join([*parts, "</g>"])


def _escaped(text: str) -> str:
    return escape(_printable(text))
