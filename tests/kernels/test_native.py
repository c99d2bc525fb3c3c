"""The kernels compute what XLA compiles from the message update."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.exchange import visit_group
from gbplearn.engine.loop import iterate
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state
from gbplearn.engine.update import Edge
from gbplearn.kernels.cpu.library import available, built
from gbplearn.kernels.registry import kernel_for, kernels
from gbplearn.layers.activation import linear
from gbplearn.layers.dense import DenseKind
from gbplearn.layers.max_pool2d import MaxPoolKind

needs_kernels = pytest.mark.skipif(not built(), reason="the kernels were not built: there is no C++ compiler")


def network(filters: int = 5, kernel: int = 3, classes: int = 3, pool: int = 2, activation: str = "leaky_relu"):
    return gbp.Sequential(
        gbp.Conv2D(
            filters, kernel=kernel, activation=activation, sigma=0.1, weight_prior=0.4, bias_prior=0.3, prior=2.0
        ),
        gbp.MaxPool2D(pool, sigma=0.1, prior=2.0),
        gbp.Dense(classes, sigma=0.1, weight_prior=0.3, bias_prior=0.2, prior=2.0),
        gbp.SoftmaxObservation(sigma=0.3),
    )


def problem_of(net: gbp.Sequential, x: np.ndarray, y: np.ndarray, messages: str, there: int):
    batch = net.batch(x[:there], y[:there]).padded(len(x))
    graph = net.graph(batch)
    problem = graph.problem(None, messages)
    return problem, make_options(graph, problem, gbp.Damping(parameters=0.8, activations=0.3), 0.0, None, 1)


def run(problem, options, order, monkeypatch, native: str):
    """The state, and what was proposed, after each of some visits."""
    monkeypatch.setenv("GBPLEARN_NATIVE", native)
    step = jax.jit(lambda p, s, o, g: visit_group(p.with_known(), s, o, g), static_argnums=3)
    state, seen = empty_state(problem, jax.random.PRNGKey(0), False), []
    for g in order:
        state, visited = step(problem, state, options, g)
        seen.append((state.messages[g], visited.proposed))
    return seen


def check_same(problem, options, monkeypatch, order=(0, 1, 2, 3, 2, 1, 0, 1)):
    """Both ways, message by message, up to rounding of the largest."""
    native, compiled = (run(problem, options, order, monkeypatch, n) for n in "10")
    for a, b in zip(native, compiled):
        assert jax.tree.structure(a) == jax.tree.structure(b)
        for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
            assert u.shape == v.shape
            scale = max(float(jnp.max(jnp.abs(v))), 1e-2)
            np.testing.assert_allclose(np.asarray(u), np.asarray(v), rtol=0, atol=2e-4 * scale)


@needs_kernels
@pytest.mark.parametrize("messages", ["pooled", "per-edge"])
@pytest.mark.parametrize(
    ("filters", "kernel", "classes", "pool", "size", "channels", "activation"),
    [
        pytest.param(5, 3, 3, 2, 9, 1, "leaky_relu", marks=pytest.mark.slow),  # channels fill no vector
        (17, 3, 11, 2, 6, 3, "relu"),  # more than two vectors, the last of which is not full
    ],
)
def test_kernels_agree_with_xla(monkeypatch, messages, filters, kernel, classes, pool, size, channels, activation):
    rng = np.random.default_rng(0)
    net = network(filters, kernel, classes, pool, activation)
    x, y = rng.standard_normal((7, size, size, channels)), rng.integers(0, classes, 7)
    problem, options = problem_of(net, x, y, messages, there=6)  # one row is padding
    monkeypatch.setenv("GBPLEARN_NATIVE", "1")
    assert [kernel_for(problem.with_known().local(g), options.of(g)) is not None for g in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    check_same(problem, options, monkeypatch)


@needs_kernels
def test_images_that_do_not_fit_a_block(monkeypatch):
    """Rows of the margins are empty, and the others more than a task holds at once; so are the inputs of the last."""
    rng = np.random.default_rng(4)
    x = np.zeros((6, 28, 28, 1))
    x[:, 9:20, 8:17] = rng.random((6, 11, 9, 1)) * (rng.random((6, 11, 9, 1)) < 0.7)
    problem, options = problem_of(network(16, 5, 10), x, rng.integers(0, 10, 6), "pooled", there=5)
    check_same(problem, options, monkeypatch)


@pytest.mark.slow
@needs_kernels
@settings(max_examples=3, deadline=None)
@given(
    batch=st.integers(2, 5),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 18)),
    messages=st.sampled_from(["pooled", "per-edge"]),
    noise=st.sampled_from([0.01, 0.1, 1.0]),
)
def test_dense_layers_of_any_size(batch, sizes, messages, noise):
    rng = np.random.default_rng(batch)
    net = gbp.Sequential(
        gbp.Dense(sizes[0], activation="leaky_relu", sigma=noise, weight_prior=0.5, bias_prior=0.5, prior=2.0),
        gbp.Dense(sizes[1], sigma=noise, weight_prior=0.5, bias_prior=0.5, prior=2.0),
        gbp.GaussianObservation(sigma=0.1),
    )
    x, y = rng.standard_normal((batch, 3)), rng.standard_normal((batch, sizes[1]))
    problem, options = problem_of(net, x, y, messages, there=batch)
    with pytest.MonkeyPatch.context() as patch:
        check_same(problem, options, patch, order=(0, 1, 2, 1, 0))


@needs_kernels
def test_measurements_and_weights_of_each_factor(monkeypatch):
    """Factors whose measurement is not 0, with a noise of their own: as the engine sees it, not only layers."""
    rng = np.random.default_rng(1)
    problem, options = problem_of(network(), rng.random((4, 6, 6, 1)), rng.integers(0, 3, 4), "pooled", there=4)
    groups = []
    for group in problem.groups[:3]:
        shape = (group.factors, 1)
        groups.append(
            dataclasses.replace(
                group,
                y=jnp.asarray(rng.standard_normal(shape), jnp.float32),
                noise=jnp.asarray(rng.uniform(0.01, 0.1, shape), jnp.float32),
                weight=jnp.asarray(rng.integers(0, 3, shape), jnp.float32),
                weight_repeat=1,
            )
        )
    problem = dataclasses.replace(problem, groups=(*groups, problem.groups[3]))
    check_same(problem, options, monkeypatch)


@needs_kernels
def test_one_edge_that_knows_nearly_everything(monkeypatch):
    """Where the own message is nearly all of a belief, one term nearly all of a sum: precisions keep their digits."""
    net = gbp.Sequential(
        gbp.Dense(4, sigma=1e-3, weight_prior=1.0, bias_prior=1e-3, prior=2.0),
        gbp.GaussianObservation(sigma=1e-3),
    )
    x = np.full((3, 5), 1e-3)
    x[0, 0] = x[1, 1] = 30.0
    problem, options = problem_of(net, x, np.ones((3, 4)), "per-edge", there=3)
    native, compiled = (run(problem, options, (0, 1, 0, 1, 0), monkeypatch, n) for n in "10")
    for a, b in zip(native, compiled):
        for u, v in zip(a[0], b[0]):
            for got, expected in zip((u.each, u.summed), (v.each, v.summed)):
                if got is not None:
                    np.testing.assert_allclose(got.lam, expected.lam, rtol=1e-5)


@needs_kernels
@given(factors=st.integers(1, 9), outputs=st.integers(1, 5), shared=st.booleans(), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_several_measurements_a_factor(factors, outputs, shared, seed):
    """Against a dense solve without each edge, for cavities from precise to all but unknown, and weights of 0."""
    rng, sizes = np.random.default_rng(seed), (2, 3)
    count = 1 if shared else factors
    jacobians = [rng.standard_normal((count, n, outputs, 1)).astype("f") for n in sizes]
    points = [rng.standard_normal((count, n, 1)).astype("f") for n in sizes]
    lam = [(10 ** rng.uniform(-6, 3, (factors, n))).astype("f") for n in sizes]
    eta = [(k * rng.standard_normal(k.shape)).astype("f") for k in lam]
    residual = rng.standard_normal((factors, outputs)).astype("f")
    covariance = np.broadcast_to(0.1 * np.eye(outputs, dtype="f"), (factors, outputs, outputs))
    weights = np.broadcast_to(rng.integers(0, 3, (factors, 1)), residual.shape).astype("f")
    edges = [
        Edge(
            jnp.asarray(j),
            gbp.Gaussian(jnp.asarray(e)[..., None], jnp.asarray(k)[..., None, None]),
            jnp.asarray(p),
            True,
        )
        for j, e, k, p in zip(jacobians, eta, lam, points)
    ]
    found = jax.jit(lambda *args: kernels().many_outputs(edges, *args))(
        *map(jnp.asarray, (residual, covariance, weights))
    )
    assert found is not None

    columns, starts = (
        np.concatenate([np.broadcast_to(x, (factors, *x.shape[1:])) for x in xs], 1).astype(float)
        for xs in (jacobians, points)
    )
    variance = 1 / np.concatenate(lam, 1).astype(float)
    off = np.concatenate(eta, 1) * variance - starts[..., 0]
    for f in range(factors):
        for i in range(sum(sizes)):
            j, others = columns[f, i, :, 0], [o for o in range(sum(sizes)) if o != i]
            around = columns[f, others, :, 0].T
            # Precision of the measurement once the others are marginalised; a weight of 0 leaves none.
            w = float(weights[f, 0])
            total = 0.1 * np.eye(outputs) + w * around @ np.diag(variance[f, others]) @ around.T
            gain = w * np.linalg.solve(total, j)
            rest = residual[f] - around @ off[f, others] + j * starts[f, i, 0]
            slot, e = (0, i) if i < sizes[0] else (1, i - sizes[0])
            scale = max(abs(gain) @ abs(rest), 1e-6)
            np.testing.assert_allclose(found[slot][1][f, e], gain @ j, rtol=1e-5, atol=1e-9)
            np.testing.assert_allclose(found[slot][0][f, e], gain @ rest, rtol=0, atol=1e-5 * scale)


@needs_kernels
@given(
    images=st.integers(1, 5),
    places=st.integers(1, 9),
    units=st.integers(1, 35),
    outputs=st.integers(1, 4),
    numbers=st.integers(1, 40),
    share=st.sampled_from([0.0, 0.25, 1.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_sensitivities_of_windows(images, places, units, outputs, numbers, share, seed):
    """Against sums in double precision; of what comes down a share is not 0, in other places for each output."""
    rng = np.random.default_rng(seed)
    rows, slope = rng.standard_normal((images * places, numbers)), rng.standard_normal((images * places, units))
    shape = outputs, images, places, units
    down = np.where(rng.random(shape) < share, rng.standard_normal(shape), 0)
    found = kernels().sensitivities(*(jnp.asarray(a, jnp.float32) for a in (rows, slope, down)))
    assert found is not None
    each, squares = np.zeros((images, outputs, units, numbers)), np.zeros((images, outputs, outputs))
    for b in range(images):
        for n in range(places):
            at = b * places + n
            for c in range(outputs):
                each[b, c] -= np.outer(down[c, b, n] * slope[at], rows[at])
                for d in range(outputs):
                    squares[b, c, d] += down[c, b, n] @ down[d, b, n]
    np.testing.assert_allclose(found[0], each, atol=2e-5)
    np.testing.assert_allclose(found[1], squares, atol=2e-5 * (1 + units))


@needs_kernels
def test_sensitivities_of_other_numbers_are_left_to_xla():
    single = jnp.zeros((4, 3)), jnp.zeros((4, 2)), jnp.zeros((2, 2, 2, 2))
    assert kernels().sensitivities(*single) is not None
    assert kernels().sensitivities(*(a.astype(jnp.int32) for a in single)) is None


@needs_kernels
def test_nan_does_not_crash(monkeypatch):
    rng = np.random.default_rng(2)
    for messages in ("pooled", "per-edge"):
        problem, options = problem_of(network(), rng.random((4, 6, 6, 1)), rng.integers(0, 3, 4), messages, there=4)
        prior = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), problem.prior)
        broken = dataclasses.replace(problem, prior=prior, uniform={})
        seen = run(broken, options, (0, 1, 2, 1, 0), monkeypatch, "1")
        assert all(jnp.isnan(m).any() for m in jax.tree.leaves(seen[-1]))


def test_what_the_kernels_do_not_do_is_left_to_xla(monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "1")
    rng = np.random.default_rng(3)
    x, y = rng.random((4, 6, 6, 1)), rng.integers(0, 3, 4)
    problem, options = problem_of(network(activation="tanh"), x, y, "pooled", there=4)
    known = problem.with_known()
    assert kernel_for(known.local(0), options.of(0)) is None  # another activation
    assert kernel_for(known.local(1), dataclasses.replace(options, dropping=True).of(1)) is None
    assert kernel_for(known.local(1), dataclasses.replace(options, relinearise=2).of(1)) is None
    assert kernel_for(known.local(3), options.of(3)) is None  # M > 1


def test_they_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "0")
    assert not available()
    rng = np.random.default_rng(3)
    problem, options = problem_of(network(), rng.random((4, 6, 6, 1)), rng.integers(0, 3, 4), "pooled", there=4)
    assert kernel_for(problem.with_known().local(1), options.of(1)) is None


@needs_kernels
@pytest.mark.parametrize("messages", ["pooled", pytest.param("per-edge", marks=pytest.mark.slow)])
def test_kernels_diagnose_as_xla_does(monkeypatch, messages):
    """Residuals and energies of an iteration."""
    rng = np.random.default_rng(4)
    problem, options = problem_of(network(), rng.random((5, 9, 9, 1)), rng.integers(0, 3, 5), messages, there=4)
    latest = no_diagnostics(problem)
    found = []
    for native in "10":
        monkeypatch.setenv("GBPLEARN_NATIVE", native)
        step = jax.jit(lambda p, s, o, seen: iterate(p.with_known(), s, o, seen))
        state = empty_state(problem, jax.random.PRNGKey(0), False)
        for _ in range(3):
            state, seen = step(problem, state, options, latest)
        found.append(seen)
    for name in ("residual", "energy", "switched", "prior"):
        np.testing.assert_allclose(getattr(found[0], name), getattr(found[1], name), rtol=2e-3, err_msg=name)


@needs_kernels
@pytest.mark.parametrize(("std", "sigma"), [(1e4, 1e-4), (1e5, 3e-4), (1e7, 1e-2)])
def test_vague_priors_beside_precise_measurements(std, sigma):
    """Where an edge holds nearly all of what is uncertain of its factor: lam = 1 / sigma², as if it were alone."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3, 2), prior=gbp.Gaussian.from_moments(0.0, std))
    graph.add(gbp.Factor(lambda a: jnp.stack([a[0], 2 * a[1]]), (x[:],), y=[[1.0, 2.0]] * 3, sigma=sigma, linear=True))
    result = gbp.infer(graph)
    np.testing.assert_allclose(result["x"].lam, np.tile([1 / sigma**2, 4 / sigma**2], (3, 1)), rtol=1e-4)
    np.testing.assert_allclose(result["x"].mean, 1.0, rtol=1e-5)


