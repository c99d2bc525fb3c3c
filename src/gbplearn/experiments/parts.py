"""Finished parts of a run that takes long, a file each: what is stopped goes on, what is finished stays so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..report.record import settings_hash, write_json


def check_same(path: Path, found: Any, settings: Mapping[str, Any]) -> None:
    """Refuse a file of a run with other settings."""
    if found != settings_hash(settings):
        raise ValueError(f"{path} is of a run with other settings: move it away, or choose another --out")


class Parts:
    """Parts of a run with these settings, in a folder.

    **Arguments:**

    - `folder`: where the files `NAME.json` are.
    - `settings`: all that the parts depend on; files of other settings are refused, by name.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        self.folder, self.settings = folder, settings

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def has(self, name: str) -> bool:
        """Whether it is finished."""
        return self._path(name).exists()

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a part that is finished."""
        write_json(self._path(name), {"settings": settings_hash(self.settings), **content})

    def read(self, name: str, *contents: str) -> dict[str, Any]:
        """What `write` wrote; these contents must be there."""
        path = self._path(name)
        try:
            held = json.loads(path.read_text())
            found = [held[content] for content in ("settings", *contents)]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} is damaged: delete it, and that part is run again") from None
        check_same(path, found[0], self.settings)
        return held

    def get(self, name: str, make: Callable[[], Mapping[str, Any]], *contents: str) -> dict[str, Any]:
        """Read a part, after it was made if it was not finished."""
        if not self.has(name):
            self.write(name, make())
        return self.read(name, *contents)
