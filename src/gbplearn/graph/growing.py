"""Variables and factor groups that grow: arrays with room for more rows, so that what is compiled fits for long.

What is compiled knows shapes, not how many rows of an array are in use. A variable with room for 256 poses is an array
of 256 of them, whatever is used; those that are not have the belief N(0, 1), to which no factor sends anything. A group
with room for 256 factors has 256 rows; those that are not in use are copies of one that is (so that `h` is finite
there), with weight 0 and without edges (`edges/padded.py`).

Only when the rows do not suffice is the room doubled, and compiled anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..core.gaussian import Gaussian
from ..edges.base import Edges
from ..edges.padded import PaddedEdges, levels_for, padded_edges
from ..factors.measurement import FactorKind, Function
from .data import FactorData
from .factor import Factor, check_noise_range
from .group import Group, Role
from .variable import Variable, View

# Rows that there is room for if nobody says how many: at least so many, but not more numbers than these in all.
DEFAULT_ROWS = 256
DEFAULT_NUMBERS = 1 << 16
# What is fuller than this grows together with what must: one compilation instead of two.
NEARLY_FULL = 0.75


def default_room(rows: int, size: int) -> int:
    """The room of an array that begins to grow: `rows` of `size` numbers each are in use."""
    return at_least(rows, min(DEFAULT_ROWS, max(1, DEFAULT_NUMBERS // max(size, 1))))


def at_least(rows: int, room: int) -> int:
    """The room doubled until there is enough of it."""
    while room < rows:
        room *= 2
    return room


def _wider(array: np.ndarray, rows: int) -> np.ndarray:
    """The same array with room for so many rows; what is new is 0."""
    out = np.zeros((rows, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


class GrowingVariable:
    """The numbers of a variable that grows along its first axis. Its `Variable` knows how many rows are in use.

    **Arguments:** its prior, and where it is linearised first.
    """

    def __init__(self, variable: Variable, prior: Gaussian, start: Any, room: int, proper: bool):
        self.variable, self.room, self.proper = variable, at_least(variable.shape[0], room), proper
        self._eta, self._lam, self._start = (np.array(a) for a in (prior.eta, prior.lam, start))
        self._widen(self.room)

    @property
    def used(self) -> int:
        """Rows in use."""
        return self.variable.shape[0]

    @property
    def full(self) -> float:
        """Which share of the room is in use."""
        return self.used / self.room

    @property
    def padded(self) -> Variable:
        """The variable as it is compiled."""
        return Variable(self.variable.name, (self.room, *self.variable.shape[1:]), self.variable.block)

    def grow(self, prior: Gaussian, start: Any, proper: bool) -> None:
        """Add rows."""
        old = self.used
        rows = old + prior.shape[0]
        self._widen(rows)
        self._eta[old:rows], self._lam[old:rows], self._start[old:rows] = (
            np.asarray(a) for a in (prior.eta, prior.lam, start)
        )
        self.proper = self.proper and proper
        # The user's handle: `x[-1:]` is the newest row.
        object.__setattr__(self.variable, "shape", (rows, *self.variable.shape[1:]))

    def _widen(self, rows: int) -> None:
        have = len(self._eta)
        if rows <= have:
            return
        rows = at_least(rows, max(have, 1))
        self._eta, self._lam, self._start = (_wider(a, rows) for a in (self._eta, self._lam, self._start))
        # What is not in use is known, and known to be at rest.
        self._lam[have:] = self.variable.family.one(self.variable.shape[1:], self._lam.dtype)

    def fit(self) -> bool:
        """Double the room until all rows fit; whether it had to be."""
        return self.make_room(at_least(self.used, self.room))

    def make_room(self, room: int) -> bool:
        """Whether there was less."""
        less, self.room = room > self.room, max(room, self.room)
        self._widen(self.room)
        return less

    def prior(self) -> Gaussian:
        """Of the rows in use."""
        return Gaussian(self._eta[: self.used].copy(), self._lam[: self.used].copy())  # pyright: ignore[reportArgumentType]

    def start(self) -> np.ndarray:
        """Of the rows in use."""
        return self._start[: self.used].copy()

    def padded_prior(self) -> Gaussian:
        """Of all rows."""
        return Gaussian(self._eta[: self.room].copy(), self._lam[: self.room].copy())  # pyright: ignore[reportArgumentType]

    def padded_start(self) -> np.ndarray:
        """Of all rows."""
        return self._start[: self.room].copy()

    def pad(self, values: np.ndarray) -> np.ndarray:
        """Values of the first rows, with 0 for all others."""
        return _wider(values[: self.room], self.room)

    def pad_belief(self, belief: Gaussian) -> Gaussian:
        """Beliefs of the first rows, with those of rows that are not in use for all others."""
        rows = min(belief.shape[0], self.room)
        eta, lam = np.zeros((self.room, *belief.shape[1:]), belief.dtype), self._lam[: self.room].copy()
        lam[:] = belief.family.one(belief.shape[1:], lam.dtype)
        eta[:rows], lam[:rows] = np.asarray(belief.eta)[:rows], np.asarray(belief.lam)[:rows]
        return Gaussian(eta, lam)  # pyright: ignore[reportArgumentType]


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedView(View):
    """The units of the factors of a group that grows."""

    group: GrowingFactors | None = None
    argument: int = 0

    def edges(self, factors: int) -> Edges:
        """With room for more."""
        assert self.group is not None
        return self.group.edges(self.argument, self.variable.unit_shape)


class GrowingFactors:
    """The rows of a factor group that grows. A factor has a number, which none after it gets, and a place.

    Places of factors that were removed are used again.
    """

    def __init__(self, factor: Factor, room: int):
        if isinstance(factor.h, FactorKind):
            raise ValueError(f"factor '{factor.name}': only groups with a function of one factor can grow, not layers")
        self.factor, self.room, self.next = factor, at_least(factor.factors, room), 0
        self._numbers = np.full(self.room, -1)  # of the factor at each place
        self._place: dict[int, int] = {}  # of each factor, by its number
        self._free: list[int] = []  # places in the midst of others
        self._ends = 0  # no place from here on has been used
        self._copied = 0  # a place whose row is a sound one
        self._levels = [1] * len(factor.args)
        self._laid: list[Any] = [None] * len(factor.args)  # edge sets of the last layout
        first = _new_rows(factor)
        self._rows = [np.zeros((self.room, *a.shape[1:]), a.dtype) for a in first]
        self.version = 0
        self._put(first, factor.factors)

    # What is in use.

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of all factors, in their order."""
        return np.sort(self._numbers[self._numbers >= 0])

    @property
    def empty(self) -> bool:
        """Whether there never was a factor."""
        return self.next == 0

    def as_factor(self) -> Factor:
        """The factors that there are, in the order in which they were added."""
        places = np.asarray([self._place[n] for n in self.numbers.tolist()], int)
        return self._factor([row[places] for row in self._rows], len(places), None)

    # What changes.

    def extend(self, args: Any, y: Any, sigma: Any, covariance: Any, weight: Any, dtype: Any) -> np.ndarray:
        """Add factors; what is wrong with them is raised before anything changes.

        **Returns:** their numbers.
        """
        new = self.factor.more(args, y, sigma, covariance, weight)
        check_noise_range(new.name, np.asarray(new.noise, dtype), dtype)
        return self._put(_new_rows(new), new.factors)

    def _put(self, rows: Sequence[np.ndarray], count: int) -> np.ndarray:
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        places = np.asarray([*again, *range(self._ends, self._ends + count - len(again))], int)
        self._ends += count - len(again)
        if self._ends > len(self._numbers):
            size = at_least(self._ends, len(self._numbers))
            self._rows = [_wider(a, size) for a in self._rows]
            self._numbers = np.append(self._numbers, np.full(size - len(self._numbers), -1))
        numbers = np.arange(self.next, self.next + count)
        for mine, new in zip(self._rows, rows):
            mine[places] = new
        self._numbers[places] = numbers
        self._place.update(zip(numbers.tolist(), places.tolist()))
        self.next += count
        if count:
            self._copied, self.version = int(places[0]), self.version + 1
        return numbers

    def remove(self, numbers: Any) -> None:
        """Take factors out, by their numbers; all of them or, if one is not there, none."""
        name = self.factor.name
        try:
            wanted = np.atleast_1d(np.asarray(numbers))
            if wanted.dtype.kind not in "iu" and wanted.size:
                raise TypeError
            wanted = [int(n) for n in wanted.ravel()]
        except (TypeError, ValueError):
            raise ValueError(f"factor '{name}': remove takes numbers of factors, got {numbers!r}") from None
        missing = [n for n in wanted if n not in self._place]
        if missing:
            why = "was removed already" if 0 <= missing[0] < self.next else "never was there"
            raise ValueError(f"factor '{name}': factor {missing[0]} {why}")
        if len(set(wanted)) < len(wanted):
            raise ValueError(f"factor '{name}': remove names a factor twice")
        places = [self._place.pop(n) for n in wanted]
        self._numbers[places] = -1
        self._free += places[::-1]
        self.version += 1
        there = np.flatnonzero(self._numbers >= 0)
        # Of a group without factors the last row stays as a pattern: its units are still there.
        self._copied = int(there[0]) if len(there) else self._copied

    # As it is compiled.

    def fit(self) -> bool:
        """Double the room until all factors fit, and add levels to edge sets; whether anything had to be."""
        changed = self.make_room(at_least(self._ends, self.room))
        used = self._numbers >= 0
        for i, a in enumerate(self.factor.args):
            if isinstance(a, View):
                most = int(np.bincount(self._rows[i][used].ravel(), minlength=1).max())
                levels = max(levels_for(most), self._levels[i])
                changed, self._levels[i] = changed or levels > self._levels[i], levels
        return changed

    def make_room(self, room: int) -> bool:
        """Whether there was less."""
        less, self.room = room > self.room, max(room, self.room)
        if self.room > len(self._numbers):
            self._rows = [_wider(a, self.room) for a in self._rows]
            self._numbers = np.append(self._numbers, np.full(self.room - len(self._numbers), -1))
        self.version += less
        return less

    @property
    def full(self) -> float:
        """Which share of the room is in use."""
        return self._ends / self.room

    def padded_numbers(self) -> np.ndarray:
        """The number of the factor in each row, -1 for none."""
        return self._numbers[: self.room].astype(np.int32)

    def padded_rows(self) -> list[np.ndarray]:
        """All rows of the arguments, `y`, the noise unless it is learnt, and the weights: 0 of rows not in use."""
        unused = self._numbers[: self.room] < 0
        rows = []
        for a in self._rows:
            row = a[: self.room].copy()
            row[unused] = a[self._copied]
            rows.append(row)
        rows[-1][unused] = 0
        return rows

    def padded_factor(self) -> Factor:
        """All rows, as a factor to be laid out."""
        return self._factor(self.padded_rows(), self.room, self)

    def edges(self, argument: int, unit_shape: tuple[int, ...]) -> PaddedEdges:
        """The edge set of one argument."""
        key = self.version, unit_shape, self._levels[argument]
        if self._laid[argument] is None or self._laid[argument][0] != key:
            used = self._numbers[: self.room] >= 0
            ids = self._rows[argument][: self.room].copy()
            ids[~used] = self._rows[argument][self._copied]
            self._laid[argument] = key, padded_edges(ids, used, unit_shape, self._levels[argument])
        return self._laid[argument][1]

    def _factor(self, rows: list[np.ndarray], count: int, padded: GrowingFactors | None) -> Factor:
        """A factor of these rows; nothing is checked again."""
        old, args = self.factor, []
        for i, (a, row) in enumerate(zip(old.args, rows)):
            if isinstance(a, View):
                shape = (count, *a.shape[1:])
                view = PaddedView(a.variable, shape, ids=row.reshape(shape), group=padded, argument=i)
                args.append(view if padded else View(a.variable, shape, ids=row.reshape(shape)))
            else:
                args.append(row)
        y, weight = rows[len(args)], rows[-1]
        noise = old.noise if old.learn is not None else rows[len(args) + 1]
        new = object.__new__(Factor)
        new.__dict__.update(old.__dict__)
        new.__dict__.update(
            args=tuple(args), y=y, noise=noise, weight=weight, weights=weight, grid=(count,), capacity=self.room,
            measurement=Function(old.h, old.jacobian, count, old.outputs),  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        return new


def factor_data(group: Group, growing: GrowingFactors, dtype: Any) -> FactorData:
    """The numbers that a growing group has now; `group` is how it was laid out."""
    rows = growing.padded_rows()
    parts: dict[Role, list[Any]] = {role: [] for role in Role}
    slots = {Role.SLOT: group.slots, Role.HELD: group.held, Role.FIXED: group.fixed}
    for place, (role, i) in enumerate(group.arguments):
        if role is Role.CONSTANT:
            parts[role].append(rows[place].astype(group.constants[i].dtype))
        else:
            parts[role] += growing.edges(place, slots[role][i].edges.unit_shape).arrays
    y, *noise, weight = rows[len(group.arguments) :]
    return FactorData(
        y.astype(dtype),
        noise[0].astype(dtype) if noise else group.noise,
        weight.astype(dtype),
        tuple(parts[Role.CONSTANT]),
        group.noise_prior,
        (*parts[Role.SLOT], *parts[Role.HELD], *parts[Role.FIXED], *jax.tree.leaves((group.robust, group.measurement))),
        growing.padded_numbers(),
    )


def _new_rows(factor: Factor) -> list[np.ndarray]:
    """The rows of a factor's arguments (units, or constants), `y`, its noise unless it is learnt, and its weights."""
    count, out = factor.factors, []
    for a in factor.args:
        row = a.unit_ids() if isinstance(a, View) else a
        out.append(np.broadcast_to(row, (count, *row.shape[1:])))
    out.append(np.broadcast_to(factor.y, (count, factor.outputs)))
    if factor.learn is None:
        out.append(np.broadcast_to(factor.noise, (count, *factor.noise.shape[1:])))
    weights = 1.0 if factor.weights is None else factor.weights
    out.append(np.array(np.broadcast_to(np.asarray(weights, float), (count,))))
    return out
