"""Likelihoods that are not Gaussian: factors whose energy is no squared distance of `y` and `h`.

Messages are those of Gaussian factors, so that at every visit such a factor is expanded as one. Under the belief
`N(m, v)` of its variables, the gradient and the Hessian of its energy `E` are taken as their expected values:

    E(x) ~ E(m) + ½ |r - J (x - m)|² - ½ |r|²,        J'J = expected Hessian,  J'r = - expected gradient

It is a measurement with noise 1, residual `r` and Jacobian `J`. For one scalar, a belief that no longer changes is then
the best Gaussian in the sense of variational inference; of several, correlations are left out of the averages. Where
nothing is known, and for calculations at one point of the whole graph (the guard's), `v = 0`: values at the point.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from jax import Array
from jaxtyping import Float

from .measurement import FactorKind, Measurement
from .operators import Operator


class Expansion(NamedTuple):
    """A factor as a Gaussian one about the point, with noise 1."""

    residual: Float[Array, "f m"]
    jacobian: Operator


class Likelihood(FactorKind):
    """A kind of factor with an energy of its own: one argument, a factor for each row of it.

    A kind supplies its layout, `value`, of which together with `y` the energy is a function, and the two below.
    """

    @abc.abstractmethod
    def energies(self, y: Float[Array, "f m"], value: Float[Array, "f m"]) -> Float[Array, " f"]:
        """`-log p(y | x)` of each factor."""

    @abc.abstractmethod
    def expand(self, y: Float[Array, "f m"], mean: Float[Array, "f n"], variance: Float[Array, "f n"]) -> Expansion:
        """Each factor under the belief of its variables, whose variances may be 0."""

    def jacobian(self, *args: Array) -> tuple[Operator, ...]:
        """Not of use: the Jacobian depends on `y` and the belief."""
        raise TypeError(f"{type(self).__name__} is expanded, not linearised")


class Expanded(Measurement):
    """In the place of a likelihood whose expansion is kept once for all: nothing is left to be computed."""

    whole: ClassVar[bool] = True

    def value(self, *args: Array) -> Array:
        """Not of use."""
        raise TypeError("a likelihood that was expanded has no value of its own")

    def linearise(self, args: Sequence[Array], wanted: Sequence[int]) -> tuple[Array, list[Array | Operator]]:
        """Not of use."""
        raise TypeError("a likelihood that was expanded is not linearised again")
