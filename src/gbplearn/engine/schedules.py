"""In which order factor groups are visited, and how far they move at a visit."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ..graph.group import Group

# Of parameters: the first batch of B examples may move them by this over B of what it says ...
_FIRST_STEP = 2.5
# ... and no batch by more than this. Of activations: the damping.
_LARGEST_STEP = 0.3
_ACTIVATIONS = 0.5


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """The order of visits in one iteration. A schedule either fixes the order, or picks group after group."""

    blind: ClassVar[bool] = False  # whether it picks without a look at priorities

    @abc.abstractmethod
    def order(self, names: tuple[str, ...]) -> tuple[int, ...] | None:
        """The groups of one iteration as numbers into `names`; None if they are picked one by one."""

    def pick(self, key: Array, priority: Array) -> Array:
        """The next group.

        **Arguments:**

        - `priority`: for each group, how far its variables have moved since it was last visited (in standard
            deviations), and what damping held back then.
        """
        raise TypeError(f"{type(self).__name__} has a fixed order")


@dataclasses.dataclass(frozen=True)
class Sweep(Schedule):
    """Forward and back: groups 0 ... L-1, then L-2 ... 1 (group 0 begins the next iteration)."""

    def order(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """0 ... L-1, L-2 ... 1."""
        count = len(names)
        return (*range(count), *range(count - 2, 0, -1))


@dataclasses.dataclass(frozen=True)
class RandomLayers(Schedule):
    """Asynchronous: each visit draws a group uniformly with replacement, L visits an iteration."""

    blind: ClassVar[bool] = True

    def order(self, names: tuple[str, ...]) -> None:
        """Drawn during inference."""

    def pick(self, key: Array, priority: Array) -> Array:
        """A uniform draw."""
        return jax.random.randint(key, (), 0, priority.shape[0])


@dataclasses.dataclass(frozen=True)
class Residual(Schedule):
    """Visit next the group whose variables have moved most since it was last visited, L visits an iteration.

    After Elidan et al. 2006; how far the inputs moved stands in for the residual of the messages themselves, which
    would cost as much as sending them (Sutton & McCallum 2007).
    """

    def order(self, names: tuple[str, ...]) -> None:
        """Picked during inference."""

    def pick(self, key: Array, priority: Array) -> Array:
        """The largest priority; the first of equals."""
        return jnp.argmax(priority)


@dataclasses.dataclass(frozen=True)
class Order(Schedule):
    """The user's own order, by the names of the factor groups: `gbp.Order("range", "odometry", "range")`."""

    names: tuple[str, ...]

    def __init__(self, *names: str):
        object.__setattr__(self, "names", tuple(names))

    def order(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """As given."""
        for n in self.names:
            if n not in names:
                raise ValueError(f"schedule: there is no factor group '{n}' (there are: {', '.join(names)})")
        missing = [n for n in names if n not in self.names]
        if missing:
            raise ValueError(f"schedule: the order never visits {', '.join(missing)}")
        return tuple(names.index(n) for n in self.names)


@dataclasses.dataclass(frozen=True)
class OnMovement:
    """Move the linearisation point of a variable when its mean is further than `threshold` standard deviations away."""

    threshold: float = 0.1

    def __post_init__(self):
        if not self.threshold > 0:
            raise ValueError(f"OnMovement: the threshold must be > 0 standard deviations, got {self.threshold}")


@dataclasses.dataclass(frozen=True)
class AfterVisit:
    """Move the linearisation point of a group to the means at the end of its own visit, for its next one.

    What the other groups say in between comes one visit late. That is how the authors of the paper ran their
    experiments; the paper itself, and the default, linearise at the current means.
    """


@dataclasses.dataclass(frozen=True, init=False)
class Damping:
    """Weight of the *old* message in natural parameters, by the variable that receives it: `d old + (1 - d) new`.

    ```python
    gbp.Damping(parameters=0.9, activations=0.2, pose=0.5)
    ```

    `parameters` and `activations` hold for all variables of that kind (`graph.variable(..., kind="parameter")`; other
    variables are activations); a variable's own name goes before its kind.
    """

    parameters: float
    activations: float
    by_name: tuple[tuple[str, float], ...]

    def __init__(
        self,
        parameters: float = 0.0,
        activations: float = 0.0,
        by_name: Mapping[str, float] | None = None,
        **by_variable_name: float,
    ):
        named = {**(by_name or {}), **by_variable_name}
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "activations", activations)
        object.__setattr__(self, "by_name", tuple(sorted(named.items())))

    def of(self, variable: str, kind: str) -> float:
        """The damping of messages into a variable."""
        named = dict(self.by_name)
        return named.get(variable, self.parameters if kind == "parameter" else self.activations)


def per_slot(
    what: str, value: float | Damping, groups: Sequence[Group], kinds: Mapping[str, str]
) -> tuple[tuple[float, ...], ...]:
    """One number for each edge set, checked to lie in [0, 1)."""
    if isinstance(value, Damping):
        unknown = [n for n, _ in value.by_name if n not in kinds]
        if unknown:
            raise ValueError(f"{what}: there is no variable '{unknown[0]}' (there are: {', '.join(kinds)})")
        spelt = value
    else:
        spelt = Damping(value, value)
    out = tuple(tuple(float(spelt.of(s.variable, kinds[s.variable])) for s in g.slots) for g in groups)
    for row in out:
        for d in row:
            if not 0 <= d < 1:
                raise ValueError(f"{what} must lie in [0, 1), got {d}")
    return out


def damping_for(batch: int, known: float, caution: int = 0) -> Damping:
    """The damping that a learner chooses for a batch of `B` examples when it knows `N` already.

    Messages of all examples to a parameter are sent at once, and none knows of the others. Together they overshoot by
    up to `B` times their share `B / (N + B)` of all that is known, so the step is

        1 - damping = min(0.3, 2.5 (N + B) / B²) 2^(-caution / 4)

    (docs/performance.md has the measurements). Activations are damped by 0.5. A learner becomes more cautious when the
    guard had to step in, and less with every batch where it had not.
    """
    step = min(_LARGEST_STEP, _FIRST_STEP * (known + batch) / batch**2) * 2 ** (-caution / 4)
    return Damping(parameters=1 - step, activations=_ACTIVATIONS)
