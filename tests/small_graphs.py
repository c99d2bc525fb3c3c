"""Small graphs with known answers."""

import numpy as np

import gbplearn as gbp


def same(a):
    return a


def minus(a, b):
    return b - a


def chain(n=6, seed=0, **kwargs):
    """Links and noisy measurements of a chain, in three groups; and its dense answer."""
    rng = np.random.default_rng(seed)
    y, z = rng.standard_normal(n - 1), rng.standard_normal(n)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (n,), prior=gbp.Gaussian.from_moments(0.0, 3.0), **kwargs)
    graph.add(gbp.Factor(minus, (x[:-1:2], x[1::2]), y=y[::2], sigma=0.5, linear=True, name="even"))
    graph.add(gbp.Factor(minus, (x[1:-1:2], x[2::2]), y=y[1::2], sigma=0.5, linear=True, name="odd"))
    graph.add(gbp.Factor(same, (x[:],), y=z, sigma=2.0, linear=True, name="seen"))
    d = np.diff(np.eye(n), axis=0)
    lam = d.T @ d / 0.25 + np.eye(n) * (1 / 4 + 1 / 9)
    return graph, np.linalg.solve(lam, d.T @ y / 0.25 + z / 4), np.sqrt(np.diag(np.linalg.inv(lam)))
