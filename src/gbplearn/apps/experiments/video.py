"""A video with noise: the paper's Section 4.2, Appendices D and E.

The bear of DAVIS, 82 frames of 258 x 454; a tenth of the pixels are replaced by noise. Five methods: pairwise
smoothing, and filters that paint the image, one layer of them or three (five layers with those between), learnt anew
from every frame or on from the frame before. All that they see are the noisy frames, one after the other.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from ...core.progress import progress
from ...io.checkpoint import load, save
from ...network.warm_start import read_messages, write_messages
from ..data.video import BEAR, Clip, corrupt, load_bear
from ..denoising.layered import BETWEEN, PAPER, learn_frame
from ..image_scores import psnr
from ..report.record import Clock, settings_hash
from .experiment import SeedRun, rows_by_read_out, total_cost
from .parts import InParts, Parts, check_same
from .video_figure import draw_curves, draw_pictures, read_picture, write_picture

SHOWN = 5  # the frame that the paper shows


# What becomes of the filters with more or less of what was learnt before.
_ONE = PAPER["one layer, continual"]
ALPHAS = {
    **{f"one layer, alpha {a:g}": dataclasses.replace(_ONE, alpha=a) for a in (0.0, 0.25, 0.75)},
    "five layers, alpha 0.5": dataclasses.replace(PAPER["five layers, continual"], alpha=0.5),
}
# What becomes of them if all messages of a frame begin anew, or go on although filters do not.
ANEW = {
    "five layers, continual, anew": dataclasses.replace(PAPER["five layers, continual"], carry=()),
    "five layers, per frame, carried": dataclasses.replace(PAPER["five layers, per frame"], carry=BETWEEN),
}
METHODS = {**PAPER, **ALPHAS, **ANEW}


@dataclasses.dataclass(frozen=True)
class Video(InParts):
    """A seed is that of the noise, and of the prior means of the filters.

    **Arguments:**

    - `methods`: which of them.
    - `frames`: the first so many.
    - `share`: of the pixels that are replaced.
    - `data_dir`: the folder that holds `davis-bear`; no setting.
    """

    methods: tuple[str, ...] = tuple(PAPER)
    frames: int = BEAR.frames
    share: float = 0.1
    data_dir: Path | None = None

    clip: ClassVar[Clip] = BEAR
    name: ClassVar[str] = "video"
    title: ClassVar[str] = "A video with noise"
    seeds: ClassVar[int] = 1
    read_out: ClassVar[dict[str, str]] = dict.fromkeys(METHODS, "means of the pixels in the graph that learns")
    published: ClassVar[dict[str, str]] = {
        f"PSNR, frame {SHOWN}/pairwise": "31.1; 32.6 and 32.9 (one layer); 33.4 and 34.3 (five layers)"
    }
    caption: ClassVar[str] = (
        "Peak signal-to-noise ratio of every frame, in decibels: mean over seeds, shaded: one standard error."
    )

    def __post_init__(self):
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(f"a method must be one of {'; '.join(METHODS)}, got {method!r}")
        if not 1 <= self.frames <= self.clip.frames:
            raise ValueError(f"frames must be a number from 1 to {self.clip.frames}, got {self.frames}")

    def settings(self) -> dict[str, Any]:
        """With the networks."""
        return {**super().settings(), "chosen": {m: self._of(m) for m in self.methods}}

    def _of(self, method: str) -> dict[str, Any]:
        """All that a method's numbers depend on."""
        how = METHODS[method]
        return {
            **how.options(),
            **({"carry": list(how.carry)} if how.carry else {}),
            "schedule": repr(how.schedule),
            "share": self.share,
            "network": repr(how.network()),
        }

    def _clean(self) -> np.ndarray:
        return (load_bear(self.data_dir, self.frames, self.clip) / 255).astype(np.float32)

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Every method is a part of its own, which goes on after its last frame."""
        clean = self._clean()
        noisy, masks = corrupt(clean, self.share, seed)
        before, metrics, curves, costs = True, {}, {}, []
        for method in self.methods:
            parts, name = Parts(folder, self._of(method)), _file(seed, method)
            # A frame does not depend on how many follow: what was run for more will do, and fewer are a beginning.
            done = parts.has(name) and len(parts.read(name, "frames", "cost")["frames"]["psnr"]) >= self.frames
            before &= done
            if not done:
                parts.write(name, self._run(method, clean, noisy, masks, seed, folder))
            held = parts.read(name, "frames", "cost")
            measured = {what: values[: self.frames] for what, values in held["frames"].items()}
            metrics |= self._numbers(method, measured)
            curves[method] = measured["psnr"]
            costs.append(held["cost"])
        kept = {"psnr": curves, "folder": str(folder), "seed": seed}
        return SeedRun(seed, metrics, kept, before=before, cost=total_cost(costs))

    def _run(
        self, method: str, clean: np.ndarray, noisy: np.ndarray, masks: np.ndarray, seed: int, folder: Path
    ) -> dict[str, Any]:
        """Frame after frame; what was reached is in a checkpoint after each."""
        path, clock = folder / f"{_file(seed, method)}.safetensors", Clock()
        learner = METHODS[method].learner(clean.shape[1:], seed)
        measured: dict[str, list[float]] = {
            n: [] for n in ("psnr", "psnr of corrupt pixels", "cpu", "refused", "guard")
        }
        earlier = 0.0
        if path.exists():
            learner = load(path)
            check_same(path, learner.note.get("settings"), self._of(method))
            measured = json.loads(learner.note["frames"])
            earlier = float(learner.note["seconds"])
        begin, spent, carry = time.perf_counter(), sum(measured["cpu"]), METHODS[method].carry
        messages = read_messages(_messages(path, len(measured["psnr"]) - 1)) if carry and measured["psnr"] else None

        def tell() -> str:
            return f"{np.mean(measured['psnr']):.2f} dB" if measured["psnr"] else ""

        for number in progress(range(len(measured["psnr"]), len(noisy)), f"{method}, seed {seed}", status=tell):
            cpu = time.process_time()
            image, _, report = learn_frame(learner, noisy[number], None, carry, messages)
            messages = report.carried
            if carry:
                write_messages(_messages(path, number), messages or {})
            mask = masks[number]
            measured["cpu"].append(time.process_time() - cpu)
            measured["psnr"].append(psnr(image, clean[number]))
            measured["psnr of corrupt pixels"].append(psnr(image[mask], clean[number][mask]))
            measured["refused"].append(float(not report.accepted))
            measured["guard"].append(float(bool(report.guard)))
            if number <= SHOWN:  # of which the last is shown
                write_picture(_picture(folder, seed, method, number), image)
            seconds = earlier + time.perf_counter() - begin
            note = {"settings": settings_hash(self._of(method)), "frames": json.dumps(measured), "seconds": seconds}
            save(learner, path, note)
            _messages(path, number - 1).unlink(missing_ok=True)
        cost = clock.cost()
        cost["seconds"] += earlier
        cost["cpu_seconds"] += spent
        return {"frames": measured, "cost": cost}

    @staticmethod
    def _numbers(method: str, measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
        shown = min(SHOWN, len(measured["psnr"]) - 1)
        return {
            f"PSNR, frame {shown}/{method}": measured["psnr"][shown],
            f"PSNR, first 10 frames/{method}": float(np.mean(measured["psnr"][:10])),
            f"PSNR, all frames/{method}": float(np.mean(measured["psnr"])),
            f"PSNR of corrupt pixels, all frames/{method}": float(np.mean(measured["psnr of corrupt pixels"])),
            f"CPU seconds a frame/{method}": float(np.median(measured["cpu"])),  # the first one compiles
            f"refused frames/{method}": float(np.sum(measured["refused"])),
            f"frames with the guard/{method}": float(np.sum(measured["guard"])),
        }

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A column a method."""
        return rows_by_read_out(results)

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """PSNR over the frames."""
        return draw_curves([r.kept["psnr"] for r in runs])

    def pictures(self, runs: Sequence[SeedRun]) -> dict[str, tuple[Figure, str]]:
        """A frame of the first seed, whole and a part of it: clean, noisy, and what each method makes of it."""
        shown, seed, folder = min(SHOWN, self.frames - 1), runs[0].kept["seed"], Path(runs[0].kept["folder"])
        clean = self._clean()
        images = {"clean": clean[shown], "noisy": corrupt(clean, self.share, seed)[0][shown]}
        images |= {m: read_picture(_picture(folder, seed, m, shown)) for m in self.methods}
        words = f"Frame {shown}: clean, noisy, and as each method has it, with its PSNR in decibels"
        return {
            "frame": (draw_pictures(images), f"{words}."),
            "crop": (draw_pictures(images, crop=True), f"{words} for the whole frame; a part of it."),
        }


@dataclasses.dataclass(frozen=True)
class VideoAlpha(Video):
    """How much is kept from frame to frame: of the filters, `alpha` of `gbp.Filtering`; and messages, or none.

    Does one layer learn the noise, and do five not, as the paper says?
    """

    methods: tuple[str, ...] = (*ALPHAS, "one layer, continual", "five layers, continual", *ANEW)

    name: ClassVar[str] = "video-alpha"
    title: ClassVar[str] = "A video with noise: how much is kept"
    published: ClassVar[dict[str, str]] = {}


def _file(seed: int, method: str) -> str:
    return f"seed-{seed}-{method.replace(', ', '-').replace(' ', '-')}"


def _messages(checkpoint: Path, number: int) -> Path:
    """Of a frame, for the next one."""
    return checkpoint.with_name(f"{checkpoint.stem}-{number}.npz")


def _picture(folder: Path, seed: int, method: str, number: int) -> Path:
    return folder / f"{_file(seed, method)}-{number}.png"
