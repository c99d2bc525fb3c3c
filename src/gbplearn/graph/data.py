"""`gbp.Data`: the numbers of a factor graph. Its structure is a `gbp.Program`.

New observations, masks, priors or noises of a graph are new data for the same program: nothing is laid out again, and
nothing is compiled again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.noise import NoisePrior
from ..core.vector import Belief


class FactorData(eqx.Module):
    """The numbers of one factor group. `F` factors, `M` measurements each.

    - `y`: what was measured, `(F | 1, M)`.
    - `noise`: variances `(F | 1, M)`, or covariances `(F | 1, M, M)`.
    - `weight`: on the precision of each factor, broadcasts to the grid of the factors; None for 1.
    - `constants`: arguments of `h` that are no variables.
    - `noise_prior`: where the noise is learnt.
    - `edges`: which units the factors are connected to, where index arrays say so; and thresholds of robust kernels.
    - `numbers`: of a group that grows, the number of the factor in each row; -1 for a row that is not in use.
    """

    y: Array | np.ndarray
    noise: Array | np.ndarray
    weight: Array | np.ndarray | None
    constants: tuple[Array | np.ndarray, ...]
    noise_prior: NoisePrior | None
    edges: tuple[Any, ...]
    numbers: Array | np.ndarray | None = None


class Data(eqx.Module):
    """The numbers of a factor graph, by name: a pytree, so that `jax.vmap` and `jax.grad` take it.

    ```python
    program, data = gbp.compile(graph), graph.data()
    beliefs = gbp.solve(program, data.replace(y={"odometry": new}))
    ```

    - `prior`: of every variable that is not wholly observed or held. Observed units of it have a point prior.
    - `start`: where each of them is linearised first.
    - `fixed`: values of wholly observed variables.
    - `held`: beliefs of variables that are held at one.
    - `uniform`: priors that are one for all units, as that one.
    - `factors`: of each factor group.
    - `used`: of each variable that grows, how many of its scalars are in use.
    """

    prior: dict[str, Belief]
    start: Mapping[str, Array | np.ndarray]
    fixed: Mapping[str, Array | np.ndarray]
    held: dict[str, Belief]
    uniform: dict[str, Belief]
    factors: dict[str, FactorData]
    used: dict[str, Array | np.ndarray] = eqx.field(default_factory=dict)

    def replace(
        self,
        *,
        y: Mapping[str, Any] | None = None,
        sigma: Mapping[str, Any] | None = None,
        weight: Mapping[str, Any] | None = None,
        constants: Mapping[str, Sequence[Any]] | None = None,
        prior: Mapping[str, Belief] | None = None,
        start: Mapping[str, Any] | None = None,
        fixed: Mapping[str, Any] | None = None,
        held: Mapping[str, Belief] | None = None,
    ) -> Data:
        """The same with some numbers replaced; shapes stay as they are.

        It takes values that JAX traces, so that nothing is checked but shapes.

        **Arguments:**

        - `y`, `sigma`, `weight`: of factor groups, by name; each broadcasts to the shape that there is. (One noise for
            all factors stays one for all.)
        - `constants`: of factor groups, by name: all arguments of `h` that are no variables, in their order; None for
            one that stays.
        - `prior`: of variables, by name. A variable whose prior was one for all units may get any.
        - `start`: where variables are linearised first; `fixed`: values of observed variables.
        - `held`: beliefs of variables that are held.
        """
        factors = dict(self.factors)
        for field, given in (("y", y), ("noise", sigma), ("weight", weight)):
            for name, value in (given or {}).items():
                factors[name] = _with_number(name, self._known("factor group", factors, name), field, value)
        for name, values in (constants or {}).items():
            factors[name] = _with_constants(name, self._known("factor group", factors, name), values)
        new = dict(self.prior)
        for name, p in (prior or {}).items():
            new[name] = p.broadcast_to(self._known("variable", new, name).shape)
        uniform = {n: p for n, p in self.uniform.items() if n not in (prior or {})}
        starts, values, beliefs = dict(self.start), dict(self.fixed), dict(self.held)
        for what, known, given in (("variable", starts, start), ("observed variable", values, fixed)):
            for name, value in (given or {}).items():
                known[name] = _like(name, value, self._known(what, known, name))
        for name, belief in (held or {}).items():
            beliefs[name] = belief.broadcast_to(self._known("held variable", beliefs, name).shape)
        return Data(new, starts, values, beliefs, uniform, factors, self.used)

    @staticmethod
    def _known(what: str, among: Mapping[str, Any], name: str) -> Any:
        if name not in among:
            raise KeyError(f"there is no {what} '{name}' (there are: {', '.join(among) or 'none'})")
        return among[name]


def _like(name: str, value: Any, old: Any) -> Array:
    new = jnp.asarray(value, old.dtype)
    try:
        return jnp.broadcast_to(new, old.shape)
    except ValueError:
        raise ValueError(f"'{name}': {new.shape} does not fit the shape {old.shape} that there is") from None


def _with_constants(name: str, factor: FactorData, values: Sequence[Any]) -> FactorData:
    if len(values) != len(factor.constants):
        raise ValueError(f"factor group '{name}' has {len(factor.constants)} constants, got {len(values)}")
    pairs = zip(values, factor.constants)
    return dataclasses.replace(
        factor, constants=tuple(old if new is None else _like(name, new, old) for new, old in pairs)
    )


def _with_number(name: str, factor: FactorData, field: str, value: Any) -> FactorData:
    old = getattr(factor, field)
    if old is None:
        raise ValueError(f"factor group '{name}' has no {field}: give it some when it is added")
    if field == "noise":
        if old.ndim == 3:
            raise ValueError(f"factor group '{name}' has a covariance: it takes no sigma")
        value = jnp.asarray(value) ** 2
    value = jnp.asarray(value)
    if field != "weight" and value.ndim > 0:
        # As a user has it, an array over the factors and over the measurements of each; here both are one axis.
        shape = value.shape
        splits = ((math.prod(shape[:i]), math.prod(shape[i:])) for i in range(len(shape) + 1))
        value = jnp.reshape(value, next((s for s in splits if s == old.shape), shape))
    if old.shape[:1] == (1,) and value.ndim > 0 and value.shape[0] > 1:
        raise ValueError(f"factor group '{name}' was added with one {field} for all factors: add it with one for each")
    return dataclasses.replace(factor, **{field: _like(name, value, old)})
