"""Damping: how much of the old message stays at a visit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ..graph.group import Group

# Of parameters: the step, 1 - damping, for the first batch of B examples is this over B ...
_FIRST_STEP = 2.5
# ... and for no batch larger than this. Of activations: the damping.
_LARGEST_STEP = 0.3
_ACTIVATIONS = 0.5


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
    # Cavities of vector variables are exact: messages do not overshoot, and are damped as those to activations are.
    out = tuple(
        tuple(float(spelt.of(s.variable, kinds[s.variable] if s.table is None else "activation")) for s in g.slots)
        for g in groups
    )
    for row in out:
        for d in row:
            if not 0 <= d < 1:
                raise ValueError(f"{what} must lie in [0, 1), got {d}")
    return out


def damping_for(batch: int, known: float, caution: int = 0) -> Damping:
    """The damping that a learner chooses for a batch of `B` examples when it has learnt from `N` already.

    Messages of all examples to a parameter are sent at once, each without regard to the others. Together they overshoot
    by up to `B` times their share `B / (N + B)` of all that is known, so the step is

        1 - damping = min(0.3, 2.5 (N + B) / B²) 2^(-caution / 4)

    (docs/performance.md has the measurements). Activations are damped by 0.5. A learner becomes more cautious when the
    guard had to step in, and less with every batch where it had not.
    """
    step = min(_LARGEST_STEP, _FIRST_STEP * (known + batch) / batch**2) * 2 ** (-caution / 4)
    return Damping(parameters=1 - step, activations=_ACTIVATIONS)
