"""Compile the kernels of `src/gbplearn/native` when the package is built, if there is a C++ compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/gbplearn/native")
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
# Instructions of all x86 processors since 2015; which of the two libraries is loaded is decided where it runs.
WIDE = ["-march=x86-64-v3"]


def compiler() -> str | None:
    """The C++ compiler, None if there is none or it is not wanted."""
    wanted = os.environ.get("GBPLEARN_BUILD_NATIVE", "1") != "0" and sys.platform.startswith("linux")
    return shutil.which(os.environ.get("CXX", "g++")) if wanted else None


class NativeKernels(BuildHookInterface):
    """Two shared libraries beside the sources; none, if anything is missing: the package works without."""

    def dependencies(self) -> list[str]:
        """The headers of XLA's foreign functions come with jaxlib."""
        return ["jaxlib>=0.6"] if compiler() else []

    def initialize(self, version: str, build_data: dict) -> None:
        """Compile."""
        if self.target_name != "wheel" or not compiler():
            return
        folder = Path(self.root) / FOLDER
        variants = {"kernels.so": []} | ({"kernels_wide.so": WIDE} if platform.machine() == "x86_64" else {})
        import jaxlib

        headers = str(Path(jaxlib.__file__).parent / "include")
        sources = sorted(str(p) for p in folder.glob("*.cc"))
        for name, flags in variants.items():
            out = folder / name
            command = [compiler(), *FLAGS, *flags, "-isystem", headers, *sources, "-o", f"{out}.new"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                self.app.display_warning(f"gbplearn: native kernels were not built\n{done.stderr[-2000:]}")
                return
            os.replace(f"{out}.new", out)  # a library that is in use stays what it was
            build_data["artifacts"].append(str(FOLDER / name))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
