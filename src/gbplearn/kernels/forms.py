"""Forms of factors that there are kernels for: what `FactorKind.form` may return."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
from jaxtyping import Float


class MatrixForm(NamedTuple):
    """Factors `(n, c)` over four arguments: `h = y_nc - g(sum_k rows_nk w_kc + d_c)`.

    `g(a)` is `a`, or if that is negative `slope a`. The first argument is known and the rows are made of it (its
    windows), or it is the rows.
    """

    rows: Float[Array, "n p"]
    slope: float


class TileMaxForm(NamedTuple):
    """Factors over images `x` and `y`: `h = y - max(x)` over tiles of this size."""

    size: tuple[int, int]


Form = MatrixForm | TileMaxForm
