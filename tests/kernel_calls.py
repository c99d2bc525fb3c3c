"""Calls of native handlers as visits make them: shapes and attributes, no numbers. Nothing is compiled for them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.loop import iterate
from gbplearn.engine.options import make_options
from gbplearn.engine.state import empty_state
from gbplearn.engine.undiagnosed import iterate_undiagnosed
from gbplearn.kernels.cpu import calls


@dataclasses.dataclass(frozen=True)
class FfiCall:
    """A call of a handler, as `jax.ffi.ffi_call` makes it.

    **Arguments:** `replaced`: of each result the number of the argument in whose place it is, None if it has its own.
    """

    target: str
    attributes: dict[str, Any]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    replaced: tuple[int | None, ...]

    @property
    def kernel(self) -> str:
        """The name of the handler, without that of the build."""
        return self.target.rsplit("_", 1)[0]

    def run(self, numbers: np.random.Generator) -> list[np.ndarray]:
        """The results for random arguments: numbers in (0.2, 0.8), truths."""
        aliases = {argument: i for i, argument in enumerate(self.replaced) if argument is not None}

        def program(*arrays: jax.Array) -> list[jax.Array]:
            made = jax.ffi.ffi_call(self.target, list(self.results), input_output_aliases=aliases)
            return list(made(*arrays, **self.attributes))

        drawn = [numbers.uniform(0.2, 0.8, a.shape) for a in self.arguments]
        arrays = [x > 0.4 if a.dtype == bool else x.astype(a.dtype) for x, a in zip(drawn, self.arguments)]
        return [np.asarray(a) for a in jax.jit(program)(*arrays)]


@contextlib.contextmanager
def recorded() -> Iterator[list[FfiCall]]:
    """The calls of all programs that are traced within a `with` block."""
    out, original = [], jax.ffi.ffi_call

    def record(target: str, results: Any, input_output_aliases: dict[int, int]) -> Any:
        made = original(target, results, input_output_aliases=input_output_aliases)

        def call(*arrays: Any, **attributes: Any) -> Any:
            by_result = {result: argument for argument, result in input_output_aliases.items()}
            shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
            replaced = tuple(by_result.get(i) for i in range(len(results)))
            out.append(FfiCall(target, dict(attributes), shapes, tuple(results), replaced))
            return made(*arrays, **attributes)

        return call

    jax.ffi.ffi_call = record
    try:
        yield out
    finally:
        jax.ffi.ffi_call = original


def calls_of(graph: gbp.FactorGraph, messages: str) -> list[FfiCall]:
    """Those of an iteration with diagnostics, and of one without."""
    problem = graph.problem(None, messages)
    options = make_options(graph, problem, 0.3, 0.0, gbp.Order(*graph.factors), 1)
    state = empty_state(problem, jax.random.PRNGKey(0), False)

    def both(problem: Any, state: Any) -> Any:
        known = problem.with_known()
        diagnosed = iterate(known, state, options, no_diagnostics(known))
        return diagnosed, iterate_undiagnosed(known, state, options, jnp.asarray(2, jnp.int32))

    with recorded() as found:
        jax.eval_shape(both, problem, state)
    return found


def calls_of_windows(images: int, places: int, units: int, outputs: int, numbers: int) -> list[FfiCall]:
    """Those of a joint update with a layer of windows."""
    n = images * places
    shapes = (n, numbers), (n, units), (outputs, images, places, units)
    with recorded() as out:
        jax.eval_shape(calls.sensitivities, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    return out
