"""Whether what a batch has taught may become the posterior."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from .gaussian import Gaussian
from .graph import all_proper
from .guard import NOTHING_BETTER
from .inference import Result, Status, Trace

# What the guard did in another round than the one that counts begins with this.
_OTHER = "round"
# Beliefs that would still move by so many standard deviations are lost.
_LOST = 100.0


def ended_badly(result: Result) -> bool:
    """Diverged; or out of iterations while the guard was still at it, so that precisions are those of lost messages.

    (Units at a kink keep moving by a few standard deviations; that is no divergence.)
    """
    if result.status not in (Status.ITERATION_LIMIT, Status.ROUNDING):
        return result.status is Status.DIVERGED
    guard = [line for line in result.guard if not line.startswith(_OTHER)]
    if any(NOTHING_BETTER in line for line in guard):
        return True  # precisions would grow, and nothing would have been learnt
    struggling = any("diverging" in line for line in guard[-2:]) and not result.residual <= _LOST
    return struggling or "proximal factors" in guard or not np.isfinite(result.trace.total_energy[-1])


def joined_rounds(results: Sequence[Result]) -> Result:
    """One result of rounds that each began where the one before had ended: the last one that ended well.

    (A round that begins near the optimum may find nothing better than its start; what was found before still counts.)
    """
    good = [i for i, r in enumerate(results) if not ended_badly(r)]
    chosen = good[-1] if good else len(results) - 1
    told = [(f"{_OTHER} {i + 1}, " if i != chosen else "", line) for i, r in enumerate(results) for line in r.guard]
    return dataclasses.replace(
        results[chosen],
        iterations=sum(r.iterations for r in results),
        trace=Trace.joined([r.trace for r in results[: chosen + 1]]),
        guard=tuple(which + line for which, line in told),
    )


def all_sound(beliefs: dict[str, Gaussian]) -> bool:
    """Whether every belief is finite and proper."""
    return all(np.isfinite(np.asarray(g.eta) + np.asarray(g.lam)).all() and all_proper(g) for g in beliefs.values())
