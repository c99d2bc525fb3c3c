"""The picture of filters that begin at random and as patches, before and after learning (docs/guides/networks.md).

python benchmarks/filters_picture.py FOLDER
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gbplearn as gbp
from gbplearn.apps.data.images import load_images

OUT = Path(__file__).parent.parent / "docs" / "images" / "filters.png"
EXAMPLES, BATCH, FILTERS, KERNEL = 3200, 50, 16, 7


def filters(start: float | str, folder: Path) -> list[np.ndarray]:
    """Means before and after one pass, `(filters, kernel, kernel)` each."""
    found = load_images("fashion-mnist", folder).centred()
    order = np.random.default_rng(0).permutation(len(found.train_y))[:EXAMPLES]
    net = gbp.Sequential(
        gbp.Conv2D(FILTERS, kernel=KERNEL, activation="leaky_relu", weight_prior=0.3, weight_init=start),
        gbp.MaxPool2D(2),
        gbp.Dense(10, weight_prior=0.15, prior=50.0, weight_init=0.0, length_scale=2.0),
        gbp.CategoricalObservation(),
    )
    learner = gbp.Learner(net, (28, 28, 1))
    for i in range(0, EXAMPLES, BATCH):
        learner.update(found.train_x[order[i : i + BATCH]], found.train_y[order[i : i + BATCH]])
    beliefs = learner.prior["conv/parameters"], learner.posterior["conv/parameters"]
    return [np.asarray(b.mean)[:, :-1].reshape(-1, KERNEL, KERNEL) for b in beliefs]


def main() -> None:
    folder = Path(sys.argv[1])
    rows = [("random", filters(0.2, folder)), ("patches", filters("patches", folder))]
    figure = plt.figure(figsize=(9, 2.9), dpi=150, layout="constrained")
    parts = figure.subfigures(2, 2, hspace=0.05, wspace=0.05)
    for (name, both), line in zip(rows, parts):
        for when, weights, part in zip(("before", "after 3,200 images"), both, line):
            part.suptitle(f"{name}, {when}", fontsize=9)
            for axis, one in zip(part.subplots(2, FILTERS // 2).ravel(), weights):
                most = np.abs(one).max()
                axis.imshow(one, cmap="RdBu_r", vmin=-most, vmax=most)
                axis.set_axis_off()
    figure.savefig(OUT)


if __name__ == "__main__":
    main()
