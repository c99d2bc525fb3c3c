"""Activation functions of layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

Elementwise = Callable[[Array], Array]


def linear(a: Array) -> Array:
    """`a`."""
    return a


@dataclasses.dataclass(frozen=True)
class LeakyRelu:
    """`a` where it is positive, else `slope a`; the derivative at 0 is `slope`."""

    slope: float = 0.2

    def __call__(self, a: Array) -> Array:
        """Elementwise."""
        return jnp.where(a > 0, a, self.slope * a)


ACTIVATIONS: dict[str, Elementwise] = {
    "linear": linear,
    "leaky_relu": LeakyRelu(),
    "relu": LeakyRelu(0.0),
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
}


def find_activation(given: str | Elementwise) -> Elementwise:
    """An activation by its name, or as given: any elementwise JAX function."""
    if callable(given):
        try:
            out = jax.eval_shape(given, jax.ShapeDtypeStruct((2, 3), jnp.result_type(float)))
        except Exception as error:
            raise ValueError(f"activation failed: it must be an elementwise JAX function ({error})") from None
        if getattr(out, "shape", None) != (2, 3):
            raise ValueError("activation must be elementwise: of (2, 3) numbers it makes something else")
        return given
    if not isinstance(given, str) or given not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} or a function, got {given!r}")
    return ACTIVATIONS[given]


def value_and_slope(activation: Elementwise, a: Array) -> tuple[Array, Array]:
    """`g(a)` and `g'(a)`, elementwise."""
    value, slope = jax.jvp(activation, (a,), (jnp.ones_like(a),))
    return value, slope


def negative_slope(activation: Elementwise) -> float | None:
    """Of functions that are `a`, and where it is negative `slope a`; None for others."""
    if activation is linear:
        return 1.0
    # Not of a subclass, which may be another function.
    return activation.slope if isinstance(activation, LeakyRelu) and type(activation) is LeakyRelu else None
