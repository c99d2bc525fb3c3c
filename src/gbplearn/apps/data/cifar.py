"""The formats of CIFAR10: binary, and Python pickles, which are read without being executed; in a folder or a tar file.

A batch holds 10,000 images of 32 x 32 x 3. In the binary format a record is a byte for the class and 3,072 for the
image, channel after channel. In the Python format a dictionary holds `data` (10,000 x 3,072 bytes) and `labels`.
"""

from __future__ import annotations

import pickletools
import tarfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from .known_files import CIFAR_FILES, check_content

_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE**2
_CLASSES = 10
Batch = tuple[np.ndarray, np.ndarray]

_BINARY, _PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
_ARCHIVES = {
    "cifar-10-binary.tar.gz": (_BINARY, ".bin"),
    "cifar-10-python.tar.gz": (_PYTHON, ""),
}


def find_cifar(folder: Path) -> list[Batch] | None:
    """The six batches (five of training, one of test) of the first format that `folder` holds; None if there is none.

    A file that is missing from a format that is there, or is damaged, is refused by name.
    """
    for inner, ending in ((_BINARY, ".bin"), (_PYTHON, "")):
        for place in (folder / inner, folder):
            if any((place / f"{file}{ending}").is_file() for file in CIFAR_FILES):
                return _read(partial(_from_folder, place), ending)
    for archive, (inner, ending) in _ARCHIVES.items():
        if (folder / archive).is_file():
            return _from_archive(folder / archive, inner, ending)
    return None


def _read(find: Callable[[str], tuple[Path, bytes]], ending: str) -> list[Batch]:
    batches = []
    for file in CIFAR_FILES:
        path, raw = find(f"{file}{ending}")
        batch = read_binary(raw, path) if ending else read_python(raw, path)
        check_content(raw, "cifar10", f"{file}{ending}", path)
        batches.append(batch)
    return batches


def _from_folder(folder: Path, file: str) -> tuple[Path, bytes]:
    path = folder / file
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file, though others of CIFAR10 are there")
    return path, path.read_bytes()


def _from_archive(path: Path, inner: str, ending: str) -> list[Batch]:
    """Members are read in memory: nothing is unpacked."""

    def member(archive: tarfile.TarFile, file: str) -> tuple[Path, bytes]:
        try:
            found = archive.extractfile(f"{inner}/{file}")
        except KeyError:
            found = None
        if found is None:
            raise ValueError(f"{path}: there is no {inner}/{file} in it")
        return path / inner / file, found.read()

    try:
        with tarfile.open(path) as archive:
            return _read(lambda file: member(archive, file), ending)
    except PermissionError:
        raise
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        raise ValueError(f"{path}: the archive is damaged") from None


def read_binary(raw: bytes, path: Path) -> Batch:
    """Images `(n, 32, 32, 3)` of bytes and their classes `(n,)`."""
    if not raw or len(raw) % (1 + _PIXELS):
        raise ValueError(f"{path}: {len(raw)} bytes are no whole number of records of {1 + _PIXELS}")
    records = np.frombuffer(raw, np.uint8).reshape(-1, 1 + _PIXELS)
    return _batch(records[:, 1:], records[:, 0].astype(int), path)


def read_python(raw: bytes, path: Path) -> Batch:
    """The same from a pickle, whose opcodes are read, and none of them executed."""
    pixels, labels, wanted = b"", [], False
    try:
        for op, value, _ in pickletools.genops(raw):
            if isinstance(value, str | bytes):
                text = value if isinstance(value, bytes) else value.encode("latin-1", "replace")
                # The list after the key "labels" lasts until the next text.
                pixels, wanted = max(pixels, text, key=len), text == b"labels"
            elif wanted and op.name.startswith("BININT"):
                labels.append(value)
    except ValueError:
        raise ValueError(f"{path}: it is cut off, or no pickle") from None
    if len(pixels) != len(labels) * _PIXELS or not labels:
        raise ValueError(f"{path}: {len(pixels)} bytes of images and {len(labels)} labels do not fit")
    return _batch(np.frombuffer(pixels, np.uint8).reshape(-1, _PIXELS), np.array(labels), path)


def _batch(pixels: np.ndarray, labels: np.ndarray, path: Path) -> Batch:
    if labels.max() >= _CLASSES:
        raise ValueError(f"{path}: class {labels.max()} where 0 ... {_CLASSES - 1} belong")
    images = pixels.reshape(-1, _CHANNELS, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels
