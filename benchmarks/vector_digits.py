"""Families of beliefs on the 8 x 8 digits: one pass over 1,400 images in batches of 50, read out by messages.

    python benchmarks/vector_digits.py     # prints the table of docs/results.md, "Vector beliefs"

Means over three orders of the images; accuracy, NLL and calibration error (15 bins) of the 360 images that are left.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_digits

import gbplearn as gbp

SEEDS = range(3)
# Of filters, of the last layer, its prior, the head.
ROWS = (
    ("diagonal", "diagonal", 0.15, "softmax"),
    ("diagonal", "shared", 0.15, "softmax"),
    ("block", "shared", 0.15, "softmax"),
    ("diagonal", "diagonal", 2.0, "categorical"),
    ("diagonal", "shared", 2.0, "categorical"),
    ("block", "shared", 2.0, "categorical"),
    ("block", "block", 2.0, "categorical"),
)


def network(filters: str, last: str, prior: float, head: str) -> gbp.Sequential:
    observed = gbp.SoftmaxObservation(sigma=0.01) if head == "softmax" else gbp.CategoricalObservation()
    return gbp.Sequential(
        gbp.Conv2D(
            16, kernel=3, activation="leaky_relu", sigma=0.01, weight_prior=0.3, bias_prior=0.1, prior=3.0,
            posterior=filters,
        ),
        gbp.MaxPool2D(2, sigma=0.01, prior=3.0),
        gbp.Dense(
            10, sigma=0.01, weight_prior=prior, bias_prior=0.15, prior=2.0 if head == "softmax" else 10.0,
            weight_init=0.0, posterior=last,
        ),
        observed,
    )  # fmt: skip


def scores(p: np.ndarray, y: np.ndarray) -> list[float]:
    p = p.astype(float) / p.sum(1, keepdims=True)
    sure, right = p.max(1), p.argmax(1) == y
    bins = np.minimum((15 * sure).astype(int), 14)
    off = sum(abs(right[bins == b].sum() - sure[bins == b].sum()) for b in range(15)) / len(y)
    return [100 * right.mean(), -np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean(), 100 * off]


def run(row: tuple[str, str, float, str], seed: int) -> list[float]:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))[:1760]
    x, y = (x[order] / 16).reshape(-1, 8, 8, 1), y[order]
    learner, iterations = gbp.Learner(network(*row), (8, 8, 1), seed=seed), []
    learner.update(x[:50], y[:50])  # compiled
    begun = time.process_time()
    for i in range(50, 1400, 50):
        iterations.append(learner.update(x[i : i + 50], y[i : i + 50]).iterations)
    spent = (time.process_time() - begun) / 27
    return [
        *scores(np.asarray(learner.predict_proba(x[1400:])), y[1400:]),
        np.mean(iterations),
        spent,
        learner.failures,
    ]


def main() -> None:
    print("| filters | last layer | its prior | head | accuracy | NLL | ECE | iterations | CPU s a batch | refused |")
    print("|---" * 10 + "|")
    for row in ROWS:
        found = np.mean([run(row, seed) for seed in SEEDS], 0)
        a, n, e, i, s, f = found
        cells = f"{a:.1f} % | {n:.3f} | {e:.1f} % | {i:.0f} | {s:.2f} | {f:g}"
        print(f"| {row[0]} | {row[1]} | {row[2]} | {row[3]} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
