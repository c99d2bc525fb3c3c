"""The registry of kernels: the only way between the engine and native code.

Kernels for visits are registered one by one: for a platform, a type of numbers and a form of factors. When a program is
compiled a *plan* is made for each of its groups, once: the first kernel of the platform that fits, or none. The plan is
part of what is compiled. A visit carries its plan out; a group without a kernel is visited by the update that XLA
compiles, with the same results.

Beside them each platform registers what all of its kernels share (`Kernels`): which build of them is used, and how
several visits are made in one call.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax import Array

# How a kernel is called: at once, or recorded by a `Chain` to be called with others. It takes what a platform has for a
# call, such as `cpu.calls.KernelCall`, and returns the results by name.
Call = Callable[[Any], dict[str, Array]]


class Part(enum.Enum):
    """An array among the messages of a slot."""

    ETA = "eta"
    LAM = "lam"
    REACTION = "reaction"


class Place(NamedTuple):
    """Which array of a state it is: of the messages on the units that a slot of a group sends."""

    group: int
    slot: int
    part: Part


class KernelDiagnostics(NamedTuple):
    """Diagnostics that a kernel computes in the course of a visit, for `engine.visit_diagnostics`."""

    changes: dict[str, Array]  # of some variables of the group, how far the undamped messages move their beliefs
    priors: dict[str, Array]  # of some variables, the energy of the prior
    energy: Array  # of the factors
    switched: Array | float = 0.0  # the share of robust factors with a scale below 1


class KernelVisit(NamedTuple):
    """A visit by a kernel: the messages of each slot (`engine.state.Messages`), and the undamped ones on the units."""

    messages: list[Any]
    proposed: list[Any]
    diagnostics: KernelDiagnostics | None  # None where none were wanted


@dataclasses.dataclass(frozen=True)
class VisitKernel:
    """A kernel that visits groups. Arguments are those of the engine: `LocalGroup`s and the like.

    - `name`: as users read it.
    - `platform`: "cpu", "gpu", "tpu".
    - `dtype`: of all of its arrays.
    - `form`: of the factors, a class of `forms.py`; None for those that are linearised once for all.
    - `fits`: whether it can visit a group whose factors have this form, by structure alone.
    - `visit`: `(local group, inbox, own, options, diagnose, call)` as `engine.visit`; `call` is None to call at once.
    """

    name: str
    platform: str
    dtype: Any
    form: type | None
    fits: Callable[[Any], bool]
    visit: Callable[[Any, Any, Any, Any, bool, Call | None], KernelVisit]

    def __repr__(self) -> str:
        return f"{self.name} ({self.platform})"


class Plan(NamedTuple):
    """How a group is visited: by a kernel, or None for the update that XLA compiles. Hashable."""

    kernel: VisitKernel | None


class Chain(abc.ABC):
    """Visits that are recorded, to be made in one call."""

    @abc.abstractmethod
    def call(self, call: Any) -> dict[str, Array]:
        """In the place of a kernel's call: record it. **Returns:** its results as they are before the chain has run."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many are recorded."""

    @abc.abstractmethod
    def run(self, made: Array) -> dict[Place, Array]:
        """Make the visits, those for which `made` is true. **Returns:** what was written, by its place in the state."""


class Kernels(abc.ABC):
    """The kernels of one platform. Arguments are those of the engine: `LocalGroup`s, `Options` and the like."""

    @abc.abstractmethod
    def build(self) -> str:
        """The name of the build of the kernels that is used now; empty if none is."""

    @abc.abstractmethod
    def pinned(self, build: str) -> contextlib.AbstractContextManager[Any]:
        """A context in which this build is used, whatever else is wanted; empty: none."""

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

    @abc.abstractmethod
    def sensitivities(self, rows: Array, slope: Array, down: Array) -> tuple[Array, Array] | None:
        """How outputs move with the weights of windows, and the squares of `down`; None if no kernel fits.

        **Arguments:** `rows (B N, p)`, `slope (B N, U)`, `down (C, B, N, U)`, of `B` images with `N` places each.

        **Returns:** `-sum_n down slope rows`, `(B, C, U, p)`, and `sum_nu down down'`, `(B, C, C)`.
        """


class NoKernels(Kernels):
    """The kernels of a platform that has none."""

    def build(self) -> str:
        """None."""
        return ""

    def pinned(self, build: str) -> contextlib.AbstractContextManager[Any]:
        """There is nothing to choose from."""
        return contextlib.nullcontext()

    def common_pieces(self, problem: Any, options: Any, visits: tuple[int, ...]) -> int:
        """Not at all."""
        return 0

    def chain(self, pieces: int) -> Chain:
        """Never called: `common_pieces` is 0."""
        raise TypeError("this platform has no kernels to chain")

    def many_outputs(self, edges: Sequence[Any], residual: Array, covariance: Array, scale: Array | None) -> None:
        """None."""

    def sensitivities(self, rows: Array, slope: Array, down: Array) -> None:
        """None."""


_registered: dict[str, Kernels] = {}
_visits: list[VisitKernel] = []


def register(platform: str, kernels: Kernels) -> None:
    """Make what the kernels of a platform ("cpu", "gpu", "tpu") share known to the engine."""
    _registered[platform] = kernels


def register_visit(kernel: VisitKernel) -> None:
    """Make a kernel for visits known to the engine; of several that fit a group, the first is taken."""
    _visits.append(kernel)


def plan_of(local: Any) -> Plan:
    """How a group (`LocalGroup`) is visited with the kernels of now: by its structure alone."""
    choice = _pinned.get() or chosen()
    if choice.build and local.group.slots:
        form, dtypes = local.form(), {local.start[s.variable].dtype for s in local.group.slots}
        for kernel in _visits:
            suits = kernel.platform == choice.platform and dtypes == {kernel.dtype}
            if suits and isinstance(form, kernel.form or type(None)) and kernel.fits(local):
                return Plan(kernel)
    return Plan(None)


def kernel_for(local: Any, options: Any) -> VisitKernel | None:
    """The kernel that visits a group with these options (`LocalGroup`, `GroupOptions`), None if XLA compiles the visit.

    A problem that is part of no program has no plans: they are made on the spot.
    """
    if not options.for_kernels:
        return None
    return (local.plan or plan_of(local)).kernel


class Choice(NamedTuple):
    """Which kernels a program is compiled with: part of the program, so that nothing can change them under it."""

    platform: str
    build: str  # empty for none


NO_KERNELS = Choice("none", "")
_pinned: ContextVar[Choice | None] = ContextVar("kernels that are pinned", default=None)


def kernels() -> Kernels:
    """The kernels of the platform that JAX computes on, or of the choice that is pinned."""
    choice = _pinned.get()
    return _registered.get(jax.default_backend() if choice is None else choice.platform) or _NONE


_NONE = NoKernels()


def chosen() -> Choice:
    """The kernels that a program would be compiled with now: by the platform, the environment, and `native.using`."""
    build = kernels().build()
    return Choice(jax.default_backend(), build) if build else NO_KERNELS


@contextlib.contextmanager
def pinned(choice: Choice | None) -> Iterator[None]:
    """A context in which what is traced has these kernels in it; None: those of the context around it.

    `NO_KERNELS` is for what JAX differentiates or maps over: it can do neither with a call of native code.
    """
    if choice is None:
        yield
        return
    before = _pinned.set(choice)
    try:
        with kernels().pinned(choice.build):
            yield
    finally:
        _pinned.reset(before)


def without_kernels() -> contextlib._GeneratorContextManager[None]:
    """`pinned(NO_KERNELS)`; decorates functions, too."""
    return pinned(NO_KERNELS)
