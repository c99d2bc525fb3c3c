"""The kernels for CPUs, as the registry takes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from jax import Array

from ...engine.options import Options
from ...engine.update import Edge
from ...graph.problem import Problem
from ..registry import Kernels
from .calls import many_outputs, sensitivities
from .chain import CpuChain, common_pieces
from .library import BUILD_OF, Build, pinned, status


class CpuKernels(Kernels):
    """One C++ file a kernel, compiled with the package; see `library.py`."""

    def build(self) -> str:
        """That of `native.status()`."""
        found = BUILD_OF.get(status().state)
        return "" if found is None else found.value

    def pinned(self, build: str) -> AbstractContextManager[None]:
        """See `library.pinned`."""
        return pinned(Build(build) if build else Build.NONE)

    def common_pieces(self, problem: Problem, options: Options, visits: tuple[int, ...]) -> int:
        """The images of a batch."""
        return common_pieces(problem, options, visits)

    def chain(self, pieces: int) -> CpuChain:
        """By `chain.cc`."""
        return CpuChain(pieces)

    def many_outputs(
        self, edges: Sequence[Edge], residual: Array, covariance: Array, scale: Array | None
    ) -> list[tuple[Array, Array]] | None:
        """By `many_outputs.cc`."""
        return many_outputs(edges, residual, covariance, scale)

    def sensitivities(self, rows: Array, slope: Array, down: Array) -> tuple[Array, Array] | None:
        """By `sensitivities.cc`."""
        return sensitivities(rows, slope, down)
