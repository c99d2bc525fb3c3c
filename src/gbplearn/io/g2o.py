"""Pose graphs in the text formats of g2o and TORO: what SLAM programs exchange.

VERTEX_SE2 id x y heading                            a pose in the plane
EDGE_SE2 i j x y heading I11 I12 I13 I22 I23 I33     pose j in the frame of pose i, and its information matrix
VERTEX_SE3:QUAT id x y z qx qy qz qw                 the same in space
EDGE_SE3:QUAT i j x y z qx qy qz qw I11 I12 ... I66
FIX id ...                                           poses that are known

In TORO's format (`.graph`), where information belongs to angles (the vector of a quaternion is half as large):

VERTEX2 id x y heading
EDGE2 i j x y heading I11 I12 I22 I33 I13 I23        another order
VERTEX3 id x y z roll pitch yaw
EDGE3 i j x y z roll pitch yaw I11 I12 ... I66
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.files import write_whole
from ..graph.poses import FREEDOM, PLANE, SPACE, PoseGraph, along_a_tree, pose_of_angles


class _Tag(NamedTuple):
    """What a line holds."""

    ids: int  # 1: a pose; 2: an edge
    size: int  # numbers of a pose: PLANE or SPACE
    toro: bool = False

    @property
    def pose(self) -> int:
        """Numbers of a pose in the line."""
        return FREEDOM[self.size] if self.toro else self.size

    @property
    def numbers(self) -> int:
        """Numbers in the line."""
        return self.ids + self.pose + (self.ids == 2) * FREEDOM[self.size] * (FREEDOM[self.size] + 1) // 2


_TAGS = {
    "VERTEX_SE2": _Tag(1, PLANE),
    "EDGE_SE2": _Tag(2, PLANE),
    "VERTEX_SE3:QUAT": _Tag(1, SPACE),
    "EDGE_SE3:QUAT": _Tag(2, SPACE),
    "VERTEX2": _Tag(1, PLANE, toro=True),
    "EDGE2": _Tag(2, PLANE, toro=True),
    "VERTEX3": _Tag(1, SPACE, toro=True),
    "EDGE3": _Tag(2, SPACE, toro=True),
}
# Where TORO has the upper triangle, row by row, of an edge in the plane.
_TORO_PLANE = (0, 1, 4, 2, 5, 3)
# How many radians are one of the error's numbers.
_RADIANS = (1.0, 1.0, 1.0, 2.0, 2.0, 2.0)
_LARGEST_ID = 2**63 - 1
# How far a quaternion's length may be from 1: files have few digits.
_ROUNDED = 0.01
# Eigenvalues of information matrices, each scaled to have ones on its diagonal. Such a one is inverted as it is;
_SOUND = 1e-10
# if it is smaller, but not below this, a matrix was rounded that was positive definite,
_ROUNDING = -1e-5
# and this is as good as any other eigenvalue that would be rounded to the same digits.
_RAISED = 1e-6


class _Edge(NamedTuple):
    line: int
    ids: tuple[int, int]
    measured: list[float]
    information: list[float]  # upper triangle, row by row


def read_g2o(path: str | Path) -> PoseGraph:
    """Read a pose graph, as g2o (`.g2o`) or TORO (`.graph`) has it.

    A `ValueError` names what is wrong with the file, and the line. Poses keep the order of the file. Lines that
    begin with `#` or `PARAMS_` are passed over; landmarks and other kinds of edges are refused.

    If the file holds edges alone, poses come in the order of their numbers, and start where the edges between
    neighbours (odometry) lead, or others where these end: along a spanning tree from the pose that is fixed, or the
    first. Information matrices that lost their last positive eigenvalue when they were rounded get it back, small.
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
    if kind is None or not (vertices or edges):
        raise ValueError(f"{path} holds no poses")
    names = list(vertices) if vertices else sorted({n for e in edges for n in e.ids})
    row = {name: i for i, name in enumerate(names)}
    for line, name in [*((e.line, n) for e in edges for n in e.ids), *((at, n) for n, at in fixed.items())]:
        if name not in row:
            raise ValueError(f"{path}, line {line}: there is no pose {name}")
    information = _matrices(np.array([e.information for e in edges]), FREEDOM[kind])
    for place, edge in enumerate(edges):
        try:
            information[place] = _definite(information[place])
        except ValueError as error:
            raise ValueError(f"{path}, line {edge.line}: {error}") from None
    pairs = np.array([[row[n] for n in e.ids] for e in edges], int).reshape(-1, 2)
    measured = np.array([e.measured for e in edges], float).reshape(-1, kind)
    if vertices:
        poses = np.array(list(vertices.values()), float)
    else:
        poses = _start(path, names, pairs, measured, fixed)
    return PoseGraph(
        poses, pairs, measured, information, np.array([n in fixed for n in names]), np.array(names, np.int64)
    )


