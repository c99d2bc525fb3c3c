"""`gbp.Program`: the structure of a factor graph, compiled once; its numbers are `gbp.Data`.

    program = gbp.compile(graph)        groups, edge sets, which of them are pooled, names and shapes
    begin(program, data, ...)           the numbers put in their places, and a state without messages: one compiled call

What follows from the numbers alone, such as the windows of observed images or where a forward pass starts the
activations, is computed there too, once for all iterations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..core.compiling import lean_jit
from ..core.tracing import refuse_jit
from ..graph.data import Data
from ..graph.graph import FactorGraph
from ..graph.problem import Problem, Structure
from ..kernels.registry import Choice, Plan, chosen, kernel_for, pinned, plan_of
from .diagnostics import Diagnostics, no_diagnostics
from .moves import scheduled
from .options import Options, check_schedule
from .resume import Earlier, resumed
from .schedules import Schedule
from .state import State, empty_state


@dataclasses.dataclass(frozen=True)
class Program:
    """The structure of a graph: hashable, without any numbers. `gbp.compile` makes it.

    - `structure`: groups and edge sets.
    - `names`: the names of all variables, with the name under which each is inferred (tied ones have one).
    - `blocks`: those of them that are vector variables.
    - `by_kind`: of each variable, "activation" or "parameter".
    - `dtype`: of all messages.
    - `kernels`: which native kernels it is compiled with; `plans` says which of them visits which group.
    - `schedule`: in which order groups are visited, where `gbp.infer` and `gbp.solve` are given none.
    - `derive`: completes data with numbers that follow from others of them; hashable, None for nothing.
    """

    structure: Structure
    names: tuple[tuple[str, str], ...]
    blocks: frozenset[str]
    by_kind: tuple[tuple[str, str], ...]
    dtype: Any
    kernels: Choice
    derive: Callable[[Data], Data] | None = None
    schedule: Schedule | None = None

    def __repr__(self) -> str:
        groups = self.structure.problem.groups
        return (
            f"Program ({self.dtype}; groups: {', '.join(g.name for g in groups)}; {sum(g.edges for g in groups)} edges)"
        )

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each variable."""
        return dict(self.by_kind)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the factor groups."""
        return tuple(g.name for g in self.structure.problem.groups)

    @property
    def plans(self) -> dict[str, str | None]:
        """Of each factor group the native kernel that visits it; None where XLA compiles its visits.

        They follow from structure and `kernels`, and so does the hash. Dropout, and linearisation elsewhere than at the
        means of each visit, are left to XLA in any case.
        """
        names = (None if plan.kernel is None else plan.kernel.name for plan in _plans_of_program(self))
        return dict(zip(self.groups, names, strict=True))

    def problem(self, data: Data) -> Problem:
        """The graph with these numbers. To be called inside of compiled code."""
        return self.structure.with_data(data if self.derive is None else self.derive(data))


def compile(
    graph: FactorGraph,
    *,
    evidence: Mapping[str, Any] | None = None,
    messages: str = "auto",
    schedule: Schedule | None = None,
) -> Program:
    """The structure of a graph, laid out once. `graph.data()` has its numbers.

    ```python
    program = gbp.compile(graph)
    beliefs = gbp.solve(program, graph.data())
    result = gbp.infer(program, data=graph.data())
    ```

    **Arguments:**

    - `evidence`: as `gbp.infer`. What is observed wholly, in part, or held at a belief, belongs to the structure; the
        values are data.
    - `messages`: "per-edge", "pooled" or "auto", as `gbp.infer`.
    - `schedule`: as `gbp.infer`; another one may be given there.
    """
    refuse_jit("gbp.compile")
    check_schedule(schedule)
    return dataclasses.replace(graph.with_structure(program_of, evidence, messages)[0], schedule=schedule)


def program_of(graph: FactorGraph, problem: Problem, derive: Callable[[Data], Data] | None = None) -> Program:
    """The program of a graph that has been laid out as this problem."""
    names = tuple((name, graph.canonical(name)) for name in graph.variables)
    blocks = frozenset(name for name, v in graph.variables.items() if not v.family.scalar)
    return Program(Structure(problem), names, blocks, tuple(graph.kinds.items()), graph.dtype, chosen(), derive)


def kernels_of_now() -> Choice:
    """The kernels that a program would be compiled with now."""
    return chosen()


class Begun(NamedTuple):
    """What inference begins with."""

    problem: Problem  # with all that is known once for all iterations
    state: State
    latest: Diagnostics  # before the first visit
    measurements: Array  # of each group, how many there are; those of no weight do not count


def _begin(
    program: Program, data: Data, options: Options, key: Array, keep_points: bool, was: Earlier | None = None
) -> Begun:
    """The numbers put in their places, and a state in which no message has been sent yet; or an earlier one."""
    problem = with_kernels(program.problem(data).with_known(), options, program.kernels)
    counts = [g.measurements() for g in problem.groups]
    state = empty_state(problem, key, keep_points)
    state = scheduled(problem, state if was is None else resumed(problem, state, was), options, key)
    return Begun(problem, state, no_diagnostics(problem), jnp.stack(counts) if counts else jnp.zeros(0))


begin = lean_jit(_begin, wanted=(), static=(0, 4))


def prepared(problem: Problem, options: Options) -> Problem:
    """A problem as `begin` makes it: for callers that have one, and that time its visits."""
    return _prepared(problem, options, chosen())


@partial(jax.jit, static_argnums=2)
def _prepared(problem: Problem, options: Options, choice: Choice) -> Problem:
    return with_kernels(problem.with_known(), options, choice)


def with_kernels(known: Problem, options: Options, choice: Choice) -> Problem:
    """The problem with a plan for each group, and whether kernels send most of the messages (`native`)."""
    with pinned(choice):
        planned = dataclasses.replace(known, plans=_plans_of(known), kernels=choice)
    sent = {g: planned.groups[g].edges for g in planned.active()}
    native = sum(e for g, e in sent.items() if kernel_for(planned.local(g), options.of(g)) is not None)
    return dataclasses.replace(planned, native=2 * native > sum(sent.values()))


def _plans_of(known: Problem) -> tuple[Plan, ...]:
    return tuple(plan_of(known.local(g)) for g in range(len(known.groups)))


@lru_cache(maxsize=64)
def _plans_of_program(program: Program) -> tuple[Plan, ...]:
    """Of each group. Decided by structure alone, so that shapes are enough."""
    found: list[Plan] = []

    def make(problem: Problem) -> None:
        with pinned(program.kernels):
            found.extend(_plans_of(problem.with_known()))

    jax.eval_shape(make, program.structure.problem)
    return tuple(found)
