"""The history of a learner: a record of every batch, and the contributions that `Learner.forget` divides by."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.gaussian import Gaussian
from ..core.noise import LearnNoise
from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief
from .filtering import Beliefs, Filtering
from .posterior import Posterior
from .report import Report
from .unusual import BatchStatistics, joined

# Records of so many batches are kept, and contributions of so many: those of the last ones.
MOST, MOST_CONTRIBUTIONS = 10_000, 1_000
_FORMERLY = {"taught": "contributions"}  # names of fields in older pickles
# Of the precision before, in units of the last place: by so much it may seem to fall below the prior's.
_ROUNDING = 8
# The same of variances of vectors, whose precisions are found by inverses of what float32 has kept.
_ROUNDING_OF_VECTORS = 1e-3
# Bytes of vectors that are kept at most, unless users ask for a number of batches.
_MOST_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class BatchRecord:
    """The record of a batch that was learnt from."""

    batch: int  # its number, from 0
    examples: int
    status: str  # how inference ended
    iterations: int
    energy: float
    gained: float  # nats: KL of the posterior from the prior of this batch
    recorded: bool  # whether it can be forgotten
    forgotten: bool = False


class Change(NamedTuple):
    """What a batch has made of vectors: their ratio is computed when it is needed, it takes an inverse of each."""

    given: UnitVectors  # before it, after filtering
    after: UnitVectors


@dataclasses.dataclass(frozen=True)
class Contribution:
    """The contribution of a batch to the posterior: `forget` divides by it.

    - `beliefs`: its posterior divided by its prior, by parameter; of vectors both of them.
    - `noise`: by layer that learns its noise, the weight (measurements) and the squares that the batch added.
    - `statistics`: of its examples.
    """

    beliefs: dict[str, Gaussian | Change]
    noise: dict[str, tuple[float, float]]
    statistics: BatchStatistics


@dataclasses.dataclass(frozen=True)
class Before:
    """What a learner knew before its last batch, bit for bit: beliefs, noise and caution."""

    beliefs: Beliefs
    noise: dict[str, LearnNoise]
    caution: int


@dataclasses.dataclass(frozen=True)
class Entry:
    """All that a history keeps of a batch; contribution and `before` are None if batches are not recorded."""

    record: BatchRecord
    contribution: Contribution | None
    before: Before | None
    statistics: BatchStatistics


class History:
    """Records of all batches; with `record` also the contribution of each, and what was known before the last."""

    def __init__(self, record: bool, most: int = MOST, most_contributions: int = MOST_CONTRIBUTIONS):
        self.record, self.most, self.most_contributions = record, most, most_contributions
        self.fits = False  # whether so many are kept as there is room for: users gave no number
        self.count = 0  # the number of the next batch
        self.entries: deque[BatchRecord] = deque(maxlen=most)
        self.contributions: dict[int, Contribution] = {}
        self.before: Before | None = None
        self.earlier = BatchStatistics()  # of the batches that have no contribution here
        self.statistics = BatchStatistics()  # of all batches that were learnt from
        self._aside: dict[int, BatchRecord] = {}

    @classmethod
    def keeping(cls, record: bool | int, beliefs: Mapping[str, Belief] | None = None) -> History:
        """For `Learner(record=)`: keeps the contributions of no batches, of the last 1,000, or of so many.

        **Arguments:** `beliefs`: of the parameters; of long vectors fewer than 1,000 are kept.
        """
        if not isinstance(record, bool) and record:
            return cls(True, most_contributions=int(record))
        vectors = [b for b in (beliefs or {}).values() if isinstance(b, UnitVectors)]
        # Of each batch two beliefs, which it may share with those before and after it.
        each = 2 * sum(np.asarray(leaf).nbytes for belief in vectors for leaf in jax.tree.leaves(belief))
        most = min(MOST_CONTRIBUTIONS, max(1, _MOST_BYTES // each)) if each else MOST_CONTRIBUTIONS
        out = cls(bool(record), most_contributions=most)
        out.fits = True
        return out

    @property
    def keeps(self) -> bool | int:
        """The argument of `keeping`."""
        return self.record if self.fits else self.record and self.most_contributions

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle; older ones have fewer fields, and other names for some."""
        state = {_FORMERLY.get(name, name): value for name, value in state.items()}
        new = {
            "earlier": BatchStatistics(),
            "statistics": BatchStatistics(),
            "most": MOST,
            "most_contributions": MOST_CONTRIBUTIONS,
            "fits": False,
        }
        self.__dict__.update(new | state)

    def copy(self) -> History:
        """The same records, which then go different ways."""
        out = copy.copy(self)
        out.entries, out.contributions, out._aside = self.entries.copy(), dict(self.contributions), dict(self._aside)
        return out

    def entry(
        self,
        report: Report,
        before: Before,
        given: Beliefs,
        after: Beliefs,
        noise: Mapping[str, LearnNoise],
        learnt: Mapping[str, LearnNoise],
        statistics: BatchStatistics,
        repeated: Collection[str] = (),
    ) -> Entry:
        """The entry of a batch, for `put`.

        **Arguments:**

        - `report`: of the batch, which was accepted.
        - `before`: what was known before it; `given`: its prior, after filtering; `after`: its posterior.
        - `noise`, `learnt`: the noise before and after it.
        - `statistics`: of its examples.
        - `repeated`: parameters that are tied to another one, and are left out of `gained`.
        """
        of = report.examples, report.status.name, report.iterations, report.energy
        end, start = ({n: g for n, g in beliefs.items() if n not in repeated} for beliefs in (after, given))
        # That of vectors is known from when they were absorbed: of long ones it takes seconds to compute.
        known = [g.gained for g in end.values() if isinstance(g, UnitVectors) and g.gained is not None]
        end = {n: g for n, g in end.items() if not (isinstance(g, UnitVectors) and g.gained is not None)}
        gained = sum(Posterior(end).diff({n: start[n] for n in end}).values(), sum(known, 0.0))
        record = BatchRecord(self.count, *of, gained, self.record)
        if not self.record:
            return Entry(record, None, None, statistics)
        ratios = {
            name: Change(given[name], belief) if isinstance(belief, UnitVectors) else belief / given[name]
            for name, belief in after.items()
        }
        more = {n: (p.weight - noise[n].weight, p.squares - noise[n].squares) for n, p in learnt.items()}
        return Entry(record, Contribution(ratios, more, statistics), before, statistics)

    def begin_with(self, statistics: BatchStatistics) -> None:
        """Set the statistics of the batches before, of which there are no records."""
        self.earlier = self.statistics = statistics

    def put(self, entry: Entry) -> None:
        """Add the entry of a batch that has been learnt from."""
        record, contribution, self.before = entry.record, entry.contribution, entry.before
        self.entries.append(record)
        self.count += 1
        self.statistics = self.statistics.joined(entry.statistics)
        if contribution is None:
            self.earlier = self.earlier.joined(entry.statistics)
            return
        self.contributions[record.batch] = contribution
        for old in [n for n in self.contributions if n <= record.batch - self.most_contributions]:
            self.earlier = self.earlier.joined(self.contributions.pop(old).statistics)
            self._replace(old, recorded=False)

    def _replace(self, batch: int, **changes: bool) -> None:
        place = batch - self.count + len(self.entries)
        if place < 0:  # no longer remembered
            return
        self.entries[place] = dataclasses.replace(self.entries[place], **changes)

    def check_recorded(self, batch: int) -> BatchRecord:
        """The record of a batch by its number; a `ValueError` if its contribution is not recorded."""
        first = self.count - len(self.entries)
        if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or not first <= batch < self.count:
            raise ValueError(f"there is no batch {batch!r}: those from {first} to {self.count - 1} are remembered")
        record = self.entries[batch - first]
        if record.forgotten:
            raise ValueError(f"batch {batch} has been forgotten already")
        if not record.recorded:
            raise ValueError(f"batch {batch} was not recorded: Learner(..., record=True)")
        return record

    def without(
        self, batch: int, now: Before, prior: Mapping[str, Belief], filtering: Filtering
    ) -> tuple[Before, BatchRecord]:
        """What is known without a batch, and its record; a `ValueError` if the batch cannot be taken out.

        **Arguments:**

        - `now`: what is known; `prior`: what was known before all batches.
        """
        record = self.check_recorded(batch)
        if self.before is not None and batch == self.count - 1:
            return self.before, record
        if not filtering.trivial:
            raise ValueError(
                f"batch {batch} cannot be forgotten: with alpha, process_noise or forgetting, its contribution has "
                "changed since; only the batch learnt last can, once"
            )
        contribution, out = self.contributions[batch], {}
        for name, belief in now.beliefs.items():
            try:
                out[name] = _divided(belief, contribution.beliefs[name], prior[name])
            except ValueError:
                vaguer = f"batch {batch} cannot be forgotten: '{name}' would be vaguer than its prior"
                raise ValueError(vaguer) from None
        noise = {}
        for name, (weight, squares) in contribution.noise.items():
            rest = now.noise[name].weight - weight, now.noise[name].squares - squares
            if not min(rest) > 0:
                raise ValueError(f"batch {batch} cannot be forgotten: the noise of '{name}' would be unknown")
            noise[name] = LearnNoise((rest[1] / rest[0]) ** 0.5, rest[0])
        return Before(out, noise, now.caution), record

    def forget(self, batch: int) -> None:
        """Mark a batch as forgotten, and drop its contribution."""
        self._replace(batch, forgotten=True)
        self.contributions.pop(batch, None)
        self.statistics = joined([self.earlier, *(c.statistics for c in self.contributions.values())])
        self.before = None

    def drop_records(self) -> None:
        """Drop all contributions: no batch so far can be forgotten any more."""
        self.contributions, self.before, self.earlier = {}, None, self.statistics
        kept = (dataclasses.replace(e, recorded=False) if e.recorded else e for e in self.entries)
        self.entries = deque(kept, maxlen=self.most)

    def go_back(self, batch: int) -> None:
        """Make this batch, which is forgotten, the last one; records of those after it are set aside for `skip_to`."""
        self._aside = {e.batch: e for e in self.entries if e.batch > batch}
        while self.entries and self.entries[-1].batch > batch:
            self.entries.pop()
        self.count, self.before = batch + 1, None

    def skip_to(self, batch: int) -> None:
        """Give the next batch this number; those between are forgotten ones."""
        while self.count < batch:
            self.entries.append(self._aside[self.count])
            self.count += 1
            self.before = None  # what was known before the last batch: that is a forgotten one now
        if batch > max(self._aside, default=0):
            self._aside = {}


def _divided(belief: Belief, by: Gaussian | Change, prior: Belief) -> Belief:
    """A belief without a contribution; a `ValueError` if it would be vaguer than the prior."""
    if isinstance(by, Change):
        assert isinstance(belief, UnitVectors)
        rest = type(belief).merged([belief, by.given], by.after)
        if not (rest.variance <= (1 + _ROUNDING_OF_VECTORS) * prior.variance).all():
            raise ValueError("vaguer than its prior")
        return rest
    assert isinstance(belief, Gaussian)
    assert isinstance(prior, Gaussian)
    left, least = belief / by, prior.lam
    lam = np.asarray(left.lam)
    if not (lam >= least - _ROUNDING * np.finfo(lam.dtype).eps * np.asarray(belief.lam)).all():
        raise ValueError("vaguer than its prior")
    return Gaussian(left.eta, jnp.maximum(left.lam, least))
