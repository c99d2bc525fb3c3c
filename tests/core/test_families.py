"""Families of beliefs: what a visit asks of them, against sums over factors written out in NumPy."""

from __future__ import annotations

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.core.block import BLOCK, Block
from gbplearn.core.diagonal import DIAGONAL, Diagonal
from gbplearn.core.gaussian import POINT
from gbplearn.edges.indexed import index_edges
from gbplearn.factors.operators import Entries
from helpers import random_spd

UNITS, FACTORS, ROW, D = 5, 4, 2, 3
FAMILIES = pytest.mark.parametrize("family", [DIAGONAL, BLOCK], ids=repr)


def beliefs(family, rng):
    """Precisions as matrices `(units, d, d)`, means `(units, d)`, and the Gaussians of the family."""
    d = 1 if family is DIAGONAL else D
    lam, mean = np.stack([random_spd(rng, d) for _ in range(UNITS)]), rng.standard_normal((UNITS, d))
    eta = np.einsum("uij,uj->ui", lam, mean)
    return lam, mean, gbp.Gaussian(family.from_vectors(jnp.asarray(eta)), family.from_matrices(jnp.asarray(lam)))


def jacobian(family, rng, outputs):
    """Random Jacobians `(F, n, M, d)`, which units they are of, and both as operator and edge set."""
    d, index = 1 if family is DIAGONAL else D, rng.integers(0, UNITS, (FACTORS, ROW))
    j, edges = rng.standard_normal((FACTORS, ROW, outputs, d)), index_edges(index, (UNITS,))
    entries = j[:, :, 0, 0] if family is DIAGONAL and outputs == 1 else j
    return j, index, Entries(edges, jnp.asarray(entries), family), edges


@FAMILIES
def test_the_family_is_found_by_the_shapes(family):
    _, _, gaussian = beliefs(family, np.random.default_rng(0))
    assert gaussian.family == family
    assert gaussian.unit_shape == (UNITS,)
    again = pickle.loads(pickle.dumps(family))
    assert again == family
    assert hash(again) == hash(copy.deepcopy(family))
    assert DIAGONAL != BLOCK
    assert (type(DIAGONAL), type(BLOCK)) == (Diagonal, Block)


@FAMILIES
def test_the_variance_along_a_jacobian(x64, family):
    rng = np.random.default_rng(1)
    lam, _, gaussian = beliefs(family, rng)
    one, index, operator, edges = jacobian(family, rng, 1)
    found = gaussian.variance_along(operator, edges, proper=True)
    several, index_m, operator_m, edges_m = jacobian(family, rng, 2)
    found_m = gaussian.covariance_along(operator_m, edges_m)
    for f in range(FACTORS):
        expected = sum(one[f, e] @ np.linalg.inv(lam[index[f, e]]) @ one[f, e].T for e in range(ROW))
        np.testing.assert_allclose(found[f, 0], expected[0, 0], rtol=1e-8)
        expected = sum(several[f, e] @ np.linalg.inv(lam[index_m[f, e]]) @ several[f, e].T for e in range(ROW))
        np.testing.assert_allclose(found_m[f], expected, rtol=1e-8)


@FAMILIES
def test_what_is_absorbed(x64, family):
    """`lam = sum J' gain J`, `eta = sum J' share + lam mean`, over all edges of a unit."""
    rng = np.random.default_rng(2)
    _, mean, gaussian = beliefs(family, rng)
    j, index, operator, edges = jacobian(family, rng, 1)
    gain, share = rng.uniform(0.5, 2, (FACTORS, 1)), rng.standard_normal((FACTORS, 1))
    found = gaussian.absorb(gaussian.mean, operator, edges, jnp.asarray(gain), jnp.asarray(share)).as_vectors()
    for u in range(UNITS):
        rows = [(j[f, e, 0], f) for f in range(FACTORS) for e in range(ROW) if index[f, e] == u]
        lam = sum((gain[f, 0] * np.outer(a, a) for a, f in rows), np.zeros((mean.shape[1],) * 2))
        eta = sum((share[f, 0] * a for a, f in rows), lam @ mean[u])
        np.testing.assert_allclose(found.lam[u], lam, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.eta[u], eta, rtol=1e-8, atol=1e-12)


@FAMILIES
def test_moments_and_squares(x64, family):
    rng = np.random.default_rng(3)
    lam, mean, gaussian = beliefs(family, rng)
    x = rng.standard_normal(mean.shape)
    at = family.from_vectors(jnp.asarray(x))
    np.testing.assert_allclose(family.as_vectors(gaussian.mean_or(at, True)), mean, rtol=1e-8)
    np.testing.assert_allclose(family.as_vectors(gaussian.precisions), np.diagonal(lam, axis1=1, axis2=2))
    np.testing.assert_allclose(gaussian.log_determinant, np.linalg.slogdet(lam)[1], rtol=1e-8)
    np.testing.assert_allclose(family.as_vectors(gaussian.information(at)), np.einsum("uij,uj->ui", lam, x))
    np.testing.assert_allclose(gaussian.quadratic(at), np.einsum("ui,uij,uj->u", x, lam, x))
    np.testing.assert_allclose(gaussian.squares(at), np.einsum("ui,uij,uj->u", x - mean, lam, x - mean), rtol=1e-8)
    assert gaussian.all_proper()
    assert not gaussian.flat_units((2,)).all_proper()


@FAMILIES
def test_where_nothing_is_known_the_mean_is_the_start_and_what_is_observed_counts_nothing(x64, family):
    rng = np.random.default_rng(4)
    _, mean, gaussian = beliefs(family, rng)
    start = family.from_vectors(jnp.asarray(rng.standard_normal(mean.shape)))
    known = jnp.asarray([True, False, True, True, False])
    some = gaussian.where(known, gaussian.flat_units((UNITS,)))
    expected = np.where(family.over_values(np.asarray(known)), gaussian.mean, start)
    np.testing.assert_allclose(some.mean_or(start, False), expected, rtol=1e-8)
    point = gbp.Gaussian.point(gaussian.mean, block=gaussian.block)
    partly = point.where(known, gaussian)
    np.testing.assert_array_equal(partly.observed, known)
    np.testing.assert_array_equal(np.asarray(partly.squares(start))[np.asarray(known)], 0)
    assert float(point.precisions.max()) == POINT


@FAMILIES
def test_lifted_precisions_are_positive_and_others_stay(x64, family):
    rng = np.random.default_rng(5)
    _, _, gaussian = beliefs(family, rng)
    known = jnp.asarray([True, False, True, True, False])
    some = gaussian.where(known, gaussian.flat_units((UNITS,)))
    lifted = some.lifted(gaussian, 1e-6)
    assert lifted.all_proper()
    where = np.asarray(known)
    np.testing.assert_array_equal(np.asarray(lifted.lam)[where], np.asarray(some.lam)[where])
    least = 1e-6 * np.asarray(gaussian.precisions)[~where]
    np.testing.assert_allclose(np.asarray(lifted.precisions)[~where], least, rtol=1e-10)
