"""The library that `hatch_build.py` compiles when the package is installed."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from pathlib import Path

import jax

FOLDER = Path(__file__).parent
HANDLERS = (
    "gbplearn_matrix_pooled",
    "gbplearn_matrix_pooled_inputs",
    "gbplearn_matrix_edges",
    "gbplearn_tile_max",
    "gbplearn_slices",
    "gbplearn_many_outputs",
    "gbplearn_chain",
)


def _stamp() -> str:
    """Of the sources, as `hatch_build.py` compiles it in."""
    sources = sorted([*FOLDER.glob("*.cc"), *FOLDER.glob("*.h")])
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.gbplearn_stamp.restype = ctypes.c_char_p
    if library.gbplearn_stamp().decode() != _stamp():
        raise ImportError(f"{path.name} was built of other sources: install the package again")
    return library


@functools.cache
def _load() -> str | None:
    """Register the kernels with JAX; if that fails, why."""
    try:
        basic = _open(FOLDER / "kernels.so")
        # Built twice: for every processor of the kind, and for those with wide vectors.
        wide = FOLDER / "kernels_wide.so"
        library = _open(wide) if basic.gbplearn_has_wide_vectors() and wide.exists() else basic
        for name in HANDLERS:
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    except Exception as error:  # an old library, another version of XLA: there is always the other way
        return f"{type(error).__name__}: {error}"
    return None


def built() -> bool:
    """Whether the kernels were compiled with the package, and can be loaded."""
    return _load() is None


def available() -> bool:
    """Whether visits may use them here: built, on CPU, and not turned off."""
    return os.environ.get("GBPLEARN_NATIVE", "1") != "0" and jax.default_backend() == "cpu" and built()
