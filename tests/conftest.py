"""Every shape annotation of the package is checked while the tests run."""

import contextlib
import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile

# The oracles solve many small systems: more than one BLAS thread a test process makes them wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jaxtyping import install_import_hook

with install_import_hook("gbplearn", "beartype.beartype"):
    importlib.import_module("gbplearn")  # what is imported first under the hook stays checked

import hypothesis
import jax
import pytest

# Most of the time goes into compiling. Graphs whose functions are written anew (lambdas, closures) are new programs to
# JAX, but often the same one to XLA: a cache on disk, new and its own for each test process, compiles it once.
COMPILED = tempfile.mkdtemp(prefix="gbplearn-tests-")
jax.config.update("jax_compilation_cache_dir", COMPILED)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


# The older of XLA's two code generators, and no splitting of a program for several threads: both together take less
# than a third of the time, and half of the memory mappings.
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def compile_quickly():
    """For this process, those of its workers and what they start; before XLA's first call, which reads it once.

    Flags come and go with versions of XLA, and one that it does not know ends the process: another one tries them.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if QUICK in given:
        return
    flags = {"XLA_FLAGS": f"{QUICK} {given}"}
    trial = [sys.executable, "-c", "import jaxlib.xla_client as client; client.make_cpu_client()"]
    if subprocess.run(trial, env=os.environ | flags, capture_output=True).returncode == 0:
        os.environ.update(flags)


def pytest_configure(config):
    # Programs that run for a second are not worth much optimisation. `make test-all` compiles all of them as users do.
    quick = config.option.markexpr == "not slow"
    jax.config.update("jax_disable_most_optimizations", quick)
    if quick:
        compile_quickly()


def pytest_unconfigure():
    shutil.rmtree(COMPILED, ignore_errors=True)


# A program takes about ten memory mappings and 2 MB, and a process may have 65,530: beyond, the compiler crashes. What
# was traced is many objects, too: to go through all of them again and again takes longer than what is freed is worth.
_MOST_MAPPINGS = 20_000
gc.set_threshold(50_000, 50, 50)


@pytest.fixture(autouse=True, scope="module")
def _few_programs():
    yield
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        if sum(1 for _ in file) > _MOST_MAPPINGS:
            jax.clear_caches()
            gc.collect()


hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50, database=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture
def optimised():
    """For tests with programs that run for long."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def x64():
    """Float64 for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
