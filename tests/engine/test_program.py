"""Programs and data: structure apart from numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine.loop import compiled_programs


def difference(a, b):
    return b - a


def bent(a, c):
    return jnp.sin(a) + c


def chain(y=(1.0, 1.1, 0.9), sigma=0.1, mean=0.0, constant=0.2, robust=None):
    graph = gbp.FactorGraph()
    x = graph.variable("x", (4,), prior=gbp.Gaussian.from_moments(mean, 10.0))
    graph.add(gbp.Factor(difference, (x[:-1], x[1:]), y=y, sigma=sigma, name="odometry", linear=True))
    last = gbp.Factor(bent, (x[3:], np.full(1, constant)), y=0.5, sigma=0.05, weight=[1.0], robust=robust, name="range")
    graph.add(last)
    return graph


def same(a, b, tolerance=1e-6):
    for name in a:
        np.testing.assert_allclose(a[name].mean, b[name].mean, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(a[name].lam, b[name].lam, rtol=10 * tolerance)


def test_one_structure_has_one_program():
    one, other = chain(), chain(y=(0.0, 0.5, 2.0), sigma=0.3, mean=1.0, constant=-1.0)
    programs = gbp.compile(one), gbp.compile(other)
    assert programs[0] == programs[1]
    assert hash(programs[0]) == hash(programs[1])
    assert gbp.compile(chain(robust=gbp.Tukey(2.0))) != programs[0]
    assert gbp.compile(one, evidence={"x": (np.zeros(4), np.array([True, False, False, False]))}) != programs[0]
    assert "odometry" in repr(programs[0])
    assert programs[0].groups == ("odometry", "range")


def test_new_numbers_compile_nothing():
    program = gbp.compile(chain())
    gbp.infer(program, data=chain().data())
    compiled = compiled_programs()
    other = chain(y=(0.3, 0.5, 2.0), sigma=0.3, mean=0.1, constant=-0.1)
    by_program, by_graph = gbp.infer(program, data=other.data()), gbp.infer(other)
    assert compiled_programs() == compiled
    same(by_program, by_graph)
    assert by_program.iterations == by_graph.iterations
    with pytest.raises(ValueError, match="not the graph"):
        _ = by_program.graph


def test_numbers_replaced_are_those_of_the_graph_that_has_them():
    data = (
        chain()
        .data()
        .replace(
            y={"odometry": [0.3, 0.5, 2.0], "range": 0.7},
            sigma={"odometry": 0.3},
            weight={"range": 0.5},
            prior={"x": gbp.Gaussian.from_moments(0.4, 2.0)},
            start={"x": 0.2},
        )
    )
    graph = gbp.FactorGraph()
    x = graph.variable("x", (4,), prior=gbp.Gaussian.from_moments(0.4, 2.0), start=0.2)
    graph.add(gbp.Factor(difference, (x[:-1], x[1:]), y=[0.3, 0.5, 2.0], sigma=0.3, linear=True, name="odometry"))
    graph.add(gbp.Factor(bent, (x[3:], np.full(1, 0.2)), y=0.7, sigma=0.05, weight=[0.5], name="range"))
    same(gbp.infer(gbp.compile(chain()), data=data), gbp.infer(graph))


def test_observed_and_held_variables_are_data():
    evidence = {"x": np.array([0.0, 1.0, 2.0, 3.0])}
    graph = gbp.FactorGraph()
    x, z = (graph.variable(n, (4,), prior=gbp.Gaussian.from_moments(0.0, 2.0)) for n in "xz")
    graph.add(gbp.Factor(difference, (x, z), y=1.0, sigma=0.5, linear=True, name="shift"))
    program, data = gbp.compile(graph, evidence=evidence), graph.data(evidence)
    new = data.replace(fixed={"x": [3.0, 2.0, 1.0, 0.0]})
    # z has prior N(0, 4), and is measured as x + 1 with variance 1/4.
    found = gbp.infer(program, data=new)["z"]
    np.testing.assert_allclose(found.mean, np.array([4.0, 3.0, 2.0, 1.0]) * 4.0 / 4.25, rtol=1e-5)
    held = {"x": gbp.Gaussian.from_moments(np.arange(4.0), 0.5)}
    program, data = gbp.compile(graph, evidence=held), graph.data(held)
    moved = data.replace(held={"x": gbp.Gaussian.from_moments(np.arange(4.0), 1.0)}, fixed={"x": np.arange(4.0)})
    variance = 1 / (1 / 4 + 1 / (0.25 + 1.0))
    np.testing.assert_allclose(gbp.infer(program, data=moved)["z"].variance, variance, rtol=1e-5)


def test_a_linear_group_with_constants_of_its_own_is_exact():
    """Its Jacobian differs from factor to factor, and is computed anew for new constants."""
    rng = np.random.default_rng(0)
    rows, y = rng.standard_normal((6, 2)), rng.standard_normal(6)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (1, 2), block=True, prior=gbp.Gaussian.from_moments(np.zeros(2), covariance=np.eye(2)))
    graph.add(gbp.Factor(lambda w, a: a @ w, (w[np.zeros(6, int)], rows), y=y, sigma=0.5, linear=True, name="rows"))
    found = gbp.infer(graph)["w"]
    dense = np.linalg.inv(np.eye(2) + rows.T @ rows / 0.25)
    np.testing.assert_allclose(found.mean[0], dense @ rows.T @ y / 0.25, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.covariance[0], dense, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda g: gbp.infer(gbp.compile(g)), ValueError, "a program needs data="),
        (lambda g: gbp.infer(g, data=g.data()), ValueError, "belongs to a program"),
        (lambda g: gbp.infer(gbp.compile(g), data=g.data(), evidence={"x": 0.0}), ValueError, "needs data="),
        (lambda g: g.data().replace(y={"odo": 1.0}), KeyError, "no factor group 'odo'"),
        (lambda g: g.data().replace(y={"odometry": np.zeros(5)}), ValueError, "does not fit"),
        (lambda g: g.data().replace(prior={"z": gbp.Gaussian.from_moments(0.0, 1.0)}), KeyError, "no variable 'z'"),
        (lambda g: g.data().replace(weight={"odometry": 1.0}), ValueError, "has no weight"),
        (lambda g: g.data().replace(fixed={"x": 1.0}), KeyError, "no observed variable"),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(chain())


def test_data_is_a_pytree_of_numbers():
    data = chain().data()
    assert all(isinstance(x, (jax.Array, np.ndarray, float)) for x in jax.tree.leaves(data))
    doubled = jax.tree.map(lambda x: x, data)
    same(gbp.infer(gbp.compile(chain()), data=doubled), gbp.infer(chain()))


def test_a_program_has_a_schedule():
    """That of its compilation, unless another is given; programs that differ in it differ."""
    graph = chain()
    order = gbp.Order(*reversed(graph.factors))
    program, usual = gbp.compile(graph, schedule=order), gbp.compile(graph)
    assert program != usual
    assert program == gbp.compile(graph, schedule=order)
    same(gbp.infer(program, data=graph.data()), gbp.infer(graph, schedule=order))
    same(gbp.infer(program, data=graph.data(), schedule=gbp.Sweep()), gbp.infer(usual, data=graph.data()))
    ours, theirs = gbp.solve(program, graph.data()), gbp.solve(usual, graph.data(), schedule=order)
    for name, belief in theirs.items():
        np.testing.assert_array_equal(ours[name].eta, belief.eta)
    with pytest.raises(TypeError, match="schedule"):
        gbp.compile(graph, schedule="sweep")


@pytest.mark.skipif(not gbp.native.built(), reason="the kernels were not built: there is no C++ compiler")
def test_plans_are_made_when_a_program_is_compiled():
    """Of each group its kernel, by structure alone; and none without kernels, or for numbers that they do not take."""
    from gbplearn.kernels.registry import NO_KERNELS

    net = gbp.Sequential(gbp.Conv2D(3, kernel=3), gbp.MaxPool2D(2), gbp.Dense(2), gbp.SoftmaxObservation())
    x, y = np.random.default_rng(0).random((2, 6, 6, 1)), np.array([0, 1])
    graph = net.graph(net.batch(x, y))
    pooled = gbp.compile(graph, messages="pooled")
    kernels = ["matrix-pooled", "tile-max", "matrix-pooled", None]
    assert list(pooled.plans) == list(graph.factors)
    assert list(pooled.plans.values()) == kernels
    assert next(iter(gbp.compile(graph, messages="per-edge").plans.values())) == "matrix-edges"
    off = dataclasses.replace(pooled, kernels=NO_KERNELS)
    assert set(off.plans.values()) == {None}
    assert off != pooled
    line = gbp.FactorGraph()
    v = line.variable("v", (20,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    line.add(gbp.Factor(lambda a, b: b - a, (v[:-1], v[1:]), sigma=1.0, linear=True, name="steps"))
    line.add(gbp.Factor(jnp.sin, (v,), sigma=1.0, name="sines"))
    assert gbp.compile(line).plans == {"steps": "slices", "sines": None}


def test_kernels_belong_to_the_program(monkeypatch):
    """Neither the environment nor `using` changes what was compiled: each choice has its own program."""
    from gbplearn.kernels.registry import NO_KERNELS, chosen, pinned

    usual = gbp.compile(chain())
    with gbp.native.using(gbp.native.Build.NONE):
        off = gbp.compile(chain())
    assert off.kernels == NO_KERNELS
    assert (off == usual) == (not gbp.native.status().on)
    monkeypatch.setenv("GBPLEARN_NATIVE", "0")
    assert chosen() == NO_KERNELS
    with pinned(usual.kernels):
        assert chosen() == usual.kernels
    assert chosen() == NO_KERNELS
