"""Warm start: inference on a batch begins with messages of the batch before, such as the last frame of a video."""

from __future__ import annotations

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
from ..engine.state import Messages
from ..layers.layer import Transform
from .places import Place

LayerMessages = dict[str, tuple[Messages, ...]]  # by name of the factor group: its messages, slot by slot
_PARTS = ("eta", "lam")


def layer_messages(result: Result, groups: Sequence[str]) -> LayerMessages:
    """The messages of some factor groups, by name."""
    found = dict(zip((group.name for group in result.problem.groups), result.state.messages))
    return {name: found[name] for name in groups}


def check_warm_layers(places: Sequence[Place], parameters: Iterable[str], names: Iterable[str]) -> None:
    """A `ValueError` if a name is not that of a layer without parameters: only these may be warm-started."""
    learnt = {name.rpartition("/")[0] for name in parameters}
    allowed = [s.name for s in places if isinstance(s.layer, Transform) and s.name not in learnt]
    for name in names:
        if name not in allowed:
            raise ValueError(f"carry: '{name}' is no layer without parameters (those are: {', '.join(allowed)})")


def write_messages(path: Path, by_group: Mapping[str, tuple[Messages, ...]]) -> None:
    """Write messages as arrays to a file (`numpy.savez`), which appears whole or not at all."""
    arrays = {}
    for group, slots in by_group.items():
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
    """Read the file of `write_messages`. Nothing in it is executed."""
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
