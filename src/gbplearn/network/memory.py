"""Estimates how much memory inference on a network takes, before anything is allocated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ..factors.measurement import FactorKind
from ..factors.operators import Shape
from ..graph.group import MODES, is_pooled
from .places import INPUT, Place
from .summary import factors_of

# Arrays of floats that a visit holds at a time besides the messages: measured on compiled programs
# (docs/concepts/messages.md).
_PER_EDGE, _PER_FACTOR = 8, 16


def network_memory(
    places: Sequence[Place], shapes: Mapping[str, Shape], batch: int, inputs_fixed: bool
) -> Mapping[str, int]:
    """Bytes for a batch of so many examples, by how messages are kept (float32).

    Messages are counted exactly: two numbers each, twice, since a loop holds its old and its new state. Temporary
    arrays are counted as a multiple, which was measured, of the size of the largest group.
    """
    groups = [f for factors in factors_of(places, shapes, batch) for f in factors]
    out = {}
    for mode in MODES:
        state, largest = 0, 0
        for factor in groups:
            assert factor.layout is not None
            edges = 0
            for e, view in zip(factor.layout.edges, factor.views):
                if inputs_fixed and view.variable.name == INPUT:
                    continue
                if is_pooled(mode, factor, e):
                    state += 2 * e.units + factor.factors  # a reaction for each: one too many where they share it
                else:
                    edges += factor.factors * e.row
                    state += 2 * e.units + (0 if e.dense else 2 * factor.factors * e.row)
            size = factor.factors * (factor.outputs if factor.outputs > 1 else 1)
            kept = factor.h.copies(*(v.variable.shape for v in factor.views)) if isinstance(factor.h, FactorKind) else 0
            largest = max(largest, _PER_EDGE * edges + _PER_FACTOR * size + kept)
        out[mode] = 4 * (2 * state + largest)
    return MappingProxyType(out)


def available_memory() -> int | None:
    """Bytes this process may use: the machine's memory, or the limit of its container; None if unknown."""
    limits = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits) if limits else None


def check_memory(need: int, what: str) -> None:
    """Raise a `MemoryError` if the machine does not have as much."""
    have = available_memory()
    if have is not None and need > have:
        raise MemoryError(
            f"{what} needs about {need / 1e9:.1f} GB, this machine has {have / 1e9:.1f} GB: use a smaller batch"
        )
