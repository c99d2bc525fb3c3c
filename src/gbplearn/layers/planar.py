"""Convolutions of few channels, plane by plane.

XLA:CPU lays a convolution out as a matrix product, which with three or four channels is nearly all copying. Written as
sums of shifted planes it is one loop over the pixels: a sixth of the time for an image of 258 x 454 with 4 channels to
3, a ninth for its transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from ..core.compiling import one_round
from ..edges.windows import Pair, Windows

# Products a place: from here on the matrix product is as quick, and the loop takes long to compile.
_MOST_PRODUCTS = 300
# Smaller images are not worth the time to compile.
FEWEST_PIXELS = 4096


def is_quick(filters: tuple[int, ...], image: tuple[int, ...], fewest: int = FEWEST_PIXELS) -> bool:
    """Whether filters `(K, K, F, C)` are so small, and images `(B, H, W, F)` so large, that it pays."""
    worth = math.prod(filters) <= _MOST_PRODUCTS and math.prod(image[:3]) >= fewest
    return worth and jax.default_backend() == "cpu"


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def of_image(windows: Windows, w: Float[Array, "k l f c"], x: Float[Array, "b h w f"]) -> Float[Array, "b i j c"]:
    """`sum_uvf w_uvfc x_b,i+u,j+v,f`."""
    return _apart(partial(_sum, windows), w, x)


@of_image.defjvp
def _of_image_jvp(windows: Windows, at: tuple[Array, Array], moves: tuple[Array, Array]) -> tuple[Array, Array]:
    """By XLA's own convolution, which can be transposed: a loop of a number of rounds that is not known cannot."""
    (w, x), (dw, dx) = at, moves
    return of_image(windows, w, x), convolve(windows, dw, x) + convolve(windows, w, dx)


def convolve(windows: Windows, w: Float[Array, "k l f c"], x: Float[Array, "b h w f"]) -> Float[Array, "b i j c"]:
    """The same by XLA's own convolution."""
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=windows.stride,
        padding=list(zip(windows.before, windows.after)),
        lhs_dilation=windows.dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def to_image(windows: Windows, size: Pair, w: Float[Array, "k l f c"], r: Float[Array, "b i j c"]) -> Array:
    """Its transpose with respect to images of this size: `(b, h, w, f)`."""
    return _apart(partial(_sum, windows.transposed(size)), jnp.flip(w, (0, 1)).swapaxes(2, 3), r)


def to_filters(windows: Windows, x: Float[Array, "b h w f"], r: Float[Array, "b i j c"]) -> Float[Array, "k l f c"]:
    """Its transpose with respect to the filters."""
    return _apart(partial(_correlate, windows), x, r)


def _planes(windows: Windows, x: Array) -> list[list[Array]]:
    """What lies at each place of the windows, by row and column: `(b, f, i, j)` each."""
    size = x.shape[1], x.shape[2]
    apart = windows.moved_apart(x.transpose(0, 3, 1, 2), axis=2)
    places = [
        [slice(t, t + (n - 1) * s + 1, s) for t in range(k)]
        for k, n, s in zip(windows.kernel, windows.count(size), windows.stride)
    ]
    return [[apart[:, :, u, v] for v in places[1]] for u in places[0]]


def _apart(fn: Callable[..., Array], *args: Array) -> Array:
    """Else what the image comes from would be computed anew for every tap."""
    out = jax.eval_shape(fn, *args)
    return one_round(lambda _: fn(*args), jnp.zeros(out.shape, out.dtype), jnp.isnan(args[0].ravel()[0]))


def _sum(windows: Windows, w: Array, x: Array) -> Array:
    out = jnp.zeros((), x.dtype)
    for u, row in enumerate(_planes(windows, x)):
        for v, plane in enumerate(row):
            for f in range(w.shape[2]):
                out = out + w[u, v, f][:, None, None] * plane[:, f, None]
    return out.transpose(0, 2, 3, 1)


def _correlate(windows: Windows, x: Array, r: Array) -> Array:
    """`sum_bij x_b,i+u,j+v,f r_bijc`: a matrix product for each row of the filters."""
    planes = r.transpose(0, 3, 1, 2)
    rows = [jnp.einsum("vbfij,bcij->vfc", jnp.stack(row), planes) for row in _planes(windows, x)]
    return jnp.stack(rows)
