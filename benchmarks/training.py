"""What a training process takes (memory, the first batch, an iteration): the paper's MNIST network on its own.

    python benchmarks/training.py --data-dir FOLDER --batch 50 --batches 8

Adds a line to results/ledger.jsonl. Times are CPU seconds of the process; the load of the machine is beside them.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np

import gbplearn as gbp
from gbplearn.apps.data.images import load_images
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line, peak_memory_mb
from gbplearn.network.zoo import paper_classifier

LEDGER = Path(__file__).parents[1] / "results" / "ledger.jsonl"


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=50)
    given = parser.parse_args()
    data, clock = load_images("mnist", given.data_dir), Clock()
    learner = gbp.Learner(paper_classifier(), (28, 28, 1), iterations=given.iterations, strained="learn")
    cpu, wall, first = [], [], 0.0
    for i in range(given.batches):
        before = time.process_time(), time.perf_counter()
        rows = slice(i * given.batch, (i + 1) * given.batch)
        report = learner.update(data.train_x[rows], data.train_y[rows])
        cpu.append((time.process_time() - before[0]) / report.iterations)
        wall.append((time.perf_counter() - before[1]) / report.iterations)
        if i == 0:
            first = time.process_time()  # since the process began
    chosen = {"batch": given.batch, "batches": given.batches, "iterations": given.iterations}
    metrics = {
        "first batch, with imports/CPU seconds": round(first, 2),
        "iteration, looks and graph included/CPU ms": round(1e3 * float(np.median(cpu[1:])), 2),
        "iteration, looks and graph included/wall ms": round(1e3 * float(np.median(wall[1:])), 2),
        "peak memory/MB": round(peak_memory_mb() * 1.048576, 1),
        "refused batches": learner.failures,
        "load average": round(os.getloadavg()[0], 2),
    }
    append_to_ledger(LEDGER, ledger_line("mnist-training-process", chosen, 0, metrics, {}, clock))
    print(metrics)


if __name__ == "__main__":
    main()
