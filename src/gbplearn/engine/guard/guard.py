"""The guard: what keeps loopy belief propagation from diverging.

Messages are sent until they converge, or until they diverge: the residual has grown, and the energy at the means has
risen above the best one. Then, from the best means so far (where there are none yet, from the very beginning),

1. messages are damped more;
2. if that does not help, every variable gets a *proximal factor* `N(c, gamma x precision)` that holds it near a
   centre `c` (Johnson et al. 2009). For a linear graph, belief propagation with enough weight `gamma` converges to
   `c - (H + Gamma)^-1 grad E(c)`: a preconditioned descent step, found by messages. Taking that step alone would need
   as many rounds as the graph is ill-conditioned, so each step is made conjugate to the last ones (flexible
   conjugate gradients), with the length that minimises the linearised energy. Weights grow when messages diverge all
   the same or the energy does not fall.

The messages of a proximal step are about the *step*: the graph is linearised at `c` and shifted there, so that float32
resolves steps much smaller than the rounding of the means. With the means at rest, precisions are those of belief
propagation without proximal factors on the graph linearised there: they grow monotonically from nothing to a bound, so
they converge whatever the means do.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.compiling import is_small
from ...core.gaussian import Gaussian
from ...core.vector import VectorGaussian
from ...graph.problem import Problem
from ..diagnostics import Diagnostics, no_diagnostics
from ..loop import CHUNK, Enough, advance
from ..options import Options
from ..rounding import find_beliefs, may_be_rounding
from ..schedules import FixedOrder
from ..state import State, empty_state, with_prior_means
from . import proximal
from .events import GuardAction, GuardEvent
from .proximal import Values


@dataclasses.dataclass(frozen=True)
class Guard:
    """When inference counts as diverging, and what is done about it. In the place of `guard=True`.

    ```python
    gbp.infer(graph, guard=gbp.Guard(more_damping=0.9))
    ```

    **Arguments:**

    - `enabled`: False (or `guard=False`) lets messages run; if they diverge, the last good state is kept.
    - `grown`, `moved`, `risen`: messages diverge when the residual is so many times its least and larger than `moved`
        standard deviations, and the energy is above its best by this share.
    - `more_damping`, `shorter`: damping is raised at least to `more_damping`; steps that were damped before keep the
        share `shorter` of their length.
    - `first_weight`, `largest_weight`, `more_weight`: of the proximal factors, in units of the precision of a variable
        whose neighbours are known; after a step that is refused the weight is so many times larger.
    - `inner_iterations`: for one proximal step at most.
    - `memory`: earlier steps that a new one is made conjugate to.
    - `rest`: steps whose gain estimates what is left.
    - `least_iterations`: before parameters count as settled: messages of the observations must have reached them.
    - `patience`: iterations without progress of the residual that count as not converging (three times as many where
        messages or groups are drawn at random), if it is larger than `restless`, and if the energy does not fall by the
        share `falls` either: units at a kink never rest, while others learn.
    - `on_its_way`, `far_down`: of the largest residual. Messages that have come down so far, and whose energy falls,
        are not diverging; nor are those that have come down far, whose energy is below what it was at first.
    - `large`: graphs with more edges are diagnosed every few iterations only.
    """

    enabled: bool = True
    grown: float = 10.0
    moved: float = 1.0
    risen: float = 0.01
    more_damping: float = 0.7
    shorter: float = 0.25
    first_weight: float = 4.0
    largest_weight: float = 1e6
    more_weight: float = 4.0
    inner_iterations: int = 25
    memory: int = 20
    rest: int = 4
    least_iterations: int = 5
    patience: int = 300
    restless: float = 0.1
    falls: float = 1e-3
    on_its_way: float = 0.9
    far_down: float = 0.25
    large: int = 500_000

    def __post_init__(self):
        if not isinstance(self.enabled, bool):
            raise ValueError(f"Guard: enabled must be True or False, got {self.enabled!r}")
        for name in ("inner_iterations", "memory", "rest", "least_iterations", "patience"):
            if not _is_number(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"Guard: {name} must be a whole number >= 1, got {getattr(self, name)!r}")
        if not _is_number(self.large, int) or self.large < 0:
            raise ValueError(f"Guard: large must be a whole number >= 0, got {self.large!r}")
        for name in ("more_damping", "on_its_way", "far_down"):
            if not _is_number(getattr(self, name), (int, float)) or not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Guard: {name} must lie in [0, 1), got {getattr(self, name)!r}")
        if not _is_number(self.shorter, (int, float)) or not 0 < self.shorter < 1:
            raise ValueError(f"Guard: shorter must lie between 0 and 1, got {self.shorter!r}")
        for name in ("grown", "moved", "risen", "first_weight", "largest_weight", "more_weight", "restless", "falls"):
            if not _is_number(getattr(self, name), (int, float)) or not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"Guard: {name} must be a number > 0, got {getattr(self, name)!r}")

    def raised(self, damping: jax.Array | np.ndarray) -> np.ndarray:
        """More damping than this."""
        damping = np.asarray(damping)
        more = np.maximum(1 - (1 - damping) * self.shorter, self.more_damping)
        return np.where(damping > 0, more, self.more_damping).astype(damping.dtype)


def _is_number(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def as_guard(given: bool | Guard) -> Guard:
    """The argument `guard=` as a `Guard`."""
    if isinstance(given, Guard):
        return given
    if not isinstance(given, (bool, np.bool_)):
        raise TypeError(f"guard must be True, False or a gbp.Guard, got {given!r}")
    return Guard(enabled=bool(given))


class Verdict(enum.Enum):
    """How a stretch of messages ended."""

    CONVERGED = enum.auto()
    SETTLED = enum.auto()  # the parameters
    OUT_OF_ITERATIONS = enum.auto()
    DIVERGING = enum.auto()
    NOT_CONVERGING = enum.auto()


_FOUND = {
    Verdict.DIVERGING: GuardAction.DIVERGING,
    Verdict.NOT_CONVERGING: GuardAction.NOT_CONVERGING,
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the loop ended."""

    state: State
    means: Values | None  # where they are not those of the messages
    converged: bool
    settled: bool  # only the parameters came to rest
    failed: bool
    rounding: bool  # messages move no more than rounding does
    where: tuple[int, int] | None  # group and iteration of the failure
    trace: Diagnostics  # numpy arrays, an entry an iteration
    events: list[GuardEvent]


