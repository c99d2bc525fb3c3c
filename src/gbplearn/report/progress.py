"""How far long work is: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_PERIOD = 60.0  # seconds


@runtime_checkable
class Counted(Protocol[T_co]):
    """Things to go through, whose number is known."""

    def __len__(self) -> int:
        """How many."""
        ...

    def __iter__(self) -> Iterator[T_co]:
        """One after the other."""
        ...


def progress(
    items: Counted[T], label: str, *, tell: Callable[[], str] | None = None, period: float = _PERIOD
) -> Iterator[T]:
    """Go through `items` and say how far on stderr.

    **Arguments:**

    - `tell`: more to say, such as what was reached so far.
    - `period`: seconds from line to line where there is no terminal.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(items, desc=label)
        for item in bar:
            yield item
            if tell is not None:
                bar.set_postfix_str(tell())
        return
    begin = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - last >= period:
            last = now
            words = [f"{label}: {done} of {len(items)}", f"{now - begin:.0f} s", "" if tell is None else tell()]
            print(", ".join(filter(None, words)), file=sys.stderr, flush=True)
        yield item
