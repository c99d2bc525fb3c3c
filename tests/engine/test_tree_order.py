"""The tree order: exact after one iteration, against dense solves and a smoother written in NumPy."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.engine.elimination import Side, message_by_loop, message_to, scalar_messages_to_all
from gbplearn.engine.loop import programs_of, run_in_place
from gbplearn.engine.options import make_options
from gbplearn.engine.tree import DEEP, tree_plan
from gbplearn.io.values import from_json, to_json
from helpers import QUICK, Linear, random_forest, schur_messages

TREE = gbp.TreeOrder()


def minus(a, b):
    return b - a


def same(a):
    return a


def matrix_step(f, a, b):
    return b - f @ a


def scalar_step(f, a, b):
    return b - f * a


# A linear-Gaussian chain, and its smoother.


def smoothed(f, q, r, prior_covariance, y):
    """Rauch, Tung and Striebel's smoother of `x' = f x + N(0, q)`, `y = x + N(0, r)`: means and covariances."""
    n, d = y.shape
    means, covs = np.zeros((n, d)), np.zeros((n, d, d))
    predicted = []
    m, p = np.zeros(d), prior_covariance
    for t in range(n):
        if t:
            m, p = f @ m, f @ p @ f.T + q
        predicted.append((m, p))
        gain = np.linalg.solve(p + r, p).T
        m, p = m + gain @ (y[t] - m), p - gain @ p
        means[t], covs[t] = m, p
    for t in range(n - 2, -1, -1):
        m, p = predicted[t + 1]
        gain = np.linalg.solve(p, f @ covs[t]).T
        means[t] += gain @ (means[t + 1] - m)
        covs[t] += gain @ (covs[t + 1] - p) @ gain.T
    return means, covs


def made_chain(kind, n, d, seed=0):
    """A graph of one chain and its exact means and standard deviations. All numbers are float32's.

    "stationary" means stay near 0; a "walk" leads far away from it, and a "tight" one remembers 30 steps.
    """
    rng = np.random.default_rng([seed, n, d])
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0] if d > 1 else np.eye(1)
    f = np.float32(0.95 * turn if kind == "stationary" else np.eye(d)).astype(float)
    q, r = np.float32(0.03 if kind == "tight" else 0.3).astype(float), 1.0
    x = np.zeros((n, d))
    for t in range(1, n):
        x[t] = f @ x[t - 1] + q * rng.standard_normal(d)
    y = np.float32(x + rng.standard_normal((n, d))).astype(float)
    first = np.zeros((n, d, d), np.float32)
    first[0] = np.eye(d)
    graph = gbp.FactorGraph()
    if d == 1:
        prior = gbp.Gaussian(jnp.zeros(n), jnp.asarray(first[:, 0, 0]))
        v = graph.variable("x", (n,), prior=prior)
        graph.add(gbp.Factor(scalar_step, (f[0], v[:-1], v[1:]), sigma=q, linear=True, name="steps"))
        graph.add(gbp.Factor(same, (v,), y=y[:, 0], sigma=r, linear=True, name="measured"))
    else:
        v = graph.variable("x", (n, d), prior=gbp.Gaussian(jnp.zeros((n, d)), jnp.asarray(first)), block=True)
        graph.add(gbp.Factor(matrix_step, (f[None], v[:-1], v[1:]), sigma=q, linear=True, name="steps"))
        graph.add(gbp.Factor(same, (v,), y=y, sigma=r, linear=True, name="measured"))
    mean, cov = smoothed(f, q**2 * np.eye(d), r**2 * np.eye(d), np.eye(d), y)
    return graph, mean, np.sqrt(np.diagonal(cov, axis1=1, axis2=2))


def off(result, mean, std):
    """Largest errors of means and standard deviations, in standard deviations."""
    got = result["x"]
    m, s = (np.asarray(a, float).reshape(mean.shape) for a in (got.mean, got.std))
    return np.abs((m - mean) / std).max(), np.abs(s / std - 1).max()


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "n", "d"),
    [
        ("tight", 10_000, 1),
        ("stationary", 300, 2),
        pytest.param("stationary", 10_000, 1, marks=SLOW),
        *(pytest.param(k, 10_000, d, marks=SLOW) for k in ("stationary", "tight") for d in (2, 4)),
    ],
)
def test_chain_equals_a_smoother_in_one_iteration(kind, n, d):
    graph, mean, std = made_chain(kind, n, d)
    result = gbp.infer(graph, schedule=TREE)
    assert (result.status, result.iterations, result.guard) == (gbp.Status.CONVERGED, 1, ())
    far, wide = off(result, mean, std)
    assert far < 1e-5
    assert wide < 2e-6
    # The messages are an ordinary fixed point: groups that are visited as a whole move nothing.
    assert result.residual < 1e-5


def test_means_far_away_are_as_exact_as_float32_holds_them():
    """A walk 50 standard deviations away from 0: natural parameters are rounded to `eps / 2` of these."""
    graph, mean, std = made_chain("walk", 10_000, 1)
    assert np.abs(mean / std).max() > 50
    assert off(gbp.infer(graph, schedule=TREE), mean, std)[0] < np.finfo(np.float32).eps * np.abs(mean / std).max()


def test_random_forest_of_scalars_and_blocks():
    forest = random_forest(0, trees=40)
    result = gbp.infer(forest.graph, schedule=TREE)
    assert (result.status, result.iterations, result.guard) == (gbp.Status.CONVERGED, 1, ())
    mean, std = forest.compare(result)
    assert mean < 1e-5
    assert std < 1e-5
    assert result.log_evidence == pytest.approx(sum(d.log_evidence() for d in forest.dense), rel=1e-6)


@pytest.mark.slow  # its fast cousin is the forest above
def test_200_random_trees_float64(x64):
    forest = random_forest(1, shape=1)
    result = gbp.infer(forest.graph, schedule=TREE, tolerance=1e-9)
    assert result.iterations == 1
    assert max(forest.compare(result)) < 1e-10
    assert result.log_evidence == pytest.approx(sum(d.log_evidence() for d in forest.dense), rel=1e-12)


def sum_of_three(a, b, c, d):
    return jnp.stack([a + 2 * b - c, b + c]) + d


def make_wide(seed):
    """A tree of factors with two measurements of three scalars and a block; some units without a prior."""
    rng = np.random.default_rng(seed)
    graph, dense = gbp.FactorGraph(), Linear(9 + 2 * 4)
    known = np.array([0, 1, 0, 1, 1, 0, 1, 0, 1])
    mean = rng.standard_normal(9) * known
    s = graph.variable("s", (9,), prior=gbp.Gaussian(jnp.asarray(mean), jnp.asarray(1.0 * known)))
    b = graph.variable("b", (4, 2), block=True)
    rows = np.array([[0, 1, 2, 0], [2, 3, 4, 1], [4, 5, 6, 2], [6, 7, 8, 3]])
    y, cov = rng.standard_normal((4, 2)), np.array([[0.5, 0.2], [0.2, 0.4]])
    args = (*(s[rows[:, i]] for i in range(3)), b[rows[:, 3]])
    graph.add(gbp.Factor(sum_of_three, args, y=y, covariance=cov, linear=True, name="wide"))
    graph.add(gbp.Factor(jnp.sum, (b,), y=0.5, sigma=0.3, linear=True, name="sums", weight=[1.0, 2.0, 1.0, 1.0]))
    graph.add(gbp.Factor(same, (s[[0, 5, 7, 7]],), y=[1.0, 2.0, 3.0, 4.0], sigma=0.5, linear=True, name="some"))
    for i in np.flatnonzero(known):
        dense.prior(i, mean[i], 1.0)
    for f, (i, j, k, m) in enumerate(rows):
        matrix = np.zeros((2, 17))
        matrix[0, [i, j, k]] = 1, 2, -1
        matrix[1, [j, k]] = 1, 1
        matrix[:, 9 + 2 * m : 11 + 2 * m] = np.eye(2)
        dense.measure(matrix, y[f], cov)
        row = np.zeros((1, 17))
        row[0, 9 + 2 * m : 11 + 2 * m] = 1
        dense.measure(row, [0.5], [[0.09 / (2 if m == 1 else 1)]])
    for i, value in zip([0, 5, 7, 7], [1.0, 2.0, 3.0, 4.0]):
        dense.prior(i, value, 0.25)
    return graph, dense


def test_factors_of_many_variables_and_unknown_units(x64):
    """The blocks are known by sums of their parts, and from what is known of the scalars: improper on the way."""
    graph, dense = make_wide(0)
    result = gbp.infer(graph, schedule=TREE, tolerance=1e-9)
    mean, cov = dense.solve()
    std = np.sqrt(np.diag(cov))
    got = np.concatenate([np.asarray(result["s"].mean), np.asarray(result["b"].mean).ravel()])
    wide = np.concatenate([np.asarray(result["s"].std), np.asarray(result["b"].std).ravel()])
    np.testing.assert_allclose((got - mean) / std, 0, atol=1e-10)
    np.testing.assert_allclose(wide, std, rtol=1e-10)
    assert result.iterations == 1


def test_an_anchor_is_all_that_is_known(x64):
    """Chains without priors, one of them held by nothing: of its units nothing is known, and the status says so."""
    n, rng = 30, np.random.default_rng(0)
    y = rng.standard_normal((2, n - 1))
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2 * n,))
    one, other = np.r_[0 : n - 1, n : 2 * n - 1], np.r_[1:n, n + 1 : 2 * n]
    graph.add(gbp.Factor(minus, (x[one], x[other]), y=y.ravel(), sigma=0.5, linear=True))
    graph.add(gbp.Factor(same, (x[7:8],), y=1.0, sigma=0.1, linear=True, name="anchor"))
    result = gbp.infer(graph, schedule=TREE, tolerance=1e-9)
    path = np.concatenate([[0], np.cumsum(y[0])])
    np.testing.assert_allclose(result["x"].mean[:n], 1.0 + path - path[7], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result["x"].std[:n], np.sqrt(0.01 + 0.25 * np.abs(np.arange(n) - 7)), rtol=1e-12)
    np.testing.assert_array_equal(result["x"].lam[n:], 0)
    assert result.iterations == 1
    assert "not everything is known" in result.message


def test_observed_held_and_missing(x64):
    """A tree whose units are partly observed, with an argument that is held and factors that are not there."""
    rng = np.random.default_rng(0)
    parent = np.array([0, 0, 1, 1, 2, 5, 3, 4])  # of units 1 ... 8
    y = rng.standard_normal(8)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (9,), prior=gbp.Gaussian.from_moments(0.0, 2.0))
    b = graph.variable("b", (1,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    weight = np.array([1.0, 1, 1, 0, 1, 1, 2, 1])
    args = (x[np.arange(1, 9)], x[parent], b)
    graph.add(gbp.Factor(lambda c, p, b: c - p + b, args, y=y, sigma=0.5, weight=weight, linear=True))
    graph.hold("b", gbp.Gaussian.from_moments(0.25, 0.3))
    mask = np.arange(9) == 2
    result = gbp.infer(graph, schedule=TREE, evidence={"x": (np.full(9, 0.7), mask)}, tolerance=1e-9)
    dense = Linear(9)
    for i in range(9):
        dense.prior(i, 0.7 if mask[i] else 0.0, 1e-14 if mask[i] else 4.0)
    for i, (p, w) in enumerate(zip(parent, weight)):
        row = np.zeros((1, 9))
        row[0, i + 1], row[0, p] = 1, -1
        if w:  # the uncertainty of what is held is noise of each factor
            dense.measure(row, [y[i] - 0.25], [[0.25 / w + 0.09]])
    mean, cov = dense.solve()
    np.testing.assert_allclose(result["x"].mean, mean, atol=1e-9)
    np.testing.assert_allclose(np.asarray(result["x"].std)[~mask], np.sqrt(np.diag(cov))[~mask], rtol=1e-9)
    assert result.iterations == 1


def bent(a, b):
    return b - a - 0.3 * jnp.sin(a)


def nonlinear_chain(n=40, **measured):
    rng = np.random.default_rng(0)
    x = np.zeros(n)
    for t in range(1, n):
        x[t] = x[t - 1] + 0.3 * np.sin(x[t - 1]) + 0.2 + 0.2 * rng.standard_normal()
    y = x + 0.3 * rng.standard_normal(n)
    y[::10] += 5.0 if "robust" in measured else 0.0
    graph = gbp.FactorGraph()
    v = graph.variable("x", (n,), prior=gbp.Gaussian.from_moments(0.0, 10.0))
    graph.add(gbp.Factor(bent, (v[:-1], v[1:]), y=0.2, sigma=0.2, name="steps"))
    graph.add(gbp.Factor(same, (v,), y=y, linear=True, name="measured", **{"sigma": 0.3, **measured}))
    return graph


@pytest.mark.parametrize(
    ("measured", "how"),
    [
        ({"robust": gbp.Huber(2.0)}, {}),
        ({"sigma": gbp.LearnNoise()}, {"relinearise": gbp.OnMovement(0.001)}),
        pytest.param({}, {"relinearise": gbp.AfterVisit()}, marks=SLOW),
        pytest.param({}, {"relinearise": 3}, marks=SLOW),
    ],
    ids=lambda x: "-".join(map(str, x)) or "nothing",
)
def test_nonlinear_chain_has_the_fixed_point_of_a_sweep(measured, how):
    """Each linearises at its own means: where neither moves, they are the same."""
    graph = nonlinear_chain(**measured)
    tree = gbp.infer(graph, schedule=TREE, tolerance=1e-5, **how)
    sweep = gbp.infer(graph, schedule=gbp.Sweep(), tolerance=1e-5)
    assert tree.status is sweep.status is gbp.Status.CONVERGED
    np.testing.assert_allclose((tree["x"].mean - sweep["x"].mean) / sweep["x"].std, 0, atol=1e-4)
    np.testing.assert_allclose(tree["x"].std, sweep["x"].std, rtol=1e-4)
    for name, sigma in sweep.noise.items():
        assert tree.noise[name] == pytest.approx(sigma, rel=1e-4)


def test_a_small_residual_is_not_rest_where_factors_are_nonlinear():
    """Converged means that a further sweep moves no belief by more than the tolerance."""
    graph = nonlinear_chain()
    result = gbp.infer(graph, schedule=TREE)
    further = gbp.infer(graph, schedule=TREE, init=result, iterations=1, tolerance=0.0)
    assert result.residual <= 1e-3
    assert further.residual <= 1e-3
    assert np.abs((further["x"].mean - result["x"].mean) / result["x"].std).max() <= 1e-3


def squared(a):
    return a * a


def test_the_guard_damps_steps_that_overshoot():
    """Squares that contradict each other: no start is near, and a step of full length leads far away."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (12,), prior=gbp.Gaussian.from_moments(0.0, 30.0), start=0.05)
    graph.add(gbp.Factor(squared, (x,), y=np.linspace(-2.0, 4.0, 12), sigma=0.1, name="squares"))
    graph.add(gbp.Factor(minus, (x[:-1], x[1:]), sigma=1.0, linear=True, name="steps"))
    result = gbp.infer(graph, schedule=TREE, throw=False, iterations=300)
    assert result.guard
    assert bool(jnp.isfinite(result["x"].mean).all())
    assert bool((result["x"].lam > 0).all())
    start = graph.energy({"x": np.full(12, 0.05)})
    assert sum(graph.energy({"x": np.asarray(result["x"].mean)}).values()) < sum(start.values())


def test_step_and_new_numbers():
    """`gbp.step` is one sweep; other numbers on a tree of the same widths compile nothing."""
    graphs = [made_chain("stationary", 40, 1, seed) for seed in (0, 1)]
    state = gbp.step(graphs[0][0], gbp.init(graphs[0][0]), schedule=TREE)
    mean, std = graphs[0][1:]
    assert off(gbp.beliefs(graphs[0][0], state), mean, std)[0] < 1e-5
    np.testing.assert_array_equal(state.visits, [1, 1])
    assert off(gbp.infer(graphs[0][0], schedule=TREE), mean, std)[0] < 1e-5
    compiled = programs_of(run_in_place)
    assert off(gbp.infer(graphs[1][0], schedule=TREE), *graphs[1][1:])[0] < 1e-5
    assert programs_of(run_in_place) == compiled


def test_a_star_and_units_without_joints():
    """A unit of many factors, units of one factor each, and units of none."""
    graph = gbp.FactorGraph()
    prior = gbp.Gaussian.from_moments(0.0, 1.0)
    names = ("centre", (1,)), ("leaf", (5,)), ("alone", (3,)), ("unknown", (2,))
    centre, leaf, alone, _ = (graph.variable(n, shape, prior=prior) for n, shape in names)
    graph.add(gbp.Factor(same, (alone,), y=[1.0, 2.0, 3.0], sigma=1.0, linear=True, name="one"))
    just_one = gbp.infer(graph, schedule=TREE)
    np.testing.assert_allclose(just_one["alone"].mean, [0.5, 1.0, 1.5], rtol=1e-6)
    graph.add(gbp.Factor(minus, (leaf, centre), y=np.arange(5.0), sigma=0.5, linear=True, name="star"))
    result = gbp.infer(graph, schedule=TREE)
    lam = np.diag(np.r_[1 + 5 / 0.25, np.full(5, 1 + 1 / 0.25)])
    lam[0, 1:] = lam[1:, 0] = -1 / 0.25
    mean = np.linalg.solve(lam, np.r_[10 / 0.25, -np.arange(5.0) / 0.25])
    np.testing.assert_allclose(np.r_[result["centre"].mean, result["leaf"].mean], mean, atol=1e-5)
    std = np.sqrt(np.diag(np.linalg.inv(lam)))
    np.testing.assert_allclose(np.r_[result["centre"].std, result["leaf"].std], std, rtol=1e-5)
    np.testing.assert_array_equal(result["unknown"].std, 1.0)
    assert (just_one.iterations, result.iterations) == (1, 1)


# Loops: a forest is swept, the factors that close loops are visited after it.


def ring_with_tails(units, tail, dtype="float32", seed=0):
    """A ring of scalars, from each of which hangs a chain; and its precision and information."""
    rng = np.random.default_rng(seed)
    n = units * (tail + 1)
    ring = np.stack([np.arange(units), (np.arange(units) + 1) % units], 1)
    tails = [
        [u if k == 0 else units + u * tail + k - 1, units + u * tail + k] for u in range(units) for k in range(tail)
    ]
    pairs = np.vstack([ring, np.array(tails)])[rng.permutation(units + units * tail)]
    y, prior = rng.normal(size=len(pairs)), rng.normal(size=n)
    graph = gbp.FactorGraph(dtype=dtype)
    x = graph.variable("x", (n,), prior=gbp.Gaussian.from_moments(prior, 1.0))
    graph.add(gbp.Factor(minus, (x[pairs[:, 0]], x[pairs[:, 1]]), y=y, sigma=0.5, linear=True, name="pairs"))
    rows = np.zeros((len(pairs), n))
    rows[np.arange(len(pairs)), pairs[:, 0]], rows[np.arange(len(pairs)), pairs[:, 1]] = -1, 1
    return graph, np.eye(n) + 4 * rows.T @ rows, prior + 4 * rows.T @ y


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=SLOW)])
def test_a_ring_with_tails_has_the_fixed_point_of_a_sweep(dtype, request):
    """The means are those of a dense solve. One factor of one group is outside of the forest, wherever it stands."""
    if dtype == "float64":
        request.getfixturevalue("x64")
    graph, lam, eta = ring_with_tails(5, 40, dtype)
    (outside,) = [np.flatnonzero(~np.asarray(x)) for x in tree_plan(graph.problem()).inside.values()]
    assert len(outside) == 1
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    tree, sweep = (gbp.infer(graph, schedule=s, tolerance=tolerance) for s in (TREE, gbp.Sweep()))
    assert tree.status is sweep.status is gbp.Status.CONVERGED
    std = np.sqrt(np.diag(np.linalg.inv(lam)))
    np.testing.assert_allclose((tree["x"].mean - np.linalg.solve(lam, eta)) / std, 0, atol=20 * tolerance)
    np.testing.assert_allclose(tree["x"].std, sweep["x"].std, rtol=20 * tolerance)
    assert tree.iterations < sweep.iterations / 2  # knowledge need not travel along the tails


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), units=st.integers(2, 9), extra=st.integers(0, 12))
def test_random_graphs_have_the_means_of_a_dense_solve(seed, units, extra):
    """Any pairs, in two groups, some twice: where the messages converge, the means of linear graphs are exact."""
    rng = np.random.default_rng(seed)
    graph = gbp.FactorGraph()
    prior = rng.normal(size=units)
    x = graph.variable("x", (units,), prior=gbp.Gaussian.from_moments(prior, 1.0))
    lam, eta = np.eye(units), prior.copy()
    for name, count in (("some", units - 1), ("others", extra)):
        pairs = np.array([rng.choice(units, 2, replace=False) for _ in range(count)], int).reshape(-1, 2)
        y = rng.normal(size=count)
        if count:
            graph.add(gbp.Factor(minus, (x[pairs[:, 0]], x[pairs[:, 1]]), y=y, sigma=2.0, linear=True, name=name))
        rows = np.eye(units)[pairs[:, 1]] - np.eye(units)[pairs[:, 0]]
        lam, eta = lam + rows.T @ rows / 4, eta + rows.T @ y / 4
    result = gbp.infer(graph, schedule=TREE, tolerance=1e-6, throw=False)
    assert result.status is gbp.Status.CONVERGED
    np.testing.assert_allclose(result["x"].mean, np.linalg.solve(lam, eta), atol=2e-5)


def test_nonlinear_robust_loops_in_blocks():
    """Poses on a path that meets itself: the fixed point of a sweep, with fewer iterations."""
    graph = nonlinear_ring()
    tree, sweep = (gbp.infer(graph, schedule=s, tolerance=1e-5, iterations=3000) for s in (TREE, gbp.Sweep()))
    assert tree.status is sweep.status is gbp.Status.CONVERGED
    assert tree.iterations < sweep.iterations
    np.testing.assert_allclose((tree["x"].mean - sweep["x"].mean) / sweep["x"].std, 0, atol=1e-3)
    np.testing.assert_allclose(tree["x"].std, sweep["x"].std, rtol=1e-3)


def curved_step(a, b):
    return b - a + 0.1 * jnp.stack([jnp.sin(a[1]), jnp.cos(a[0])])


def nonlinear_ring(steps=30, seed=3):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 2 * np.pi, steps + 1)
    true = 3 * np.stack([np.cos(t), np.sin(t)], 1)
    odometry = np.array(jax.vmap(curved_step)(true[:-1], true[1:])) + 0.1 * rng.normal(size=(steps, 2))
    graph = gbp.FactorGraph()
    prior = gbp.Gaussian.from_moments(true, covariance=np.eye(2))
    x = graph.variable("x", (steps + 1, 2), prior=prior, block=True)
    graph.add(gbp.Factor(curved_step, (x[:-1], x[1:]), y=odometry, sigma=0.1, name="odometry"))
    i, j = np.array([0, 2, 5]), np.array([steps, steps - 3, steps - 5])
    closure = np.array(jax.vmap(curved_step)(true[i], true[j])) + np.array([[0.0], [0.1], [3.0]])
    graph.add(gbp.Factor(curved_step, (x[i], x[j]), y=closure, sigma=0.2, robust=gbp.Huber(2.0), name="closures"))
    return graph


# What is refused, and when it is chosen.


def pairs_graph(edges, units, **factor):
    graph = gbp.FactorGraph()
    x = graph.variable("x", (units,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    edges = np.asarray(edges)
    graph.add(gbp.Factor(minus, (x[edges[:, 0]], x[edges[:, 1]]), sigma=1.0, name="pairs", **factor))
    return graph


@pytest.mark.parametrize("how", [{"damping": 0.3}, {"dropout": 0.1}])
def test_damping_and_dropout_are_refused(how):
    with pytest.raises(ValueError, match="takes neither damping nor dropout"):
        gbp.infer(pairs_graph([(0, 1)], 2), schedule=TREE, **how)


def test_pooled_messages_are_refused():
    graph = pairs_graph([(0, 1), (0, 2)], 3)
    with pytest.raises(ValueError, match=r"'pairs' are pooled \(use messages='per-edge'\)"):
        gbp.infer(graph, schedule=TREE, messages="pooled")


def chosen(graph, damping=0.0):
    return make_options(graph, graph.problem(), damping, 0.0, None, 1).schedule


def test_deep_linear_trees_take_it_by_themselves():
    deep, flat = 2 * DEEP, 2 * DEEP - 2
    line = np.stack([np.arange(deep), np.arange(1, deep + 1)], 1)
    star = np.stack([np.zeros(deep, int), np.arange(1, deep + 1)], 1)
    assert chosen(pairs_graph(line, deep + 1, linear=True)) == TREE
    assert chosen(pairs_graph(line[:flat], deep + 1, linear=True)) == gbp.Sweep()
    assert chosen(pairs_graph(star, deep + 1, linear=True)) == gbp.Sweep()
    loops = np.stack([np.arange(30), np.arange(30) + deep - 30], 1)
    assert chosen(pairs_graph(np.vstack([line, loops[:1]]), deep + 1, linear=True)) == TREE  # one loop
    assert chosen(pairs_graph(np.vstack([line, loops]), deep + 1, linear=True)) == gbp.Sweep()  # many
    assert chosen(pairs_graph(line, deep + 1)) == gbp.Sweep()  # not known to be linear
    assert chosen(pairs_graph(line, deep + 1, linear=True, robust=gbp.Huber(1.0))) == gbp.Sweep()
    assert chosen(pairs_graph(line, deep + 1, linear=True), damping=0.1) == gbp.Sweep()


def test_a_plan_is_made_once_for_the_same_joints():
    """Whatever the numbers; other joints, or other variables, have another plan."""
    line = np.stack([np.arange(9), np.arange(1, 10)], 1)
    plan = tree_plan(pairs_graph(line, 10, linear=True).problem())
    assert tree_plan(pairs_graph(line, 10, linear=True, y=3.0).problem()) is plan
    moved = line.copy()
    moved[-1, 0] = 0
    assert tree_plan(pairs_graph(moved, 10, linear=True).problem()) is not plan
    assert tree_plan(pairs_graph(line, 11, linear=True).problem()) is not plan


def test_a_plan_that_is_made_while_jax_compiles_can_be_used_afterwards():
    line = np.stack([np.arange(70), np.arange(1, 71)], 1)
    graph = pairs_graph(line, 71, linear=True, y=0.25)
    inside = jax.jit(lambda state: gbp.step(graph, state, schedule=TREE))(gbp.init(graph))
    outside = gbp.infer(graph, schedule=TREE)
    np.testing.assert_allclose(gbp.beliefs(graph, inside)["x"].mean, outside["x"].mean, atol=1e-6)


def test_it_can_be_saved():
    assert from_json(to_json(TREE, "schedule"), "schedule") == TREE


# The plan, and the equations.


def distances(neighbours, start):
    found, queue = {start: 0}, [start]
    for node in queue:
        for other in neighbours[node]:
            if other not in found:
                found[other] = found[node] + 1
                queue.append(other)
    return found


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_plan_waits_for_every_message(data):
    """Every joint stands in one place, after the one above it; no tree is deeper than it must be."""
    n = data.draw(st.integers(2, 40))
    bushy = data.draw(st.integers(1, 40))
    parents = [data.draw(st.integers(-1 if i % 11 == 10 else max(0, i - bushy), i - 1)) for i in range(1, n)]
    edges = [(i + 1, p) for i, p in enumerate(parents) if p >= 0]
    edges = [edge if data.draw(st.booleans()) else edge[::-1] for edge in edges]
    plan = tree_plan(pairs_graph(edges, n).problem())
    (cohort,) = plan.cohorts
    at, order = 0, {}  # of each place of the cohort: run and level
    for r, run in enumerate(plan.runs):
        for level in range(run.levels):
            for _ in range(run.widths[0]):
                order[at], at = (r, level), at + 1
    there = np.flatnonzero(np.asarray(cohort.there))
    row, unit = np.asarray(cohort.row)[there], np.asarray(cohort.unit)[there]
    assert sorted(row) == list(range(len(edges)))
    assert [set(u) for u in unit] == [set(edges[i]) for i in row]
    above = {child: order[p] for p, (_, child) in zip(there, unit)}
    assert len(above) == len(edges)  # no unit has two parents
    assert all(above[parent] < order[p] for p, (parent, _) in zip(there, unit) if parent in above)
    neighbours = {i: [] for i in range(n)}
    for a, b in edges:
        neighbours[a].append(b)
        neighbours[b].append(a)
    longest = max(max(distances(neighbours, i).values()) for i in range(n))
    assert plan.depth == -(-longest // 2)


def lanes_last(a):
    return jnp.asarray(np.moveaxis(a, 0, -1))


to_first = jax.jit(
    lambda js, r, w, etas, lams: message_to(js[0], r, w, [Side(*s) for s in zip(js[1:], etas[1:], lams[1:])]),
    compiler_options=QUICK,
)
to_all = jax.jit(scalar_messages_to_all, compiler_options=QUICK)


@jax.jit
def to_first_by_loop(js, r, w, etas, lams):
    """The others as one variable, of which nothing joins the parts."""
    (a, b), f = (x.shape[0] for x in etas[1:]), r.shape[-1]
    joined = jnp.zeros((a + b, a + b, f)).at[:a, :a].set(lams[1]).at[a:, a:].set(lams[2])
    return message_by_loop(js[0], r, w, Side(jnp.concatenate(js[1:], 1), jnp.concatenate(etas[1:]), joined))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), flat=st.sampled_from([0, 1, 2, 3]), vague=st.floats(-2, 2))
def test_messages_are_those_of_the_joint_density(x64, seed, flat, vague):
    """Blocks of 2, 3 and 1 and three measurements; some directions of the others unknown: a pseudo-inverse.

    Written out, and as a loop over all directions.
    """
    rng, f, m, dims = np.random.default_rng(seed), 4, 3, (2, 3, 1)
    js = [rng.standard_normal((f, m, d)) for d in dims]
    roots = [rng.standard_normal((f, d + 1, d)) * 10**vague for d in dims]
    if flat:
        roots[1][:, flat:] = 0  # of rank `flat` or unknown in all directions
        roots[2][:2] = 0
    lams = [np.swapaxes(a, 1, 2) @ a for a in roots]
    means = [rng.standard_normal(lam.shape[:2]) for lam in lams]
    etas = [np.einsum("fij,fj->fi", lam, x) for lam, x in zip(lams, means)]
    size = 1 + max(np.abs(x).max() for x in means)
    r, w = rng.standard_normal((f, m)), 10 ** rng.uniform(-1, 1, (f, m))
    lists = [[lanes_last(a) for a in part] for part in (js, etas, lams)]
    numbers = lists[0], lanes_last(r), lanes_last(w), *lists[1:]
    for i, (eta, lam) in product(range(f), (to_first(*numbers), to_first_by_loop(*numbers))):
        first, rest = js[0][i], np.concatenate([j[i] for j in js[1:]], 1)
        joint = rest.T @ (w[i][:, None] * rest)
        joint[:3, :3] += lams[1][i]
        joint[3:, 3:] += lams[2][i]
        information = rest.T @ (w[i] * r[i]) + np.concatenate([etas[1][i], etas[2][i]])
        gain = first.T @ (w[i][:, None] * rest) @ np.linalg.pinv(joint, rcond=1e-13, hermitian=True)
        full = first.T @ (w[i][:, None] * first)
        right = full - gain @ rest.T @ (w[i][:, None] * first)
        right_eta = first.T @ (w[i] * r[i]) - gain @ information
        np.testing.assert_allclose(lam[..., i], right, atol=1e-8 * np.abs(full).max())
        np.testing.assert_allclose(eta[..., i], right_eta, atol=1e-8 * np.abs(full).max() * size)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), unknown=st.integers(-1, 4))
def test_scalar_messages_are_those_of_the_joint_density(seed, unknown):
    rng, f, n = np.random.default_rng(seed), 3, 5
    j, eta, r = rng.standard_normal((n, f)), rng.standard_normal((n, f)), rng.standard_normal(f)
    lam, w = 10 ** rng.uniform(-2, 2, (n, f)), 10 ** rng.uniform(-1, 1, f)
    if unknown >= 0:
        lam[unknown], eta[unknown] = 0, 0
    got_eta, got_lam = to_all(*(jnp.asarray(np.float32(a)) for a in (j, r, w, eta, lam)))
    for i in range(f):
        pieces = [j[k, i].reshape(1, 1) for k in range(n)], [eta[k, i].reshape(1) for k in range(n)]
        floor = [np.maximum(lam[k, i], 1e-12).reshape(1, 1) for k in range(n)]
        right = schur_messages(*pieces, floor, [np.zeros(1)] * n, r[i : i + 1], 0.0, [[1 / w[i]]])
        for k, (e, a) in enumerate(right):
            scale = w[i] * j[k, i] ** 2
            assert got_lam[k, i] == pytest.approx(a[0, 0], abs=1e-5 * scale)
            assert got_eta[k, i] == pytest.approx(e[0], abs=1e-5 * (scale + w[i] * abs(j[k, i]) * 10))


@pytest.mark.parametrize("schedule", [TREE, gbp.Sweep()], ids=lambda s: type(s).__name__)
def test_wide_priors_do_not_blur_what_is_measured(schedule):
    """Positions and velocities with a prior of 1000, positions measured to 1: "converged" was 15 deviations off."""
    n, q, rng = 40, 0.03, np.random.default_rng(0)
    f, dense = np.array([[1.0, 1.0], [0.0, 1.0]]), Linear(2 * n)
    y = np.float32(np.arange(n) + rng.standard_normal(n))
    graph = gbp.FactorGraph()
    prior = gbp.Gaussian.from_moments(np.zeros((n, 2)), covariance=1e6 * np.eye(2))
    x = graph.variable("x", (n, 2), prior=prior, block=True)
    graph.add(gbp.Factor(matrix_step, (f[None], x[:-1], x[1:]), sigma=q, linear=True, name="steps"))
    graph.add(gbp.Factor(lambda a: a[:1], (x,), y=y[:, None], sigma=1.0, linear=True, name="positions"))
    dense.prior(list(range(2 * n)), np.zeros(2 * n), 1e6 * np.eye(2 * n))
    for t in range(n - 1):
        row = np.zeros((2, 2 * n))
        row[:, 2 * t : 2 * t + 2], row[:, 2 * t + 2 : 2 * t + 4] = -f, np.eye(2)
        dense.measure(row, [0.0, 0.0], q**2 * np.eye(2))
    for t in range(n):
        dense.measure(np.eye(2 * n)[[2 * t]], [y[t]], [[1.0]])
    mean, cov = dense.solve()
    result = gbp.infer(graph, schedule=schedule)
    assert result.status is gbp.Status.CONVERGED
    far, wide = off(result, mean.reshape(n, 2), np.sqrt(np.diag(cov)).reshape(n, 2))
    assert far < 1e-3
    assert wide < 1e-4


@pytest.mark.parametrize("reach", [1.0, 1e3])
def test_vague_velocities_do_not_blur_positions(reach):
    """Positions are measured, velocities hardly known at first: precise and vague directions in one block."""
    n, rng = 60, np.random.default_rng(0)
    f, q = np.array([[1.0, 1.0], [0.0, 1.0]]), np.float32([[1 / 3e3, 5e-4], [5e-4, 1e-3]]).astype(float)
    y = np.float32(np.cumsum(0.05 * rng.standard_normal(n)))
    first = np.zeros((n, 2, 2), np.float32)
    first[0] = np.eye(2) / reach**2
    graph = gbp.FactorGraph()
    x = graph.variable("x", (n, 2), prior=gbp.Gaussian(jnp.zeros((n, 2)), jnp.asarray(first)), block=True)
    graph.add(gbp.Factor(matrix_step, (f[None], x[:-1], x[1:]), covariance=q, linear=True, name="steps"))
    graph.add(gbp.Factor(lambda a: a[0], (x,), y=y, sigma=0.1, linear=True, name="positions"))
    dense = Linear(2 * n)
    dense.prior([0, 1], [0.0, 0.0], np.eye(2) * reach**2)
    for t in range(n - 1):
        row = np.zeros((2, 2 * n))
        row[:, 2 * t : 2 * t + 2], row[:, 2 * t + 2 : 2 * t + 4] = -f, np.eye(2)
        dense.measure(row, [0.0, 0.0], q)
    for t in range(n):
        dense.measure(np.eye(2 * n)[[2 * t]], [y[t]], [[0.01]])
    mean, cov = dense.solve()
    far, wide = off(gbp.infer(graph, schedule=TREE), mean.reshape(n, 2), np.sqrt(np.diag(cov)).reshape(n, 2))
    assert far < 1e-4
    assert wide < 1e-4
