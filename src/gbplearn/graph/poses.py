"""Poses in the plane and in space, and graphs of them.

A pose in the plane is `(x, y, heading)`; in space it is `(x, y, z, qx, qy, qz, qw)`, its rotation a unit quaternion.
Between two poses `a` and `b` a measurement `z` has the error of g2o:

    e = vector(z^-1 a^-1 b) ,   energy e' Omega e / 2

where `vector` of a pose in the plane is the pose itself, its angle in (-pi, pi], and of one in space its position and
`(qx, qy, qz)`, with the sign that makes `qw >= 0`.

All functions take NumPy or JAX arrays whose last axis is one pose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..core.robust import Kernel
from ..core.vector import Belief
from .factor import Factor
from .graph import FactorGraph

# Numbers of a pose, and degrees of freedom.
PLANE, SPACE = 3, 7
FREEDOM = {PLANE: 3, SPACE: 6}


def _numpy_of(*arrays: Any) -> ModuleType:
    return np if all(isinstance(a, np.ndarray) for a in arrays) else jnp


def relative(a: Any, b: Any) -> Any:
    """Pose `b` relative to pose `a`: `a^-1 b`."""
    xp = _numpy_of(a, b)
    if a.shape[-1] == SPACE:
        back = a[..., 3:] * xp.asarray([-1.0, -1.0, -1.0, 1.0], a.dtype)
        return xp.concatenate([_rotated(xp, back, b[..., :3] - a[..., :3]), _product(xp, back, b[..., 3:])], -1)
    c, s, d = xp.cos(a[..., 2]), xp.sin(a[..., 2]), b - a
    ahead, left = c * d[..., 0] + s * d[..., 1], c * d[..., 1] - s * d[..., 0]
    return xp.stack([ahead, left, _wrapped(xp, d[..., 2])], -1)


def composed(a: Any, b: Any) -> Any:
    """The pose whose pose relative to `a` is `b`: `a b`."""
    xp = _numpy_of(a, b)
    if a.shape[-1] == SPACE:
        position = a[..., :3] + _rotated(xp, a[..., 3:], b[..., :3])
        return xp.concatenate([position, _product(xp, a[..., 3:], b[..., 3:])], -1)
    c, s = xp.cos(a[..., 2]), xp.sin(a[..., 2])
    x, y = a[..., 0] + c * b[..., 0] - s * b[..., 1], a[..., 1] + s * b[..., 0] + c * b[..., 1]
    return xp.stack([x, y, a[..., 2] + b[..., 2]], -1)


def pose_error(measured: Any, a: Any, b: Any) -> Any:
    """`e`: the error of a measurement of pose `b` relative to pose `a`; 3 or 6 numbers."""
    off = relative(measured, relative(a, b))
    if off.shape[-1] == PLANE:
        return off
    xp = _numpy_of(off)
    return xp.concatenate([off[..., :3], xp.where(off[..., 6:] < 0, -off[..., 3:6], off[..., 3:6])], -1)


def stepped(pose: Any, step: Any) -> Any:
    """A pose in space after a step of 6 numbers: metres, and radians (of the first order) along its own axes.

    The rotation is Cayley's, `(u / 2, 1)` made a unit quaternion: smooth, for all rotations of less than half a turn.
    """
    xp = _numpy_of(pose, step)
    half = xp.concatenate([step[..., 3:] / 2, xp.ones_like(step[..., :1])], -1)
    unit = half / xp.sqrt((half * half).sum(-1, keepdims=True))
    return composed(pose, xp.concatenate([step[..., :3], unit], -1))


def pose_of_angles(pose: np.ndarray) -> np.ndarray:
    """A pose in space given as `(x, y, z, roll, pitch, yaw)`: turned about x, then y, then z, axes that stand still."""
    half = pose[..., 3:] / 2
    (a, b, c), (s, t, u) = (np.moveaxis(f(half), -1, 0) for f in (np.cos, np.sin))
    turn = (s * b * c - a * t * u, a * t * c + s * b * u, a * b * u - s * t * c, a * b * c + s * t * u)
    return np.concatenate([pose[..., :3], np.stack(turn, -1)], -1)


def along_a_tree(count: int, edges: np.ndarray, measurements: np.ndarray, root: int) -> np.ndarray:
    """Poses that measurements lead to, one after the other from a first pose that lies at the origin.

    They are taken along a spanning tree of as many edges between neighbours (odometry) as it can have; of the others
    those that come first. Poses that no edge leads to are not finite, nor are those that lie beyond all numbers.

    **Arguments:**

    - `count`: how many poses there are.
    - `edges`, `measurements`: as in `PoseGraph`.
    - `root`: the first pose.
    """
    measured, size = _unit(measurements), measurements.shape[1]
    parts = list(range(count))  # a pose of each that it is connected with, itself at the end

    def part(i: int) -> int:
        while parts[i] != i:
            parts[i] = parts[parts[i]]
            i = parts[i]
        return i

    tree: dict[int, list[tuple[int, np.ndarray]]] = {i: [] for i in range(count)}
    none = np.eye(1, size, size - 1)[0] if size == SPACE else np.zeros(size)
    for k in np.argsort(np.abs(np.diff(edges, axis=1)[:, 0]) != 1, kind="stable"):
        i, j = map(int, edges[k])
        if part(i) != part(j):
            parts[part(i)] = part(j)
            tree[i].append((j, measured[k]))
            tree[j].append((i, relative(measured[k], none)))
    poses = np.full((count, size), np.nan)
    poses[root] = none
    ahead, reached = [root], {root}
    with np.errstate(all="ignore"):
        while ahead:
            i = ahead.pop()
            for j, step in tree[i]:
                if j not in reached:
                    poses[j] = composed(poses[i], step)
                    ahead.append(j)
                    reached.add(j)
        if size == PLANE:
            poses[:, 2] = _wrapped(np, poses[:, 2])
        return _unit(poses)


def _wrapped(xp: ModuleType, angle: Any) -> Any:
    return xp.arctan2(xp.sin(angle), xp.cos(angle))


def _rotated(xp: ModuleType, q: Any, v: Any) -> Any:
    """`q v q^-1`."""
    t = 2 * xp.cross(q[..., :3], v)
    return v + q[..., 3:] * t + xp.cross(q[..., :3], t)


def _product(xp: ModuleType, q: Any, r: Any) -> Any:
    (u, w), (v, s) = ((p[..., :3], p[..., 3:]) for p in (q, r))
    scalar = w * s - (u * v).sum(-1, keepdims=True)
    return xp.concatenate([w * v + s * u + xp.cross(u, v), scalar], -1)


@dataclasses.dataclass(frozen=True, eq=False)
class PoseGraph:
    """Poses, and measurements of some relative to others, as a `.g2o` file has them.

    ```python
    poses = gbp.read_g2o("manhattan.g2o")
    result = gbp.infer(poses.graph(), iterations=5000, damping=0.4)
    gbp.write_g2o("found.g2o", poses.at(result))
    ```

    **Arguments:**

    - `poses`: where they are thought to be: the start. In the plane `(n, 3)`, in space `(n, 7)`.
    - `edges`: rows `i, j` of `poses`: pose `j` was measured from pose `i`.
    - `measurements`: of each edge, a pose.
    - `information`: of each edge, the inverse covariance of `pose_error`: `(m, 3, 3)` or `(m, 6, 6)`.
    - `fixed`: poses that are known.
    - `ids`: the names that a file gives them.
    """

    poses: Float[np.ndarray, "n size"]
    edges: Int[np.ndarray, "m 2"]
    measurements: Float[np.ndarray, "m size"]
    information: Float[np.ndarray, "m freedom freedom"]
    fixed: Bool[np.ndarray, " n"]
    ids: Int[np.ndarray, " n"]

    @property
    def in_space(self) -> bool:
        """Whether poses have three dimensions."""
        return self.poses.shape[1] == SPACE

    def errors(self) -> Float[np.ndarray, "m freedom"]:
        """`e` of every edge."""
        i, j = self.edges.T
        poses = _unit(self.poses)
        return pose_error(_unit(self.measurements), poses[i], poses[j])

    def chi2(self) -> float:
        """`sum e' Omega e`, as g2o prints it: twice the energy."""
        e = self.errors()
        return float(np.einsum("mi,mij,mj->", e, self.information, e))

    def graph(self, robust: Kernel | None = None) -> FactorGraph:
        """A factor graph with a block variable "pose": the poses, or in space their steps (`stepped`) from the start.

        Poses that are fixed are observed, the first one if none is.

        **Arguments:**

        - `robust`: energy of loop closures (a group "closures": all but the edges between poses that follow each
            other), of which some may be wrong: `gbp.Tukey(...)` or `gbp.Huber(...)`.
        """
        if not len(self.edges):
            raise ValueError("the pose graph has no edges")
        known = self.fixed if self.fixed.any() else np.arange(len(self.poses)) == 0
        start = np.zeros((len(self.poses), FREEDOM[SPACE])) if self.in_space else self.poses
        graph = FactorGraph()
        x = graph.variable("pose", start.shape, block=True, start=start)
        graph.observe("pose", start, mask=known)
        covariance, measured, poses = np.linalg.inv(self.information), _unit(self.measurements), _unit(self.poses)
        closures = (np.abs(np.diff(self.edges, axis=1)[:, 0]) > 1) & (robust is not None)
        for name, rows, kernel in (("edges", ~closures, None), ("closures", closures, robust)):
            if rows.any():
                i, j = self.edges[rows].T
                at = (poses[i], poses[j]) if self.in_space else ()
                h, args = _error_of_steps if self.in_space else pose_error, (measured[rows], *at, x[i], x[j])
                graph.add(Factor(h, args, covariance=_even(covariance[rows]), robust=kernel, name=name))
        return graph

    def at(self, beliefs: Mapping[str, Belief]) -> PoseGraph:
        """The same graph with its poses at the means of what was inferred with `graph()`."""
        mean = np.asarray(beliefs["pose"].mean, float)
        if self.in_space:
            return dataclasses.replace(self, poses=stepped(_unit(self.poses), mean))
        mean[:, 2] = _wrapped(np, mean[:, 2])
        return dataclasses.replace(self, poses=mean)


def _error_of_steps(measured: Any, a: Any, b: Any, step_a: Any, step_b: Any) -> Any:
    return pose_error(measured, stepped(a, step_a), stepped(b, step_b))


def _unit(poses: np.ndarray) -> np.ndarray:
    """With quaternions of length 1; a file has them rounded."""
    if poses.shape[-1] == PLANE:
        return poses
    turn = poses[:, 3:]
    return np.concatenate([poses[:, :3], turn / np.linalg.norm(turn, axis=1, keepdims=True)], 1)


def _even(matrices: np.ndarray) -> np.ndarray:
    """Symmetric to the last digit, which an inverse is not."""
    return (matrices + np.swapaxes(matrices, -1, -2)) / 2
