"""Calls of native code by XLA's FFI, and the kernels that are no visits: parts of visits, and of joint updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...engine.update import Edge
from ..registry import Place
from .library import available, target

# Measurements a factor at most: it was written, and measured, for few.
_MOST_OUTPUTS = 32

# Of a kernel's call, what is known when a program is compiled: `bool`, `int64`, `float32`, or an array of `int64`.
Attribute = np.bool_ | np.int64 | np.float32 | np.ndarray


class Argument(NamedTuple):
    """An array that a kernel takes."""

    array: Array
    place: Place | None = None  # of messages that visits write: which array of the state it is


class KernelCall(NamedTuple):
    """A call of a kernel; its C++ file lists attributes, arguments and results, in this order, and checks them."""

    kernel: str
    attributes: Mapping[str, Attribute]
    arguments: Mapping[str, Argument]
    replaced: Sequence[str]  # the arguments that the first results take the place of
    reported: Mapping[str, tuple[int, ...]] = {}  # the shapes of all other results


def size(n: int) -> np.int64:
    """A size, or a count, as an attribute."""
    return np.int64(n)


def sizes(numbers: Sequence[int]) -> np.ndarray:
    """The same of several."""
    return np.asarray(numbers, np.int64).reshape(-1)


def number(x: float) -> np.float32:
    """A number as an attribute."""
    return np.float32(x)


def call_ffi(
    kernel: str,
    attributes: Mapping[str, Attribute],
    arguments: Sequence[Array],
    shapes: Sequence[tuple[int, ...]],
    aliases: dict[int, int],
) -> list[Array]:
    """A handler, with results in float32; `aliases`: which argument each result takes the place of."""
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return list(jax.ffi.ffi_call(target(kernel), results, input_output_aliases=aliases)(*arguments, **attributes))


def call_now(call: KernelCall) -> dict[str, Array]:
    """Call a kernel. **Returns:** its results by name."""
    names = list(call.arguments)
    arrays = [argument.array for argument in call.arguments.values()]
    places = [names.index(name) for name in call.replaced]
    shapes = [arrays[i].shape for i in places] + list(call.reported.values())
    found = call_ffi(call.kernel, call.attributes, arrays, shapes, {place: i for i, place in enumerate(places)})
    return dict(zip([*call.replaced, *call.reported], found))


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
    weight = jnp.ones(1, jnp.float32) if scale is None else scale
    arguments = {"residual": residual, "covariance": covariance, "weight": weight}
    reported = {}
    for q, e in enumerate(edges):
        eta, lam = e.cavity.eta[..., 0], e.cavity.lam[..., 0, 0]
        parts = {"jacobian": e.jacobian[..., 0], "eta": eta, "lam": lam, "point": e.point[..., 0]}
        arguments |= {f"edges.{q}.{name}": array for name, array in parts.items()}
        reported |= {f"edges.{q}.{name}": eta.shape for name in ("eta", "lam")}
    factors, outputs = residual.shape
    attributes = {
        "factors": size(factors), "outputs": size(outputs), "edges": sizes([e.jacobian.shape[1] for e in edges])
    }  # fmt: skip
    taken = {name: Argument(array) for name, array in arguments.items()}
    found = list(call_now(KernelCall("gbplearn_many_outputs", attributes, taken, (), reported)).values())
    return list(zip(found[0::2], found[1::2]))


def sensitivities(rows: Array, slope: Array, down: Array) -> tuple[Array, Array] | None:
    """Of windows `rows (B N, p)`, `slope (B N, U)` and `down (C, B, N, U)` what `sensitivities.cc` sums over places.

    **Returns:** `each (B, C, U, p)` and `squares (B, C, C)`; None if they do not fit.
    """
    if any(a.dtype != jnp.float32 for a in (rows, slope, down)) or not available():
        return None
    (outputs, images, places, units), numbers = down.shape, rows.shape[1]
    counts = {"images": images, "places": places, "units": units, "outputs": outputs, "numbers": numbers}
    taken = {name: Argument(array) for name, array in (("rows", rows), ("slope", slope), ("down", down))}
    reported = {"each": (images, outputs, units, numbers), "squares": (images, outputs, outputs)}
    attributes = {name: size(n) for name, n in counts.items()}
    found = call_now(KernelCall("gbplearn_sensitivities", attributes, taken, (), reported))
    return found["each"], found["squares"]
