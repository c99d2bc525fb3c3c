"""Defects that a reviewer found, each with the case that showed it."""

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from helpers import actions

G = gbp.Gaussian.from_moments


def same(a):
    return a


def minus(a, b):
    return b - a


def test_block_with_a_vague_prior_does_not_spoil_its_neighbours():
    """A direction 1e4 times vaguer than another: what can be known of the others must still be right."""
    angle = np.array([0.3, 0.9])
    a = np.stack([np.cos(angle), np.sin(angle)], 1)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1, 2), block=True, prior=G(0.0, 100.0))
    z = graph.variable("z", (2,), prior=G(0.0, 1.0))
    args = (a, x[np.zeros(2, int)], z[:])
    graph.add(gbp.Factor(lambda a, v, z: a @ v + z, args, y=a @ [3.0, 4.0], sigma=0.01, linear=True, name="seen"))
    graph.add(gbp.Factor(same, (z[:],), y=[0.1, -0.1], sigma=0.01, linear=True, name="offset"))
    rows = np.zeros((4, 4))
    rows[:2, :2], rows[:2, 2:], rows[2:, 2:] = a, np.eye(2), np.eye(2)
    y = np.concatenate([a @ [3.0, 4.0], [0.1, -0.1]])
    lam = rows.T @ rows / 1e-4 + np.diag([1e-4, 1e-4, 1, 1])
    mean, std = np.linalg.solve(lam, rows.T @ y / 1e-4), np.sqrt(np.diag(np.linalg.inv(lam)))
    result = gbp.infer(graph)
    assert (np.abs(np.asarray(result["z"].mean) - mean[2:]) / std[2:]).max() < 0.02
    np.testing.assert_allclose(result["z"].std, std[2:], rtol=0.02)


@pytest.mark.parametrize(
    ("h", "block"), [(lambda a, b: jnp.sqrt(jnp.sum((b - a) ** 2)), True), (lambda a, b: jnp.log(b - a), False)]
)
def test_a_function_that_is_not_finite_at_the_start_is_named(h, block):
    graph = gbp.FactorGraph()
    p = graph.variable("p", (3, 2) if block else (3,), block=block, prior=G(0.0, 1.0))
    graph.add(gbp.Factor(h, (p[:-1], p[1:]), y=1.0, sigma=0.1, name="range"))
    with pytest.raises(gbp.InferenceError, match=r"group 'range'.*not finite") as caught:
        gbp.infer(graph)
    result = caught.value.result
    assert bool(jnp.all(jnp.isfinite(result["p"].mean)))
    assert bool(jnp.all(jnp.isfinite(result["p"].lam)))


@pytest.mark.parametrize("relinearise", [2, pytest.param(gbp.OnMovement(0.1), marks=pytest.mark.slow)], ids=str)
def test_proximal_steps_with_stored_linearisation_points(relinearise):
    rng = np.random.default_rng(0)
    rows = rng.random((300, 26))
    y = np.exp(0.1 * rows @ rng.standard_normal(26))
    graph = gbp.FactorGraph()
    w = graph.variable("w", (26,), prior=G(0.0, 1.0))
    graph.add(gbp.Factor(lambda r, w: jnp.exp(0.1 * (r @ w)), (rows, w[None]), y=y, sigma=0.01))
    result = gbp.infer(graph, relinearise=relinearise, iterations=600)
    assert gbp.GuardAction.PROXIMAL_STEPS in actions(result)
    assert sum(graph.energy(result).values()) < sum(graph.energy({"w": np.zeros(26)}).values())


def test_random_layers_on_a_large_graph():
    n = 130_000  # more than 500,000 edges
    graph = gbp.FactorGraph()
    x = graph.variable("x", (n,), prior=G(0.0, 1.0))
    for k in (1, 2):
        graph.add(gbp.Factor(minus, (x[:-k], x[k:]), y=0.1, sigma=1.0, linear=True, name=f"by {k}"))
    result = gbp.infer(graph, schedule=gbp.RandomLayers(), iterations=5)
    assert bool(jnp.all(jnp.isfinite(result["x"].mean)))
    assert result.iterations == 5


def test_a_tuple_of_two_values_is_a_value():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=G(0.0, 1.0))
    graph.add(gbp.Factor(same, (x[:],), sigma=1.0))
    assert np.asarray(gbp.infer(graph, evidence={"x": (1.0, 2.0)})["x"].mean).tolist() == [1.0, 2.0]


INDEFINITE = gbp.Gaussian(jnp.zeros((1, 2)), jnp.asarray([[[1.0, 2.0], [2.0, 1.0]]]))


