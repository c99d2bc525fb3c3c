"""The documentation site: built strictly, all of it reachable, and looked at in a browser."""

import functools
import http.server
import pathlib
import re
import subprocess
import sys
import threading

import pytest

import gbplearn as gbp
from browser import brightness, check_layout, chromium, find_browser, looks

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Its folder. In a process of its own: plugins warn where they like."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built_and_has_its_pictures(site):
    for page in DOCS.glob("**/*.md"):
        built = site / page.relative_to(DOCS).with_suffix(".html")
        text = built.read_text()
        for source in re.findall(r'<img[^>]* src="([^"]+)"', text):
            assert (built.parent / source).exists(), f"{built.name}: {source}"
        for image in re.findall(r"<img[^>]*>", text):
            assert len(re.search(r' alt="([^"]*)"', image)[1]) > 10


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.glob("**/*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe)[^>]*>", page.read_text()):
            if 'rel="canonical"' not in tag:
                assert not re.search(r'(?:src|href)="https?://', tag), f"{page.name}: {tag}"


def test_every_public_name_has_its_place_in_the_reference(site):
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    for name in gbp.__all__:
        home = "gbplearn" if name == "native" else getattr(gbp, name).__module__
        assert f'id="{home}.{name}"' in text, name


def test_every_picture_is_shown_somewhere():
    pages = "".join(p.read_text() for p in [ROOT / "README.md", *DOCS.glob("**/*.md")])
    for picture in (DOCS / "images").iterdir():
        assert f"images/{picture.stem}." in pages, picture.name


def test_every_example_has_its_picture_in_the_docs():
    text = (DOCS / "examples.md").read_text()
    for script in (ROOT / "examples").glob("*.py"):
        assert f"(../examples/{script.name})" in text
        assert f"(images/{script.stem}.png)" in text


@pytest.mark.skipif(find_browser() is None, reason="there is no Chromium to look at the site with")
def test_pages_are_shown_in_a_browser(site):
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        for name in ("index.html", "concepts/variances.html", "api/graphs.html"):
            for size, scheme, page, asked in looks(browser, f"{address}/{name}"):
                assert all(url.startswith((address, "data:")) for url in asked)
                check_layout(page)
                assert (brightness(page) > 0.5) == (scheme == "light"), (name, size)
                for image in page.locator("article img").all():
                    image.scroll_into_view_if_needed()
                    assert image.evaluate("i => i.complete && i.naturalWidth > 0")
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""
