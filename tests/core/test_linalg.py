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
