"""Handlers check what they are called with: how many arrays, of which type and shape, and which attributes.

Calls are those of real visits, with one thing wrong about each; the driver of `make sanitize` makes many more of them.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.kernels.cpu import calls
from gbplearn.kernels.cpu.calls import KernelCall
from gbplearn.kernels.cpu.library import HANDLERS, status_of
from gbplearn.native import Build, KernelState
from kernel_calls import FfiCall, calls_of, calls_of_windows

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
from table import CASES

BUILDS = {"widest": Build.WIDEST, "wide": Build.WIDE, "basic": Build.BASIC}
# Of each kernel a line of the conformance table with all that it can take.
LINES = {
    "gbplearn_matrix_pooled": ("dense, inputs known", "pooled"),
    "gbplearn_matrix_pooled_inputs": ("dense, linear", "pooled"),
    "gbplearn_matrix_edges": ("dense, linear", "per-edge"),
    "gbplearn_tile_max": ("max", "per-edge"),
    "gbplearn_slices": ("slices, robust, in part unknown", "per-edge"),
    "gbplearn_many_outputs": ("softmax", "per-edge"),
    "gbplearn_sensitivities": ("windows of a joint update", ""),  # no visit
    "gbplearn_chain": ("conv and max in one call", "pooled"),
}
INT32 = jnp.int32


@pytest.fixture(scope="module", params=BUILDS)
def build(request):
    """Where there is no such build, that is no fault."""
    found = status_of(BUILDS[request.param])
    if found.state in (KernelState.NOT_BUILT, KernelState.NOT_WIDE, KernelState.OTHER_DEVICE):
        pytest.skip(str(found))
    with gbp.native.using(BUILDS[request.param]):
        yield BUILDS[request.param]


@functools.cache
def calls_and_names(build: Build, kernel: str) -> tuple[FfiCall, tuple[str, ...]]:
    """The first call of a kernel, and what visits name its arguments; a chain names none but its own."""
    name, mode = LINES[kernel]
    named, original = [], calls.call_now

    def note(call: KernelCall) -> dict[str, jax.Array]:
        named.append((call.kernel, tuple(call.arguments)))
        return original(call)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("calls", "visits"):
            patch.setattr(f"gbplearn.kernels.cpu.{module}.call_now", note)
        found = calls_of(CASES[name].graph(), mode) if mode else calls_of_windows(3, 4, 2, 3, 5)
    names = dict(reversed(named)).get(kernel, ("made",))
    return next(call for call in found if call.kernel == kernel), names


def refusal(call: FfiCall) -> str:
    """What the handler says."""
    with pytest.raises(jax.errors.JaxRuntimeError) as found:
        call.run(np.random.default_rng(0))
    line = str(found.value)
    start = f"INVALID_ARGUMENT: {call.kernel}"
    assert line.startswith(start)
    assert "\n" not in line.split("; ")[0]
    return line[len(start) :]


def with_argument(call: FfiCall, i: int, shape=None, dtype=None) -> FfiCall:
    """The same with another array."""
    old = call.arguments[i]
    new = jax.ShapeDtypeStruct(old.shape if shape is None else shape, dtype or old.dtype)
    # What is no longer the same cannot be in its place.
    replaced = tuple(None if r == i else r for r in call.replaced)
    return dataclasses.replace(call, arguments=(*call.arguments[:i], new, *call.arguments[i + 1 :]), replaced=replaced)


def with_result(call: FfiCall, i: int, *new: jax.ShapeDtypeStruct) -> FfiCall:
    """The same with another result in the place of one, or without."""
    replaced = (*call.replaced[:i], *(None for _ in new), *call.replaced[i + 1 :])
    return dataclasses.replace(call, results=(*call.results[:i], *new, *call.results[i + 1 :]), replaced=replaced)


def with_attributes(call: FfiCall, **attributes) -> FfiCall:
    """The same with other attributes; None: without one."""
    kept = {n: a for n, a in (call.attributes | attributes).items() if a is not None}
    return dataclasses.replace(call, attributes=kept)


def longer(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that is long enough not to divide, and not to be one for all."""
    return (*shape[:-1], 3 * shape[-1] + 1) if shape else (2,)


def test_a_line_for_every_kernel():
    assert set(LINES) == set(HANDLERS)


