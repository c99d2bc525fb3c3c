"""Which batches a learner has learnt from, and what each of them said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from .filtering import Beliefs, Filtering
from .gaussian import Gaussian
from .noise import LearnNoise
from .posterior import Posterior
from .update_report import Report

_ROUNDING = 1e-5  # relative, by which a precision may seem to fall below the prior's


@dataclasses.dataclass(frozen=True)
class BatchRecord:
    """A batch that was learnt from."""

    batch: int  # its number, from 0
    examples: int
    status: str  # how inference ended
    iterations: int
    energy: float
    gained: float  # nats: KL of the posterior from the prior of this batch
    recorded: bool  # whether it can be forgotten
    forgotten: bool = False


@dataclasses.dataclass(frozen=True)
class Taught:
    """What a batch has said: its posterior divided by its prior; and of noise how many measurements, and squares."""

    beliefs: Beliefs
    noise: dict[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Before:
    """What was known before the last batch, bit for bit."""

    beliefs: Beliefs
    noise: dict[str, LearnNoise]


class History:
    """Records of all batches; with `record`, also what each of them said, and what was known before the last."""

    def __init__(self, record: bool):
        self.record = record
        self.entries: list[BatchRecord] = []
        self.taught: dict[int, Taught] = {}
        self.before: Before | None = None

    def add(
        self,
        report: Report,
        before: Before,
        given: Beliefs,
        after: Beliefs,
        noise: Mapping[str, LearnNoise],
        learnt: Mapping[str, LearnNoise],
    ) -> None:
        """A batch has been learnt from.

        **Arguments:**

        - `report`: of the batch, which was accepted.
        - `before`: what was known when it came; `given`: the prior that it was given; `after`: its posterior.
        - `noise`, `learnt`: before and after it.
        """
        of = report.examples, report.status.name, report.iterations, report.energy
        told = BatchRecord(len(self.entries), *of, sum(Posterior(after).diff(given).values(), 0.0), self.record)
        self.entries.append(told)
        if self.record:
            said = {name: after[name] / given[name] for name in after}
            more = {n: (p.weight - noise[n].weight, p.squares - noise[n].squares) for n, p in learnt.items()}
            self.taught[told.batch], self.before = Taught(said, more), before

    def without(
        self, batch: int, now: Before, prior: Mapping[str, Gaussian], filtering: Filtering
    ) -> tuple[Before, BatchRecord]:
        """What would be known without a batch; a `ValueError` says why that cannot be told.

        **Arguments:**

        - `now`: what is known; `prior`: what was known before all batches.
        """
        if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or not 0 <= batch < len(self.entries):
            raise ValueError(f"there is no batch {batch!r}: {len(self.entries)} have been learnt from")
        told = self.entries[batch]
        if told.forgotten:
            raise ValueError(f"batch {batch} has been forgotten already")
        if not told.recorded:
            raise ValueError(f"batch {batch} was not recorded: Learner(..., record=True)")
        if self.before is not None and batch == len(self.entries) - 1:
            return self.before, told
        if not filtering.trivial:
            raise ValueError(
                f"batch {batch} cannot be forgotten: with alpha, process_noise or forgetting, what it said has changed "
                "since; only the last batch can"
            )
        said, out = self.taught[batch], {}
        for name, belief in now.beliefs.items():
            out[name] = belief / said.beliefs[name]
            least = np.asarray(prior[name].lam)
            if not (np.asarray(out[name].lam) >= least * (1 - _ROUNDING)).all():
                raise ValueError(f"batch {batch} cannot be forgotten: '{name}' would be vaguer than its prior")
        noise = {}
        for name, (weight, squares) in said.noise.items():
            left = now.noise[name].weight - weight, now.noise[name].squares - squares
            if not min(left) > 0:
                raise ValueError(f"batch {batch} cannot be forgotten: the noise of '{name}' would be unknown")
            noise[name] = LearnNoise((left[1] / left[0]) ** 0.5, left[0])
        return Before(out, noise), told

    def forget(self, batch: int) -> None:
        """Note that a batch is forgotten, and drop what it said."""
        self.entries[batch] = dataclasses.replace(self.entries[batch], forgotten=True)
        self.taught.pop(batch, None)
        self.before = None
