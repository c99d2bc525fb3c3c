"""Output files appear whole or not at all; where files of the user's are kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cache_folder() -> Path:
    """`gbplearn` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gbplearn"


def make_folder(folder: Path) -> None:
    """Make a folder, if it is missing, and check that files can be written there.

    Raises an `OSError` that says what is in the way; better now than after the work is done.
    """
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise NotADirectoryError(f"{part} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise PermissionError(f"cannot write to the folder {folder}: {error.strerror}") from None


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file under a temporary name, then rename it into place.

    What was written is on the disk before it gets its name, so that whenever the process (or the machine) is stopped,
    the old file is there or the new one.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
