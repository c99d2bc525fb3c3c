"""Whether the evidence of a stream ranks class noises as the log loss of other images does.

    python benchmarks/evidence_ranking.py --data-dir FOLDER [--examples 3200]

For each data set and each noise of the class observation: one pass over the first training images, the mean log
evidence of an image before it is learnt (`update(evidence=True)`, without the first ten batches), and the log loss of
the last 5,000 training images, which are held back (`predict_proba` with random parameters, as the evidence has it, and
with parameters fixed at their means). Adds a line for each to results/ledger.jsonl.
"""

import argparse
from pathlib import Path

import numpy as np

import gbplearn as gbp
from gbplearn.apps import scores
from gbplearn.apps.data.images import load_images
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.network.zoo import paper_classifier

LEDGER = Path(__file__).parents[1] / "results" / "ledger.jsonl"
SIGMAS = (0.003, 0.01, 0.03, 0.1, 0.3)
DATA = ("mnist", "fashion-mnist", "cifar10")
BATCH, HELD_BACK, WARM_UP = 50, 5000, 10
READ_OUT = {"log evidence": "messages, random parameters", "log loss": "messages"}


def one(data: str, folder: Path, sigma: float, examples: int) -> dict[str, float]:
    images = load_images(data, folder)
    learner, evidence = (
        gbp.Learner(paper_classifier(class_sigma=sigma), images.train_x.shape[1:], strained="learn", seed=0),
        [],
    )
    for i in range(0, examples, BATCH):
        x, y = images.train_x[i : i + BATCH], images.train_y[i : i + BATCH]
        evidence.append(learner.update(x, y, evidence=True).log_evidence / len(y))
    x, y = np.asarray(images.train_x[-HELD_BACK:]), np.asarray(images.train_y[-HELD_BACK:])
    losses = {}
    for how in ("random", "fixed"):
        parts = [np.asarray(learner.predict_proba(x[i : i + 1000], parameters=how)) for i in range(0, len(x), 1000)]
        losses[how] = scores.negative_log_likelihood(np.concatenate(parts), y)
    return {
        "log evidence": float(np.mean(evidence[WARM_UP:])),
        "log loss/random": losses["random"],
        "log loss/fixed": losses["fixed"],
        "batches not learnt": float(learner.failures),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=3200)
    given = parser.parse_args()
    gbp.cache_programs()
    for data in DATA:
        rows = []
        for sigma in SIGMAS:
            clock = Clock()
            found = one(data, given.data_dir, sigma, given.examples)
            rows.append(found)
            chosen = {"data": data, "sigma": sigma, "examples": given.examples, "batch": BATCH}
            append_to_ledger(LEDGER, ledger_line("evidence-ranking", chosen, 0, found, READ_OUT, clock))
            print(data, sigma, {name: round(value, 4) for name, value in found.items()}, flush=True)
        by_evidence = np.argsort([-r["log evidence"] for r in rows]).tolist()
        for how in ("random", "fixed"):
            by_loss = np.argsort([r[f"log loss/{how}"] for r in rows]).tolist()
            print(f"{data}: by evidence {by_evidence}, by log loss ({how}) {by_loss}", flush=True)


if __name__ == "__main__":
    main()
