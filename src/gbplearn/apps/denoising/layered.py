"""The paper's networks as denoisers: a learner that is given frame after frame, and asked what it believes of each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.gaussian import Gaussian
from ...engine.schedules import Order, Schedule
from ...learner.learner import Learner
from ...learner.report import Report
from ...network.sequential import Sequential
from ...network.zoo import five_layer_denoiser, pairwise_denoiser, single_layer_denoiser

_MOST_MORE = 8  # rows and columns, one less than that, that an image may lack for a network


@dataclasses.dataclass(frozen=True)
class LayeredModel:
    """A network and how its messages are passed.

    **Arguments:**

    - `alpha`: as `gbp.Filtering`, 1 for filters that are learnt anew from every frame.
    - `carry`: layers whose messages go on from frame to frame, as `Learner.update`.
    """

    network: Callable[[], Sequential]
    iterations: int
    damping: float
    alpha: float = 1.0
    schedule: Schedule | None = None
    carry: tuple[str, ...] = ()

    def learner(self, shape: tuple[int, ...], seed: int = 0) -> Learner:
        """With nothing learnt yet.

        A pixel that is missing may have any value: filters say little about a single pixel, so that the learner's own
        `N(0, 1)` would draw it to black.
        """
        missing = Gaussian.from_moments(mean=0.5, std=10.0)
        return Learner(
            self.network(), shape, seed=seed, tolerance=0.0, input_prior=missing, strained="learn", **self.options()
        )

    def fitting(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The smallest image `(height, width, channels)` not below this one that the network takes.

        Layers that halve an image want even sides. If there is none, this one, of which the learner says what is wrong.
        """
        net, sizes = self.network(), itertools.product(range(_MOST_MORE), repeat=2)
        for more in sorted(sizes, key=sum):
            larger = (shape[0] + more[0], shape[1] + more[1], *shape[2:])
            try:
                net.shapes(larger)
            except ValueError:
                continue
            return larger
        return shape

    def options(self) -> dict[str, Any]:
        """Those of `gbp.Learner`."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("network", "carry")}


def learn_frame(
    learner: Learner,
    frame: np.ndarray,
    present: np.ndarray | None = None,
    carry: Sequence[str] = (),
    messages: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray, np.ndarray, Report]:
    """Learn from a frame `(height, width, channels)`.

    **Arguments:**

    - `present`: False for pixels that are missing.
    - `carry`: as `Learner.update`; `messages`: of an earlier frame, `report.carried`.

    The learner may take larger images (`LayeredModel.fitting`): pixels beyond the frame are missing.

    **Returns:** what is then believed of it, means and standard deviations, and the report. If it did not work out,
    nothing was learnt: the frame as it is, and NaN.
    """
    here = (0, *(slice(0, n) for n in frame.shape[:2]))
    whole = np.zeros((1, *learner.input_shape), frame.dtype)
    whole[here] = frame
    observed = np.zeros(whole.shape, bool)
    observed[here] = True if present is None else present[..., None]
    observed = None if observed.all() else observed
    report = learner.update(whole, x_observed=observed, want="input", carry=carry, carried=messages)
    if report.belief is None:
        return frame, np.full(frame.shape, np.nan), report
    return np.clip(np.asarray(report.belief.mean)[here], 0, 1), np.asarray(report.belief.std)[here], report


# Down to the smallest image and up again, the pixels' observation once.
_DOWN = ("gaussian", "conv_transpose", "upsample", "conv_transpose_1", "upsample_1", "conv_transpose_2")
# Activations of a frame start with what the frame before was found to be, not with the noise of this one, as in the
# authors' code. (There also where filters are learnt anew, to which those messages no longer belong; not here.)
BETWEEN = ("upsample", "upsample_1")
_FIVE = LayeredModel(five_layer_denoiser, 200, 0.85, schedule=Order(*_DOWN, *_DOWN[-2:1:-1]))
_ONE = LayeredModel(single_layer_denoiser, 300, 0.9)  # it diverges now and then with 0.85

# The networks and priors are as published. Messages go further at a time: the paper has 300 and 500 iterations, a
# damping of 0.8 (0.85 for five layers per frame, in the authors' code), and drops six of ten messages, which for pooled
# messages is a damping of 0.92 (0.94) in all.
PAPER = {
    "pairwise": LayeredModel(pairwise_denoiser, 200, 0.7),
    "one layer, per frame": _ONE,
    "one layer, continual": dataclasses.replace(_ONE, alpha=0.5),
    "five layers, per frame": _FIVE,
    "five layers, continual": dataclasses.replace(_FIVE, alpha=0.0, carry=BETWEEN),
}