@pytest.mark.parametrize("kernel", LINES)
def test_a_call_of_a_visit_is_taken(build, kernel):
    call, _ = calls_and_names(build, kernel)
    results = call.run(np.random.default_rng(0))
    assert [r.shape for r in results] == [r.shape for r in call.results]
    # Random covariances are not positive definite, and no messages come of them.
    assert all(np.isfinite(r).all() for r in results) or kernel == "gbplearn_many_outputs"


@pytest.mark.parametrize("kernel", LINES)
def test_how_many(build, kernel):
    call, _ = calls_and_names(build, kernel)
    a, r, n = len(call.arguments), len(call.results), len(call.attributes)
    more = dataclasses.replace(call, arguments=(*call.arguments, jax.ShapeDtypeStruct((3,), jnp.float32)))
    fewer = dataclasses.replace(call, arguments=call.arguments[:-1])
    one = jax.ShapeDtypeStruct((1,), jnp.float32)
    if kernel == "gbplearn_chain":  # which of them are a visit's, its plan knows
        assert "visit1_arguments must be numbers of arrays of the call" in refusal(fewer)
        assert "visit1_results must be numbers of arrays of the call" in refusal(with_result(call, r - 1))
    else:
        assert f": takes {a} arguments, got {a - 1}" in refusal(fewer)
        assert f": takes {r} results, got {r - 1}" in refusal(with_result(call, 0))
    assert f": takes {a} arguments, got {a + 1}" in refusal(more)
    assert f": takes {r} results, got {r + 1}" in refusal(with_result(call, r, one))
    assert f": takes {n} attributes, got {n + 1}" in refusal(with_attributes(call, another=np.int64(1)))


@pytest.mark.parametrize("kernel", [k for k in LINES if k != "gbplearn_chain"])
def test_each_argument_by_its_name(build, kernel):
    """Its number and name, what it must be, and what it is; of another shape, or (in the other builds) type."""
    call, names = calls_and_names(build, kernel)
    assert len(names) == len(call.arguments)
    for i, (name, old) in enumerate(zip(names, call.arguments)):
        wanted = "bool" if old.dtype == bool else "float32"
        if build is Build.BASIC:
            line, got = (
                refusal(with_argument(call, i, shape=longer(old.shape))),
                f"{wanted} of shape {longer(old.shape)}",
            )
        else:
            line, got = refusal(with_argument(call, i, dtype=INT32)), f"S32 of shape {old.shape}"
        assert f": argument {i} ({name}) must be {wanted} " in line
        assert f", got {got}" in line


@pytest.mark.parametrize("kernel", [k for k in LINES if k != "gbplearn_chain"])
def test_each_result(build, kernel):
    call, _ = calls_and_names(build, kernel)
    for i, old in enumerate(call.results):
        line = refusal(with_result(call, i, jax.ShapeDtypeStruct(longer(old.shape), jnp.float32)))
        assert f": result {i} (" in line
        assert f"must be float32 with {old.size} elements, got float32 of shape" in line
    line = refusal(with_result(call, 0, jax.ShapeDtypeStruct(call.results[0].shape, INT32)))
    assert "got S32 of shape" in line


@pytest.mark.parametrize("kernel", LINES)
def test_each_attribute_by_its_name(build, kernel):
    call, _ = calls_and_names(build, kernel)
    for name, value in call.attributes.items():
        other = np.int64(1) if np.ndim(value) or not isinstance(value, np.integer) else np.float32(1)
        spoilt = {name: None if build is Build.BASIC else other}
        assert f"attribute {name} must be there, and be a" in refusal(with_attributes(call, **spoilt))


