"""What `gbplearn train` leaves behind: `results.json`, pictures and `report.html`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..show.figures import picture
from ..show.page import Section, write_page
from . import scores
from .experiments.catalogue import EXPERIMENTS
from .learning_curve import in_portions
from .report.classifier import Learnt, draw_curve, sections
from .report.record import Clock, environment, how_it_was_run, write_json
from .train import Training


def read_out(
    training: Training, settings: dict[str, Any], out: Path, clock: Clock
) -> tuple[dict[str, Any], np.ndarray]:
    """Ask for the test images by messages, and write `results.json` to the folder.

    **Arguments:**

    - `settings`: the options of the run.
    - `clock`: made before the run.

    **Returns:** what `results.json` holds, and the class probabilities of the test images.
    """
    learner, images, followed = training.learner, training.images, training.curve
    p = in_portions(learner.predict_proba, images.test_x)
    forward = in_portions(learner.forward, images.test_x)
    metrics = {
        "test accuracy/messages": scores.accuracy(p, images.test_y),
        "test accuracy/forward": scores.accuracy(forward, images.test_y),
        "negative log likelihood/messages": scores.negative_log_likelihood(p, images.test_y),
        "images learnt from": learner.examples,
        "batches that ended badly": learner.failures,
    }
    if followed.batches:
        metrics["iterations a batch"] = followed.iterations / followed.batches
        metrics["learning, CPU seconds"] = followed.spent["cpu"]
    results = {
        "experiment": "train",
        "settings": {**settings, "network": repr(learner.net)},
        "metrics": metrics,
        "curve": followed.points,
        **clock.cost(),
        "environment": environment(clock.commit),
    }
    write_json(out / "results.json", results)
    return results, p


def write_report(training: Training, results: dict[str, Any], probabilities: np.ndarray, out: Path) -> Path:
    """Write `report.html` and its pictures to the folder.

    **Returns:** its path.
    """
    learner, images, metrics = training.learner, training.images, results["metrics"]
    learnt = Learnt(learner, images.test_x, images.test_y, probabilities, training.batch)
    curve = [_curve(training, out)] if training.curve.points else []
    last = how_it_was_run(results["settings"], results)
    report = [_short(training, metrics), *curve, *sections(learnt, out), last]
    lead = (
        f"{learner.examples:,} images of {training.data}, each used once: "
        f"{metrics['test accuracy/messages']:.2%} of {len(images.test_y):,} test images are recognised."
    )
    return write_page(out / "report.html", f"gbplearn train: {training.data}", lead, report)


def _short(training: Training, metrics: dict[str, float]) -> Section:
    by_messages, by_forward = (f"{metrics[f'test accuracy/{how}']:.2%}" for how in ("messages", "forward"))
    rows = [
        ("what", "how it was read out", "number"),
        ("test accuracy", "by messages, parameters at their posterior means", by_messages),
        ("", "by a forward pass of the posterior means", by_forward),
    ]
    published = EXPERIMENTS[training.data].published.get("test accuracy/fixed")
    if published is not None:
        rows.append(("", f"published: one pass over all {len(training.images.train_y):,} images", published))
    rows += [
        ("negative log likelihood", "by messages", f"{metrics['negative log likelihood/messages']:.3f} nats"),
        ("batches that ended badly", "and changed nothing", f"{metrics['batches that ended badly']:.0f}"),
    ]
    if "iterations a batch" in metrics:  # else no batch was followed
        rows += [
            ("iterations a batch", "mean", f"{metrics['iterations a batch']:.1f}"),
            ("learning", "CPU seconds, without read-outs", f"{metrics['learning, CPU seconds']:.1f}"),
        ]
    learner = training.learner
    text = f"Learnt from {learner.examples:,} images in {learner.batches:,} batches of {training.batch}."
    return Section("In short", text, rows)


def _curve(training: Training, out: Path) -> Section:
    points = training.curve.points
    images, reached = points[-1]
    words = f"Test accuracy against training images used, on a logarithmic axis: {reached:.1%} after {images:,}."
    text = "The posterior of a batch is the prior of the next. The curve is read out by a forward pass."
    return Section("Learning curve", text, pictures=[picture(draw_curve(points), "curve", words, out)])