def factor_on_x(graph, **options):
    return graph.add(gbp.Factor(same, (graph.variables["x"][:],), name="f", **options))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g: g.variable("q", (1,), prior=gbp.Gaussian(jnp.zeros(1), jnp.full(1, jnp.inf))), "'q': the prior"),
        (lambda g: g.variable("q", (1, 2), block=True, prior=INDEFINITE), "'q': the prior"),
        (lambda g: g.variable("q", (1,), start=np.nan), "'q': start"),
        (lambda g: gbp.Gaussian.from_moments([0.0, 0.0], covariance=[[1.0, 0.9], [-0.9, 1.0]]), "symmetric"),
        (lambda g: factor_on_x(g, covariance="a"), "'f': covariance"),
        (lambda g: factor_on_x(g, sigma=1.0, jacobian=lambda a: (a, a)), "'f': jacobian"),
        (lambda g: [factor_on_x(g, sigma=1e-25), gbp.infer(g)], "'f': a noise variance"),
    ],
)
def test_more_impossible_input(make, words):
    graph = gbp.FactorGraph()
    graph.variable("x", (2,))
    with pytest.raises(ValueError, match=words):
        make(graph)


def test_a_refused_tie_changes_nothing():
    graph = gbp.FactorGraph()
    a, b = graph.variable("a", (1,), prior=G(0.0, 1.0)), graph.variable("b", (1,), prior=G(0.0, 1.0))
    graph.add(gbp.Factor(minus, (a[:], b[:]), y=1.0, sigma=1.0))
    graph.observe("b", 5.0)
    with pytest.raises(ValueError, match="occurs twice"):
        graph.tie("a", "b")
    assert float(gbp.infer(graph)["b"].mean[0]) == 5.0
    assert float(gbp.infer(graph)["a"].mean[0]) == pytest.approx(2.0, rel=1e-5)


def test_an_order_may_name_groups_that_evidence_silences():
    graph = gbp.FactorGraph()
    x, z = graph.variable("x", (1,), prior=G(0.0, 1.0)), graph.variable("z", (1,), prior=G(0.0, 1.0))
    graph.add(gbp.Factor(same, (x[:],), y=1.0, sigma=1.0, name="on x"))
    graph.add(gbp.Factor(minus, (x[:], z[:]), y=1.0, sigma=1.0, name="link"))
    result = gbp.infer(graph, schedule=gbp.Order("on x", "link"), evidence={"x": 0.0})
    assert float(result["z"].mean[0]) == pytest.approx(0.5, rel=1e-5)


def test_blocks_are_indexed_without_their_last_axis():
    block = gbp.Gaussian.from_moments(np.arange(9.0).reshape(3, 3), covariance=np.eye(3))
    np.testing.assert_allclose(block[1].mean, [3.0, 4.0, 5.0], rtol=1e-6)
    np.testing.assert_allclose(block[::2].covariance, np.broadcast_to(np.eye(3), (2, 3, 3)), atol=1e-6)
    with pytest.raises(IndexError, match="without their last axis"):
        block[:, 0]


def test_going_on_with_a_variable_newly_observed():
    graph = gbp.FactorGraph()
    x, z = graph.variable("x", (3,), prior=G(0.0, 1.0)), graph.variable("z", (3,), prior=G(0.0, 1.0))
    graph.add(gbp.Factor(minus, (x[:], z[:]), y=1.0, sigma=1.0, name="link"))
    first = gbp.infer(graph)
    second = gbp.infer(graph, evidence={"x": [1.0, 2.0, 3.0]}, init=first)
    fresh = gbp.infer(graph, evidence={"x": [1.0, 2.0, 3.0]})
    np.testing.assert_allclose(second["z"].mean, fresh["z"].mean, rtol=1e-5)
    back = gbp.infer(graph, init=second, tolerance=1e-6)
    np.testing.assert_allclose(back["x"].mean, first["x"].mean, atol=1e-5)


def test_new_values_of_a_fixed_variable_do_not_compile_again():
    calls = []

    def product(a, w):
        calls.append(1)
        return a * w

    graph = gbp.FactorGraph()
    x, w = graph.variable("x", (3,)), graph.variable("w", (1,), prior=G(0.0, 1.0))
    graph.add(gbp.Factor(product, (x[:], w[np.zeros(3, int)]), y=1.0, sigma=1.0, linear=True))
    gbp.infer(graph, evidence={"x": [1.0, 2.0, 3.0]})
    traced = len(calls)
    gbp.infer(graph, evidence={"x": [1.0, 1.0, 1.0]})
    assert len(calls) == traced


def test_it_says_of_what_nothing_is_known():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3,))
    graph.add(gbp.Factor(minus, (x[:-1], x[1:]), y=1.0, sigma=1.0, name="link"))
    assert "not everything is known of x" in gbp.infer(graph).message
