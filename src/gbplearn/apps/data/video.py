"""Videos as arrays: folders of frames, and noise to put on them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .download import data_folder


class Clip(NamedTuple):
    """Frames of a video in a folder."""

    folder: str
    frames: int
    size: tuple[int, int]  # height, width: frames are resized to it


BEAR = Clip("davis-bear", 82, (258, 454))  # that of the paper
FRAMES = BEAR.frames
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")


def load_bear(folder: str | Path | None = None, count: int | None = None, clip: Clip = BEAR) -> np.ndarray:
    """The bear of DAVIS (480p, 82 frames) as the paper has it: bytes `(frames, 258, 454, 3)`.

    **Arguments:**

    - `folder`: where `davis-bear/00000.jpg ... 00081.jpg` are; by default as `load_images`.
    - `count`: the first so many frames; None for all.
    - `clip`: another video, whose folder has another name, number of frames or size.
    """
    place = data_folder(folder, clip.folder) / clip.folder
    if not place.is_dir():
        raise ValueError(f"{place}: there is no such folder; put the frames of DAVIS/JPEGImages/480p/bear there")
    found = frame_files(place)
    if len(found) != clip.frames:
        raise ValueError(f"{place} holds {len(found)} frames, the bear has {clip.frames}")
    return np.stack([read_image(path, clip.size) for path in found[:count]])


def frame_files(folder: Path) -> list[Path]:
    """Images in a folder in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)


def read_image(path: Path, size: tuple[int, int] | None = None, grey: bool = False) -> np.ndarray:
    """Bytes `(height, width, channels)` of an image file; a `ValueError` says in one line what is wrong with it.

    **Arguments:**

    - `size`: (height, width) to resize it to (bilinear, antialiased).
    - `grey`: a grey image has one channel; else all have three.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with _open(path) as opened:
            deep = opened.mode.startswith(("I", "F"))  # more than eight bits
            whole = _in_bytes(opened) if deep else opened
            if opened.mode == "P" and "transparency" in opened.info:
                whole = opened.convert("RGBA")  # else Pillow warns
            image = whole.convert("L" if grey and (deep or opened.mode in ("1", "L", "LA")) else "RGB")
    except UnidentifiedImageError:
        raise ValueError(f"{path} is no image") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if size is not None:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _open(path: Path) -> Any:
    """As `Image.open`, without its warning of images that are large, but not too large to be read."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            return Image.open(path)
        except Image.DecompressionBombError:
            raise ValueError(f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels") from None


def _in_bytes(image: Any) -> Any:
    """A grey image of 16 bits as one of 8."""
    from PIL import Image

    values = np.asarray(image)
    if not np.issubdtype(values.dtype, np.integer) or values.min() < 0 or values.max() > 65535:
        raise ValueError("its values are not those of 8 or 16 bits")
    return Image.fromarray(np.round(values / 257).astype(np.uint8))


def corrupt(video: np.ndarray, share: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A share of the pixels replaced by uniform noise: all channels of a pixel, each with a value of its own.

    A frame's noise does not depend on how many frames follow.

    **Arguments:**

    - `video`: `(frames, height, width, channels)` in [0, 1].
    - `share`: of the pixels, in [0, 1].

    **Returns:** the noisy video, float32, and which pixels `(frames, height, width)` were replaced.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be a number in [0, 1], got {share!r}")
    noisy, masks = [], []
    for number, frame in enumerate(video):
        rng = np.random.default_rng((seed, number))
        mask = rng.random(frame.shape[:2]) < share
        noisy.append(np.where(mask[..., None], rng.random(frame.shape), frame).astype(np.float32))
        masks.append(mask)
    return np.stack(noisy), np.stack(masks)
