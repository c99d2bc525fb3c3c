"""Images, folders of frames and videos, read frame by frame and written whole or not at all."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ...core.files import PARTIAL, target_of, write_whole
from ..data.video import ENDINGS, frame_files, read_image

VIDEOS = (".mp4", ".gif", ".avi", ".mkv", ".mov", ".webm")


@dataclasses.dataclass(frozen=True)
class Frames:
    """What is to be cleaned.

    **Arguments:**

    - `kind`: "image", "folder" or "video".
    - `names`: of the frames, without an ending; of a video numbers.
    - `rate`: frames a second of a video.
    - `read`: the frames, bytes `(height, width, channels)`, all of one size; grey images have one channel.
    """

    kind: str
    names: list[str]
    rate: Fraction
    read: Callable[[], Iterator[np.ndarray]]

    def __len__(self) -> int:
        """How many frames."""
        return len(self.names)


def open_frames(path: Path) -> Frames:
    """An image, a folder of images or a video; a `ValueError` says in one line what is wrong."""
    if path.is_dir():
        files = frame_files(path)
        if not files:
            raise ValueError(f"{path} holds no images ({', '.join(ENDINGS)})")
        return Frames("folder", [f.stem for f in files], Fraction(25), lambda: _same_size(map(_read, files), path))
    if not path.exists():
        raise ValueError(f"{path}: there is no such file")
    if path.suffix.lower() in VIDEOS:
        count, rate = _count(path)
        names = [f"{i:05}" for i in range(count)]
        return Frames("video", names, rate, lambda: _same_size(_decode(path), path))
    return Frames("image", [path.stem], Fraction(1), lambda: iter([_read(path)]))


def _read(path: Path) -> np.ndarray:
    return read_image(path, grey=True)


def _same_size(frames: Iterable[np.ndarray], path: Path) -> Iterator[np.ndarray]:
    first = None
    for number, frame in enumerate(frames):
        if first is not None and frame.shape != first:
            raise ValueError(f"{path}: frame {number} is {size_of(frame.shape)}, those before are {size_of(first)}")
        first = frame.shape
        yield frame


def size_of(shape: tuple[int, ...]) -> str:
    """The shape of an image in words."""
    return f"{shape[1]} x {shape[0]}" + (" (grey)" if shape[2:] == (1,) else "")


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise ValueError('videos need PyAV: pip install "gbplearn[video]" (or give a folder of frames)') from None
    return av


def _count(path: Path) -> tuple[int, Fraction]:
    """Frames, and how many a second; decoded once, since what files say of themselves is not always so."""
    count = sum(1 for _ in _decode(path))
    if not count:
        raise ValueError(f"{path} holds no frames")
    with _av().open(str(path)) as file:
        return count, Fraction(file.streams.video[0].average_rate or 25)


def _decode(path: Path) -> Iterator[np.ndarray]:
    av = _av()
    try:
        with av.open(str(path)) as file:
            if not file.streams.video:
                raise ValueError(f"{path} holds no video")
            for frame in file.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
    except av.FFmpegError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None


class Output:
    """Where frames go: an image, a folder of PNG files, or a video, by the kind of the input and the name given.

    Nothing is there under its name before `finish`.
    """

    def __init__(self, path: Path, frames: Frames):
        self.path, self.frames, self._count = path, frames, 0
        single = path.suffix.lower()
        if frames.kind == "image" and single not in ENDINGS:
            raise ValueError(f"{path}: an image ends with {', '.join(ENDINGS)}")
        if frames.kind != "image" and single in ENDINGS:
            raise ValueError(f"{path}: {len(frames)} frames do not fit into an image; give a folder or a video")
        if path.is_dir() and frames.kind == "image":
            raise ValueError(f"{path} is a folder")
        self.video = frames.kind != "image" and single in VIDEOS
        self.folder = frames.kind != "image" and not self.video
        if self.folder and path.exists():
            raise ValueError(f"{path} is there already")
        if not path.parent.is_dir():
            raise ValueError(f"{path.parent}: there is no such folder")
        try:
            self._target = target_of(path)
        except OSError as error:
            raise ValueError(str(error)) from None
        beside = self._target.parent
        try:
            self._private = Path(tempfile.mkdtemp(dir=beside, prefix=PARTIAL[0], suffix=PARTIAL[1]))
        except OSError as error:
            raise ValueError(f"cannot write to {beside}: {error.strerror}") from None
        self._partial = self._private / f"partial{path.suffix}"
        if self.folder:
            self._partial.mkdir()
        self._file: Any = None
        self._stream: Any = None

    def add(self, image: np.ndarray) -> None:
        """The next frame: bytes `(height, width, channels)`."""
        if self.video:
            self._encode(image)
        elif self.folder:
            write_image(self._partial / f"{self.frames.names[self._count]}.png", image)
        else:
            write_image(self._partial, image, self.path.suffix)
        self._count += 1

    def _encode(self, image: np.ndarray) -> None:
        av = _av()
        height, width = image.shape[:2]
        if self._file is None:
            self._file = av.open(str(self._partial), "w")
            codec, pixels = ("gif", "rgb8") if self.path.suffix.lower() == ".gif" else ("h264", "yuv420p")
            self._stream = self._file.add_stream(codec, rate=self.frames.rate)
            # This codec keeps a colour for four pixels: sides must be even.
            even = 1 if codec == "gif" else 2
            self._stream.width, self._stream.height = width - width % even, height - height % even
            self._stream.pix_fmt = pixels
        image = np.repeat(image, 3, -1) if image.shape[-1] == 1 else image
        frame = av.VideoFrame.from_ndarray(image[: self._stream.height, : self._stream.width].copy(), format="rgb24")
        self._file.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Give it its name."""
        if self._file is not None:
            self._file.mux(self._stream.encode())
            self._file.close()
        if self.folder:
            self._partial.rename(self._target)
        else:
            with self._partial.open("rb") as made:
                write_whole(self._target, lambda file: shutil.copyfileobj(made, file))

    def abandon(self) -> None:
        """Leave nothing else behind."""
        if self._file is not None:
            self._file.close()
        shutil.rmtree(self._private, ignore_errors=True)


def write_image(path: Path, image: np.ndarray, suffix: str = ".png") -> None:
    """Bytes `(height, width, channels)` as an image file of the kind that the suffix says."""
    from PIL import Image

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    kind = Image.registered_extensions()[suffix.lower()]
    more = {"quality": 95} if kind == "JPEG" else {}
    write_whole(path, lambda file: picture.save(file, format=kind, **more))
