"""One thread for BLAS and LAPACK while a batch is learnt from jointly.

The products of a joint update are too small for several threads: those that OpenBLAS starts wait busily between them,
so that an update takes as long, and twice the CPU time (`docs/decisions.md`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_within: list[Any] = []  # for each block that is entered now, in any thread, the limit that it set, or None


@functools.cache
def _libraries() -> ThreadpoolController:
    """Those of NumPy and SciPy, which are loaded with this package."""
    return ThreadpoolController()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which NumPy and SciPy compute on the calling thread alone; where several overlap, until all end."""
    with _lock:
        _within.append(None if _within else _libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            # The first one knows how many threads there were: it is the last to go.
            limit = _within.pop()
            if limit is not None:
                limit.restore_original_limits()
