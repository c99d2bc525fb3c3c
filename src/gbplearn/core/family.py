"""Families of beliefs: what an array of Gaussians keeps of each unit, and how it is computed with.

A variable is an array of *units*: what exchanges one message, a number or a vector. A family says how the precisions of
units are kept, and does all that depends on it; `Gaussian` passes on to its family, and nobody else asks which it is.

| family | a unit | keeps of it |
|---|---|---|
| `diagonal.Diagonal` | a number | its precision |
| `block.Block` | the vector along the last axis | its precision matrix |

Methods take natural parameters, `eta` in the shape of the variable and `lam` as the family keeps it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

# Arrays of JAX; of variables that grow, beliefs that were found are NumPy's: JAX would compile for each new length.
if TYPE_CHECKING:
    Values = Array
else:
    Values = Array | np.ndarray

Shape = tuple[int, ...]
Natural = tuple[Values, Values]  # eta and lam

# The precision of an observed value. A power of two, so that `value * POINT / POINT` is exact; large
# enough that nothing can be added to it in float32 or float64, small enough that values up to 1e14 fit.
POINT = 2.0**80


@runtime_checkable
class Jacobian(Protocol):
    """What a family asks of the Jacobian `J` of a factor group (`factors.operators.Operator`)."""

    def back(self, r: Values) -> Values:
        """`J' r`."""
        ...

    def squared(self) -> Any:
        """The operator whose entries are the squares."""
        ...

    def each(self) -> Values:
        """`J` edge by edge."""
        ...


@runtime_checkable
class EdgeSet(Protocol):
    """What a family asks of an edge set (`edges.base.Edges`)."""

    def spread(self, x: Values) -> Values:
        """From units to edges."""
        ...

    def pool(self, e: Values) -> Values:
        """From edges to units."""
        ...


class Family(abc.ABC):
    """One family. There is one object of each, and all of a class are equal."""

    scalar: ClassVar[bool]  # whether units are numbers

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return type(self).__name__

    # Shapes

    @abc.abstractmethod
    def unit_shape(self, shape: Shape) -> Shape:
        """The units of a variable, as an array."""

    @abc.abstractmethod
    def dim(self, shape: Shape) -> int:
        """Numbers in a unit."""

    @abc.abstractmethod
    def trail(self, shape: Shape) -> Shape:
        """The axes within a unit: `shape = unit_shape + trail`."""

    @abc.abstractmethod
    def lam_shape(self, shape: Shape) -> Shape:
        """The shape of the precisions."""

    @abc.abstractmethod
    def over_values(self, each: Any) -> Any:
        """One number or truth value a unit, to broadcast against values."""

    @abc.abstractmethod
    def over_precisions(self, each: Any) -> Any:
        """One number or truth value a unit, to broadcast against precisions."""

    @abc.abstractmethod
    def as_vectors(self, x: Values) -> Values:
        """Values as vectors `unit_shape + (d,)`."""

    @abc.abstractmethod
    def from_vectors(self, x: Values) -> Values:
        """Values of vectors `unit_shape + (d,)`."""

    @abc.abstractmethod
    def as_matrices(self, lam: Values) -> Values:
        """Precisions as matrices `unit_shape + (d, d)`."""

    @abc.abstractmethod
    def pairs(self, root: Values) -> Values:
        """`root_i root_j` of the numbers of each unit, in the shape of `lam`."""

    @abc.abstractmethod
    def one(self, shape: Shape, dtype: Any) -> Values:
        """Precisions of 1, in the shape of `lam`."""

    @abc.abstractmethod
    def from_matrices(self, lam: Values) -> Values:
        """Precisions from matrices `unit_shape + (d, d)`."""

    @abc.abstractmethod
    def take(self, eta: Values, lam: Values, index: Any) -> Natural:
        """Some of the units."""

    # Moments

    @abc.abstractmethod
    def proper(self, lam: Values) -> Values:
        """Which units can be normalised."""

    @abc.abstractmethod
    def all_proper(self, lam: Values) -> bool:
        """Whether all can. Outside of compiled code."""

    @abc.abstractmethod
    def sound(self, lam: np.ndarray) -> bool:
        """Whether no precision is negative (finite ones, in double precision). Outside of compiled code."""

    @abc.abstractmethod
    def mean(self, eta: Values, lam: Values) -> Values:
        """`lam^-1 eta`; zero where, or along which, nothing is known."""

    def some_mean(self, eta: Values, lam: Values) -> Values:
        """The mean; where, or along which, nothing is known, any number. Easier to compute than `mean`."""
        return self.mean(eta, lam)

    @abc.abstractmethod
    def mean_or(self, eta: Values, lam: Values, start: Values, proper: bool) -> Values:
        """The mean, or the start where, or along which, nothing is known."""

    def any_mean(self, eta: Values, lam: Values, start: Values, proper: bool) -> Values:
        """As `mean_or`, but any number along directions of which nothing is known. Easier to compute."""
        return self.mean_or(eta, lam, start, proper)

    @abc.abstractmethod
    def variance(self, lam: Values) -> Values:
        """Marginal variances; infinite where nothing is known."""

    @abc.abstractmethod
    def covariances(self, lam: Values) -> Values:
        """Covariance matrices `unit_shape + (d, d)`; infinite on the diagonal where nothing is known."""

    @abc.abstractmethod
    def precisions(self, lam: Values) -> Values:
        """One a number: those of a vector if its other numbers were known."""

    @abc.abstractmethod
    def log_determinant(self, lam: Values) -> Values:
        """`log |lam|` of each unit."""

    @abc.abstractmethod
    def information(self, lam: Values, x: Values) -> Values:
        """`lam x`."""

    @abc.abstractmethod
    def quadratic(self, lam: Values, x: Values) -> Values:
        """`x' lam x` of each unit."""

    @abc.abstractmethod
    def log_density(self, lam: Values, d: Values) -> Values:
        """`(log |lam / 2π| - d' lam d) / 2` of each unit, at `d` from the mean."""

    @abc.abstractmethod
    def sample(self, eta: Values, lam: Values, noise: Values) -> Values:
        """Draws from standard normal numbers, which may have more leading axes. All units are proper."""

    @abc.abstractmethod
    def kl(self, one: Natural, other: Natural) -> Values:
        """`KL(one || other)` of each unit."""

    # At a visit

    @abc.abstractmethod
    def variance_along(self, lam: Values, operator: Jacobian, edges: EdgeSet, proper: bool) -> Values:
        """`J v J'` of factors with one measurement `(F | 1, 1)`."""

    @abc.abstractmethod
    def absorb(self, mean: Values, operator: Jacobian, edges: EdgeSet, gain: Values, share: Values) -> Natural:
        """The product of the messages of factors with one measurement into each unit.

        With `gain = 1 / S` and `share = R / S` of each factor `(F, 1)`: `lam = sum J' gain J` and
        `eta = sum J' share + lam mean`.
        """

    def covariance_along(self, lam: Values, operator: Jacobian, edges: EdgeSet) -> Values:
        """`J v J'` of factors with any number of measurements `(F | 1, M, M)`."""
        j, covariance = operator.each(), edges.spread(self.covariances(lam))
        f = max(j.shape[0], covariance.shape[0])
        j, covariance = (jnp.broadcast_to(a, (f, *a.shape[1:])) for a in (j, covariance))
        return jnp.einsum("fnad,fnde,fnbe->fab", j, covariance, j)

    # Limits of the number format

    def observed(self, lam: Values) -> Values:
        """Which units are observed."""
        return self.largest(lam) >= POINT / 2

    @abc.abstractmethod
    def largest(self, lam: Values) -> Values:
        """The largest of `precisions` of each unit."""

    @abc.abstractmethod
    def lifted(self, lam: Values, full: Values, share: float) -> Values:
        """Precisions that are not positive, raised by that share of `full`, which is."""

    @abc.abstractmethod
    def rounding_error(self, eta: Values, lam: Values, parts: Sequence[Natural]) -> Values:
        """How far rounding may have moved the product of these parts, in standard deviations, of the worst unit.

        Units of which nothing is known, and observed ones, do not count.
        """

    @abc.abstractmethod
    def made_proper(self, now: Natural, prior: Natural, parts: Sequence[Natural]) -> tuple[Natural, Values]:
        """A belief whose prior is proper, and so must it be, however rounding has left it.

        **Returns:** it, and whether any unit had to be mended.
        """


def traced(x: Any) -> bool:
    """Whether it is an array of a function that JAX is tracing."""
    return isinstance(x, Tracer)


def compute(function: Callable[..., Any], *arrays: Any) -> Any:
    """A function of `numpy` or `jax.numpy` and of arrays.

    Graphs are built outside of compiled code, where JAX would compile every operation for itself: NumPy need not.
    """
    if any(traced(a) for a in arrays):
        return function(jnp, *arrays)
    with np.errstate(all="ignore"):
        # (`jnp.asarray` compiles a copy for each new shape.)
        return jax.tree.map(jax.device_put, function(np, *(np.asarray(a) for a in arrays)))


def compute_alike(function: Callable[..., Any], *arrays: Any) -> Any:
    """`compute`, by NumPy from beginning to end where all arrays are NumPy's."""
    if not all(isinstance(a, np.ndarray) for a in arrays):
        return compute(function, *arrays)
    with np.errstate(all="ignore"):
        return function(np, *arrays)
