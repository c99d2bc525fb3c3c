"""Writes `report.html`: one file with everything in it, for any browser, also offline.

The page is `template.html`, filled with sections. Pictures are SVG in the page itself, and follow the reader's choice
of light or dark.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..core.files import write_whole

# What matplotlib draws in black on white, and the colours of figures.py that are hard to see on black.
_DARK = {
    "#000000": "#e8e8e6",
    "#ffffff": "#1a1b1e",
    "#262626": "#e8e8e6",
    "#555555": "#b4b4b0",
    "#808080": "#9a9a97",
    "#cccccc": "#55565b",
    "#dcdcdc": "#44454a",
    "#dddddd": "#3a3b3f",
    "#b0b0b0": "#4a4b50",
    "#0072b2": "#56b4e9",
    "#d55e00": "#f0863c",
    "#009e73": "#2cc295",
}

_WIDE = 450.0  # points: narrower pictures fit a phone


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    title: str
    text: str
    table: Sequence[Sequence[str]] = ()  # the first row holds the headings
    pictures: Sequence[tuple[bytes, str]] = ()  # SVG, each with its text for screen readers
    shrink: bool = False  # pictures of things, not plots: they fit into a phone
    details: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # tables that are folded away


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write a page of sections into one self-contained file."""
    template = string.Template(
        resources.files(__name__.rpartition(".")[0]).joinpath("template.html").read_text("utf-8")
    )
    marks = _marks(s.title for s in sections)
    contents = "\n".join(f'<li><a href="#{m}">{html.escape(s.title)}</a></li>' for m, s in zip(marks, sections))
    body = "\n".join(map(_section, marks, sections))
    parts = {"title": html.escape(title), "lead": html.escape(lead), "contents": contents, "body": body}
    text = template.substitute(parts)
    write_whole(path, lambda file: file.write(text.encode("utf-8", "replace")))  # names of files may be anything
    return path


def write_or_say(write: Callable[[], Path]) -> str:
    """A line for the user: which page to open, or why there is none. What a run has found does not depend on it."""
    try:
        return f"Open {write()}"
    except OSError as error:
        return f"there is no report: {error.strerror or error}"


def _marks(titles: Iterable[str]) -> list[str]:
    """Names to link to, each once."""
    out: list[str] = []
    for title in titles:
        name = re.sub(r"\W+", "-", title.lower()).strip("-") or "part"
        out.append(name if name not in out else f"{name}-{len(out)}")
    return out


def _section(mark: str, section: Section) -> str:
    parts = [f'<section aria-labelledby="{mark}">\n<h2 id="{mark}">{html.escape(section.title)}</h2>']
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.table:
        parts.append(_scrolled(table(section.table), section.title))
    for picture, words in section.pictures:
        data, alt = base64.b64encode(in_both_lights(picture)).decode(), html.escape(words)
        large = _width(picture) >= _WIDE
        wide = large and not section.shrink
        style = "wide" if wide else "whole" if large else "small"
        image = f'<img class="{style}" alt="{alt}" src="data:image/svg+xml;base64,{data}">'
        # The words are read out once, as those of the picture.
        caption = f'<figcaption aria-hidden="true">{alt}</figcaption>'
        parts.append(f"<figure>{_scrolled(image, section.title) if wide else image}{caption}</figure>")
    for name, rows in section.details.items():
        flat = [("", "value"), *_flat(rows)]
        parts.append(f"<details><summary>{html.escape(name)}</summary>{_scrolled(table(flat), name)}</details>")
    return "\n".join([*parts, "</section>"])


def _scrolled(inner: str, label: str) -> str:
    """What may be wider than a phone, and is then scrolled; by the keyboard, too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{html.escape(label)}">{inner}</div>'


def _width(svg: bytes) -> float:
    """In points; 0 if the drawing has none."""
    found = re.search(rb'<svg[^>]*\swidth="([0-9.]+)(?:pt)?"', svg)
    return float(found.group(1)) if found else 0.0


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML; the first row holds the headings."""
    head, *body = rows
    cells = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in head)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def in_both_lights(svg: bytes) -> bytes:
    """A figure by matplotlib whose black, white and dull colours change places where the reader prefers dark.

    Colours become variables of CSS, which a browser sets by `prefers-color-scheme`, in pictures too. Other drawings are
    left alone, and so are images in a figure, which are not drawn in colours of style attributes.
    """
    text = svg.decode()
    if "Matplotlib" not in text:
        return svg

    def variable(colour: re.Match[str]) -> str:
        return f"var(--c{colour.group(0)[1:]})" if colour.group(0) in _DARK else colour.group(0)

    text = re.sub(r'style="[^"]*"', lambda style: re.sub("#[0-9a-f]{6}", variable, style.group(0)), text)
    light, dark = ("".join(f"--c{c[1:]}:{d if at_night else c};" for c, d in _DARK.items()) for at_night in (0, 1))
    # Text that is black has no colour of its own.
    style = f":root{{{light}fill:var(--c000000)}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    return re.sub("<svg[^>]*>", lambda tag: f"{tag.group(0)}<style>{style}</style>", text, count=1).encode()


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for name, value in settings.items():
        out += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, str(value))]
    return out