def numbers(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("kernel", "attributes", "why"),
    [
        ("gbplearn_matrix_pooled", {"rows": np.int64(0)}, "attribute rows must be positive"),
        ("gbplearn_matrix_pooled", {"rows": np.int64(2**62)}, "argument 0 (rows) must be float32 of shape"),
        ("gbplearn_matrix_pooled", {"inbox": numbers(1, 0, 1)}, "attribute inbox must be 3 positive numbers"),
        ("gbplearn_matrix_pooled", {"inbox": numbers(1, 1)}, "attribute inbox must be 3 positive numbers"),
        ("gbplearn_matrix_pooled", {"inbox": numbers(1, 2**62, 1)}, "takes"),
        ("gbplearn_matrix_edges", {"learnt": np.False_, "uncertain": np.False_}, "learnt or uncertain must be true"),
        ("gbplearn_matrix_edges", {"uncertain": np.False_}, "takes"),
        ("gbplearn_tile_max", {"tile": numbers(2, 7)}, "attribute tile must not be larger than an image"),
        ("gbplearn_tile_max", {"image": numbers(3, 4, 6)}, "attribute image must be 4 positive numbers"),
        ("gbplearn_slices", {"begins": numbers(0, 0, 0, 2)}, "attribute begins must keep slices within shape"),
        ("gbplearn_slices", {"begins": numbers(0, -1, 0, 1)}, "attribute begins must keep slices within shape"),
        ("gbplearn_slices", {"begins": numbers(0, 2**63 - 1, 0, 1)}, "attribute begins must keep slices within"),
        ("gbplearn_slices", {"begins": numbers(0, 0, 0)}, "attribute begins must be those of 1 to 5 slices"),
        ("gbplearn_slices", {"begins": numbers(*[0] * 12)}, "attribute begins must be those of 1 to 5 slices"),
        ("gbplearn_slices", {"sizes": numbers(6, 11)}, "attribute sizes must lie between 1 and shape"),
        ("gbplearn_slices", {"shape": numbers()}, "attribute shape must be positive"),
        ("gbplearn_slices", {"robust": np.int64(5)}, "attribute robust must be 0 to 4"),
        ("gbplearn_many_outputs", {"edges": numbers(0)}, "attribute edges must be positive"),
        ("gbplearn_many_outputs", {"edges": numbers(2, 1)}, "takes"),
        ("gbplearn_sensitivities", {"places": np.int64(0)}, "attribute places must be positive"),
        ("gbplearn_sensitivities", {"units": np.int64(3)}, "argument 1 (slope) must be float32 of shape"),
        ("gbplearn_sensitivities", {"images": np.int64(2**62)}, "argument 0 (rows) must be float32 of shape"),
        ("gbplearn_chain", {"pieces": np.int64(3)}, "attribute pieces must divide the factors of every visit"),
        ("gbplearn_chain", {"visit0_kernel": np.int64(2)}, "attribute visit0_kernel must be 0 or 1"),
        ("gbplearn_chain", {"visit0_results": numbers(0)}, ", visit 0, "),
        ("gbplearn_chain", {"visit0_arguments": numbers(0)}, "visit0_arguments must be numbers of arrays of the call"),
        ("gbplearn_chain", {"visit0_arguments": numbers(-1)}, "visit0_arguments must be numbers of arrays"),
    ],
)  # fmt: skip
def test_attributes_that_cannot_be(build, kernel, attributes, why):
    call, _ = calls_and_names(build, kernel)
    assert why in refusal(with_attributes(call, **attributes))


def test_visits_of_a_chain_are_checked_one_by_one(build):
    """By the names of the kernel's own arguments, and that they are in place."""
    call, _ = calls_and_names(build, "gbplearn_chain")
    kernels = ["matrix_pooled", "tile_max"]
    assert [int(call.attributes[f"visit{i}_kernel"]) for i in range(2)] == [0, 1]
    for i, kernel in enumerate(kernels):
        first = int(call.attributes[f"visit{i}_arguments"][0])
        name = "rows" if kernel == "matrix_pooled" else "noise"
        line = refusal(with_argument(call, first, shape=(7,)))
        assert f", visit {i}, {kernel}: argument 0 ({name}) must be float32 " in line
    assert ": argument 0 (made) must be bool of shape (n,)" in refusal(with_argument(call, 0, dtype=jnp.float32))
    apart = dataclasses.replace(call, replaced=(None, *call.replaced[1:]))
    assert "must be in the place of the argument" in refusal(apart)


def test_one_eta_for_all_units_and_a_lam_for_each(build):
    """One of a pair decides for both: a lam that is longer or shorter would be read beyond its end."""
    call, names = calls_and_names(build, "gbplearn_tile_max")
    i = names.index("y.inbox.0.eta")
    spoilt = with_argument(call, i, shape=(1,))
    assert f"argument {i + 1} (y.inbox.0.lam) must be float32 with 1 elements, as eta has" in refusal(spoilt)
