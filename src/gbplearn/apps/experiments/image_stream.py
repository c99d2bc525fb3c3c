"""One pass over labelled images, each used once: the paper's Section 4.3 and Table 1, by messages and by others.

What `mnist`, `fashion-mnist` and `cifar10` share. A run that is stopped goes on where its last checkpoint is; a seed or
a comparison that is finished stays so, one that is not begins anew.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ...core.progress import progress
from ...io.checkpoint import load
from ...learner.learner import Learner
from ...show.page import Section
from .. import scores
from ..data.images import Images, Pixels, load_images
from ..learning_curve import Curve, in_portions, points_of_curve
from ..report.classifier import Learnt, sections
from ..report.record import Clock, peak_memory_mb, settings_hash
from ..train import Training
from .experiment import READ_OUT, SeedRun, rows_by_read_out
from .image_figure import draw_stream
from .image_settings import ACTIVATIONS, CHOSEN_DEEP, ITERATIONS, baselines, features, network
from .parts import InParts, Parts, check_same

SLOW = ("kalman",)  # compared with for the first seed only


@dataclasses.dataclass(frozen=True)
class ImageStream(InParts):
    """One setting for all three data sets, as in the paper; a seed is an order of the stream and the prior means.

    **Arguments:**

    - `graph`: "convolutional", the paper's network; "dense", as wide as is practical; "vector", the paper's layers
        with vector beliefs and activations; "dense-vector", two wide hidden layers with them; "lenet", or
        "wide-lenet" with more filters; "smooth-lenet", two convolutions behind a dense layer whose weights are alike
        for neighbouring places; "small-vgg", four convolutions and a hidden layer; "residual", ten layers with skip
        connections; or "patches", one dense layer behind whitened patches of the first batch, which are not learnt.
    - `batch`, `iterations`: as the learner.
    - `examples`: how many training images; None for all.
    - `compared`, `compared_seeds`: which other ways of learning run beside it, for the first so many seeds.
    - `data_dir`: folder of the data sets, as `load_images`; no setting.
    """

    graph: str = "convolutional"
    batch: int = 50
    iterations: int = ITERATIONS
    examples: int | None = None
    compared: tuple[str, ...] = ("adam", "adam cosine", "kalman", "linear")
    compared_seeds: int = 3
    data_dir: Path | None = None

    data: ClassVar[str]
    unknown: ClassVar[str | None] = None  # images of another kind, which the network should be unsure of
    read_out: ClassVar[dict[str, str]] = {
        **{how: READ_OUT[how] for how in ("fixed", "random", "forward")},
        "adam": "no GBP: the same architecture, one pass of Adam, a constant step size",
        "adam scaled": "the same with a temperature",
        "adam cosine": "no GBP: the same architecture, one pass of Adam, the step size falls like a cosine",
        "adam cosine scaled": "the same with a temperature",
        "kalman": "no GBP: the same architecture, a diagonal extended Kalman filter, example by example; seed 0 only",
        "linear": "no GBP: softmax regression, one pass of Adam, the step size falls like a cosine",
    }
    caption: ClassVar[str] = (
        "Left: test accuracy against the number of training images, each used once; all curves are read out by a "
        "forward pass. A thin line a seed, a thick one for the mean. Right: how often the predicted class is right "
        "against the probability that was given to it; on the dashed line both are the same."
    )

    def settings(self) -> dict[str, Any]:
        """With the networks and what they are compared with."""
        own = {**super().settings(), "network": repr(network(self.graph)), "data": self.data}
        known, names = baselines(self.data, 1, self.graph), self.compared_with(0)
        others = {name: words for name, (_, words) in known.items() if name in names}
        front = features(self.graph, self.data)
        return {**own, "compared": others, **({} if front is None else {"features": repr(front)})}

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Begin, or go on with what the folder holds of this seed."""
        parts, done = Parts(folder, self.settings()), f"seed-{seed}"
        if parts.has(done):
            held = parts.read(done, "metrics", "kept")
            return SeedRun(seed, held["metrics"], held["kept"], before=True, cost=held.get("cost"))
        clock = Clock()
        images, unknown = self._load()
        if self.examples is not None and self.examples > len(images.train_y):
            raise ValueError(f"--examples must be {len(images.train_y)} or less for {self.data}, got {self.examples}")
        order = np.random.default_rng(seed).permutation(len(images.train_y))[: self.examples]
        training = self._training(images, order, seed, folder / f"seed-{seed}.safetensors")
        earlier = dict(training.curve.spent)
        training.learn(f"{self.data}, seed {seed}")
        metrics, kept = self._read_out(training, unknown)
        if seed == 0 and not training.images_used:  # else it would be that of something else
            metrics["peak memory, MB/fixed"] = peak_memory_mb()
        for name in self.compared_with(seed):
            make = partial(self.compare, name, images, unknown, order, seed)
            held = parts.get(f"{done}-{name.replace(' ', '-')}", make, "metrics", "curve")
            metrics |= held["metrics"]
            kept["curves"][name] = held["curve"]
        cost = clock.cost()
        cost["seconds"] += earlier["wall"]
        cost["cpu_seconds"] += earlier["cpu"]
        parts.write(done, {"metrics": metrics, "kept": kept, "cost": cost})
        return SeedRun(seed, metrics, kept, cost=cost)

    def compared_with(self, seed: int) -> list[str]:
        """What runs beside this seed: what has the architecture of this graph, or is none."""
        own: dict[str, tuple[str, ...]] = {"dense": ("linear",), "vector": (), "patches": ()}
        own.update(dict.fromkeys(CHOSEN_DEEP, ("adam cosine",)))
        kept = own.get(self.graph, self.compared)
        names = [n for n in self.compared if n in kept]
        return [n for n in names if seed < (min(1, self.compared_seeds) if n in SLOW else self.compared_seeds)]

    def _load(self) -> tuple[Images, Pixels | None]:
        """The images, and those of another kind; the mean of the training images is subtracted from all."""
        images = load_images(self.data, self.data_dir)
        mean = images.train_x.mean()
        unknown = load_images(self.unknown, self.data_dir).test_x.minus(mean) if self.unknown else None
        return images.centred(), unknown

    def _training(self, images: Images, order: np.ndarray, seed: int, path: Path) -> Training:
        if path.exists():
            learner = load(path)
            check_same(path, learner.note.get("settings"), self.settings())
        else:
            net, shape = network(self.graph), images.train_x.shape[1:]
            activations = ACTIVATIONS.get(self.graph, "scalar")
            how = {"iterations": self.iterations, "activations": activations, "strained": "learn", "seed": seed}
            learner = Learner(net, shape, features=features(self.graph, self.data), **how)
            if learner.features is not None:  # for the read-out before the first batch
                learner.fit_features(images.train_x[order[: self.batch]])
        batches, settings = -(-len(order) // self.batch), settings_hash(self.settings())
        curve = Curve(images, self.batch, batches, learner.note, settings)
        return Training(learner, self.data, images, order, self.batch, learner.note.get("seen", 0), curve, path)

    def _read_out(self, training: Training, unknown: Pixels | None) -> tuple[dict[str, float], dict[str, Any]]:
        learner, images, curve = training.learner, training.images, training.curve
        p = {how: self._probabilities(learner, images.test_x, how) for how in ("fixed", "random", "forward")}
        metrics = {k: v for how in p for k, v in all_scores(p[how], images.test_y, how).items()}
        if unknown is not None:
            for how in p:
                metrics |= self.auroc(self._probabilities(learner, unknown, how), p[how], how)
        metrics |= {
            "learning, CPU seconds/fixed": curve.spent["cpu"],
            "learning, seconds/fixed": curve.spent["wall"],
            "iterations a batch/fixed": curve.iterations / max(1, learner.batches + learner.failures),
            "refused batches/fixed": float(learner.failures),
        }
        kept = {
            "curves": {"forward": curve.points},
            "calibration": [a.tolist() for a in scores.calibration(p["fixed"], images.test_y)],
        }
        return metrics, kept

    def auroc(self, unknown: np.ndarray, known: np.ndarray, how: str) -> dict[str, float]:
        """By how undecided they are."""
        return {f"AUROC of {self.unknown}/{how}": scores.auroc(scores.entropy(unknown), scores.entropy(known))}

    @staticmethod
    def _probabilities(learner: Learner, x: Pixels, how: str) -> np.ndarray:
        if how == "forward":
            return scores.softmax(in_portions(learner.forward, x))
        return in_portions(lambda part: learner.predict_proba(part, parameters=how), x)

    def compare(
        self, name: str, images: Images, unknown: Pixels | None, order: np.ndarray, seed: int
    ) -> dict[str, Any]:
        """One pass of something else over the same images in the same order."""
        batches = -(-len(order) // self.batch)
        build, words = baselines(self.data, batches, self.graph)[name]
        model = build(images.train_x.shape[1:], seed)
        read_outs, points, cpu, logits = set(points_of_curve(batches)), [], 0.0, np.zeros((0, 0))
        for number, start in enumerate(progress(range(0, len(order), self.batch), f"{name}, seed {seed}")):
            rows = order[start : start + self.batch]
            begin = time.process_time()
            model.update(images.train_x[rows], images.train_y[rows])
            cpu += time.process_time() - begin
            if number + 1 in read_outs:
                logits = finite(in_portions(model.predict, images.test_x), name)
                points.append((start + len(rows), scores.accuracy(logits, images.test_y)))
        metrics: dict[str, float] = {f"learning, CPU seconds/{name}": cpu}
        for label, temperature in ((name, 1.0), (f"{name} scaled", words.get("temperature"))):
            if temperature is None:
                continue
            p = scores.softmax(logits, temperature)
            metrics |= all_scores(p, images.test_y, label)
            if unknown is not None:
                other = scores.softmax(finite(in_portions(model.predict, unknown), name), temperature)
                metrics |= self.auroc(other, p, label)
        return {"metrics": metrics, "curve": points}

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A column a read-out."""
        return rows_by_read_out(results)

    def inside(self, runs: Sequence[SeedRun], folder: Path) -> list[Section]:
        """What the checkpoint of the first seed holds, if it is there and can be read, and the images too."""
        path = folder / f"seed-{runs[0].seed}.safetensors"
        try:
            learner, images = load(path), self._load()[0]
        except (ValueError, OSError):
            return []
        p = self._probabilities(learner, images.test_x, "fixed")
        return sections(Learnt(learner, images.test_x, images.test_y, p, self.batch), folder)

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Learning curves, and calibration."""
        return draw_stream([r.kept for r in runs])


def finite(logits: np.ndarray, name: str) -> np.ndarray:
    """Of a model that has diverged: zeros, all classes alike."""
    if np.isfinite(logits).all():
        return logits
    print(f"{name} has diverged", file=sys.stderr)
    return np.zeros_like(logits)


def all_scores(p: np.ndarray, y: np.ndarray, how: str) -> dict[str, float]:
    """Accuracy, negative log likelihood, calibration error and Brier score, by name."""
    return {
        f"test accuracy/{how}": scores.accuracy(p, y),
        f"negative log likelihood/{how}": scores.negative_log_likelihood(p, y),
        f"expected calibration error/{how}": scores.expected_calibration_error(p, y),
        f"Brier score/{how}": scores.brier_score(p, y),
    }
