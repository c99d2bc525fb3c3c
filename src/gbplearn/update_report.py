"""What a learner says of an update."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .carried import Carried, messages_of
from .gaussian import Gaussian
from .inference import Result, Status, Trace


@dataclasses.dataclass(frozen=True)
class Report:
    """How an update went."""

    status: Status
    message: str  # the status with its circumstances
    accepted: bool  # whether the posterior was updated; if not it is as it was before
    examples: int
    iterations: int
    residual: float
    energy: float  # of all factors and priors at the end
    energies: dict[str, float]  # of each factor group
    guard: tuple[str, ...]  # what the guard did
    trace: Trace  # residuals and energies of each factor group, iteration by iteration
    belief: Gaussian | None = None  # of what `update(want=...)` asked for, if the batch was accepted
    batch: int | None = None  # its number, for `Learner.forget`; None if it was not accepted
    carried: Carried | None = None  # if `update(carry=...)` asked, messages of these layers
    log_evidence: float | None = None  # if `update(evidence=True)` asked: log p(batch | batches before), Bethe


def report_of(
    result: Result,
    examples: int,
    accepted: bool,
    belief: Gaussian | None,
    batch: int | None,
    log_evidence: float | None,
    carry: Sequence[str],
) -> Report:
    """Of a batch of so many examples, from how inference ended."""
    message = result.message
    if not accepted:
        message = f"{message}; the posterior is as it was before this batch"
    trace = result.trace
    last = {n: float(e[-1]) for n, e in trace.energy.items() if len(e)}
    total = float(trace.total_energy[-1]) if len(trace.residual) else 0.0
    return Report(
        Status.DIVERGED if not accepted else result.status,
        message,
        accepted,
        examples,
        result.iterations,
        result.residual,
        total,
        last,
        result.guard,
        trace,
        belief,
        batch,
        messages_of(result, carry) if carry and accepted else None,
        log_evidence,
    )
