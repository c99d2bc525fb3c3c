"""Joint updates of one batch, again and again: each linearised where the last one has led (Gauss and Newton's method).

One update is exact for layers that are linear so far. Where they are not, the beliefs before the batch are conditioned
on it again, with the layers linearised at the new means, until these rest: at the most probable parameters, with the
covariance of Laplace's approximation. Steps that lead to less probable parameters are taken with the prior drawn to
where they start (Levenberg and Marquardt's method),

    N(m_0, P)  ->  N((m_0 + u m) / (1 + u), P / (1 + u))

Noise that is learnt follows the outputs step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array
from jaxtyping import Float

from ..core.vector import VectorGaussian
from . import chain
from .chain_noise import LearntNoiseTargets

# How much the prior is drawn at first; by what it is less after a good step, and more after a bad one; and the most.
_DRAWN, _LESS, _MORE, _MOST = 1.0, 1 / 3, 4.0, 1e6
# At rest where the energy falls by less, in nats, and the noise moves by less than this part of itself.
_ENERGY, _NOISE = 1e-3, 1e-3


class Mode(NamedTuple):
    """The most probable parameters, and the noise variance that goes with them."""

    means: dict[str, Array]
    noise: float
    energy: float  # of targets and prior


def most_probable(
    links: Sequence[chain.Link],
    beliefs: Mapping[str, VectorGaussian],
    x: Array,
    targets: LearntNoiseTargets,
    held: Float[np.ndarray, "b ..."],
    weight: Float[np.ndarray, " b"],
    spread: Array | None = None,
    steps: int = 100,
) -> Mode:
    """Where repeated updates of a batch rest. Arguments as `chain.update`; at most so many `steps`."""
    at = {name: belief.mean for name, belief in beliefs.items()}
    noise, drawn, energy = targets.prior.start**2, _DRAWN, np.inf

    for _ in range(steps):
        linear = chain.linearise(links, at, x, spread)
        energy = _energy(beliefs, at, targets, weight, noise, linear.noise, linear.outputs)
        while drawn < _MOST:
            nearer = {
                n: b.with_mean((b.mean + drawn * at[n]) / (1 + drawn)).scaled((1 + drawn) ** -0.5)
                for n, b in beliefs.items()
            }
            found = chain.update(links, nearer, x, targets.given(noise), held, weight, 1, 0.0, spread, at)
            if found.beliefs is not None and found.noise is not None and not found.shortened:
                means = {n: b.mean for n, b in found.beliefs.items()}
                outputs = chain.outputs_at(links, means, x)
                after = _energy(beliefs, means, targets, weight, noise, linear.noise, outputs)
                if after < energy:
                    break
            drawn *= _MORE
        else:
            break
        moved = abs(np.log(found.noise / noise))
        fell, energy = energy - after, after
        at, noise, drawn = means, found.noise, drawn * _LESS
        if fell < _ENERGY and moved < _NOISE:
            break
    return Mode(at, noise, float(energy))


def _energy(
    beliefs: Mapping[str, VectorGaussian],
    means: Mapping[str, Array],
    targets: LearntNoiseTargets,
    weight: np.ndarray,
    noise: float,
    of_layers: np.ndarray,
    outputs: Array,
) -> float:
    """Of the targets, given the noise of layers and observations, and of the prior of the parameters."""
    root = np.sqrt(targets.observed * weight[:, None] / noise)
    inner = np.eye(root.shape[1]) + root[:, :, None] * np.asarray(of_layers, float) * root[:, None, :]
    off = root * (targets.y - np.asarray(outputs, float))
    squares = np.einsum("bc,bc->", off, np.linalg.solve(inner, off[..., None])[..., 0])
    for name, belief in beliefs.items():
        step = (np.asarray(means[name], float) - np.asarray(belief.mean, float))[..., None]
        squares += (np.linalg.solve(np.asarray(belief.root, float), step) ** 2).sum()
    return 0.5 * float(squares)
