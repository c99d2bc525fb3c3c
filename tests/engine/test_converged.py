"""What "converged" promises: a further iteration moves no belief by more than the tolerance."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gbplearn as gbp

TOLERANCE = 1e-3


def weighted_sum(x, a):
    return a @ x


def loopy(seed, spread, factors=4, size=3):
    """Several measurements of the same scalars, each in a group of its own: short loops.

    With a large `spread` the measurements are nearly the same one, and messages converge slowly.
    """
    rng = np.random.default_rng(seed)
    graph = gbp.FactorGraph()
    prior = gbp.Gaussian.from_moments(rng.normal(size=size), 10 ** rng.uniform(-1, 1, size))
    x = graph.variable("x", (size,), prior=prior)
    same = rng.normal(size=size)
    for i in range(factors):
        a = (spread * same + rng.normal(size=size)).astype(np.float32) / (1 + spread)
        noise = 10 ** rng.uniform(-1, 1)
        graph.add(gbp.Factor(weighted_sum, (x[None], a[None]), y=rng.normal(), sigma=noise, linear=True, name=f"f{i}"))
    return graph


def further(graph, result, **how):
    """The residual of an iteration more, of all groups in a row."""
    how = {k: v for k, v in how.items() if k != "schedule"}
    return gbp.infer(graph, init=result, iterations=1, tolerance=0.0, guard=False, throw=False, **how).residual


def test_one_quiet_iteration_is_not_rest():
    """Residuals 9.2, .39, 1.1, .015, .25, .00067, .051: the sixth is below the tolerance by chance."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=gbp.Gaussian.from_moments([0.0, -25.0], [0.2, 19.0]))
    y, sigma = np.array([0.5, -1.0]), np.array([0.35, 0.07])
    both = np.array([[0, 1], [0, 1]])
    graph.add(gbp.Factor(lambda v: v.sum(), (x[both],), y=y, sigma=sigma, linear=True, name="sum"))
    result = gbp.infer(graph)
    assert result.status is gbp.Status.CONVERGED
    assert (result.trace.residual[:-2] <= TOLERANCE).any()  # it was quiet before, once
    lam = np.diag([1 / 0.04, 1 / 361]) + (1 / sigma**2).sum()
    eta = np.array([0.0, -25 / 361]) + (y / sigma**2).sum()
    std = np.sqrt(np.diag(np.linalg.inv(lam)))
    assert (np.abs(result["x"].mean - np.linalg.solve(lam, eta)) / std).max() < 2 * TOLERANCE
    assert further(graph, result) <= TOLERANCE


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"damping": 0.5},
        {"messages": "pooled", "damping": 0.5},
        {"schedule": gbp.RandomLayers()},
        {"schedule": gbp.RandomLayers(), "messages": "pooled", "damping": 0.5},
        {"schedule": gbp.Residual()},
    ],
    ids=lambda how: ", ".join(f"{k}={v}" for k, v in how.items()) or "sweep",
)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.floats(0, 5))
@example(seed=3, spread=5.0)
def test_a_further_iteration_stays_below_the_tolerance(how, seed, spread):
    graph = loopy(seed, spread)
    result = gbp.infer(graph, tolerance=TOLERANCE, guard=False, throw=False, iterations=2000, **how)
    if result.status is gbp.Status.CONVERGED:
        assert further(graph, result, **how) <= TOLERANCE


def test_slow_messages_are_not_stopped_early():
    """Where residuals fall by a tenth an iteration, ten times the tolerance is twenty iterations away from it."""
    graph = loopy(3, 5.0)
    result = gbp.infer(graph, tolerance=TOLERANCE, damping=0.9)
    assert result.status is gbp.Status.CONVERGED
    assert result.iterations > 20
    assert (result.trace.residual[-2:] <= TOLERANCE).all()
    assert result.trace.residual[-4] > 0.5 * TOLERANCE  # and no later than it has to


def test_every_group_is_visited_before_it_counts():
    """Drawn at random, a group may be left out for a while."""
    graph = loopy(11, 1.0, factors=5)
    for seed in range(5):
        result = gbp.infer(graph, schedule=gbp.RandomLayers(), seed=seed, guard=False, throw=False)
        assert result.status is gbp.Status.CONVERGED
        assert (np.asarray(result.state.visits) >= 2).all()
        assert further(graph, result) <= TOLERANCE


@pytest.mark.parametrize("damping", [0.0, 0.3, 0.7, 0.9, 0.999])
def test_the_guard_damps_more_never_less(damping):
    more = float(gbp.Guard().raised(jnp.float32(damping)))
    assert 0.699 < more < 1
    assert 1 - more <= 0.3 * (1 - damping) + 1e-6
