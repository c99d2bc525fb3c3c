"""The paper's networks as denoisers: a learner that is given frame after frame, and asked what it believes of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..learner import Learner
from ..models import five_layer_denoiser, pairwise_denoiser, single_layer_denoiser
from ..network import Sequential


@dataclasses.dataclass(frozen=True)
class LayeredModel:
    """A network and how its messages are passed; `alpha` as `gbp.Filtering`, 1 for every frame anew."""

    network: Callable[[], Sequential]
    iterations: int
    damping: float
    dropout: float = 0.6
    alpha: float = 1.0

    def learner(self, shape: tuple[int, ...], seed: int = 0) -> Learner:
        """With nothing learnt yet."""
        return Learner(self.network(), shape, seed=seed, tolerance=0.0, **self.options())

    def options(self) -> dict[str, Any]:
        """All but the network."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "network"}


# As published; the damping of "five layers, per frame" is that of the authors' code (the paper has 0.8).
PAPER = {
    "pairwise": LayeredModel(pairwise_denoiser, 200, 0.7, 0.0),
    "one layer, per frame": LayeredModel(single_layer_denoiser, 300, 0.8),
    "one layer, continual": LayeredModel(single_layer_denoiser, 300, 0.8, alpha=0.5),
    "five layers, per frame": LayeredModel(five_layer_denoiser, 500, 0.85),
    "five layers, continual": LayeredModel(five_layer_denoiser, 500, 0.8, alpha=0.0),
}
