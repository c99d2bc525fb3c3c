"""The factor graph of an image: every pixel is observed, and the image is smooth to second order.

    pixels       x_i ~ N(z_i, sigma² / weight_i)
    smoothness   (Laplacian of x)_i ~ N(0, scale)      inside, one scale a channel
                 (second difference along the border)_i ~ N(0, scale)

    beside       x_i ~ N(v_i, 1 / precision_i)         such as the same place in the frame before
    prior        x_i ~ N(middle, 30²), so that every belief is proper

With some pixels observed exactly and others not at all, the means of the others are those of biharmonic inpainting.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...core.gaussian import Gaussian
from ...graph.factor import Factor
from ...graph.graph import FactorGraph
from ...layers.gaussian_observation import UnaryKind
from ...layers.stencil import StencilKind, difference

_WIDE = 30.0
LEAST = 3  # pixels along each side: a second difference has as many

_CROSS = ((1, 1, 0), (0, 1, 0), (2, 1, 0), (1, 0, 0), (1, 2, 0))
_LAPLACIAN = (-4.0, 1.0, 1.0, 1.0, 1.0)
_SECOND = (1.0, -2.0, 1.0)


def smooth_graph(
    image: np.ndarray,
    weight: np.ndarray,
    sigma: float,
    scale: np.ndarray,
    middle: np.ndarray,
    beside: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    order: int = 2,
) -> FactorGraph:
    """The graph of one image, its variable is "image".

    **Arguments:**

    - `image`: observed values `(height, width, channels)`.
    - `weight`: of the observations, of that shape; 0 where nothing is known.
    - `sigma`: standard deviation of an observation of weight 1.
    - `scale`: variance of the Laplacian, a number for each channel; `middle`: what a pixel is about, likewise.
    - `beside`: what else is known, by name: values and their precisions, of the shape of the image.
    - `order`: 1 for differences of neighbours instead of the Laplacian.
    """
    height, width = image.shape[:2]
    if min(height, width) < LEAST:
        raise ValueError(f"images must have at least {LEAST} x {LEAST} pixels, got {height} x {width}")
    graph = FactorGraph()
    x = graph.variable("image", image.shape, prior=Gaussian.from_moments(mean=middle, std=_WIDE))
    graph.add(Factor(UnaryKind(), (x,), y=image, sigma=sigma, weight=weight, linear=True, name="pixels"))
    for name, (values, precision) in (beside or {}).items():
        graph.add(Factor(UnaryKind(), (x,), y=values, sigma=1.0, weight=precision, linear=True, name=name))
    for name, kind in (_second_order if order == 2 else _first_order)(image.shape).items():
        args = (x,) * (1 if kind.grid else len(kind.offsets))  # few pixels are in a border
        weights = np.broadcast_to(1 / np.asarray(scale, image.dtype), kind.layout(*(a.shape for a in args)).grid)
        factor = Factor(kind, args, y=0.0, sigma=1.0, weight=weights, linear=True, name=f"smooth/{name}")
        graph.add(factor)
    return graph


def _second_order(shape: tuple[int, ...]) -> dict[str, StencilKind]:
    height, width, channels = shape
    kinds = {"inside": StencilKind(_CROSS, _LAPLACIAN)}
    for name, row in (("top", 0), ("bottom", height - 1)):
        kinds[name] = StencilKind(tuple((row, along, 0) for along in range(3)), _SECOND, grid=(1, width - 2, channels))
    for name, column in (("left", 0), ("right", width - 1)):
        kinds[name] = StencilKind(
            tuple((along, column, 0) for along in range(3)), _SECOND, grid=(height - 2, 1, channels)
        )
    return kinds


def _first_order(shape: tuple[int, ...]) -> dict[str, StencilKind]:
    return {"down": difference(len(shape), 0), "right": difference(len(shape), 1)}
