"""Factorisations against NumPy's, and that no program of the engine asks LAPACK for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.core import linalg
from gbplearn.engine import loop
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.options import make_options
from gbplearn.engine.rounding import find_beliefs
from gbplearn.engine.state import empty_state
from helpers import random_spd

# Written out, and as loops.
SIZES = [1, 2, 3, 5, 6, 7, 12]


@pytest.mark.parametrize("n", SIZES)
def test_cholesky_and_triangular_solves(n, x64):
    rng = np.random.default_rng(n)
    a, b = np.stack([random_spd(rng, n) for _ in range(4)]), jnp.asarray(rng.standard_normal((4, n, 3)))
    lower = np.linalg.cholesky(a)
    np.testing.assert_allclose(linalg.cholesky(jnp.asarray(a)), lower, atol=1e-12)
    np.testing.assert_allclose(linalg.triangular_solve(jnp.asarray(lower), b), np.linalg.solve(lower, b), rtol=1e-8)
    upper = linalg.triangular_solve(jnp.asarray(lower), b, transposed=True)
    np.testing.assert_allclose(upper, np.linalg.solve(lower.swapaxes(1, 2), b), rtol=1e-8)
    one = linalg.triangular_solve(jnp.asarray(lower[0]), b)  # one factor for several
    np.testing.assert_allclose(one, np.linalg.solve(lower[:1], b), rtol=1e-8)


@pytest.mark.parametrize("n", SIZES)
def test_eigenvectors(n, x64):
    rng = np.random.default_rng(n)
    a = np.stack([random_spd(rng, n), np.zeros((n, n)), np.ones((n, n)), np.diag(np.arange(n) - 1.0)])
    values, vectors = (np.asarray(x) for x in linalg.eigenvectors(jnp.asarray(a)))
    np.testing.assert_allclose(np.sort(values, 1), np.linalg.eigvalsh(a), atol=1e-12)
    np.testing.assert_allclose(vectors.swapaxes(1, 2) @ vectors, np.broadcast_to(np.eye(n), a.shape), atol=1e-12)
    np.testing.assert_allclose((vectors * values[:, None]) @ vectors.swapaxes(1, 2), a, atol=1e-12)


@pytest.mark.parametrize("n", SIZES[1:])
def test_a_matrix_that_is_not_positive_definite_is_found_out(n):
    a = np.eye(n, dtype=np.float32)
    a[-1, -1] = -1.0
    assert not np.isfinite(linalg.cholesky(jnp.asarray(a))).all()
    assert not bool(linalg.scaled_cholesky(jnp.ones((n, n), jnp.float32))[2])


def test_no_program_calls_lapack():
    """XLA's pool of threads deadlocks when two batched calls of LAPACK run side by side: `infer` hung for ever.

    Blocks of two sizes with and without a prior, full noise, learnt noise: everything that factorises.
    """
    graph = gbp.FactorGraph()
    pose = graph.variable("pose", (5, 3), block=True)
    far = graph.variable("far", (5, 7), prior=gbp.Gaussian.from_moments(np.zeros(7), 1.0).as_block(), block=True)
    graph.add(gbp.Factor(lambda a, b: b - a, (pose[:-1], pose[1:]), y=1.0, covariance=np.eye(3) + 0.5, name="step"))
    graph.add(gbp.Factor(lambda a, b: a[:2] + b[:2], (pose[:], far[:]), y=0.0, sigma=gbp.LearnNoise(1.0), name="sum"))
    problem = graph.problem()
    state = empty_state(problem, jax.random.PRNGKey(0), False)
    options = make_options(graph, problem, 0.0, 0.0, None, 1)
    enough = loop.Enough(jnp.asarray(1e-3))
    programs = [
        loop.run.lower(problem, state, options, no_diagnostics(problem), jnp.asarray(5), enough),
        jax.jit(find_beliefs).lower(problem, state),
        jax.jit(lambda g: (g.mean, g.covariance)).lower(problem.prior["pose"]),
    ]
    for program in programs:
        text = program.as_text()
        assert "custom_call" not in text.replace("custom_call @Sharding", "")
        assert "lapack" not in text


def numpy_limit(finite, directions):
    """`limit_inverse` by a basis of what is known: `N (N' S N)^-1 N'`."""
    basis = np.linalg.svd(directions)[0][:, directions.shape[1] :]
    return basis @ np.linalg.inv(basis.T @ finite @ basis) @ basis.T


def slope(function, *args, step=1e-6):
    """Along given directions: `args` are pairs of a number and its direction."""
    ahead, back = (function(*(x + s * d for x, d in args)) for s in (step, -step))
    return (np.asarray(ahead) - np.asarray(back)) / (2 * step)


def test_derivatives_of_solves(x64):
    rng = np.random.default_rng(0)
    for n in (2, 3, 5):  # written out, and as loops
        a, da = (jnp.asarray(random_spd(rng, n) + plus * np.eye(n)) for plus in (1, 0))
        b, db = jnp.asarray(rng.standard_normal((2, n, 3)))
        pairs = (a, da), (b, db)
        _, found = jax.jvp(linalg.spd_solve, (a, b), (da, db))
        np.testing.assert_allclose(found, slope(np.linalg.solve, *pairs), rtol=1e-6, atol=1e-8)
        _, found = jax.jvp(linalg.spd_inverse, (a,), (da,))
        np.testing.assert_allclose(found, slope(np.linalg.inv, pairs[0]), rtol=1e-6, atol=1e-8)
        _, found = jax.jvp(linalg.log_determinant, (a,), (da,))  # through the factor itself
        np.testing.assert_allclose(found, np.trace(np.linalg.solve(a, da)), rtol=1e-9)


def test_derivatives_where_not_everything_is_known(x64):
    """Along changes that keep the rank, which is all that messages make. Nothing is NaN."""
    rng = np.random.default_rng(1)
    roots, moves = rng.standard_normal((2, 3, 2))

    def singular(t):
        return (roots + t * moves) @ (roots + t * moves).T

    def inverse(t):
        return linalg.pseudo_inverse(singular(t))[0]

    # `G` is one of many generalised inverses of `a`: what all of them agree on is `a G a = a`.
    (g, dg), (a, da) = jax.jvp(inverse, (0.0,), (1.0,)), jax.jvp(singular, (0.0,), (1.0,))
    np.testing.assert_allclose(da @ g @ a + a @ dg @ a + a @ g @ da, da, atol=1e-9)
    (k, dk) = jax.jvp(lambda t: linalg.split_semidefinite(singular(t))[1], (0.0,), (1.0,))
    np.testing.assert_allclose(a @ dk + da @ k, 0, atol=1e-9)

    finite, change = random_spd(rng, 3) + np.eye(3), random_spd(rng, 3)
    b, db = rng.standard_normal((2, 3, 1))

    def limit(t):
        return linalg.limit_inverse(finite + t * change, (b + t * db) @ (b + t * db).T)

    found, moved = jax.jvp(limit, (0.0,), (1.0,))
    np.testing.assert_allclose(found, numpy_limit(finite, b), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(moved, slope(numpy_limit, (finite, change), (b, db)), rtol=1e-6, atol=1e-8)
    assert np.isfinite(jax.grad(lambda a: linalg.scaled_cholesky(a)[0].sum())(jnp.asarray(a))).all()
    assert float(jax.grad(linalg.safe_sqrt)(0.0)) == 0
    assert float(jax.grad(linalg.safe_sqrt)(4.0)) == 0.25


def test_a_condition_of_a_batch_is_one_condition():
    """Both branches would be computed otherwise, for every problem."""

    def either(flags):
        return jax.lax.cond(linalg.all_true(flags), lambda: 1.0, lambda: 0.0)

    flags = jnp.asarray([[True, True], [True, False]])
    np.testing.assert_array_equal(jax.vmap(either)(flags), [0, 0])
    np.testing.assert_array_equal(jax.vmap(either)(flags[:1]), [1])
    assert "cond" in str(jax.make_jaxpr(jax.vmap(either))(flags))


@pytest.mark.parametrize("n", SIZES)
def test_whitening(n, x64):
    """`w a w' = 1` with a lower triangular `w`, whatever the units of the axes."""
    rng = np.random.default_rng(n)
    units = 10.0 ** rng.uniform(-3, 3, n)
    a = np.stack([random_spd(rng, n) for _ in range(4)]) * units[:, None] * units
    w = np.asarray(linalg.whitening(jnp.asarray(a)))
    np.testing.assert_array_equal(w, np.tril(w))
    np.testing.assert_allclose(w @ a @ np.swapaxes(w, 1, 2), np.broadcast_to(np.eye(n), a.shape), atol=1e-9)


def test_digits_are_kept_unless_an_axis_is_nearly_a_combination_of_others():
    """A correlation `r` leaves `1 - r²` of the difference of two axes, whatever their units."""
    three = np.cos(np.deg2rad([0.0, 120.0, 240.0])[:, None] - np.deg2rad([0.0, 120.0, 240.0]))  # no pair is alike
    assert not bool(linalg.keeps_digits(jnp.asarray(three + 1e-5 * np.eye(3), jnp.float32)))
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((4, 4)))[0]
    for spread, expected in ((1e-1, True), (1e-6, False)):
        a = turn @ np.diag([1.0, 1.0, spread, spread]) @ turn.T
        assert bool(linalg.keeps_digits(jnp.asarray(a, jnp.float32))) is expected
    for lost, expected in ((0.5, True), (1e-2, True), (1e-4, False), (0.0, False)):
        r = np.sqrt(1 - lost)
        a = np.float32([[1.0, r * 1e3, 0.0], [r * 1e3, 1e6, 0.0], [0.0, 0.0, 1e-6]])
        assert bool(linalg.keeps_digits(jnp.asarray(a))) is expected