def _range(damping: Any) -> tuple[float, float]:
    leaves = [float(d) for d in jax.tree.leaves(damping)]
    return min(leaves), max(leaves)


def _row(rows: Diagnostics, i: int) -> Diagnostics:
    return jax.tree.map(lambda x: x[i], rows)


class _Means:
    """The means of a state. Of a small one they are computed when they are asked for, which they seldom are."""

    def __init__(self, problem: Problem, state: State):
        self._problem, self._state, self._values = problem, None, None
        self._candidate: tuple[State, proximal.Candidate] | None = None
        if state.schedule is not None:
            state = dataclasses.replace(state, schedule=None)
        if is_small(jax.tree.leaves(state)):
            self._state = jax.tree.map(np.array, state)  # a copy: the loop gives the buffers of its state away
        else:
            self._values = proximal.current_means(problem, state)

    @property
    def values(self) -> Values:
        """By the names of the variables."""
        if self._values is None:
            assert self._state is not None
            self._values = proximal.current_means(self._problem, self._state)
        return self._values

    def energy(self, now: State) -> float:
        """At these means. Of small graphs the messages of `now` are centred there in the same compiled call."""
        if self._state is None:
            return float(proximal.total_energy(self._problem, self.values))
        if self._candidate is None or self._candidate[0] is not now:
            self._candidate = now, proximal.candidate(self._problem, now, self._state)
            self._values = self._candidate[1].values
        return float(self._candidate[1].energy)

    def centred(self, now: State, x: Values) -> State | None:
        """The messages of `now` centred at `x`, if that has been computed."""
        known = self._candidate is not None and self._candidate[0] is now and self._values is x
        return self._candidate[1].centred if known and self._candidate is not None else None


