"""Iterations that nobody looks at: visits in one call are visits one after the other."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn import inference
from gbplearn.native import built
from gbplearn.native.chain import Chain, common_pieces
from gbplearn.problem import empty_state
from gbplearn.sweep import fixed_order, sweep
from gbplearn.visit import visit

needs_kernels = pytest.mark.skipif(not built(), reason="the kernels were not built: there is no C++ compiler")
CONV, POOL, DENSE, SOFTMAX = range(4)


def problem_of(batch: int = 9, activation: str = "leaky_relu"):
    rng = np.random.default_rng(0)
    net = gbp.Sequential(
        gbp.Conv2D(17, kernel=3, activation=activation, sigma=0.1, weight_prior=0.4, bias_prior=0.3, prior=2.0),
        gbp.MaxPool2D(2, sigma=0.1, prior=2.0),
        gbp.Dense(3, sigma=0.1, weight_prior=0.3, bias_prior=0.2, prior=2.0),
        gbp.SoftmaxObservation(sigma=0.3),
    )
    x, y = rng.standard_normal((batch, 7, 7, 2)), rng.integers(0, 3, batch)
    graph = net.graph(net.batch(x[:-1], y[:-1]).padded(batch))
    problem = graph.problem(None, "pooled").with_known()
    damping = gbp.Damping(parameters=0.8, activations=0.3)
    return problem, inference._options(graph, problem, damping, 0.0, None, 1)


def called(problem, options) -> str:
    """The program of some iterations."""
    state = empty_state(problem, jax.random.PRNGKey(0), False)
    return str(jax.make_jaxpr(lambda s, n: sweep(problem, s, options, n))(state, 2))


@needs_kernels
@pytest.mark.parametrize(
    "visits",
    [None, (CONV, DENSE, POOL, CONV, SOFTMAX), (POOL, CONV, DENSE, SOFTMAX), (CONV, DENSE, SOFTMAX, POOL)],
    ids=["forward and back", "within an iteration", "at its beginning", "across two iterations"],
)
def test_one_call_is_one_visit_after_the_other(visits):
    problem, options = problem_of()
    if visits is not None:
        names = [problem.groups[g].name for g in visits]
        options = dataclasses.replace(options, schedule=gbp.Order(*names))
    order = fixed_order(problem, options)
    assert order is not None
    assert "gbplearn_chain" in called(problem, options)
    swept = jax.jit(lambda s, n: sweep(problem, s, options, n))
    one = [jax.jit(lambda s, g=g: visit(problem, s, options, g)[0]) for g in problem.active()]
    expected = start = empty_state(problem, jax.random.PRNGKey(0), False)
    for count in range(4):
        got = swept(start, np.int32(count))
        np.testing.assert_array_equal(got.visits, expected.visits)
        for a, b in zip(jax.tree.leaves(got.messages), jax.tree.leaves(expected.messages)):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(float(np.abs(b).max()), 1e-2))
        for g in order:
            expected = one[problem.active().index(g)](expected)


@needs_kernels
def test_which_visits_go_together(monkeypatch):
    problem, options = problem_of()
    assert common_pieces(problem, options, (POOL, CONV, POOL)) == 9
    assert common_pieces(problem, options, (POOL,)) == 9
    assert common_pieces(problem, options, (CONV, POOL, CONV)) == 0  # its parameters are read at the start
    assert common_pieces(problem, options, (POOL, DENSE)) == 0
    assert common_pieces(problem, options, (SOFTMAX,)) == 0
    assert common_pieces(*problem_of(batch=4), (CONV, POOL)) == 0  # too few for several threads
    assert common_pieces(*problem_of(activation="tanh"), (CONV, POOL)) == 0  # by XLA
    assert common_pieces(problem, dataclasses.replace(options, relinearise=2), (CONV, POOL)) == 0
    monkeypatch.setenv("GBPLEARN_NATIVE", "0")
    assert common_pieces(problem, options, (CONV, POOL)) == 0
    assert "gbplearn" not in called(problem, options)


def test_what_is_not_in_place_cannot_be_put_off():
    chain = Chain(8)
    with pytest.raises(AssertionError, match="takes the place"):
        chain.call("gbplearn_tile_max", [(1,)], [jnp.zeros(1)], {})
