"""Evidence: what is known of variables beside the factors, checked before anything is computed with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..core.gaussian import Gaussian
from ..core.tracing import refuse_traced
from ..core.vector import Belief, VectorGaussian
from .variable import Variable


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Observed values, with a mask where only a part is observed; and beliefs that variables are held at.

    A variable has one of the two: the last call counts.
    """

    values: dict[str, tuple[np.ndarray, np.ndarray | None]] = dataclasses.field(default_factory=dict)
    held: dict[str, Belief | None] = dataclasses.field(default_factory=dict)  # None: at the prior

    def __contains__(self, name: str) -> bool:
        return name in self.values or name in self.held

    def copy(self) -> Evidence:
        """To be changed apart."""
        return Evidence(dict(self.values), dict(self.held))

    def observe(self, name: str, value: np.ndarray, mask: np.ndarray | None) -> None:
        """Fix a variable at a value."""
        self.forget(name)
        self.values[name] = value, mask

    def hold(self, name: str, belief: Belief | None) -> None:
        """Hold a variable at a belief."""
        self.forget(name)
        self.held[name] = belief

    def forget(self, name: str) -> bool:
        """Whether there was anything to forget."""
        known = name in self
        self.values.pop(name, None)
        self.held.pop(name, None)
        return known

    def rename(self, old: str, new: str) -> None:
        """Move what is known to another name."""
        if old in self.values:
            self.values[new] = self.values.pop(old)
        if old in self.held:
            self.held[new] = self.held.pop(old)

    @property
    def fixed(self) -> frozenset[str]:
        """Variables that are wholly observed."""
        return frozenset(name for name, (_, mask) in self.values.items() if mask is None)


def as_numbers(name: str, value: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Numbers for a variable, broadcast to its shape."""
    refuse_traced(f"variable '{name}': {what}", value)
    try:
        return np.array(np.broadcast_to(np.asarray(value, float), shape))
    except (ValueError, TypeError):
        got = getattr(value, "shape", None) or np.shape(value)
        raise ValueError(f"variable '{name}': {what} of shape {got} does not fit shape {shape}") from None


def check_observed(variable: Variable, value: Any, mask: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Value and mask of an observation; the value is 0 where it is not observed."""
    name = variable.name
    values = as_numbers(name, value, variable.shape, "observed value")
    if mask is None:
        if not np.isfinite(values).all():
            raise ValueError(f"variable '{name}': the observed value holds NaN or infinity (give mask=)")
        return values, None
    refuse_traced(f"variable '{name}': mask", mask)
    try:
        flags = np.array(np.broadcast_to(np.asarray(mask, bool), variable.unit_shape))
    except ValueError:
        got = np.shape(mask)
        raise ValueError(f"variable '{name}': mask of shape {got} does not fit {variable.unit_shape}") from None
    observed = variable.family.over_values(flags)
    if not np.isfinite(np.where(observed, values, 0)).all():
        raise ValueError(f"variable '{name}': the value is NaN or infinite where the mask is True")
    return np.where(observed, values, 0), flags


def check_belief(variable: Variable, belief: Any, what: str, dtype: Any) -> Belief:
    """A Gaussian for a variable, broadcast to its shape, with no negative precision."""
    name, shape, block = variable.name, variable.shape, variable.block
    if variable.vector:
        if not isinstance(belief, VectorGaussian) or belief.shape != shape:
            raise ValueError(f"variable '{name}': {what} must be a gbp.VectorGaussian of shape {shape}, got {belief!r}")
        return belief.astype(dtype)
    if not isinstance(belief, Gaussian):
        raise ValueError(f"variable '{name}': {what} must be a gbp.Gaussian, got a {type(belief).__name__}")
    if belief.block and not block:
        raise ValueError(f"variable '{name}': a {what} in block form needs block=True")
    refuse_traced(f"variable '{name}': {what}", belief)
    # Before it is repeated for every unit: what is given is often one number.
    lam = np.asarray(belief.lam, float)
    sound = np.isfinite(np.asarray(belief.eta)).all() and np.isfinite(lam).all()
    if not (sound and belief.family.sound(lam)):
        raise ValueError(f"variable '{name}': the {what} has a negative precision or is not finite")
    belief = belief.astype(dtype)
    try:
        if block and not belief.block:
            belief = belief.broadcast_to(shape).as_block()
        return belief.broadcast_to(shape)
    except ValueError:
        raise ValueError(f"variable '{name}': {what} of shape {belief.shape} does not fit shape {shape}") from None


def check_held(variable: Variable, belief: Any, dtype: Any) -> Belief:
    """A proper belief to hold a variable at."""
    belief = check_belief(variable, belief, "belief", dtype)
    if isinstance(belief, VectorGaussian):
        return belief
    if not np.asarray(belief.proper).all():
        raise ValueError(f"variable '{variable.name}': it can only be held at a proper belief (all precisions > 0)")
    return belief
