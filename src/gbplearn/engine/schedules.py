"""Schedules: in which order factor groups are visited."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """The order of visits in one iteration. A schedule either fixes the order, or picks group after group."""

    blind: ClassVar[bool] = False  # whether it picks without regard to priorities

    @abc.abstractmethod
    def order(self, names: tuple[str, ...]) -> tuple[int, ...] | None:
        """The groups of one iteration as numbers into `names`; None if they are picked one by one."""

    def pick(self, key: Array, priority: Array) -> Array:
        """The next group.

        **Arguments:**

        - `priority`: for each group, how far its variables have moved since it was last visited (in standard
            deviations), and what damping held back then.
        """
        raise TypeError(f"{type(self).__name__} has a fixed order")


@dataclasses.dataclass(frozen=True)
class Sweep(Schedule):
    """Forward and back: groups 0 ... L-1, then L-2 ... 1 (group 0 begins the next iteration)."""

    def order(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """0 ... L-1, L-2 ... 1."""
        count = len(names)
        return (*range(count), *range(count - 2, 0, -1))


@dataclasses.dataclass(frozen=True)
class RandomLayers(Schedule):
    """Asynchronous: each visit draws a group uniformly with replacement, L visits an iteration."""

    blind: ClassVar[bool] = True

    def order(self, names: tuple[str, ...]) -> None:
        """Drawn during inference."""

    def pick(self, key: Array, priority: Array) -> Array:
        """A uniform draw."""
        return jax.random.randint(key, (), 0, priority.shape[0])


@dataclasses.dataclass(frozen=True)
class Residual(Schedule):
    """Visit next the group whose variables have moved most since it was last visited, L visits an iteration.

    After Elidan et al. 2006; how far the inputs moved stands in for the residual of the messages themselves, which
    would cost as much as sending them (Sutton & McCallum 2007).
    """

    def order(self, names: tuple[str, ...]) -> None:
        """Picked during inference."""

    def pick(self, key: Array, priority: Array) -> Array:
        """The largest priority; the first of equals."""
        return jnp.argmax(priority)


@dataclasses.dataclass(frozen=True)
class Order(Schedule):
    """The user's own order, by the names of the factor groups: `gbp.Order("range", "odometry", "range")`."""

    names: tuple[str, ...]

    def __init__(self, *names: str):
        object.__setattr__(self, "names", tuple(names))

    def order(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """As given."""
        for n in self.names:
            if n not in names:
                raise ValueError(f"schedule: there is no factor group '{n}' (there are: {', '.join(names)})")
        missing = [n for n in names if n not in self.names]
        if missing:
            raise ValueError(f"schedule: the order never visits {', '.join(missing)}")
        return tuple(names.index(n) for n in self.names)


@dataclasses.dataclass(frozen=True)
class TreeOrder(Schedule):
    """Factor by factor from the leaves of a tree to its root and back: for graphs without loops.

    The beliefs of a linear graph are exact after one iteration, however long its chains are: ten thousand steps take
    one, where `gbp.Sweep()` sends each group's messages at once, and knowledge travels one factor an iteration.
    Nonlinear and robust factors are linearised anew in every iteration (Gauss and Newton's method). Damping and dropout
    are refused: there is nothing to damp. (The guard damps steps of nonlinear graphs that overshoot.)

    The default takes it by itself for linear graphs (no robust factors, no noise to learn, no damping) without loops
    that are at least 64 factors deep from the centre.
    """

    def order(self, names: tuple[str, ...]) -> None:
        """Factors, not groups, are what is ordered (`tree.py`)."""
