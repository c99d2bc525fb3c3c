"""Every kind of factors, by XLA and by every build of the kernels, against the same factors as plain functions.

The table is in `table.py`. Beliefs after some iterations are compared in standard deviations. What they must be is
computed in float64: with messages per edge by the engine, from plain functions that are differentiated automatically;
pooled by `written_out.py`, in NumPy; and both are compared with each other.
"""

from __future__ import annotations

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from table import CASES, DAMPING, LARGER
from written_out import WrittenOut

import gbplearn as gbp
from gbplearn.engine.exchange import visit_group
from gbplearn.engine.options import make_options
from gbplearn.engine.state import belief, empty_state
from gbplearn.engine.undiagnosed import iterate_undiagnosed
from gbplearn.kernels.cpu.library import HANDLERS, status_of
from gbplearn.kernels.registry import kernel_for
from gbplearn.native import Build, KernelState
from helpers import QUICK

ITERATIONS = 3
TABLE = CASES | LARGER
FLOAT64 = 1e-9
MESSAGES_ONLY = "many_outputs"  # a kernel within a visit that XLA makes
WAYS = {"XLA": Build.NONE, "kernel": Build.WIDE, "widest kernel": Build.WIDEST, "plain kernel": Build.BASIC}


@contextlib.contextmanager
def in_float(bits):
    """Graphs, and programs, of this precision."""
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", bits == 64)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module")
def build(request):
    """A build of the kernels for all tests that ask for it one after the other: a change drops compiled programs.

    Where there is none, that is no fault. Kernels that are there and cannot be used are.
    """
    found = status_of(request.param)
    if found.state in (KernelState.NOT_BUILT, KernelState.NOT_WIDE, KernelState.OTHER_DEVICE):
        pytest.skip(str(found))
    with gbp.native.using(request.param) as found:
        assert gbp.native.status() == found
        yield request.param


def prepare(graph, mode):
    """A graph as the engine takes it, with the damping of the table, groups in their order."""
    problem = graph.problem(None, mode)
    damping = gbp.Damping(by_name={n: d for n, d in DAMPING.items() if n in graph.variables})
    options = make_options(graph, problem, damping, 0.0, gbp.Order(*graph.factors), 1)
    empty = jax.eval_shape(lambda: empty_state(problem, jax.random.PRNGKey(0), False))
    return problem, jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), empty), options


@functools.cache
def of_layer(name, mode, bits):
    """A line of the table, prepared: arrays, whatever compiles them."""
    with in_float(bits):
        graph = TABLE[name].graph()
        assert graph.dtype == (np.float64 if bits == 64 else np.float32)
        return prepare(graph, mode)


def iterations(chained, problem, state, options):
    problem = problem.with_known()

    def one(_, state):
        for g in problem.active():
            state = visit_group(problem, state, options, g)[0]
        return state

    if chained:
        state = iterate_undiagnosed(problem, state, options, jnp.asarray(ITERATIONS, jnp.int32))
    else:
        state = lax.fori_loop(0, ITERATIONS, one, state)
    return {name: belief(problem, state, name) for name in problem.prior}


def lower(case, prepared):
    """The program, and the kernels that it calls."""
    # A function of its own, so that nothing that was traced before is used again.
    program = jax.jit(functools.partial(iterations, case.chained), compiler_options=QUICK).lower(*prepared)
    return program, set(re.findall(r"gbplearn_\w+", program.as_text()))


def run(case, prepared):
    """Beliefs `eta, lam`, flat, and the kernels that were called."""
    program, called = lower(case, prepared)
    found = program.compile()(*prepared)
    return {n: tuple(np.asarray(a, float).ravel() for a in (b.eta, b.lam)) for n, b in found.items()}, called


@functools.cache
def expected(name, mode):
    """From plain functions in float64: with messages per edge by the engine without kernels, pooled by NumPy."""
    return written_out(name, mode) if mode == "pooled" else by_the_engine(name)


def by_the_engine(name):
    with in_float(64):
        graph, real = TABLE[name].by_hand()
        beliefs, called = run(TABLE[name], prepare(graph, "per-edge"))
    assert not called
    return of_real_units(beliefs, real)


def written_out(name, mode):
    with in_float(64):
        graph, real = TABLE[name].by_hand()
        pooled = TABLE[name].pools.split() if mode == "pooled" else ()
        return of_real_units(WrittenOut(graph, pooled, DAMPING).run(ITERATIONS), real)


