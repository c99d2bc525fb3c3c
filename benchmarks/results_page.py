"""Put the results of experiments into the pages of docs that have a place for them, and their figures into docs/images.

    gbplearn experiment NAME; python benchmarks/results_page.py

Takes what `results/NAME/results.json` holds, for every NAME that a page has a place for and that was run.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil

from gbplearn.apps.experiments.catalogue import EXPERIMENTS

ROOT = pathlib.Path(__file__).parent.parent


def markdown(rows) -> str:
    head, *body = ("| " + " | ".join(r) + " |" for r in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def main() -> None:
    def fill(match: re.Match) -> str:
        name = match.group(1)
        if not (ROOT / "results" / name / "results.json").exists():
            return match.group(0)
        results = json.loads((ROOT / "results" / name / "results.json").read_text())
        for drawn in (ROOT / "results" / name).glob(
            f"{results['experiment']}*.png"
        ):  # of an earlier day there are none
            more = drawn.stem.removeprefix(results["experiment"])
            shutil.copy(drawn, ROOT / "docs" / "images" / f"{name}{more}.png")
        told = (
            f"{len(results['settings']['seeds'])} seeds, commit {results['environment']['commit']}, "
            f"{results['seconds']:.0f} s ({results['cpu_seconds']:.0f} CPU s), {results['peak_memory_mb']:.0f} MB"
        )
        table = markdown(EXPERIMENTS[results["experiment"]].rows(results))
        return f"<!-- {name}: from here -->\n{table}\n\n{told}\n<!-- to here -->"

    for page in sorted((ROOT / "docs").glob("**/*.md")):
        text = page.read_text()
        filled = re.sub(r"<!-- ([\w-]+): from here -->.*?<!-- to here -->", fill, text, flags=re.DOTALL)
        if filled != text:
            page.write_text(filled)


if __name__ == "__main__":
    main()
