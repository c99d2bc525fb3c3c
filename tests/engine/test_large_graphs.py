"""Graphs so large that nobody looks at every iteration end like others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import loop
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.options import make_options
from gbplearn.engine.program import prepared
from gbplearn.engine.state import empty_state
from gbplearn.kernels.cpu.library import built
from small_graphs import chain

LARGE = gbp.Guard(large=0)  # every graph counts as large


@pytest.mark.parametrize(
    "options", [{"damping": 0.4}, {"damping": 0.3, "schedule": gbp.Order("seen", "odd", "even", "odd")}], ids=str
)
def test_large_graphs_are_diagnosed_now_and_then_and_end_the_same(options):
    graph, mean, std = chain(seed=3)
    small = gbp.infer(graph, iterations=23, tolerance=0.0, **options)
    until = gbp.infer(graph, tolerance=1e-4, **options)
    large = gbp.infer(graph, iterations=23, tolerance=0.0, guard=LARGE, **options)
    assert (large.iterations, len(large.trace.residual)) == (23, 23)
    np.testing.assert_allclose(large["x"].eta, small["x"].eta, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(large["x"].lam, small["x"].lam, rtol=1e-6)
    # Seen after 1, 5, 15 and 23 iterations; in between the trace shows what was seen next.
    seen = large.trace.residual
    assert all((seen[a:b] == seen[b - 1]).all() for a, b in ((1, 5), (5, 15), (15, 23)))
    assert len(set(seen)) == 4
    later = gbp.infer(graph, tolerance=1e-4, guard=LARGE, **options)
    assert later.status is until.status is gbp.Status.CONVERGED
    assert until.iterations - 1 <= later.iterations <= until.iterations + 9
    np.testing.assert_allclose(later["x"].mean, mean, atol=1e-3 * std.max())


def test_large_graphs_in_random_order_end_the_same():
    """The same draws, without a look in between; a look asks every group, and changes nothing."""
    graph, mean, std = chain(seed=3)
    how = {"damping": 0.4, "schedule": gbp.RandomLayers(), "seed": 5}
    small = gbp.infer(graph, iterations=23, tolerance=0.0, **how)
    large = gbp.infer(graph, iterations=23, tolerance=0.0, guard=LARGE, **how)
    np.testing.assert_allclose(large["x"].eta, small["x"].eta, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(large["x"].lam, small["x"].lam, rtol=1e-6)
    assert len(set(large.trace.residual)) == 4
    later = gbp.infer(graph, tolerance=1e-4, guard=LARGE, **how)
    assert later.status is gbp.Status.CONVERGED
    np.testing.assert_allclose(later["x"].mean, mean, atol=1e-3 * std.max())


@pytest.mark.parametrize("relinearise", [2, gbp.OnMovement(0.1)])
def test_large_graphs_are_diagnosed_freshly_linearised(relinearise):
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3,), prior=gbp.Gaussian.from_moments(1.0, 10.0))
    graph.add(gbp.Factor(lambda a: a**2, (x[:],), y=np.array([4.0, 9.0, 2.0]), sigma=0.01, name="squares"))
    result = gbp.infer(graph, relinearise=relinearise, guard=LARGE)
    assert result.status is gbp.Status.CONVERGED
    assert result.guard == ()
    np.testing.assert_allclose(result["x"].mean, np.sqrt([4.0, 9.0, 2.0]), atol=1e-3)


def test_a_call_with_several_diagnoses_is_as_many_calls():
    """It stops at the first look that sees enough, and no number that changes from call to call compiles again."""
    graph, _, _ = chain(seed=4)
    problem = graph.problem(None, "auto")
    options = make_options(graph, problem, 0.6, 0.0, None, 1)
    begin = empty_state(problem, jax.random.PRNGKey(0), False), no_diagnostics(problem)

    def run(limits, enough):
        (state, latest), parts = jax.tree.map(jnp.copy, begin), []
        for limit in limits:
            state, latest, rows = loop.advance(problem, state, options, latest, limit, enough, large=True)
            parts.append(rows)
        return state, jax.tree.map(lambda *r: np.concatenate(r), *parts)

    never = loop.Enough(-1.0)
    state, rows = run([10] * 5, never)
    programs = loop.compiled_programs()
    tolerance = float(rows.residual[29].max())  # reached by the third look, not before
    assert rows.residual[19].max() > tolerance
    for limits, enough, iterations in (
        ([50], never, 50),
        ([7], never, 7),
        ([50], loop.Enough(tolerance), 31),  # and once more, at once
        ([50], loop.Enough(-1.0, 0.0), 5),  # the first look, every fifth: without parameters all have settled
    ):
        found, seen = run(limits, enough)
        if enough.settled < 0:
            np.testing.assert_array_equal(seen.residual[9:iterations:10], rows.residual[9:iterations:10])
        assert len(seen.residual) == len(seen.energy) == iterations
        assert int(found.visits.max()) == iterations * int(state.visits.max()) // 50
    assert loop.compiled_programs() == programs


@pytest.mark.skipif(not built(), reason="the kernels were not built: there is no C++ compiler")
def test_problems_know_whether_kernels_send_most_messages():
    net = gbp.Sequential(gbp.Conv2D(3, kernel=3), gbp.MaxPool2D(2), gbp.Dense(2), gbp.SoftmaxObservation())
    x, y = np.random.default_rng(0).random((2, 6, 6, 1)), np.array([0, 1])
    for graph, expected in ((net.graph(net.batch(x, y)), True), (chain(seed=4)[0], False)):
        problem = graph.problem(None, "pooled")
        options = make_options(graph, problem, 0.5, 0.0, None, 1)
        assert prepared(problem, options).native is expected
        assert not problem.native
