"""What became of the frames that `gbplearn denoise` was given."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...graph.graph import FactorGraph
from .best import Denoised


@dataclasses.dataclass(frozen=True)
class Cleaned:
    """Numbers of all frames, and the first of them.

    **Arguments:**

    - `graph`: of a frame, with zeros for pixels.
    - `first`: the first frame as it was given, what was found, and the truth, if it is known.
    - `scores`: of each frame PSNR before and after, and SSIM; empty if the truth is not known.
    - `corrupt`: share of the pixels of each frame that held nonsense or were missing; NaN if the model does not say.
    """

    graph: FactorGraph
    first: tuple[np.ndarray, Denoised, np.ndarray | None]
    scores: list[tuple[float, float, float]]
    corrupt: list[float]

    def mean_scores(self) -> tuple[float, float, float]:
        """Over the frames: PSNR before and after, and SSIM."""
        before, after, alike = np.mean(self.scores, 0).tolist()
        return before, after, alike

    def summary(self) -> list[str]:
        """What there is to print, line by line."""
        lines = []
        if not np.isnan(self.corrupt[0]):
            lines.append(f"{np.mean(self.corrupt):.1%} of the pixels held nonsense or were missing")
        if self.scores:
            before, after, alike = self.mean_scores()
            lines.append(f"PSNR {after:.2f} dB (noisy: {before:.2f} dB), SSIM {alike:.4f}")
        groups = (f"{name} {factor.factors:,}" for name, factor in self.graph.factors.items())
        return [*lines, f"factors a graph: {', '.join(groups)}"]
