"""Calls of native code by XLA's FFI, and the kernel for factors of several measurements."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...engine.update import Edge
from .library import available, target

# Measurements a factor at most: it was written, and measured, for few.
_MOST_OUTPUTS = 32


def call(
    name: str,
    shapes: list[tuple[int, ...]],
    args: list[Array],
    aliases: dict[int, int] | None = None,
    slope: float = 0.0,
) -> list[Array]:
    """A kernel with float32 arrays in and out; `aliases`: which argument each result may take the place of."""
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    made = jax.ffi.ffi_call(target(name), results, input_output_aliases=aliases or {})
    return list(made(*args, slope=np.float32(slope)))


def _fits_many_outputs(edges: Sequence[Edge], residual: Array) -> bool:
    """Scalars, everywhere known, single precision."""
    arrays = [residual, *(x for e in edges for x in (e.jacobian, e.cavity.lam))]
    return (
        all(e.proper and e.jacobian.shape[3] == 1 for e in edges)
        and all(x.dtype == jnp.float32 for x in arrays)
        and residual.shape[1] <= _MOST_OUTPUTS
        and available()
    )


def many_outputs(
    edges: Sequence[Edge], residual: Array, covariance: Array, scale: Array | None
) -> list[tuple[Array, Array]] | None:
    """Of each edge set `eta` and `lam`, `(F, n)`; None if it does not fit. See `many_outputs.cc`."""
    if not _fits_many_outputs(edges, residual):
        return None
    args = [residual, covariance, jnp.ones(1, jnp.float32) if scale is None else scale]
    shapes = []
    for e in edges:
        args += [e.jacobian[..., 0], e.cavity.eta[..., 0], e.cavity.lam[..., 0, 0], e.point[..., 0]]
        shapes += [args[-2].shape] * 2
    found = call("gbplearn_many_outputs", shapes, args)
    return list(zip(found[0::2], found[1::2]))
