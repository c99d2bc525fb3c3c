"""`locked`: a decorator for methods of an object of which only one may run at a time, whatever the thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..core.forked import check_not_forked

Method = TypeVar("Method", bound=Callable[..., Any])


def locked(method: Method) -> Method:
    """A method that holds `self._lock`: of all such methods of an object one runs at a time.

    In a process that was forked after JAX had started it raises: a lock that another thread held then is never released
    there.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        check_not_forked()
        with self._lock:
            return method(self, *args, **options)

    return cast(Method, call)
