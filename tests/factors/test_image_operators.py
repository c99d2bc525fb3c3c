"""Jacobians of image layers as operators, against automatic differentiation; windows and their transpose."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gbplearn.edges.windows import Windows
from gbplearn.factors.operators import Product
from gbplearn.layers.avg_pool2d import AvgPoolKind
from gbplearn.layers.convolution import Convolution, ConvolutionKind
from gbplearn.layers.max_pool2d import MaxPoolKind
from gbplearn.layers.stencil import StencilKind, difference
from gbplearn.layers.upsample2d import UpsampleKind
from helpers import check_operators

KINDS = {
    "conv": (ConvolutionKind(Windows((3, 2)), jnp.tanh), ((2, 4, 3, 2), (3, 2, 2, 3), (3,), (2, 2, 2, 3))),
    "conv, same, stride": (
        ConvolutionKind(Windows((3, 3), (2, 2), before=(0, 1), after=(1, 1)), jax.nn.softplus),
        ((2, 4, 5, 2), (3, 3, 2, 2), (2,), (2, 2, 3, 2)),
    ),
    "paint": (
        ConvolutionKind(Windows((3, 2), dilation=(2, 1), before=(2, 1), after=(2, 1)), jnp.tanh),
        ((2, 2, 3, 2), (3, 2, 2, 2), (2,), (2, 5, 4, 2)),
    ),
    "max": (MaxPoolKind((3, 2)), ((2, 4, 5, 2), (2, 1, 2, 2))),
    "average": (AvgPoolKind((3, 2)), ((2, 4, 5, 2), (2, 1, 2, 2))),
    "upsample": (UpsampleKind((2, 3)), ((2, 4, 3, 2), (2, 2, 1, 2))),
    "down": (difference(4, 1), ((2, 4, 3, 2),) * 2),
    "right": (difference(4, 2), ((2, 4, 3, 2),) * 2),
    "laplacian": (StencilKind(((1, 1), (0, 1), (2, 1), (1, 0), (1, 2)), (-4.0, 1.0, 1.0, 1.0, 1.0)), ((4, 5),) * 5),
    "last row": (StencilKind(((3, 0), (3, 1), (3, 2)), (1.0, -2.0, 1.0), (1, 3)), ((4, 5),)),
}


@pytest.mark.parametrize("name", KINDS)
def test_operators_are_those_of_the_jacobian(name):
    check_operators(*KINDS[name])


@pytest.mark.parametrize("name", ["conv, same, stride", "paint"])
def test_operators_of_large_images_are_those_of_the_jacobian(name):
    """Which are computed plane by plane."""
    small, (x, w, d, y) = KINDS[name]
    kind = dataclasses.replace(small, planar_from=1)
    _, filters, _, _ = kind.jacobian(*(jnp.ones(s) for s in (x, w, d, y)))
    assert isinstance(filters, Product)  # nothing but this has no patches
    check_operators(kind, (x, w, d, y))
    # And it can be differentiated both ways where it is compiled, as the guard does.
    args = [jnp.asarray(np.random.default_rng(1).standard_normal(s), jnp.float32) for s in (x, w, d, y)]
    forward, backward = (jax.jit(how(kind.value, argnums=(0, 1)))(*args) for how in (jax.jacfwd, jax.jacrev))
    expected = jax.jit(jax.jacrev(small.value, argnums=(0, 1)))(*args)
    for found in (forward, backward):
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("planar_from", [1, 10**9], ids=["plane by plane", "as a matrix product"])
@pytest.mark.parametrize("name", ["conv", "conv, same, stride", "paint"])
def test_a_forward_pass_is_the_sum_over_the_windows(name, planar_from):
    """Written out: tap by tap, of the image with its gaps and margins."""
    kind, (x_shape, w_shape, _, y_shape) = KINDS[name]
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    found = Convolution(kind.windows, planar_from).forward(jnp.asarray(w, jnp.float32), jnp.asarray(x, jnp.float32))
    (rows, columns), wide = kind.windows.places(x_shape[1:3]), np.asarray(kind.windows.moved_apart(jnp.asarray(x)))
    expected = np.zeros(y_shape)
    for i, j in np.ndindex(y_shape[1:3]):
        window = wide[:, rows[i][:, None], columns[j][None, :]]
        expected[:, i, j] = np.einsum("buvf,uvfc->bc", window, w)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    before=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    after=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
@settings(max_examples=25)
def test_transposed_windows_find_whose_window_holds_a_pixel(kernel, stride, dilation, before, after):
    windows, size = Windows(kernel, stride, dilation, before, after), (4, 5)
    count = windows.count(size)
    assume(min(count) >= 1)
    back = windows.transposed(size)
    assert back.count(count) == size
    for axis in (0, 1):
        k, s, d, b = (pair[axis] for pair in (kernel, stride, dilation, before))
        seen = {
            (p, i, u) for p in range(size[axis]) for i in range(count[axis]) for u in range(k) if i * s + u == b + p * d
        }
        k, s, d, b = (pair[axis] for pair in (back.kernel, back.stride, back.dilation, back.before))
        found = {
            (p, i, k - 1 - u)
            for p in range(size[axis])
            for i in range(count[axis])
            for u in range(k)
            if p * s + u == b + i * d
        }
        assert found == seen
