"""The code blocks of the README and the docs: where they are, and how they are run."""

import contextlib
import io
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def blocks(page):
    """Of Python, in their order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def pictures(page):
    """Names of the pictures that a page shows and makes itself: those that begin with `tutorial-`."""
    return re.findall(r"!\[[^]]*\]\([^)]*?(tutorial-[\w.-]+)\)", page.read_text())


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def near(expected, printed):
    """Whether two lines are the same, but for numbers that differ by one in their last digit."""
    if NUMBER.split(expected) != NUMBER.split(printed):
        return False
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(printed))
    digits = [(len(a.partition(".")[2]), len(b.partition(".")[2]), a, b) for a, b in pairs]
    return all(m == n and abs(float(a) - float(b)) <= 1.001 * 10.0**-m for m, n, a, b in digits)


def same(expected, printed):
    """Whether two lines are the same, to the letter."""
    return expected == printed


def run(page, agree=same):
    """Run the blocks of a page one after the other, in the working folder; returns the names that they defined.

    What a block says that it prints, in comments `# -> ...`, it must print: these lines, in this order.
    `agree` compares two lines.
    """
    names = {}
    for number, block in enumerate(blocks(page)):
        where = f"{page.name}, block {number + 1}"
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(block, where, "exec"), names)
        finally:
            print(out.getvalue(), end="")
        printed = iter(out.getvalue().splitlines())
        for line in re.findall(r"# -> (.*)$", block, re.MULTILINE):
            there = any(agree(line, found) for found in printed)
            assert there, f"{where}: '{line}' is not printed there, but:\n{out.getvalue()}"
    return names
