"""The picture of a report in the docs: `make demo; python benchmarks/report_picture.py` (needs Chromium)."""

from __future__ import annotations

import io
import pathlib
import shutil

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).parent.parent
LOOKS = {"light": 1000, "dark": 390}  # width of the window
HEIGHT, GAP = 1500, 40


def main() -> None:
    shots = []
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme, width in LOOKS.items():
            page = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme).new_page()
            page.goto((ROOT / "demo" / "report.html").as_uri())
            shots.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        browser.close()
    whole = Image.new("RGB", (sum(s.width for s in shots) + GAP * (len(shots) + 1), HEIGHT + 2 * GAP), "#8a8f98")
    left = GAP
    for shot in shots:
        whole.paste(shot, (left, GAP))
        left += shot.width + GAP
    whole.save(ROOT / "docs" / "images" / "report.png", optimize=True)


if __name__ == "__main__":
    main()
