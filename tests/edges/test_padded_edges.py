"""Edge sets with room for more, against sums by loops."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbplearn.edges.padded import WIDTH, levels_for, padded_edges


@jax.jit
def through(edges, x, e):
    return edges.spread(x), edges.pool(e), edges.others(e), edges.present()


def check(ids, used, units, levels, trail=()):
    edges, (factors, n) = padded_edges(ids, used, (units,), levels), ids.shape
    rng = np.random.default_rng(0)
    x, e = rng.standard_normal((units, *trail)), rng.standard_normal((factors, n, *trail))
    e[~used] = np.nan  # what stands there is never summed
    spread, pool, others, present = map(np.asarray, through(edges, x.astype(np.float32), e.astype(np.float32)))
    np.testing.assert_array_equal(spread, x.astype(np.float32)[ids])
    total, alone = np.zeros((units, *trail)), np.zeros(e.shape)
    for f, k in np.ndindex(factors, n):
        if used[f]:
            total[ids[f, k]] += e[f, k]
            for g, m in np.ndindex(factors, n):
                if used[g] and ids[g, m] == ids[f, k] and (g, m) != (f, k):
                    alone[f, k] += e[g, m]
    np.testing.assert_allclose(pool, total, atol=1e-5)
    np.testing.assert_allclose(others[used], alone[used], atol=1e-5)
    np.testing.assert_array_equal(present, np.repeat(used[:, None], n, 1))
    assert (edges.row, edges.units, edges.injective, edges.dense) == (n, units, False, False)


@pytest.mark.parametrize("trail", [(), (2,), (2, 2)], ids=str)
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_sums_over_the_edges_of_a_unit(levels, trail):
    """One unit has as many edges as the levels allow."""
    most = WIDTH**levels
    rng = np.random.default_rng(levels)
    ids = np.where(np.arange(most + 9) < most, 3, rng.integers(0, 3, most + 9))[:, None]
    used = np.ones(len(ids), bool)
    used[-3:] = False
    check(ids, used, 5, levels, trail)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_rows_may_be_in_use(seed):
    rng = np.random.default_rng(seed)
    ids, used = rng.integers(0, 6, (12, 2)), rng.random(12) < rng.random()
    most = int(np.bincount(ids[used].ravel(), minlength=1).max())
    assert levels_for(most) <= 3
    check(ids, used, 6, 3)


def test_levels_hold_their_powers():
    assert [levels_for(n) for n in (0, 1, WIDTH, WIDTH + 1, WIDTH**2, WIDTH**2 + 1)] == [1, 1, 1, 2, 2, 3]


def test_shapes_depend_on_the_room_alone():
    rng = np.random.default_rng(0)
    shapes = set()
    for share in (0.0, 0.3, 1.0):
        edges = padded_edges(rng.integers(0, 9, (20, 2)), rng.random(20) < share, (9,), 2)
        shapes.add(tuple(a.shape for a in jax.tree.leaves(edges)))
    assert len(shapes) == 1


def test_nothing_is_subtracted_again():
    """Beside a term of 1e8 the sum of the others keeps all digits."""
    ids, used = np.zeros((6, 1), int), np.ones(6, bool)
    e = np.array([1e8, 1.0, 2.0, 3.0, 4.0, 5.0], np.float32)[:, None]
    assert float(through(padded_edges(ids, used, (1,), 2), np.zeros(1, np.float32), e)[2][0, 0]) == 15.0
