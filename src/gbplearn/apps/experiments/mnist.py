"""MNIST, one pass: the paper's Section 4.3 and the first column of its Table 1."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from .image_stream import ImageStream


@dataclasses.dataclass(frozen=True)
class Mnist(ImageStream):
    """Handwritten digits; FashionMNIST stands for images of another kind."""

    name: ClassVar[str] = "mnist"
    data: ClassVar[str] = "mnist"
    title: ClassVar[str] = "MNIST, one pass"
    seeds: ClassVar[int] = 5
    published: ClassVar[dict[str, str]] = {"test accuracy/fixed": "0.9816 ± 0.0003 (5 seeds)"}
    unknown: ClassVar[str | None] = "fashion-mnist"
