"""Whether kernels are on, and why not; and that kernels which XLA refuses do no harm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import jax
import pytest

import gbplearn as gbp
from gbplearn.apps.report.record import environment, how_it_was_run
from gbplearn.kernels.cpu.library import FOLDER, KernelState, Library, available, stamp, status

# Of the library: what is called before it registers anything, and one handler.
TOO_NEW = """
#include "xla/ffi/api/c_api.h"
extern "C" const char* gbplearn_stamp() { return GBPLEARN_STAMP; }
extern "C" int gbplearn_lanes() { return 0; }
extern "C" XLA_FFI_Error* gbplearn_matrix_pooled(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension != nullptr && extension->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Api_Version& version = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata->api_version;
    version.major_version = XLA_FFI_API_MAJOR;
    version.minor_version = XLA_FFI_API_MINOR + 1000;
  }
  return nullptr;
}
"""
AFTERWARDS = """
import sys
from pathlib import Path
from gbplearn.kernels.cpu.library import Library
library = Library(Path(sys.argv[1]))
assert not library.loaded().on
import jax.numpy as jnp
print(library.status().state.name, float(jnp.ones(3).sum()))
"""


@pytest.fixture(autouse=True)
def turned_on(monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "1")


def copied(folder):
    """The sources and the library for every processor."""
    if not (FOLDER / "kernels.so").exists():
        pytest.skip("the kernels were not built: there is no C++ compiler")
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("kernels_wide*.so", "*.py", "__pycache__"))
    return folder


def test_on_or_off():
    found = status()
    assert found.on is available()
    assert str(found).startswith("native kernels are " + ("on, " if found.on else "off: "))
    assert all(str(state).startswith(("on, ", "off: ")) for state in KernelState)


def test_off_because_the_user_says_so(monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "0")
    assert status() == gbp.native.KernelStatus(KernelState.TURNED_OFF)
    assert not available()


def test_off_on_other_devices(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert status().state is KernelState.OTHER_DEVICE
    assert "tpu" in str(status())
    assert not available()


def test_off_without_a_cpu(monkeypatch, tmp_path):
    library = Library(copied(tmp_path / "native"))

    def none(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", none)
    assert library.status().state is KernelState.OTHER_DEVICE
    assert not library.loaded().on


def test_off_because_there_is_no_library(tmp_path):
    assert Library(tmp_path).status() == gbp.native.KernelStatus(KernelState.NOT_BUILT)
    assert not Library(tmp_path).loaded().on


def test_off_because_it_is_no_library(tmp_path):
    (tmp_path / "kernels.so").write_bytes(b"this is no library")
    library = Library(tmp_path)
    assert library.status().state is KernelState.NOT_LOADED
    assert "kernels.so" in library.status().detail
    assert not library.loaded().on


def test_off_because_the_sources_are_others(tmp_path):
    folder = copied(tmp_path / "native")
    with (folder / "headers/xla/ffi/api/c_api.h").open("a") as file:
        file.write("// changed\n")
    library = Library(folder)
    assert library.status().state is KernelState.OTHER_SOURCES
    assert not library.loaded().on


def test_off_because_xla_refuses(tmp_path):
    def refuse(_):
        raise RuntimeError("INVALID_ARGUMENT: the handler's API version (0.9) is incompatible\nand so on")

    library = Library(copied(tmp_path / "native"), register=refuse)
    assert library.status().state is KernelState.REFUSED
    assert library.status().detail.endswith("(0.9) is incompatible")
    assert not library.loaded().on


def test_the_library_for_every_processor(tmp_path):
    library = Library(copied(tmp_path / "native"), register=lambda _: None)  # the other one has its names already
    assert library.status() == gbp.native.KernelStatus(KernelState.BASIC)
    assert library.loaded().on


def test_the_report_says_it(monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "0")
    where = environment(None)
    assert where["kernels"] == {"state": "TURNED_OFF", "sentence": str(status())}
    results = {"seconds": 1.0, "cpu_seconds": 1.0, "environment": where}
    assert str(status()) in how_it_was_run({}, results).text
    del where["kernels"]  # a record from before
    assert "kernels" not in how_it_was_run({}, results).text


def test_headers_are_those_of_the_oldest_jaxlib():
    """XLA refuses handlers of a newer version of its interface than its own; that of jaxlib 0.6 is 0.1."""
    text = (FOLDER / "headers/xla/ffi/api/c_api.h").read_text()
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR")]
    assert found == ["0", "1"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_jax_starts_although_xla_refuses_the_kernels(tmp_path):
    """They are registered by the first call of the process, before JAX has started."""
    headers, source = FOLDER / "headers", tmp_path / "too_new.cc"
    source.write_text(TOO_NEW)
    stamped = f'-DGBPLEARN_STAMP="{stamp(tmp_path)}"'
    out = str(tmp_path / "kernels.so")
    subprocess.run(["g++", "-fPIC", "-shared", stamped, "-isystem", str(headers), str(source), "-o", out], check=True)
    source_of_package = os.path.dirname(os.path.dirname(gbp.__file__))
    environment = os.environ | {"GBPLEARN_NATIVE": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": source_of_package}
    done = subprocess.run(
        [sys.executable, "-c", AFTERWARDS, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["REFUSED", "3.0"], done.stderr
