"""The compiled library of kernels: loaded, checked and registered with XLA. `hatch_build.py` compiles it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import jax
import jaxlib.version

FOLDER = Path(__file__).parent
HANDLERS = (
    "gbplearn_matrix_pooled",
    "gbplearn_matrix_pooled_inputs",
    "gbplearn_matrix_edges",
    "gbplearn_tile_max",
    "gbplearn_slices",
    "gbplearn_many_outputs",
    "gbplearn_sensitivities",
    "gbplearn_chain",
)


class Build(enum.Enum):
    """Which build of the kernels is wanted. The values are those of `GBPLEARN_NATIVE`."""

    NONE = "0"  # XLA compiles every visit
    BEST = "1"  # the widest vectors that this processor has: the default
    WIDEST = "widest"  # for processors with AVX-512: sixteen numbers a vector
    WIDE = "wide"  # for processors with AVX2: eight
    BASIC = "basic"  # for every processor


class KernelState(enum.Enum):
    """Whether kernels are used, and if not, why; the values are the sentences a user reads."""

    WIDEST = "on, in the build for processors with AVX-512"
    WIDE = "on, in the build for processors with AVX2"
    BASIC = "on, in the build for every processor"
    TURNED_OFF = "off: GBPLEARN_NATIVE=0, or gbp.native.using, turns them off"
    OTHER_DEVICE = "off: they are for the CPU, and JAX computes on another device"
    NOT_WIDE = "off: the build for wide vectors that is wanted is not there or cannot run here"
    NOT_BUILT = "off: they were not built, for want of a C++ compiler on Linux when the package was installed"
    OTHER_SOURCES = "off: they were built of other sources: install the package again"
    NOT_LOADED = "off: the system cannot load the library"
    REFUSED = "off: XLA refuses them; this jaxlib is older, or much newer, than those the package supports"

    def __str__(self) -> str:
        return self.value


class _Variant(NamedTuple):
    """One of the libraries that the same sources are built as."""

    file: str
    lanes: int  # numbers in a vector that the processor must have, as `gbplearn_lanes` counts them
    state: KernelState


# From the widest vectors on: the first that can run is the best.
_VARIANTS = {
    Build.WIDEST: _Variant("kernels_widest.so", 16, KernelState.WIDEST),
    Build.WIDE: _Variant("kernels_wide.so", 8, KernelState.WIDE),
    Build.BASIC: _Variant("kernels.so", 0, KernelState.BASIC),
}
BUILD_OF = {variant.state: build for build, variant in _VARIANTS.items()}


@dataclasses.dataclass(frozen=True)
class KernelStatus:
    """What `gbp.native.status()` returns; `str` of it is a sentence.

    - `state`: whether they are on, and if not, why.
    - `detail`: what else is known, such as the error of the system; may be empty.
    """

    state: KernelState
    detail: str = ""

    @property
    def on(self) -> bool:
        """Whether visits use them."""
        return self.state in BUILD_OF

    def __str__(self) -> str:
        return f"native kernels are {self.state}" + (f" ({self.detail})" if self.detail else "")


class Opened(NamedTuple):
    """A library, and which build it is: the name of its targets ends with it."""

    build: Build
    handlers: ctypes.CDLL


class _OtherSources(Exception):
    """The library does not belong to the sources beside it."""


def stamp(folder: Path) -> str:
    """Of the sources in a folder, as `hatch_build.py` compiles it in."""
    sources = sorted([*folder.glob("*.cc"), *folder.rglob("*.h")])
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


def _target(name: str, build: Build) -> str:
    """The name of a handler for XLA. Each build has its own: all may be registered, and no program mistakes them."""
    return f"{name}_{build.value}"


def register_handlers(opened: Opened) -> None:
    """Make the handlers known to XLA, which raises if it does not take one."""
    for name in HANDLERS:
        handler = jax.ffi.pycapsule(getattr(opened.handlers, name))
        jax.ffi.register_ffi_target(_target(name, opened.build), handler, platform="cpu")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class Library:
    """The kernels that were built in a folder, beside their sources; each build is loaded when first asked for.

    **Arguments:** `register`: makes the handlers of a library that was loaded known to XLA.
    """

    def __init__(self, folder: Path, register: Callable[[Opened], None] = register_handlers):
        self.folder, self.register = folder, register
        self._one_at_a_time = threading.Lock()
        self._loaded: dict[Build, KernelStatus] = {}

    def _open(self, path: Path) -> ctypes.CDLL:
        library = ctypes.CDLL(str(path))
        library.gbplearn_stamp.restype = ctypes.c_char_p
        if library.gbplearn_stamp().decode() != stamp(self.folder):
            raise _OtherSources(path.name)
        return library

    def _variant(self, build: Build, lanes: int) -> Build | None:
        """The build that is wanted, or the best, if it is there and a processor with vectors of `lanes` can run it."""
        for found, variant in _VARIANTS.items():
            if build in (found, Build.BEST) and lanes >= variant.lanes and (self.folder / variant.file).exists():
                return found
        return None

    def _load(self, build: Build) -> KernelStatus:
        """Register a build of the kernels with JAX, whatever it computes on."""
        try:
            path = self.folder / _VARIANTS[Build.BASIC].file
            if not path.exists():
                return KernelStatus(KernelState.NOT_BUILT)
            basic = self._open(path)  # which runs on every processor, and knows what this one has
            found = self._variant(build, basic.gbplearn_lanes())
            if found is None:
                return KernelStatus(KernelState.NOT_WIDE)
            opened = Opened(found, basic if found is Build.BASIC else self._open(self.folder / _VARIANTS[found].file))
        except _OtherSources as error:
            return KernelStatus(KernelState.OTHER_SOURCES, str(error))
        except (OSError, AttributeError) as error:  # no library of this system, or none of ours
            return KernelStatus(KernelState.NOT_LOADED, _first_line(error))
        # What is registered before the backend has started, XLA checks when it starts: a handler that it refuses would
        # keep JAX from starting at all.
        try:
            jax.local_devices(backend="cpu")
        except RuntimeError as error:
            return KernelStatus(KernelState.OTHER_DEVICE, _first_line(error))
        try:
            self.register(opened)
        except Exception as error:  # of a kind that depends on the version of JAX: there is always the other way
            return KernelStatus(KernelState.REFUSED, f"jaxlib {jaxlib.version.__version__}: {_first_line(error)}")
        return KernelStatus(_VARIANTS[found].state)

    def loaded(self, build: Build = Build.BEST) -> KernelStatus:
        """Whether a build can be used on a CPU, and if not, why."""
        with self._one_at_a_time:
            if build not in self._loaded:
                self._loaded[build] = self._load(build)
            return self._loaded[build]

    def status(self, build: Build | None = None) -> KernelStatus:
        """Whether visits use them here, and if not, why; of the build that is wanted, or of another."""
        build = wanted() if build is None else build
        if build is Build.NONE:
            return KernelStatus(KernelState.TURNED_OFF)
        device = jax.default_backend()
        return self.loaded(build) if device == "cpu" else KernelStatus(KernelState.OTHER_DEVICE, device)


INSTALLED = Library(FOLDER)


_within: Build | None = None  # the build of the innermost `using`
_pinned: ContextVar[Build | None] = ContextVar("build of a program", default=None)  # that is being traced


@contextlib.contextmanager
def pinned(build: Build) -> Iterator[None]:
    """A context in which the program that is traced wants this build, whatever `using` or the environment say."""
    before = _pinned.set(build)
    try:
        yield
    finally:
        _pinned.reset(before)


def wanted() -> Build:
    """The build that is wanted: by a program, by `using`, by `GBPLEARN_NATIVE`, else the best."""
    of_program = _pinned.get()
    if of_program is not None:
        return of_program
    if _within is not None:
        return _within
    given = os.environ.get("GBPLEARN_NATIVE", "") or Build.BEST.value
    try:
        return Build(given.lower())
    except ValueError:
        known = ", ".join(build.value for build in Build)
        raise ValueError(f"GBPLEARN_NATIVE must be one of {known}, got {given!r}") from None


def _choose(build: Build | None) -> KernelStatus:
    """Set `_within`, and drop what was compiled with another build."""
    global _within
    before, _within = status(), build
    after = status()
    if after != before:
        jax.clear_caches()
    return after


@contextlib.contextmanager
def using(build: Build) -> Iterator[KernelStatus]:
    """Use this build of the kernels within a `with` block, in all threads of the process.

    JAX keeps compiled programs by function and arguments, and does not know of this choice. Where it makes a
    difference, all programs are dropped on the way in and on the way out: they are compiled again when needed. A
    program that is called while another thread enters or leaves such a block is of either build.

    ```python
    with gbp.native.using(gbp.native.Build.BASIC):
        gbp.infer(graph)
    ```

    **Raises:** `RuntimeError` if there is no such build here, or none can be used.
    """
    before = _within
    try:
        found = _choose(build)
        if build is not Build.NONE and not found.on:
            raise RuntimeError(str(found))
        yield found
    finally:
        _choose(before)


def built() -> bool:
    """Whether the kernels were compiled with the package, and XLA takes them."""
    return INSTALLED.loaded().on


def status() -> KernelStatus:
    """Whether visits use the kernels here, and if not, why.

    ```python
    print(gbp.native.status())  # such as: native kernels are on, in the build for processors with AVX2
    ```
    """
    return INSTALLED.status()


def status_of(build: Build) -> KernelStatus:
    """Whether visits would use the kernels if this build were wanted, and if not, why."""
    return INSTALLED.status(build)


def available() -> bool:
    """Whether visits may use them here: built, on CPU, and not turned off. `status()` says more."""
    return status().on


def target(name: str) -> str:
    """By which name XLA knows a handler of the build that is in use."""
    found = status()
    if not found.on:
        raise RuntimeError(str(found))
    return _target(name, BUILD_OF[found.state])
