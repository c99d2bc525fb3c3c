"""The container of a checkpoint: a safetensors file with a checksum, and its checks.

The file begins with the length of its header (8 bytes, little-endian), then the header (JSON): name, type, shape and
place of every tensor, and under `__metadata__` two strings, `gbplearn` (JSON again) and `sha256`, of the whole file
with these 64 characters taken for zeros. The numbers follow. Functions here raise a `ValueError` for what is wrong.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..factors.operators import Shape
from .values import is_whole

_LARGEST_HEADER = 10_000_000  # bytes
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_LITTLE_ENDIAN = {"F32": "<f4", "F64": "<f8"}


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a tensor must be."""

    dtypes: tuple[str, ...]
    shape: Shape
    least: float = -math.inf  # its numbers are finite, and not smaller
    most: float = math.inf  # or larger than these


def sealed(data: bytes) -> bytes:
    """The file with its digest in place."""
    start = _digest_place(data[: 8 + _header_length(data)])
    return data[:start] + _digest(data, start).encode() + data[start + 64 :]


def _digest_place(head: bytes) -> int:
    # In a JSON string quotation marks are escaped: no other value can match this.
    found = [m.start(1) for m in _DIGEST.finditer(head)]
    if len(found) != 1:
        raise ValueError("it has no checksum: no checkpoint of gbplearn")
    return found[0]


def _digest(data: bytes, start: int) -> str:
    view = memoryview(data)
    found = hashlib.sha256(view[:start])
    found.update(b"0" * 64)
    found.update(view[start + 64 :])
    return found.hexdigest()


def _header_length(data: bytes) -> int:
    if len(data) < 10:
        raise ValueError(f"{len(data)} bytes are no safetensors file")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(len(data) - 8, _LARGEST_HEADER):
        raise ValueError(f"it is cut off, or no safetensors file: {length:,} bytes of header in {len(data):,}")
    return length


def _json(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        found = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the header is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("the header is not a JSON object")
    return found


def unsealed(data: bytes) -> tuple[dict[str, Any], dict[str, Any], memoryview]:
    """The facts under `gbplearn`, the header's entries of the tensors, and their bytes; the checksum fits."""
    length = _header_length(data)
    head = data[: 8 + length]
    entries = _json(str(head[8:], "utf-8"))
    metadata = entries.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.keys() != {"gbplearn", "sha256"}:
        raise ValueError("a safetensors file, but no checkpoint of gbplearn")
    start = _digest_place(head)
    if _digest(data, start) != str(head[start : start + 64], "ascii"):
        raise ValueError("it is damaged: the checksum does not fit")
    return _json(metadata["gbplearn"]), entries, memoryview(data)[8 + length :]


def check_names(given: Mapping[str, Any], expected: tuple[str, ...], what: str) -> None:
    """Raise unless the names are those expected."""
    wrong = sorted(given.keys() ^ set(expected))
    if wrong:
        raise ValueError(f"{what}: {wrong[0]!r} {'is missing' if wrong[0] in expected else 'does not belong there'}")


def as_dict(value: Any, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object")
    return value


def as_list(value: Any, what: str) -> list[Any]:
    """A JSON list."""
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list")
    return value


def as_shape(value: Any, what: str) -> Shape:
    """A list of whole numbers >= 0, as a tuple."""
    if not all(is_whole(n) and n >= 0 for n in as_list(value, what)):
        raise ValueError(f"{what} must be whole numbers, got {value!r}")
    return tuple(value)


def read_tensors(
    entries: Mapping[str, Any], body: memoryview, expected: Mapping[str, Expected]
) -> dict[str, np.ndarray]:
    """The tensors, views of the file: all that are expected and no others, side by side."""
    check_names(entries, tuple(expected), "tensors")
    places = []
    for name, must in expected.items():
        entry = as_dict(entries[name], name)
        check_names(entry, ("dtype", "shape", "data_offsets"), name)
        dtype, shape = entry["dtype"], as_shape(entry["shape"], name)
        if dtype not in must.dtypes or shape != must.shape:
            raise ValueError(f"{name} is {dtype} {list(shape)}, must be {' or '.join(must.dtypes)} {list(must.shape)}")
        place = as_shape(entry["data_offsets"], f"{name}: data_offsets")
        if len(place) != 2 or place[1] - place[0] != math.prod(shape) * np.dtype(_LITTLE_ENDIAN[dtype]).itemsize:
            raise ValueError(f"{name}: bytes {list(place)} cannot be {list(shape)} numbers {dtype}")
        places.append(place)
    ends = [0, *(end for _, end in sorted(places))]
    if [begin for begin, _ in sorted(places)] != ends[:-1] or ends[-1] != len(body):
        raise ValueError("the tensors do not lie side by side")
    out = {}
    for name, must in expected.items():
        begin, end = entries[name]["data_offsets"]
        out[name] = np.frombuffer(body[begin:end], _LITTLE_ENDIAN[entries[name]["dtype"]]).reshape(must.shape)
        sound = (must.least <= out[name]) & (out[name] <= must.most)
        if not (np.isfinite(out[name]) & sound).all():
            raise ValueError(f"{name} is no proper belief: its numbers are not finite, too small or too large")
    return out