def _start(path: Path, names: list[int], pairs: np.ndarray, measured: np.ndarray, fixed: dict[int, int]) -> np.ndarray:
    """Where poses of a file without poses begin."""
    if len(fixed) > 1:
        name, line = list(fixed.items())[1]
        raise ValueError(f"{path}, line {line}: pose {name} is fixed as others are, but no line says where it is")
    root = names.index(next(iter(fixed), names[0]))
    poses = along_a_tree(len(names), pairs, measured, root)
    lost = ~np.isfinite(poses).all(1)
    if lost.any():
        raise ValueError(f"{path} holds edges alone, and none lead to pose {names[int(lost.argmax())]}")
    return poses


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
    known = _TAGS.get(tag)
    if known is None:
        raise ValueError(f"'{tag[:40]}' is none of FIX, {', '.join(_TAGS)}")
    if kind not in (None, known.size):
        raise ValueError(f"{tag} in a file of poses in {'the plane' if kind == PLANE else 'space'}")
    if len(rest) != known.numbers:
        raise ValueError(f"{tag} has {known.numbers} numbers, not {len(rest)}")
    ids, values = [_id(word) for word in rest[: known.ids]], [_number(word) for word in rest[known.ids :]]
    pose, information = values[: known.pose], values[known.pose :]
    if known.toro:
        pose, information = _from_toro(pose, information)
    elif known.size == SPACE and abs(sum(q * q for q in pose[3:]) - 1) > 2 * _ROUNDED:
        raise ValueError("the quaternion does not have length 1")
    if known.ids == 1:
        if ids[0] in vertices:
            raise ValueError(f"pose {ids[0]} occurs twice")
        vertices[ids[0]] = pose
    elif ids[0] == ids[1]:
        raise ValueError(f"an edge from pose {ids[0]} to itself")
    else:
        edges.append(_Edge(number, (ids[0], ids[1]), pose, information))
    return known.size


def _from_toro(pose: list[float], information: list[float]) -> tuple[list[float], list[float]]:
    """A pose, and the upper triangle of an edge's information, as g2o has them."""
    if len(pose) == PLANE:
        return pose, [information[i] for i in _TORO_PLANE] if information else []
    factors = np.outer(_RADIANS, _RADIANS)[np.triu_indices(len(_RADIANS))].tolist()
    return pose_of_angles(np.array(pose)).tolist(), [a * b for a, b in zip(information, factors)]


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


def _definite(matrix: np.ndarray) -> np.ndarray:
    """A matrix that can be inverted: itself, or if it is none by rounding alone, a nearby one.

    Metres beside radians do no harm: what counts is the matrix with ones on its diagonal.
    """
    wrong = ValueError("the information matrix is not positive definite")
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 0))
    if not scale.all():
        raise wrong
    with np.errstate(all="ignore"):
        correlation = matrix / scale / scale[:, None]
    if not np.isfinite(correlation).all():
        raise wrong
    values, vectors = np.linalg.eigh(correlation)
    if values[0] > _SOUND:
        return matrix
    if values[0] < _ROUNDING:
        raise wrong
    raised = (vectors * np.maximum(values, _RAISED)) @ vectors.T
    return (raised + raised.T) / 2 * np.outer(scale, scale)


def write_g2o(path: str | Path, graph: PoseGraph) -> None:
    """Write a pose graph, to the last digit: to read it gives the same. The file appears whole or not at all."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"cannot write the pose graph: there is no folder {path.parent}")
    if not all(np.isfinite(a).all() for a in (graph.poses, graph.measurements, graph.information)):
        raise ValueError("cannot write the pose graph: it holds NaN or infinity")
    size = graph.poses.shape[1]
    vertex, edge = (next(tag for tag, known in _TAGS.items() if known == (ids, size, False)) for ids in (1, 2))

    def text(tag: str, ids: np.ndarray, values: np.ndarray) -> str:
        return " ".join([tag, *(str(int(n)) for n in ids), *(repr(float(v)) for v in values)]) + "\n"

    lines = [text(vertex, ids, pose) for ids, pose in zip(graph.ids[:, None], graph.poses)]
    lines += [text("FIX", graph.ids[i : i + 1], np.zeros(0)) for i in np.flatnonzero(graph.fixed)]
    upper = graph.information[:, *np.triu_indices(FREEDOM[size])]
    lines += [
        text(edge, graph.ids[e], np.concatenate([z, i])) for e, z, i in zip(graph.edges, graph.measurements, upper)
    ]
    write_whole(path, lambda file: file.write("".join(lines).encode()))
