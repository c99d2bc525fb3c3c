"""Schedules: in which order factor groups are visited.

A schedule is a small object, with a state that the loop keeps for it:

    init(groups, key) -> state                          before the first visit
    next(groups, state, diagnostics) -> move, state     which group comes next

One loop (`loop.py`) asks every schedule for one move after the other. `count(groups)` of them are an iteration.

The moves of a `FixedOrder` are known while JAX compiles: the visits of an iteration are compiled one after the other,
with nothing to choose between them. All other schedules pick while inference runs, and may go by the diagnostics of the
visits before.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import operator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .diagnostics import Diagnostics


class Groups(NamedTuple):
    """What a schedule knows of a graph."""

    names: tuple[str, ...]  # of all factor groups
    active: tuple[int, ...]  # which of them have anything to infer: only these are visited


class Forest(enum.Enum):
    """A move that is not the visit of a group."""

    SWEEP = "all factors of a forest, one by one from its leaves to its roots and back"


# A group by its number among all of them, known while JAX compiles or found while inference runs; or a forest.
Move = int | Array | Forest


class Schedule(abc.ABC):
    """In which order factor groups are visited. Its methods are called inside of compiled code.

    Schedules are equal, and share what was compiled, if they are of one class and have equal attributes, which must be
    hashable and must not change.

    A schedule of your own that picks (here round by round, each in a new random order):

    ```python
    class Shuffled(gbp.Schedule):
        def init(self, groups, key):
            return key, jnp.asarray(groups.active), 0

        def next(self, groups, state, diagnostics):
            key, order, turn = state
            key, draw = jax.random.split(key)
            order = jnp.where(turn == 0, jax.random.permutation(draw, order), order)
            return order[turn], (key, order, (turn + 1) % len(groups.active))
    ```
    """

    # Whether `next` goes by the diagnostics. If it does not, a group must have been visited to count as at rest, and
    # large graphs are diagnosed every few iterations only.
    by_diagnostics: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *sorted(vars(self).items())))

    @abc.abstractmethod
    def init(self, groups: Groups, key: Array) -> Any:
        """The state before the first move: a pytree of arrays. A warm start on the same groups goes on with its state.

        **Arguments:** `key`: for schedules that draw at random.
        """

    @abc.abstractmethod
    def next(self, groups: Groups, state: Any, diagnostics: Diagnostics) -> tuple[Move, Any]:
        """The next move, one of `groups.active`, and the state after it. (Any other number visits nothing.)

        **Arguments:** `diagnostics`: of each group, of its last visit; `diagnostics.priority` is how far the variables
        of a group have moved since (in standard deviations), and what damping held back then.
        """

    def count(self, groups: Groups) -> int:
        """How many moves are an iteration: by default as many as there are groups to visit."""
        return len(groups.active)


class FixedOrder(Schedule):
    """The same order in every iteration. Its state is the number of the next move; None where an iteration begins."""

    @abc.abstractmethod
    def order(self, names: tuple[str, ...]) -> tuple[int | Forest, ...]:
        """The moves of one iteration; groups as numbers into `names`."""

    def moves(self, groups: Groups) -> tuple[int | Forest, ...]:
        """Those of them that are made: groups with nothing to infer are left out."""
        out = []
        for move in self.order(groups.names):
            number = move if isinstance(move, Forest) else operator.index(move)
            if not (isinstance(number, Forest) or 0 <= number < len(groups.names)):
                raise ValueError(f"schedule: {type(self).__name__} orders group {number} of {len(groups.names)}")
            if isinstance(number, Forest) or number in groups.active:
                out.append(number)
        return tuple(out)

    def init(self, groups: Groups, key: Array) -> None:
        """At the beginning of an iteration."""

    def next(
        self, groups: Groups, state: int | None, diagnostics: Diagnostics | None
    ) -> tuple[int | Forest, int | None]:
        """By its number, whatever the diagnostics."""
        moves, at = self.moves(groups), state or 0
        return moves[at], None if at + 1 == len(moves) else at + 1

    def count(self, groups: Groups) -> int:
        """Of the whole order."""
        return len(self.moves(groups))


@dataclasses.dataclass(frozen=True)
class Sweep(FixedOrder):
    """Forward and back: groups 0 ... L-1, then L-2 ... 1 (group 0 begins the next iteration)."""

    def order(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """0 ... L-1, L-2 ... 1."""
        count = len(names)
        return (*range(count), *range(count - 2, 0, -1))


@dataclasses.dataclass(frozen=True)
class Order(FixedOrder):
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
class RandomLayers(Schedule):
    """Asynchronous: each visit draws a group uniformly with replacement, L visits an iteration. Its state is a key."""

    def init(self, groups: Groups, key: Array) -> Array:
        """The key of the first draw."""
        return jnp.array(key)  # a copy: the loop gives the buffers of its state away

    def next(self, groups: Groups, state: Array, diagnostics: Diagnostics) -> tuple[Array, Array]:
        """A uniform draw."""
        key, draw = jax.random.split(state)
        return jnp.asarray(groups.active)[jax.random.randint(draw, (), 0, len(groups.active))], key


@dataclasses.dataclass(frozen=True)
class Residual(Schedule):
    """Visit next the group whose variables have moved most since it was last visited, L visits an iteration.

    After Elidan et al. 2006; how far the inputs moved stands in for the residual of the messages themselves, which
    would cost as much as sending them (Sutton & McCallum 2007).
    """

    by_diagnostics: ClassVar[bool] = True

    def init(self, groups: Groups, key: Array) -> None:
        """There is none: the diagnostics say all."""

    def next(self, groups: Groups, state: None, diagnostics: Diagnostics) -> tuple[Array, None]:
        """The largest priority; the first of equals."""
        active = jnp.asarray(groups.active)
        return active[jnp.argmax(diagnostics.priority[active])], None


@dataclasses.dataclass(frozen=True)
class TreeOrder(FixedOrder):
    """Factor by factor from the leaves of a tree to its root and back.

    The beliefs of a linear graph without loops are exact after one iteration, however long its chains are: ten thousand
    steps take one, where `gbp.Sweep()` sends each group's messages at once, and knowledge travels one factor an
    iteration. Nonlinear and robust factors are linearised anew in every iteration (Gauss and Newton's method).

    Where there are loops, factors are taken in their order as long as they close none: a forest. An iteration is a
    sweep over this forest, then a visit of each group that has other factors (loop closures). So put the factors that
    make up the long chains first.

    Damping and dropout are refused: on a tree there is nothing to damp. (The guard damps steps that overshoot.)

    The default takes it by itself for linear graphs (no robust factors, no noise to learn, no damping) whose forest is
    at least 64 factors deep from its centre, if no more than a twentieth of the factors close loops.
    """

    def order(self, names: tuple[str, ...]) -> tuple[Forest]:
        """One move: factors, not groups, are what is ordered (`tree.py`)."""
        return (Forest.SWEEP,)
