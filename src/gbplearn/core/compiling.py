"""Compilation by XLA: its time and memory, what is compiled apart, and the cache of compiled programs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from .files import cache_folder, make_folder
from .tracing import trace_state_clean

Options = tuple[tuple[str, bool | int], ...]

# XLA:CPU's older code generator: a third of the memory to compile, and a fifth less time. What runs in every iteration
# is compiled by the newer one, whose code is up to a third faster; unless kernels do the most of it.
LEAN = (("xla_cpu_use_fusion_emitters", False),)
# For small programs, whose compilation takes longer than all that they will ever do: a third less time, code that is
# up to a third slower.
QUICK = (*LEAN, ("xla_backend_optimization_level", 1), ("xla_llvm_disable_expensive_passes", True))
# Up to so many numbers in its arguments a program counts as small.
SMALL = 100_000


# Seconds to compile from which on a program is kept for other processes.
_WORTH_KEEPING = 0.05


def lean_jit(function: Callable[..., Any], wanted: Options = LEAN, static: tuple[int, ...] = ()) -> Callable[..., Any]:
    """`jax.jit` for programs that run now and then: cheap to compile where XLA has a way to, small ones most of all.

    Inside of another program it is a part of that one. `wanted` as `lean_options`; `static`: numbers of arguments that
    are part of the program.
    """

    @functools.cache
    def compiled(small: bool) -> Callable[..., Any]:
        return jax.jit(function, static_argnums=static, compiler_options=lean_options(QUICK if small else wanted))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        leaves = jax.tree.leaves([a for i, a in enumerate(args) if i not in static])
        inside = not trace_state_clean() and any(isinstance(leaf, Tracer) for leaf in leaves)
        return function(*args) if inside else compiled(is_small(leaves))(*args)

    return call


def is_small(leaves: Iterable[Any]) -> bool:
    """Whether a program of these arguments is small."""
    left = SMALL
    for leaf in leaves:
        left -= np.size(leaf)
        if left < 0:
            return False
    return True


@functools.cache
def lean_options(wanted: Options = LEAN) -> dict[str, bool | int] | None:
    """For `jax.jit`'s `compiler_options`; None if this version of XLA does not know what is `wanted`."""
    options = dict(wanted)
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except Exception:  # of whatever kind: it is an option of the compiler, and may go
        return None
    return options


def one_round(fn: Callable[[Any], Any], carry: Any, often: Array) -> Any:
    """`fn(carry)` as a loop of one round, a number unknown to the compiler: compiled apart from its neighbours.

    What goes in and comes out lies in memory. Else XLA:CPU would fuse it with its neighbours, that is compute what one
    step gives again and again in the next. (It takes `lax.optimization_barrier` away before it fuses.)

    **Arguments:**

    - `carry`: of the shapes that `fn` returns.
    - `often`: False, but known only when it runs.
    """
    return lax.fori_loop(0, jnp.where(often, 2, 1), lambda _, c: fn(c), carry)


def cache_programs() -> Path | None:
    """Keep what JAX compiles in a folder of the user's, where the next process finds it.

    Call it before the first inference. It is a setting of JAX and holds for the whole process, so nothing else in
    gbplearn makes it: the command line and the examples call this function, `gbp.infer` does not.

    The folder is `$GBPLEARN_CACHE`, by default `gbplearn` in the user's cache folder; `GBPLEARN_CACHE=0` turns it off.
    If JAX has a folder already (`jax_compilation_cache_dir`), all stays as it is. If nothing can be written to the
    folder, programs are not kept, and a line in the log (`logging`, "gbplearn") says so once.

    **Returns:** the folder; None if programs are not kept.
    """
    present = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if present:
        return Path(present)
    wanted = os.environ.get("GBPLEARN_CACHE", "")
    if wanted == "0":
        return None
    folder = Path(wanted) if wanted else cache_folder()
    try:
        make_folder(folder)
    except OSError as error:
        log_once(f"compiled programs are not kept: {error}")
        return None
    # JAX reads these settings at every compilation; programs that take less are compiled again.
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


@functools.cache
def log_once(sentence: str) -> None:
    """A warning in the log, not twice in a process."""
    logging.getLogger("gbplearn").warning(sentence)


def release_memory() -> None:
    """Give memory that the compiler has freed back to the system: glibc would keep it (160 MB for MNIST's network)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