@needs_kernels
def test_the_largest_of_observed_pixels(monkeypatch):
    """Observed pixels have a precision beyond all others: their means are compared all the same."""
    graph, prior = gbp.FactorGraph(), gbp.Gaussian.from_moments(0.0, 2.0)
    x = graph.variable("x", (1, 2, 2, 1), prior=prior)
    y = graph.variable("y", (1, 1, 1, 1), prior=prior)
    graph.add(gbp.Factor(MaxPoolKind((2, 2)), (x, y), sigma=0.1, name="pool"))
    values, seen = np.array([1.0, 2.0, 5.0, 0.0]).reshape(1, 2, 2, 1), np.array([True, True, True, False])
    graph.observe("x", values, seen.reshape(1, 2, 2, 1))
    assert gbp.infer(graph)["y"].mean.item() == pytest.approx(5 * 100 / (100 + 0.25), rel=1e-4)


@needs_kernels
def test_reactions_that_are_shared_otherwise_are_left_to_xla():
    """All variables of one kind share one reaction term."""
    graph, prior = gbp.FactorGraph(), gbp.Gaussian.from_moments(0.5, 1.0)
    of = [graph.variable(n, s, prior=prior) for n, s in {"x": (4, 3), "w": (3, 2), "d": 2, "y": (4, 2)}.items()]
    graph.add(gbp.Factor(DenseKind(linear), tuple(of), sigma=0.5, name="layer"))
    problem = graph.problem(None, "pooled")
    options = make_options(graph, problem, 0.5, 0.0, None, 1)
    assert kernel_for(problem.local(0), options.of(0)) is None
    assert gbp.infer(graph, damping=0.5, messages="pooled").status is gbp.Status.CONVERGED
