"""`gbplearn denoise`: the user's own image, folder of frames or video."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...core.progress import progress
from ...show.page import write_or_say
from ..image_scores import psnr, ssim
from ..report.record import Clock
from .cleaned import Cleaned
from .denoiser import LAYERED, GBPDenoiser, as_frames, as_type, graph_of
from .pictures import Frames, Output, open_frames, size_of

# Standard deviations are drawn from black, 0, to white: this much and more.
WHITE = 0.25


def denoise_file(
    source: Path,
    target: Path,
    *,
    model: str = "best",
    clean: Path | None = None,
    mask: Path | None = None,
    noise_map: Path | None = None,
    std: Path | None = None,
    report: bool = True,
) -> list[str]:
    """Clean a file or folder.

    If anything goes wrong, nothing is written; a `ValueError` says in one line what it was.

    **Arguments:**

    - `source`, `target`: an image; or a folder of frames or a video, each into a folder or a video.
    - `model`: as `GBPDenoiser`.
    - `clean`: the truth, to compare with: of the kind of the source.
    - `mask`: white where pixels are known to be missing: an image for all frames, or a folder or video of such.
    - `noise_map`, `std`: where to write the probability that a pixel held nonsense, and standard deviations, as images.
    - `report`: whether to write a page that shows what was done, `NAME.report.html` beside the target.

    **Returns:** what there is to say, line by line.
    """
    if noise_map is not None and model in LAYERED:
        raise ValueError(f"--noise-map: the model {model} does not say which pixels it took for nonsense; best does")
    paths = [p.resolve() for p in (source, target, noise_map, std) if p is not None]
    if len(set(paths)) < len(paths):
        raise ValueError("input and outputs must be different files: one would replace another")
    frames, clock = open_frames(source), Clock()
    reference = None if clean is None else _same_length(open_frames(clean), frames, clean)
    denoiser = GBPDenoiser(model)
    with ExitStack() as stack:
        outputs = {}
        for name, path in (("mean", target), ("corrupt", noise_map), ("std", std)):
            if path is not None:
                outputs[name] = Output(path, frames)
                stack.callback(outputs[name].abandon)
        cleaned = _clean(frames, denoiser, outputs, reference, mask)
        for output in outputs.values():
            output.finish()
    written, cost = [str(output.path) for output in outputs.values()], clock.cost()
    if report:
        from .report import write_report

        settings = {"input": source.name, "output": target.name, "model": model, "mask": mask and mask.name}
        written.append(write_or_say(lambda: write_report(target, cleaned, settings, cost)))
    return [*_warnings(source), *cleaned.summary(), *written]


def _warnings(source: Path) -> list[str]:
    """What a user should know of such a file."""
    if source.suffix.lower() not in (".jpg", ".jpeg"):
        return []
    return [
        "note: a JPEG smears wrong pixels over their neighbours; those that were there before it hardly"
        " stand out: use the picture from before it was compressed"
    ]


def _clean(
    frames: Frames, denoiser: GBPDenoiser, outputs: dict[str, Output], reference: Frames | None, mask: Path | None
) -> Cleaned:
    missing = None if mask is None else _missing(mask)
    scores: list[tuple[float, float, float]] = []
    corrupt: list[float] = []
    noisy: deque[np.ndarray] = deque()  # frames that have been read, and not yet cleaned
    first = None

    def read() -> Iterator[np.ndarray]:
        for frame in progress(_Sized(frames), "denoise", status=tell):
            if missing is not None and missing.shape[1:] != frame.shape[:2]:
                raise ValueError(f"{mask} is {size_of(missing[0].shape)}, what is to be cleaned {size_of(frame.shape)}")
            noisy.append(as_frames(frame)[0])
            yield noisy[-1]

    def tell() -> str:
        return f"{np.mean([s[1] for s in scores]):.2f} dB" if scores else ""

    truths = itertools.repeat(None) if reference is None else reference.read()
    for found, truth in zip(denoiser.frames(read(), missing), truths):
        given, right = noisy.popleft(), None
        outputs["mean"].add(as_type(found.mean, np.uint8))
        corrupt.append(float(found.corrupt.mean()))
        if "corrupt" in outputs:
            outputs["corrupt"].add(as_type(found.corrupt[..., None], np.uint8))
        if "std" in outputs:
            outputs["std"].add(as_type(found.std / WHITE, np.uint8))
        if truth is not None:
            if truth.shape != given.shape:
                raise ValueError(
                    f"the clean frames are {size_of(truth.shape)}, those to be cleaned {size_of(given.shape)}"
                )
            right, image = as_frames(truth)[0], np.clip(found.mean, 0, 1)
            scores.append((psnr(given, right), psnr(image, right), ssim(image, right)))
        first = first or (given, found, right)
    assert first is not None  # files without frames are refused when they are opened
    return Cleaned(graph_of(denoiser.model, first[0].shape, alone=len(frames) == 1), first, scores, corrupt)


class _Sized:
    """Frames that are read when they are asked for, but whose number is known."""

    def __init__(self, frames: Frames):
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def __iter__(self) -> Iterator[np.ndarray]:
        return self._frames.read()


def _same_length(reference: Frames, frames: Frames, path: Path) -> Frames:
    if len(reference) != len(frames):
        raise ValueError(f"{path} holds {len(reference)} frames, what is to be cleaned {len(frames)}")
    return reference


def _missing(path: Path) -> np.ndarray:
    """True where the images are white `(frames, height, width)`."""
    missing = np.stack([image.min(-1) > 127 for image in open_frames(path).read()])
    if missing.all((1, 2)).any():
        raise ValueError(f"{path} says that all pixels are missing")
    return missing
