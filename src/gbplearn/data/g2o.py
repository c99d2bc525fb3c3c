"""Pose graphs in the text format of g2o: what SLAM programs exchange.

VERTEX_SE2 id x y heading                            a pose in the plane
EDGE_SE2 i j x y heading I11 I12 I13 I22 I23 I33     pose j as seen from pose i, and its information matrix
VERTEX_SE3:QUAT id x y z qx qy qz qw                 the same in space
EDGE_SE3:QUAT i j x y z qx qy qz qw I11 I12 ... I66
FIX id ...                                           poses that are known
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files import write_whole
from ..poses import FREEDOM, PLANE, SPACE, PoseGraph

_VERTEX = {"VERTEX_SE2": PLANE, "VERTEX_SE3:QUAT": SPACE}
_EDGE = {"EDGE_SE2": PLANE, "EDGE_SE3:QUAT": SPACE}
_LARGEST_ID = 2**63 - 1
# How far a quaternion's length may be from 1: files have few digits.
_ROUNDED = 0.01


class _Edge(NamedTuple):
    line: int
    ids: tuple[int, int]
    measured: list[float]
    information: list[float]  # upper triangle, row by row


def read_g2o(path: str | Path) -> PoseGraph:
    """Read a pose graph. A `ValueError` says what is wrong with the file, and in which line.

    Poses keep the order of the file. Lines that begin with `#` or `PARAMS_` are passed over; landmarks and other kinds
    of edges are refused.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().decode().splitlines()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None
    vertices: dict[int, list[float]] = {}
    edges: list[_Edge] = []
    fixed: dict[int, int] = {}  # the line of each
    kind: int | None = None
    for number, line in enumerate(lines, 1):
        try:
            kind = _read_line(line.split(), number, kind, vertices, edges, fixed)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if kind is None or not vertices:
        raise ValueError(f"{path} holds no poses")
    row = {name: i for i, name in enumerate(vertices)}
    for line, name in [*((e.line, n) for e in edges for n in e.ids), *((at, n) for n, at in fixed.items())]:
        if name not in row:
            raise ValueError(f"{path}, line {line}: there is no pose {name}")
    information = _matrices(np.array([e.information for e in edges]), FREEDOM[kind])
    for edge, matrix in zip(edges, information):
        if not _positive_definite(matrix):
            raise ValueError(f"{path}, line {edge.line}: the information matrix is not positive definite")
    return PoseGraph(
        np.array(list(vertices.values()), float),
        np.array([[row[n] for n in e.ids] for e in edges], int).reshape(-1, 2),
        np.array([e.measured for e in edges], float).reshape(-1, kind),
        information,
        np.array([n in fixed for n in vertices]),
        np.array(list(vertices)),
    )


def _read_line(
    words: list[str],
    number: int,
    kind: int | None,
    vertices: dict[int, list[float]],
    edges: list[_Edge],
    fixed: dict[int, int],
) -> int | None:
    """Put a line where it belongs.

    **Returns:** numbers of a pose, as soon as that is known.
    """
    if not words or words[0].startswith(("#", "PARAMS_")):
        return kind
    tag, rest = words[0], words[1:]
    if tag == "FIX":
        fixed.update({_id(word): number for word in rest})
        return kind
    size = {**_VERTEX, **_EDGE}.get(tag)
    if size is None:
        raise ValueError(f"'{tag[:40]}' is none of FIX, {', '.join((*_VERTEX, *_EDGE))}")
    if kind not in (None, size):
        raise ValueError(f"{tag} in a file of poses in {'the plane' if kind == PLANE else 'space'}")
    names = 1 if tag in _VERTEX else 2
    count = names + size + (names == 2) * FREEDOM[size] * (FREEDOM[size] + 1) // 2
    if len(rest) != count:
        raise ValueError(f"{tag} has {count} numbers, not {len(rest)}")
    ids, values = [_id(word) for word in rest[:names]], [_number(word) for word in rest[names:]]
    pose = values[:size]
    if size == SPACE and abs(sum(q * q for q in pose[3:]) - 1) > 2 * _ROUNDED:
        raise ValueError("the quaternion does not have length 1")
    if names == 1:
        if ids[0] in vertices:
            raise ValueError(f"pose {ids[0]} occurs twice")
        vertices[ids[0]] = pose
    elif ids[0] == ids[1]:
        raise ValueError(f"an edge from pose {ids[0]} to itself")
    else:
        edges.append(_Edge(number, (ids[0], ids[1]), pose, values[size:]))
    return size


def _id(word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        value = -1
    if not 0 <= value <= _LARGEST_ID:
        raise ValueError(f"'{word[:40]}' is not the number of a pose")
    return value


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(f"'{word[:40]}' is not a number")
    return value


def _matrices(triangles: np.ndarray, size: int) -> np.ndarray:
    """Symmetric ones from their upper triangles."""
    out = np.zeros((len(triangles), size, size))
    i, j = np.triu_indices(size)
    out[:, i, j] = out[:, j, i] = triangles.reshape(len(out), len(i))
    return out


def _positive_definite(matrix: np.ndarray) -> bool:
    """With some digits to spare: it will be inverted. Metres beside radians do no harm."""
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 0))
    if not scale.all():
        return False
    with np.errstate(all="ignore"):
        correlation = matrix / scale / scale[:, None]
    return bool(np.isfinite(correlation).all() and np.linalg.eigvalsh(correlation)[0] > 1e-10)


def write_g2o(path: str | Path, graph: PoseGraph) -> None:
    """Write a pose graph, to the last digit: to read it gives the same. The file appears whole or not at all."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"cannot write the pose graph: there is no folder {path.parent}")
    if not all(np.isfinite(a).all() for a in (graph.poses, graph.measurements, graph.information)):
        raise ValueError("cannot write the pose graph: it holds NaN or infinity")
    size = graph.poses.shape[1]
    vertex, edge = (next(tag for tag, n in tags.items() if n == size) for tags in (_VERTEX, _EDGE))

    def text(tag: str, ids: np.ndarray, values: np.ndarray) -> str:
        return " ".join([tag, *(str(int(n)) for n in ids), *(repr(float(v)) for v in values)]) + "\n"

    lines = [text(vertex, ids, pose) for ids, pose in zip(graph.ids[:, None], graph.poses)]
    lines += [text("FIX", graph.ids[i : i + 1], np.zeros(0)) for i in np.flatnonzero(graph.fixed)]
    upper = graph.information[:, *np.triu_indices(FREEDOM[size])]
    lines += [
        text(edge, graph.ids[e], np.concatenate([z, i])) for e, z, i in zip(graph.edges, graph.measurements, upper)
    ]
    write_whole(path, lambda file: file.write("".join(lines).encode()))
