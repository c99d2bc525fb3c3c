"""Learning curves, and what the updates cost, while a learner is trained."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..learner.learner import Learner
from ..learner.report import Report
from . import scores
from .data.images import Images, Pixels

_PORTION = 1000  # images read out at a time
_LAST = 1000  # images whose accuracy is shown with the progress


def in_portions(read: Callable[[np.ndarray], Any], x: np.ndarray | Pixels) -> np.ndarray:
    """What `read` gives for all images, in portions that need little memory."""
    return np.concatenate([np.asarray(read(x[i : i + _PORTION])) for i in range(0, len(x), _PORTION)])


def points_of_curve(batches: int) -> list[int]:
    """After 1, 2, 4, 8 ... batches and after the last: where learning curves have their points."""
    return sorted({2**k for k in range(batches.bit_length())} | {batches})


class Curve:
    """Follows a learner: its accuracy on the test images now and then, and on each batch before it is learnt.

    All that it knows goes into the checkpoint, so that a run that is resumed has the whole curve.
    """

    def __init__(self, images: Images, batch: int, batches: int, note: Mapping[str, Any], settings: str = ""):
        self.images, self.batch, self.read_outs, self.settings = images, batch, set(points_of_curve(batches)), settings
        self.points: list[tuple[int, float]] = [tuple(p) for p in json.loads(note.get("curve", "[]"))]
        self._right = deque(json.loads(note.get("right", "[]")), max(1, _LAST // batch))
        # Batches that were followed, and their iterations: an older checkpoint does not say of those before it.
        self.batches, self.iterations = int(note.get("watched", 0)), int(note.get("iterations", 0))
        self.spent = {"cpu": float(note.get("cpu_seconds", 0)), "wall": float(note.get("seconds", 0))}
        self._begin = (0.0, 0.0)

    def before(self, learner: Learner, x: np.ndarray, y: np.ndarray) -> None:
        """No image is kept back for good: each is a test before it is learnt."""
        self._right.append(scores.accuracy(np.asarray(learner.forward(x)), y))
        self._begin = time.process_time(), time.perf_counter()

    def after(self, learner: Learner, report: Report, images_used: int) -> None:
        """Only the update itself is timed."""
        self.spent["cpu"] += time.process_time() - self._begin[0]
        self.spent["wall"] += time.perf_counter() - self._begin[1]
        self.batches, self.iterations = self.batches + 1, self.iterations + report.iterations
        if learner.batches + learner.failures in self.read_outs:
            logits = in_portions(learner.forward, self.images.test_x)
            self.points.append((images_used, scores.accuracy(logits, self.images.test_y)))

    def note(self) -> dict[str, Any]:
        """The curve and the sums so far."""
        return {
            **({"settings": self.settings} if self.settings else {}),
            "curve": json.dumps(self.points),
            "right": json.dumps(list(self._right)),
            "watched": self.batches,
            "iterations": self.iterations,
            "cpu_seconds": self.spent["cpu"],
            "seconds": self.spent["wall"],
        }

    def tell(self) -> str:
        """How many of the last images were right before they were learnt."""
        right = np.mean(self._right) if self._right else 0.0
        return f"{right:.1%} of the last {len(self._right) * self.batch:,} images right before they were learnt"
