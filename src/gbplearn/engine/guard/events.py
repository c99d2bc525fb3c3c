"""Guard events: what the guard found and did, as an enumeration with its numbers; `str` of one is a line to print."""

from __future__ import annotations

import dataclasses
import enum


class GuardAction(enum.Enum):
    """What the guard found or did."""

    DIVERGING = "messages diverge"
    NOT_CONVERGING = "messages do not converge"
    DAMPING_RAISED = "messages are damped more"
    PROXIMAL_FACTORS = "proximal factors hold every variable near a centre"
    PROXIMAL_STEPS = "proximal steps were made"
    NOT_FINITE = "h or its Jacobian is not finite at the best means"
    BEST_MEANS_KEPT = "out of iterations while diverging: the best means were kept"
    NOTHING_BETTER = "out of iterations while diverging: no means were better than those at the start"


@dataclasses.dataclass(frozen=True)
class GuardEvent:
    """One thing that the guard found or did; `str` of it is a line to read.

    - `action`: what.
    - `iteration`: after so many iterations.
    - `group`: the factor group that it is about, if it is about one.
    - `before`, `after`: of `DAMPING_RAISED`, the smallest and the largest damping.
    - `weight`, `steps`, `refused`: of `PROXIMAL_STEPS`, the last weight of the proximal factors, how many steps were
        made, and how many were not.
    - `round`: where inference went in rounds (noise that is learnt), the round it was in, if another one counts.
    """

    action: GuardAction
    iteration: int
    group: str | None = None
    before: tuple[float, float] | None = None
    after: tuple[float, float] | None = None
    weight: float | None = None
    steps: int | None = None
    refused: int | None = None
    round: int | None = None

    def __str__(self) -> str:
        line = self._line()
        return line if self.round is None else f"round {self.round}, {line}"

    def _line(self) -> str:
        at = f"iteration {self.iteration}: "
        match self.action:
            case GuardAction.DIVERGING:
                return at + "diverging"
            case GuardAction.NOT_CONVERGING:
                return at + "not converging"
            case GuardAction.DAMPING_RAISED:
                least, most = self.after or (0.0, 0.0)
                return f"damping raised to {least:.4g}" + (f" ... {most:.4g}" if most > least else "")
            case GuardAction.PROXIMAL_FACTORS:
                return "proximal factors"
            case GuardAction.PROXIMAL_STEPS:
                return at + f"weight {self.weight:g}, {self.steps} steps, {self.refused} refused"
            case GuardAction.NOT_FINITE:
                return f"h or its Jacobian is not finite at the best means of group '{self.group}'"
            case GuardAction.BEST_MEANS_KEPT:
                return at + "out of iterations while diverging, best means kept"
            case GuardAction.NOTHING_BETTER:
                return at + "out of iterations while diverging, none better than those at the start"
