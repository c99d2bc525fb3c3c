"""Strengths of the classical denoisers: the best mean PSNR on frames 0, 2 and 4 of the bear.

python benchmarks/denoiser_search.py FOLDER     # that holds davis-bear
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from gbplearn.apps.baselines import classical_denoisers as classical
from gbplearn.apps.data.video import corrupt, load_bear
from gbplearn.apps.image_scores import psnr

TRIED = {
    "median": ("size", (3, 5)),
    "total_variation": ("weight", (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)),
    "non_local_means": ("h", (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)),
    "wavelet": ("sigma", (0.05, 0.1, 0.15, 0.2, 0.3)),
    "bilateral": ("colour", (0.03, 0.05, 0.1, 0.2, 0.3, 0.5)),
}


def main() -> None:
    clean = load_bear(Path(sys.argv[1]), 5)[::2] / 255
    noisy, _ = corrupt(clean, 0.1, 0)
    for name, (option, values) in TRIED.items():
        for value in values:
            found = [getattr(classical, name)(frame, **{option: value}) for frame in noisy]
            print(name, option, value, f"{np.mean([psnr(np.clip(f, 0, 1), c) for f, c in zip(found, clean)]):.2f} dB")


if __name__ == "__main__":
    main()
