"""Messages that a batch hands on to the next, such as those between the activations of two frames of a video."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..core.files import write_whole
from ..core.gaussian import Gaussian
from ..engine.result import Result
from ..engine.state import Messages, State, empty_state
from ..graph.graph import FactorGraph
from ..layers.layer import Transform
from .places import Place

LayerMessages = dict[str, tuple[Messages, ...]]  # of each slot of a factor group, by its name
_PARTS = ("eta", "lam")


def layer_messages(result: Result, groups: Sequence[str]) -> LayerMessages:
    """The messages of some factor groups, by name."""
    found = dict(zip((group.name for group in result.problem.groups), result.state.messages))
    return {name: found[name] for name in groups}


def check_warm_layers(places: Sequence[Place], parameters: Iterable[str], names: Iterable[str]) -> None:
    """A `ValueError` names what is no layer without parameters."""
    learnt = {name.rpartition("/")[0] for name in parameters}
    quiet = [s.name for s in places if isinstance(s.layer, Transform) and s.name not in learnt]
    for name in names:
        if name not in quiet:
            raise ValueError(f"carry: '{name}' is no layer without parameters (those are: {', '.join(quiet)})")


def warm_state(
    graph: FactorGraph, *, carried: Mapping[str, tuple[Messages, ...]] | None, messages: str, seed: int
) -> State | None:
    """A state in which no message has been sent yet, but for those of some factor groups.

    These should have no parameters, which have what the last batch said in their prior already, and must not hear it
    twice. None if there are no messages to begin with.
    """
    if not carried:
        return None
    problem = graph.problem(None, messages)
    state = empty_state(problem, jax.random.PRNGKey(seed), False)
    known = [group.name in carried for group in problem.groups]
    rows = (carried.get(group.name, fresh) for group, fresh in zip(problem.groups, state.messages))
    visits = jnp.asarray(np.array(known, np.int32))  # the first message of an edge would be taken whole
    return dataclasses.replace(state, messages=tuple(rows), visits=visits)


def write_messages(path: Path, carried: Mapping[str, tuple[Messages, ...]]) -> None:
    """As arrays in a file (`numpy.savez`), which appears whole or not at all."""
    arrays = {}
    for group, slots in carried.items():
        for number, messages in enumerate(slots):
            for kept, found in (("each", messages.each), ("pooled", messages.summed)):
                if found is not None:
                    arrays |= {f"{group}|{number}|{kept}|{part}": np.asarray(getattr(found, part)) for part in _PARTS}
            if messages.reaction is not None:
                arrays[f"{group}|{number}|reaction|"] = np.asarray(messages.reaction)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_whole(path, lambda file: file.write(buffer.getvalue()))


def read_messages(path: Path) -> LayerMessages:
    """What `write_messages` wrote. Nothing in the file is executed."""
    slots: dict[str, dict[int, dict[str, jax.Array]]] = {}
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as held:
            for key in held.files:
                group, number, kind, part = key.split("|")
                slots.setdefault(group, {}).setdefault(int(number), {})[kind + part] = jnp.asarray(held[key])
        return {g: tuple(_messages(found[n]) for n in range(len(found))) for g, found in slots.items()}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _messages(found: Mapping[str, jax.Array]) -> Messages:
    each, pooled = (
        Gaussian(found[f"{kind}eta"], found[f"{kind}lam"]) if f"{kind}eta" in found else None
        for kind in ("each", "pooled")
    )
    return Messages(each, pooled, found.get("reaction"))
