"""Every shape annotation of the package is checked while the tests run."""

import importlib
import os

# The oracles solve many small systems: more than one BLAS thread a test process makes them wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from jaxtyping import install_import_hook

with install_import_hook("gbplearn", "beartype.beartype"):
    importlib.import_module("gbplearn")  # what is imported first under the hook stays checked

import hypothesis
import jax
import pytest

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50, database=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture
def x64():
    """Float64 for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
