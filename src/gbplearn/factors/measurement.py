"""What the factors of a group measure: `h`, and its Jacobian as linear operators.

There are two kinds of it. A `Function` is the user's own `h` of one factor, mapped over all and differentiated
automatically. A `FactorKind` is a layer: `h` of all factors at once, with the Jacobian written out. The engine treats
both alike.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..edges.base import Edges
from ..kernels.forms import Form
from .operators import Operator, Shape


class Linear(NamedTuple):
    """`h(x) ~ value + sum_i J_i (x_i - x0_i)`: the value `(F | 1, M)`, and for each variable a Jacobian.

    A Jacobian is an operator, or an array edge by edge (see `Operator.each`).
    """

    value: Array
    jacobians: tuple[Array | Operator, ...]


class Layout(NamedTuple):
    """How the factors of a kind are laid out."""

    grid: Shape  # the factors, as an array
    h_shape: Shape  # of one factor's measurement; () for M = 1
    edges: tuple[Edges, ...]  # of each argument


class Measurement(eqx.Module):
    """`h` of all factors of a group."""

    whole: ClassVar[bool]  # takes whole variables; else one row a factor, `(F | 1,) + row_shape`

    @abc.abstractmethod
    def value(self, *args: Array) -> Array:
        """`h`, reshapeable to `(F, M)`."""

    def with_known(self, args: Sequence[Array | None]) -> Measurement:
        """The same, with what depends on known arguments alone computed once for all; None for what is unknown."""
        return self

    @abc.abstractmethod
    def linearise(self, args: Sequence[Array], wanted: Sequence[int]) -> tuple[Array, list[Array | Operator]]:
        """`h` and its Jacobians with respect to the wanted arguments."""


class FactorKind(Measurement):
    """The contract of a layer: a kind of factor with its Jacobian written out.

    A kind supplies `h` and the operators of its Jacobian, nothing else; what the engine does with them is not its
    business. Arguments are whole variables (scalars), factors and rows of edges in the order of the layout. To add a
    kind: one file in `layers/` with its energy at the top, and one test against the same factor as a `Function`.
    """

    whole: ClassVar[bool] = True

    @abc.abstractmethod
    def layout(self, *shapes: Shape) -> Layout:
        """The factors and edges for arguments of these shapes; a `ValueError` says which do not fit."""

    @abc.abstractmethod
    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """The operators of the Jacobian at the arguments, one for each."""

    def form(self, *args: Array) -> Form | None:
        """Which of the forms that the engine has kernels for it has at these arguments; None for any other."""
        return None

    def copies(self, *shapes: Shape) -> int:
        """How many numbers it keeps of arguments of these shapes, such as the windows of an image one by one."""
        return 0

    def linearise(self, args: Sequence[Array], wanted: Sequence[int]) -> tuple[Array, list[Array | Operator]]:
        """All operators are made; the compiler leaves out what is not used."""
        operators = self.jacobian(*args)
        return self.value(*args), [operators[i] for i in wanted]


class Function(Measurement):
    """A function of one factor, mapped over all; arguments that are shared by all factors stay single."""

    h: Callable[..., Any] = eqx.field(static=True)
    derivative: Callable[..., Any] | None = eqx.field(static=True)  # the user's Jacobian
    factors: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)  # M
    whole: ClassVar[bool] = False

    def _over_factors(self, function: Callable[..., Any], rows: Sequence[Array]) -> Any:
        axes = [None if r.shape[0] == 1 and self.factors > 1 else 0 for r in rows]
        rows = [r[0] if a is None else r for r, a in zip(rows, axes)]
        return jax.vmap(function, in_axes=axes)(*rows)

    def value(self, *args: Array) -> Array:
        """Mapped over the factors."""
        return self._over_factors(lambda *rows: jnp.reshape(self.h(*rows), (self.outputs,)), args)

    def linearise(self, args: Sequence[Array], wanted: Sequence[int]) -> tuple[Array, list[Array | Operator]]:
        """Jacobians `(F, M) + row_shape`, from the user's function or by automatic differentiation."""
        m = self.outputs

        def one(*rows: Array) -> tuple[Array, list[Array]]:
            def of_wanted(*chosen: Array) -> Array:
                full = list(rows)
                for place, row in zip(wanted, chosen):
                    full[place] = row
                return jnp.reshape(self.h(*full), (m,))

            chosen = [rows[p] for p in wanted]
            if self.derivative is not None:
                given = self.derivative(*rows)
                return of_wanted(*chosen), [jnp.reshape(given[p], (m, *rows[p].shape)) for p in wanted]
            if m <= sum(math.prod(c.shape) for c in chosen):
                value, back = jax.vjp(of_wanted, *chosen)
                return value, list(jax.vmap(back)(jnp.eye(m, dtype=value.dtype)))
            jacobians = jax.jacfwd(of_wanted, argnums=tuple(range(len(chosen))))(*chosen)
            return of_wanted(*chosen), list(jacobians)

        return self._over_factors(one, args)
