"""The command line: `gbplearn demo`, `gbplearn experiment NAME`, `gbplearn train`, `gbplearn inspect FILE`, ...

A command is a dataclass: its fields are the options, its `run` does the work. To add one, write the class and put it
into `COMMANDS`. What a command needs is imported when it runs, so that `--help` and errors come at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ..core.compiling import cache_programs
from ..core.version import __version__

if TYPE_CHECKING or importlib.util.find_spec("tyro") is not None:
    import tyro

_EXTRAS = ("tyro", "pooch", "matplotlib", "tqdm", "safetensors", "sklearn", "optax")
_BAD_INPUT = 2
_FAILED = 1
_INTERRUPTED = 130  # what shells report of a process that SIGINT ended
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # terminal escapes


class BadInput(Exception):
    """The user asked for something that cannot be done; the text is the line they read."""


class Command(Protocol):
    """What `COMMANDS` holds."""

    def run(self) -> None:
        """Do the work."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """Learn 1,437 handwritten digits, each used once, then fill in hidden halves: a minute, ends with a report.html."""

    out: Path = Path("demo")
    """Folder for report.html, the pictures and results.json; made if it is missing."""
    seed: int = 0
    """Seed of the order of the images, of the prior means and of the labels that are hidden; 0 or larger."""

    def run(self) -> None:
        """Run all parts."""
        if self.seed < 0:
            raise BadInput(f"--seed must be 0 or larger, got {self.seed}")
        from .demo import run_demo

        run_demo(self.out, self.seed)


@dataclasses.dataclass(frozen=True)
class RunExperiment:
    """Run a published experiment: results.json, its figure and report.html, and a line a seed in the ledger."""

    name: tyro.conf.Positional[
        Literal[
            "xor",
            "regression",
            "digits",
            "fill-in",
            "estimators",
            "mnist",
            "fashion-mnist",
            "cifar10",
            "published",
            "sample-efficiency",
            "sample-efficiency-vectors",
            "async",
            "iterations",
            "stability",
            "variances",
            "video",
            "video-alpha",
            "denoisers",
            "denoisers-ablation",
        ]
    ]
    """Which experiment."""
    seeds: int | None = None
    """How many seeds, from 0 on; by default as many as its results are quoted for."""
    out: Path | None = None
    """Folder for what is written; by default results/NAME, with options in its name. A long run that was stopped
    goes on with what it holds."""
    ledger: Path = Path("results/ledger.jsonl")
    """File that every run adds its lines to."""
    data_dir: Path | None = None
    """Of all after digits: as of `gbplearn train`."""
    graph: (
        Literal[
            "convolutional",
            "dense",
            "vector",
            "dense-vector",
            "lenet",
            "wide-lenet",
            "smooth-lenet",
            "small-vgg",
            "residual",
            "patches",
        ]
        | None
    ) = None
    """Of mnist, fashion-mnist, cifar10: the paper's network, dense layers, the paper's layers with vector beliefs and
    activations, deeper networks with them, or a dense layer behind whitened patches."""
    examples: int | None = None
    """Of mnist, fashion-mnist, cifar10, async, iterations, stability: how many training images."""
    frames: int | None = None
    """Of video, video-alpha, denoisers, denoisers-ablation: the first so many."""

    def run(self) -> None:
        """Run it."""
        if self.seeds is not None and self.seeds < 1:
            raise BadInput(f"--seeds must be 1 or larger, got {self.seeds}")
        from .experiments.catalogue import run_by_name

        if self.examples is not None and self.examples < 1:
            raise BadInput(f"--examples must be 1 or larger, got {self.examples}")
        options = {name: getattr(self, name) for name in ("data_dir", "graph", "examples", "frames")}
        options = {name: value for name, value in options.items() if value is not None}
        few = [] if self.seeds is None else [f"{self.seeds}-seed{'s' if self.seeds > 1 else ''}"]
        folder = "-".join(
            [self.name, *few, *(str(options[n]) for n in ("graph", "examples", "frames") if n in options)]
        )
        out = Path("results") / folder if self.out is None else self.out
        try:
            run_by_name(self.name, self.seeds, out, self.ledger, options)
        except ValueError as error:
            raise BadInput(str(error)) from None


@dataclasses.dataclass(frozen=True)
class Train:
    """Learn to tell images apart: one pass over the training images, then the accuracy on the test images."""

    data: Literal["digits", "mnist", "fashion-mnist", "cifar10"]
    """Which images; the digits come along."""
    data_dir: Path | None = None
    """Folder that holds the folders mnist, fashion-mnist, cifar10; by default $GBPLEARN_DATA, else a cache folder."""
    checkpoint: Path | None = None
    """File to keep the learner in: written every 10 batches, at the end, and on Ctrl-C."""
    resume: bool = False
    """Go on where the checkpoint ends."""
    batch: int = 50
    """Images learnt from at a time."""
    iterations: int = 200
    """Of message passing, for each batch, at most: it stops when the parameters have settled."""
    examples: int | None = None
    """How many training images; by default all."""
    seed: int = 0
    """Of the order of the images and the priors; 0 or larger."""
    published: bool = False
    """The paper's network as published, with a scalar belief for each weight; by default its layers with vector
    beliefs."""
    out: Path | None = None
    """Folder for report.html, the pictures and results.json; by default results/train-DATA."""

    def run(self) -> None:
        """Train, test and report."""
        from ..core.files import make_folder
        from ..show.page import write_or_say
        from .report.record import Clock
        from .train import prepare
        from .train_report import read_out, write_report

        clock = Clock()
        options = {"batch": self.batch, "iterations": self.iterations, "examples": self.examples, "seed": self.seed}
        options["published"] = self.published
        try:
            training = prepare(self.data, self.data_dir, checkpoint=self.checkpoint, resume=self.resume, **options)
        except ValueError as error:
            raise BadInput(str(error)) from None
        out, learner = self.out or Path("results") / f"train-{self.data}", training.learner
        make_folder(out)
        training.learn(f"train on {self.data}")
        results, probabilities = read_out(training, {"data": self.data, **options}, out, clock)
        bad = f", {learner.failures} batches not learnt" if learner.failures else ""
        accuracy, count = results["metrics"]["test accuracy/messages"], len(training.images.test_y)
        print(f"test accuracy {accuracy:.2%} ({count:,} images, read out by messages)")
        print(f"learnt from {learner.examples:,} images in {learner.batches:,} batches{bad}")
        if self.checkpoint is not None:
            print(self.checkpoint)
        print(write_or_say(lambda: write_report(training, results, probabilities, out)))


@dataclasses.dataclass(frozen=True)
class Denoise:
    """Clean an image, a folder of frames or a video of which some pixels hold nonsense."""

    input: tyro.conf.Positional[Path]
    """An image, a folder of images, or a video (mp4, gif, avi, ...)."""
    output: tyro.conf.Positional[Path]
    """An image for an image; else a folder to be made, or a video. What is there already is replaced (no folder)."""
    model: Literal["best", "best-video", "pairwise", "single-layer", "five-layer"] = "best"
    """Hand-made factors with a switch for every pixel; the same beside the frames before and after; or the paper's
    networks, which take longer."""
    clean: Path | None = None
    """The truth: prints PSNR and SSIM."""
    mask: Path | None = None
    """White where pixels are known to be missing."""
    noise_map: Path | None = None
    """Where to write the probability that a pixel held nonsense: white for 1."""
    std: Path | None = None
    """Where to write standard deviations: white for 0.25 and more."""
    report: bool = True
    """Whether to write NAME.report.html beside the output: pictures before and after, messages, costs, settings."""

    def run(self) -> None:
        """Clean it, and say how much there was to clean."""
        from .denoising.command import denoise_file

        more = {"clean": self.clean, "mask": self.mask, "noise_map": self.noise_map, "std": self.std}
        try:
            lines = denoise_file(self.input, self.output, model=self.model, report=self.report, **more)
        except ValueError as error:
            raise BadInput(str(error)) from None
        print("\n".join(lines))


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Say what a checkpoint holds."""

    file: tyro.conf.Positional[Path]
    """A file that `train --checkpoint` or `Learner.save` wrote."""

    def run(self) -> None:
        """Check it and print."""
        from ..io.checkpoint import CheckpointError, describe

        try:
            print(describe(self.file))
        except CheckpointError as error:
            raise BadInput(str(error)) from None


