"""What `gbplearn train` leaves behind: `results.json`, pictures and `report.html`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import scores
from .experiments.catalogue import EXPERIMENTS
from .report.classifier import Learnt, draw_curve, sections
from .report.figures import picture
from .report.page import Section, write_page
from .report.record import Clock, environment, how_it_was_run, write_json
from .train import Training
from .watching import in_portions


def report_training(training: Training, settings: dict[str, Any], out: Path, clock: Clock) -> dict[str, Any]:
    """Read out the test images by messages, and write everything to the folder.

    **Arguments:**

    - `settings`: the options of the run.
    - `clock`: made before the run.

    **Returns:** what `results.json` holds.
    """
    learner, images, watch = training.learner, training.images, training.watch
    p = in_portions(learner.predict_proba, images.test_x)
    forward = in_portions(learner.forward, images.test_x)
    metrics = {
        "test accuracy/messages": scores.accuracy(p, images.test_y),
        "test accuracy/forward": scores.accuracy(forward, images.test_y),
        "negative log likelihood/messages": scores.negative_log_likelihood(p, images.test_y),
        "iterations a batch": watch.iterations / max(1, learner.batches + learner.failures),
        "learning, CPU seconds": watch.spent["cpu"],
        "images learnt from": learner.examples,
        "batches that ended badly": learner.failures,
    }
    results = {
        "experiment": "train",
        "settings": {**settings, "network": repr(learner.net)},
        "metrics": metrics,
        "curve": watch.points,
        **clock.cost(),
        "environment": environment(clock.commit),
    }
    learnt = Learnt(learner, images.test_x, images.test_y, p, training.batch)
    report = [_short(training, metrics), _curve(training, out), *sections(learnt, out)]
    write_json(out / "results.json", results)
    lead = (
        f"{learner.examples:,} images of {training.data}, each seen once: "
        f"{metrics['test accuracy/messages']:.2%} of {len(images.test_y):,} test images are recognised."
    )
    title = f"gbplearn train: {training.data}"
    write_page(out / "report.html", title, lead, [*report, how_it_was_run(results["settings"], results)])
    return results


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
        ("iterations a batch", "mean", f"{metrics['iterations a batch']:.1f}"),
        ("learning", "CPU seconds, without read-outs", f"{metrics['learning, CPU seconds']:.1f}"),
        ("batches that ended badly", "and changed nothing", f"{metrics['batches that ended badly']:.0f}"),
    ]
    learner = training.learner
    said = f"Learnt from {learner.examples:,} images in {learner.batches:,} batches of {training.batch}."
    return Section("In short", said, rows)


def _curve(training: Training, out: Path) -> Section:
    points = training.watch.points
    seen, reached = points[-1] if points else (0, np.nan)
    words = f"Test accuracy against training images seen, on a logarithmic axis: {reached:.1%} after {seen:,}."
    said = "The posterior of a batch is the prior of the next. The curve is read out by a forward pass."
    pictures = [picture(draw_curve(points), "curve", words, out)] if points else []
    return Section("Learning curve", said, pictures=pictures)
