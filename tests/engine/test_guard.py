"""The guard: where plain belief propagation diverges, it ends with the right means, or says that it did not."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import least_squares, minimize
from sklearn.datasets import load_digits

import gbplearn as gbp
from gbplearn.engine import loop
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.guard import proximal
from gbplearn.engine.options import make_options
from gbplearn.network.zoo import digits_classifier
from helpers import actions
from pose_graphs import PoseGraph


def dot(x, w):
    return x @ w


def regression(rows, y, sigma=0.1, prior=1.0):
    graph = gbp.FactorGraph()
    w = graph.variable("w", (rows.shape[1],), prior=gbp.Gaussian.from_moments(0.0, prior), kind="parameter")
    graph.add(gbp.Factor(dot, (rows, w[None]), y=y, sigma=sigma, linear=True, name="rows"))
    return graph


def features(kind, n, p, rng):
    if kind == "uncentred":
        return rng.random((n, p))
    return rng.standard_normal((n, 5)) @ rng.standard_normal((5, p)) + 0.1 * rng.standard_normal((n, p))


def dense(rows, y, sigma=0.1, prior=1.0):
    lam = rows.T @ rows / sigma**2 + np.eye(rows.shape[1]) / prior**2
    return np.linalg.solve(lam, rows.T @ y / sigma**2), np.sqrt(np.diag(np.linalg.inv(lam)))


@pytest.mark.parametrize("prior", [1.0, 10.0])
@pytest.mark.parametrize("kind", ["uncentred", "rank five and noise"])
def test_regression_on_which_unguarded_propagation_diverges(kind, prior):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = features(kind, 1000, 26, rng)
        y = rows @ rng.standard_normal(26) + 0.1 * rng.standard_normal(1000)
        mean, std = dense(rows, y, prior=prior)
        graph = regression(rows, y, prior=prior)
        result = gbp.infer(graph, iterations=2000)
        assert result.status is gbp.Status.CONVERGED
        assert np.abs((np.asarray(result["w"].mean) - mean) / std).max() < 0.01
        assert gbp.GuardAction.PROXIMAL_STEPS in actions(result)
        assert bool(jnp.all(jnp.isfinite(result["w"].std)))


def test_unguarded_propagation_does_diverge_there():
    """Else the tests above would show nothing."""
    rng = np.random.default_rng(0)
    rows = features("uncentred", 1000, 26, rng)
    graph = regression(rows, rows @ rng.standard_normal(26))
    with pytest.raises(gbp.InferenceError, match=r"diverged.*group 'rows', iteration") as caught:
        gbp.infer(graph, iterations=2000, guard=False)
    result = caught.value.result
    assert result.status is gbp.Status.DIVERGED
    assert bool(jnp.all(jnp.isfinite(result["w"].mean)))
    quiet = gbp.infer(graph, iterations=2000, guard=False, throw=False)
    assert quiet.status is gbp.Status.DIVERGED


@pytest.mark.parametrize("iterations", [5, 30, 2000])
def test_hundred_features_never_end_above_the_start(iterations):
    rng = np.random.default_rng(1)
    rows = features("uncentred", 200, 100, rng)
    y = rows @ rng.standard_normal(100) + 0.1 * rng.standard_normal(200)
    graph = regression(rows, y)
    start = sum(graph.energy({"w": np.zeros(100)}).values())
    result = gbp.infer(graph, iterations=iterations)
    mean, std = dense(rows, y)
    close = np.abs((np.asarray(result["w"].mean) - mean) / std).max() < 0.1
    assert (result.status is gbp.Status.CONVERGED) == close
    assert sum(graph.energy(result).values()) <= start * (1 + 1e-3)
    assert result.iterations <= iterations
    assert bool(jnp.all(jnp.isfinite(result["w"].mean)))
    assert bool(jnp.all(result["w"].lam > 0))


def frustrated(rng, side=6):
    """Four-variable factors with mixed signs on a torus."""
    ids = np.arange(side * side).reshape(side, side)
    blocks = np.stack([ids, np.roll(ids, 1, 0), np.roll(ids, 1, 1), np.roll(ids, (1, 1), (0, 1))], -1).reshape(-1, 4)
    return blocks, rng.choice([-1.0, 1.0], blocks.shape), rng.standard_normal(len(blocks))


def test_frustrated_graph_that_is_not_walk_summable():
    blocks, signs, y = frustrated(np.random.default_rng(0))
    graph = gbp.FactorGraph()
    x = graph.variable("x", (36,), prior=gbp.Gaussian.from_moments(0.0, 3.0))
    graph.add(gbp.Factor(dot, (signs, x[blocks]), y=y, sigma=0.1, linear=True, name="blocks"))
    rows = np.zeros((36, 36))
    for r, b, s in zip(rows, blocks, signs):
        r[b] = s
    lam = rows.T @ rows / 0.01 + np.eye(36) / 9
    unit = lam / np.sqrt(np.outer(np.diag(lam), np.diag(lam)))
    assert np.abs(np.linalg.eigvalsh(np.abs(np.eye(36) - unit))).max() > 1  # not walk-summable
    mean, std = dense(rows, y, prior=3.0)
    start = sum(graph.energy({"x": np.zeros(36)}).values())
    result = gbp.infer(graph, iterations=2000)
    assert sum(graph.energy(result).values()) < start
    close = np.abs((np.asarray(result["x"].mean) - mean) / std).max() < 0.05
    assert (result.status is gbp.Status.CONVERGED) == close
    assert bool(jnp.all(jnp.isfinite(result["x"].mean)))


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.4])
def test_wild_nonlinear_graphs_stay_finite(dropout):
    """Products and exponentials with almost no noise, far from their solution."""
    rng = np.random.default_rng(0)
    graph = gbp.FactorGraph()
    a = graph.variable("a", (30,), prior=gbp.Gaussian.from_moments(rng.normal(0, 2, 30), 5.0))
    b = graph.variable("b", (6,), prior=gbp.Gaussian.from_moments(rng.normal(0, 2, 6), 5.0))
    index = rng.integers(0, 6, 30)
    graph.add(gbp.Factor(lambda p, q: p * q**2, (a[:], b[index]), y=rng.normal(0, 30, 30), sigma=1e-3, name="cubic"))
    graph.add(gbp.Factor(lambda p, q: jnp.exp(p - q), (a[:], b[index[::-1].copy()]), y=2.0, sigma=1e-2, name="exp"))
    start = sum(graph.energy({"a": graph.priors()["a"].mean, "b": graph.priors()["b"].mean}).values())
    result = gbp.infer(graph, iterations=300, throw=False, dropout=dropout)
    for name in ("a", "b"):
        assert bool(jnp.all(jnp.isfinite(result[name].mean)))
        assert bool(jnp.all(result[name].lam > 0))
    assert sum(graph.energy(result).values()) <= start * 1.001


def test_pose_graph_reaches_the_least_squares_cost():
    poses = PoseGraph.random(0, poses=100, closures=25)
    result = gbp.infer(poses.graph(), iterations=3000)
    best = least_squares(lambda x: poses.residuals(x).ravel(), poses.start.ravel()).cost
    assert result.status is gbp.Status.CONVERGED
    assert poses.cost(np.asarray(result["pose"].mean).ravel()) < 1.001 * best
    assert poses.cost(poses.start.ravel()) > 10 * best  # the start was far


@pytest.mark.slow
def test_gradient_matched_huber_reaches_the_stationary_point():
    """With wrong closures: the robust cost cannot be lowered further from where messages come to rest."""
    poses = PoseGraph.random(0, poses=60, closures=20, outliers=4)
    kernel = gbp.Huber(1.5, match="gradient")
    result = gbp.infer(poses.graph(kernel), iterations=3000, tolerance=1e-4)
    flat = np.asarray(result["pose"].mean, float).ravel()
    cost = poses.cost(flat, huber=1.5)
    polished = minimize(lambda x: poses.cost(x, huber=1.5), flat, method="BFGS", options={"gtol": 1e-4})
    assert cost - polished.fun < 1e-4 * cost
    std = np.asarray(result["pose"].std).ravel()
    slope = (
        np.array(
            [
                poses.cost(flat + s * e * 1e-3, 1.5) - poses.cost(flat - s * e * 1e-3, 1.5)
                for e, s in zip(np.eye(len(flat)), std)
            ]
        )
        / 2e-3
    )
    assert np.abs(slope).max() < 1e-2 * np.sqrt(cost)  # per standard deviation
    assert cost < 0.8 * poses.cost(poses.start.ravel(), huber=1.5)


def test_messages_on_their_way_over_a_hump_are_left_alone():
    """The energy of a first batch falls, rises and falls again. That is no divergence: as without the guard."""
    x, y = load_digits(return_X_y=True)
    x = (x[:50] / 16 - 0.3).reshape(-1, 8, 8, 1)
    found = {}
    for guard in (True, False):
        options = {"damping": 0.9, "iterations": 20, "tolerance": 0.0, "guard": guard}
        result = digits_classifier().learn(x, y[:50], **options)
        assert result.guard == ()
        found[guard] = result
    energy = np.asarray(found[True].trace.total_energy)
    hollow = int(np.argmin(energy[:10]))
    assert energy[-1] > 1.01 * energy[hollow]  # else there is nothing to see
    assert energy[hollow:].max() > 1.01 * energy[-1]
    np.testing.assert_array_equal(found[True]["conv/weight"].mean, found[False]["conv/weight"].mean)


def test_proximal_steps_go_on_where_noise_was_learnt():
    """With the noise settled a kernel may visit the group; it dropped what had been learnt, and the loop failed."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (16,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    y = np.random.default_rng(0).normal(size=16)
    graph.add(gbp.Factor(lambda a: a, (x[:],), y=y, sigma=gbp.LearnNoise(0.5), linear=True, name="each"))
    result = gbp.infer(graph)
    problem = graph.problem()
    settled = proximal.with_settled_noise(problem, result.state, proximal.current_means(problem, result.state))
    options = make_options(graph, problem, 0.0, 0.0, None, 1)
    enough = loop.Enough(jnp.asarray(0.0))
    state, *_ = loop.run(settled, result.state, options, no_diagnostics(settled), jnp.asarray(2), enough)
    np.testing.assert_array_equal(state.noise[0], result.state.noise[0])
    np.testing.assert_allclose(proximal.current_means(settled, state)["x"], result["x"].mean, atol=1e-5)


