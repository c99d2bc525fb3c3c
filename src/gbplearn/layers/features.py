"""Features: a fixed function of the inputs, in front of a network and no part of its graph.

What it makes of a known input is known, so its outputs are no variables: they are the inputs of the network.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..factors.operators import Shape

# Numbers that a function was fitted to have, by name.
Fitted = Mapping[str, np.ndarray]
# Examples that are mapped by one call: padded to the next of these, so that few programs are compiled.
_PORTIONS = (1, 10, 50, 200)


class Features(abc.ABC):
    """A function of the inputs, fitted to the first ones and then fixed: `gbp.Learner(net, features=...)`.

    It must be hashable, as a frozen dataclass is: compiled programs are kept for it.
    """

    @abc.abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Shape of the features of one example of `shape`; a `ValueError` says what does not fit."""

    @abc.abstractmethod
    def fitted_shapes(self, shape: Shape) -> dict[str, Shape]:
        """Of the numbers that `fit` finds for examples of `shape`, by name: what a checkpoint is checked against."""

    @abc.abstractmethod
    def fit(self, x: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Numbers, by name, that follow from the first examples `(n, ...)`; a `ValueError` if these tell nothing."""

    @abc.abstractmethod
    def apply(self, x: Array, fitted: Mapping[str, Array]) -> Array:
        """The features of one example, given these numbers, in JAX's operations (it is compiled)."""

    def of(self, x: Array, fitted: Mapping[str, Array]) -> Array:
        """Of a batch, one after the other: none depends on another, and memory is that of one."""
        return lax.map(lambda one: self.apply(one, fitted), x)

    def computed(self, x: np.ndarray, fitted: Fitted, dtype: np.dtype) -> np.ndarray:
        """The same by compiled programs, in portions."""
        given = {name: jnp.asarray(value, dtype) for name, value in fitted.items()}
        out = np.zeros((len(x), *self.output_shape(x.shape[1:])), dtype)
        for i in range(0, len(x), _PORTIONS[-1]):
            part = np.asarray(x[i : i + _PORTIONS[-1]], dtype)
            room = next(size for size in _PORTIONS if size >= len(part))
            padded = np.concatenate([part, np.zeros((room - len(part), *part.shape[1:]), dtype)])
            out[i : i + len(part)] = np.asarray(_compiled(self, padded, given))[: len(part)]
        return out


@partial(jax.jit, static_argnums=0)
def _compiled(features: Features, x: Array, fitted: Mapping[str, Array]) -> Array:
    return features.of(x, fitted)
