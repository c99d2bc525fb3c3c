"""Trees are exact, loopy walk-summable graphs have exact means: against dense solves."""

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from helpers import Linear, random_forest

EPS = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize("trees", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_random_trees_float32(trees):
    forest = random_forest(0, trees=trees)
    result = gbp.infer(forest.graph, tolerance=1e-5, iterations=200)
    mean, std = forest.compare(result)
    assert result.status is gbp.Status.CONVERGED
    assert result.guard == ()
    assert mean < 2e-5
    assert std < 2e-5
    precise_along_one_direction(trees)


@pytest.mark.slow
def test_200_random_trees_float64(x64):
    forest = random_forest(1, shape=1)
    result = gbp.infer(forest.graph, tolerance=1e-12, iterations=200)
    mean, std = forest.compare(result)
    assert mean < 1e-9
    assert std < 1e-9
    assert result.log_evidence == pytest.approx(sum(d.log_evidence() for d in forest.dense), rel=1e-11)


def precise_along_one_direction(trees):
    """Natural parameters hold a block to eps times its condition number, no better: the limit stated in the docs.

    On the same trees, so that nothing is compiled again: part of the test above.
    """
    forest = random_forest(2, trees=trees, across=0.0)
    result = gbp.infer(forest.graph, tolerance=1e-4, iterations=200)
    condition = 1.0
    for model, members in zip(forest.dense, forest.members):
        _, cov = model.solve()
        at = 0
        for kind, _ in members:
            if kind == "b":
                condition = max(condition, np.linalg.cond(cov[at : at + 2, at : at + 2]))
            at += 1 if kind == "s" else 2
    mean, std = forest.compare(result)
    assert condition > 1e3  # else this tests nothing
    assert mean < 4 * EPS * condition
    assert std < 4 * EPS * condition


@pytest.mark.slow  # its fast cousin is the evidence of the 200 trees above, in float64
def test_log_evidence_of_200_trees_float32():
    forest = random_forest(0)
    result = gbp.infer(forest.graph, tolerance=1e-5, iterations=200)
    assert result.log_evidence == pytest.approx(sum(d.log_evidence() for d in forest.dense), rel=1e-6)


@pytest.mark.slow  # its fast cousin is the evidence of the 200 trees above
def test_log_evidence_of_a_single_tree(x64):
    forest = random_forest(0, trees=1, most=12)
    result = gbp.infer(forest.graph, tolerance=1e-12)
    assert result.log_evidence == pytest.approx(forest.dense[0].log_evidence(), rel=1e-10)


def test_log_evidence_counts_observed_variables_with_their_prior(x64):
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3,), prior=gbp.Gaussian.from_moments(0.5, 2.0))
    graph.add(gbp.Factor(lambda a, b: b - a, (x[:-1], x[1:]), y=[1.0, 2.0], sigma=0.3))
    dense = Linear(3)
    for i in range(3):
        dense.prior(i, 0.5, 4.0)
    for i, y in enumerate([1.0, 2.0]):
        dense.measure(np.eye(3)[[i + 1]] - np.eye(3)[[i]], [y], [[0.09]])
    # p(x[1] = 1.7, y) = p(y) p(x[1] = 1.7 | y)
    mean, cov = dense.solve()
    right = dense.log_evidence() - 0.5 * (np.log(2 * np.pi * cov[1, 1]) + (1.7 - mean[1]) ** 2 / cov[1, 1])
    partly = gbp.infer(graph, evidence={"x": (np.array([np.nan, 1.7, np.nan]), [False, True, False])}, tolerance=1e-12)
    assert partly.log_evidence == pytest.approx(right, rel=1e-10)
    wholly = gbp.infer(graph, evidence={"x": [0.0, 1.7, 3.0]})
    everything = -graph.energy({"x": [0.0, 1.7, 3.0]})["factor"] - 2 * np.log(0.3 * np.sqrt(2 * np.pi))
    prior = gbp.Gaussian.from_moments(0.5, 2.0).log_density(np.array([0.0, 1.7, 3.0])).sum()
    assert wholly.log_evidence == pytest.approx(everything + float(prior), rel=1e-10)


def test_chain_without_priors_but_one_anchor(x64):
    """Improper variables: information spreads from the anchor; the answer is the dense one."""
    n, rng = 30, np.random.default_rng(0)
    y = rng.standard_normal(n - 1)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (n,))
    graph.add(gbp.Factor(lambda a, b: b - a, (x[:-1], x[1:]), y=y, sigma=0.5, linear=True, name="steps"))
    graph.add(gbp.Factor(lambda a: a, (x[7:8],), y=1.0, sigma=0.1, linear=True, name="anchor"))
    result = gbp.infer(graph, tolerance=1e-12)
    mean = 1.0 + np.concatenate([[0], np.cumsum(y)]) - np.concatenate([[0], np.cumsum(y)])[7]
    std = np.sqrt(0.01 + 0.25 * np.abs(np.arange(n) - 7))
    np.testing.assert_allclose(result["x"].mean, mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(result["x"].std, std, rtol=1e-10)


def random_loopy(rng, n, graphs, degree=3.0):
    """Random pairwise graphs of n variables, side by side: factors of two variables and priors, walk-summable."""
    pairs = [
        (i, j) for start in range(0, n * graphs, n) for i in range(start, start + n) for j in range(i + 1, start + n)
    ]
    edges = np.array([pair for pair in pairs if rng.random() < degree / n])
    return edges, rng.choice([-1.0, 1.0], len(edges)), rng.standard_normal(len(edges))


def signed(s, a, b):
    return b - s * a


def test_loopy_walk_summable_means_are_exact():
    edges, sign, y = random_loopy(np.random.default_rng(0), 60, graphs=3)
    n = 180
    graph = gbp.FactorGraph()
    x = graph.variable("x", (n,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(signed, (sign, x[edges[:, 0]], x[edges[:, 1]]), y=y, sigma=0.7, linear=True, name="pairs"))
    dense = Linear(n)
    for i in range(n):
        dense.prior(i, 0.0, 1.0)
    for (i, j), s, value in zip(edges, sign, y):
        row = np.zeros((1, n))
        row[0, j], row[0, i] = 1.0, -s
        dense.measure(row, [value], [[0.49]])
    mean, cov = dense.solve()
    result = gbp.infer(graph, tolerance=1e-6, iterations=500)
    assert result.guard == ()
    assert np.abs((np.asarray(result["x"].mean) - mean) / np.sqrt(np.diag(cov))).max() < 1e-4


def test_large_means_and_tiny_noise_stay_finite():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (50,), prior=gbp.Gaussian.from_moments(0.0, 1e4))
    graph.add(gbp.Factor(lambda a, b: b - a, (x[:-1], x[1:]), y=1e3, sigma=1e-4, linear=True))
    result = gbp.infer(graph, iterations=300)
    assert bool(jnp.isfinite(result["x"].mean).all())
    np.testing.assert_allclose(np.diff(np.asarray(result["x"].mean)), 1e3, rtol=1e-4)