class GuardedRun:
    """One inference with its guard: the stages, what is left of the iterations, and the best means so far.

    **Arguments:** `latest`: the diagnostics before the first visit, as `program.begin` makes them.
    """

    def __init__(
        self,
        problem: Problem,
        latest: Diagnostics,
        options: Options,
        iterations: int,
        tolerance: float,
        guard: Guard,
        settled: float = -1.0,
    ):
        self.guard, self.large, self.problem, self.latest = guard, problem.edges > guard.large, problem, latest
        self.options, self.tolerance = options, tolerance
        learnt = any(name in problem.parameters for group in problem.groups for name in group.variables)
        self.settled = settled if learnt else -1.0
        self.left = iterations
        self.has_vectors = any(isinstance(p, VectorGaussian) for p in problem.prior.values())
        self.rows: list[Diagnostics] = []
        self.begun = 0  # where messages were started last, among the rows
        self.events: list[GuardEvent] = []
        self.start: _Means | None = None  # before the first iteration; None: those of the priors, not needed yet
        self.warm = False  # started from earlier messages
        self.best: _Means | None = None  # at the end of the best chunk
        self.best_energy = np.inf
        stochastic = options.dropping or not isinstance(options.schedule, FixedOrder)
        self.patience = guard.patience * (3 if stochastic else 1)

    def _last_energy(self) -> float:
        return float(self.rows[-1].energy[-1].sum() + self.rows[-1].prior[-1].sum())

    def _first_energy(self) -> float:
        return float(self.rows[0].energy[0].sum() + self.rows[0].prior[0].sum())

    @property
    def done(self) -> int:
        """Iterations so far."""
        return sum(len(r.residual) for r in self.rows)

    def _advance(
        self, problem: Problem, state: State, options: Options, latest: Diagnostics, limit: int, enough: Enough
    ) -> tuple[State, Diagnostics, Diagnostics]:
        """Up to `limit` iterations."""
        limit = min(limit, self.left, CHUNK)
        large = problem.edges > self.guard.large
        state, latest, rows = advance(problem, state, options, latest, limit, enough, large)
        self.left -= len(rows.residual)
        self.rows.append(rows)
        return state, latest, rows

    def _end(
        self, state: State, means: Values | None = None, *, converged: bool, settled=False, where=None, failed=False,
        rounding=False,
    ) -> Outcome:  # fmt: skip
        parts = self.rows or [jax.tree.map(lambda x: np.asarray(x)[None][:0], no_diagnostics(self.problem))]
        trace = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        return Outcome(state, means, converged, settled, failed, rounding, where, trace, self.events)

    def run(self, state: State) -> Outcome:
        """Infer, on a problem as `program.begin` makes it."""
        if not self.problem.active():
            return self._end(state, converged=True)
        self.warm = bool(np.asarray(state.visits).any())
        self.start = _Means(self.problem, state) if self.warm else None
        options, stages = self.options, 2 if self.options.damped else 1
        while True:
            state, verdict = self._pass_messages(state, options)
            if verdict in (Verdict.CONVERGED, Verdict.SETTLED):
                return self._end(state, converged=True, settled=verdict is Verdict.SETTLED)
            if verdict is Verdict.OUT_OF_ITERATIONS:
                return self._limit(state)
            if self._moved_by_rounding(state):
                return self._end(state, converged=False, rounding=True)
            self._note(_FOUND[verdict])
            best = self._best(state)
            if not self.guard.enabled:
                return self._end(self._restart(state, best), best, converged=False, failed=True, where=self._where())
            if self.left == 0:
                return self._limit(self._restart(state, best), lost=True)
            if not stages and self.has_vectors:
                return self._give_up(self._restart(state, best), best, self._where())
            if not stages:
                return self._proximal(self._restart(state, best), best)
            stages -= 1
            if self._is_best(best) or self.warm:
                state = self._restart(state, best)
            else:  # no better means than the prior's yet: from the very beginning
                fresh = empty_state(self.problem, state.key, self._keeps_points(state))
                state = dataclasses.replace(fresh, schedule=state.schedule)
            more = jax.tree.map(self.guard.raised, options.damping)
            self._note(GuardAction.DAMPING_RAISED, before=_range(options.damping), after=_range(more))
            options = dataclasses.replace(options, damping=more, damped=True)

    def _note(self, action: GuardAction, **more: Any) -> None:
        self.events.append(GuardEvent(action, self.done, **more))

    def _moved_by_rounding(self, state: State) -> bool:
        """Whether that is all that still moves: no damping helps against it."""
        residual = float(self.rows[-1].residual[-1].max())
        if not np.isfinite(residual):
            return False
        rounding = find_beliefs(self.problem, state).rounding
        return may_be_rounding(residual, {n: x for n, x in rounding.items() if np.isfinite(x)})

    def _best(self, state: State) -> Values:
        """The means with the lowest energy, the start among them. Computed only when something went wrong."""
        if self.has_vectors:  # whose energies are known from visits alone
            if self.best is not None:
                return self.best.values
            if self.start is None:
                zeros = jax.tree.map(np.zeros_like, dataclasses.replace(state, schedule=None))
                self.start = _Means(self.problem, with_prior_means(self.problem, zeros))
            return self.start.values
        if self.start is None:  # before any message
            self.start = _Means(self.problem, jax.tree.map(np.zeros_like, dataclasses.replace(state, schedule=None)))
        lowest = self.start.energy(state)
        if self.best is not None and self.best.energy(state) <= lowest:
            return self.best.values
        return self.start.values

    def _is_best(self, means: Values) -> bool:
        """Whether these are the means at the end of the best chunk."""
        return self.best is not None and means is self.best.values

    def _where(self) -> tuple[int, int]:
        last = self.rows[-1].residual[-1]
        return int(np.argmax(np.nan_to_num(last, nan=np.inf))), self.done

    def _restart(self, state: State, x: Values) -> State:
        """Messages centred at `x`, or none at all if they are broken."""
        known = (m.centred(state, x) for m in (self.best, self.start) if m is not None)
        centred = next((c for c in known if c is not None), None)
        centred = proximal.recentre(self.problem, state, x) if centred is None else centred
        if proximal.finite(centred.messages):
            return centred
        return self._with_points(self._empty(self.problem, state), x)

    def _empty(self, problem: Problem, state: State) -> State:
        """No messages, but the noise that was learnt."""
        fresh = empty_state(problem, state.key, self._keeps_points(state))
        return dataclasses.replace(fresh, noise=state.noise, schedule=state.schedule)

    def _keeps_points(self, state: State) -> bool:
        return any(p is not None for p in state.points)

    def _with_points(self, state: State, x: Values) -> State:
        points = tuple(None if p is None else {name: jnp.copy(x[name]) for name in p} for p in state.points)
        return dataclasses.replace(state, points=points)

    def _limit(self, state: State, lost: bool = False) -> Outcome:
        """Out of iterations: what is returned must be finite and, if it was diverging, no worse than the best means.

        Diagnosed energies that fell each time count as not diverging, unless it is known that messages were `lost`.
        """
        sound = proximal.finite(state.messages)
        if not self.guard.enabled and not sound:
            best = self._best(state)
            return self._end(self._restart(state, best), best, converged=False, failed=True, where=self._where())
        # Beliefs that still move by more than a standard deviation an iteration may be on their way up.
        on_the_way = self.rows[-1].residual[-1].max() <= 1 or (not lost and self._falling())
        if self.guard.enabled and not (sound and on_the_way):
            best = self._best(state)
            if self.has_vectors:
                energy, least = (float(e) for e in (self._last_energy(), min(self.best_energy, self._first_energy())))
            else:
                energy = float(proximal.total_energy(self.problem, proximal.current_means(self.problem, state)))
                least = float(proximal.total_energy(self.problem, best))
            if not (sound and energy <= least + 1e-3 * abs(least)):
                self._note(GuardAction.BEST_MEANS_KEPT if self._is_best(best) else GuardAction.NOTHING_BETTER)
                return self._end(self._restart(state, best), best, converged=False)
        return self._end(state, converged=False)

    def _falling(self) -> bool:
        """Whether messages are on their way: residuals have come down from their peak, and so does the energy.

        Energies that fall, rise over a hump and fall again are typical of a first batch: the means of the hollow before
        it are worth little, and beside the precisions of what was learnt after it they would do harm.
        """
        rows = [_row(r, i) for r in self.rows[self.begun :] for i in range(len(r.residual))]
        energies = [float(r.energy.sum() + r.prior.sum()) for r in rows]
        last, before = energies[-1], [e for e in energies if e != energies[-1]]  # undiagnosed ones are repeated
        if not self.events and last < energies[0] and last <= self.best_energy:
            return True
        residuals = [float(r.residual.max()) for r in rows]
        peak = max((r for r in residuals if np.isfinite(r)), default=0.0)  # groups not yet visited have no finite one
        if residuals[-1] < self.guard.far_down * peak and last < energies[0]:
            return True
        return residuals[-1] < self.guard.on_its_way * peak and bool(before) and last < before[-1]

    def _pass_messages(self, state: State, options: Options) -> tuple[State, Verdict]:
        """Messages until they converge, diverge or run out of iterations."""
        latest, self.begun = self.latest, len(self.rows)
        least, least_at, made, chunk = np.inf, 0, 0, 10 + self.guard.least_iterations if self.large else 10
        lowest, fell_at = np.inf, 0
        while True:
            if self.left == 0:
                return state, Verdict.OUT_OF_ITERATIONS
            enough = Enough(self.tolerance, self.settled, least=self.guard.least_iterations, made=made)
            state, latest, rows = self._advance(self.problem, state, options, latest, min(chunk, CHUNK), enough)
            chunk = min(20 if chunk < 20 else 2 * chunk, CHUNK)
            residuals = rows.residual.max(1)
            energies = rows.energy.sum(1) + rows.prior.sum(1)
            for r in residuals:
                made += 1
                if r < 0.8 * least:
                    least, least_at = r, made
            # Where a message is not finite, a residual is not either; but it need not be where all messages are.
            sound = np.isfinite(residuals[-1]) or proximal.finite(state.messages)
            if not (np.isfinite(energies).all() and sound):
                return state, Verdict.DIVERGING
            if enough.at_rest(_row(rows, -1)):
                return state, Verdict.CONVERGED
            if made >= self.guard.least_iterations and rows.settling[-1].max() <= self.settled:
                return state, Verdict.SETTLED
            if not self.guard.enabled:
                continue
            if energies[-1] <= self.best_energy:
                self.best, self.best_energy = _Means(self.problem, state), float(energies[-1])
            # Energy alone is no sign: value-matched robust factors raise it on the way to their fixed point.
            guard = self.guard
            grown = residuals[-1] > max(guard.grown * least, guard.moved) and made - least_at >= self.patience // 30
            if grown and energies[-1] > self.best_energy + guard.risen * abs(self.best_energy):
                return state, Verdict.DIVERGING
            if not energies[-1] >= lowest - self.guard.falls * abs(lowest):
                lowest, fell_at = energies[-1], made
            if least > self.guard.restless and made - max(least_at, fell_at) >= self.patience:
                return state, Verdict.NOT_CONVERGING

    # Proximal phase.

    def _proximal(self, state: State, centre: Values) -> Outcome:
        """Conjugate proximal steps from `centre` until the energy is at rest."""
        self.problem = problem = proximal.with_settled_noise(self.problem, state, centre)
        reserve = min(CHUNK, self.left // 4)  # for the precisions at the end
        self._note(GuardAction.PROXIMAL_FACTORS)
        broken = proximal.broken_group(problem, centre)
        if broken is not None:
            self._note(GuardAction.NOT_FINITE, group=problem.groups[broken].name)
            return self._give_up(state, centre, (broken, self.done))
        weight, refused, inner_tolerance = self.guard.first_weight, 0, 1e-2
        down, memory, gains = proximal.descent(problem, centre), [], []
        converged = False
        while self.left > reserve and weight <= self.guard.largest_weight:
            state, step = self._inner_solve(state, centre, weight, inner_tolerance)
            moved, direction = None, None
            if step is not None:
                if proximal.at_rest(down, step):
                    converged = True
                    break
                direction = proximal.conjugate(step, memory)
                moved = self._line_search(centre, down, direction)
            if moved is None and memory and step is not None:
                memory = []  # rounding has worn the old directions out
                continue
            if moved is None or direction is None:
                # Not even a fresh step lowers the energy. If the last ones hardly did, or if this one (a share of at
                # most 1 / (1 + weight) of what is left) promises next to nothing, that is rounding.
                promise = np.inf if step is None else abs(float(proximal.inner(down, step))) * (1 + weight)
                if self._at_rest(gains, 10 * self.tolerance) or np.sqrt(promise) < 10 * self.tolerance:
                    converged = True
                    break
                weight, refused, memory = weight * self.guard.more_weight, refused + 1, []
                continue
            centre, length, gain = moved
            before, down = down, proximal.descent(problem, centre)
            bend = jax.tree.map(lambda a, b, t=length: (a - b) / t, before, down)  # H direction
            memory = [*memory, (direction, bend)][-self.guard.memory :]
            gains.append(gain)
            # By Cauchy-Schwarz no mean is further from the optimum than sqrt(2 (E - E_min)) standard deviations;
            # what the last steps gained estimates what is left to gain.
            if self._at_rest(gains, self.tolerance):
                converged = True
                break
            inner_tolerance = float(np.clip(0.05 * np.sqrt(2 * gain), 0.1 * self.tolerance, 1e-2))
        self._note(GuardAction.PROXIMAL_STEPS, weight=weight, steps=len(gains), refused=refused)
        state = self._settle(state, centre)
        if not proximal.finite(state.messages) or not (converged or weight <= self.guard.largest_weight):
            return self._give_up(state, centre, self._where())
        return self._end(state, centre, converged=converged)

    def _at_rest(self, gains: list[float], tolerance: float) -> bool:
        """Whether the last steps gained next to nothing."""
        rest = self.guard.rest
        return len(gains) >= rest and bool(np.sqrt(2 * sum(gains[-rest:])) < tolerance)

    def _give_up(self, state: State, x: Values, where: tuple[int, int]) -> Outcome:
        """Nothing helped: the best means, with the precisions of the messages if these are sound."""
        if not proximal.finite(state.messages):
            state = self._with_points(self._empty(self.problem, state), x)
        return self._end(state, x, converged=False, failed=True, where=where)

    def _inner_solve(self, state: State, centre: Values, weight: float, tolerance: float):
        """Messages with proximal factors: the step they settle at, or None if they do not settle."""
        problem = proximal.step_problem(self.problem, centre, jnp.asarray(weight, next(iter(centre.values())).dtype))
        state = proximal.recentre(problem, state, problem.start)
        if not proximal.finite(state.messages):
            state = self._empty(problem, state)
        enough = Enough(tolerance, visits=1)  # a step need not be exact
        state, _, rows = self._advance(
            problem, state, self.options, no_diagnostics(problem), self.guard.inner_iterations, enough
        )
        residuals = rows.residual.max(1)
        if not proximal.finite(state.messages) or residuals[-1] > max(
            2 * residuals[: len(residuals) // 2 + 1].min(), tolerance
        ):
            return state, None
        return state, proximal.free(self.problem, proximal.current_means(problem, state))

    def _line_search(self, centre: Values, down: Values, direction: Values) -> tuple[Values, float, float] | None:
        """The best step along a direction for the linearised graph, shortened until the true energy falls too.

        **Returns:** where it ends, its length, and what it gains; None if the energy does not fall.
        """
        slope = float(proximal.inner(down, direction))
        bend = float(proximal.curvature(self.problem, centre, direction))
        if not (slope > 0 and bend > 0 and np.isfinite(slope / bend)):
            return None
        length = slope / bend
        for _ in range(5):
            x = jax.tree.map(lambda c, d, a=length: c + a * d, centre, direction)
            before, after = (float(e) for e in proximal.compare(self.problem, centre, x))
            if after <= before + 1e-6 * abs(before):
                return x, length, length * (slope - 0.5 * length * bend)
            length *= 0.25
        return None

    def _settle(self, state: State, x: Values) -> State:
        """Precisions without proximal factors on the graph linearised at `x`, all message means at `x`."""
        problem = proximal.step_problem(self.problem, x, jnp.zeros((), next(iter(x.values())).dtype))
        # Means do not move: every residual `y - h` and every prior mean is zero, and so is every message's.
        problem = dataclasses.replace(
            problem,
            groups=tuple(dataclasses.replace(g, y=jnp.zeros_like(g.y)) for g in problem.groups),
            prior={name: Gaussian(jnp.zeros_like(p.eta), p.lam) for name, p in problem.prior.items()},
            uniform={},
        )
        state = self._empty(problem, state)
        if self.left:
            state, _, _ = self._advance(
                problem, state, self.options, no_diagnostics(problem), CHUNK, Enough(self.tolerance)
            )
        return self._with_points(proximal.recentre(self.problem, state, x), x)
