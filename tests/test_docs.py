"""Every Python code block of the README and the docs runs, in order, page by page."""

import re

import pytest

import gbplearn as gbp
import pages
from gbplearn.kernels.cpu.library import KernelState
from pages import PAGES, ROOT, TUTORIALS

# The pages print what the kernels for AVX2 compute. Other builds, and XLA, round otherwise: there a number may differ
# by one in its last digit.
AGREE = pages.same if gbp.native.status().state is KernelState.WIDE else pages.near


def test_there_are_blocks_to_run():
    assert len(pages.blocks(ROOT / "README.md")) >= 1


@pytest.mark.parametrize("page", [p for p in PAGES if pages.blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = pages.run(page, AGREE)
    assert names["gbp"].__name__ == "gbplearn"  # they did run; what they claim they assert themselves
    for name in pages.pictures(page):  # benchmarks/tutorial_pictures.py takes them from here
        assert (tmp_path / name).exists(), f"{page.name} shows {name}, which its code does not make"


def test_what_a_block_says_that_it_prints_it_prints(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)  # -> 2\nprint('a\\nb')\n# -> a\n# -> b\n```\n")
    pages.run(page)
    page.write_text("```python\nprint(1 + 1)  # -> 3\n```\n")
    with pytest.raises(AssertionError, match="'3' is not printed"):
        pages.run(page)
    pages.run(page, pages.near)
    page.write_text("```python\nprint(1 + 1)  # -> 4\n```\n")
    with pytest.raises(AssertionError, match="'4' is not printed"):
        pages.run(page, pages.near)


def test_every_tutorial_shows_a_picture_of_its_own():
    for page in TUTORIALS:
        assert pages.pictures(page), f"{page.name} shows none"


def test_links_within_the_repository_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
