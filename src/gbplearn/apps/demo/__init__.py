"""`gbplearn demo`: one pass over handwritten digits with factor graphs, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.files import make_folder
from ...network.sequential import Sequential
from ...network.zoo import digits_classifier
from ...show.figures import picture
from ...show.page import Section, write_page
from ..experiments.digits import RATES, Digits, digits_stream
from ..experiments.experiment import as_text
from ..report.classifier import Learnt
from ..report.classifier import sections as about_classifier
from ..report.record import Clock, environment, how_it_was_run, peak_memory_mb, write_json
from .classify import LABELLED, STEPS, Classified, classify
from .figures import draw_curves, draw_filled
from .fill_in import Filled, digits_generator, fill_in


def run_demo(
    out: str | Path,
    seed: int = 0,
    *,
    batches: int | None = None,
    tests: int | None = None,
    classifier: Sequential | None = None,
    generator: Sequential | None = None,
) -> dict[str, Any]:
    """Run all parts, print a table, and write pictures, `results.json` and `report.html`.

    **Arguments:**

    - `out`: folder for what is written; made if it is missing.
    - `seed`: of the order of the images, the prior means and the labels that are hidden.
    - `batches`, `tests`: learn from so many, and test on so many images; by default all.
    - `classifier`, `generator`: networks, the first with a layer named "conv".

    **Returns:** what `results.json` holds.
    """
    folder, clock = Path(out), Clock()
    make_folder(folder)
    classifier, generator = classifier or digits_classifier(), generator or digits_generator()
    stream = digits_stream(seed, Digits().batch, batches, tests)
    print(f"{len(stream.y)} handwritten digits, each used once, in batches of {stream.batch}", flush=True)
    classified = classify(stream, classifier, seed)
    filled = fill_in(stream, generator, seed)

    rows = _short(classified, filled)
    settings = {
        "seed": seed,
        "training images": len(stream.y),
        "test images": len(stream.test_y),
        "batch": stream.batch,
        "share of the labels in the second pass": LABELLED,
        "classifier": repr(classifier),
        "generator": repr(generator),
        "adam": {"rates": RATES, "steps": STEPS, "chosen": classified.chosen},
    }
    results = {
        "experiment": "demo",
        "settings": settings,
        "metrics": {"test accuracy": classified.metrics(), "hidden half": filled.metrics()},
        "curves": {
            "images seen": stream.images_used.tolist(),
            "all labels/forward": classified.curve.tolist(),
            "half of the labels/forward": classified.half_curve.tolist(),
            "all labels/adam": classified.adam_curve.tolist(),
            "half of the labels/adam": classified.adam_half_curve.tolist(),
        },
        **clock.read(),
        "peak_memory_mb": round(peak_memory_mb(), 1),
        "environment": environment(clock.commit),
    }
    learnt = Learnt(classified.learner, stream.test_x, stream.test_y, classified.probabilities, stream.batch)
    sections = [
        Section("In short", _READ_OUT, rows),
        _curves(folder, classified),
        _hidden_half(folder, filled),
        *about_classifier(learnt, folder),
        how_it_was_run(settings, results),
    ]
    write_json(folder / "results.json", results)
    found = classified.metrics()
    lead = (
        f"{len(stream.y):,} handwritten digits, each used once: {found['all labels/messages']:.1%} of "
        f"{len(stream.test_y)} others are recognised (Adam, same network and batches: {found['all labels/adam']:.1%})."
    )
    page = write_page(folder / "report.html", "gbplearn demo", lead, sections)
    print(f"\n{as_text(rows)}\n\nOpen {page}")
    return results


_READ_OUT = (
    "Messages: beliefs of the logits by message passing, with the parameters at their posterior means; this is the "
    "prediction of a factor graph. Forward pass: the network's functions at the posterior means, no messages; the "
    "quick read-out, used for the curves."
)


def _short(c: Classified, f: Filled) -> list[tuple[str, str, str]]:
    """The table of everything that was measured."""
    found, filled = c.metrics(), f.metrics()
    names = {"messages": "GBP, by messages", "forward": "GBP, by forward pass", "adam": "Adam, same architecture"}
    rows = [("what", "how it was read out", "number")]
    for labels in ("all labels", "half of the labels"):
        for i, (how, words) in enumerate(names.items()):
            rows.append((f"test accuracy, {labels}" if i == 0 else "", words, f"{found[f'{labels}/{how}']:.1%}"))
    rows += [
        ("hidden half of test digits", "GBP, RMSE", f"{filled['rmse']:.3f}"),
        ("", "mean training image, RMSE", f"{filled['rmse of the mean training image']:.3f}"),
        ("", "GBP, pixels within 2 standard deviations", f"{filled['share within 2 sd']:.1%}"),
    ]
    return rows


def _curves(folder: Path, c: Classified) -> Section:
    found, chosen = c.metrics(), c.chosen
    words = (
        "Test accuracy against training images used, for Gaussian belief propagation and Adam, with all labels and "
        f"with half of them. At the end, by messages: {found['all labels/messages']:.1%} with all labels, "
        f"{found['half of the labels/messages']:.1%} with half."
    )
    return Section(
        "Learning curves",
        f"Each of the {len(c.stream.y)} training images is used once; the posterior of a batch is the prior of the "
        f"next. In the second pass {c.labelled} images keep their label. Adam trains the same architecture on the "
        f"same batches with {chosen['steps']} steps of {chosen['rate']:g} a batch, chosen on a fifth of the "
        "training images with all labels.",
        pictures=[picture(draw_curves(c), "curves", words, folder)],
    )


def _hidden_half(folder: Path, f: Filled) -> Section:
    words = (
        "One test digit of each class: the left half that was observed, the half that was filled in, its standard "
        "deviation, and the true image."
    )
    return Section(
        "Filling in what is hidden",
        "A generative network learns from the same stream without labels. Then the right half of each test digit "
        "is hidden and asked for. All layers are linear, so the standard deviations depend on which pixels are "
        "hidden, not on what the others show.",
        pictures=[picture(draw_filled(f), "filled", words, folder)],
    )
