"""One pass over all training images of MNIST: by messages, and by Adam on the same network, in one process.

    python benchmarks/one_pass.py --data-dir FOLDER --seeds 0 1 2 [--graph vector]

Each seed shuffles the images; each image is seen once, in batches of 50. Both are timed in CPU seconds of the process,
data included, compiling not (it is reported beside). The network is the paper's, with scalar beliefs, or the one with
vector beliefs and activations. Adds a line a seed to results/ledger.jsonl, and writes one_pass.json, or
one_pass_vector.json.
"""

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.apps.baselines.adam_steps import WAYS, first_moments, first_values, make_steps
from gbplearn.apps.data.images import load_images
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.core.progress import progress
from gbplearn.network.zoo import paper_classifier, vector_classifier

HERE = Path(__file__).parent
LEDGER = HERE.parent / "results" / "ledger.jsonl"
BATCH = 50
NETWORKS = {"scalar": paper_classifier, "vector": vector_classifier}
FILES = {"scalar": "one_pass.json", "vector": "one_pass_vector.json"}


def accuracy(logits: np.ndarray, y: np.ndarray) -> float:
    return float((np.asarray(logits).argmax(1) == y).mean())


def by_messages(graph: str, data, order: np.ndarray, seed: int) -> dict:
    learner = gbp.Learner(NETWORKS[graph](), (28, 28, 1), strained="learn", seed=seed)
    compiling = time.process_time()
    warm = gbp.Learner(NETWORKS[graph](), (28, 28, 1), strained="learn", seed=seed)
    warm.update(data.train_x[:BATCH], data.train_y[:BATCH])
    compiling = time.process_time() - compiling
    cpu, wall, counts = time.process_time(), time.perf_counter(), []
    for i in progress(range(0, len(order), BATCH), f"messages, seed {seed}"):
        rows = order[i : i + BATCH]
        counts.append(learner.update(data.train_x[rows], data.train_y[rows]).iterations)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    parts = [data.test_x[i : i + 1000] for i in range(0, len(data.test_y), 1000)]
    by_messages = np.concatenate([learner.predict(x).mean for x in parts])
    forward = np.concatenate([learner.forward(x) for x in parts])
    return {
        "accuracy by messages": accuracy(by_messages, data.test_y),
        "accuracy by a forward pass": accuracy(forward, data.test_y),
        "CPU seconds": cpu,
        "wall seconds": wall,
        "CPU seconds of the first batch, compiling": compiling,
        "iterations a batch": float(np.mean(counts)),
        "refused batches": learner.failures,
    }


def by_adam(data, order: np.ndarray, seed: int, way: str) -> dict:
    steps, values = make_steps(way), first_values((28, 28, 1), seed)
    moments = first_moments(values)
    jax.block_until_ready(steps.step(values, moments, jnp.asarray(data.train_x[:BATCH]), data.train_y[:BATCH]))
    cpu, wall = time.process_time(), time.perf_counter()
    for i in range(0, len(order), BATCH):
        rows = order[i : i + BATCH]
        values, moments = steps.step(values, moments, jnp.asarray(data.train_x[rows]), jnp.asarray(data.train_y[rows]))
        jax.block_until_ready(values)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    logits = np.concatenate([steps.logits(values, data.test_x[i : i + 1000]) for i in range(0, len(data.test_y), 1000)])
    return {"accuracy": accuracy(logits, data.test_y), "CPU seconds": cpu, "wall seconds": wall}


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--examples", type=int, default=None)
    parser.add_argument("--graph", choices=NETWORKS, default="scalar")
    given = parser.parse_args()
    data, report = load_images("mnist", given.data_dir), []
    for seed in given.seeds:
        clock, order = Clock(), np.random.default_rng(seed).permutation(len(data.train_y))[: given.examples]
        adam = {way: by_adam(data, order, seed, way) for way in WAYS}
        fastest = min(adam, key=lambda way: adam[way]["CPU seconds"])
        found = by_messages(given.graph, data, order, seed)
        metrics = {
            **found,
            **{f"Adam/{name}": value for name, value in adam[fastest].items()},
            "ratio of CPU seconds": found["CPU seconds"] / adam[fastest]["CPU seconds"],
            "load average": os.getloadavg()[0],
        }
        metrics = {name: round(value, 4) for name, value in metrics.items()}
        chosen = {
            "examples": len(order),
            "graph": given.graph,
            "batch": BATCH,
            "Adam": fastest,
            "rate": 1e-3,
            "kernels": gbp.native.available(),
        }
        read_out = {"accuracy by messages": "GBP, parameters fixed at their means", "Adam/accuracy": "forward pass"}
        append_to_ledger(LEDGER, ledger_line("mnist-one-pass", chosen, seed, metrics, read_out, clock))
        report.append({"seed": seed, **chosen, **metrics})
        print(json.dumps(report[-1], indent=1), flush=True)
    if given.examples is None:
        (HERE / FILES[given.graph]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
