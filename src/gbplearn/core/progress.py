"""How far long work is: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_PERIOD = 60.0  # seconds


def progress(
    items: Iterable[T], label: str, *, status: Callable[[], str] | None = None, period: float = _PERIOD
) -> Iterator[T]:
    """Go through `items` and report progress on stderr.

    **Arguments:**

    - `status`: more to report, such as what was reached so far.
    - `period`: seconds from line to line where there is no terminal.
    """
    tqdm = _tqdm() if sys.stderr.isatty() else None
    if tqdm is not None:
        bar = tqdm(items, desc=label)
        for item in bar:
            yield item
            if status is not None:
                bar.set_postfix_str(status())
        return
    begin = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - last >= period:
            last = now
            words = [f"{label}: {done}{_of(items)}", f"{now - begin:.0f} s", "" if status is None else status()]
            print(", ".join(filter(None, words)), file=sys.stderr, flush=True)
        yield item


def _of(items: Any) -> str:
    try:
        return f" of {len(items)}"
    except TypeError:  # unknown; a data loader of a stream has a `__len__` that raises this
        return ""


def _tqdm() -> Any:
    """Which `gbplearn` alone does not install."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
