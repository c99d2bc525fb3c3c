"""Does depth help? The same layers one, two, ... times, each image learnt from once, all priors left to the library.

    python benchmarks/depth.py digits
    python benchmarks/depth.py mnist --data-dir FOLDER --examples 12800

Read out by messages, parameters fixed at their means; test images (of digits), or 5,000 held-back training images. Adds
a line a network and seed to results/ledger.jsonl, and prints rows of a table.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import gbplearn as gbp
from gbplearn.apps import scores
from gbplearn.apps.data.images import load_images
from gbplearn.apps.learning_curve import in_portions
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.core.progress import progress

LEDGER = Path(__file__).parent.parent / "results" / "ledger.jsonl"
BATCH, HELD_BACK = 50, 5000
UNITS = {"digits": 64, "mnist": 256}
DEPTHS = {("digits", "dense"): (1, 2, 3, 5, 8), ("digits", "conv"): (1, 2, 3, 4),
          ("mnist", "dense"): (1, 2, 3, 4, 6), ("mnist", "conv"): (1, 2, 3, 4, 6)}  # fmt: skip


def network(data: str, kind: str, depth: int) -> gbp.Sequential:
    """So many hidden layers; images are pooled behind the first convolution."""
    if kind == "dense":
        hidden = [gbp.Dense(UNITS[data], "leaky_relu") for _ in range(depth)]
    else:
        convolutions = [gbp.Conv2D(16, kernel=3, padding="same", activation="leaky_relu") for _ in range(depth)]
        hidden = [convolutions[0], gbp.MaxPool2D(2), *convolutions[1:]]
    return gbp.Sequential(*hidden, gbp.Dense(10), gbp.CategoricalObservation())


def images(data: str, seed: int, examples: int | None, folder: Path | None):
    """Those to learn from, in an order that the seed says, and those to test with."""
    found, rng = load_images(data, folder), np.random.default_rng(seed)
    order = rng.permutation(len(found.train_y))
    if data == "digits":
        return found, order[:1400], found.test_x, found.test_y
    found, held = found.centred(), np.sort(order[:HELD_BACK])
    return found, order[HELD_BACK:][:examples], found.train_x[held], found.train_y[held]


def learn(data: str, kind: str, depth: int, seed: int, examples: int | None, folder: Path | None) -> dict[str, float]:
    """One network, one pass."""
    found, order, test_x, test_y = images(data, seed, examples, folder)
    learner, cpu, strained = (
        gbp.Learner(network(data, kind, depth), found.train_x.shape[1:], strained="learn", seed=seed),
        0.0,
        0,
    )
    for i in progress(range(0, len(order), BATCH), f"{data}, {kind} x {depth}, seed {seed}"):
        rows, begin = order[i : i + BATCH], time.process_time()
        report = learner.update(found.train_x[rows], found.train_y[rows])
        cpu, strained = cpu + time.process_time() - begin, strained + (report.status is gbp.Status.STRAINED)
    p = in_portions(learner.predict_proba, test_x)
    return {
        "accuracy": scores.accuracy(p, test_y),
        "negative log likelihood": scores.negative_log_likelihood(p, test_y),
        "refused batches": float(learner.failures),
        "strained batches": float(strained),
        "CPU seconds a batch": cpu / -(-len(order) // BATCH),
    }


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=UNITS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--examples", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kinds", nargs="+", default=["dense", "conv"])
    given = parser.parse_args()
    for kind in given.kinds:
        for depth in DEPTHS[given.data, kind]:
            each = []
            for seed in given.seeds:
                clock = Clock()
                each.append(learn(given.data, kind, depth, seed, given.examples, given.data_dir))
                chosen = {"data": given.data, "kind": kind, "depth": depth, "examples": given.examples, "batch": BATCH}
                read_out = dict.fromkeys(("accuracy", "negative log likelihood"), "messages, parameters fixed")
                append_to_ledger(LEDGER, ledger_line("depth", chosen, seed, each[-1], read_out, clock))
            mean = {name: np.mean([e[name] for e in each]) for name in each[0]}
            cells = f"{mean['accuracy']:.1%} / {mean['negative log likelihood']:.3f}", f"{mean['refused batches']:g}"
            print(f"| {kind} x {depth} | {' | '.join(cells)} | {mean['CPU seconds a batch']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
