"""Few iterations: when learning stops, and how it is damped."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.engine.visit import cheap_uniform


def regression():
    """Bayesian linear regression: parameters with a closed form."""
    rng = np.random.default_rng(0)
    rows, sigma = rng.standard_normal((30, 4)), 0.5
    y = rows @ [1.0, -2.0, 0.5, 0.0] + sigma * rng.standard_normal(30)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (4,), prior=gbp.Gaussian.from_moments(0.0, 1.0), kind="parameter")
    graph.add(gbp.Factor(lambda row, w: row @ w, (rows, w[None]), y=y, sigma=sigma, linear=True, name="rows"))
    precision = np.eye(4) + rows.T @ rows / sigma**2
    return graph, np.linalg.solve(precision, rows.T @ y / sigma**2)


def test_parameters_that_have_settled_are_within_what_was_asked():
    graph, mean = regression()
    exact = gbp.infer(graph, tolerance=1e-5, damping=0.5)
    result = gbp.infer(graph, tolerance=1e-5, settled=0.05, damping=0.5)
    assert (exact.status, result.status) == (gbp.Status.CONVERGED, gbp.Status.SETTLED)
    assert 5 <= result.iterations < exact.iterations
    np.testing.assert_allclose(exact["w"].mean, mean, atol=1e-4)
    # Undamped, the next step would be at most 0.05; what is left of a sequence that halves is twice that.
    off = np.sqrt(np.mean(((result["w"].mean - mean) / result["w"].std) ** 2))
    assert off < 0.1


def test_means_at_rest_are_not_enough():
    """A batch that agrees with its prior moves no mean; the posterior must be as narrow as it would be otherwise."""
    net = gbp.Sequential(
        gbp.Dense(1, sigma=0.1, weight_prior=1.0, weight_init=0.0), gbp.GaussianObservation(0.1), input_shape=(2,)
    )
    x = np.random.default_rng(0).standard_normal((50, 2))
    found = [gbp.Learner(net, iterations=500, **how) for how in ({}, {"tolerance": 1e-4})]
    for learner in found:
        learner.update(x, np.zeros((50, 1)))
    settled, exact = (np.asarray(f.posterior["dense/weight"].std) for f in found)
    np.testing.assert_allclose(settled, exact, rtol=0.05)


def test_without_parameters_nothing_settles():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(lambda a: a, (x[:],), y=1.0, sigma=1.0, linear=True))
    assert gbp.infer(graph, settled=10.0).status is gbp.Status.CONVERGED
    with pytest.raises(ValueError, match="settled must be >= 0"):
        gbp.infer(graph, settled=-1.0)


@given(batch=st.integers(1, 1000), known=st.floats(0, 1e6))
def test_the_damping_of_a_batch(batch, known):
    """Less for small batches, less the more is known, never below 0.7."""
    damping = gbp.damping_for(batch, known)
    assert 0.7 <= damping.parameters < 1
    assert damping.activations == 0.5
    assert gbp.damping_for(batch, known + 100).parameters <= damping.parameters
    assert gbp.damping_for(batch + 10, known).parameters >= damping.parameters - 1e-12


def test_the_damping_of_the_first_batches_of_the_paper():
    found = [gbp.damping_for(50, 50.0 * i).parameters for i in (0, 1, 4, 100)]
    np.testing.assert_allclose(found, [0.95, 0.9, 0.75, 0.7])


def test_what_is_forgotten_is_not_known():
    """Where half is forgotten between two batches, the prior never stands for more than one more batch."""
    first = {"w": gbp.Gaussian.from_moments(np.zeros(3), 1.0)}
    posterior, half = ({"w": gbp.Gaussian(first["w"].eta, k * first["w"].lam)} for k in (5, 3))
    known = gbp.Filtering(forgetting=0.5).examples_known
    assert known(1000, 10, first, posterior, half) == pytest.approx(10.0)
    assert known(4, 10, first, posterior, half) == pytest.approx(2.0)  # half of the few that were seen
    assert known(1000, 10, first, posterior, first) == 0  # all is forgotten
    assert gbp.Filtering().examples_known(1000, 10, first, posterior, posterior) == 1000


def test_cheap_numbers_are_uniform_and_depend_on_the_key():
    key, other = jax.random.split(jax.random.PRNGKey(0))
    x, y, again = (np.asarray(cheap_uniform(k, 100_000)) for k in (key, other, key))
    np.testing.assert_array_equal(x, again)
    assert x.min() >= 0
    assert x.max() < 1
    counts = np.histogram(x, 50, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 95  # chi square, 49 degrees of freedom: 1 in 10,000
    for a, b in ((x, y), (x[1:], x[:-1]), (x[64:], x[:-64])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.015
