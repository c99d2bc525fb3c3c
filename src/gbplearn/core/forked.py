"""A process that was forked after JAX had started: XLA's threads are not in it, and what needs them waits for ever."""

from __future__ import annotations

import os

try:
    # JAX has no public name for it; later versions may have another.
    from jax._src.xla_bridge import backends_are_initialized
except ImportError:
    backends_are_initialized = None

_used = False  # by us
_started = False  # when this process last forked another
_lost = False


def check_not_forked() -> None:
    """Raise if this process was forked after JAX had started; called before anything that would wait for ever then."""
    global _used
    if _lost:
        raise RuntimeError(
            "this process was forked after JAX had started, and JAX's threads are not in it: start worker processes "
            "with multiprocessing.get_context('spawn') or 'forkserver'"
        )
    _used = True


def _before_fork() -> None:
    global _started
    _started = _used if backends_are_initialized is None else backends_are_initialized()


def _after_fork() -> None:
    global _lost
    _lost = _lost or _started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
