"""Examples in batches that are visited several times. What a batch has said is taken back before it is visited again.

So no example counts twice, however often it is visited. Where nothing moves any more is where messages on the graph of
all examples at once would come to rest: only the order of messages is another one. It is the better one, because a
small batch settles in some ten iterations, and a large one in thousands (see `gbp.damping_for`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from ..core.gaussian import Gaussian
from ..core.progress import progress
from .filtering import Beliefs
from .learner import SETTLED, Learner
from .report import Report

_FEWEST = 50  # a batch that ends badly is learnt in halves, unless it has no more examples than these


@dataclasses.dataclass
class Part:
    """Examples that are visited together."""

    rows: np.ndarray
    report: Report | None = None  # of the last visit that was accepted, if there was one

    @property
    def learnt(self) -> bool:
        """Whether the posterior holds what it said."""
        return self.report is not None


def learn_in_passes(
    learner: Learner, rows: list[np.ndarray], update: Callable[[np.ndarray], Report], passes: int
) -> tuple[list[Part], list[Report]]:
    """Learn from batches, each visited in every pass, until a pass hardly moves the parameters.

    What a learner forgets between two batches (`gbp.Filtering`) it forgets here once, before the first of them. A batch
    that ends badly is tried again in halves.

    **Arguments:**

    - `rows`: the examples of each batch.
    - `update`: learns from these examples by `learner.update`.
    - `passes`: at most; more batches than a history records (`Learner.most_recorded`) are a stream, each visited once.

    **Returns:** the parts in which it was learnt, and the reports of all visits.
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


def _visit(
    learner: Learner, part: Part, update: Callable[[np.ndarray], Report], least: Beliefs, reports: list[Report]
) -> list[Part]:
    """Visit some examples; the parts that they are now."""
    held = learner.state
    if part.report is not None:
        assert part.report.batch is not None
        try:
            learner.divide_away(part.report.batch, least)
        except ValueError:  # without it something would be vaguer than before all of them: its contribution stays
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


def _moved(before: Mapping[str, Gaussian], after: Mapping[str, Gaussian]) -> float:
    """How far the means of the parameters have moved, in their standard deviations; root mean square."""
    steps = [np.asarray((after[n].mean - before[n].mean) ** 2 * after[n].lam).ravel() for n in before]
    return float(np.sqrt(np.concatenate(steps).mean()))
