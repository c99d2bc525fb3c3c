"""What is published: tags of wheels, metadata, and the script that checks packages. Nothing is fetched or installed."""

import importlib.util
import re
import shutil
import struct
import subprocess
import sys
import tomllib
import types

import pytest

import gbplearn as gbp
import pages
from pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPILER = shutil.which("gcc")
MACHINES = {"x86_64": 62, "aarch64": 183}


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made  # dataclasses look there
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def hook(monkeypatch):
    """`hatch_build.py`; hatchling is there when a package is built, not here."""
    name = "hatchling.builders.hooks.plugin.interface"
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(parts[end - 1]))
    sys.modules[name].BuildHookInterface = object
    monkeypatch.setitem(sys.modules, "hatch_build", None)
    return module(ROOT / "hatch_build.py")


@pytest.fixture
def script(monkeypatch):
    """`tools/check_packages.py`."""
    monkeypatch.setitem(sys.modules, "check_packages", None)
    return module(ROOT / "tools" / "check_packages.py")


def small_library(tmp_path, source, *options):
    """Of C, on this machine."""
    if COMPILER is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no compiler")
    (tmp_path / "small.c").write_text(source)
    out = tmp_path / "small.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", str(tmp_path / "small.c"), *options, "-o", str(out)], check=True)
    return out


def elf(machine, libraries, versions):
    """A file with the parts of a shared library that say what it needs, written out by hand.

    `versions`: of each library the names.
    """
    strings = b"\0"

    def string(text):
        nonlocal strings
        strings += text.encode() + b"\0"
        return len(strings) - len(text) - 1

    dynamic = b"".join(struct.pack("<qQ", 1, string(name)) for name in libraries) + bytes(16)
    needed = b""
    for i, (library, names) in enumerate(versions.items()):
        following = 0 if i == len(versions) - 1 else 16 * (1 + len(names))
        needed += struct.pack("<HHIII", 1, len(names), string(library), 16, following)
        for j, name in enumerate(names):
            needed += struct.pack("<IHHII", 0, 0, 2, string(name), 0 if j == len(names) - 1 else 16)
    bodies = [(0, b"", 0, 0), (3, strings, 0, 0), (6, dynamic, 1, 0), (0x6FFFFFFE, needed, 1, len(versions))]
    at, places = 64, []
    for _, body, _, _ in bodies:
        places.append(at)
        at += len(body)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, at, 0, 64, 56, 0, 64, len(bodies), 0)
    table = [
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, place, len(body), link, entries, 1, 0)
        for place, (kind, body, link, entries) in zip(places, bodies)
    ]
    return b"".join([header, *(body for _, body, _, _ in bodies), *table])


C, STDCXX, GCC = "libc.so.6", "libstdc++.so.6", "libgcc_s.so.1"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("versions", "platform"),
    [
        ({C: ["GLIBC_2.2.5"]}, "manylinux_2_17"),  # no older than that
        ({C: ["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4"], GCC: ["GCC_3.0"]}, "manylinux_2_34"),
        ({"libm.so.6": ["GLIBC_2.29"], C: ["GLIBC_2.17", "GLIBC_2.28"]}, "manylinux_2_29"),
        ({C: ["GLIBC_2.34"], STDCXX: ["GLIBCXX_3.4.29"]}, "linux"),  # as new as the compiler that built it
        ({C: ["GLIBC_2.34"], GCC: ["GCC_14.0.0"]}, "linux"),
        ({C: ["GLIBC_2.34", "GLIBC_ABI_DT_RELR"]}, "linux"),
        ({C: ["GLIBC_PRIVATE"]}, "linux"),
        ({"libc.musl-x86_64.so.1": []}, "linux"),  # musl
    ],
)
def test_the_tag_is_of_what_libraries_need(hook, tmp_path, machine, versions, platform):
    file = tmp_path / "small.so"
    file.write_bytes(elf(MACHINES[machine], versions, {k: v for k, v in versions.items() if v}))
    assert hook.needs(file) == (machine, set(versions), {name for names in versions.values() for name in names})
    assert hook.tag([file]) == f"py3-none-{platform}_{machine}"


def test_the_tag_of_two_libraries_is_that_of_the_one_that_needs_more(hook, tmp_path):
    files = [tmp_path / "old.so", tmp_path / "new.so"]
    for file, version in zip(files, ["GLIBC_2.18", "GLIBC_2.31"]):
        file.write_bytes(elf(62, [C], {C: [version]}))
    assert hook.tag(files) == hook.tag(files[::-1]) == "py3-none-manylinux_2_31_x86_64"


def test_no_tag_of_ours_for_unknown_machines(hook, tmp_path):
    file, other = tmp_path / "small.so", tmp_path / "other.so"
    file.write_bytes(elf(243, [C], {C: ["GLIBC_2.34"]}))
    assert hook.tag([file]) is None
    file.write_bytes(b"this is no library")
    assert hook.tag([file]) is None
    for path, machine in zip([file, other], MACHINES.values()):
        path.write_bytes(elf(machine, [C], {C: ["GLIBC_2.34"]}))
    assert hook.tag([file, other]) is None


