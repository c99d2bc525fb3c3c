"""The tree order: in which order the single factors of a forest send their messages, leaves to root and back.

Groups are visited as a whole by all other schedules, so that knowledge travels one factor an iteration. On a graph
without loops two messages an edge are enough, if every factor waits for those that it depends on. The order is found
once, on the host, from the edge sets alone:

1. Units and those factors that join at least two of them (*joints*) are the nodes of a graph. (Factors of one unit have
   nothing to wait for.) Its Euler tour follows each edge once in either direction: it has as many closed tours as
   components exactly if `edges = nodes - tours`, else there is a loop. Then joints are taken in their order as long as
   they close no loop. All others are *outside* of the forest: their messages are known locally, like priors.
2. Each tree is rooted at its centre, the middle of a longest path, which is found by rooting it at the far ends: so the
   order is as short as can be. Then each joint has one *parent* unit, and its other units are its *children*.
3. Joints that are alike, by the dimensions of their units and of the parent and by the number of measurements, are a
   *cohort*, whatever their groups: one computation for all of them.
4. The *level* of a joint is its distance from the root. Going up, a level needs messages of the next one only. Levels
   of similar width are *runs*: one loop over levels, each padded to the width of the widest.
5. Joints that lie at the rim (no other joint hangs on their children) can all be done at once, before all others on
   the way up and after them on the way down. They are a run of one level, if they are many.
6. A run is *straight* if each joint has one child and each child one joint at most, as in chains: joints that follow
   each other stay in one lane, and no message has to be found by an index.

A `TreePlan` holds this as index arrays: they are data, so that graphs of the same widths share compiled code.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from ..edges.base import ROWS, Edges
from ..edges.indexed import IndexEdges, RepeatedEdges, SharedEdges, SliceEdges, index_edges
from ..factors.likelihood import Likelihood
from ..graph.group import Group
from ..graph.problem import Problem

# From this many levels on a linear forest takes the tree order by itself: below, whole groups are as quick.
DEEP = 64
# Forests of no more levels are found to be so before any other work is done on them.
_SHALLOW = 4
# What another run costs, and what a level of a run costs beside its lanes, in lanes.
_RUN, _LEVEL = 4096, 16
# A linear graph takes the tree order by itself if no larger share of its joints closes loops.
_FEW_LOOPS = 0.05
# A rim is a run of its own if it has at least this share of the joints.
_RIM = 0.25


class Run(NamedTuple):
    """Levels that one loop goes through."""

    levels: int
    widths: tuple[int, ...]  # of each cohort: lanes
    straight: bool


class Cohort(eqx.Module):
    """Joints that are alike. Places are lanes of all levels of all runs, padded.

    The edges of a joint are numbered from its parent on; of the others, those of low dimension come first.
    """

    row: Int[Array, " p"]  # of each place: which factor, those of all groups in a row
    there: Array  # whether there is a factor, as a number
    position: Int[Array, "p n"]  # of each edge: its column among the edges of its dimension in the group
    unit: Int[Array, "p n"]  # of each edge: the unit among those of its dimension
    groups: tuple[int, ...] = eqx.field(static=True)
    dims: tuple[int, ...] = eqx.field(static=True)  # of each edge


class TreePlan(eqx.Module):
    """The order of messages on a forest."""

    cohorts: tuple[Cohort, ...]
    # By dimension: all joints with a parent of that dimension, as an edge set into its units.
    parents: dict[int, IndexEdges | RepeatedEdges]
    place: dict[int, Array]  # ... of each such joint, its place among those of all cohorts of that dimension
    joint: dict[int, Array]  # ... of each such place, its joint
    # Of each group that has joints in the forest, of each slot: where its messages stand among all of its dimension
    # (F, n); anything for joints outside.
    message: dict[int, tuple[Array, ...]]
    inside: dict[int, Array]  # of each group of which some joints are outside, which of them are in the forest (F,)
    runs: tuple[Run, ...] = eqx.field(static=True)  # from the roots on
    depth: int = eqx.field(static=True)  # levels from the root to the last leaf
    outside: tuple[int, ...] = eqx.field(static=True, default=())  # groups with joints outside of the forest


class _Joints(NamedTuple):
    """The edges of a group of joints."""

    group: int
    all_units: np.ndarray  # (F, n): numbers of all units
    rows: np.ndarray  # which of its factors are in the forest
    dims: np.ndarray  # (n,), sorted
    columns: list[tuple[int, int]]  # of each edge: slot and place in its row

    @property
    def units(self) -> np.ndarray:
        """Of the factors in the forest."""
        return self.all_units[self.rows]

    @property
    def factors(self) -> int:
        """All of them."""
        return len(self.all_units)


class _Alike(NamedTuple):
    """What joints of one cohort have in common."""

    dims: tuple[int, ...]  # sorted
    parent: int  # its dimension
    outputs: int


def dimension(problem: Problem, name: str) -> int:
    """Of the units of a variable: 1 for scalars."""
    prior = problem.prior[name]
    return prior.family.dim(prior.shape)


def unit_pools(problem: Problem) -> dict[int, list[str]]:
    """Variables by the dimension of their units: the units of one dimension are numbered through.

    By name: in compiled code the keys of a dictionary are sorted.
    """
    out: dict[int, list[str]] = {}
    for name in sorted(problem.prior):
        out.setdefault(dimension(problem, name), []).append(name)
    return out


def units_of(problem: Problem, name: str) -> int:
    """How many units a variable has."""
    prior = problem.prior[name]
    return math.prod(prior.family.unit_shape(prior.shape))


def joins(group: Group) -> bool:
    """Whether its factors have more than one edge."""
    return sum(s.units for s in group.slots) > 1


def unit_ids(edges: Edges, factors: int) -> np.ndarray:
    """The unit of every edge `(F, n)`, as flat numbers."""
    if isinstance(edges, SharedEdges):
        found = unit_ids(edges.inner, 1)
    elif isinstance(edges, SliceEdges):
        numbers = np.arange(edges.units).reshape(edges.unit_shape)
        found = numbers[tuple(slice(a, a + n * step, step) for a, n, step in edges.slices)].reshape(edges.shape)
    elif isinstance(edges, (IndexEdges, RepeatedEdges)):
        found = np.asarray(edges.index)
    else:
        found = np.asarray(edges.spread(jnp.arange(edges.units).reshape(edges.unit_shape)))
    return np.broadcast_to(found, (factors, edges.row))


def _unfit(group: Group) -> str | None:
    """Why a group cannot be visited factor by factor."""
    if group.numbers is not None:  # its plan would be compiled anew with every factor
        return f"the group '{group.name}' grows"
    if isinstance(group.measurement, Likelihood):  # expanded under beliefs, which a sweep does not have
        return f"'{group.name}' is a likelihood that is not Gaussian"
    for slot in group.slots:
        if slot.table is not None:
            return f"'{slot.variable}' of '{group.name}' is a vector variable"
        if slot.pooled:
            return f"the messages of '{group.name}' are pooled (use messages='per-edge')"
        if slot.edges.rows is not ROWS or slot.edges.present() is not None:
            return f"'{group.name}' is a layer"
    return None


def tree_plan(problem: Problem) -> TreePlan:
    """The order of messages on the forest of a graph; a `ValueError` names a group that has no single messages."""
    for group in problem.groups:
        why = _unfit(group)
        if why is not None:
            raise ValueError(f"schedule: gbp.TreeOrder() sends single messages, and {why}")
    return _found(_Forest(problem)).plan


class _Found(NamedTuple):
    """What is known of the forest of a graph."""

    depth: int
    inside: int  # how many joints are in it
    plan: TreePlan


# The forests that were found last, by all that they depend on: to find one takes longer than a sweep over it.
_KEPT: OrderedDict[tuple, _Found] = OrderedDict()
_MOST_KEPT = 16
_LOCK = threading.Lock()


def _found(forest: _Forest) -> _Found:
    """What was found before, of a graph with the same joints; or what is found now."""
    key = forest.key()
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key]
    spanning = _spanning(forest)
    with jax.ensure_compile_time_eval():  # what is kept must not belong to a program that is being compiled
        plan = _lay_out(spanning)
    found = _Found(spanning.depth(), sum(len(j.rows) for j in spanning.joints), plan)
    with _LOCK:
        _KEPT[key] = found
        if len(_KEPT) > _MOST_KEPT:
            _KEPT.popitem(last=False)
    return found


def _spanning(forest: _Forest) -> _Forest:
    """The forest itself, or one of the joints that close no loop; its tours are made."""
    if not forest.is_forest():
        forest = forest.without_loops()
        assert forest.is_forest()
    return forest


def deep_linear_plan(problem: Problem, edges: Callable[[], Problem]) -> TreePlan | None:
    """The plan of a linear graph whose forest has at least `DEEP` levels, and nearly all of its joints; else None.

    Without loops its tree order is exact after one iteration. Decided without any work on the edges where possible:
    nearly all graphs are not like that.
    """
    active = [problem.groups[g] for g in problem.active()]
    if not active or not all_linear(problem):
        return None
    if any(g.measurement.whole or _unfit(g) is not None for g in active):
        return None
    joints = [g for g in active if joins(g)]
    factors, ends = (sum(getattr(g, of) for g in joints) for of in ("factors", "edges"))
    # Every joint outside of the forest closes a loop, and so there are more ends.
    if factors < DEEP or ends >= factors + sum(units_of(problem, n) for n in problem.prior) + _FEW_LOOPS * factors:
        return None
    forest = _Forest(edges())
    if not forest.outlives(_SHALLOW):
        return None
    found = _found(forest)
    return found.plan if factors - found.inside <= _FEW_LOOPS * factors and found.depth >= DEEP else None


def all_linear(problem: Problem) -> bool:
    """Whether one sweep over the forest is exact."""
    return all(is_linear(problem, g) for g in problem.active())


def is_linear(problem: Problem, g: int) -> bool:
    """Whether the messages of a group depend on nothing but other messages."""
    group = problem.groups[g]
    return group.linear and group.robust is None and group.noise_prior is None


class _Forest:
    """Units and joints with the edges between them, all numbered through; as trees, if there is no loop."""

    def __init__(self, problem: Problem, joints: list[_Joints] | None = None):
        """Of all joints of a problem, or of some."""
        self.problem = problem
        self.offset, at = {}, 0  # of the units of each variable
        for name in problem.prior:
            self.offset[name], at = at, at + units_of(problem, name)
        self.units = at
        everything = (
            [self._joints(g) for g in problem.active() if joins(problem.groups[g])] if joints is None else joints
        )
        self.joints = everything
        sizes = [len(j.rows) for j in self.joints]
        self.first_edge = np.cumsum([0, *(n * len(j.dims) for n, j in zip(sizes, self.joints))])
        self.first_factor = np.cumsum([0, *sizes])
        self.unit = np.concatenate([j.units.ravel() for j in self.joints]) if self.joints else np.zeros(0, int)
        each = [np.repeat(np.arange(n), len(j.dims)) + a for n, j, a in zip(sizes, self.joints, self.first_factor)]
        self.factor = np.concatenate(each) if each else np.zeros(0, int)  # of each edge
        self.edges = len(self.unit)

    def key(self) -> tuple:
        """All that a plan depends on; which units are joined, by a digest."""
        problem, groups = self.problem, []
        for j in self.joints:
            group = problem.groups[j.group]
            slots = tuple((s.variable, s.units) for s in group.slots)
            units = hashlib.blake2b(j.all_units.tobytes(), digest_size=32).digest()
            groups.append((j.group, slots, group.outputs, tuple(j.dims.tolist()), j.all_units.shape, units))
        sizes = tuple((n, units_of(problem, n), dimension(problem, n)) for n in problem.prior)
        return sizes, tuple(groups)

    def outlives(self, rounds: int) -> bool:
        """Whether anything is left after so many rounds that take all leaves away: a tree has as many as levels."""
        unit, factor = self.unit, self.factor
        for _ in range(rounds):
            for of in (0, 1):
                ends = (unit, factor)[of]
                inside = np.bincount(ends, minlength=1)[ends] > 1
                unit, factor = unit[inside], factor[inside]
        return len(unit) > 0

    def _joints(self, g: int) -> _Joints:
        group, found = self.problem.groups[g], []
        for s, slot in enumerate(group.slots):
            ids = unit_ids(slot.edges, group.factors) + self.offset[slot.variable]
            d = dimension(self.problem, slot.variable)
            found += [(d, s, i, ids[:, i]) for i in range(slot.units)]
        found.sort(key=lambda column: column[:3])
        units = np.stack([column[3] for column in found], 1)
        rows = np.arange(group.factors)
        return _Joints(g, units, rows, np.array([c[0] for c in found]), [c[1:3] for c in found])

    def without_loops(self) -> _Forest:
        """The forest of those joints that close no loop with the ones before them."""
        root = list(range(self.units))
        chosen = []
        for j in self.joints:
            rows = []
            for row, units in zip(j.rows.tolist(), j.units.tolist()):
                ends = []
                for i in units:
                    while root[i] != i:
                        root[i] = i = root[root[i]]
                    ends.append(i)
                if len(set(ends)) == len(ends):
                    for i in ends:
                        root[i] = ends[0]
                    rows.append(row)
            chosen.append(j._replace(rows=np.array(rows, int)))
        return _Forest(self.problem, chosen)

    def is_forest(self) -> bool:
        """Whether there is no loop. Makes the Euler tours that all else needs.

        Half-edge `h < edges` goes from the unit of edge `h` to its factor, `h + edges` back.
        """
        count = self.edges
        if not count:
            return True
        source = np.concatenate([self.unit, self.factor + self.units])
        order = np.argsort(source, kind="stable")
        following = np.roll(order, -1)  # the next half-edge with the same source, around it
        ordered = source[order]
        first = np.flatnonzero(np.diff(ordered, prepend=-1))
        last = np.append(first[1:], len(order)) - 1
        following[last] = order[first]
        around = np.empty_like(order)
        around[order] = following
        successor = np.concatenate([around[count:], around[:count]]).tolist()  # of the half-edge back
        unvisited, tour, starts = [True] * (2 * count), [], []
        for h in range(count):  # every tour leaves some unit
            if unvisited[h]:
                starts.append(len(tour))
                while unvisited[h]:
                    unvisited[h] = False
                    tour.append(h)
                    h = successor[h]
        self.tour = np.array(tour, int)
        self.starts = np.array(starts, int)
        self.lengths = np.diff(np.append(self.starts, len(tour)))
        self.tour_of = np.repeat(np.arange(len(starts)), self.lengths)
        return count == len(first) - len(starts)

    def _rooted(self, leaving: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each tour from another half-edge on, which leaves the root.

        **Returns:** the half-edges in this order, which of them go down, and the depths that they lead to.
        """
        at = np.empty(2 * self.edges, int)
        at[self.tour] = np.arange(2 * self.edges)
        begin = self.starts if leaving is None else at[leaving]
        begin, start, length = (np.repeat(x, self.lengths) for x in (begin, self.starts, self.lengths))
        order = self.tour[start + (np.arange(2 * self.edges) - start + begin - start) % length]
        at[order] = np.arange(2 * self.edges)
        down = at[order] < at[self._back(order)]
        return order, down, np.cumsum(np.where(down, 1, -1))

    def _back(self, half: np.ndarray) -> np.ndarray:
        return (half + self.edges) % (2 * self.edges)

    def _farthest(self, depth: np.ndarray) -> np.ndarray:
        """Of each tour, where it is deepest first."""
        deepest = np.repeat(np.maximum.reduceat(depth, self.starts), self.lengths)
        at = np.flatnonzero(depth == deepest)
        return at[np.unique(self.tour_of[at], return_index=True)[1]]

    def at_centre(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `_rooted`, from the middle unit of a longest path of each tree."""
        order, _, depth = self._rooted(None)
        ends = self._back(order[self._farthest(depth)])  # leaving one end
        order, down, depth = self._rooted(ends)
        other = self._farthest(depth)
        half = depth[other] // 4 * 2  # units lie at even depths
        # On the way to the other end the centre is entered last before it.
        here = np.arange(len(order)) <= np.repeat(other, self.lengths)
        entered = np.where(down & here & (depth == np.repeat(half, self.lengths)), np.arange(len(order)), -1)
        last = np.maximum.reduceat(entered, self.starts)
        return self._rooted(np.where(half > 0, self._back(order[last]), ends))

    def depth(self) -> int:
        """Levels of joints from the root to the last leaf."""
        if not self.edges:
            return 0
        order, _, depth = self._rooted(None)
        _, _, depth = self._rooted(self._back(order[self._farthest(depth)]))
        return int((depth.max() + 2) // 4)


def _split(widths: np.ndarray, first: int = 0) -> list[tuple[int, int]]:
    """Levels `(first, end)` of each run: cut where the padding saved is worth more than another run.

    **Arguments:** `widths`: of each level, of each cohort.
    """
    n = len(widths)
    whole = n * (_LEVEL + widths.max(0).sum())
    if n > 1:
        head = np.maximum.accumulate(widths, 0).sum(1)[:-1]
        tail = np.maximum.accumulate(widths[::-1], 0)[::-1].sum(1)[1:]
        cut = np.arange(1, n)
        costs = cut * (_LEVEL + head) + (n - cut) * (_LEVEL + tail) + _RUN
        best = int(np.argmin(costs))
        if costs[best] < whole:
            at = best + 1
            return [*_split(widths[:at], first), *_split(widths[at:], first + at)]
    return [(first, first + n)]


def _lay_out(forest: _Forest) -> TreePlan:
    """The plan of a forest."""
    problem, joints, count = forest.problem, forest.joints, int(forest.first_factor[-1])
    pools = unit_pools(problem)
    number = np.zeros(forest.units, int)  # of each unit, among those of its dimension
    sizes = {}
    for d, names in pools.items():
        at = 0
        for name in names:
            n = units_of(problem, name)
            number[forest.offset[name] : forest.offset[name] + n] = at + np.arange(n)
            at += n
        sizes[d] = at
    outside = [j for j in joints if len(j.rows) < j.factors]
    left = tuple(j.group for j in outside)
    if not count:
        return TreePlan((), {}, {}, {}, {}, {}, (), 0, left)

    order, down, depth = forest.at_centre()
    entered = order[down]
    into_factor = entered < forest.edges
    parent_edge = np.empty(count, int)  # of each joint
    parent_edge[forest.factor[entered[into_factor]]] = entered[into_factor]
    level = np.empty(count, int)
    level[forest.factor[entered[into_factor]]] = (depth[down][into_factor] - 1) // 2
    above = np.full(forest.units, -1)  # of each unit: the joint that it is a child of
    above[forest.unit[entered[~into_factor] - forest.edges]] = forest.factor[entered[~into_factor] - forest.edges]
    before = above[forest.unit[parent_edge]]  # of each joint: the one above it, or -1
    rim = np.ones(count, bool)
    rim[before[before >= 0]] = False

    columns, cohort = np.empty(count, int), np.empty(count, int)
    row = np.empty(count, int)  # among those of all groups of its cohort
    members: dict[_Alike, list[int]] = {}  # of each cohort: its groups of joints
    for k, j in enumerate(joints):
        a, b = forest.first_factor[k : k + 2]
        columns[a:b] = (parent_edge[a:b] - forest.first_edge[k]) % len(j.dims)
        facing = j.dims[columns[a:b]]
        for d in np.unique(facing):
            alike = _Alike(tuple(map(int, j.dims)), int(d), problem.groups[j.group].outputs)
            mine = members.setdefault(alike, [])
            here = np.flatnonzero(facing == d)
            cohort[a + here] = list(members).index(alike)
            row[a + here] = j.rows[here] + sum(joints[i].factors for i in mine)
            mine.append(k)
    keys = list(members)

    # Runs: levels of those inside, then the rim.
    inside = ~rim if rim.mean() >= _RIM else np.ones(count, bool)
    run = np.zeros(count, int)
    cuts: list[tuple[int, int]] = []
    if inside.any():
        widths = np.zeros((level[inside].max() + 1, len(keys)), int)
        np.add.at(widths, (level[inside], cohort[inside]), 1)
        cuts = _split(widths)
        run = np.searchsorted([end for _, end in cuts], level, side="right")
    run[~inside] = len(cuts)
    step = np.where(inside, level - np.array([a for a, _ in cuts] + [0])[np.minimum(run, len(cuts))], 0)
    spans = [end - a for a, end in cuts] + ([] if inside.all() else [1])

    lane = _ranks(np.stack([run, step, cohort]))
    straight = []
    for r in range(len(spans)):
        here = run == r
        kinds = np.unique(cohort[here])
        paths = _paths(here, step, before) if len(kinds) == 1 and r < len(cuts) else None
        straight.append(paths is not None and keys[kinds[0]].dims == (keys[kinds[0]].parent,) * 2)
        if straight[-1]:
            lane[here] = paths
    runs = []
    base = np.zeros((len(spans), len(keys)), int)  # where a run begins among the places of a cohort
    totals = np.zeros(len(keys), int)
    for r, levels in enumerate(spans):
        wide = np.array([lane[(run == r) & (cohort == c)].max(initial=-1) + 1 for c in range(len(keys))])
        runs.append(Run(levels, tuple(map(int, wide)), straight[r]))
        base[r], totals = totals, totals + levels * wide
    widths = np.array([r.widths for r in runs])
    place = base[run, cohort] + step * widths[run, cohort] + lane

    made = []
    for c, alike in enumerate(keys):
        mine = np.flatnonzero(cohort == c)
        made.append(_cohort(forest, alike, members[alike], mine, row, columns, place, int(totals[c]), number))
    parents, places, joint_at = {}, {}, {}
    for d in sorted({alike.parent for alike in keys}):
        chosen = [c for c, alike in enumerate(keys) if alike.parent == d]
        shift = np.cumsum([0, *(totals[c] for c in chosen)])
        mine = [np.flatnonzero(cohort == c) for c in chosen]
        at = np.concatenate([place[m] + a for m, a in zip(mine, shift)])
        parents[d] = index_edges(number[forest.unit[parent_edge[np.concatenate(mine)]]][:, None], (sizes[d],))
        back = np.full(shift[-1], len(at), np.int32)
        back[at] = np.arange(len(at), dtype=np.int32)
        places[d], joint_at[d] = jnp.asarray(at.astype(np.int32)), jnp.asarray(back)
    where = _message_places(forest, made, totals, cohort, columns, place)
    inside = {j.group: jnp.asarray(np.isin(np.arange(j.factors), j.rows)) for j in outside if len(j.rows)}
    return TreePlan(tuple(made), parents, places, joint_at, where, inside, tuple(runs), int(level.max()) + 1, left)


def _ranks(keys: np.ndarray) -> np.ndarray:
    """Of each column of keys, how many equal ones stand before it."""
    order = np.lexsort(keys[::-1])
    change = np.any(np.diff(keys[:, order], axis=1) != 0, axis=0)
    first = np.concatenate([[0], np.flatnonzero(change) + 1])
    out = np.empty(keys.shape[1], int)
    out[order] = np.arange(keys.shape[1]) - np.repeat(first, np.diff(np.append(first, keys.shape[1])))
    return out


def _paths(here: np.ndarray, step: np.ndarray, before: np.ndarray) -> np.ndarray | None:
    """Of each joint of a run, the number of the one at its first level that it hangs on; None if paths divide."""
    members = np.flatnonzero(here)
    number = np.full(len(here), -1)
    number[members] = np.arange(len(members))
    first = step[members] == 0
    pointer = np.where(first, np.arange(len(members)), number[before[members]])
    hangs = pointer[~first]
    if len(np.unique(hangs)) < len(hangs):
        return None
    for _ in range(int(step[members].max()).bit_length()):
        pointer = pointer[pointer]
    rank = np.cumsum(first) - 1
    return rank[pointer]


def _cohort(
    forest: _Forest, alike: _Alike, groups: list[int], mine: np.ndarray, row: np.ndarray, columns: np.ndarray,
    place: np.ndarray, total: int, number: np.ndarray,
) -> Cohort:  # fmt: skip
    """The cohort of the joints `mine`, which has `total` places.

    **Arguments:** of all joints: `row` in the cohort, `columns` of the parents, `place`; of all units: their `number`.
    """
    dims, n, parent = np.array(alike.dims), len(alike.dims), columns[mine]
    others = np.argsort(np.arange(n)[None] == parent[:, None], axis=1, kind="stable")[:, : n - 1]
    order = np.concatenate([parent[:, None], others], 1)
    first = np.searchsorted(dims, dims)  # of each column: the first one of its dimension
    units = np.concatenate([forest.joints[k].all_units for k in groups])
    rows, there = np.zeros(total, np.int32), np.zeros(total, np.float32)
    position, unit = np.zeros((total, n), np.int32), np.zeros((total, n), np.int32)
    rows[place[mine]], there[place[mine]] = row[mine], 1
    position[place[mine]] = order - first[order]
    unit[place[mine]] = number[units[row[mine][:, None], order]]
    return Cohort(
        *map(jnp.asarray, (rows, there, position, unit)),
        groups=tuple(forest.joints[k].group for k in groups),
        dims=tuple(int(d) for d in dims[order[0]]),
    )


def _message_places(
    forest: _Forest, cohorts: list[Cohort], totals: np.ndarray, cohort: np.ndarray, columns: np.ndarray,
    place: np.ndarray,
) -> dict[int, tuple[Array, ...]]:  # fmt: skip
    """Where each message stands, when those of one dimension are joined: cohort by cohort, edge by edge."""
    start: dict[tuple[int, int], int] = {}  # of each edge of each cohort
    ends: dict[int, int] = {}
    for c, made in enumerate(cohorts):
        for e, d in enumerate(made.dims):
            start[c, e] = ends.get(d, 0)
            ends[d] = start[c, e] + int(totals[c])
    out = {}
    for k, joints in enumerate(forest.joints):
        a, b = forest.first_factor[k : k + 2]
        if a == b:
            continue
        n, parent = len(joints.dims), columns[a:b]
        # Edge 0 is the parent; columns before it move up by one.
        edge = np.arange(n)[None] + (np.arange(n)[None] < parent[:, None])
        edge = np.where(np.arange(n)[None] == parent[:, None], 0, edge)
        begin = np.zeros((len(cohorts), n), int)
        for (c, e), at in start.items():
            if e < n:
                begin[c, e] = at
        found = np.zeros((joints.factors, n), int)
        found[joints.rows] = begin[cohort[a:b, None], edge] + place[a:b, None]
        slots = forest.problem.groups[joints.group].slots
        by_slot = []
        for s, slot in enumerate(slots):
            mine = [joints.columns.index((s, i)) for i in range(slot.units)]
            by_slot.append(jnp.asarray(found[:, mine].astype(np.int32)))
        out[joints.group] = tuple(by_slot)
    return out
