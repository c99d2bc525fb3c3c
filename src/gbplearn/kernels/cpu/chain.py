"""Several visits in one call, piece by piece (image by image). See `chain.cc`."""

from __future__ import annotations

from jax import Array

from ...engine.options import Options
from ...graph.problem import Problem
from ..registry import Chain, Place, kernel_for
from .calls import Argument, Attribute, KernelCall, call_ffi, size, sizes
from .visits import MATRIX_POOLED, TILE_MAX

# As `chain.cc` numbers them.
_KERNELS = {"gbplearn_matrix_pooled": 0, "gbplearn_tile_max": 1}
# Threads share the pieces out: with few of them visits one by one keep more threads busy.
_FEWEST_PIECES = 8


def _shared(problem: Problem, options: Options, g: int) -> str | None:
    """The variable through which a visit can follow another, piece by piece: outputs of a matrix, inputs of tiles."""
    kernel, slots = kernel_for(problem.local(g), options.of(g)), problem.groups[g].slots
    if kernel == MATRIX_POOLED and len(slots) == 3:
        return slots[-1].variable
    return slots[0].variable if kernel == TILE_MAX else None


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

    Kernels write messages in place. So a recorded call returns the arrays that it will change, and a later visit, which
    names the same `Place`, reads what stands there by then.
    """

    def __init__(self, pieces: int):
        self._attributes: dict[str, Attribute] = {"pieces": size(pieces)}
        self._arrays: list[Array] = []
        self._known: dict[Place, int] = {}  # which of the arrays is at a place
        self._written: list[Place] = []
        self._visits = 0

    def _index(self, argument: Argument) -> int:
        """The number of an argument among the arrays; one that is at a place is there once."""
        known = None if argument.place is None else self._known.get(argument.place)
        if known is not None:
            return known
        self._arrays.append(argument.array)
        if argument.place is not None:
            self._known[argument.place] = len(self._arrays) - 1
        return len(self._arrays) - 1

    def call(self, call: KernelCall) -> dict[str, Array]:
        """Record a call. **Returns:** the arrays that it will write in, as they are before the chain has run."""
        if call.reported:
            raise ValueError(f"a visit in a chain writes in place alone: {call.kernel} reports {list(call.reported)}")
        given = {name: self._index(argument) for name, argument in call.arguments.items()}
        written = []
        for name in call.replaced:
            place = call.arguments[name].place
            if place is None:
                raise ValueError(f"{call.kernel}: {name} takes the place of nothing that a state has")
            if place not in self._written:
                self._written.append(place)
            written.append(self._written.index(place))
        # The first argument of the call is another one, see below.
        own = {"kernel": size(_KERNELS[call.kernel]), "arguments": sizes([i + 1 for i in given.values()])}
        own |= {"results": sizes(written), **call.attributes}
        self._attributes |= {f"visit{self._visits}_{name}": value for name, value in own.items()}
        self._visits += 1
        return {name: self._arrays[given[name]] for name in call.replaced}

    def __len__(self) -> int:
        return self._visits

    def run(self, made: Array) -> dict[Place, Array]:
        """Make the visits, those for which `made` is true. **Returns:** what was written, by its place in the state."""
        before = [self._known[place] for place in self._written]
        shapes = [self._arrays[i].shape for i in before]
        aliases = {i + 1: result for result, i in enumerate(before)}
        found = call_ffi("gbplearn_chain", self._attributes, [made, *self._arrays], shapes, aliases)
        return dict(zip(self._written, found))
