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


@dataclasses.dataclass(frozen=True)
class SmoothLeakyRelu:
    """`LeakyRelu` with its kink rounded off: `slope a + (1 - slope) width log(1 + exp(a / width))`.

    Inference linearises at the means. A unit at a kink may go to and fro between two slopes for ever; here it comes to
    rest. With the `width` of the layer's noise the two functions hardly differ.
    """

    slope: float = 0.2
    width: float = 0.05

    def __post_init__(self):
        if not self.width > 0:
            raise ValueError(f"SmoothLeakyRelu: width must be > 0, got {self.width!r}")

    def __call__(self, a: Array) -> Array:
        """Elementwise."""
        return self.slope * a + (1 - self.slope) * self.width * jax.nn.softplus(a / self.width)


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
