"""`gbplearn train`: one pass over labelled images, with checkpoints."""

from __future__ import annotations

import copy
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import make_folder, target_of
from ..core.progress import progress
from ..factors.operators import Shape
from ..io.checkpoint import CheckpointError, load, save
from ..learner.learner import Learner
from ..network.sequential import Sequential
from ..network.zoo import digits_classifier, digits_vector_classifier, paper_classifier, vector_classifier
from .data.images import Images, load_images
from .learning_curve import Curve

CLASSES = 10
# Batches from one checkpoint to the next.
EVERY = 10
# If one takes more seconds than this, as those of wide layers do, then at least so many times as long passes by.
_LONG, _LONGER = 1.0, 20
# Images at least so high get the paper's network.
_LARGE = 20


def network(shape: Shape, published: bool = False) -> Sequential:
    """The layers of the paper's network for images of 28 x 28, a smaller one for the digits of 8 x 8.

    **Arguments:** `published`: with the paper's scalar beliefs and its head, and not with vector beliefs.
    """
    if published:
        return paper_classifier() if shape[0] >= _LARGE else digits_classifier()
    return vector_classifier() if shape[0] >= _LARGE else digits_vector_classifier()


@dataclasses.dataclass(frozen=True)
class Training:
    """A learner, and the images that it has not learnt from yet.

    **Arguments:**

    - `data`: the name of the images.
    - `order`: numbers of the training images that are used, in the order they are used.
    - `images_used`: how many of them have been used.
    - `curve`: follows the learner.
    - `checkpoint`: the file to write; None for none.
    """

    learner: Learner
    data: str
    images: Images
    order: np.ndarray
    batch: int
    images_used: int
    curve: Curve
    checkpoint: Path | None = None
    published: bool = False  # as `network`

    def learn(self, label: str) -> None:
        """Go through the training images.

        If it is interrupted, the checkpoint holds the last batch that was finished; if it is killed, one of the last
        ten (or of longer ago, if checkpoints take long).
        """
        kept, note = copy.copy(self.learner), self._note(self.images_used)
        starts, due = range(self.images_used, len(self.order), self.batch), 0.0
        try:
            for number, start in enumerate(progress(starts, label, status=self.curve.tell)):
                rows = self.order[start : start + self.batch]
                x, y, images_used = self.images.train_x[rows], self.images.train_y[rows], start + len(rows)
                self.curve.before(self.learner, x, y)
                self.curve.after(self.learner, self.learner.update(x, y), images_used)
                # A copy: an update that is interrupted may leave the learner between two batches.
                kept, note = copy.copy(self.learner), self._note(images_used)
                if (number + 1) % EVERY == 0 and time.perf_counter() >= due:
                    began = time.perf_counter()
                    self._save(kept, note)
                    took = time.perf_counter() - began
                    due = began + _LONGER * took if took > _LONG else began
        finally:
            self._save(kept, note)

    def _note(self, images_used: int) -> dict[str, Any]:
        own = {"data": self.data, "batch": self.batch, "published": self.published, "seen": images_used}
        return {**own, **self.curve.note()}

    def _save(self, learner: Learner, note: dict[str, Any]) -> None:
        if self.checkpoint is not None:
            save(learner, self.checkpoint, note)


def prepare(
    data: str,
    folder: Path | None = None,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    batch: int = 50,
    iterations: int = 200,
    examples: int | None = None,
    seed: int = 0,
    published: bool = False,
) -> Training:
    """Everything but the work itself; a `ValueError` says which option makes no sense.

    The order of the images depends on the seed alone: of more examples, the first are the same.

    **Arguments:**

    - `data`, `folder`: as `load_images`.
    - `resume`: go on where `checkpoint` ends, which must have been trained with the same options.
    - `examples`: how many training images; all by default.
    - `published`: as `network`.
    """
    for name, value, least in (("batch", batch, 1), ("iterations", iterations, 1), ("examples", examples, 1)):
        if value is not None and value < least:
            raise ValueError(f"--{name} must be {least} or larger, got {value}")
    if seed < 0:
        raise ValueError(f"--seed must be 0 or larger, got {seed}")
    if resume and checkpoint is None:
        raise ValueError("--resume needs --checkpoint: the file to go on with")
    if checkpoint is not None and checkpoint.exists() and not resume:
        raise ValueError(f"{checkpoint} is there already: go on with it by --resume, or delete it")
    learner, images_used = None, 0
    if resume and checkpoint is not None:
        learner = load(checkpoint)
        images_used = _check_same(learner, checkpoint, {"data": data, "batch": batch}, iterations, seed, published)
    images = load_images(data, folder)
    count = len(images.train_y)
    if examples is not None and examples > count:
        raise ValueError(f"--examples must be {count} or less for {data}, got {examples}")
    if max(images.train_y.max(), images.test_y.max()) >= CLASSES:
        raise ValueError(f"{data} must have {CLASSES} classes")
    if checkpoint is not None:
        make_folder(target_of(checkpoint).parent)
    if learner is None:
        shape = images.train_x.shape[1:]
        strained = "learn" if published else "refuse"  # the paper knows no refusals
        learner = Learner(network(shape, published), shape, iterations=iterations, strained=strained, seed=seed)
    order = np.random.default_rng(seed).permutation(count)[:examples]
    curve = Curve(images, batch, -(-len(order) // batch), learner.note)
    return Training(learner, data, images, order, batch, images_used, curve, checkpoint, published)


def _check_same(
    learner: Learner, path: Path, note: dict[str, str | int], iterations: int, seed: int, published: bool
) -> int:
    """How many images have been used; raises if it was trained with other options."""
    asked = {**note, "iterations": iterations, "seed": seed}
    had = {**learner.note, "iterations": learner.options["iterations"], "seed": learner.seed}
    for name, value in asked.items():
        if had.get(name) != value:
            raise CheckpointError(f"{path}: it was trained with --{name} {had.get(name)}, not {value}")
    before = had.get("published", published)  # older ones do not say
    if published != before:
        raise CheckpointError(f"{path}: it was trained {'with' if before else 'without'} --published")
    images_used = had.get("seen")
    if not isinstance(images_used, int) or images_used < learner.examples:
        raise CheckpointError(f"{path}: it does not say how many images it has used")
    return images_used
