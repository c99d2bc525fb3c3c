"""How far long work is: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_PERIOD = 60.0  # seconds


def progress(items: Sequence[T], label: str) -> Iterator[T]:
    """Go through `items` and say how far on stderr."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=label)
        return
    begin = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - last >= _PERIOD:
            last = now
            print(f"{label}: {done} of {len(items)}, {now - begin:.0f} s", file=sys.stderr, flush=True)
        yield item
