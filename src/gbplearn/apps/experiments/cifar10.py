"""CIFAR10, one pass: the paper's Section 4.3 and the third column of its Table 1."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from .image_stream import ImageStream


@dataclasses.dataclass(frozen=True)
class Cifar10(ImageStream):
    """Colour photographs of 32 x 32 pixels."""

    compared: tuple[str, ...] = ("adam", "adam cosine", "linear")
    compared_seeds: int = 1

    name: ClassVar[str] = "cifar10"
    data: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "CIFAR10, one pass"
    seeds: ClassVar[int] = 3
    published: ClassVar[dict[str, str]] = {"test accuracy/fixed": "0.531 ± 0.003 (5 seeds)"}
