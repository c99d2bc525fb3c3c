"""Experiments that take long: finished parts are kept, a file each. What is stopped goes on."""

from __future__ import annotations

import abc
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..report.record import settings_hash, write_json
from .experiment import Experiment, SeedRun


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


class InParts(Experiment):
    """An experiment that is resumed with `resume_seed`."""

    @abc.abstractmethod
    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Begin, or go on with what the folder holds of this seed."""

    def run_seed(self, seed: int) -> SeedRun:
        """Without keeping anything."""
        with tempfile.TemporaryDirectory() as folder:
            return self.resume_seed(seed, Path(folder))
