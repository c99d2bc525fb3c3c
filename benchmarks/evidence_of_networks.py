"""Whether the evidence of a stream ranks class likelihoods, prior scales and families of beliefs as held-out images do.

    python benchmarks/evidence_of_networks.py digits fashion-mnist cifar10 --data-dir FOLDER [--examples 3200]

For each data set and candidate: one pass over the first training images, the mean log evidence of an image before it is
learnt (`update(evidence=True)`, without the first fifth of the batches, and of the last half of them), and the log loss
of training images that are held back (by messages, parameters random, as the evidence has it). Adds a line for each to
results/ledger.jsonl.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

import gbplearn as gbp
from gbplearn.apps import scores
from gbplearn.apps.data.images import load_images
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.network import zoo

LEDGER = Path(__file__).parents[1] / "results" / "ledger.jsonl"
BATCH, HELD_BACK = 50, 5000
READ_OUT = dict.fromkeys(("log evidence", "log evidence, last half", "log loss"), "messages, random parameters")


def candidates(data: str) -> dict[str, gbp.Sequential]:
    """What differs from the vector classifier for these images, one thing at a time."""
    usual = zoo.digits_vector_classifier() if data == "digits" else zoo.vector_classifier()
    first, pool, head, classes = usual.layers

    def of(**changes) -> gbp.Sequential:
        return gbp.Sequential(first, pool, dataclasses.replace(head, **changes), classes)

    scalars = [dataclasses.replace(first, posterior="diagonal")]
    scalars.append(dataclasses.replace(head, posterior="diagonal", length_scale=None))
    return {
        "as it is": usual,
        "weights of the head / 5": of(weight_prior=head.weight_prior / 5),
        "weights of the head x 5": of(weight_prior=head.weight_prior * 5),
        "independent weights of the head": of(length_scale=None),
        "scalar beliefs": gbp.Sequential(scalars[0], pool, scalars[1], classes),
        "published": zoo.digits_classifier() if data == "digits" else zoo.paper_classifier(logit_prior=5.0),
    }


def one(net: gbp.Sequential, images, examples: int) -> dict[str, float]:
    learner, evidence = gbp.Learner(net, images.train_x.shape[1:], strained="learn", seed=0), []
    for i in range(0, examples, BATCH):
        x, y = images.train_x[i : i + BATCH], images.train_y[i : i + BATCH]
        evidence.append(learner.update(x, y, evidence=True).log_evidence / len(y))
    held = slice(max(examples, len(images.train_y) - HELD_BACK), None)
    x, y = np.asarray(images.train_x[held]), np.asarray(images.train_y[held])
    parts = [np.asarray(learner.predict_proba(x[i : i + 500], parameters="random")) for i in range(0, len(x), 500)]
    return {
        "log evidence": float(np.mean(evidence[len(evidence) // 5 :])),
        "log evidence, last half": float(np.mean(evidence[len(evidence) // 2 :])),
        "log loss": scores.negative_log_likelihood(np.concatenate(parts), y),
        "accuracy": scores.accuracy(np.concatenate(parts), y),
        "batches not learnt": float(learner.failures),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int, default=3200)
    given = parser.parse_args()
    gbp.cache_programs()
    for data in given.data:
        images = load_images(data, given.data_dir).centred()
        examples, rows = 1000 if data == "digits" else given.examples, []
        for name, net in candidates(data).items():
            clock = Clock()
            rows.append(one(net, images, examples))
            chosen = {"data": data, "candidate": name, "examples": examples, "batch": BATCH}
            append_to_ledger(LEDGER, ledger_line("evidence-of-networks", chosen, 0, rows[-1], READ_OUT, clock))
            print(data, name, {n: round(value, 4) for n, value in rows[-1].items()}, flush=True)
        for name in ("log evidence", "log evidence, last half"):
            ranks = spearmanr([r[name] for r in rows], [-r["log loss"] for r in rows])
            print(f"{data}: rank correlation of the {name} {ranks.statistic:.2f}", flush=True)


if __name__ == "__main__":
    main()
