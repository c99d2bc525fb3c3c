"""Compile the kernels of `src/gbplearn/kernels/cpu` when the package is built, if there is a C++ compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/gbplearn/kernels/cpu")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
# Of all x86 processors since 2015; which of the libraries is loaded is decided where it runs (`processor.cc`).
WIDE = ["-mavx2", "-mfma"]
# Of those with sixteen numbers a vector.
WIDEST = [*WIDE, "-mbmi2", "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw"]
# Seen from outside are the functions that `library.py` calls, nothing of what is linked in.
EXPORTS = "{ global: gbplearn_*; local: *; };"
# A program that needs the C++ library: if it cannot be linked in here, neither can it be with the kernels.
TRIAL = """
#include <sstream>
extern "C" unsigned long gbplearn_trial(int n) { return (std::ostringstream() << n).str().size(); }
"""

# Of ELF files, by the number in their header; other machines have no jaxlib to install.
MACHINES = {62: "x86_64", 183: "aarch64"}
# What every system with glibc has, of those that a manylinux wheel may need.
OF_THE_SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|ld-linux-\S+)\.so\.\d+")
OLDEST = 17  # of glibc 2: older systems have no jaxlib, so nobody has tried


def compiler() -> list[str] | None:
    """The words that call the C++ compiler, None if there is none or it is not wanted."""
    words = shlex.split(os.environ.get("CXX", "g++"))
    wanted = os.environ.get("GBPLEARN_BUILD_NATIVE", "1") != "0" and sys.platform.startswith("linux")
    return words if wanted and words and all(shutil.which(w) for w in words[:1]) else None


def complaint(command: list[str]) -> str:
    """What a command says if it fails; empty if it does not."""
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stderr or f"exit code {done.returncode}") if done.returncode else ""


def stamp(folder: Path) -> str:
    """Of the sources, as `library.py` computes it: a library of other sources is not loaded."""
    sources = sorted([*folder.glob("*.cc"), *folder.rglob("*.h")])
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


def linking(words: list[str], folder: Path) -> list[str]:
    """Options that link the C++ library in, if there is one to link in (some systems have it in a package of its own).

    libstdc++ is as new as the compiler, and would ask for a system as new: what is used of it is linked in. libgcc is
    not: it is on every system, jaxlib needs it too, and to link it in would ask for a newer glibc. The folder must be
    there until all is linked.
    """
    exports, source = folder / "exports.map", folder / "trial.cc"
    exports.write_text(EXPORTS)
    source.write_text(TRIAL)
    options = ["-static-libstdc++", "-Wl,--gc-sections", f"-Wl,--version-script={exports}"]
    command = [*words, *FLAGS, str(source), *options, "-o", str(folder / "trial.so")]
    return options if subprocess.run(command, capture_output=True).returncode == 0 else []


def needs(library: Path) -> tuple[str | None, set[str], set[str]]:
    """What a shared library asks of the system: machine, names of libraries, versions of their symbols.

    Read from the file (ELF, 64 bits, the lowest byte first); the machine is None if it is another kind of file.
    """
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return None, set(), set()
    machine = struct.unpack_from("<H", data, 18)[0]
    start, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    # Of each section: kind, where it is, how long, which section has its strings, how many entries.
    sections = [struct.unpack_from("<4xI16xQQII", data, start + i * size) for i in range(count)]
    names, versions = set(), set()
    for kind, at, length, link, entries in sections:

        def text(offset: int, link: int = link) -> str:
            begin = sections[link][1] + offset
            return data[begin : data.index(b"\0", begin)].decode()

        if kind == 6:  # dynamic: pairs of a tag and a value; tag 1 is a library that is needed
            pairs = struct.iter_unpack("<qQ", data[at : at + length])
            names |= {text(value) for tag, value in pairs if tag == 1}
        elif kind == 0x6FFFFFFE:  # of each library the versions: a list of lists
            for _ in range(entries):
                count, first, following = struct.unpack_from("<2xH4xII", data, at)
                version = at + first
                for _ in range(count):
                    name, further = struct.unpack_from("<8xII", data, version)
                    versions.add(text(name))
                    version += further
                at += following
    return MACHINES.get(machine), names, versions


def tag(libraries: list[Path]) -> str | None:
    """Of a wheel with these libraries, for any Python, as ctypes loads them. None: of a machine that we do not know.

    `manylinux_2_X`, if they need nothing but glibc 2.X or newer (and libgcc, of any age); else `linux`, which is for
    systems like this one: pip installs it, an index does not take it. So it is with musl, too.
    """
    machines, names, versions = zip(*map(needs, libraries), strict=True)
    (machine, *others), names, versions = set(machines), set().union(*names), set().union(*versions)
    if machine is None or others:
        return None
    minor = OLDEST
    portable = "libc.so.6" in names and all(OF_THE_SYSTEM.fullmatch(name) for name in names)
    for version in versions:
        kind, *numbers = re.split(r"[_.]", version)
        if kind == "GLIBC" and numbers[0] == "2" and numbers[1].isdigit():
            minor = max(minor, int(numbers[1]))
        else:
            portable &= kind == "GCC" and [int(n) for n in numbers] <= [4, 3, 0]
    return f"py3-none-manylinux_2_{minor}_{machine}" if portable else f"py3-none-linux_{machine}"


class NativeKernels(BuildHookInterface):
    """Shared libraries beside the sources; none, if anything is missing: the package works without."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Compile."""
        words = compiler()
        if self.target_name != "wheel" or words is None:
            return
        folder = Path(self.root) / FOLDER
        headers = str(folder / "headers")
        variants = {"kernels.so": []}
        if platform.machine() == "x86_64":
            variants |= {"kernels_wide.so": WIDE, "kernels_widest.so": WIDEST}
        # The longest first: files are compiled side by side, since a compiler has one thread.
        sources = sorted(folder.glob("*.cc"), key=lambda p: (-p.stat().st_size, p.name))
        stamped, built = f'-DGBPLEARN_STAMP="{stamp(folder)}"', []
        with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
            static, compiled = linking(words, Path(temporary)), {}
            for source in sources:
                for name, flags in variants.items():
                    target = ["-c", str(source), "-o", str(Path(temporary) / f"{name}-{source.stem}.o")]
                    command = [*words, *FLAGS, *flags, stamped, "-isystem", headers, *target]
                    compiled.setdefault(name, []).append((pool.submit(complaint, command), target[-1]))
            for name, parts in compiled.items():
                out, new = folder / name, folder / f"{name}.new"
                objects = [target for _, target in parts]
                failed = "".join(task.result() for task, _ in parts)
                failed = failed or complaint([*words, *FLAGS, *objects, *static, "-o", str(new)])
                if failed:
                    self.app.display_warning(f"gbplearn: {name} was not built\n{failed[-2000:]}")
                    out.unlink(missing_ok=True)
                    continue
                os.replace(new, out)  # a library that is in use stays what it was
                built.append(out)
                build_data["artifacts"].append(str(FOLDER / name))
        if built:
            found = tag(built)
            build_data["pure_python"] = False
            build_data.update({"infer_tag": True} if found is None else {"tag": found})
