"""The kernel for linear factors over slices computes what XLA compiles from the message update."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.loop import iterate
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state
from gbplearn.kernels.cpu.library import built
from gbplearn.kernels.registry import kernel_for
from gbplearn.layers.gaussian_observation import UnaryKind
from gbplearn.layers.stencil import StencilKind, difference

needs_kernels = pytest.mark.skipif(not built(), reason="the kernels were not built: there is no C++ compiler")
ROBUST = [
    None,
    gbp.Tukey(1.5),
    gbp.Tukey(1.5, match="gradient"),
    gbp.Huber(0.8),
    gbp.Huber(0.8, match="gradient"),
]


def graph_of(shape, kinds, robust=None, weighted=False, unknown=0.0, observed=0.0, start=False, seed=0):
    """Factors of some kinds on one variable, every number of them random."""
    rng = np.random.default_rng(seed)
    graph = gbp.FactorGraph()
    lam = rng.uniform(0.3, 4.0, shape) * (rng.random(shape) >= unknown)
    prior = gbp.Gaussian(*(jnp.asarray(a, jnp.float32) for a in (lam * rng.standard_normal(shape), lam)))
    x = graph.variable("x", shape, prior=prior, start=rng.standard_normal(shape) if start else None)
    for i, kind in enumerate(kinds):
        args = (x,) * len(kind.offsets)
        grid = kind.layout(*(shape for _ in args)).grid
        graph.add(
            gbp.Factor(
                kind,
                args,
                y=rng.standard_normal(grid),
                sigma=rng.uniform(0.2, 1.0, grid),
                robust=robust,
                weight=rng.integers(0, 3, grid) if weighted else None,
                linear=True,
                name=f"slices {i}",
            )
        )
    if observed:
        graph.observe("x", rng.standard_normal(shape), rng.random(shape) < observed)
    return graph


def check(graph, damping, iterations=2, messages="auto"):
    """Messages, and what is seen of them, after each of some iterations: by the kernel and by XLA."""
    problem = jax.jit(lambda p: p.with_known())(graph.problem(None, messages))
    options = make_options(graph, problem, damping, 0.0, None, 1)
    found = []
    for native in "10":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GBPLEARN_NATIVE", native)
            kernels = {kernel_for(problem.local(g), options.of(g)) is not None for g in problem.active()}
            assert kernels == {native == "1"}
            step = jax.jit(lambda p, s, o, seen: iterate(p, s, o, seen))
            state, seen = empty_state(problem, jax.random.PRNGKey(0), False), no_diagnostics(problem)
            for _ in range(iterations):
                state, seen = step(problem, state, options, seen)
                found.append((state.messages, seen))
    for (sent, we_saw), (expected, they_saw) in zip(found[:iterations], found[iterations:], strict=True):
        for a, b in zip(jax.tree.leaves(sent), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(1e-2, float(jnp.abs(b).max())))
        for name in ("residual", "energy", "switched", "prior"):
            ours, theirs = getattr(we_saw, name), getattr(they_saw, name)
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-6, err_msg=name)


def dense(shape, offsets):
    """Whether every slice has at least half of the units."""
    room = [n - max(o[a] for o in offsets) for a, n in enumerate(shape)]
    return min(room) >= 1 and 2 * math.prod(room) >= math.prod(shape)


@st.composite
def stencils(draw):
    """A shape, and offsets that leave room for half of it, in any order."""
    shape = (*draw(st.lists(st.integers(2, 40), max_size=2)), draw(st.integers(12, 40)))
    if draw(st.booleans()):
        shape = (draw(st.integers(100, 300)), *shape)  # more than one task
    places = [o for o in itertools.product(*(range(3) for _ in shape)) if dense(shape, [o])]
    offsets = draw(st.lists(st.sampled_from(places), min_size=2, max_size=5, unique=True))
    least = [min(o[a] for o in offsets) for a in range(len(shape))]
    return shape, tuple(tuple(int(i - m) for i, m in zip(o, least)) for o in offsets)


@needs_kernels
@settings(max_examples=6, deadline=None)
@given(
    stencils(),
    st.sampled_from(ROBUST),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.6]),
    st.sampled_from([0.0, 0.3]),
)
def test_any_slices(stencil, robust, weighted, start, damping, observed):
    shape, offsets = stencil
    if not dense(shape, offsets):
        offsets = ((0,) * len(shape), (1,) + (0,) * (len(shape) - 1))
    coefficients = tuple(0.5 + 0.4 * i * (-1) ** i for i in range(len(offsets)))
    check(graph_of(shape, [StencilKind(offsets, coefficients)], robust, weighted, 0.0, observed, start), damping)


@needs_kernels
@pytest.mark.parametrize("robust", [None, gbp.Tukey(1.5, match="gradient")])
def test_neighbours_of_an_image_of_which_a_part_is_unknown(robust):
    """Both ways, more than one task; a unit of which nothing is known says nothing."""
    kinds = [difference(3, 0), difference(3, 1)]
    check(graph_of((70, 50, 3), kinds, robust, unknown=0.5, start=True), 0.3)


@needs_kernels
@pytest.mark.parametrize("robust", [None, gbp.Huber(0.8)])
def test_each_unit_by_itself(robust):
    """Weights that hold for some factors in a row, which fill no vector."""
    rng = np.random.default_rng(0)
    shape = (90, 5, 3)
    graph = graph_of(shape, [difference(3, 0)], unknown=0.3)
    x = graph.variables["x"]
    for name, which in (("rows", (90, 1, 1)), ("columns", (90, 5, 1))):
        factor = gbp.Factor(
            UnaryKind(),
            (x,),
            y=rng.standard_normal(shape),
            sigma=0.3,
            robust=robust,
            weight=rng.integers(0, 3, which),
            linear=True,
            name=name,
        )
        graph.add(factor)
    check(graph, 0.4)


@needs_kernels
def test_outputs_of_which_all_else_is_known():
    rng = np.random.default_rng(0)
    net = gbp.Sequential(
        gbp.Conv2D(3, kernel=2, activation="leaky_relu", sigma=0.1, weight_prior=0.5, prior=2.0),
        gbp.MaxPool2D(2, sigma=0.1, prior=2.0),
        gbp.Dense(2, sigma=0.1, weight_prior=0.5, prior=2.0),
    )
    graph = net.graph(net.batch(rng.random((3, 5, 5, 1))).padded(4), parameters="fixed")
    check(graph, 0.0, messages="per-edge")


@needs_kernels
def test_what_does_not_depend_on_a_unit_counts_though_it_is_unknown():
    """With a coefficient of 0 the other unit hears the whole measurement."""
    graph = graph_of((12,), [StencilKind(((0,), (1,)), (0.0, 2.0))], unknown=1.0)
    check(graph, 0.0, iterations=1)
    factor = next(iter(graph.factors.values()))
    result = gbp.infer(graph, iterations=2)
    np.testing.assert_allclose(result["x"].lam[1:], 4 / factor.noise.ravel(), rtol=1e-5)
    np.testing.assert_allclose(result["x"].mean[1:], factor.y.ravel() / 2, rtol=1e-5)


@needs_kernels
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(stencils(), st.sampled_from(ROBUST), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.6]))
def test_any_slices_at_length(stencil, robust, weighted, start, damping):
    shape, offsets = stencil
    if dense(shape, offsets):
        kind = StencilKind(offsets, tuple(1.0 + i for i in range(len(offsets))))
        check(graph_of(shape, [kind, kind], robust, weighted, 0.0, 0.1, start), damping)


@needs_kernels
def test_few_units_side_by_side_are_left_to_xla():
    """There the kernel would be slower."""
    for shape, expected in (((50, 4), False), ((50, 12), True), ((4, 50), True)):
        graph = graph_of(shape, [difference(2, 1)])
        problem = graph.problem().with_known()
        options = make_options(graph, problem, 0.0, 0.0, None, 1)
        assert (kernel_for(problem.local(0), options.of(0)) is not None) == expected


@needs_kernels
@pytest.mark.parametrize("robust", [None, gbp.Tukey(float("inf"))])
def test_observed_beside_a_vague_measurement_with_a_jacobian_of_whole_numbers(robust):
    """x[0] is 5, each next one is 1 more, whatever sigma: nothing overflows, and no kind of number is refused."""
    graph, one = gbp.FactorGraph(), jnp.ones((), jnp.int32)
    x = graph.variable("x", (12,), prior=gbp.Gaussian.flat((12,)))
    args = (x[:-1], x[1:])
    graph.add(
        gbp.Factor(
            lambda a, b: b - a, args, y=1.0, sigma=3e7, linear=True, robust=robust, jacobian=lambda a, b: (-one, one)
        )
    )
    graph.observe("x", np.full(12, 5.0), np.arange(12) == 0)
    result = gbp.infer(graph, iterations=30)
    np.testing.assert_allclose(result["x"].mean, 5.0 + np.arange(12), rtol=1e-4)
    np.testing.assert_allclose(result["x"].variance[1:], 9e14 * np.arange(1, 12), rtol=1e-4)
