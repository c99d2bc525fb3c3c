"""The edges of image layers, against the unit of every edge found by loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gbplearn.edges.stencil import StencilEdges
from gbplearn.edges.tiles import TileEdges
from gbplearn.edges.windows import WindowEdges, Windows
from helpers import QUICK, as_rows


def units_of_windows(shape, windows, channels):
    """The unit of every edge, by loops; -1 where there is none."""
    batch, height, width, depth = shape
    counts = windows.count((height, width))
    rows = []
    for b, i, j, c in np.ndindex(batch, *counts, channels or depth):
        row = []
        for t, u in np.ndindex(*windows.kernel):
            r, s = i * windows.stride[0] + t - windows.before[0], j * windows.stride[1] + u - windows.before[1]
            (p, over), (q, beside) = divmod(r, windows.dilation[0]), divmod(s, windows.dilation[1])
            there = not over and not beside and 0 <= p < height and 0 <= q < width
            for f in range(depth) if channels else (c,):
                row.append(((b * height + p) * width + q) * depth + f if there else -1)
        rows.append(row)
    return np.array(rows)


def check_edges(edges, unit):
    """Copies, their transpose, sums of the others and the edges there are, against the unit of every edge."""
    rng = np.random.default_rng(0)
    x, e = (rng.standard_normal(s).astype(np.float32) for s in (edges.unit_shape, unit.shape))
    there = unit >= 0
    found = jax.jit(lambda x, e: (edges.spread(x), edges.pool(e), edges.others(e)), compiler_options=QUICK)
    spread, pool, others = found(x, e)
    np.testing.assert_array_equal(spread, np.where(there, x.ravel()[unit], 0))
    total = np.zeros(x.size)
    np.add.at(total, unit[there], e[there])
    np.testing.assert_allclose(np.ravel(pool), total, atol=1e-5)
    np.testing.assert_allclose(np.vdot(spread, e), np.vdot(x, pool), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(others)[there], (total[unit] - e)[there], atol=1e-5)
    np.testing.assert_array_equal(np.asarray(others)[~there], 0)
    present = edges.present()
    assert (present is None) == there.all()
    if present is not None:
        np.testing.assert_array_equal(present, there)
    assert edges.row == unit.shape[1]
    assert math.prod(edges.grid) == unit.shape[0]
    once = np.unique(unit[there]).size == there.sum()
    assert once or not edges.injective
    assert edges.injective or not edges.dense
    return once


WINDOWS = {
    "valid": (Windows((3, 2)), (2, 4, 5, 2), (2, 4)),
    "stride": (Windows((3, 2), (2, 1)), (2, 6, 5, 2), (2, 4)),
    "same": (Windows((3, 4), before=(1, 1), after=(1, 2)), (2, 3, 5, 2), (3, 5)),
    "same, stride": (Windows((3, 3), (2, 2), before=(0, 1), after=(1, 1)), (1, 4, 5, 2), (2, 3)),
    "gaps": (Windows((3, 3), dilation=(2, 3), before=(2, 0), after=(2, 1)), (2, 2, 3, 2), (5, 6)),
    "side by side": (Windows((2, 3), (2, 3)), (2, 5, 6, 2), (2, 2)),
    "side by side, over the border": (Windows((2, 2), (2, 2), before=(0, 1), after=(1, 0)), (2, 3, 3, 2), (2, 2)),
    "apart": (Windows((1, 2), (3, 3)), (2, 5, 6, 2), (2, 2)),
    "single pixels": (Windows((1, 1)), (2, 3, 2, 2), (3, 2)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_window_edges(name):
    windows, shape, count = WINDOWS[name]
    assert windows.count(shape[1:3]) == count
    channels = 1 if windows.stride != (1, 1) else 3
    edges = WindowEdges(shape, windows, channels)
    assert edges.grid == (shape[0], *count, channels)
    assert edges.injective == check_edges(edges, units_of_windows(shape, windows, channels))


@pytest.mark.parametrize(
    ("shape", "size"), [((2, 5, 6, 2), (2, 3)), ((1, 4, 4, 3), (2, 2)), ((2, 3, 4, 1), (1, 2)), ((1, 6, 3, 2), (3, 1))]
)
def test_tile_edges(shape, size):
    """Tiles stay on the image; read as rows they are what windows side by side are."""
    edges = TileEdges(shape, size)
    unit = units_of_windows(shape, Windows(size, size), None)
    rng = np.random.default_rng(0)
    x, e, f = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in (shape, unit.shape, (len(unit), 1)))
    tiles = e.reshape(*edges.grid, *size).transpose(0, 1, 4, 2, 5, 3)
    assert tiles.shape == edges.rows.shape(*unit.shape)
    np.testing.assert_array_equal(as_rows(edges.spread(x)), x.ravel()[unit])
    pooled = np.zeros(x.size)
    pooled[unit] = e
    np.testing.assert_array_equal(np.ravel(edges.pool(tiles)), pooled.astype(np.float32))
    total = e.sum(1, keepdims=True)
    np.testing.assert_allclose(edges.rows.total(tiles), total, atol=1e-5)
    np.testing.assert_allclose(as_rows(edges.rows.others(tiles)), total - e, atol=1e-5)
    np.testing.assert_array_equal(
        as_rows(jnp.broadcast_to(edges.rows.lift(f), tiles.shape)), np.repeat(f, unit.shape[1], 1)
    )
    np.testing.assert_array_equal(edges.others(tiles), 0)
    assert edges.row == unit.shape[1]
    assert edges.injective
    assert edges.dense == (2 * unit.size >= x.size)


@pytest.mark.parametrize(
    ("shape", "offsets", "grid"),
    [
        ((2, 4, 3, 2), ((0, 0, 0, 0), (0, 1, 0, 0)), (2, 3, 3, 2)),
        ((2, 4, 3, 2), ((0, 0, 0, 0), (0, 0, 1, 0)), (2, 4, 2, 2)),
        ((3, 2, 2), ((0, 0, 0), (0, 1, 0)), (3, 1, 2)),
        ((5,), ((0,), (1,)), (4,)),
        ((4, 5), ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2)), (2, 3)),
        ((4, 5), ((3, 0), (3, 1), (3, 2)), (1, 3)),
        ((9,), ((0,), (4,)), (3,)),
    ],
)
def test_stencil_edges(shape, offsets, grid):
    units = np.arange(np.prod(shape)).reshape(shape)
    places = list(np.ndindex(*grid))
    unit = np.array([[units[tuple(np.add(place, offset))] for offset in offsets] for place in places])
    edges = StencilEdges(shape, offsets, grid)
    assert edges.injective == check_edges(edges, unit)


def test_a_stencil_that_does_not_fit():
    with pytest.raises(ValueError, match=r"offsets .* do not fit into \(2, 5\)"):
        StencilEdges((2, 5), ((0, 0), (2, 0)))
