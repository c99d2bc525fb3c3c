"""Every shape annotation of the package is checked while the tests run."""

import importlib
import os
import shutil
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


def pytest_configure(config):
    # Programs that run for a second are not worth much optimisation. `make test-all` compiles all of them as users do.
    jax.config.update("jax_disable_most_optimizations", config.option.markexpr == "not slow")


def pytest_unconfigure():
    shutil.rmtree(COMPILED, ignore_errors=True)


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
