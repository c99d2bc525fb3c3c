"""Compile the kernels of `src/gbplearn/kernels/cpu` when the package is built, if there is a C++ compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/gbplearn/kernels/cpu")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
# Of all x86 processors since 2015; which of the two libraries is loaded is decided where it runs.
WIDE = ["-mavx2", "-mfma"]


def compiler() -> list[str] | None:
    """The words that call the C++ compiler, None if there is none or it is not wanted."""
    words = shlex.split(os.environ.get("CXX", "g++"))
    wanted = os.environ.get("GBPLEARN_BUILD_NATIVE", "1") != "0" and sys.platform.startswith("linux")
    return words if wanted and words and all(shutil.which(w) for w in words[:1]) else None


def stamp(folder: Path) -> str:
    """Of the sources, as `library.py` computes it: a library of other sources is not loaded."""
    sources = sorted([*folder.glob("*.cc"), *folder.rglob("*.h")])
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


class NativeKernels(BuildHookInterface):
    """Two shared libraries beside the sources; none, if anything is missing: the package works without."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Compile."""
        words = compiler()
        if self.target_name != "wheel" or words is None:
            return
        folder = Path(self.root) / FOLDER
        headers = str(folder / "headers")
        variants = {"kernels.so": []} | ({"kernels_wide.so": WIDE} if platform.machine() == "x86_64" else {})
        sources = sorted(str(p) for p in folder.glob("*.cc"))
        stamped = f'-DGBPLEARN_STAMP="{stamp(folder)}"'
        running = {}
        for name, flags in variants.items():  # side by side: a compiler has one thread
            command = [
                *words,
                *FLAGS,
                *flags,
                stamped,
                "-isystem",
                headers,
                *sources,
                "-o",
                str(folder / f"{name}.new"),
            ]
            running[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for name, process in running.items():
            out, new = folder / name, folder / f"{name}.new"
            complaint = process.communicate()[1]
            if process.returncode:
                self.app.display_warning(f"gbplearn: {name} was not built\n{complaint[-2000:]}")
                out.unlink(missing_ok=True)
                continue
            os.replace(new, out)  # a library that is in use stays what it was
            build_data["artifacts"].append(str(FOLDER / name))
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
