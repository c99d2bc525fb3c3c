"""Would learnt filters help the denoiser "best"? Frame 0 of the bear, one noise seed.

Stencils learnt by regression on the intact pixels, in the place of the Laplacian, given the true mask; and the share of
another method's image that would be best on the corrupt pixels, knowing the truth.

python benchmarks/learnt_filters.py FOLDER [IMAGE.png]     # FOLDER holds davis-bear; IMAGE is frame 0 by a network
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.linalg import spsolve

from gbplearn import cache_programs
from gbplearn.apps.data.video import corrupt, load_bear, read_image
from gbplearn.apps.denoising.best import denoise_best
from gbplearn.apps.image_scores import psnr

Offsets = list[tuple[int, int]]
CROSS = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


def differences(shape: tuple[int, ...], offsets: Offsets, weights: np.ndarray, reach: int) -> sparse.csr_matrix:
    """A row for each pixel that is `reach` away from the border."""
    height, width = shape
    rows, columns = np.mgrid[reach : height - reach, reach : width - reach]
    n = rows.size
    places = [((rows + i) * width + columns + j).ravel() for i, j in offsets]
    at = np.tile(np.arange(n), len(offsets)), np.concatenate(places)
    return sparse.csr_matrix((np.repeat(weights, n), at), (n, height * width))


def regression(channel: np.ndarray, mask: np.ndarray, offsets: Offsets, reach: int) -> tuple[np.ndarray, float]:
    """A pixel from its neighbours, where all of them are intact: weights, and the variance of what is left."""
    height, width = mask.shape
    rows, columns = np.mgrid[reach : height - reach, reach : width - reach]
    intact = ~mask[rows, columns]
    for i, j in offsets:
        intact = intact & ~mask[rows + i, columns + j]
    x = np.stack([channel[rows + i, columns + j][intact] for i, j in offsets], -1)
    y = channel[rows, columns][intact]
    w = np.linalg.solve(x.T @ x + 1e-3 * np.eye(len(offsets)), x.T @ y)
    return w, float(np.var(y - x @ w))


def filled(channel: np.ndarray, mask: np.ndarray, parts: list[tuple[sparse.csr_matrix, float]]) -> np.ndarray:
    """Least squares of all differences over the pixels of the mask."""
    precision = sum((a.T @ a) / variance for a, variance in parts).tocsr()
    hole, known, out = np.flatnonzero(mask.ravel()), np.flatnonzero(~mask.ravel()), channel.copy().ravel()
    out[hole] = spsolve(precision[hole][:, hole].tocsc(), -(precision[hole][:, known] @ out[known]))
    return out.reshape(channel.shape)


def main() -> None:
    cache_programs()
    clean = load_bear(Path(sys.argv[1]), 1)[0] / 255
    noisy, masks = (found[0] for found in corrupt(clean[None], 0.1, 0))
    laplacian = differences(masks.shape, CROSS, np.array([-4.0, 1, 1, 1, 1]), 1)

    def told(name: str, offsets: Offsets | None, reach: int) -> None:
        image = np.empty_like(clean)
        for k in range(3):
            parts = [(laplacian, 1.0)]
            if offsets is not None:
                w, variance = regression(noisy[..., k].astype(float), masks, offsets, reach)
                learnt = differences(masks.shape, [(0, 0), *offsets], np.array([1.0, *(-w)]), reach)
                parts = [(learnt, variance), (laplacian, 1e4 * variance)]  # which alone reaches the border
            image[..., k] = filled(noisy[..., k].astype(float), masks, parts)
        print(f"{name}: {psnr(np.clip(image, 0, 1), clean):.2f} dB")

    told("Laplacian", None, 1)
    for reach in (1, 2):
        around = [(i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1) if (i, j) != (0, 0)]
        told(f"learnt, {2 * reach + 1} squared", around, reach)
        told(f"learnt, half of {2 * reach + 1} squared", [o for o in around if o < (0, 0)], reach)
    if len(sys.argv) > 2:
        best = denoise_best(noisy).mean
        off, apart = (best - clean)[masks], (read_image(Path(sys.argv[2])) / 255 - best)[masks]
        share = -(off * apart).sum() / (apart**2).sum()
        print(
            f"best: {psnr(off, 0 * off):.2f} dB on corrupt pixels, with {share:.0%} of the other "
            f"{psnr(off + share * apart, 0 * off):.2f} dB"
        )


if __name__ == "__main__":
    main()
