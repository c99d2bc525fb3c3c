"""Several passes over the batches of a data set: a batch's contribution is divided away before it is visited again.

So every example counts once, however often it is visited. The fixed point is that of messages on the graph of all
examples at once: only the order of the messages differs. This order is the faster one, because a small batch settles in
some ten iterations, and a large one in thousands (see `gbp.damping_for`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from ..core.noise import LearnNoise
from ..core.progress import progress
from ..core.vector import Belief
from .filtering import Beliefs
from .learner import SETTLED, Learner
from .report import Report

_NOISE_AT_REST = 0.01  # a standard deviation that has moved by less, as a part of itself, is at rest
_FEWEST = 50  # a batch that ends badly is learnt in halves, unless it has no more examples than these


@dataclasses.dataclass
class Part:
    """Examples that are visited together."""

    rows: np.ndarray
    report: Report | None = None  # of the last visit that was accepted, if there was one

    @property
    def learnt(self) -> bool:
        """Whether the posterior contains its contribution."""
        return self.report is not None


def learn_in_passes(
    learner: Learner, rows: list[np.ndarray], update: Callable[[np.ndarray], Report], passes: int
) -> tuple[list[Part], list[Report]]:
    """Learn from batches, each visited in every pass, until a pass hardly moves the parameters.

    Filtering (`gbp.Filtering`), which a learner applies between any two batches, is applied once, before the first of
    these. A batch whose inference ends badly is tried again in halves.

    **Arguments:**

    - `rows`: the examples of each batch.
    - `update`: learns from these examples by `learner.update`.
    - `passes`: at most so many. If there are more batches than a history records (`Learner.most_recorded`), each is
        visited once.

    **Returns:** the parts in which the examples were learnt from, and the reports of all visits.
    """
    filtering, before = learner.filtering, learner.state.posterior
    least = filtering.next_prior(before, learner.prior) if learner.batches else before
    parts, reports = [Part(r) for r in rows], []
    try:
        with learner.recording():
            for number in range(passes if 1 < len(parts) <= learner.most_recorded else 1):
                before, bar = learner.posterior, progress(parts, f"fit, pass {number + 1}")
                parts = [p for part in bar for p in _visit(learner, part, update, least, reports)]
                if number and _moved(before, learner.posterior) <= SETTLED:
                    break
    finally:
        learner.filtering = filtering
    return parts, reports


def learn_from_the_start(
    learner: Learner, rows: list[np.ndarray], update: Callable[[np.ndarray], Report], passes: int
) -> tuple[list[Part], list[Report]]:
    """The same for joint updates of a linear network (`Learner(activations="vector")`).

    Given the noise, one pass is exact, so that nothing is divided away. If noise is learnt, the first batches were
    learnt from with less of it known: each pass then begins with what was known of the parameters before all batches,
    and with the noise that the pass before it has found, until this hardly moves.
    """
    filtering, start = learner.filtering, learner.state
    parts, reports = [Part(r) for r in rows], []
    known = start.noise  # when a pass begins
    kept = filtering.forgetting if start.batches else 1.0
    try:
        for number in range(passes if known and len(parts) > 1 else 1):
            learner.restore(dataclasses.replace(start, noise=known))
            learner.filtering = filtering
            bar = progress(parts, f"fit, pass {number + 1}")
            parts = [p for part in bar for p in _visit(learner, Part(part.rows), update, start.prior, reports)]
            found = {n: _without(now, known[n], start.noise[n], kept) for n, now in learner.noise.items()}
            moved = max((abs(math.log(n.start / known[name].start)) for name, n in found.items()), default=0.0)
            known = found
            if moved <= _NOISE_AT_REST:
                break
        learner.restore(dataclasses.replace(learner.state, noise=known))
    finally:
        learner.filtering = filtering
    return parts, reports


def _without(now: LearnNoise, before: LearnNoise, prior: LearnNoise, kept: float) -> LearnNoise:
    """What a pass that began with `before` has found of a noise, had it begun with its prior: measurements add up."""
    weight = now.weight + kept * (prior.weight - before.weight)
    return LearnNoise(math.sqrt((now.squares + kept * (prior.squares - before.squares)) / weight), weight)


def _visit(
    learner: Learner, part: Part, update: Callable[[np.ndarray], Report], least: Beliefs, reports: list[Report]
) -> list[Part]:
    """Visit the examples of a part.

    **Returns:** the parts that hold them now: one, or several if it was divided.
    """
    held = learner.state
    if part.report is not None:
        assert part.report.batch is not None
        try:
            learner.divide_away(part.report.batch, least)
        except ValueError:  # without it a parameter would be vaguer than before all batches: its contribution stays
            return [part]
    report = update(part.rows)
    reports.append(report)
    if report.accepted:
        if not learner.filtering.trivial:
            learner.filter_once()
        return [Part(part.rows, report)]
    if part.learnt:
        learner.restore(dataclasses.replace(held, failures=learner.failures, caution=learner.caution))
        return [Part(part.rows, part.report)]
    if len(part.rows) <= _FEWEST:
        return [part]
    return [p for half in np.array_split(part.rows, 2) for p in _visit(learner, Part(half), update, least, reports)]


def _moved(before: Mapping[str, Belief], after: Mapping[str, Belief]) -> float:
    """How far the means of the parameters have moved, in their standard deviations; root mean square."""
    steps = [np.asarray((after[n].mean - before[n].mean) ** 2 / after[n].variance).ravel() for n in before]
    return float(np.sqrt(np.concatenate(steps).mean()))
