"""One result of inference in several rounds, each of which begins where the one before has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..engine.result import Result, Trace


def joined_rounds(results: Sequence[Result]) -> Result:
    """One result of all rounds: the last one that is usable.

    (A round that begins near the optimum may find nothing better than its start; what was found before still counts.)
    """
    usable = [i for i, r in enumerate(results) if r.usable]
    chosen = usable[-1] if usable else len(results) - 1
    events = [
        event if i == chosen else dataclasses.replace(event, round=i + 1)
        for i, r in enumerate(results)
        for event in r.guard
    ]
    return dataclasses.replace(
        results[chosen],
        iterations=sum(r.iterations for r in results),
        trace=Trace.joined([r.trace for r in results[: chosen + 1]]),
        guard=tuple(events),
    )