def of_real_units(beliefs, real):
    """Without the gaps and margins that are units by hand."""
    return {n: tuple(a[real[n].ravel()] if n in real else a for a in b) for n, b in beliefs.items()}


def check_same(found, beliefs, tolerance):
    """Means and standard deviations, to `tolerance` of the latter; and nothing is known where nothing is known."""
    assert found.keys() == beliefs.keys()
    for name, (eta, lam) in beliefs.items():
        our_eta, our_lam = found[name]
        known = lam > 0
        np.testing.assert_array_equal(our_lam > 0, known)
        eta, lam, our_eta, our_lam = (a[known] for a in (eta, lam, our_eta, our_lam))
        off = np.abs(our_eta / our_lam - eta / lam) * np.sqrt(lam)
        # A value that is observed has no standard deviation to speak of: it is the same number.
        observed = lam > 2.0**79
        np.testing.assert_array_equal((our_eta / our_lam)[observed], (eta / lam)[observed])
        assert off[~observed].max(initial=0) <= tolerance, name
        assert np.abs(np.sqrt(lam / our_lam) - 1).max(initial=0) <= tolerance, name


def visited_by_kernels(problem, options):
    """Whether kernels visit the active groups: all of them, or none."""
    found = set()

    def ask(problem, options):
        known = problem.with_known()
        found.update(kernel_for(known.local(g), options.of(g)) is not None for g in known.active())

    jax.eval_shape(ask, problem, options)
    (all_or_none,) = found
    return all_or_none


def lines(chosen):
    """Those of the table for which it is true: `(way, name, mode)`, one way after the other."""
    out = []
    for way in WAYS:
        for name, case in TABLE.items():
            marks = [pytest.mark.slow] if case.slow else []
            for mode in case.modes:
                if chosen(way, case, mode):
                    out.append(pytest.param(WAYS[way], name, mode, marks=marks, id=f"{way}-{name}-{mode}"))
    return pytest.mark.parametrize(("build", "name", "mode"), out, indirect=["build"])


@lines(lambda way, case, mode: way == "XLA" or case.kernels(mode))
def test_float32(build, name, mode):
    case, prepared = TABLE[name], of_layer(name, mode, 32)
    problem, _, options = prepared
    pooled = {s.variable for g in problem.groups for s in g.slots if s.pooled}
    assert pooled == (set(case.pools.split()) if mode == "pooled" else set())
    wanted = set() if build is Build.NONE else case.kernels(mode)
    assert visited_by_kernels(problem, options) is bool(wanted - {MESSAGES_ONLY})
    found, called = run(case, prepared)
    assert called == {f"gbplearn_{kernel}_{build.value}" for kernel in wanted}
    check_same(found, expected(name, mode), case.float32)


@lines(lambda way, case, mode: way == "XLA")
def test_float64(build, name, mode):
    with in_float(64):
        found, called = run(TABLE[name], of_layer(name, mode, 64))
    assert not called
    check_same(found, expected(name, mode), FLOAT64)


@lines(lambda way, case, mode: way != "XLA")
def test_no_kernel_where_there_is_none(build, name, mode):
    """In float64, and where the table has none: XLA makes these visits, which is tested already."""
    case = TABLE[name]
    for bits in (64,) if case.kernels(mode) else (64, 32):
        with in_float(bits):
            prepared = of_layer(name, mode, bits)
            assert not visited_by_kernels(prepared[0], prepared[2])
            if not all(g.scalar for g in prepared[0].groups):
                assert not lower(case, prepared)[1]


# One of each: a layer with parameters, margins, a robust switch, several measurements, units without a prior.
REFERENCES = ("dense, linear", "conv, same", "gaussian, robust", "softmax", "prior", "conv and max in one call")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in REFERENCES else [pytest.mark.slow]) for n in TABLE])
def test_the_plain_function_is_the_written_out_update(name):
    """Per edge: what everything else is compared with."""
    check_same(expected(name, "per-edge"), written_out(name, "per-edge"), FLOAT64)


def test_every_kernel_is_in_the_table():
    """But the one that visits no group: `kernels/test_native.py` has it."""
    used = {k for case in CASES.values() for mode in case.modes for k in case.kernels(mode)}
    assert {f"gbplearn_{k}" for k in used} == set(HANDLERS) - {"gbplearn_sensitivities"}
