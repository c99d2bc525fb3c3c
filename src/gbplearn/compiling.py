"""What compiling takes, and leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

# XLA:CPU's older code generator: a third of the memory to compile, and a fifth less time. What runs in every iteration
# is compiled by the newer one, whose code is up to a third faster.
_LEAN = {"xla_cpu_use_fusion_emitters": False}


def lean_jit(function: Callable[..., Any], donate: int | None = None) -> Callable[..., Any]:
    """`jax.jit` for programs that run now and then: cheap to compile where XLA has a way to.

    `donate`: the argument whose buffers are given away.
    """

    @functools.cache
    def compiled() -> Callable[..., Any]:
        given = () if donate is None else (donate,)
        return jax.jit(function, compiler_options=_lean_options(), donate_argnums=given)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        inside = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args))
        return function(*args) if inside else compiled()(*args)

    return call


@functools.cache
def _lean_options() -> dict[str, bool] | None:
    """None if this version of XLA does not know the option."""
    try:
        jax.jit(lambda: 0, compiler_options=_LEAN).lower().compile()
    except Exception:  # of whatever kind: it is an option of the compiler, and may go
        return None
    return _LEAN


def release_memory() -> None:
    """Give memory that the compiler has freed back to the system: glibc would keep it (160 MB for MNIST's network)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
