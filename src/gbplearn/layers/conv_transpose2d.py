"""The generative convolution layer: the outputs explain the inputs.

Energy of example `b`, pixel `(i, j)` and input channel `c`, one factor (M = 1) each, with inputs `x`, outputs `y`,
filters `w`, bias `d`, stride `s` and activation function `g`:

    E_bijc = (x_bijc - g(a_bijc))² / (2 sigma²) ,   a_bijc = sum_f sum_{pq} w_{sp+m-i, sq+m-j, f, c} y_bpqf + d_c

where the sum runs over the outputs whose patch covers the pixel: output `p` covers `K` pixels in a row, those of its
neighbour begin `s` further on. The margin `m` is where the first patch begins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from jax import Array

from ..edges.windows import Pair, Windows
from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from .convolution import ConvolutionLayer, check_image
from .layer import Parameter, check_not_negative


@dataclasses.dataclass(frozen=True)
class ConvTranspose2D(ConvolutionLayer):
    """A generative convolution: `inputs ~ N(g(patches of the outputs + bias), sigma²)`; each output paints a patch.

    ```python
    gbp.ConvTranspose2D(4, kernel=3, sigma=0.1, weight_prior=0.3, prior=0.5, robust=gbp.Tukey(1.0), robust_over=-1)
    ```

    **Arguments:**

    - `filters`: number of output channels.
    - `kernel`: size of a patch.
    - `stride`: pixels from one patch to the next, 1 ... kernel.
    - `activation`, `sigma`, `weight_prior`, `bias_prior`, `weight_init`, `bias_init`, `prior`: as `gbp.Dense`.
    - `weight_start`: standard deviation of random numbers by which the filters are off from their prior means where
        they are linearised first, as long as nothing else is known of them: it separates filters whose prior means
        are all zero (`weight_init=0.0`), and does no more.
    - `gain`: as `gbp.Dense`.
    - `output_start`: the same of the outputs, for every batch: their prior means are all zero.
    - `robust`, `robust_over`: as `gbp.Factor`; axes of the inputs `(batch, height, width, channels)`, such as `-1` for
        one switch a pixel.
    - `borders`: "full": all patches lie inside the image, so pixels at the border are painted by fewer; `(height -
        kernel) / stride` must be whole. "valid": patches reach over the border, and pixels there are painted like those
        in the middle. What lies outside is no variable.
    - `name`: of its variables: `name/weight (kernel, kernel, filters, channels)`, `name/bias (channels,)`, and `name`.
    """

    borders: str = "full"
    output_start: float = 0.0
    name: str | None = None
    label: ClassVar[str] = "conv_transpose"

    def __post_init__(self):
        super().__post_init__()
        check_not_negative("ConvTranspose2D", output_start=self.output_start)
        if self.borders not in ("full", "valid"):
            raise ValueError(f"ConvTranspose2D: borders must be 'full' or 'valid', got {self.borders!r}")
        if any(s > k for s, k in zip(self.strides, self.kernel_size)):
            raise ValueError("ConvTranspose2D: a stride larger than the kernel would leave pixels unexplained")

    def _count(self, size: Shape) -> Pair:
        """Outputs along both axes."""
        out = []
        for n, k, s in zip(size, self.kernel_size, self.strides):
            if self.borders == "full":
                if n < k or (n - k) % s:
                    raise ValueError(
                        f"ConvTranspose2D: patches of {k} every {s} do not fill {n} pixels; size - kernel must be a "
                        "multiple of the stride"
                    )
                out.append((n - k) // s + 1)
            else:
                out.append((n + k - 2) // s + 1)
        return out[0], out[1]

    def _windows(self, shape: Shape) -> Windows:
        """Of each pixel on the outputs, moved apart by the stride."""
        check_image("ConvTranspose2D", shape)
        before, after = [], []
        for n, k, s, count in zip(shape, self.kernel_size, self.strides, self._count(shape[:2])):
            margin = k - 1 if self.borders == "full" else 0
            places = (count - 1) * s + 1
            before.append(margin)
            after.append(n + k - 1 - places - margin)
        return Windows(
            self.kernel_size, dilation=self.strides, before=(before[0], before[1]), after=(after[0], after[1])
        )

    @property
    def generative(self) -> bool:
        """The outputs explain the inputs."""
        return True

    def output_shape(self, shape: Shape) -> Shape:
        """`(height, width, filters)` of the outputs."""
        check_image("ConvTranspose2D", shape)
        return (*self._count(shape[:2]), self.filters)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """Filters, and a bias for each input channel."""
        patches = math.prod(self.kernel_size) / math.prod(self.strides)  # that paint a pixel
        return self._parameters(self.filters, shape[2], patches * self.filters)

    def factor(self, name: str, inputs: Variable, parameters: Mapping[str, Variable], outputs: Variable) -> Factor:
        """`ConvolutionKind` from outputs to inputs."""
        return self._factor(name, self._windows(inputs.shape[1:]), outputs, parameters, inputs)

    def forward(self, x: Array, parameters: Mapping[str, Array]) -> Array | None:
        """It does not run that way."""
        return None
