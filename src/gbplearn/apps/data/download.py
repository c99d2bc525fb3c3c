"""Where data sets are, and downloads of them from their public addresses, checked by hash."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path

from ...core.files import cache_folder, make_folder
from .known_files import KNOWN

_TIMEOUT = 30  # seconds without an answer


def data_folder(folder: str | Path | None, name: str) -> Path:
    """Where data sets are: `folder`, or `$GBPLEARN_DATA`, or the user's cache folder."""
    if folder is None:
        folder = os.environ.get("GBPLEARN_DATA") or None
    if folder is None:
        return cache_folder() / "data"
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder (the one that {name} is in, or is to be downloaded to)")
    return folder


def download(name: str, folder: Path) -> None:
    """Fetch the files of a data set that are not in `folder` yet; whole and right, or not at all.

    A `ValueError` says which files to put there by hand if that fails.
    """
    files = KNOWN[name].downloads
    missing = [file for file in files if not (folder / file).exists()]
    ask = f"put {', '.join(missing)} into {folder}"
    if importlib.util.find_spec("pooch") is None:
        raise ValueError(f'{name} is not there: {ask}, or pip install "gbplearn[data]" to have it downloaded')
    make_folder(folder)
    for file in missing:
        reasons = [_fetch(address, files[file].md5, folder, file) for address in files[file].addresses]
        if all(reasons):
            raise ValueError(f"{name} is not there and cannot be downloaded ({reasons[-1]}): {ask}")


def _fetch(address: str, md5: str, folder: Path, file: str) -> str:
    """Empty if the file is there now; else what went wrong."""
    if (folder / file).exists():
        return ""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    print(f"downloading {address}", file=sys.stderr)
    fetcher = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=_TIMEOUT)
    try:
        pooch.retrieve(address, f"md5:{md5}", fname=file, path=folder, downloader=fetcher)  # pyright: ignore[reportArgumentType]
    except requests.RequestException as error:
        return f"{address}: {type(error).__name__}"
    except ValueError:
        return f"{address}: what came has another hash than the published file"
    return ""
