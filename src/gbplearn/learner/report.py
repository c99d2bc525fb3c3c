"""`gbp.Report`: the outcome of one `Learner.update`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..core.gaussian import Gaussian
from ..engine.guard.events import GuardEvent
from ..engine.result import Result, Status, Trace
from ..network.vector_activations import ChainResult
from ..network.warm_start import LayerMessages, layer_messages
from .unusual import Unusual

# Twice the energy a measurement is the mean square of residuals in units of their noise, about 1 or less where a layer
# holds. From here on, five standard deviations, no noise explains them: messages were stopped far from rest.
STRAINED = 25.0


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of an update: how inference ended, and whether the posterior was updated."""

    status: Status
    message: str  # the status with its circumstances
    accepted: bool  # whether the posterior was updated; if not it is as it was before
    examples: int
    iterations: int
    residual: float
    energy: float  # of all factors and priors at the end
    energies: dict[str, float]  # of each factor group
    guard: tuple[GuardEvent, ...]  # what the guard found and did
    trace: Trace = dataclasses.field(repr=False)  # residuals and energies of each factor group, iteration by iteration
    belief: Gaussian | None = None  # of the variable of `update(want=...)`, if the batch was accepted
    batch: int | None = None  # its number, for `Learner.forget`; None if it was not accepted
    carried: LayerMessages | None = None  # messages of the layers of `update(carry=...)`, to warm-start the next batch
    log_evidence: float | None = None  # with `update(evidence=True)`: log p(batch | batches before)
    energy_per_factor: dict[str, float] = dataclasses.field(default_factory=dict)  # twice the energy a measurement
    strained: tuple[str, ...] = ()  # layers that do not hold: there it is above 25; refused if `accepted` is False
    unusual: tuple[Unusual, ...] = ()  # reasons why the batch is far outside all that was learnt from


def _energy_per_factor(result: Result | ChainResult) -> dict[str, float]:
    counts = result.measurements
    last = {n: float(e[-1]) for n, e in result.trace.energy.items() if len(e)}
    return {name: 2 * e / counts[name] for name, e in last.items() if counts[name] > 0}


def strained_layers(result: Result | ChainResult, layers: Sequence[str]) -> tuple[str, ...]:
    """Those of the layers that should hold, and do not."""
    each = _energy_per_factor(result)
    return tuple(name for name in layers if name in each and not each[name] <= STRAINED)


def report_of(
    result: Result | ChainResult,
    examples: int,
    sound: bool,
    accepted: bool,
    belief: Gaussian | None,
    batch: int | None,
    log_evidence: float | None,
    carry: Sequence[str],
    strained: tuple[str, ...],
    unusual: tuple[Unusual, ...],
) -> Report:
    """The report of a batch of so many examples, from the result of inference.

    **Arguments:** `sound`: whether inference ended well; `strained`: layers that do not hold.
    """
    trace, message, status = result.trace, result.message, result.status if sound else Status.DIVERGED
    last = {n: float(e[-1]) for n, e in trace.energy.items() if len(e)}
    total = float(trace.total_energy[-1]) if len(trace.residual) else 0.0
    each = _energy_per_factor(result)
    if sound and strained:
        held = ", ".join(f"'{name}' ({each[name]:.3g})" for name in strained)
        learnt = "learnt" if accepted else "not learnt"
        status = Status.STRAINED
        message = f"{learnt}: {Status.STRAINED}: twice the energy a measurement of {held}; {message}"
    if not accepted:
        message = f"{message}; the posterior is as it was before this batch"
    return Report(
        status,
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
        layer_messages(result, carry) if carry and accepted and isinstance(result, Result) else None,
        log_evidence,
        each,
        strained,
        unusual,
    )


def refused_report(examples: int, unusual: tuple[Unusual, ...]) -> Report:
    """The report of a batch that was refused before any message was sent."""
    message = f"{Status.UNUSUAL}: {'; '.join(map(str, unusual))}"
    nothing = Trace(np.zeros(0), {}, np.zeros(0), {})
    return Report(Status.UNUSUAL, message, False, examples, 0, 0.0, 0.0, {}, (), nothing, unusual=unusual)
