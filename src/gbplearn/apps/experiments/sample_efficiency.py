"""How much is learnt from few images, each used once: the paper's Fig. 4, against everything that one might do instead.

A seed is an order of MNIST's training images; every method learns from the same first ones. Twenty orders up to 200
images, ten up to 800, five beyond.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ...network.zoo import paper_classifier
from .. import scores
from ..data.images import Images, load_images
from ..learning_curve import in_portions
from ..report.record import Clock
from .experiment import SeedRun, total_cost
from .image_settings import BATCH
from .one_pass import GBP, METHODS, ONE_SETTING, READ_OUT, VECTORS, learn
from .parts import InParts, Parts
from .sample_figure import draw_samples
from .sample_settings import CHOSEN, SIZES, Chosen, chosen_for

# Up to which size a seed goes: the first five all the way.
_REACH = ((5, 60000), (10, 800), (20, 200))
RIGHT, LIKELY = "test accuracy", "negative log likelihood"


def sizes_of(seed: int, sizes: Sequence[int] = SIZES) -> list[int]:
    """What a seed measures."""
    reach = next((reach for seeds, reach in _REACH if seed < seeds), _REACH[-1][1])
    return [size for size in sizes if size <= reach]


@dataclasses.dataclass(frozen=True)
class SampleEfficiency(InParts):
    """Settings of each method are those that a random search found for the size (`sample_settings.py`).

    **Arguments:**

    - `methods`: which of them.
    - `sizes`: numbers of images.
    - `data_dir`: folder of the data sets, as `load_images`; no setting.
    """

    methods: tuple[str, ...] = METHODS
    sizes: tuple[int, ...] = SIZES
    data_dir: Path | None = None

    chosen: ClassVar[Chosen] = CHOSEN
    name: ClassVar[str] = "sample-efficiency"
    data: ClassVar[str] = "mnist"
    title: ClassVar[str] = "Sample efficiency on MNIST"
    seeds: ClassVar[int] = 20
    read_out: ClassVar[dict[str, str]] = READ_OUT
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "Test accuracy and negative log likelihood against the number of training images. Lines: mean over the same "
        "subsets of images, fewer for more images; bars: one standard error. Settings were chosen for accuracy."
    )

    def settings(self) -> dict[str, Any]:
        """With what was chosen for every method and size."""
        chosen = {m: {str(n): chosen_for(m, n, self.chosen) for n in self.sizes} for m in self.methods}
        return {**self._same(), "methods": list(self.methods), "sizes": list(self.sizes), "chosen": chosen}

    def _same(self) -> dict[str, Any]:
        """What all methods have in common."""
        return {"data": self.data, "batch": BATCH, "network": repr(paper_classifier())}

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Every method and every setting is a part of its own."""
        images = load_images(self.data, self.data_dir).centred()
        order = np.random.default_rng(seed).permutation(len(images.train_y))
        metrics: dict[str, float] = {}
        costs, before = [], True
        for method in self.methods:
            # Sizes with the same settings are one stream.
            for setting, group in groupby(
                sizes_of(seed, self.sizes), key=partial(chosen_for, method, chosen=self.chosen)
            ):
                sizes = list(group)
                parts = Parts(folder, {**self._same(), "method": method, "sizes": sizes, "setting": setting})
                name = f"seed-{seed}-{method.replace(' ', '-').replace('%', 'percent')}-{sizes[-1]}"
                before &= parts.has(name)
                make = partial(self._measure, method, setting, images, order, sizes, seed)
                held = parts.get(name, make, "metrics", "cost")
                metrics |= held["metrics"]
                costs.append(held["cost"])
        return SeedRun(seed, metrics, None, before=before, cost=total_cost(costs))

    @staticmethod
    def _measure(
        method: str, setting: dict[str, Any], images: Images, order: np.ndarray, sizes: list[int], seed: int
    ) -> dict[str, Any]:
        clock, metrics = Clock(), {}
        x, y = images.train_x[order[: max(sizes)]], images.train_y[order[: max(sizes)]]

        for size, p in learn(method, setting, x, y, sizes, lambda read: in_portions(read, images.test_x), seed):
            metrics[f"{RIGHT} after {size} images/{method}"] = scores.accuracy(p, images.test_y)
            metrics[f"{LIKELY} after {size} images/{method}"] = scores.negative_log_likelihood(p, images.test_y)
        return {"metrics": metrics, "cost": clock.cost()}

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """Accuracies, how far GBP is ahead in percentage points, and likelihoods: a column a size."""
        metrics, chosen = results["metrics"], results["settings"]
        sizes, methods = chosen["sizes"], chosen["methods"]

        def values(what: str, size: int, method: str) -> np.ndarray:
            return np.array(metrics.get(f"{what} after {size} images/{method}", {"values": []})["values"])

        rows = [("", *(f"{n:,}" for n in sizes))]
        rows += [(f"{RIGHT}, {m}", *(_mean(100 * values(RIGHT, n, m), " %") for n in sizes)) for m in methods]
        for m in (m for m in methods if m != GBP and GBP in methods):
            ahead = [100 * (values(RIGHT, n, GBP) - values(RIGHT, n, m)) for n in sizes]
            rows.append((f"{GBP} ahead of {m}", *(_mean(a, "") for a in ahead)))
        rows += [(f"{LIKELY}, {m}", *(_mean(values(LIKELY, n, m), "") for n in sizes)) for m in methods]
        return rows

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Accuracy and likelihood."""
        return draw_samples([r.metrics for r in runs], self.methods, self.sizes)


@dataclasses.dataclass(frozen=True)
class SampleEfficiencyVectors(SampleEfficiency):
    """The same with vector beliefs and activations, for few images: arguments as `SampleEfficiency`."""

    methods: tuple[str, ...] = (VECTORS, ONE_SETTING)
    sizes: tuple[int, ...] = tuple(size for size in SIZES if size <= 800)

    name: ClassVar[str] = "sample-efficiency-vectors"
    title: ClassVar[str] = "Sample efficiency on MNIST: vector beliefs"


def _mean(values: np.ndarray, unit: str) -> str:
    """With the standard error, if there are two or more."""
    if not len(values):
        return ""
    error = f" ± {np.std(values, ddof=1) / np.sqrt(len(values)):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4g}{error}{unit}"
