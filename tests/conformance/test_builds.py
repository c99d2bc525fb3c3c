"""Which build of the kernels is used is a choice, and `gbp.native.status()` knows it."""

from __future__ import annotations

import jax
import pytest

import gbplearn as gbp
from gbplearn.kernels.cpu.library import status_of, target
from gbplearn.native import Build, KernelState, status, using

STATES = {
    Build.NONE: KernelState.TURNED_OFF,
    Build.WIDEST: KernelState.WIDEST,
    Build.WIDE: KernelState.WIDE,
    Build.BASIC: KernelState.BASIC,
}
KERNELS = (Build.WIDEST, Build.WIDE, Build.BASIC)
needs_kernels = pytest.mark.skipif(
    not gbp.native.built(), reason="the kernels were not built: there is no C++ compiler"
)


@pytest.fixture(autouse=True)
def turned_on(monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "1")


def there(build):
    return status_of(build).state is not KernelState.NOT_WIDE


@needs_kernels
@pytest.mark.parametrize("build", STATES)
def test_the_environment_chooses(build, monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", build.value)
    assert status().state is (STATES[build] if there(build) else KernelState.NOT_WIDE)
    assert status().on is gbp.native.available()


@needs_kernels
def test_by_default_the_widest_that_runs_here(monkeypatch):
    widest = next(filter(there, KERNELS))
    for given in ("1", ""):
        monkeypatch.setenv("GBPLEARN_NATIVE", given)
        assert status() == status_of(widest)
    monkeypatch.delenv("GBPLEARN_NATIVE")
    assert status() == status_of(widest)


def test_a_choice_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv("GBPLEARN_NATIVE", "plain")
    with pytest.raises(ValueError, match=r"0, 1, widest, wide, basic, got 'plain'"):
        status()


@needs_kernels
def test_blocks_within_blocks():
    before = status()
    with using(Build.BASIC) as found:
        assert found == status() == status_of(Build.BASIC)
        with using(Build.NONE):
            assert status().state is KernelState.TURNED_OFF
        assert status() == found
        with pytest.raises(ZeroDivisionError), using(Build.NONE):
            raise ZeroDivisionError
        assert status() == found
    assert status() == before


@needs_kernels
def test_each_build_has_its_own_targets():
    names = set()
    for build in filter(there, KERNELS):
        with using(build):
            names.add(target("gbplearn_slices"))
            assert target("gbplearn_slices") == f"gbplearn_slices_{build.value}"
    assert len(names) == sum(map(there, KERNELS))
    with using(Build.NONE), pytest.raises(RuntimeError, match="off"):
        target("gbplearn_slices")


@needs_kernels
def test_a_build_that_cannot_be_used_is_not_replaced_by_another(monkeypatch):
    before = status()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(RuntimeError, match="another device"), using(Build.BASIC):
        pass
    monkeypatch.undo()
    assert status() == before


@needs_kernels
def test_programs_of_another_build_are_dropped():
    """A program is traced again where the build is another one, and only there."""
    traced = []

    @jax.jit
    def program(x):
        traced.append(status().state)
        return x

    with using(Build.BASIC):
        program(1.0)
        program(1.0)
        with using(Build.NONE):
            program(1.0)
        program(1.0)
        with using(Build.BASIC):
            program(1.0)
    assert traced == [KernelState.BASIC, KernelState.TURNED_OFF, KernelState.BASIC]