def test_needs_of_a_library_of_this_machine(hook, tmp_path):
    file = small_library(tmp_path, "#include <stdlib.h>\nvoid* small(int n) { return malloc(n); }\n")
    machine, names, versions = hook.needs(file)
    if machine is None or C not in names:
        assert hook.tag([file]) in (None, f"py3-none-linux_{machine}")
        pytest.skip("not glibc on a machine that we know")
    assert machine == hook.platform.machine()
    asked = subprocess.run(["readelf", "--version-info", str(file)], capture_output=True, text=True, check=True)
    found = set(re.findall(r"Name: (\S+)\s+Flags", asked.stdout))
    assert versions == found
    minor = max([17, *(int(v.split(".")[1]) for v in found)])
    assert hook.tag([file]) == f"py3-none-manylinux_2_{minor}_{machine}"


def test_a_library_that_needs_more_than_glibc_is_for_this_system(hook, tmp_path):
    (tmp_path / "of_mine").mkdir()
    small_library(tmp_path / "of_mine", "int other(void) { return 1; }\n", "-Wl,-soname,libother.so.1")
    (tmp_path / "of_mine" / "small.so").rename(tmp_path / "libother.so")
    source = "#include <stdlib.h>\nint other(void);\nvoid* small(void) { return malloc(other()); }\n"
    file = small_library(tmp_path, source, "-L", str(tmp_path), "-lother")
    assert "libother.so.1" in hook.needs(file)[1]
    assert hook.tag([file]) in (None, f"py3-none-linux_{hook.platform.machine()}")


def test_what_is_linked_in_is_not_seen_from_outside(hook, tmp_path):
    words = hook.compiler()
    options = words and hook.linking(words, tmp_path)
    if not options:
        pytest.skip("there is no compiler, or no C++ library to link in")
    out = tmp_path / "trial.so"
    assert STDCXX not in hook.needs(out)[1]
    asked = subprocess.run(["nm", "-D", "--defined-only", str(out)], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in asked.stdout.splitlines()] == ["gbplearn_trial"]


@pytest.mark.skipif(shutil.which("false") is None, reason="there is no such program")
def test_without_a_c_plus_plus_library_to_link_in_it_is_linked_as_ever(hook, tmp_path):
    assert hook.linking(["false"], tmp_path) == []


def test_metadata():
    assert PROJECT["version"] == gbp.__version__
    assert (ROOT / "src" / "gbplearn" / "py.typed").exists()
    classifiers = PROJECT["classifiers"]
    assert "Typing :: Typed" in classifiers
    assert len(set(classifiers)) == len(classifiers)
    assert PROJECT["license"] == "Apache-2.0"
    assert not [c for c in classifiers if c.startswith("License ::")]  # refused beside a licence expression (PEP 639)


def test_the_classifiers_fit_the_python_that_is_required(script):
    (oldest,) = re.fullmatch(r">=3\.(\d+)", PROJECT["requires-python"]).groups()
    minors = [int(version.split(".")[1]) for version in script.versions()]
    assert minors == list(range(int(oldest), max(minors) + 1))
    assert {11, 12, 13} <= set(minors)


def test_the_script_runs_the_blocks_that_the_docs_test_runs(script, tmp_path):
    """What it runs in the clean environment, here: on a page of ours, with stand-ins for what is installed."""
    assert script.ROOT == ROOT
    assert len(pages.blocks(script.ROOT / "README.md")) >= 3
    page = tmp_path / "page.md"
    text = "```python\nimport gbplearn as gbp\nprint('94% of 360')  # -> 94% of 360\n```\n\n"
    text += "```bash\nfalse\n```\n\n```python\nprint('two')\n```\n"
    page.write_text(text)
    folder = tmp_path / "lib"
    (folder / "gbplearn").mkdir(parents=True)
    (folder / "gbplearn" / "py.typed").touch()
    (folder / "gbplearn" / "__init__.py").write_text(
        "class Status:\n    on = False\n    def __str__(self):\n        return 'no native kernels'\n"
        "class native:\n    status = Status\n"
    )
    (folder / "jax.py").write_text("__version__ = '0'\n")

    def run(kernels):
        before = f"import sys\nsys.prefix = {str(tmp_path)!r}\nsys.path.insert(0, {str(folder)!r})\n"
        command = [sys.executable, "-P", "-c", before + script.INSIDE, str(ROOT / "tests"), str(page), kernels]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    done = run("0")
    assert done.returncode == 0, done.stderr
    found = {"jax": "0", "blocks": len(pages.blocks(page)), "kernels": False, "others": []}
    assert script.json.loads(done.stdout) == found
    assert found["blocks"] == 2
    assert "native" in run("1").stderr  # kernels were expected

    page.write_text(text.replace("-> 94% of 360", "-> 93% of 360"))  # the last digit of another XLA
    assert script.json.loads(run("0").stdout) == found | {"others": ["94% of 360"]}
    for said in ("92% of 360", "94% of 36", "94.0% of 360", "94% in 360", "three"):
        page.write_text(text.replace("-> 94% of 360", f"-> {said}"))
        assert f"'{said}' is not printed" in run("0").stderr
    page.write_text("```python\n1 / 0\n```\n")
    assert "ZeroDivisionError" in run("0").stderr
    page.write_text("no block\n")
    assert "no block of the page was run" in run("0").stderr


def test_what_the_script_reads_from_the_project(script):
    assert f"jax>={script.oldest_jax()}" in PROJECT["dependencies"]
    assert set(script.EXTRAS.split(",")) <= set(PROJECT["optional-dependencies"])
    assert script.interpreter(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert script.interpreter("3.0") is None
    assert script.has_kernels(ROOT / "gbplearn-0.1.0-py3-none-manylinux_2_17_x86_64.whl")
    assert not script.has_kernels(ROOT / "gbplearn-0.1.0-py3-none-any.whl")
