"""The IDX format of MNIST and FashionMNIST: a magic number, the sizes of the axes, bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from .known_files import check_content


def read_idx(path: Path, name: str, file: str) -> np.ndarray:
    """An array of bytes from the IDX file `file` of the data set `name`, gzipped or not.

    A `ValueError` names a file that is damaged or another one.
    """
    raw = path.read_bytes()
    try:
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error):
        raise ValueError(f"{path}: the gzipped file is damaged") from None
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 4 or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path}: not an IDX file of bytes")
    axes = data[3]
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    if len(data) != 4 + 4 * axes + math.prod(shape):
        raise ValueError(f"{path}: {len(data) - 4 - 4 * axes} bytes of data where {math.prod(shape)} belong")
    check_content(data, name, file, path)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)
