"""How many iterations a batch needs: test accuracy on the first 1,600 MNIST images, for fixed and adaptive rules.

    python benchmarks/iterations.py --data-dir FOLDER

Fixed rules make so many iterations a batch at the paper's damping (0.95 of parameters, effectively); adaptive ones are
the learner's own: they stop when the parameters have settled to a tolerance, and choose the damping. Three seeds, read
out by messages. Adds a line a run to results/ledger.jsonl, writes iterations.json and docs/images/few-iterations.png.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import gbplearn as gbp
from gbplearn.apps.data.images import load_images
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.learner import learning
from gbplearn.network.zoo import paper_classifier

HERE = Path(__file__).parent
LEDGER = HERE.parent / "results" / "ledger.jsonl"
IMAGES = HERE.parent / "docs" / "images"
EXAMPLES, BATCH, SEEDS = 1600, 50, (0, 1, 2)
FIXED = (10, 20, 50, 100, 500)
ADAPTIVE = (0.2, 0.1, 0.05, 0.03)


def run(data, seed: int, **how) -> tuple[float, float]:
    """Accuracy, and iterations a batch."""
    learner = gbp.Learner(paper_classifier(), (28, 28, 1), strained="learn", seed=seed, **how)
    order, count = np.random.default_rng(seed).permutation(len(data.train_y))[:EXAMPLES], 0
    for i in range(0, EXAMPLES, BATCH):
        rows = order[i : i + BATCH]
        count += learner.update(data.train_x[rows], data.train_y[rows]).iterations
    logits = np.asarray(learner.predict(np.asarray(data.test_x)).mean)
    return float((logits.argmax(1) == data.test_y).mean()), count / (EXAMPLES // BATCH)


def rules() -> dict[str, dict]:
    out = {f"fixed {n}": {"iterations": n, "tolerance": 1e-3, "damping": gbp.Damping(0.95, 0.5)} for n in FIXED}
    return out | {f"settled to {s}": {"settled": s} for s in ADAPTIVE}


def figure(report: dict) -> None:
    from matplotlib.figure import Figure

    from gbplearn.show.figures import BLUE, ORANGE, save_figure

    picture = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = picture.add_subplot()
    for kind, colour, label in (
        ("fixed", ORANGE, "fixed number, damping 0.95"),
        ("settled", BLUE, "until the parameters have settled, automatic damping"),
    ):
        rows = [r for name, r in report.items() if name.startswith(kind)]
        x, y = ([np.mean([run[q] for run in r]) for r in rows] for q in ("iterations", "accuracy"))
        error = [np.std([run["accuracy"] for run in r], ddof=1) / np.sqrt(len(r)) for r in rows]
        order = np.argsort(x)
        axes.errorbar(
            *(np.asarray(v)[order] for v in (x, 100 * np.asarray(y), 100 * np.asarray(error))),
            color=colour, marker="o", capsize=3, label=label,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks([5, 10, 20, 50, 100, 200, 500], ["5", "10", "20", "50", "100", "200", "500"])
    axes.set_xlabel("iterations a batch (mean)")
    axes.set_ylabel("test accuracy after 1,600 images, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    save_figure(picture, IMAGES, "few-iterations")


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    given = parser.parse_args()
    data, report = load_images("mnist", given.data_dir), {}
    for name, how in rules().items():
        report[name] = []
        for seed in SEEDS:
            clock, options = Clock(), dict(how)
            learning.SETTLED = options.pop("settled", learning.SETTLED)
            accuracy, iterations = run(data, seed, **options)
            metrics = {"accuracy": accuracy, "iterations": iterations}
            report[name].append(metrics)
            chosen = {"rule": name, "examples": EXAMPLES, "batch": BATCH}
            read_out = {"accuracy": "GBP, parameters fixed at their means"}
            append_to_ledger(LEDGER, ledger_line("mnist-iterations", chosen, seed, metrics, read_out, clock))
        print(name, [(f"{r['accuracy']:.2%}", round(r["iterations"], 1)) for r in report[name]], flush=True)
    (HERE / "iterations.json").write_text(json.dumps(report, indent=1) + "\n")
    figure(report)


if __name__ == "__main__":
    main()
