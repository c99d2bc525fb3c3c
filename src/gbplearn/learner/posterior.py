"""`gbp.Posterior`: beliefs of the parameters of a network by name, to compare and to take elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief, VectorGaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Posterior(Mapping[str, Belief]):
    """Beliefs of all parameters by name, such as `posterior["conv/weight"]`; later updates do not change it."""

    def __init__(self, beliefs: Mapping[str, Belief]):
        self._beliefs = dict(beliefs)

    def __getitem__(self, name: str) -> Belief:
        """Of one parameter."""
        return self._beliefs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._beliefs)

    def __len__(self) -> int:
        """How many named arrays of parameters."""
        return len(self._beliefs)

    def __repr__(self) -> str:
        return f"Posterior({', '.join(f'{name} {g.shape}' for name, g in self.items())})"

    def _repr_html_(self) -> str:
        from ..show.notebook import posterior_html

        return posterior_html(self)

    def plot(self) -> Figure:
        """A figure of matplotlib: mean and standard deviation of every parameter, filters as images."""
        from ..show.plots import plot_beliefs

        return plot_beliefs(self)

    def diff(self, other: Mapping[str, Belief]) -> dict[str, float]:
        """How far it is from another: `KL(self || other)` in nats, by layer.

        A sum over the scalars of a layer,

            KL = sum (s² / o² - 1 - log s² / o² + (m - n)² / o²) / 2

        with means and variances `m, s²` of this posterior and `n, o²` of the other.
        """
        check_same_parameters([self, other])
        out: dict[str, float] = {}
        for name, belief in self.items():
            layer = name.rpartition("/")[0] or name
            if isinstance(belief, UnitVectors):
                out[layer] = out.get(layer, 0.0) + _vector_kl(belief, other[name])
                continue
            # As NumPy's: on the way into JAX's arrays and back most of the time would be spent.
            pair: list[Any] = [(np.asarray(g.eta), np.asarray(g.lam)) for g in (belief, other[name])]
            out[layer] = out.get(layer, 0.0) + float(np.sum(np.asarray(belief.family.kl(*pair), float)))
        return out

    def as_dict(self) -> dict[str, dict[str, np.ndarray]]:
        """As NumPy arrays: `{name: {"mean": ..., "std": ...}}`."""
        return {name: {"mean": np.asarray(g.mean), "std": np.asarray(g.std)} for name, g in self.items()}


def _vector_kl(belief: UnitVectors, other: UnitVectors) -> float:
    return float(np.maximum(0.0, belief.kl(other).sum()))  # below 0 by rounding; NaN stays


def check_same_parameters(several: list[Mapping[str, Belief]]) -> None:
    """A `ValueError` names a parameter that is not in all of them, or not of one shape."""
    first = several[0]
    for other in several[1:]:
        odd = sorted(set(first) ^ set(other))
        if odd:
            raise ValueError(f"the parameter '{odd[0]}' is not in all of them")
        for name, belief in first.items():
            if other[name].shape != belief.shape:
                raise ValueError(f"'{name}' has shape {belief.shape} in one and {other[name].shape} in another")
            if _kept_by(belief) != _kept_by(other[name]):
                raise ValueError(f"of '{name}' one keeps {_kept_by(belief)}, another {_kept_by(other[name])}")


def _kept_by(belief: Belief) -> str:
    """What a family of beliefs keeps, as users read it."""
    if isinstance(belief, VectorGaussian):
        return "one covariance for all units" if belief.shared else "a covariance for each unit"
    if isinstance(belief, UnitVectors):
        return "variances along axes"
    return "a variance for each number" if belief.family.scalar else "blocks"
