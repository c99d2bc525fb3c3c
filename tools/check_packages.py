"""Build the sdist and the wheel, install each into clean environments, and run the README's Python blocks there.

One line for each combination of {wheel, sdist} x {oldest jax that the package allows, newest} x {Python}:

    python tools/check_packages.py                                # all of them
    python tools/check_packages.py --python 3.11 --jax newest     # some of them

`pass`, `fail` or `not installable`: there is no such jax for that Python. The exit code is 0 if something passed and
nothing failed. Where packages come from is a matter of pip's own configuration.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = "estimators,checkpoints"  # that the README's blocks need
KINDS = ("wheel", "sdist")
JAX = ("oldest", "newest")
LONGEST = 3600  # seconds that one command may take: machines are busy at times

# Runs in the clean environment; its last line is what it found. The blocks are those that tests/pages.py finds. What
# they say that they print is checked there to the letter, with the jax of the developers; other versions of XLA round
# otherwise, so here a number may differ by one in its last digit. What differs is reported.
INSIDE = r"""
import contextlib, io, json, pathlib, re, sys
tests, page, kernels = sys.argv[1:]
import gbplearn as gbp
import jax
folder = pathlib.Path(gbp.__file__).parent
assert folder.is_relative_to(sys.prefix), f"{folder} is not what was installed"
assert (folder / "py.typed").exists(), "py.typed is not there"
status = gbp.native.status()
assert status.on or kernels == "0", str(status)
sys.path.append(tests)
import pages

names, others = {}, []
blocks = pages.blocks(pathlib.Path(page))
for number, block in enumerate(blocks, 1):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, f"block {number}", "exec"), names)
    lines = iter(out.getvalue().splitlines())
    for said in re.findall(r"# -> (.*)$", block, re.MULTILINE):
        found = next((line for line in lines if pages.near(said, line)), None)
        assert found is not None, f"block {number}: {said!r} is not printed there, but {out.getvalue()!r}"
        others += [found] if found != said else []
assert names.get("gbp") is gbp, "no block of the page was run"
print(json.dumps({"jax": jax.__version__, "blocks": len(blocks), "kernels": status.on, "others": others}))
"""


class NotInstallable(Exception):
    """There is no jax of this version for this Python."""


class Failed(Exception):
    """A package is not what it should be."""


@dataclasses.dataclass(frozen=True)
class Combination:
    """What is installed, with which jax, for which Python."""

    kind: str
    jax: str
    python: str

    def __str__(self) -> str:
        return f"{self.kind:5}  jax {self.jax:6}  Python {self.python:4}"


def oldest_jax() -> str:
    """The version that the package's own requirement begins with."""
    (found,) = [m for m in (re.fullmatch(r"jax>=([\d.]+)", d) for d in PROJECT["dependencies"]) if m]
    return found.group(1)


def versions() -> list[str]:
    """Of Python, that the package says it is for."""
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["classifiers"])
    return [m.group(1) for m in found if m]


def interpreter(version: str) -> str | None:
    """The program that is Python of this version: of pyenv, or on the path; None if there is none that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    of_pyenv = [str(p) for p in sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
    for program in [*of_pyenv, shutil.which(f"python{version}"), sys.executable]:
        if program is None:
            continue
        asked = [program, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return program
    return None


def call(*command: object, **options) -> str:
    """Run a command; what it printed. If it fails, the end of that is in the exception."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    environment |= options.pop("env", {})
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LONGEST, **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{Path(words[0]).name} took more than {LONGEST} s") from None
    if done.returncode:
        raise Failed((done.stderr.strip() or done.stdout.strip())[-3000:])
    return done.stdout


def new_environment(python: str, folder: Path) -> Path:
    """A virtual environment with nothing but pip; its Python."""
    call(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def build(python: str, folder: Path) -> dict[str, Path]:
    """The sdist of the repository, and the wheel of that sdist: as both would be published."""
    tool = new_environment(python, folder / "build-tool")
    call(tool, "-m", "pip", "install", "--quiet", "build")
    call(tool, "-m", "build", "--outdir", folder / "dist", ROOT)
    return built(folder / "dist")


def built(folder: Path) -> dict[str, Path]:
    """The packages of a folder: one wheel and one sdist."""
    found = {"wheel": list(folder.glob("gbplearn-*.whl")), "sdist": list(folder.glob("gbplearn-*.tar.gz"))}
    for kind, paths in found.items():
        if len(paths) != 1:
            raise Failed(f"{len(paths)} files in {folder} are a {kind}, it should be one")
    return {kind: path.resolve() for kind, (path,) in found.items()}


def has_kernels(wheel: Path) -> bool:
    """Whether a wheel is for one kind of machine."""
    return not wheel.stem.endswith("-any")


def there_is_a_compiler() -> bool:
    """Whether kernels should come out of the sources here, as hatch_build.py has it."""
    words = shlex.split(os.environ.get("CXX", "g++"))
    wanted = os.environ.get("GBPLEARN_BUILD_NATIVE", "1") != "0" and sys.platform.startswith("linux")
    return wanted and bool(words) and shutil.which(words[0]) is not None


def check_contents(packages: dict[str, Path]) -> None:
    """What must be in the packages is in them, and nothing that was lying about in the folder."""
    with zipfile.ZipFile(packages["wheel"]) as wheel:
        inside = set(wheel.namelist())
    with tarfile.open(packages["sdist"]) as sdist:
        source = {name.partition("/")[2] for name in sdist.getnames()}
    package = {f"gbplearn/{p.relative_to(ROOT / 'src/gbplearn')}" for p in sources(ROOT / "src/gbplearn")}
    wanted = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "Makefile", "tests/pages.py"}
    wanted |= {f"src/{name}" for name in package}
    for what, missing in {"wheel": package - inside, "sdist": wanted - source}.items():
        if missing:
            raise Failed(f"not in the {what}: {', '.join(sorted(missing))}")
    info = f"gbplearn-{PROJECT['version']}.dist-info/"
    strange = {n for n in inside - package if not n.startswith(info) and not n.endswith(".so")}
    strange |= {
        n for n in source if re.search(r"\.(so|pyc|whl|new)$|(^|/)(\.venv|\.git|__pycache__|site|dist)(/|$)", n)
    }
    if strange:
        raise Failed(f"should not be in the packages: {', '.join(sorted(strange)[:10])}")
    if has_kernels(packages["wheel"]) != any(name.endswith(".so") for name in inside):
        raise Failed(f"{packages['wheel'].name} has the wrong tag: {sum(n.endswith('.so') for n in inside)} libraries")


