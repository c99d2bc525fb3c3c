"""Choose the settings of every method of `gbplearn experiment sample-efficiency`, on images that are held back.

    python benchmarks/sample_search.py adam --data-dir FOLDER          400, then 3,200 images, then the best at 12,800
    python benchmarks/sample_search.py --chosen                        what was found, for `sample_settings.py`

Random search: 16 settings at 400 images and 16 at 3,200; the best three of these at 12,800, whose best also learns from
60,000. The linear classifier is tried with 16 penalties at every size, with the best three of 12,800 at the last. Of
settings whose accuracies differ by no more than 0.1 percentage points, half a standard error, the one with the best
likelihood is chosen. Up to 800 images scores are means of three subsets. They are those of 9,000 training images that
no method learns from; subsets have seeds that no result has. Every trial adds a line to results/ledger.jsonl; one that
is there is not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from gbplearn import cache_programs
from gbplearn.apps import scores
from gbplearn.apps.data.images import load_images
from gbplearn.apps.experiments.one_pass import ALL_METHODS, LINEAR, READ_OUT, REPLAY, check_method, learn
from gbplearn.apps.experiments.sample_settings import SEARCHED, SIZES, TRIALS, trials
from gbplearn.apps.learning_curve import in_portions
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line, settings_hash

LEDGER = Path(__file__).parent.parent / "results" / "ledger.jsonl"
HELD_BACK, SPLIT = 9000, 12345
NAME, BEST, EQUAL = "sample-search", 3, 0.001
ALL = 51000  # images that are not held back: stands for 60,000
SUBSETS, FEW = (101, 102, 103), 800  # so few images are drawn three times


def lines() -> list[dict]:
    return [line for line in map(json.loads, LEDGER.read_text().splitlines()) if line["experiment"] == NAME]


def score(line: dict) -> tuple[float, float]:
    """By accuracy, then by likelihood."""
    return line["metrics"]["accuracy"], -line["metrics"]["negative log likelihood"]


def found(method: str, size: int) -> list[dict]:
    """Trials of a method at a size, the best first."""
    here = [n for n in lines() if n["chosen"]["method"] == method and n["chosen"]["images"] == size]
    return sorted(here, key=score, reverse=True)


def choose(tried: list[dict]) -> dict:
    """The likeliest of those that are about as accurate as the first, which is the most accurate."""
    most = tried[0]["metrics"]["accuracy"]
    near = [line for line in tried if line["metrics"]["accuracy"] >= most - EQUAL]
    return min(near, key=lambda line: line["metrics"]["negative log likelihood"])


def same_buffer(method: str, size: int) -> str | None:
    """A smaller buffer that holds all images of this size as well: its trials are this one's."""
    smaller = [name for name, room in REPLAY.items() if room >= size]
    return smaller[0] if method in smaller[1:] else None


def plan(method: str, size: int) -> list[dict]:
    """All trials; at the last size the best of those at the size before."""
    before = {12800: 3200} if method != LINEAR else {ALL: 12800}
    if size not in before:
        return trials(method, size)
    earlier = found(same_buffer(method, before[size]) or method, before[size])
    if len(earlier) < TRIALS:
        raise SystemExit(
            f"{method}: {len(earlier)} of {TRIALS} trials at {before[size]} images are done, do these first"
        )
    return [dict(line["chosen"]["setting"]) for line in earlier[:BEST]]


def search(method: str, size: int, data) -> None:
    images, val, rest = data
    for number, setting in enumerate(plan(method, size)):
        chosen = {"method": method, "images": size, "trial": number, "setting": setting}
        if any(line["settings"] == settings_hash(chosen) for line in lines()):
            continue
        clock, metrics = Clock(), []
        for subset in SUBSETS if size <= FEW else SUBSETS[:1]:
            order = rest[np.random.default_rng(subset).permutation(len(rest))[:size]]
            x, y = images.train_x[order], images.train_y[order]
            ((_, p),) = learn(
                method, setting, x, y, [size], lambda read: in_portions(read, images.train_x[val]), subset
            )
            truth = images.train_y[val]
            metrics.append((scores.accuracy(p, truth), scores.negative_log_likelihood(p, truth)))
        right, likely = np.mean(metrics, 0)
        told = {"accuracy": round(float(right), 5), "negative log likelihood": round(float(likely), 5)}
        line = ledger_line(NAME, chosen, SUBSETS[0], told, {"accuracy": READ_OUT[method]}, clock)
        append_to_ledger(LEDGER, line)
        print(json.dumps({**chosen, **told, "cpu": line["cpu_seconds"]}), flush=True)


def main() -> None:
    cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help=", ".join(ALL_METHODS).replace("%", "%%"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[400, 3200, 12800])
    parser.add_argument("--chosen", action="store_true")
    given = parser.parse_args()
    for method in given.methods:
        check_method(method)
    if given.chosen:
        for method in ALL_METHODS:
            sizes = SIZES if method == LINEAR else SEARCHED
            tried = {n: found(same_buffer(method, n) or method, min(n, ALL)) for n in sizes}
            print(f"    {method!r}: { ({n: choose(t)['chosen']['setting'] for n, t in tried.items() if t}) },")
        print(f"{sum(line['cpu_seconds'] for line in lines()) / 3600:.2f} CPU hours, {len(lines())} trials")
        return
    images = load_images("mnist", given.data_dir).centred()
    split = np.random.default_rng(SPLIT).permutation(len(images.train_y))
    for method in given.methods:
        for size in (*SIZES[:-1], ALL) if method == LINEAR else given.sizes:
            if same_buffer(method, size) is None:
                search(method, size, (images, split[:HELD_BACK], split[HELD_BACK:]))


if __name__ == "__main__":
    main()
