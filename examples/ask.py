"""Ask a network that has learnt digits and their classes what each class looks like, and what a hidden half may be.

Twelve causes paint an image, and tell its class:

    x ~ N(W z + d, sigma²) ,   class ~ softmax(V z + e) ,   z ~ N(0, 1)

Images given classes, classes given images and pixels given pixels are queries to one graph; what differs is what is
observed.

    python examples/ask.py FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import gbplearn as gbp
from gbplearn.apps.data.images import load_images
from gbplearn.core.files import make_folder
from gbplearn.show.figures import ORANGE, save_figure

# Only the layers speak about pixels that are not observed.
WIDE = {"mean": 0.0, "std": 10.0}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How many images of the digits are learnt from, in batches, with how many causes."""

    examples: int = 1400
    batch: int = 100
    causes: int = 12


@dataclasses.dataclass(frozen=True)
class Asked:
    """Answers: images of the ten classes, and ten test images with the right half filled in."""

    classes: np.ndarray
    truth: np.ndarray
    seen: np.ndarray
    filled: np.ndarray
    std: np.ndarray
    evidence: np.ndarray  # of these images, and of the same turned upside down

    def metrics(self) -> dict[str, float]:
        """Numbers to print."""
        upright, turned = self.evidence
        return {
            "log evidence, median": float(np.median(upright)),
            "the same upside down": float(np.median(turned)),
            "mean sd of hidden pixels": float(self.std[~self.seen].mean()),
        }


def ask(settings: Settings) -> Asked:
    """Learn, then ask."""
    digits = load_images("digits")
    net = gbp.Sequential(
        gbp.Dense(
            settings.causes,
            direction="generative",
            sigma=0.15,
            weight_prior=0.05,
            weight_init=0.1,
            bias_prior=1.0,
            prior=1.0,
        ),
        gbp.Dense(10, sigma=0.1, weight_prior=1.0, weight_init=0.0, bias_prior=0.5, prior=3.0),
        gbp.SoftmaxObservation(sigma=0.1),
    )
    learner = gbp.Learner(net, input_shape=(8, 8, 1))
    for start in range(0, settings.examples, settings.batch):
        rows = slice(start, start + settings.batch)
        learner.update(digits.train_x[rows], digits.train_y[rows])
    wide = gbp.Gaussian.from_moments(**WIDE)
    classes = learner.query("input", y=np.arange(10), x_prior=wide)
    chosen = [int(np.flatnonzero(digits.test_y == c)[1]) for c in range(10)]
    truth = digits.test_x[chosen]
    seen = np.broadcast_to((np.arange(8) < 4)[:, None], truth.shape)
    filled = learner.query("input", x=truth, x_observed=seen, x_prior=wide)
    evidence = np.stack([learner.log_evidence(images) for images in (truth, truth[:, ::-1])])
    parts = (np.asarray(a) for a in (classes.mean, truth, seen, filled.mean, filled.std))
    return Asked(*parts, evidence)


def draw(a: Asked) -> Figure:
    """Four rows of ten images."""
    figure = Figure(figsize=(9.6, 4.3), layout="constrained")
    axes = figure.subplots(4, 10)
    rows = {"each class": a.classes, "seen": np.where(a.seen, a.truth, np.nan), "filled in": a.filled, "truth": a.truth}
    for row, (title, images) in zip(axes, rows.items()):
        row[0].set_ylabel(title, rotation=0, ha="right", va="center")
        for ax, image in zip(row, images):
            ax.set_facecolor("#cfe3f2")
            ax.imshow(image[..., 0], cmap="gray", vmin=0, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
    for ax in axes[2:].flat:
        ax.axvline(3.5, color=ORANGE, linewidth=1)
    return figure


def main() -> None:
    gbp.cache_programs()  # the next run need not compile anew
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("."), help="folder for the pictures")
    asked = parser.parse_args()
    make_folder(asked.out)
    result = ask(Settings())
    for name, value in result.metrics().items():
        print(f"{name:25}  {value:.4g}")
    print(*save_figure(draw(result), asked.out, "ask"), sep="\n")


if __name__ == "__main__":
    main()
