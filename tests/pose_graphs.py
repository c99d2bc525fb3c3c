"""A pose graph with a known cost, written in plain NumPy."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

import gbplearn as gbp


def wrap(angle):
    return jnp.arctan2(jnp.sin(angle), jnp.cos(angle))


def relative_pose(z, a, b):
    """Error of a measured relative pose `z` between poses `a` and `b`, in the frame of `a`; the angle wrapped."""
    c, s = jnp.cos(a[2]), jnp.sin(a[2])
    d = b[:2] - a[:2]
    return jnp.stack([c * d[0] + s * d[1] - z[0], -s * d[0] + c * d[1] - z[1], wrap(b[2] - a[2] - z[2])])


@dataclasses.dataclass
class PoseGraph:
    """A robot on a winding path: odometry, loop closures, a start from the odometry alone."""

    start: np.ndarray
    pairs: np.ndarray
    z: np.ndarray
    sigma: np.ndarray
    anchor: np.ndarray
    anchor_sigma = np.array([0.01, 0.01, 0.01])

    @classmethod
    def random(cls, seed, poses, closures, outliers=0):
        rng = np.random.default_rng(seed)
        t = np.linspace(0, 4 * np.pi, poses)
        path = np.stack([6 * np.sin(t), 4 * np.sin(2 * t + 0.3), np.zeros(poses)], 1)
        path += 0.3 * np.stack([np.sin(5 * t), np.cos(7 * t), 0 * t], 1)
        step = np.diff(path[:, :2], axis=0)
        path[:-1, 2] = np.arctan2(step[:, 1], step[:, 0])
        path[-1, 2] = path[-2, 2]
        near = np.linalg.norm(path[:, None, :2] - path[None, :, :2], axis=2)
        i, j = np.nonzero((near < 2.0) & (np.subtract.outer(np.arange(poses), np.arange(poses)) > 10))
        chosen = rng.choice(len(i), closures, replace=False)
        pairs = np.concatenate(
            [np.stack([np.arange(poses - 1), np.arange(1, poses)], 1), np.stack([j[chosen], i[chosen]], 1)]
        )
        sigma = np.array([0.05, 0.05, 0.02])
        a, b = path[pairs[:, 0]], path[pairs[:, 1]]
        z = np.array([np.asarray(relative_pose(np.zeros(3), p, q)) for p, q in zip(a, b)], float)
        z = z + sigma * rng.standard_normal(z.shape)
        if outliers:
            bad = len(pairs) - 1 - rng.choice(closures, outliers, replace=False)
            z[bad, :2] += rng.normal(0, 3.0, (outliers, 2))
        start = np.zeros((poses, 3))
        start[0] = path[0]
        for k in range(poses - 1):
            x, y, h = start[k]
            dx, dy, dh = z[k]
            start[k + 1] = [x + np.cos(h) * dx - np.sin(h) * dy, y + np.sin(h) * dx + np.cos(h) * dy, h + dh]
        return cls(start, pairs, z, sigma, path[0])

    def graph(self, robust=None):
        g, n = gbp.FactorGraph(), len(self.start) - 1
        lam = np.zeros((n + 1, 3, 3))
        lam[0] = np.diag(self.anchor_sigma**-2.0)  # a prior of the first pose, nothing known of the others
        anchor = gbp.Gaussian(jnp.asarray(lam @ self.anchor, jnp.float32), jnp.asarray(lam, jnp.float32))
        x = g.variable("pose", self.start.shape, block=True, start=self.start, prior=anchor)
        parts = [("pairs", slice(None), None)]
        if robust is not None:
            parts = [("odometry", slice(0, n), None), ("closures", slice(n, None), robust)]
        for name, part, kernel in parts:
            i, j = self.pairs[part].T
            g.add(
                gbp.Factor(relative_pose, (self.z[part], x[i], x[j]), y=0.0, sigma=self.sigma, robust=kernel, name=name)
            )
        return g

    def residuals(self, flat):
        """All residuals in standard deviations: rows of odometry, closures, anchor. Plain NumPy."""
        x = flat.reshape(-1, 3)
        a, b = x[self.pairs[:, 0]], x[self.pairs[:, 1]]
        c, s, d = np.cos(a[:, 2]), np.sin(a[:, 2]), b[:, :2] - a[:, :2]
        angle = b[:, 2] - a[:, 2] - self.z[:, 2]
        r = np.stack([c * d[:, 0] + s * d[:, 1] - self.z[:, 0], -s * d[:, 0] + c * d[:, 1] - self.z[:, 1],
                      np.arctan2(np.sin(angle), np.cos(angle))], 1)  # fmt: skip
        return np.concatenate([r / self.sigma, [(x[0] - self.anchor) / self.anchor_sigma]])

    def cost(self, flat, huber=None):
        r = self.residuals(np.asarray(flat, float))
        d2 = (r * r).sum(1)
        rho = 0.5 * d2
        if huber is not None:
            closures = np.zeros(len(d2), bool)
            closures[len(self.start) - 1 : -1] = True
            d = np.sqrt(np.maximum(d2, 1e-30))
            rho = np.where(closures & (d > huber), huber * d - 0.5 * huber**2, rho)
        return rho.sum()
