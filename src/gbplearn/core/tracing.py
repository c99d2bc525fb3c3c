"""Values that JAX traces are no numbers: graphs are built, and inference runs, outside of JAX's transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

try:
    # JAX has no public name for it; later versions may have another.
    from jax._src.core import trace_state_clean
except ImportError:
    trace_state_clean = bool  # False: not known

_INSTEAD = (
    "gbp.infer is a Python loop over compiled programs and runs outside of JAX's transformations. gbp.solve runs "
    "inside: compile the graph once, outside (gbp.compile), and give the traced values to its data (gbp.Data.replace)"
)


def refuse_traced(what: str, *values: Any) -> None:
    """A `TypeError` of one line if a value is traced by JAX, or holds one that is."""
    for value in values:
        if value is None or isinstance(value, (np.ndarray, float, int)):
            continue
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
            raise TypeError(f"{what} is traced by jax.jit, jax.vmap or jax.grad. {_INSTEAD}")


def refuse_jit(what: str) -> None:
    """A `TypeError` of one line if this runs while JAX traces a function: there every operation gives such values."""
    # Outside of all transformations no operation is made: it would start JAX, and processes could not be forked then.
    if not trace_state_clean() and isinstance(jnp.zeros(()), Tracer):
        raise TypeError(f"{what} is called while JAX traces the function around it (jax.jit or the like). {_INSTEAD}")
