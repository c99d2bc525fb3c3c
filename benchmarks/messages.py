"""MNIST's first 3,200 images by the paper's model: how messages are kept, and how many iterations a batch needs.

    python benchmarks/messages.py run --data-dir FOLDER --messages pooled --seed 0 --iterations 50
    python benchmarks/messages.py table          # fills docs/concepts/messages.md from the ledger

Every run adds a line to results/ledger.jsonl: accuracy on all 10,000 test images after 50, 100, 200, 400, ... images.
"""

import argparse
import dataclasses
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.apps.data.images import load_images
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line, summary
from gbplearn.engine import visit
from gbplearn.network.zoo import paper_classifier

ROOT = Path(__file__).parents[1]
LEDGER, PAGE = ROOT / "results" / "ledger.jsonl", ROOT / "docs" / "concepts" / "messages.md"
NAME = "mnist-first-images"
MODES = ("pooled", "without the term", "per-edge")
BATCH = 50
SIZES = (50, 100, 200, 400, 800, 1600, 3200)
BY_MESSAGES = (50, 400, 3200)


@dataclasses.dataclass(frozen=True)
class Settings:
    messages: str = "pooled"
    images: int = 3200
    order: str = "shuffled"  # by the seed, or as in the "file"
    iterations: int = 50
    parameter_damping: float = 0.95
    activation_damping: float = 0.5


def leave_out_the_reaction() -> None:
    """What pooled messages would be without the term. (It is no option: nobody should want it.)"""
    mix = visit._mix_pooled

    def without(old, new, weight):
        mixed = mix(old, new, weight)
        return dataclasses.replace(mixed, reaction=jax.tree.map(jnp.zeros_like, mixed.reaction))

    visit._mix_pooled = without


def run(settings: Settings, seed: int, data_dir: Path) -> dict:
    data = load_images("mnist", data_dir)
    if settings.messages == "without the term":
        leave_out_the_reaction()
    mode = "per-edge" if settings.messages == "per-edge" else "pooled"
    damping = gbp.Damping(settings.parameter_damping, settings.activation_damping)
    net = paper_classifier()
    learner = gbp.Learner(
        net, (28, 28, 1), iterations=settings.iterations, damping=damping, messages=mode, strained="learn", seed=seed
    )
    order = np.arange(3200)
    if settings.order == "shuffled":
        order = np.random.default_rng(seed).permutation(order)
    forward = jax.jit(lambda x, p: net.forward(x, p)["dense"])
    metrics, clock = {}, Clock()
    for start in range(0, settings.images, BATCH):
        rows = order[start : start + BATCH]
        report = learner.update(data.train_x[rows], data.train_y[rows])
        seen = start + BATCH
        if seen not in SIZES:
            continue
        means = {n: g.mean for n, g in learner.posterior.items()}
        logits = [forward(data.test_x[i : i + 1000], means) for i in range(0, len(data.test_y), 1000)]
        right = np.concatenate(logits).argmax(1) == data.test_y
        metrics[f"accuracy {seen}/forward"] = float(right.mean())
        if seen in BY_MESSAGES and mode == "pooled":
            by_messages = np.asarray(learner.predict(np.asarray(data.test_x)).mean).argmax(1) == data.test_y
            metrics[f"accuracy {seen}/fixed"] = float(by_messages.mean())
        print(f"{seen}: {metrics[f'accuracy {seen}/forward']:.4f} {report.message}, {clock.read()}", flush=True)
    metrics["failed batches"] = float(learner.failures)
    read_out = {"fixed": "GBP, parameters fixed at their means", "forward": "a forward pass, no messages"}
    return ledger_line(NAME, dataclasses.asdict(settings), seed, metrics, read_out, clock)


def tables() -> str:
    """Of every setting in the ledger: accuracy over the seeds, the last run of each seed."""
    lines = [json.loads(line) for line in LEDGER.read_text().splitlines()]
    last = {(x["settings"], x["seed"]): x for x in lines if x["experiment"] == NAME}
    found = {}
    for (key, _), line in last.items():
        found.setdefault(key, []).append(line)
    sizes = [str(n) for n in SIZES]
    out = ["| messages | iterations | order | seeds | read out | " + " | ".join(sizes) + " |", "|---" * 12 + "|"]
    ranked = sorted(
        found.values(), key=lambda runs: [runs[0]["chosen"][k] for k in ("order", "iterations", "messages")]
    )
    for runs, how in itertools.product(ranked, ("forward", "fixed")):
        chosen, cells = runs[0]["chosen"], []
        for n in SIZES:
            values = [r["metrics"].get(f"accuracy {n}/{how}") for r in runs]
            values = [100 * v for v in values if v is not None]
            s = summary(values) if values else None
            error = "" if s is None or s["standard_error"] is None else f" ± {s['standard_error']:.2f}"
            cells.append("" if s is None else f"{s['mean']:.2f}{error}")
        if not any(cells):
            continue
        read = "forward pass" if how == "forward" else "messages"
        out.append(
            f"| {chosen['messages']} | {chosen['iterations']} | {chosen['order']} | {len(runs)} | {read} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(out)


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("table")
    one = commands.add_parser("run")
    one.add_argument("--data-dir", type=Path, required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--messages", choices=MODES, default="pooled")
    one.add_argument("--order", choices=("shuffled", "file"), default="shuffled")
    one.add_argument("--iterations", type=int, default=50)
    one.add_argument("--images", type=int, default=3200)
    given = parser.parse_args()
    if given.command == "run":
        settings = Settings(given.messages, given.images, given.order, given.iterations)
        append_to_ledger(LEDGER, run(settings, given.seed, given.data_dir))
        return
    text = PAGE.read_text()
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    head, rest = text.split(begin)
    PAGE.write_text(head + begin + tables() + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
