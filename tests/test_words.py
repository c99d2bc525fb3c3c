"""One vocabulary: words that were retired stand in no name, docstring or comment of the library, and in no page."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What the paper, GTSAM and Optimistix do not say of messages, variables and iterations.
RETIRED = {
    *("seen", "heard", "told", "said", "look", "looks", "looked", "looking", "news"),
    *("carried", "watching", "watched", "sites", "plain", "answers"),
}
# Users type these: arguments of `Learner.update` and a field of its report.
PUBLIC = {"carried"}
# Pages about the past.
HISTORY = {"decisions.md", "changes.md"}
SOURCES = sorted((ROOT / "src" / "gbplearn").rglob("*.py"))
PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name not in HISTORY)]
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def retired_in(text: str) -> set[str]:
    """The retired words of a name, or of a sentence."""
    return {word.lower() for word in _PARTS.findall(text)} & RETIRED


def names_in(source: str) -> set[str]:
    """All identifiers of a module."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.string for t in tokens if t.type == tokenize.NAME}


def prose_in(source: str) -> list[str]:
    """Docstrings and comments of a module, without code that they quote."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    out = [t.string for t in tokens if t.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            out.append(ast.get_docstring(node) or "")
    return [re.sub(r"```.*?```|`[^`]*`", " ", text, flags=re.S) for text in out]


def prose_of(page: str) -> str:
    """A page without blocks of code, quoted code, addresses of links and pictures, and HTML."""
    page = re.sub(r"```.*?```|<!--.*?-->", " ", page, flags=re.S)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|^:::.*$|<[^>]*>", " ", page, flags=re.M)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src" / "gbplearn")))
def test_no_retired_word_in_a_module(path):
    source = path.read_text()
    names = {name for name in names_in(source) if retired_in(name) - PUBLIC}
    sentences = [text for text in prose_in(source) if retired_in(text)]
    assert (names, sentences, retired_in(path.stem)) == (set(), [], set())


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_retired_word_in_a_page(path):
    lines = [line for line in prose_of(path.read_text()).splitlines() if retired_in(line) - PUBLIC]
    assert lines == []


def test_the_check_finds_words():
    assert retired_in("nothing_seen") == retired_in("Seen") == retired_in("What is seen.") == {"seen"}
    assert retired_in("newsletter explain looked_up") == {"looked"}
    assert prose_in('def f():\n    """Heard, `told`."""\n    x = 1  # said') == ["# said", "", "Heard,  ."]
    assert not retired_in(prose_of("a [b](seen.md) `heard`\n```python\nsaid\n```\n"))
