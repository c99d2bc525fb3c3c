"""An image of which some pixels hold nonsense: hand-made factors, and a switch for every pixel.

Messages say what each pixel is believed to be without its own observation; from that follows the probability that it
is intact, and how much its observation counts; then messages go on. Three things make it work:

- **Smoothness of second order**, so that slopes and shades cost nothing.
- **Colours that belong together.** In a photograph neighbouring pixels differ in brightness far more than in hue.
  Residuals are turned into the axes of their own covariance, which is found with everything else; each axis has a
  smoothness of its own. Nonsense, whose channels are independent, then stands out.
- **One switch a pixel**, for all its channels, judged by what is usual around it (`switches.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...engine.infer import infer
from ...engine.result import Result, Status, Trace
from .smooth_graph import smooth_graph
from .switches import Cavity, deviations, local_scale, local_variance, probability_intact, shape_of, weight_of


@dataclasses.dataclass(frozen=True)
class Settings:
    """How an image is cleaned.

    **Arguments:**

    - `rounds`, `iterations`: of the switches, and of messages in each round.
    - `sigma`: standard deviation of an intact pixel's observation.
    - `share`: of the pixels that hold nonsense, to begin with; it is inferred.
    - `tail`: degrees of freedom of an intact pixel's deviation.
    - `colours`: whether channels are turned into axes of their own.
    - `local`: whether how far neighbours can be trusted is judged around each pixel, or once for the whole image.
    - `order`: of the smoothness, 2 or 1.
    - `beside`: which frames count beside, "previous" and "next".
    """

    rounds: int = 7
    iterations: int = 2
    sigma: float = 0.001
    share: float = 0.1
    tail: float = 20.0
    colours: bool = True
    local: bool = True
    order: int = 2
    beside: tuple[str, ...] = ("previous", "next")

    def __post_init__(self):
        for name, least in (("rounds", 2), ("iterations", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number >= {least}, got {getattr(self, name)!r}")
        for name, most in (("sigma", np.inf), ("share", 1.0), ("tail", np.inf)):
            if not 0 < getattr(self, name) < most:
                raise ValueError(f"{name} must be a number > 0 and < {most:g}, got {getattr(self, name)!r}")
        if not set(self.beside) <= {"previous", "next"}:
            raise ValueError(f"beside must hold 'previous', 'next' or both, got {self.beside!r}")
        if self.order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, got {self.order!r}")


class Denoised(NamedTuple):
    """What is believed of an image.

    - `mean`, `std`: of each value `(height, width, channels)`.
    - `corrupt`: the probability `(height, width)` that a pixel held nonsense, or was missing.
    - `trace`: what happened in each iteration; of a large image, in its first tile.
    """

    mean: np.ndarray
    std: np.ndarray
    corrupt: np.ndarray
    trace: Trace | None = None


# Variance of the Laplacian along the axis where it is largest. How large it really is matters little: observations of
# intact pixels are far surer in any case, and how far neighbours can be trusted is judged place by place.
_SCALE, _SMALLEST = 0.2, 1e-3
_SHARES = (1e-4, 0.6)
_FLOOR = 0.003  # no other frame is nearer
_MOST, _AT_REST = 300, 0.01


class Beside(NamedTuple):
    """Another image of the same: a frame before or after, moved to where things are now.

    - `image`: numbers in [0, 1], `(height, width, channels)`.
    - `trust`: how much it counts at each pixel `(height, width)`, from 0, where nothing is known, to 1.
    """

    image: np.ndarray
    trust: np.ndarray


def denoise_best(
    image: np.ndarray,
    present: np.ndarray | None = None,
    settings: Settings | None = None,
    beside: Mapping[str, Beside] | None = None,
    first: np.ndarray | None = None,
) -> Denoised:
    """Clean an image.

    **Arguments:**

    - `image`: numbers in [0, 1], `(height, width, channels)`.
    - `present`: False for pixels `(height, width)` that are missing.
    - `beside`: images of the same, by name; how far each is right is judged place by place, from the intact pixels.
    - `first`: the probability that a pixel `(height, width)` is intact, to begin with, as a detector has it; by default
        all are alike.
    """
    how = Settings() if settings is None else settings
    image = np.asarray(image, float)
    there = np.ones(image.shape[:2], bool) if present is None else np.asarray(present, bool)
    if not there.any():
        raise ValueError("all pixels of an image, or of a tile of a large one, are missing: nothing is known of them")
    channels = image.shape[-1]
    axes, scale, share = np.eye(channels), np.full(channels, _SCALE), how.share
    intact = None if first is None else np.where(there, first, 0.0)
    counts = np.where(there, 1 - share, 0.0) if intact is None else intact
    weight = np.repeat(counts[..., None], channels, -1)
    result: Result | None = None
    traces: list[Trace] = []
    around, mean, cavity = np.ones(image.shape[:2]), image, Cavity(image, np.ones(image.shape))
    for number in range(how.rounds):
        observed = image @ axes
        given = observed, weight, np.full(channels, 0.5) @ axes
        values, weights, middle = (a.astype(np.float32) for a in given)
        others = {} if intact is None else _known_beside(beside or {}, observed, axes, intact, around)
        graph = smooth_graph(values, weights, how.sigma, scale, middle, others, how.order)
        last = number == how.rounds - 1  # of which the holes that are left may take long to close
        most, at_rest = (_MOST, _AT_REST) if last else (how.iterations, 0.0)
        result = infer(graph, init=result, iterations=most, tolerance=at_rest, guard=False, throw=False)
        if last and result.status != Status.CONVERGED:  # rare, and the guard is another program to compile
            result = infer(graph, iterations=_MOST, tolerance=at_rest, throw=False)
        traces.append(result.trace)
        mean, cavity = _beliefs(result, observed, weight, how.sigma)
        if last:
            break
        if intact is None and beside:
            result = None  # from now on there are more factors
        if not number and how.colours and channels > 1:
            # In the new axes messages begin anew.
            trusted = there if intact is None else intact > 0.5
            residuals = (observed - cavity.mean)[trusted] / np.sqrt(cavity.variance[trusted])
            values, axes = np.linalg.eigh(shape_of(residuals))
            scale, result = _within(values), None
            cavity = Cavity(cavity.mean @ axes, cavity.variance * scale / _SCALE)
            observed = image @ axes
        off = deviations(observed, cavity, how.sigma)
        around = local_scale(off.mean(-1), intact)
        if not how.local:
            around = np.full(around.shape, np.median(around))
        if intact is not None:
            kept = intact[..., None] * off / around[..., None]
            scale = _within(scale * np.clip(kept.sum((0, 1)) / intact.sum(), 0.3, 3.0))
        intact = np.where(there, probability_intact(observed, cavity, how.sigma, around, share, how.tail), 0.0)
        share = float(np.clip(1 - intact[there].mean(), *_SHARES)) if number else share
        weight = weight_of(intact, cavity.variance, how.sigma)
    assert intact is not None
    # What neighbours say is as right as is usual around.
    variance = 1 / (weight / how.sigma**2 + 1 / (cavity.variance * around[..., None]))
    std = np.sqrt(np.einsum("ijk,ck->ijc", variance, axes**2))
    # In the first round the other images are not yet there.
    alike = [t for t in traces if t.energy.keys() == traces[-1].energy.keys()]
    return Denoised(mean @ axes.T, std, 1 - intact, Trace.joined(alike))


def _known_beside(
    beside: Mapping[str, Beside], observed: np.ndarray, axes: np.ndarray, intact: np.ndarray, around: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values and precisions of other images: as wrong as they are where intact pixels tell.

    Precisions are in units of the smoothness, which is `around` times less sure than it says.
    """
    known = {}
    for name, other in beside.items():
        moved = other.image @ axes
        variance = local_variance(observed - moved, intact * other.trust) + _FLOOR**2
        precision = (other.trust * around)[..., None] / variance
        known[name] = moved.astype(np.float32), precision.astype(np.float32)
    return known


def _within(scale: np.ndarray) -> np.ndarray:
    """Scales of the axes relative to the largest."""
    return _SCALE * np.maximum(scale / scale.max(), _SMALLEST)


def _beliefs(result: Result, observed: np.ndarray, weight: np.ndarray, sigma: float) -> tuple[np.ndarray, Cavity]:
    """Means of the pixels, and what would be believed of them without their own observations."""
    belief = result["image"]
    eta, lam = np.asarray(belief.eta, float), np.asarray(belief.lam, float)
    own = weight.astype(np.float32) / sigma**2
    rest = np.maximum(lam - own, 1e-12)
    return eta / lam, Cavity((eta - own * observed) / rest, 1 / rest)