def test_events_are_read_as_sentences():
    """Decisions go by actions; people read these lines."""
    action = gbp.GuardAction
    raised = gbp.GuardEvent(action.DAMPING_RAISED, 9, before=(0.0, 0.6), after=(0.7, 0.9))
    sentences = {
        gbp.GuardEvent(action.DIVERGING, 9): "iteration 9: diverging",
        gbp.GuardEvent(action.NOT_CONVERGING, 400): "iteration 400: not converging",
        raised: "damping raised to 0.7 ... 0.9",
        dataclasses.replace(raised, after=(0.9, 0.9)): "damping raised to 0.9",
        gbp.GuardEvent(action.PROXIMAL_FACTORS, 30): "proximal factors",
        gbp.GuardEvent(action.PROXIMAL_STEPS, 90, weight=4.0, steps=7, refused=1): "iteration 90: weight 4, 7 steps, "
        "1 refused",
        gbp.GuardEvent(
            action.NOT_FINITE, 9, group="f"
        ): "h or its Jacobian is not finite at the best means of group 'f'",
        gbp.GuardEvent(action.BEST_MEANS_KEPT, 9): "iteration 9: out of iterations while diverging, best means kept",
        gbp.GuardEvent(action.NOTHING_BETTER, 9): "iteration 9: out of iterations while diverging, none better than "
        "those at the start",
    }
    assert {event.action for event in sentences} == set(action)
    for event, sentence in sentences.items():
        assert str(event) == sentence
        assert str(dataclasses.replace(event, round=2)) == f"round 2, {sentence}"


def test_events_tell_what_the_guard_did_and_when():
    rng = np.random.default_rng(0)
    rows = features("uncentred", 1000, 26, rng)
    result = gbp.infer(regression(rows, rows @ rng.standard_normal(26)), iterations=2000)
    first, raised, *_, last = result.guard
    assert first.action is gbp.GuardAction.DIVERGING
    assert (raised.action, raised.before) == (gbp.GuardAction.DAMPING_RAISED, (0.0, 0.0))
    assert raised.after == pytest.approx((0.7, 0.7))
    assert last.action is gbp.GuardAction.PROXIMAL_STEPS
    assert last.weight == gbp.Guard().first_weight * 4**last.refused  # four times as heavy after each
    assert last.steps > 0
    iterations = [event.iteration for event in result.guard]
    assert iterations == sorted(iterations)
    assert 0 < iterations[0] < iterations[-1] <= result.iterations
