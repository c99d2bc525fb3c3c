"""The convolution that `Conv2D` and `ConvTranspose2D` share, each its own way round.

Energy of example `b`, place `(i, j)` and channel `c`, one factor (M = 1) each, with images `x` and `y`, filters `w`,
bias `d` and activation function `g`:

    E_bijc = (y_bijc - g(a_bijc))² / (2 sigma²) ,   a_bijc = sum_uvf w_uvfc x_b,i+u,j+v,f + d_c

where `x` is taken by windows (`Windows`): gaps and margins hold no variables and count nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from ..core.robust import Kernel
from ..edges.axes import AxesEdges
from ..edges.windows import Pair, WindowEdges, Windows
from ..factors.measurement import FactorKind, Layout
from ..factors.operators import Identity, Operator, Product, Shape, Shared, UnitRows
from ..graph.factor import Factor
from ..graph.variable import Variable
from ..kernels.forms import MatrixForm
from . import planar
from .activation import Elementwise, find_activation, negative_slope, value_and_slope
from .layer import (
    AUTO,
    Parameter,
    Transform,
    check_not_negative,
    check_positive,
    check_positive_or_auto,
    check_posterior,
    check_robust,
    check_whole,
    given_or,
    of_vectors,
    unit_parameters,
    weight_scale,
)

_WEIGHT_PRIOR = 0.1  # of scalars, where none is given
PATCHES = "patches"  # prior means of filters are whitened patches of the first images


@dataclasses.dataclass(frozen=True)
class Convolution:
    """`sum_uvf w_uvfc x_b,i+u,j+v,f`, linear in both."""

    windows: Windows
    planar_from: int = planar.FEWEST_PIXELS  # images of so many pixels go plane by plane

    def of_image(self, w: Array, x: Array) -> Float[Array, "b h w c"]:
        """With the filters given."""
        quick = planar.is_quick(w.shape, x.shape, self.planar_from)
        return (planar.of_image if quick else planar.convolve)(self.windows, w, x)

    def of_filters(self, x: Array, w: Array) -> Float[Array, "b h w c"]:
        """With the image given."""
        return self.of_image(w, x)

    def forward(self, w: Array, x: Array) -> Float[Array, "b h w c"]:
        """The same, as quick as there is a way: plane by plane, or as a matrix product.

        (XLA's own convolution of MNIST's images takes seven times as long as that, and the patches are made anyway.)
        """
        if planar.is_quick(w.shape, x.shape, self.planar_from):
            return planar.of_image(self.windows, w, x)
        places = self.windows.count((x.shape[1], x.shape[2]))
        return (self.patches(x) @ w.reshape(-1, w.shape[3])).reshape(x.shape[0], *places, w.shape[3])

    def patches(self, x: Array) -> Float[Array, "n p"]:
        """The window of every place as a row, so that a convolution is a matrix product: `patches(x) @ w`.

        (There is no quick way but this for the transpose. A gather is quicker than slices, and one operation to compile
        instead of one a tap; by one number a place it takes a third of the time of one by two.)
        """
        rows, columns = (jnp.asarray(a) for a in self.windows.places((x.shape[1], x.shape[2])))
        apart = self.windows.moved_apart(x)
        at = rows[:, None, :, None] * apart.shape[2] + columns[None, :, None, :]
        flat = apart.reshape(apart.shape[0], -1, apart.shape[3]).at[:, at.reshape(-1)].get(mode="promise_in_bounds")
        return flat.reshape(-1, rows.shape[1] * columns.shape[1] * x.shape[3])


class FilterJacobian(Operator):
    """`J m = slope x (patches m)`: with respect to the filters."""

    patches: Float[Array, "n p"]
    slope: Float[Array, "b h w c"]
    shape: Shape = eqx.field(static=True)  # of the filters

    def _flat(self, a: Array) -> Array:
        return a.reshape(-1, self.slope.shape[3])

    def times(self, m: Array) -> Float[Array, "f m"]:
        """`slope x (patches m)`."""
        return (self._flat(self.slope) * (self.patches @ self._flat(m))).reshape(-1, 1)

    def back(self, r: Float[Array, "f m"]) -> Array:
        """`patches' (slope x r)`."""
        return (self.patches.T @ (self._flat(self.slope) * self._flat(r))).reshape(self.shape)

    def squared(self) -> FilterJacobian:
        """Squares of slope and patches."""
        return FilterJacobian(self.patches * self.patches, self.slope * self.slope, self.shape)

    def each(self) -> Array:
        """`slope x patches`."""
        rows = self.patches.shape[1]
        return (self._flat(self.slope)[:, :, None] * self.patches[:, None, :]).reshape(-1, rows)


class ConvolutionKind(FactorKind):
    """`h = y - g(w * x + d)`, measured to be 0.

    Arguments: `x (B, H, W, F)`, `w (K, K, F, C)`, `d (C,)`, `y (B, h, w, C)`.
    """

    windows: Windows = eqx.field(static=True)
    activation: Elementwise = eqx.field(static=True)
    patches: Array | None = None  # of an image that is known
    known_sum: Array | None = None  # w * x + d, where all of it is known
    planar_from: int = eqx.field(static=True, default=planar.FEWEST_PIXELS)  # as `Convolution`

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example, place and channel of `y`; its row runs over the window and the channels of `x`."""
        x, w, d, y = shapes
        fits = len(x) == len(w) == len(y) == 4 and w == (*self.windows.kernel, x[3], y[3]) and d == (y[3],)
        window_edges = WindowEdges(x, self.windows, y[3]) if fits else None
        if window_edges is None or window_edges.grid != y:
            raise ValueError(f"a convolution cannot join images {x} and {y} by filters {w} and bias {d}")
        wide, narrow = (*y, window_edges.row), (*y, 1)
        places = (0, 1, 2, 3)
        return Layout(
            y, (), (window_edges, AxesEdges(w, (4, 3), wide), AxesEdges(d, (3,), narrow), AxesEdges(y, places, narrow))
        )

    def copies(self, *shapes: Shape) -> int:
        """The patches, and their squares."""
        _, w, _, y = shapes
        return 2 * math.prod(y[:3]) * math.prod(w[:3])

    def with_known(self, args: Sequence[Array | None]) -> ConvolutionKind:
        """The patches of a known image are made once, and with known filters the whole sum."""
        x, w, d, _ = args
        if x is None or self.patches is not None:
            return self
        patches = Convolution(self.windows, self.planar_from).patches(x)
        known = None if w is None or d is None else patches @ w.reshape(-1, w.shape[3]) + d
        return dataclasses.replace(self, patches=patches, known_sum=known)

    def _sum(self, x: Array, w: Array, d: Array, y: Array) -> tuple[Array, Array | None]:
        """`a`, and the patches unless they are not needed."""
        if self.patches is None and planar.is_quick(w.shape, x.shape, self.planar_from):
            return Convolution(self.windows, self.planar_from).of_image(w, x) + d, None
        patches = Convolution(self.windows, self.planar_from).patches(x) if self.patches is None else self.patches
        if self.known_sum is not None:
            return self.known_sum.reshape(y.shape), patches
        return (patches @ w.reshape(-1, w.shape[3])).reshape(y.shape) + d, patches

    def value(self, *args: Array) -> Float[Array, "b h w c"]:
        """`y - g(a)`."""
        return args[3] - self.activation(self._sum(*args)[0])

    def form(self, *args: Array) -> MatrixForm | None:
        """The rows are the windows of an image that is known."""
        slope = negative_slope(self.activation) if type(self) is ConvolutionKind else None
        return None if slope is None or self.patches is None else MatrixForm(self.patches, slope)

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`-g' w`, `-g' x`, `-g'`, `1`."""
        x, w, d, y = args
        edges = self.layout(*(a.shape for a in args)).edges
        a, patches = self._sum(x, w, d, y)
        slope = -value_and_slope(self.activation, a)[1]
        convolution = Convolution(self.windows, self.planar_from)
        back = partial(planar.to_image, self.windows, (x.shape[1], x.shape[2]))
        transpose = back if planar.is_quick(w.shape, x.shape, self.planar_from) else None
        of_image = Product(w, slope, edges[1], edges[0], convolution.of_image, transpose)
        if patches is not None:
            of_filters = FilterJacobian(patches, slope, w.shape)
        else:
            back = partial(planar.to_filters, self.windows)
            of_filters = Product(x, slope, edges[0], edges[1], convolution.of_filters, back)
        return of_image, of_filters, Shared(slope), Identity(y.shape, y.dtype)


class ConvolutionUnitsKind(FactorKind):
    """The same with the parameters of a filter as one vector: its weights, then its bias.

    Arguments: `x (B, H, W, F)`, `w (C, K K F + 1)`, `y (B, h, w, C)`.
    """

    windows: Windows = eqx.field(static=True)
    activation: Elementwise = eqx.field(static=True)
    known: Float[Array, "n p"] | None = None  # the rows, if the image is known: its patches, each with a 1

    def layout(self, *shapes: Shape) -> Layout:
        """One factor an example, place and channel."""
        x, w, y = shapes
        fits = len(x) == len(y) == 4 and w == (y[3], math.prod(self.windows.kernel) * x[3] + 1)
        window_edges = WindowEdges(x, self.windows, y[3]) if fits else None
        if window_edges is None or window_edges.grid != y:
            raise ValueError(f"a convolution cannot join images {x} and {y} by parameters {w}")
        narrow = (*y, 1)
        return Layout(y, (), (window_edges, AxesEdges((y[3],), (3,), narrow), AxesEdges(y, (0, 1, 2, 3), narrow)))

    def copies(self, *shapes: Shape) -> int:
        """The rows."""
        _, w, y = shapes
        return math.prod(y[:3]) * w[1]

    def with_known(self, args: Sequence[Array | None]) -> ConvolutionUnitsKind:
        """The rows of a known image are made once."""
        x = args[0]
        return self if x is None or self.known is not None else dataclasses.replace(self, known=self.rows(x))

    def rows(self, x: Array) -> Float[Array, "n p"]:
        """Of every place its patch and a 1."""
        if self.known is not None:
            return self.known
        patches = Convolution(self.windows).patches(x)
        return jnp.concatenate([patches, jnp.ones((patches.shape[0], 1), patches.dtype)], 1)

    def value(self, *args: Array) -> Float[Array, "b h w c"]:
        """`y - g(a)`."""
        x, w, y = args
        return y - self.activation((self.rows(x) @ w.T).reshape(y.shape))

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """`-g' w`, `-g'` along the rows, `1`."""
        x, w, y = args
        edges = self.layout(*(a.shape for a in args)).edges
        rows = self.rows(x)
        slope = -value_and_slope(self.activation, rows @ w.T)[1]
        filters = w[:, :-1].T.reshape(*self.windows.kernel, x.shape[3], y.shape[3])
        of_filters = AxesEdges(filters.shape, (4, 3), (*y.shape, w.shape[1] - 1))
        quick = planar.is_quick(filters.shape, x.shape, planar.FEWEST_PIXELS)  # its loops have no transpose in JAX
        back = partial(planar.to_image, self.windows, (x.shape[1], x.shape[2])) if quick else None
        forward = Convolution(self.windows).of_image
        image = Product(filters, slope.reshape(y.shape), of_filters, edges[0], forward, back)
        return image, UnitRows(rows, slope), Identity(y.shape, y.dtype)


def as_pair(layer: str, what: str, value: Any) -> Pair:
    """One number for both axes, or two."""
    pair = (value, value) if isinstance(value, (int, np.integer)) else tuple(value) if np.ndim(value) == 1 else ()
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in pair)
    if len(pair) != 2 or not whole or isinstance(value, bool):
        raise ValueError(
            f"{layer}: {what} must be a whole number >= 1, or one for height and one for width, got {value!r}"
        )
    return int(pair[0]), int(pair[1])


def check_image(layer: str, shape: Shape) -> None:
    """Raise unless an example is an image."""
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"{layer} needs images (height, width, channels), got {shape}")


@dataclasses.dataclass(frozen=True)
class ConvolutionLayer(Transform):
    """What the two convolution layers have in common."""

    filters: int
    kernel: int | Sequence[int] = 3
    stride: int | Sequence[int] = 1
    activation: str | Elementwise = "linear"
    sigma: float = 0.01
    weight_prior: float | str | None = AUTO
    bias_prior: float | str = AUTO
    prior: float | str = AUTO
    weight_init: float | str | None = None
    bias_init: float = 0.0
    weight_start: float = 0.0
    robust: Kernel | None = None
    robust_over: int | Sequence[int] | None = None
    posterior: str = dataclasses.field(default="auto", kw_only=True)
    gain: float = dataclasses.field(default=1.0, kw_only=True)
    takes_patches: ClassVar[bool] = False  # whether `weight_init` may be "patches"

    def __post_init__(self):
        name = type(self).__name__
        check_posterior(name, self.posterior)
        check_whole(name, filters=self.filters)
        as_pair(name, "kernel", self.kernel)
        as_pair(name, "stride", self.stride)
        check_positive(name, sigma=self.sigma, gain=self.gain)
        check_positive_or_auto(name, bias_prior=self.bias_prior, prior=self.prior)
        if self.weight_prior is not None:
            check_positive_or_auto(name, weight_prior=self.weight_prior)
        if not isinstance(self.weight_init, str):
            check_not_negative(name, weight_init=self.weight_init)
        elif self.weight_init != PATCHES or not self.takes_patches:
            choices = f"a number >= 0 or {PATCHES!r}" if self.takes_patches else "a number >= 0"
            raise ValueError(f"{name}: weight_init must be {choices}, got {self.weight_init!r}")
        check_not_negative(name, bias_init=self.bias_init, weight_start=self.weight_start)
        check_robust(name, self.robust)
        find_activation(self.activation)

    @property
    def kernel_size(self) -> Pair:
        """Of both axes."""
        return as_pair(type(self).__name__, "kernel", self.kernel)

    @property
    def strides(self) -> Pair:
        """Of both axes."""
        return as_pair(type(self).__name__, "stride", self.stride)

    def _parameters(self, channels: int, targets: int, summed: float) -> dict[str, Parameter]:
        """**Arguments:** `summed`: how many products of a weight and a number a sum has."""
        prior = weight_scale(self.weight_prior, _WEIGHT_PRIOR, self.gain, summed)
        given = self.weight_init
        init = prior if given is None or isinstance(given, str) else given
        weight = Parameter((*self.kernel_size, channels, targets), prior, init, self.weight_start)
        bias = Parameter((targets,), given_or(self.bias_prior, _WEIGHT_PRIOR), self.bias_init)
        if of_vectors(self.posterior):
            return unit_parameters(self.posterior, weight, bias)
        return {"weight": weight, "bias": bias}

    def _factor(
        self, name: str, windows: Windows, x: Variable, parameters: Mapping[str, Variable], y: Variable
    ) -> Factor:
        activation = find_activation(self.activation)
        if not of_vectors(self.posterior):
            kind, args = ConvolutionKind(windows, activation), (x, parameters["weight"], parameters["bias"], y)
        else:
            kind, args = ConvolutionUnitsKind(windows, activation), (x, parameters["parameters"], y)
        return Factor(
            kind,
            args,
            y=0.0,
            sigma=self.sigma,
            robust=self.robust,
            robust_over=self.robust_over,
            name=name,
        )
