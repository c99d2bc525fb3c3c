"""Pages as a reader sees them: headless Chromium, phone and desktop, light and dark.

Chromium is installed by `make test` where that is possible (tests/get_browser.sh); elsewhere tests that end with a look
at a page are skipped there, and say so.
"""

import io
import pathlib
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
SCHEMES = ("light", "dark")
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def find_browser():
    """The path of Chromium; None without one."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next(filter(None, found), None)


@contextmanager
def chromium():
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=find_browser(), args=_FLAGS)
        yield browser
        browser.close()


def looks(browser, address):
    """The page at both widths in both lights, each with what the browser complains about and what was asked for."""
    for name, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page, complaints, asked = context.new_page(), [], []
            page.on("console", lambda m, to=complaints: m.type in ("error", "warning") and to.append(m.text))
            page.on("pageerror", lambda error, to=complaints: to.append(str(error)))
            page.on("requestfailed", lambda request, to=complaints: to.append(f"failed: {request.url}"))
            page.on("request", lambda request, to=asked: to.append(request.url))
            page.goto(address)
            page.wait_for_load_state("networkidle")
            assert complaints == [], f"{name}, {scheme}"
            yield name, scheme, page, asked
            context.close()


def check_layout(page):
    """Nothing is wider than the window; text can be told from its ground."""
    width, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= window
    for what in ("body", "h1", "p", "figcaption", "td", "p a[href]", "td a[href]", "nav li a"):
        colours = page.evaluate(
            """what => { const e = document.querySelector(what); if (!e) return null;
            const ground = g => { const c = getComputedStyle(g).backgroundColor;
              return /, 0\\)$|transparent/.test(c) && g.parentElement ? ground(g.parentElement) : c; };
            return [getComputedStyle(e).color, ground(e)]; }""",
            what,
        )
        if colours is not None:
            assert contrast(*colours) >= 4.5, f"{what}: {colours}"  # as accessibility guidelines ask (WCAG, AA)


def contrast(one, other):
    """Ratio of luminances of a colour of CSS, which may be translucent, and its ground, as WCAG defines it."""

    def parts(colour):
        return np.array([float(v) for v in colour[colour.index("(") + 1 : -1].split(",")])

    def luminance(values):
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    ground = parts(other)[:3] / 255
    text = parts(one)
    opaque = text[3] if len(text) > 3 else 1.0
    text = opaque * text[:3] / 255 + (1 - opaque) * ground
    light, dark = sorted((luminance(text), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def brightness(element):
    """The grey level that most of a picture has, 0 to 1: that of its ground."""
    with Image.open(io.BytesIO(element.screenshot())) as image:
        grey = np.asarray(image.convert("L"))
    return float(np.bincount(grey.ravel(), minlength=256).argmax() / 255)


def shows_in_a_browser(path, pictures):
    """A report opens without a complaint or a network, with all its pictures, everywhere."""
    if find_browser() is None:
        pytest.skip("all but the look in a browser was checked: there is no Chromium")
    address = pathlib.Path(path).resolve().as_uri()
    with chromium() as browser:
        for size, scheme, page, asked in looks(browser, address):
            assert all(url.startswith(("file:", "data:")) for url in asked)
            check_layout(page)
            images = page.locator("figure img")
            assert images.count() == pictures
            for image in images.all():
                image.scroll_into_view_if_needed()
                shown = image.evaluate("i => i.complete && i.naturalWidth > 0 && i.getBoundingClientRect().width")
                assert shown > (200 if size == "phone" else 300)
                assert len(image.get_attribute("alt")) > 20
            # The ground of a plot is as dark as the page.
            assert (brightness(images.first) > 0.5) == (scheme == "light") or "denoise" in page.title()
            for link in page.locator("nav a").all():
                assert page.locator(f"h2{link.get_attribute('href')}").count() == 1
