"""Whether what a batch has taught may become the posterior."""

from __future__ import annotations

import numpy as np

from .gaussian import Gaussian
from .graph import all_proper
from .guard import NOTHING_BETTER
from .inference import Result, Status

# Beliefs that would still move by so many standard deviations are lost.
_LOST = 100.0


def ended_badly(result: Result) -> bool:
    """Diverged; or out of iterations while the guard was still at it, so that precisions are those of lost messages.

    (Units at a kink keep moving by a few standard deviations; that is no divergence.)
    """
    if result.status is not Status.ITERATION_LIMIT:
        return result.status is Status.DIVERGED
    if any(NOTHING_BETTER in line for line in result.guard):
        return True  # precisions would grow, and nothing would have been learnt
    struggling = any("diverging" in line for line in result.guard[-2:]) and not result.residual <= _LOST
    return struggling or "proximal factors" in result.guard or not np.isfinite(result.trace.total_energy[-1])


def all_sound(beliefs: dict[str, Gaussian]) -> bool:
    """Whether every belief is finite and proper."""
    return all(np.isfinite(np.asarray(g.eta) + np.asarray(g.lam)).all() and all_proper(g) for g in beliefs.values())
