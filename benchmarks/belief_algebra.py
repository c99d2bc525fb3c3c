"""How far merged and forgotten posteriors are from those of one learner: the figures of docs/guides/learner.md.

    python benchmarks/belief_algebra.py [SEEDS]     # a line a seed in results/ledger.jsonl

Merge: two halves of MNIST's first 6,000 images learnt apart from one prior. Forget: the tenth of 20 batches of digits,
with what it said divided away, and with the later batches learnt again; beside it, what reversing the examples within
every batch does, which says the same to a learner. (Other networks, and every batch: benchmarks/forgetting.py.)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import gbplearn as gbp
from gbplearn.apps.data.images import load_images
from gbplearn.apps.experiments.digits import digits_stream
from gbplearn.apps.experiments.experiment import READ_OUT
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.apps.scores import accuracy
from gbplearn.network.zoo import digits_classifier, paper_classifier

SETTINGS = {"images": 6000, "batch": 50, "batches": 20, "forgotten": 9}


def merged(seed: int) -> dict[str, float]:
    images = load_images("mnist").centred()
    x, y = images.train_x[: SETTINGS["images"]], images.train_y[: SETTINGS["images"]]
    batches = [(x[i : i + 50], y[i : i + 50]) for i in range(0, len(x), SETTINGS["batch"])]

    def learnt(part):
        return gbp.Learner(paper_classifier(), x.shape[1:], strained="learn", seed=seed).fit(part)

    halves = [learnt(batches[:60]), learnt(batches[60:])]
    models = {"half": halves[0], "other half": halves[1], "merged": gbp.merge(halves), "all": learnt(batches)}
    return {
        f"accuracy, {name}/forward": accuracy(np.asarray(model.forward(images.test_x)), images.test_y)
        for name, model in models.items()
    }


def forgotten(seed: int) -> dict[str, float]:
    stream, gone = digits_stream(seed, SETTINGS["batch"], SETTINGS["batches"]), SETTINGS["forgotten"]
    batches = [(stream.x[b], stream.y[b]) for b in stream.batches]

    def learnt(part):
        return gbp.Learner(digits_classifier(), stream.x.shape[1:], record=True, strained="learn", seed=seed).fit(part)

    never = learnt(batches[:gone] + batches[gone + 1 :])
    seen, divided, again = learnt(batches), learnt(batches), learnt(batches)
    turned = learnt([(x[::-1], y[::-1]) for x, y in batches])
    divided.forget(gone)
    again.forget(gone, again=batches[gone + 1 :])
    pairs = {
        "before": (never, seen),
        "divided": (never, divided),
        "later learnt again": (never, again),
        "examples reversed": (seen, turned),
    }
    return {f"KL in nats, {n}": sum(a.posterior.diff(b.posterior).values()) for n, (a, b) in pairs.items()}


def main() -> None:
    gbp.cache_programs()
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        clock = Clock()
        metrics = {**forgotten(seed), **merged(seed)}
        line = ledger_line("belief-algebra", SETTINGS, seed, metrics, {"forward": READ_OUT["forward"]}, clock, None)
        append_to_ledger(Path("results/ledger.jsonl"), line)
        print(seed, {name: round(value, 4) for name, value in metrics.items()}, flush=True)


if __name__ == "__main__":
    main()