def sources(folder: Path) -> list[Path]:
    """Files of the package that are not made from others."""
    kept = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return [p for p in kept if p.suffix not in (".so", ".pyc", ".new")]


def from_source(sdist: Path, python: str, folder: Path) -> Path:
    """The wheel that pip makes of the sdist for this Python before it installs that; once for all versions of jax."""
    out = folder / "wheel"
    if not out.exists():
        new = new_environment(python, folder / "builder")
        # Without pip's cache, which may have a wheel of the same name of older sources.
        call(new, "-m", "pip", "wheel", "--quiet", "--no-cache-dir", "--no-deps", "-w", out, sdist)
    (wheel,) = out.glob("*.whl")
    return wheel


def check(combination: Combination, python: str, packages: dict[str, Path], folder: Path) -> str:
    """Install and run; what was found, in words."""
    name = f"{combination.kind}-{combination.jax}-{combination.python}"
    new = new_environment(python, folder / name)
    pip = [new, "-m", "pip", "install", "--quiet", "--no-compile"]  # most of it is never imported
    wanted = f"jax=={oldest_jax()}" if combination.jax == "oldest" else "jax"
    try:
        call(*pip, "--only-binary", "jax,jaxlib", wanted)
    except Failed as why:
        # Of the newest there must be one for every Python that we name.
        if combination.jax == "oldest" and "No matching distribution found" in str(why):
            raise NotInstallable(last_line(why)) from None
        raise
    here = call(new, "-c", "import jax; print(jax.__version__)").strip()
    wheel, kernels = packages["wheel"], has_kernels(packages["wheel"])
    if combination.kind == "sdist":
        wheel = from_source(packages["sdist"], python, folder / f"of-{combination.python}")
        kernels = there_is_a_compiler()
    call(*pip, "--no-deps", wheel)
    call(*pip, f"gbplearn[{EXTRAS}]=={PROJECT['version']}", f"jax=={here}")
    call(new, "-m", "pip", "check")
    work = folder / f"{name}-work"
    work.mkdir()
    quiet = {"GBPLEARN_CACHE": str(work / "cache"), "JAX_PLATFORMS": "cpu"}
    arguments = [ROOT / "tests", ROOT / "README.md", int(kernels)]
    found = json.loads(call(new, "-P", "-c", INSIDE, *arguments, cwd=work, env=quiet).splitlines()[-1])
    shutil.rmtree(folder / name)  # half a gigabyte each
    words = [f"jax {found['jax']}", f"kernels {'on' if found['kernels'] else 'off'}", f"{found['blocks']} blocks"]
    words += [f"prints {line!r}, not quite what the page says" for line in found["others"]]
    return ", ".join([*words, wheel.name])


def last_line(error: Exception) -> str:
    """Of what a program complained: the line that says most, as pip and Python have it."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("[notice]")]
    return lines[-1].strip() if lines else type(error).__name__


def main(arguments: list[str] | None = None) -> int:
    """Build, check all combinations, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS, help="what to install (all)")
    parser.add_argument("--jax", action="append", choices=JAX, help="which jax (both)")
    parser.add_argument("--python", action="append", metavar="3.X", help=f"which Python ({', '.join(versions())})")
    parser.add_argument("--dist", type=Path, help="a folder for the packages, to keep them")
    parser.add_argument("--built", type=Path, help="a folder with both: check these, build none")
    chosen = parser.parse_args(arguments)
    pythons = {version: interpreter(version) for version in chosen.python or versions()}
    for version in [v for v, program in pythons.items() if program is None]:
        print(f"Python {version}: not found here", flush=True)
        del pythons[version]
    if not pythons:
        return 1
    words = []
    with tempfile.TemporaryDirectory(prefix="gbplearn-packages-") as name:
        folder = Path(name)
        try:
            packages = built(chosen.built) if chosen.built else build(next(iter(pythons.values())), folder)
            check_contents(packages)
        except Failed as why:
            print(f"fail  build\n{why}")
            return 1
        print(f"packages: {', '.join(p.name for p in packages.values())}", flush=True)
        if chosen.dist is not None:
            chosen.dist.mkdir(parents=True, exist_ok=True)
            for path in packages.values():
                shutil.copy(path, chosen.dist)
        for version, program in pythons.items():
            for combination in [Combination(k, j, version) for k in chosen.kind or KINDS for j in chosen.jax or JAX]:
                start = time.monotonic()
                try:
                    word, detail = "pass", check(combination, program, packages, folder)
                except NotInstallable as why:
                    word, detail = "not installable", str(why)
                except Failed as why:
                    word, detail = "fail", last_line(why)
                    print(why, file=sys.stderr, flush=True)
                words.append(word)
                print(f"{combination}  {word} ({time.monotonic() - start:.0f} s): {detail}", flush=True)
    return int("fail" in words or "pass" not in words)


if __name__ == "__main__":
    sys.exit(main())
