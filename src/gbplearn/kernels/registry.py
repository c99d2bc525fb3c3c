"""The registry of kernels: the only way between the engine and native code.

Each platform registers one set of kernels, and the engine takes the set of the platform that JAX computes on. A group
that no kernel fits is visited by the update that XLA compiles, with the same results.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax import Array

# How a kernel is called: at once, or recorded by a `Chain` to be called with others.
Call = Callable[..., list[Array]]


class KernelDiagnostics(NamedTuple):
    """Diagnostics that a kernel computes in the course of a visit, for `engine.diagnostics`."""

    changes: dict[str, Array]  # of some variables of the group, how far the undamped messages move their beliefs
    priors: dict[str, Array]  # of some variables, the energy of the prior
    energy: Array  # of the factors
    switched: Array | float = 0.0  # the share of robust factors with a scale below 1


class KernelVisit(NamedTuple):
    """A visit by a kernel: the messages of each slot (`engine.state.Messages`), and the undamped ones on the units."""

    messages: list[Any]
    proposed: list[Any]
    diagnostics: KernelDiagnostics | None  # None where none were wanted


# `(problem, state, options, group, diagnose, call)`; `call` is None to call at once.
VisitKernel = Callable[[Any, Any, Any, int, bool, Call | None], KernelVisit]


class Chain(abc.ABC):
    """Visits that are recorded, to be made in one call."""

    @abc.abstractmethod
    def call(self, *args: Any, **more: Any) -> list[Array]:
        """In the place of a kernel's call: record it."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many are recorded."""

    @abc.abstractmethod
    def run(self, made: Array) -> list[tuple[Array, Array]]:
        """Make the visits, those for which `made` is not 0. **Returns:** what was written, before and after."""


class Kernels(abc.ABC):
    """The kernels of one platform. Arguments are those of the engine: `Problem`, `Options`, numbers of groups."""

    @abc.abstractmethod
    def visit_kernel(self, problem: Any, options: Any, group: int) -> VisitKernel | None:
        """The kernel that visits a group, None if there is none for it."""

    @abc.abstractmethod
    def common_pieces(self, problem: Any, options: Any, visits: tuple[int, ...]) -> int:
        """In how many pieces these groups can be visited in one call; 0: not at all."""

    @abc.abstractmethod
    def chain(self, pieces: int) -> Chain:
        """An empty chain of visits."""

    @abc.abstractmethod
    def many_outputs(
        self, edges: Sequence[Any], residual: Array, covariance: Array, scale: Array | None
    ) -> list[tuple[Array, Array]] | None:
        """`eta` and `lam` of each edge set of factors with several measurements; None if no kernel fits."""


class NoKernels(Kernels):
    """The kernels of a platform that has none."""

    def visit_kernel(self, problem: Any, options: Any, group: int) -> None:
        """None."""

    def common_pieces(self, problem: Any, options: Any, visits: tuple[int, ...]) -> int:
        """Not at all."""
        return 0

    def chain(self, pieces: int) -> Chain:
        """Never called: `common_pieces` is 0."""
        raise TypeError("this platform has no kernels to chain")

    def many_outputs(self, edges: Sequence[Any], residual: Array, covariance: Array, scale: Array | None) -> None:
        """None."""


_registered: dict[str, Kernels] = {}


def register(platform: str, kernels: Kernels) -> None:
    """Make the kernels of a platform ("cpu", "gpu", "tpu") known to the engine."""
    _registered[platform] = kernels


_off: ContextVar[bool] = ContextVar("kernels are off", default=False)


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """What is traced meanwhile has no kernels in it: JAX can neither differentiate a call of one, nor map over it."""
    before = _off.set(True)
    try:
        yield
    finally:
        _off.reset(before)


def kernels() -> Kernels:
    """The kernels of the platform that JAX computes on."""
    return NoKernels() if _off.get() else _registered.get(jax.default_backend()) or NoKernels()
