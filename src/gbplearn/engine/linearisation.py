"""Where nonlinear factors are linearised, and when these points move."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import Array

from ..core.vector import Belief
from ..graph.local import LocalGroup
from .state import Own


@dataclasses.dataclass(frozen=True)
class OnMovement:
    """Move the linearisation point of a variable when its mean is further than `threshold` standard deviations away."""

    threshold: float = 0.1

    def __post_init__(self):
        if not self.threshold > 0:
            raise ValueError(f"OnMovement: the threshold must be > 0 standard deviations, got {self.threshold}")


@dataclasses.dataclass(frozen=True)
class AfterVisit:
    """Move the linearisation point of a group to the means at the end of its own visit, for its next one.

    Messages of other groups that arrive in between move it one visit late. That is how the authors of the paper ran
    their experiments; the paper itself, and the default, linearise at the current means.
    """


Relinearise = int | OnMovement | AfterVisit  # every so many visits, or one of these


def _refresh(relinearise: Relinearise, own: Own, means: dict[str, Array], old: dict[str, Belief]):
    """The linearisation point of this visit, and what of it is stored."""
    stored = own.points
    if stored is None:
        return means, None
    first = own.visits == 0
    if isinstance(relinearise, AfterVisit):
        return stored, stored
    if isinstance(relinearise, OnMovement):
        points = {}
        for name, x0 in stored.items():
            far = (means[name] - x0) ** 2 * old[name].precisions > relinearise.threshold**2
            points[name] = jnp.where(first | far, means[name], x0)
    else:
        due = own.visits % relinearise == 0
        points = {name: jnp.where(due, means[name], x0) for name, x0 in stored.items()}
    return points, points


def linearisation_points(
    local: LocalGroup, relinearise: Relinearise, own: Own, means: dict[str, Array], old: dict[str, Belief]
) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """Where a group is linearised at this visit, and what of it is stored.

    **Arguments:** of its variables the means and the beliefs before the visit.
    """
    first = {n: jnp.where(own.visits == 0, local.start[n], x) for n, x in means.items() if n in local.started}
    return _refresh(relinearise, own, {**means, **first}, old)
