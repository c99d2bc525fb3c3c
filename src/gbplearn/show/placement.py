"""Places the boxes of a drawing in layers, by their distance from the first variables."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Sequence

_BESIDE, _BETWEEN = 18.0, 34.0  # from box to box in a layer, and from layer to layer
_SWEEPS = 8


@dataclasses.dataclass(frozen=True)
class Placement:
    """Centres of all boxes, and how far the layers of the boxes reach: lines bend between layers only."""

    centres: list[tuple[float, float]]
    layers: list[tuple[float, float]]  # of each box: where its layer begins and ends, downwards or to the right
    downwards: bool
    width: float
    height: float


def depths(neighbours: Sequence[Sequence[int]], starts: Sequence[int], beside: frozenset[int]) -> list[int]:
    """Layer of each box: the length of the shortest way from the first box of `starts` that leads there.

    Neighbours are variables and factors in turn, so that every line goes from one layer to the next. Boxes `beside`, of
    one neighbour each, stand in the layer before it.
    """
    found = [-1] * len(neighbours)
    for start in starts:
        if found[start] >= 0 or start in beside:
            continue
        found[start], queue = 0, deque([start])
        while queue:
            here = queue.popleft()
            for there in neighbours[here]:
                if found[there] < 0 and there not in beside:
                    found[there] = found[here] + 1
                    queue.append(there)
    for box in beside:
        found[box] = found[neighbours[box][0]] - 1
    return found


def place_boxes(
    sizes: Sequence[tuple[float, float]],
    neighbours: Sequence[Sequence[int]],
    depth: Sequence[int],
    beside: frozenset[int],
    *,
    downwards: bool,
) -> Placement:
    """Layers one below the other, or from left to right; in each the boxes stand near their neighbours."""
    thick = [size[1] if downwards else size[0] for size in sizes]
    long = [size[0] if downwards else size[1] for size in sizes]
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for box, d in enumerate(depth):
        layers[d].append(box)
    at = [0.0] * len(sizes)
    for sweep in range(_SWEEPS + 1):  # there and back, and at last there
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            side = -1 if sweep % 2 == 0 else 1
            wanted = {box: _wanted(box, side, at, neighbours, depth, beside) for box in layer}
            layer.sort(key=lambda box: (wanted[box], box))
            weights = [1.0 if box in beside else 1e6 for box in layer]
            for box, place in zip(layer, _apart([wanted[b] for b in layer], [long[b] for b in layer], weights)):
                at[box] = place
    first = min((at[b] - long[b] / 2 for b in range(len(sizes))), default=0.0)
    at = [place - first for place in at]
    reach, begin = [(0.0, 0.0)] * len(sizes), 0.0
    for layer in layers:
        end = begin + max(thick[b] for b in layer)
        for box in layer:
            reach[box] = begin, end
        begin = end + _BETWEEN
    middles = [(a + b) / 2 for a, b in reach]
    total = max((at[b] + long[b] / 2 for b in range(len(sizes))), default=0.0), max(begin - _BETWEEN, 0.0)
    centres = list(zip(at, middles)) if downwards else list(zip(middles, at))
    return Placement(centres, reach, downwards, *(total if downwards else total[::-1]))


def _wanted(
    box: int,
    side: int,
    at: Sequence[float],
    neighbours: Sequence[Sequence[int]],
    depth: Sequence[int],
    beside: frozenset[int],
) -> float:
    """The middle of its neighbours in the layer on one side; boxes beside pull nobody and stand to the right."""
    if box in beside:
        return at[neighbours[box][0]] + 1.0
    near = [at[n] for n in neighbours[box] if depth[n] == depth[box] + side and n not in beside]
    return sum(near) / len(near) if near else at[box]


def _apart(wanted: Sequence[float], lengths: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Centres in this order that do not touch, nearest to those wanted: least squares, by pooling neighbours."""
    offsets, blocks = [0.0], []  # a block: centre, weight, how many
    for before, length in itertools.pairwise(lengths):
        offsets.append(offsets[-1] + (before + length) / 2 + _BESIDE)
    for want, offset, weight in zip(wanted, offsets, weights):
        blocks.append((want - offset, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, v, m), (b, w, n) = blocks[-2:]
            blocks[-2:] = [((a * v + b * w) / (v + w), v + w, m + n)]
    centres = [centre for centre, _, count in blocks for _ in range(count)]
    return [centre + offset for centre, offset in zip(centres, offsets)]
