"""The convolution layer: a window of the inputs explains each output.

Energy of example `b`, place `(i, j)` and filter `c`, one factor (M = 1) each, with inputs `x`, filters `w`, bias `d`,
outputs `y`, stride `s` and activation function `g`:

    E_bijc = (y_bijc - g(a_bijc))² / (2 sigma²) ,   a_bijc = sum_uvf w_uvfc x_b,si+u,sj+v,f + d_c
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..edges.windows import Windows
from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .activation import find_activation
from .convolution import PATCHES, Convolution, ConvolutionLayer, ConvolutionUnitsKind, check_image
from .layer import Parameter, of_vectors
from .patches import variances, whitened, windows_of

# Of whitened patches as filters: what is added to variances before these are divided by, as a part of their mean; and
# the standard deviation of a filter's responses to the first images.
_WHITENING, _RESPONSE = 0.1, 0.5


@dataclasses.dataclass(frozen=True)
class Conv2D(ConvolutionLayer):
    """A convolution of images `(height, width, channels)`: `outputs ~ N(g(filters * inputs + bias), sigma²)`.

    ```python
    gbp.Conv2D(16, kernel=5, activation="leaky_relu", sigma=0.01, weight_prior=0.1, bias_prior=0.1, prior=3.0)
    ```

    **Arguments:**

    - `filters`: number of output channels.
    - `kernel`, `stride`: of both axes, or a pair `(height, width)`.
    - `activation`, `sigma`, `weight_prior`, `bias_prior`, `bias_init`, `prior`: as `gbp.Dense`.
    - `weight_init`: standard deviation of the random prior means, as `gbp.Dense`; or "patches": the prior means are
        whitened patches of the first images that a learner learns from (`layers/patches.py`).
    - `weight_start`: standard deviation of random numbers by which the filters are off from their prior means where
        they are linearised first, as long as nothing else is known of them: it separates filters whose prior means
        are all zero (`weight_init=0.0`), and does no more.
    - `robust`, `robust_over`: as `gbp.Factor`; axes of `(batch, height, width, filters)`, such as `-1` for one switch a
        place.
    - `padding`: "valid" (windows inside the image), or "same" (at stride 1 outputs as large as the inputs). What lies
        outside the image is no variable: it counts as 0.
    - `posterior`, `gain`: as `gbp.Dense`; vectors are the weights and the bias of a filter.
    - `name`: of its variables: `name/weight (kernel, kernel, channels, filters)`, `name/bias (filters,)`, and `name`.
    """

    padding: str = "valid"
    name: str | None = None
    label: ClassVar[str] = "conv"
    takes_patches: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.padding not in ("valid", "same"):
            raise ValueError(f"Conv2D: padding must be 'valid' or 'same', got {self.padding!r}")

    def _windows(self, shape: Shape) -> Windows:
        check_image("Conv2D", shape)
        kernel, stride = self.kernel_size, self.strides
        if self.padding == "valid":
            return Windows(kernel, stride)
        # As many outputs as strides begin inside the image; what is missing lies half before, half after.
        missing = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(shape, kernel, stride)]
        before, after = (m // 2 for m in missing), (m - m // 2 for m in missing)
        return Windows(kernel, stride, before=(next(before), next(before)), after=(next(after), next(after)))

    def output_shape(self, shape: Shape) -> Shape:
        """`(height, width, filters)`."""
        height, width = self._windows(shape).count(shape[:2])
        if min(height, width) < 1:
            raise ValueError(f"Conv2D: a kernel of {self.kernel_size} does not fit images {shape}")
        return height, width, self.filters

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """Filters, and a bias for each output channel."""
        return self._parameters(shape[2], self.filters, float(math.prod(self.kernel_size) * shape[2]))

    @property
    def fits_means(self) -> bool:
        """With `weight_init="patches"`."""
        return self.weight_init == PATCHES

    def fitted_means(self, x: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Whitened patches as filters, for images of mean 0 as for others: biases take what their mean adds away."""
        x, windows = np.asarray(x, float), self._windows(x.shape[1:])
        if any(n < k for n, k in zip(x.shape[1:], self.kernel_size)):  # else windows are those inside the image
            x = np.pad(x, ((0, 0), *zip(windows.before, windows.after), (0, 0)))
        windows = windows_of(x, self.kernel_size, rng)
        try:
            filters, offset = whitened(windows, variances(windows), self.filters, _WHITENING, rng)
        except ValueError as error:
            raise ValueError(f"Conv2D: {error}: weight_init='patches' has nothing to go by") from None
        spread = (windows @ filters.T).std(0)
        scale = _RESPONSE / np.where(spread > 0, spread, 1.0)
        filters, bias = filters * scale[:, None], -offset * scale
        if of_vectors(self.posterior):
            return {"parameters": np.concatenate([filters, bias[:, None]], 1)}
        return {"weight": filters.T.reshape(*self.kernel_size, x.shape[3], self.filters), "bias": bias}

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """`ConvolutionKind` from inputs to outputs."""
        return self._factor(name, self._windows(inputs.shape[1:]), inputs, parameters, outputs)

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array:
        """`g(w * x + d)`."""
        if of_vectors(self.posterior):
            kind, w = (
                ConvolutionUnitsKind(self._windows(x.shape[1:]), find_activation(self.activation)),
                parameters["parameters"],
            )
            outputs = jnp.zeros((x.shape[0], *self.output_shape(x.shape[1:])), x.dtype)
            return -kind.value(x, w, outputs)
        total = Convolution(self._windows(x.shape[1:])).forward(parameters["weight"], x) + parameters["bias"]
        return find_activation(self.activation)(total)
