"""Streams of batches from any iterable, and `gbp.DriftAlarm`, which detects that their distribution has changed."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..core.gaussian import Gaussian
from ..engine.result import Status
from .report import Report

_PARTS = ("x", "y", "x_observed", "y_observed", "sample_weight", "x_prior")


def batch_arguments(batch: Any) -> dict[str, Any]:
    """A batch of a stream as arguments of `Learner.update`."""
    if isinstance(batch, Mapping):
        unknown = [name for name in batch if name not in _PARTS]
        if unknown or "x" not in batch:
            wrong = f"got '{unknown[0]}'" if unknown else "there is no 'x'"
            raise ValueError(f"a batch given by name has x, and may have {', '.join(_PARTS[1:])}: {wrong}")
        named = batch
    elif isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise ValueError(f"a batch must be x, a pair (x, y), or a mapping of arguments, got {len(batch)} parts")
        named = dict(zip(_PARTS, batch))
    else:
        named = {"x": batch}
    return {name: _as_arrays(value) for name, value in named.items()}


def _as_arrays(value: Any) -> Any:
    """Numbers as arrays, those by head too."""
    if isinstance(value, Mapping):
        return {head: _as_arrays(of_head) for head, of_head in value.items()}
    return value if value is None or isinstance(value, Gaussian) else np.asarray(value)


class DriftAlarm:
    """A callback of `Learner.fit` that detects when the distribution of the data changes.

    The evidence of a batch, `log p(batch | all before)` (`learner.update(evidence=True)`), stays the same or grows as
    long as the distribution does not change, and falls when it does. The alarm is raised when the evidence of an
    example lies `threshold` robust standard deviations below the median of the last `window` batches,

        e < median - threshold max(1.4826 median |e_i - median|, least)

    and then a new window begins. A batch that is refused as unusual (`Learner(unusual=)`) raises it as well, and leaves
    the window as it is.

    **Arguments:**

    - `threshold`: in standard deviations; > 0.
    - `window`: how many batches define what is usual; >= 3.
    - `least`: nats an example, the smallest standard deviation that is assumed.
    - `on_alarm`: called with the report; by default a warning.

    `alarms` has the numbers of the batches that raised it (`report.batch`; None for one that was not accepted).
    """

    needs_evidence = True

    def __init__(
        self,
        threshold: float = 6.0,
        window: int = 10,
        least: float = 0.1,
        on_alarm: Callable[[Report], Any] | None = None,
    ):
        if not threshold > 0 or not least >= 0:
            raise ValueError(f"DriftAlarm: threshold must be > 0 and least >= 0, got {threshold!r} and {least!r}")
        if not isinstance(window, int) or window < 3:
            raise ValueError(f"DriftAlarm: window must be a whole number >= 3, got {window!r}")
        self.threshold, self.least, self.on_alarm = threshold, least, on_alarm
        self._usual: deque[float] = deque(maxlen=window)
        self.alarms: list[int | None] = []

    def on_batch(self, report: Report) -> None:
        """Compare the evidence of a batch with that of the window."""
        if report.status is Status.UNUSUAL:
            self._raise(report, report.message)
            return
        if report.log_evidence is None:
            raise ValueError("DriftAlarm needs evidence: learner.update(..., evidence=True), as learner.fit does")
        now, usual = report.log_evidence / max(1, report.examples), self._usual
        full = len(usual) == usual.maxlen
        if full and not self._within(now):
            usual.clear()
            self._raise(report, f"log evidence an example fell to {now:.3g}")
        if math.isfinite(now):
            usual.append(now)

    def _raise(self, report: Report, why: str) -> None:
        self.alarms.append(report.batch)
        if self.on_alarm is not None:
            self.on_alarm(report)
        else:
            warnings.warn(f"the stream has changed: {why}", stacklevel=3)

    def _within(self, now: float) -> bool:
        middle = float(np.median(self._usual))
        spread = 1.4826 * float(np.median(np.abs(np.array(self._usual) - middle)))
        return now >= middle - self.threshold * max(spread, self.least)
