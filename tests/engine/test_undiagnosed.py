"""Iterations that nobody looks at: visits in one call are visits one after the other."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine.exchange import visit_group
from gbplearn.engine.moves import fixed_order
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state
from gbplearn.engine.undiagnosed import iterate_undiagnosed
from gbplearn.kernels.cpu import chain as chain_module
from gbplearn.kernels.cpu.calls import Argument, KernelCall
from gbplearn.kernels.cpu.chain import CpuChain, common_pieces
from gbplearn.kernels.cpu.library import built
from gbplearn.kernels.registry import Part, Place
from gbplearn.layers.activation import find_activation
from gbplearn.layers.dense import DenseKind
from gbplearn.layers.max_pool2d import MaxPoolKind

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
    return problem, make_options(graph, problem, damping, 0.0, None, 1)


def called(problem, options) -> str:
    """The program of some iterations."""
    state = empty_state(problem, jax.random.PRNGKey(0), False)
    return str(jax.make_jaxpr(lambda s, n: iterate_undiagnosed(problem, s, options, n))(state, 2))


def check_visits(problem, options, keep_points: bool = False):
    """Some iterations are as many visits."""
    order = fixed_order(problem, options)
    assert order is not None
    swept = jax.jit(lambda s, n: iterate_undiagnosed(problem, s, options, n))
    one = {g: jax.jit(lambda s, g=g: visit_group(problem, s, options, g)[0]) for g in problem.active()}
    expected = start = empty_state(problem, jax.random.PRNGKey(0), keep_points)
    for count in range(4):
        got = swept(start, np.int32(count))
        np.testing.assert_array_equal(got.visits, expected.visits)
        for a, b in zip(jax.tree.leaves(got.messages), jax.tree.leaves(expected.messages)):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(float(np.abs(b).max()), 1e-2))
        for g in order:
            expected = one[g](expected)


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
    assert "gbplearn_chain" in called(problem, options)
    check_visits(problem, options)


def dense_layers(tied: bool, kind: str, names: tuple[str, ...] | None, batch: int = 9):
    """Two dense layers for the same images, with the same weights or their own, and max-pooling of these."""
    rng, prior = np.random.default_rng(1), gbp.Gaussian.from_moments
    graph = gbp.FactorGraph()
    image = graph.variable("image", (batch, 4, 4, 3), prior=prior(0.0, 2.0))
    small = graph.variable("small", (batch, 2, 2, 3), prior=prior(rng.standard_normal((batch, 2, 2, 3)), 0.3))
    for i in range(2):
        x = graph.variable(f"x{i}", (batch, 5))
        graph.observe(f"x{i}", rng.standard_normal((batch, 5)))
        if i == 0 or not tied:
            w = graph.variable(f"w{i}", (5, 48), prior=prior(0.3 * rng.standard_normal((5, 48)), 0.5), kind=kind)
            d = graph.variable(f"d{i}", (48,), prior=prior(0.0, 0.5), kind=kind)
        graph.add(gbp.Factor(DenseKind(find_activation("leaky_relu")), (x, w, d, image), sigma=0.1, name=f"dense{i}"))
    graph.add(gbp.Factor(MaxPoolKind((2, 2)), (image, small), sigma=0.1, name="pool"))
    problem = graph.problem(None, "pooled").with_known()
    schedule = None if names is None else gbp.Order(*names)
    return problem, make_options(graph, problem, gbp.Damping(0.8, 0.3), 0.0, schedule, 1)


@needs_kernels
@pytest.mark.parametrize("kind", ["parameter", "activation"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
@pytest.mark.parametrize("names", [None, ("dense0", "pool", "dense0", "dense1")])
def test_what_is_pooled_is_met_once(tied, kind, names):
    problem, options = dense_layers(tied, kind, names)
    assert common_pieces(problem, options, (0, 2)) == 9
    assert common_pieces(problem, options, (0, 1)) == (0 if tied else 9)
    assert common_pieces(problem, options, (0, 2, 0)) == 0
    check_visits(problem, options)


@needs_kernels
def test_more_images_than_tasks():
    check_visits(*dense_layers(tied=False, kind="parameter", names=None, batch=70))


@needs_kernels
def test_points_that_are_kept_are_left_to_xla():
    """As a state has them that was reached with `relinearise=2`."""
    problem, options = problem_of()
    check_visits(problem, options, keep_points=True)


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


def tile_call(place, reported):
    arguments = {"x.eta": Argument(jnp.zeros(1), place)}
    return KernelCall("gbplearn_tile_max", {}, arguments, ["x.eta"], reported)


@pytest.mark.parametrize(
    ("place", "reported", "why"),
    [(Place(0, 0, Part.ETA), {"more": (1,)}, "in place alone"), (None, {}, "x.eta takes the place of nothing")],
)
def test_what_is_not_in_place_cannot_be_put_off(place, reported, why):
    with pytest.raises(ValueError, match=why):
        CpuChain(8).call(tile_call(place, reported))


def test_arrays_are_known_by_their_places_not_by_what_they_are(monkeypatch):
    """One array at two places is two, another one at the same place is the same."""
    made, new_eta, new_lam = [], jnp.array(1.0), jnp.array(2.0)
    monkeypatch.setattr(chain_module, "call_ffi", lambda *args: made.append(args) or [new_eta, new_lam])
    eta, lam = Place(0, 0, Part.ETA), Place(0, 0, Part.LAM)
    chain, array = CpuChain(8), jnp.zeros(1)
    arguments = {"x.eta": Argument(array, eta), "x.lam": Argument(array, lam), "noise": Argument(array)}
    chain.call(KernelCall("gbplearn_tile_max", {}, arguments, ["x.eta", "x.lam"]))
    arguments["x.lam"] = Argument(array + 1, lam)
    found = chain.call(KernelCall("gbplearn_tile_max", {}, arguments, ["x.lam"]))
    assert list(found) == ["x.lam"]
    assert len(chain) == 2
    written = chain.run(jnp.ones(2, bool))
    assert (written[eta], written[lam]) == (new_eta, new_lam)
    ((_, attributes, arrays, shapes, aliases),) = made
    # Numbers of the call's arguments: the first is `made`, and the noise of each visit is an array of its own.
    assert [attributes[f"visit{i}_arguments"].tolist() for i in range(2)] == [[1, 2, 3], [1, 2, 4]]
    assert [attributes[f"visit{i}_results"].tolist() for i in range(2)] == [[0, 1], [1]]
    assert len(arrays) == 5
    assert shapes == [(1,), (1,)]
    assert aliases == {1: 0, 2: 1}
