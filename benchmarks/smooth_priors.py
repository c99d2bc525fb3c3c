"""What a length scale does: weights of a linear classifier of digits, with an independent prior and with a smooth one.

    python benchmarks/smooth_priors.py FOLDER     # prints the table of docs/concepts/vectors.md, and draws its picture

By joint updates (vector activations), one covariance for all classes; MNIST, each image once, in batches of 50, scored
on the first 2,000 test images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import gbplearn as gbp
from gbplearn.apps.data.images import load_images

ROOT = Path(__file__).parents[1]
SCALES, COUNTS, STREAMS, DRAWN = (None, 1.0, 2.0, 4.0), (50, 400, 1600), 5, 400
DIGITS = (0, 1, 3, 4, 7)


def learn(length_scale: float | None, count: int, seed: int, images) -> gbp.Learner:
    net = gbp.Sequential(
        gbp.Dense(10, weight_prior=0.2, weight_init=0.0, prior=30.0, length_scale=length_scale),
        gbp.CategoricalObservation(),
    )
    learner = gbp.Learner(net, images.train_x.shape[1:])
    order = np.random.default_rng(seed).permutation(len(images.train_y))[:count]
    for i in range(0, count, 50):
        rows = order[i : i + 50]
        learner.update(images.train_x[rows], images.train_y[rows])
    return learner


def main() -> None:
    gbp.cache_programs()
    images = load_images("mnist", sys.argv[1]).centred()
    test_x, test_y = images.test_x[:2000], images.test_y[:2000]
    for scale in SCALES:
        row = []
        for count in COUNTS:
            right = [
                (learn(scale, count, seed, images).predict_proba(test_x).argmax(1) == test_y).mean()
                for seed in range(STREAMS)
            ]
            row.append(f"{100 * np.mean(right):.1f} ± {100 * np.std(right) / STREAMS**0.5:.1f} %")
        print("length scale", scale, *row, sep=" | ")

    figure = Figure(figsize=(7.2, 3.3), layout="constrained")
    axes = figure.subplots(2, len(DIGITS))
    for row, scale, name in zip(axes, (None, 2.0), ("independent", "length_scale=2.0")):
        means = np.asarray(learn(scale, DRAWN, 0, images).posterior["dense/parameters"].mean)[:, :-1]
        for panel, digit in zip(row, DIGITS):
            weights = means[digit].reshape(28, 28)
            largest = np.abs(weights).max()
            panel.imshow(weights, cmap="RdBu_r", vmin=-largest, vmax=largest)
            panel.set(xticks=[], yticks=[], title=f"weights of '{digit}'" if scale is None else "")
            panel.title.set_fontsize(9)
        row[0].set_ylabel(name, fontsize=9)
    figure.savefig(ROOT / "docs" / "images" / "smooth_priors.png", dpi=150)


if __name__ == "__main__":
    main()
