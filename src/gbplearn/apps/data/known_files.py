"""The published files of the data sets: their names, what they hold, and where they can be had."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Download:
    """A file that can be fetched: from the first of these addresses that responds, checked by its md5."""

    addresses: tuple[str, ...]
    md5: str


@dataclasses.dataclass(frozen=True)
class KnownFiles:
    """A data set.

    **Arguments:**

    - `content`: md5 of each file, unpacked, by its published name.
    - `downloads`: the packed files, by the name they are kept under.
    """

    content: dict[str, str]
    downloads: dict[str, Download]


IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def _idx(addresses: tuple[str, ...], packed: tuple[str, ...], content: tuple[str, ...]) -> KnownFiles:
    downloads = {
        f"{file}.gz": Download(tuple(f"{a}{file}.gz" for a in addresses), md5) for file, md5 in zip(IDX_FILES, packed)
    }
    return KnownFiles(dict(zip(IDX_FILES, content)), downloads)


KNOWN: dict[str, KnownFiles] = {
    "mnist": _idx(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    "fashion-mnist": _idx(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    "cifar10": KnownFiles(
        {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        {
            "cifar-10-binary.tar.gz": Download(
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), "c32a1d4ab5d03f1284b67883e8d87530"
            )
        },
    ),
}


def check_content(data: bytes, name: str, file: str, path: Path) -> None:
    """Refuse bytes that are not those of the published file, by name."""
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != KNOWN[name].content[file]:
        raise ValueError(f"{path}: it is not the published {file} of {name} (another md5): damaged, or another file")
