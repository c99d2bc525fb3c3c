"""FashionMNIST, one pass: the paper's Section 4.3 and the second column of its Table 1."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from .image_stream import ImageStream


@dataclasses.dataclass(frozen=True)
class FashionMnist(ImageStream):
    """Clothes."""

    name: ClassVar[str] = "fashion-mnist"
    data: ClassVar[str] = "fashion-mnist"
    title: ClassVar[str] = "FashionMNIST, one pass"
    seeds: ClassVar[int] = 3
    published: ClassVar[dict[str, str]] = {"test accuracy/fixed": "0.882 ± 0.001 (5 seeds)"}
