"""Output files appear whole or not at all; where files of the user's are kept."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

# How the names of what is being written begin and end.
PARTIAL = ".gbplearn-", ".partial"
_OTHERS = 0o007
_GROUP = 0o070
_SPECIAL = 0o7000  # runs as its owner, and the like
_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}


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


def target_of(path: Path) -> Path:
    """The file that a name stands for, links followed; it need not be there yet.

    Raises an `OSError` of one line if something else than a file is there.
    """
    existing(path)
    return Path(os.path.realpath(path))


def existing(path: Path) -> os.stat_result | None:
    """Of the file, links followed; None if there is none yet."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "thing of another kind")
        error = IsADirectoryError if stat.S_ISDIR(found.st_mode) else OSError
        raise error(f"cannot write {path}: it is a {kind}, not a file")
    return found


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file under a temporary name, then rename it into place.

    What was written is on the disk before it gets its name, so that whenever the process (or the machine) is stopped,
    the old file is there or the new one. Of several writers to one name the last one to finish wins.

    A link stays a link: the file that it stands for is replaced. The new file has the permissions, and where that is
    allowed the owner, of the old one. Nothing but a file is replaced: an `OSError` says what is there instead.
    """
    old, target = existing(path), target_of(path)
    partial, handle, mode = _open_partial(target, old)
    try:
        with open(handle, "wb") as file:
            write(file)
            file.flush()
            _set_mode(handle, mode if old is None else _take_owner(handle, old))
            os.fsync(handle)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _open_partial(target: Path, old: os.stat_result | None) -> tuple[Path, int, int]:
    """A new file beside the target that only this user can read, its handle, and the mode that a new file has here."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    while True:
        partial = target.with_name(secrets.token_hex(8).join(PARTIAL))
        try:
            # To ask for the umask would be to change it, for all threads: the system applies it here.
            handle = os.open(partial, flags, 0o666 if old is None else 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(target)) from None
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        _set_mode(handle, 0o600)
        return partial, handle, mode


def _set_mode(handle: int, mode: int) -> None:
    """As far as the file system has permissions."""
    with contextlib.suppress(OSError):
        os.fchmod(handle, mode)


def _take_owner(handle: int, old: os.stat_result) -> int:
    """Give a file the owner and group of another one, as far as this user may.

    **Returns:** the permissions that it is to have: whoever could not read the other one may not read it.
    """
    mode, new = stat.S_IMODE(old.st_mode), os.fstat(handle)
    if (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
        return mode
    with contextlib.suppress(OSError):
        os.fchown(handle, old.st_uid, old.st_gid)
        return mode
    mode &= ~_SPECIAL
    with contextlib.suppress(OSError):
        os.fchown(handle, -1, old.st_gid)
        return mode
    return mode & ~_GROUP | (mode & _OTHERS) << 3
