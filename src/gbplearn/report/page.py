"""`report.html`: one file with everything in it, for any browser, without a network."""

from __future__ import annotations

import base64
import dataclasses
import html
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import write_whole

_PAGE = string.Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fdfdfc; --line: #d9d9d6; --soft: #666; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e6; --paper: #1a1b1e; --line: #3a3b3f; --soft: #a3a3a0; } }
body { color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif; max-width: 58rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p.lead { color: var(--soft); }
figure { margin: 1rem 0; } figure img { width: 100%; background: white; border-radius: 6px; }
figcaption { color: var(--soft); font-size: .9rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; } th, td { text-align: left; padding: .3rem 1rem .3rem 0;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; vertical-align: top; }
details { margin: 1rem 0; } summary { cursor: pointer; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="lead">$lead</p>
$body
</body>
</html>
"""
)


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    title: str
    text: str
    table: Sequence[Sequence[str]] = ()  # the first row holds the headings
    pictures: Sequence[tuple[Path, str]] = ()  # SVG files, each with the words for who cannot see it
    details: dict[str, Any] = dataclasses.field(default_factory=dict)  # settings and the like, folded away


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    """Write a page of sections into one self-contained file."""
    body = "\n".join(map(_section, sections))
    text = _PAGE.substitute(title=html.escape(title), lead=html.escape(lead), body=body)
    write_whole(path, lambda file: file.write(text.encode()))
    return path


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.table:
        parts.append(f'<div class="wide">{table(section.table)}</div>')
    for picture, words in section.pictures:
        data = base64.b64encode(picture.read_bytes()).decode()
        alt = html.escape(words)
        parts.append(
            f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}"><figcaption>{alt}</figcaption></figure>'
        )
    if section.details:
        rows = [("setting", "value"), *_flat(section.details)]
        parts.append(f'<details><summary>Settings</summary><div class="wide">{table(rows)}</div></details>')
    return "\n".join([*parts, "</section>"])


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML; the first row holds the headings."""
    head, *body = rows
    cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for name, value in settings.items():
        out += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, str(value))]
    return out
