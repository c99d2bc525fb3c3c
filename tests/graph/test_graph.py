"""Views, factors, evidence, joining: what the contract says, and that impossible input is refused by name."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.graph.variable import Variable


def same(a):
    return a


def minus(a, b):
    return b - a


def graph_of(shape=(4,), **kwargs):
    graph = gbp.FactorGraph()
    prior = kwargs.pop("prior", gbp.Gaussian.from_moments(0.0, 1.0))
    return graph, graph.variable("x", shape, prior=prior, **kwargs)


KEYS = [
    np.s_[:], np.s_[1:], np.s_[::2], np.s_[1:4:2, 2:], np.s_[:, 1], np.s_[None], np.s_[:, None, 1:], np.s_[..., 0],
    np.s_[::-1], np.s_[[3, 0, 3]], np.s_[[0, 1], [2, 2]], np.s_[np.eye(5, 3, dtype=bool)], np.s_[1:, [0, 2]],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_views_are_numpy_indexing(key):
    ids = np.arange(15).reshape(5, 3)
    view = Variable("x", (5, 3))[key]
    assert view.shape == ids[key].shape
    assert view.unit_ids().ravel().tolist() == ids[key].ravel().tolist()


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("trail", [(), (2,)])
def test_edge_sets_are_loops(key, trail):
    """spread, pool and others against plain loops over the edges."""
    variable = Variable("x", (5, 3))
    view = variable[key].reshape(-1)
    rng = np.random.default_rng(0)
    edges = view.edges(view.shape[0])
    ids = view.unit_ids()
    x = rng.standard_normal((5, 3, *trail)).astype(np.float32)
    e = rng.standard_normal((*ids.shape, *trail)).astype(np.float32)
    np.testing.assert_allclose(edges.spread(jnp.asarray(x)), x.reshape(15, *trail)[ids])
    pool, others = np.zeros((15, *trail)), np.zeros(e.shape)
    for f, u in np.ndindex(*ids.shape):
        pool[ids[f, u]] += e[f, u]
        for f2, u2 in np.ndindex(*ids.shape):
            if ids[f, u] == ids[f2, u2] and (f, u) != (f2, u2):
                others[f, u] += e[f2, u2]
    np.testing.assert_allclose(edges.pool(jnp.asarray(e)), pool.reshape(5, 3, *trail), atol=1e-6)
    np.testing.assert_allclose(edges.others(jnp.asarray(e)), others, atol=1e-6)


@settings(max_examples=20)  # each of a new shape, to be compiled
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_edges_of_any_multiplicity(index):
    """Hubs and leaves: every edge of a unit sees exactly the other ones."""
    view = Variable("x", (10,))[np.array(index)]
    edges = view.edges(len(index))
    e = jnp.arange(1.0, len(index) + 1)[:, None]
    total = np.bincount(index, weights=np.arange(1.0, len(index) + 1), minlength=10)
    np.testing.assert_allclose(edges.pool(e), total)
    np.testing.assert_allclose(edges.others(e)[:, 0], total[index] - np.arange(1.0, len(index) + 1))


def test_shared_edges_are_sums_over_the_factors():
    view = Variable("w", (3,))[None]
    edges = view.edges(4)
    e = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    np.testing.assert_allclose(edges.pool(jnp.asarray(e)), e.sum(0), rtol=1e-5)
    np.testing.assert_allclose(edges.others(jnp.asarray(e)), e.sum(0) - e, rtol=1e-4, atol=1e-5)


def stencil(*offsets):
    return gbp.StencilKind(tuple((o,) for o in offsets), (1.0,) * len(offsets))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: x[0], r"use x\[0:1\]"),
        (lambda g, x: x[-1], r"use x\[-1:\]"),
        (lambda g, x: x[7:8, 0], "axes"),
        (lambda g, x: x[[9]], "variable 'x'"),
        (lambda g, x: gbp.Factor(same, (x[:],), sigma=0.0, name="pix"), "'pix': every sigma must be > 0"),
        (lambda g, x: gbp.Factor(same, (x[:],), sigma=-1.0, name="pix"), "'pix': every sigma"),
        (lambda g, x: gbp.Factor(same, (x[:],), name="pix"), "'pix': give one of sigma"),
        (lambda g, x: gbp.Factor(same, (x[:],), sigma=1.0, covariance=np.eye(1), name="pix"), "'pix': give one"),
        (lambda g, x: gbp.Factor(same, (x[:],), y=[1.0, 2.0], sigma=1.0, name="pix"), "'pix': y of shape"),
        (lambda g, x: gbp.Factor(same, (x[:],), y=[1.0, np.nan, 0, 0], sigma=1.0, name="pix"), "'pix': y holds NaN"),
        (lambda g, x: gbp.Factor(same, (x[:],), sigma=[1.0, 2.0], name="pix"), "'pix': sigma of shape"),
        (lambda g, x: gbp.Factor(minus, (x[1:], x[:]), sigma=1.0, name="pix"), "'pix': the first axes"),
        (lambda g, x: gbp.Factor(minus, (x[:], x[:]), sigma=1.0, name="pix"), r"'pix': x\[0\] occurs twice"),
        (lambda g, x: gbp.Factor(minus, (x[[1, 2]], x[[0, 2]]), sigma=1.0, name="pix"), r"x\[2\] occurs twice"),
        (lambda g, x: gbp.Factor(same, (x[[[0, 0]]],), sigma=1.0, name="pix"), r"x\[0\] occurs twice in factor 0"),
        (lambda g, x: gbp.Factor(stencil(0, 0), (x, x), sigma=1.0, name="pix"), "'pix': 'x' occurs twice among"),
        (lambda g, x: gbp.Factor(stencil(0, 1), (x, x, x), sigma=1.0, name="pix"), "'pix': .*once or 2 times"),
        (lambda g, x: gbp.Factor(lambda a: (a, a), (x[:],), sigma=1.0, name="pix"), "'pix': h must return one array"),
        (lambda g, x: gbp.Factor(lambda a: a[:2], (x[:],), sigma=1.0, name="pix"), "'pix': h failed"),
        (lambda g, x: gbp.Factor(minus, (x[:],), sigma=1.0, name="pix"), "'pix': h failed"),
        (lambda g, x: gbp.Factor(np.sin, (x[:],), sigma=1.0, name="pix"), "'pix': h failed.*use jax.numpy instead"),
        (lambda g, x: gbp.Factor(lambda a: np.sin(a), (x[:],), sigma=1.0), "use jax.numpy instead"),
        (lambda g, x: gbp.Factor(lambda a: a if a > 0 else -a, (x[:],), sigma=1.0), "use jnp.where"),
        (lambda g, x: gbp.Factor(lambda a: jnp.zeros(0), (x[:],), sigma=1.0, name="pix"), "'pix': h returns an empty"),
        (lambda g, x: gbp.Factor(same, (x[:],), covariance=np.eye(2), name="pix"), "'pix': covariance has shape"),
        (lambda g, x: gbp.Factor(same, (x[None],), covariance=-np.eye(4), name="pix"), "'pix': every covariance"),
        (lambda g, x: gbp.Factor(same, (np.ones(4),), sigma=1.0, name="pix"), "'pix': at least one argument"),
        (lambda g, x: gbp.Factor(minus, (np.full(4, np.nan), x[:]), sigma=1.0, name="pix"), "'pix': the constant"),
        (lambda g, x: gbp.Factor(same, (x[4:],), sigma=1.0, name="pix"), "'pix' has no factors"),
        (lambda g, x: gbp.Factor(same, (x[:],), sigma=1.0, robust_over=1, name="pix"), "'pix': robust_over"),
        (lambda g, x: gbp.Tukey(0.0), "Tukey: the threshold must be > 0"),
        (lambda g, x: gbp.Huber(1.0, match="slope"), "match must be"),
        (lambda g, x: g.variable("x", (3,)), "already a variable 'x'"),
        (lambda g, x: g.variable("y", ()), "'y': shape"),
        (lambda g, x: g.variable("y", (3,), prior=gbp.Gaussian.from_moments([0.0, 1.0], 1.0)), "'y': prior of shape"),
        (lambda g, x: g.observe("z", 1.0), "no variable 'z'"),
        (lambda g, x: g.observe("x", [1.0, np.nan, 0.0, 0.0]), "'x': the observed value holds NaN"),
        (lambda g, x: g.observe("x", [1.0, 2.0]), "'x': observed value of shape"),
        (lambda g, x: g.observe("x", [np.nan] * 4, mask=[True, False, False, False]), "'x': the value is NaN"),
        (lambda g, x: g.observe("x", 1.0, mask=[True, False]), "'x': mask of shape"),
        (lambda g, x: g.release("x"), "'x' is neither observed nor held"),
        (lambda g, x: g.tie("x", "q"), "no variable 'q'"),
        (lambda g, x: g.energy({}), "no value for variable 'x'"),
        (lambda g, x: gbp.infer(g), "no factors"),
        (lambda g, x: gbp.FactorGraph(dtype="float64"), "64-bit mode"),
        (lambda g, x: gbp.FactorGraph(dtype="int32"), "must be float32 or float64"),
        (lambda g, x: g.add(gbp.Factor(same, (Variable("other", (4,))[:],), sigma=1.0)), "'other'.*not a variable"),
    ],
)  # fmt: skip
def test_impossible_input_is_refused_at_once(make, words):
    graph, x = graph_of()
    with pytest.raises((ValueError, IndexError, KeyError), match=words):
        make(graph, x)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"iterations": 0}, "iterations"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"damping": 1.0}, "damping must lie"),
        ({"dropout": -0.1}, "dropout must lie"),
        ({"damping": gbp.Damping(q=0.5)}, "no variable 'q'"),
        ({"relinearise": 0}, "relinearise"),
        ({"schedule": gbp.Order("nothing")}, "no factor group 'nothing'"),
        ({"evidence": {"q": 1.0}}, "no variable 'q'"),
    ],
)
def test_impossible_settings_are_refused(arguments, words):
    graph, x = graph_of()
    graph.add(gbp.Factor(same, (x[:],), sigma=1.0))
    with pytest.raises((ValueError, KeyError), match=words):
        gbp.infer(graph, **arguments)


def test_evidence_conditions_and_is_only_data():
    """Conditioning a Gaussian chain by hand; new values do not compile anything again."""
    graph, x = graph_of((3,))
    calls = []

    def measured(a, b):
        calls.append(1)
        return b - a

    graph.add(gbp.Factor(measured, (x[:-1], x[1:]), y=0.0, sigma=1.0, linear=True))
    graph.observe("x", [2.0, np.nan, np.nan], mask=[True, False, False])
    first = gbp.infer(graph, tolerance=1e-6)
    # Given x0: x1 has precision 1 (prior) + 1 (x0) + 1/2 (x2 through the link), information 2.
    assert float(first["x"].mean[0]) == 2.0
    assert float(first["x"].mean[1]) == pytest.approx(2.0 / 2.5, rel=1e-5)
    assert float(first["x"].std[1]) == pytest.approx(2.5**-0.5, rel=1e-5)
    traced = len(calls)
    second = gbp.infer(graph, evidence={"x": (np.array([-1.0, 0, 0]), np.array([True, False, True]))}, tolerance=1e-6)
    assert float(second["x"].mean[1]) == pytest.approx(-1.0 / 3, rel=1e-5)
    assert len(calls) == traced
    graph.release("x")
    assert float(gbp.infer(graph)["x"].mean[1]) == pytest.approx(0.0, abs=1e-6)


def test_wholly_observed_variable_is_a_constant():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((20, 2))
    graph = gbp.FactorGraph()
    rows = graph.variable("rows", (20, 2))
    w = graph.variable("w", (2,), prior=gbp.Gaussian.from_moments(0.0, 10.0), kind="parameter")
    graph.add(gbp.Factor(jnp.dot, (rows[:], w[None]), y=data @ [1.0, -2.0], sigma=0.1))
    graph.observe("rows", data)
    result = gbp.infer(graph, tolerance=1e-5)
    np.testing.assert_allclose(result["w"].mean, [1.0, -2.0], atol=1e-3)
    np.testing.assert_allclose(result["rows"].mean, data, rtol=1e-6)


def test_include_and_tie_join_graphs():
    """Two chains joined at their ends are one chain; tied priors multiply."""
    part, x = graph_of((3,))
    part.add(gbp.Factor(minus, (x[:-1], x[1:]), y=1.0, sigma=0.5, linear=True, name="steps"))
    part.observe("x", 0.0, mask=[True, False, False])
    joined = gbp.FactorGraph()
    joined.include(part, prefix="a/")
    names = joined.include(part, prefix="b/")
    assert names["x"].name == "b/x"
    assert list(joined.factors) == ["a/steps", "b/steps"]
    joined.release("b/x")
    joined.tie("a/x", "b/x")
    result = gbp.infer(joined, tolerance=1e-6)
    np.testing.assert_allclose(result["a/x"].mean, result["b/x"].mean)
    # Twice every link and twice every prior: x1, x2 given x0 = 0 by hand.
    lam = np.array([[2 + 8 + 8, -8.0], [-8.0, 2 + 8]])
    eta = np.array([8.0 - 8.0, 8.0])
    np.testing.assert_allclose(result["a/x"].mean[1:], np.linalg.solve(lam, eta), rtol=1e-4)
    with pytest.raises(ValueError, match="is taken"):
        joined.include(part, prefix="a/")


def test_tie_within_one_factor_is_refused():
    graph = gbp.FactorGraph()
    a, b = graph.variable("a", (2,)), graph.variable("b", (2,))
    graph.add(gbp.Factor(minus, (a[:], b[:]), y=0.0, sigma=1.0, name="link"))
    with pytest.raises(ValueError, match=r"link.*occurs twice"):
        graph.tie("a", "b")
    assert gbp.infer(graph, iterations=2)["a"].shape == (2,)  # nothing was changed


def test_energy_is_equation_three():
    graph, x = graph_of((2,), prior=gbp.Gaussian.from_moments(1.0, 2.0))
    graph.add(gbp.Factor(minus, (x[:1], x[1:]), y=3.0, sigma=0.5, name="link"))
    cov = np.array([[2.0, 0.5], [0.5, 1.0]])
    graph.add(gbp.Factor(same, (x[None],), y=[0.0, 1.0], covariance=cov, name="pair"))
    graph.add(gbp.Factor(same, (x[:],), y=0.0, sigma=1.0, robust=gbp.Tukey(2.0), name="tukey"))
    value = np.array([0.5, 6.0])
    energy = graph.energy({"x": value})
    r = value - [0.0, 1.0]
    assert energy["link"] == pytest.approx(0.5 * (3.0 - 5.5) ** 2 / 0.25, rel=1e-5)
    assert energy["pair"] == pytest.approx(0.5 * r @ np.linalg.inv(cov) @ r, rel=1e-5)
    assert energy["tukey"] == pytest.approx(0.5 * 0.25 + 0.5 * 4.0, rel=1e-5)
    assert energy["prior of x"] == pytest.approx(0.5 * (0.25 + 25.0) / 4, rel=1e-5)


def test_names_are_numbered_and_shown():
    graph, x = graph_of()
    graph.add(gbp.Factor(same, (x[:],), sigma=1.0))
    second = graph.add(gbp.Factor(same, (x[:],), sigma=1.0))
    assert second.name == "same_1"
    assert "factor same_1: 4 x 1 measurement on x" in repr(graph)


def test_check_jacobian():
    _, x = graph_of()
    right = gbp.Factor(lambda a: a**2, (x[:],), sigma=1.0, jacobian=lambda a: (2 * a,))
    assert gbp.check_jacobian(right) < 1e-5
    with pytest.raises(ValueError, match="argument 0 is off"):
        gbp.check_jacobian(gbp.Factor(lambda a: a**2, (x[:],), sigma=1.0, jacobian=lambda a: (3 * a,), name="bad"))
    with pytest.raises(ValueError, match="no jacobian"):
        gbp.check_jacobian(gbp.Factor(same, (x[:],), sigma=1.0))


def test_check_jacobian_at_a_point():
    graph = gbp.FactorGraph()
    pose = graph.variable("pose", (3, 2), block=True)
    scale = graph.variable("scale", (1,))
    # Wrong by what is hardly seen where the exponential is large, and plainly where it is small.
    factor = gbp.Factor(
        lambda p, s: jnp.exp(p[0]) + p[1] * s,
        (pose[:2], scale[:]),
        sigma=1.0,
        jacobian=lambda p, s: (jnp.stack([jnp.exp(p[0]), s + 1]), p[1]),
    )
    at = {"pose": [[20.0, 1.0]] * 3, "scale": 2.0}
    assert gbp.check_jacobian(factor, at=at) < 1e-3
    with pytest.raises(ValueError, match=r"argument 0 is off by 0\.5"):
        gbp.check_jacobian(factor, at={**at, "pose": gbp.Gaussian.from_moments(np.zeros((3, 2)), 1.0)})
    with pytest.raises(ValueError, match="at has no value for variable 'scale'"):
        gbp.check_jacobian(factor, at={"pose": np.zeros((3, 2))})
    with pytest.raises(ValueError, match=r"at\['pose'\] must be numbers of shape \(3, 2\)"):
        gbp.check_jacobian(factor, at={"pose": np.zeros((3, 7)), "scale": 1.0})


def test_given_jacobian_gives_the_same_beliefs():
    results = []
    for jacobian in (None, lambda c, a, b: (a * b, c * b, c * a)):
        graph, x = graph_of((4,), prior=gbp.Gaussian.from_moments([0.5, 1.0, 1.5, 2.0], 0.3))
        args = (np.array([1.0, 2.0]), x[:2], x[2:])
        graph.add(gbp.Factor(lambda c, a, b: c * a * b, args, y=1.0, sigma=0.2, jacobian=jacobian))
        results.append(gbp.infer(graph, tolerance=1e-6)["x"])
    np.testing.assert_allclose(results[0].mean, results[1].mean, rtol=1e-6)
    np.testing.assert_allclose(results[0].lam, results[1].lam, rtol=1e-6)


def test_edges_of_a_grid_that_a_variable_does_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(5, 8, 8\) does not lie along axes \(0, 1\) of the grid \(5, 8, 8, 1\)"):
        gbp.AxesEdges((5, 8, 8), (0, 1), (5, 8, 8, 1))
    assert gbp.AxesEdges((5, 8, 8), (0, 2), (5, 3, 64)).row == 64  # pixels in a row: axes may be joined
