"""GBPDenoiser: arrays in, arrays of the same kind out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.progress import progress
from ...graph.graph import FactorGraph
from ...learner.learner import Learner
from .best import Beside, Denoised, Settings, denoise_best
from .layered import PAPER, LayeredModel, learn_frame
from .smooth_graph import LEAST, smooth_graph

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, TransformerMixin
else:
    try:
        from sklearn.base import BaseEstimator, TransformerMixin
    except ImportError:  # it is good for arrays without scikit-learn, too
        BaseEstimator, TransformerMixin = object, type("TransformerMixin", (), {})


# Frames that are larger are cleaned in tiles of this size, which overlap by this margin on every side.
TILE, MARGIN = 512, 16


LAYERED = {
    "pairwise": PAPER["pairwise"],
    "single-layer": PAPER["one layer, continual"],
    "five-layer": PAPER["five layers, continual"],
}
MODELS = ("best", "best-video", *LAYERED)


Given = tuple[np.ndarray, np.ndarray | None]  # a frame, and which of its pixels are not missing


class GBPDenoiser(TransformerMixin, BaseEstimator):
    """Cleans images and videos of which some pixels hold nonsense.

    ```python
    clean = GBPDenoiser().fit_transform(noisy)
    ```

    **Arguments:**

    - `model`: "best", hand-made factors with a switch for every pixel, frame by frame; "best-video", with factors to
        the frames before and after; or one of the paper's networks, "pairwise", "single-layer", "five-layer", the last
        two of which learn filters from frame to frame.
    - `settings`: of "best" and "best-video", `denoising.best.Settings`.

    There is nothing to `fit` beforehand: `transform` learns from the frames that it cleans, as does `fit_transform`.
    After it: `std_` (standard deviations, of the shape of the input) and `corrupt_` (the probability that a pixel held
    nonsense, without the channels; of "best" and "best-video" only).
    """

    def __init__(self, model: str = "best", settings: Settings | None = None):
        self.model, self.settings = model, settings

    def fit(self, x: Any, y: Any = None) -> GBPDenoiser:
        """Check the arguments; there is nothing to learn from other images."""
        if self.model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, got {self.model!r}")
        as_frames(np.asarray(x))
        return self

    def fit_transform(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Any, y: Any = None, *, mask: Any = None
    ) -> np.ndarray:
        """`fit`, and `transform`."""
        return self.transform(x, mask=mask)

    def transform(self, x: Any, *, mask: Any = None) -> np.ndarray:
        """The same image or video, clean.

        **Arguments:**

        - `x`: bytes, or numbers in [0, 1]; `(height, width)`, `(height, width, 3)` or `(frames, height, width, 3)`.
        - `mask`: True for pixels that are known to be missing; without the channels, one for all frames or one each.

        **Returns:** an array of the shape and type of `x`.
        """
        self.fit(x)
        x = np.asarray(x)
        frames = as_frames(x)
        holes = _as_masks(mask, frames.shape)
        found = list(self.frames(progress(list(frames), "denoise"), holes))
        self.std_ = np.stack([f.std for f in found]).reshape(x.shape)
        corrupt = np.stack([f.corrupt for f in found])
        self.corrupt_ = corrupt if x.ndim == 4 else corrupt[0]
        return as_type(np.stack([f.mean for f in found]).reshape(x.shape), x.dtype)

    def frames(self, frames: Iterable[np.ndarray], holes: np.ndarray | None = None) -> Iterator[Denoised]:
        """Frame after frame `(height, width, channels)` of numbers in [0, 1], what is believed of each."""
        given = ((f, None if holes is None else ~holes[min(i, len(holes) - 1)]) for i, f in enumerate(frames))
        if self.model == "best":
            alone = partial(denoise_best, settings=self.settings)
            yield from (in_tiles(alone, frame, present) for frame, present in given)
        elif self.model == "best-video":
            yield from _with_neighbours(given, Settings() if self.settings is None else self.settings)
        else:
            yield from _learnt(LAYERED[self.model], given)


def graph_of(model: str, shape: tuple[int, ...], alone: bool = False) -> FactorGraph:
    """The graph of a black frame `(height, width, channels)`; of a large one, that of one of its tiles.

    `alone`: there are no frames beside it.
    """
    size = [min(n, TILE + 2 * MARGIN) for n in shape[:2]]
    if model in LAYERED:
        return LAYERED[model].network().graph(np.zeros((1, *LAYERED[model].fitting((*size, shape[-1]))), np.float32))
    image, ones = np.zeros((*size, shape[-1]), np.float32), np.ones(shape[-1])
    others = dict.fromkeys(Settings().beside, (image, image)) if model == "best-video" and not alone else {}
    return smooth_graph(image, image, 1.0, ones, ones, others)


def _learnt(model: LayeredModel, given: Iterable[Given]) -> Iterator[Denoised]:
    """The tiles of a large frame are to the learner what frames are: filters are learnt on from one to the next."""
    learners: dict[tuple[int, ...], Learner] = {}  # of each size of frames, or tiles
    messages: dict[Any, Any] = {}  # messages of each tile, for the same place in the next frame
    count = itertools.count()

    def clean(frame: np.ndarray, present: np.ndarray | None, beside: Mapping[str, Beside]) -> Denoised:
        if frame.shape not in learners:
            learners[frame.shape] = model.learner(model.fitting(frame.shape))
        place = frame.shape, next(count)
        mean, std, report = learn_frame(learners[frame.shape], frame, present, model.carry, messages.get(place))
        messages[place] = report.carried
        return Denoised(mean, std, np.full(frame.shape[:2], np.nan), report.trace)

    for frame, present in given:
        count = itertools.count()
        yield in_tiles(clean, frame, present)


def _with_neighbours(given: Iterable[Given], settings: Settings) -> Iterator[Denoised]:
    """Each frame alone first, then again beside the one before, as it was found, and the next, alone."""
    before: Denoised | None = None
    now: tuple[Given, Denoised] | None = None
    for frame, present in given:
        after = in_tiles(partial(denoise_best, settings=settings), frame, present)
        if now is not None:
            before = _beside(*now, before, after, settings)
            yield before
        now = (frame, present), after
    if now is not None:
        yield _beside(*now, before, None, settings)


def _beside(
    given: Given, alone: Denoised, before: Denoised | None, after: Denoised | None, settings: Settings
) -> Denoised:
    from .flow import moved_to

    if before is None and after is None:
        return alone
    # The first and the last frame have one that is not there, which counts for nothing: so that there is one program.
    others = {
        name: Beside(alone.mean, np.zeros(alone.corrupt.shape))
        if other is None
        else moved_to(alone.mean, other.mean, 1 - other.corrupt)
        for name, other in (("previous", before), ("next", after))
        if name in settings.beside
    }
    return in_tiles(partial(denoise_best, settings=settings), *given, others)


def in_tiles(
    clean: Callable[..., Denoised],
    frame: np.ndarray,
    present: np.ndarray | None = None,
    beside: Mapping[str, Beside] | None = None,
    tile: int = TILE,
    margin: int = MARGIN,
) -> Denoised:
    """A frame of any size: a large one tile by tile, so that memory and programs stay small.

    All tiles have one size, and overlap; what is near the border of a tile comes from its neighbour.

    **Arguments:**

    - `clean`: cleans a tile, `clean(frame, present, beside=...)`: `denoise_best`, or another.
    """
    height, width = frame.shape[:2]
    if max(height, width) <= tile + 2 * margin:
        return clean(frame, present, beside=beside or {})
    whole, trace = Denoised(np.zeros(frame.shape), np.zeros(frame.shape), np.zeros(frame.shape[:2])), None
    for top, rows in _spans(height, tile, margin):
        for left, columns in _spans(width, tile, margin):
            where = np.s_[top.start : top.stop, left.start : left.stop]
            others = {name: Beside(*(a[where] for a in other)) for name, other in (beside or {}).items()}
            part = clean(frame[where], None if present is None else present[where], beside=others)
            inner = _inside(top, rows), _inside(left, columns)
            for into, found in zip(whole[:3], part[:3]):
                into[rows.start : rows.stop, columns.start : columns.stop] = found[inner]
            trace = trace or part.trace
    return whole._replace(trace=trace)


def _inside(tile: range, kept: range) -> slice:
    return slice(kept.start - tile.start, kept.stop - tile.start)


def _spans(length: int, tile: int, margin: int) -> list[tuple[range, range]]:
    """Along an axis: what each tile covers, and the part of it that is kept."""
    size = min(length, tile + 2 * margin)
    count = max(1, -(-(length - 2 * margin) // tile))
    starts = [min(i * tile, length - size) for i in range(count)]
    cuts = [0, *(start + margin for start in starts[1:]), length]
    return [(range(s, s + size), range(a, b)) for s, a, b in zip(starts, cuts, cuts[1:])]


def as_frames(x: np.ndarray) -> np.ndarray:
    """`(frames, height, width, channels)`, numbers in [0, 1]; a `ValueError` says what is no image."""
    if x.ndim not in (2, 3, 4) or (x.ndim > 2 and x.shape[-1] not in (1, 3)):
        raise ValueError(
            f"images must have shape (height, width), (height, width, 3) or (frames, height, width, 3), got {x.shape}"
        )
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise ValueError(f"images must be bytes or numbers in [0, 1], got {x.dtype}")
    frames = x[None, ..., None] if x.ndim == 2 else x[None] if x.ndim == 3 else x
    if min(frames.shape[1:3]) < LEAST or not len(frames):
        raise ValueError(f"images must have at least {LEAST} x {LEAST} pixels, got {x.shape}")
    if x.dtype == np.uint8:
        return frames / np.float32(255)
    if not (np.isfinite(frames).all() and frames.min() >= 0 and frames.max() <= 1):
        raise ValueError("images must be bytes or numbers in [0, 1], got others (divide by the largest value)")
    return frames


def as_type(frames: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers in [0, 1], or bytes."""
    frames = np.clip(frames, 0, 1)
    return np.round(255 * frames).astype(np.uint8) if dtype == np.uint8 else frames.astype(dtype)


def _as_masks(mask: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    if mask is None:
        return None
    mask = np.asarray(mask)
    mask = mask[None] if mask.ndim == 2 else mask
    if mask.dtype != bool or mask.shape[1:] != shape[1:3] or len(mask) not in (1, shape[0]):
        raise ValueError(f"mask must be True or False for each of {shape[1:3]} pixels, got {mask.dtype} {mask.shape}")
    if mask.all((1, 2)).any():
        raise ValueError("mask says that all pixels are missing")
    return mask