@dataclasses.dataclass(frozen=True)
class Bench:
    """Time an iteration of inference on networks and graphs, beside a step of Adam and bare memory traffic."""

    workloads: tyro.conf.Positional[tuple[str, ...]] = ()
    """Which; by default all. (With $GBPLEARN_DATA set, MNIST's own images are used.)"""
    out: Path = Path("bench")
    """Folder for bench.json and the plot; made if it is missing."""
    gate: bool = False
    """Exit with 1 if a ratio is half as large again as in the baseline."""
    baseline: Path = Path("benchmarks/baseline.json")
    """File with the ratios to compare with."""
    update: bool = False
    """Put the ratios into the baseline."""
    repeats: int = 7
    """Of each measurement, of which the median counts."""

    def run(self) -> None:
        """Measure, report, compare."""
        from .bench.command import Slower, run_bench

        how = {"gate": self.gate, "update": self.update, "repeats": self.repeats}
        try:
            run_bench(self.workloads, self.out, self.baseline, **how)
        except ValueError as error:
            raise BadInput(str(error)) from None
        except Slower as error:
            raise RuntimeError(str(error)) from None


COMMANDS: dict[str, type[Command]] = {
    "bench": Bench,
    "demo": Demo,
    "denoise": Denoise,
    "experiment": RunExperiment,
    "inspect": Inspect,
    "train": Train,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    **Arguments:**

    - `argv`: the words after `gbplearn`; by default those of this process.

    **Returns:** the exit code: 0, 1 if the work failed, 2 for bad input, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"gbplearn {__version__}")
        return 0
    if any(importlib.util.find_spec(name) is None for name in _EXTRAS):
        return _fail('the command line needs its extras: pip install "gbplearn[cli]"')
    try:
        command = _parse(words)
        if command is not None:
            cache_programs()
            command.run()
    except BadInput as error:
        return _fail(str(error))
    except MemoryError as error:  # a batch that is too large
        return _fail(str(error) or "out of memory")
    except RuntimeError as error:  # inference diverged for good, or the like
        return _fail(str(error).split("\n")[0], _FAILED)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
        if argv is None:
            # Threads of JAX may still be computing; an interpreter that is taken down under them can crash.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_INTERRUPTED)
        return _INTERRUPTED
    return 0


def _fail(sentence: str, code: int = _BAD_INPUT) -> int:
    print(f"gbplearn: {sentence}", file=sys.stderr)
    return code


def _parse(words: list[str]) -> Command | None:
    """The command the words spell out; None if they asked for help, which is then printed."""
    import tyro

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                dict(COMMANDS),
                prog="gbplearn",
                description="Learn deep factor graphs with Gaussian belief propagation. (--version: which gbplearn)",
                args=words,
            )
    except SystemExit as end:
        if not end.code:
            return None
        raise BadInput(f"{_sentence(complaint.getvalue())} (see gbplearn --help)") from None


def _sentence(box: str) -> str:
    """What is wrong, from the box that tyro draws: the text between its title and the next rule."""
    lines = [line.strip(" │") for line in _COLOUR.sub("", box).splitlines()[1:]]
    text = itertools.dropwhile(_is_rule, lines)
    return " ".join(itertools.takewhile(lambda line: not _is_rule(line), text)).rstrip(".")


def _is_rule(line: str) -> bool:
    return not line.strip("─-╰╯")
