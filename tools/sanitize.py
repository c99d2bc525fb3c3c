"""The kernels under GCC's sanitizers: `make sanitize`.

- AddressSanitizer and UndefinedBehaviorSanitizer: `kernel_driver.cc` makes the calls of the conformance table, and of
  some larger graphs, with arrays of exactly their size; then the same calls with something wrong about each array and
  attribute. Then the tests of the kernels, in a Python that has the runtime preloaded.
- ThreadSanitizer: `kernel_driver.cc` alone, in which all code but the C++ library is instrumented. (XLA and Python are
  not: what they do between threads would be reported whether or not it is a race.)

Both for each build that runs here: for every processor, for those with AVX2, and for those with AVX-512. Anything that
is found ends it with an error.
"""

from __future__ import annotations

import concurrent.futures
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/kernels/test_arguments.py",
    "tests/kernels/test_native.py",
    "tests/kernels/test_slices_kernel.py",
    "tests/conformance/test_conformance.py",
)
CHOSEN = "not XLA and not float64 and not written_out and not no_kernel"
# Line numbers, frames, and code that is quick enough for large calls.
COMMON = ["-g", "-O1", "-fno-omit-frame-pointer"]
SANITIZERS = {
    "address": ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# A finding ends the process with this; Python does not free all that it has when it ends.
OPTIONS = {
    "ASAN_OPTIONS": "exitcode=66:detect_leaks=0:strict_string_checks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
    "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:second_deadlock_stack=1",
}


def build_hook() -> Any:
    """`hatch_build.py`, which knows how the kernels are compiled; hatchling itself is not needed for that."""
    name = "hatchling.builders.hooks.plugin.interface"
    for depth in range(name.count(".") + 1):
        part = ".".join(name.split(".")[: depth + 1])
        sys.modules.setdefault(part, types.ModuleType(part))
    sys.modules[name].BuildHookInterface = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.path.insert(0, str(ROOT))
    import hatch_build

    return hatch_build


def write_calls(path: Path) -> int:
    """Write the calls that the driver makes, each once, and return how many they are."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "conformance")]
    from table import (
        BOTH,
        CASES,
        CORNER,
        DENSE,
        LARGER,
        LEAKY,
        Case,
        conv,
        conv_and_max,
        dense,
        image,
        stencil,
        unary,
    )

    import gbplearn as gbp
    from kernel_calls import calls_of, calls_of_windows

    if not gbp.native.status().on:
        raise SystemExit(f"{gbp.native.status()}: there are no calls to make")
    # More than one task for each thread, which small graphs do not have.
    robust = gbp.PairwiseSmoothing(sigma=0.4, robust=gbp.Tukey(1.5))
    large = {
        "dense": Case(dense(33, 150, 19, **LEAKY), **DENSE, started="x"),
        "inputs known": Case(dense(200, 40, 20, **LEAKY), **BOTH, pools="weight bias", known="x", weight="rows"),
        "conv": Case(image(conv(9, kernel=5, **LEAKY), (9, 14, 14, 1)), **BOTH, pools="weight bias", known="x"),
        "max": Case(image(gbp.MaxPool2D(2, sigma=0.4), (8, 12, 13, 11)), "tile_max", weight="rows"),
        "smooth": Case(image(robust, (1, 70, 80, 1)), "slices", started="x", unknown=0.2),
        "stencil": Case(stencil((50, 90), CORNER, (-2.0, 1.0, 0.5)), "slices", numbers="each", weight="each"),
        "softmax": Case(unary(gbp.SoftmaxObservation(sigma=0.3), (130, 12)), "many_outputs", weight="rows"),
        "chain": Case(conv_and_max(16, 9, 10, 2), "tile_max", "chain", "weight bias", known="x", chained=True),
        "more images than tasks": Case(
            conv_and_max(70, 5, 4, 1), "tile_max", "chain", "weight bias", known="x", chained=True
        ),
    }
    lines: dict[str, None] = {}
    for case in [*CASES.values(), *LARGER.values(), *large.values()]:
        for mode in case.modes:
            for call in calls_of(case.graph(), mode) if case.kernels(mode) else []:
                lines["\n".join(_as_text(call))] = None
    for call in [*calls_of_windows(3, 4, 2, 3, 5), *calls_of_windows(70, 25, 33, 10, 26)]:
        lines["\n".join(_as_text(call))] = None
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def _as_text(call: Any) -> list[str]:
    """A call as the driver reads it."""
    import numpy as np

    out = [f"call {call.kernel}"]
    letters = {"bool": "b", "int64": "i", "float32": "f"}
    for name, value in call.attributes.items():
        letter = "I" if np.ndim(value) else letters[np.asarray(value).dtype.name]
        numbers = [repr(float(value))] if letter == "f" else [str(int(n)) for n in np.ravel(value)]
        out.append(" ".join(["attribute", name, letter, *numbers]))
    out += [" ".join(["argument", a.dtype.name, *map(str, a.shape)]) for a in call.arguments]
    for result, replaced in zip(call.results, call.replaced):
        out.append(" ".join(["result", str(-1 if replaced is None else replaced), *map(str, result.shape)]))
    return out


def compile_all(hook: Any, words: list[str], variants: dict[str, list[str]], folder: Path) -> dict[str, list[str]]:
    """The objects of each variant: those of the kernels, and that of the driver as the last one."""
    cpu = ROOT / hook.FOLDER
    flags = [f for f in hook.FLAGS if f not in ("-shared", "-O3")]
    stamped = f'-DGBPLEARN_STAMP="{hook.stamp(cpu)}"'
    sources = [*sorted(cpu.glob("*.cc")), ROOT / "tools" / "kernel_driver.cc"]
    commands, objects = [], {}
    for name, more in variants.items():
        objects[name] = [str(folder / f"{source.stem}-{name}.o") for source in sources]
        for source, out in zip(sources, objects[name]):
            common = [*words, *flags, *COMMON, *more, stamped, "-isystem", str(cpu / "headers")]
            commands.append([*common, "-c", str(source), "-o", out])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for command, done in zip(
            commands, pool.map(lambda c: subprocess.run(c, capture_output=True, text=True), commands)
        ):
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return objects


def run(title: str, command: list[str], **options: Any) -> bool:
    """Run a command, with its output; whether nothing was found."""
    print(f"{title} ...", flush=True)
    code = subprocess.run(command, **options).returncode
    print(f"{title}: {'clean' if code == 0 else f'FAILED (exit code {code})'}", flush=True)
    return code == 0


def run_tests(hook: Any, words: list[str], objects: dict[str, list[str]], flags: list[str], folder: Path) -> bool:
    """The tests of the kernels with instrumented libraries, in a copy of the sources."""
    tree = folder / "tree"
    for part in ("src", "tests"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name, parts in objects.items():
        out = tree / hook.FOLDER / ("kernels.so" if name == "basic" else f"kernels_{name}.so")
        subprocess.run([*words, "-shared", *flags, *parts[:-1], "-o", str(out)], check=True)
    # The C++ library too, before any that has it linked in: the runtime replaces functions of it.
    names = [[*words, f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
    found = [subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip() for name in names]
    preload = {"LD_PRELOAD": " ".join(found), "PYTHONPATH": str(tree / "src"), "GBPLEARN_NATIVE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-k", CHOSEN, *TESTS]
    return run("address and undefined behaviour, tests", command, cwd=tree, env={**os.environ, **OPTIONS, **preload})


def main() -> None:
    """All of it."""
    hook = build_hook()
    words = hook.compiler()
    if words is None:
        raise SystemExit("make sanitize needs g++ on Linux")
    builds = {"basic": []}
    if platform.machine() == "x86_64":
        builds |= {name: flags for name, flags in (("wide", hook.WIDE), ("widest", hook.WIDEST)) if _runs(name)}
    environment, clean = {**os.environ, **OPTIONS}, True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        calls = folder / "calls.txt"
        print(f"{write_calls(calls)} calls", flush=True)
        for sanitizer, flags in SANITIZERS.items():
            variants = {name: [*flags, *more] for name, more in builds.items()}
            objects = compile_all(hook, words, variants, folder)
            for name, parts in objects.items():
                driver = str(folder / f"driver-{sanitizer}-{name}")
                subprocess.run([*words, *flags, *parts, "-o", driver, "-pthread"], check=True)
                for way in ("check", "spoil") if sanitizer == "address" else ("check",):
                    clean &= run(f"{sanitizer}, {name}, {way}", [driver, str(calls), way], env=environment)
            if sanitizer == "address":
                clean &= run_tests(hook, words, objects, flags, folder)
    raise SystemExit(0 if clean else 1)


def _runs(build: str) -> bool:
    """Whether this processor can run a build, as the kernels find out."""
    from gbplearn.kernels.cpu.library import status_of
    from gbplearn.native import Build

    return status_of(Build(build)).on


if __name__ == "__main__":
    main()
