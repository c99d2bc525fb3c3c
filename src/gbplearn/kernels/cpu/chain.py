"""Several visits in one call, piece by piece (image by image). See `chain.cc`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ...engine.options import Options
from ...graph.problem import Problem
from ..registry import Chain
from .calls import call
from .visits import matrix_pooled, tile_max, visit_kernel

# As `chain.cc` numbers them.
_KERNELS = {"gbplearn_matrix_pooled": 0, "gbplearn_tile_max": 1}
# Threads share the pieces out: with few of them visits one by one keep more threads busy.
_FEWEST_PIECES = 8


def _shared(problem: Problem, options: Options, g: int) -> str | None:
    """The variable through which a visit can follow another, piece by piece: outputs of a matrix, inputs of tiles."""
    kernel, slots = visit_kernel(problem.local(g), options.of(g)), problem.groups[g].slots
    if kernel is matrix_pooled and len(slots) == 3:
        return slots[-1].variable
    return slots[0].variable if kernel is tile_max else None


def common_pieces(problem: Problem, options: Options, visits: tuple[int, ...]) -> int:
    """In how many pieces these groups can be visited in one call; 0: not at all.

    Their kernels go through the images of one variable. Whatever else is pooled, as parameters are, is read before the
    first image and written after the last: it may belong to one of the groups only.
    """
    name, *others = {_shared(problem, options, g) for g in visits}
    met = [s.variable for g in visits for s in problem.groups[g].slots if s.pooled]
    if name is None or others or len(set(met)) < len(met):
        return 0
    pieces = problem.prior[name].shape[0]
    return pieces if pieces >= _FEWEST_PIECES else 0


class CpuChain(Chain):
    """Visits that are recorded, to be made in one call.

    Kernels write messages in place. So a recorded call returns the arrays that it will change, and the next visit,
    which takes these as its arguments, reads what stands in them by then.
    """

    def __init__(self, pieces: int):
        self._pieces = pieces
        self._arrays: list[Array] = []
        self._written: list[int] = []
        self._steps: list[list[float]] = []

    def _place(self, array: Array) -> int:
        """The number of an array among all; by identity."""
        for i, known in enumerate(self._arrays):
            if known is array:
                return i
        self._arrays.append(array)
        return len(self._arrays) - 1

    def call(
        self, name: str, shapes: list[tuple[int, ...]], args: list[Array], aliases: dict[int, int], slope: float = 0.0
    ) -> list[Array]:
        """Record a call, with the arguments of `calls.call`."""
        assert len(aliases) == len(shapes), "every result takes the place of an argument"
        places = [self._place(a) for a in args]
        given = [argument for argument, _ in sorted(aliases.items(), key=lambda pair: pair[1])]
        self._written += [places[i] for i in given if places[i] not in self._written]
        results = [self._written.index(places[i]) for i in given]
        # The first two arguments of the call are others, see below.
        inputs = [i + 2 for i in places]
        self._steps.append([_KERNELS[name], slope, len(inputs), len(results), *inputs, *results])
        return [args[i] for i in given]

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, made: Array) -> list[tuple[Array, Array]]:
        """Make the visits, those for which `made` is not 0. **Returns:** what was written, before and after."""
        plan = [len(self._steps), self._pieces, *(x for step in self._steps for x in step)]
        args = [made.astype(jnp.float32), jnp.asarray(plan, jnp.float32), *self._arrays]
        before = [self._arrays[i] for i in self._written]
        aliases = {place + 2: i for i, place in enumerate(self._written)}
        return list(zip(before, call("gbplearn_chain", [a.shape for a in before], args, aliases)))
