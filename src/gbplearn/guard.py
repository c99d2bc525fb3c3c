"""What keeps loopy inference from diverging.

Plain belief propagation runs until it converges, or until the guard sees it diverge: the residual has grown, and the
energy at the means has risen above the best one. Then, from the best means seen so far (before any were seen, anew),

1. messages are damped more;
2. if that does not help, every variable gets a *proximal factor* `N(c, gamma x precision)` that holds it near a
   centre `c` (Johnson et al. 2009). For a linear graph, belief propagation with enough weight `gamma` converges to
   `c - (H + Gamma)^-1 grad E(c)`: a preconditioned descent step, found by messages. Taking that step alone would need
   as many rounds as the graph is ill-conditioned, so each step is made conjugate to the last ones (flexible
   conjugate gradients), with the length that minimises the linearised energy. Weights grow when messages diverge all
   the same or the energy does not fall.

The messages of a proximal step are about the *step*: the graph is linearised at `c` and shifted there, so that float32
resolves steps much smaller than the rounding of the means. With the means at rest, precisions are those of plain belief
propagation on the graph linearised there: they grow monotonically from nothing to a bound, so they converge whatever
the means do.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from . import proximal
from .gaussian import Gaussian
from .look import Latest, nothing_seen
from .options import Options
from .problem import Problem, State, belief_mean, empty_state
from .propagate import CHUNK, Enough, advance, is_large, prepared
from .proximal import Values
from .rounding import find_beliefs, may_be_rounding
from .sweep import fixed_order

NOTHING_BETTER = "none better than those at the start"
_MORE_DAMPING = 0.7  # at least; steps that were damped before get a quarter of their length
_FIRST_WEIGHT = 4.0
_WEIGHT_LIMIT = 1e6
_INNER = 25  # iterations for one proximal step at most
_MEMORY = 20  # earlier directions that a new one is made conjugate to
_REST = 4  # steps whose gain estimates what is left
_LEAST = 5  # iterations before parameters count as settled: what is observed must have reached them
_STALLED = 300  # iterations without progress of the residual that count as not converging ...
_RESTLESS = 0.1  # ... if it is larger than this ...
_FALLS = 1e-3  # ... and the energy does not fall by this share either: units at a kink never rest, while others learn
# Of the largest residual: messages that have come down so far, and whose energy falls, are not diverging; nor are those
# that have come down far, whose energy is below what it was at first.
_ON_ITS_WAY, _FAR_DOWN = 0.9, 0.25


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
    trace: Latest  # numpy arrays, an entry an iteration
    did: list[str]


def _row(rows: Latest, i: int) -> Latest:
    return jax.tree.map(lambda x: x[i], rows)


def _more_damping(d: jax.Array) -> jax.Array:
    return jnp.where(d > 0, jnp.maximum(1 - (1 - d) / 4, _MORE_DAMPING), _MORE_DAMPING).astype(d.dtype)


class Guard:
    """Runs messages to convergence, and watches."""

    def __init__(
        self,
        problem: Problem,
        options: Options,
        iterations: int,
        tolerance: float,
        enabled: bool,
        settled: float = -1.0,
    ):
        self.problem = prepared(problem, options) if is_large(problem) else problem
        self.options, self.tolerance = options, tolerance
        learnt = any(name in problem.parameters for group in problem.groups for name in group.variables)
        self.settled = settled if learnt else -1.0
        self.left, self.enabled = iterations, enabled
        self.rows: list[Latest] = []
        self.begun = 0  # where messages were started last, among the rows
        self.did: list[str] = []
        self.start: Values | None = None  # means before the first iteration; None: those of the priors
        self.best: Values | None = None  # means at the end of the best chunk
        self.best_energy = np.inf
        stochastic = options.dropping or fixed_order(problem, options) is None
        self.patience = _STALLED * (3 if stochastic else 1)

    @property
    def done(self) -> int:
        """Iterations so far."""
        return sum(len(r.residual) for r in self.rows)

    def _advance(self, problem: Problem, state: State, options: Options, latest: Latest, limit: int, enough: Enough):
        """Up to `limit` iterations."""
        limit = min(limit, self.left, CHUNK)
        state, latest, rows = advance(problem, state, options, latest, limit, enough)
        self.left -= len(rows.residual)
        self.rows.append(rows)
        return state, latest, rows

    def _end(
        self, state: State, means: Values | None = None, *, converged: bool, settled=False, where=None, failed=False,
        rounding=False,
    ) -> Outcome:  # fmt: skip
        parts = self.rows or [jax.tree.map(lambda x: np.asarray(x)[None][:0], nothing_seen(self.problem))]
        trace = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        return Outcome(state, means, converged, settled, failed, rounding, where, trace, self.did)

    def run(self, state: State) -> Outcome:
        """Infer."""
        if not self.problem.active():
            return self._end(state, converged=True)
        self.start = None if not np.asarray(state.visits).any() else proximal.current_means(self.problem, state)
        options, stages = self.options, 2 if self.options.damped else 1
        while True:
            state, verdict = self._plain(state, options)
            if verdict in ("converged", "settled"):
                return self._end(state, converged=True, settled=verdict == "settled")
            if verdict == "limit":
                return self._limit(state)
            if self._moved_by_rounding(state):
                return self._end(state, converged=False, rounding=True)
            self.did.append(f"iteration {self.done}: {verdict}")
            best = self._best()
            if not self.enabled:
                return self._end(self._restart(state, best), best, converged=False, failed=True, where=self._where())
            if self.left == 0:
                return self._limit(self._restart(state, best), lost=True)
            if not stages:
                return self._proximal(self._restart(state, best), best)
            stages -= 1
            if best is self.best or self.start is not None:
                state = self._restart(state, best)
            else:  # nothing good was seen yet: from the very beginning
                state = empty_state(self.problem, state.key, self._keeps_points(state))
            more = jax.tree.map(_more_damping, options.damping)
            options = dataclasses.replace(options, damping=more, damped=True)
            least, most = (float(f(d)) for f, d in ((min, jax.tree.leaves(more)), (max, jax.tree.leaves(more))))
            self.did.append(f"damping raised to {least:.4g}" + (f" ... {most:.4g}" if most > least else ""))

    def _moved_by_rounding(self, state: State) -> bool:
        """Whether that is all that still moves: no damping helps against it."""
        residual = float(self.rows[-1].residual[-1].max())
        if not np.isfinite(residual):
            return False
        rounding = find_beliefs(self.problem, state).rounding
        return may_be_rounding(residual, {n: x for n, x in rounding.items() if np.isfinite(x)})

    def _best(self) -> Values:
        """The means with the lowest energy, the start among them. Looked up only when something went wrong."""
        start = self.start
        if start is None:
            p = self.problem
            start = {name: belief_mean(g, p.start[name], name in p.proper) for name, g in p.prior.items()}
        if self.best is not None:
            energy = float(proximal.total_energy(self.problem, self.best))
            if energy <= float(proximal.total_energy(self.problem, start)):
                return self.best
        return start

    def _where(self) -> tuple[int, int]:
        last = self.rows[-1].residual[-1]
        return int(np.argmax(np.nan_to_num(last, nan=np.inf))), self.done

    def _restart(self, state: State, x: Values) -> State:
        """Messages centred at `x`, or none at all if they are broken."""
        centred = proximal.recentre(self.problem, state, x)
        if proximal.finite(centred.messages):
            return centred
        return self._with_points(self._empty(self.problem, state), x)

    def _empty(self, problem: Problem, state: State) -> State:
        """No messages, but the noise that was learnt."""
        return dataclasses.replace(empty_state(problem, state.key, self._keeps_points(state)), noise=state.noise)

    def _keeps_points(self, state: State) -> bool:
        return any(p is not None for p in state.points)

    def _with_points(self, state: State, x: Values) -> State:
        points = tuple(None if p is None else {name: jnp.copy(x[name]) for name in p} for p in state.points)
        return dataclasses.replace(state, points=points)

    def _limit(self, state: State, lost: bool = False) -> Outcome:
        """Out of iterations: what is returned must be finite and, if it was diverging, no worse than what was seen.

        Energies that fell from look to look are taken for not diverging, unless it is known that messages were `lost`.
        """
        sound = proximal.finite(state.messages)
        if not self.enabled and not sound:
            best = self._best()
            return self._end(self._restart(state, best), best, converged=False, failed=True, where=self._where())
        # Beliefs that still move by more than a standard deviation an iteration may be on their way up.
        if self.enabled and not (sound and (self.rows[-1].residual[-1].max() <= 1 or (not lost and self._falling()))):
            best = self._best()
            energy = float(proximal.total_energy(self.problem, proximal.current_means(self.problem, state)))
            least = float(proximal.total_energy(self.problem, best))
            if not (sound and energy <= least + 1e-3 * abs(least)):
                kept = "best means kept" if best is self.best else NOTHING_BETTER
                self.did.append(f"iteration {self.done}: out of iterations while diverging, {kept}")
                return self._end(self._restart(state, best), best, converged=False)
        return self._end(state, converged=False)

    def _falling(self) -> bool:
        """Whether messages are on their way: residuals have come down from their peak, and so does the energy.

        Energies that fall, rise over a hump and fall again are what a first batch looks like: the means of the hollow
        before it are worth little, and beside the precisions of what was learnt after it they would do harm.
        """
        rows = [_row(r, i) for r in self.rows[self.begun :] for i in range(len(r.residual))]
        energies = [float(r.energy.sum() + r.prior.sum()) for r in rows]
        last, before = energies[-1], [e for e in energies if e != energies[-1]]  # what nobody looked at is repeated
        if self.did == [] and last < energies[0] and last <= self.best_energy:
            return True
        residuals = [float(r.residual.max()) for r in rows]
        peak = max((r for r in residuals if np.isfinite(r)), default=0.0)  # groups not yet visited have no finite one
        if residuals[-1] < _FAR_DOWN * peak and last < energies[0]:
            return True
        return residuals[-1] < _ON_ITS_WAY * peak and bool(before) and last < before[-1]

    def _plain(self, state: State, options: Options) -> tuple[State, str]:
        """Messages until they converge, diverge or run out of iterations."""
        latest, self.begun = nothing_seen(self.problem), len(self.rows)
        # Large graphs are looked at after their first iteration: what their energies are compared with at the end.
        least, least_at, seen, chunk = np.inf, 0, 0, 1 if is_large(self.problem) else 10
        lowest, fell_at = np.inf, 0
        while True:
            if self.left == 0:
                return state, "limit"
            enough = Enough(self.tolerance, self.settled if seen >= _LEAST else -1.0)
            state, latest, rows = self._advance(self.problem, state, options, latest, chunk, enough)
            chunk = _LEAST - 1 if chunk == 1 else min(max(10, 2 * chunk), CHUNK)
            residuals = rows.residual.max(1)
            energies = rows.energy.sum(1) + rows.prior.sum(1)
            for r in residuals:
                seen += 1
                if r < 0.8 * least:
                    least, least_at = r, seen
            # Where a message is not finite, a residual is not either; but it need not be where all messages are.
            sound = np.isfinite(residuals[-1]) or proximal.finite(state.messages)
            if not (np.isfinite(energies).all() and sound):
                return state, "diverging"
            if enough.at_rest(_row(rows, -1)):
                return state, "converged"
            if seen >= _LEAST and rows.settling[-1].max() <= self.settled:
                return state, "settled"
            if not self.enabled:
                continue
            if energies[-1] <= self.best_energy:
                self.best, self.best_energy = proximal.current_means(self.problem, state), float(energies[-1])
            # Energy alone does not tell: value-matched robust factors raise it on the way to their fixed point.
            grown = residuals[-1] > max(10 * least, 1.0) and seen - least_at >= self.patience // 30
            if grown and energies[-1] > self.best_energy + 0.01 * abs(self.best_energy):
                return state, "diverging"
            if not energies[-1] >= lowest - _FALLS * abs(lowest):
                lowest, fell_at = energies[-1], seen
            if least > _RESTLESS and seen - max(least_at, fell_at) >= self.patience:
                return state, "not converging"

    # Proximal phase.

    def _proximal(self, state: State, centre: Values) -> Outcome:
        """Conjugate proximal steps from `centre` until the energy is at rest."""
        self.problem = problem = proximal.with_settled_noise(self.problem, state, centre)
        reserve = min(CHUNK, self.left // 4)  # for the precisions at the end
        self.did.append("proximal factors")
        broken = proximal.broken_group(problem, centre)
        if broken is not None:
            self.did.append(
                f"h or its Jacobian is not finite at the best means of group '{problem.groups[broken].name}'"
            )
            return self._give_up(state, centre, (broken, self.done))
        weight, refused, inner_tolerance = _FIRST_WEIGHT, 0, 1e-2
        down, memory, gains = proximal.descent(problem, centre), [], []
        converged = False
        while self.left > reserve and weight <= _WEIGHT_LIMIT:
            state, answer = self._inner_solve(state, centre, weight, inner_tolerance)
            moved, direction = None, None
            if answer is not None:
                if proximal.at_rest(down, answer):
                    converged = True
                    break
                direction = proximal.conjugate(answer, memory)
                moved = self._line_search(centre, down, direction)
            if moved is None and memory and answer is not None:
                memory = []  # rounding has worn the old directions out
                continue
            if moved is None or direction is None:
                # Not even a fresh step lowers the energy. If the last ones hardly did, or if this one (a share of at
                # most 1 / (1 + weight) of what is left) promises next to nothing, that is rounding.
                promise = np.inf if answer is None else abs(float(proximal.inner(down, answer))) * (1 + weight)
                hardly = len(gains) >= _REST and np.sqrt(2 * sum(gains[-_REST:])) < 10 * self.tolerance
                if hardly or np.sqrt(promise) < 10 * self.tolerance:
                    converged = True
                    break
                weight, refused, memory = weight * 4, refused + 1, []
                continue
            centre, length, gain = moved
            before, down = down, proximal.descent(problem, centre)
            bend = jax.tree.map(lambda a, b, t=length: (a - b) / t, before, down)  # H direction
            memory = [*memory[-_MEMORY + 1 :], (direction, bend)]
            gains.append(gain)
            # By Cauchy-Schwarz no mean is further from the optimum than sqrt(2 (E - E_min)) standard deviations;
            # what the last steps gained estimates what is left to gain.
            if len(gains) >= _REST and np.sqrt(2 * sum(gains[-_REST:])) < self.tolerance:
                converged = True
                break
            inner_tolerance = float(np.clip(0.05 * np.sqrt(2 * gain), 0.1 * self.tolerance, 1e-2))
        self.did.append(f"iteration {self.done}: weight {weight:g}, {len(gains)} steps, {refused} refused")
        state = self._settle(state, centre)
        if not proximal.finite(state.messages) or not (converged or weight <= _WEIGHT_LIMIT):
            return self._give_up(state, centre, self._where())
        return self._end(state, centre, converged=converged)

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
        state, _, rows = self._advance(problem, state, self.options, nothing_seen(problem), _INNER, enough)
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
        """Precisions of plain belief propagation on the graph linearised at `x`, all message means at `x`."""
        problem = proximal.step_problem(self.problem, x, jnp.zeros((), next(iter(x.values())).dtype))
        # Nothing to say about the means: every residual and every prior mean is zero, and so every message's.
        problem = dataclasses.replace(
            problem,
            groups=tuple(dataclasses.replace(g, y=jnp.zeros_like(g.y)) for g in problem.groups),
            prior={name: Gaussian(jnp.zeros_like(p.eta), p.lam) for name, p in problem.prior.items()},
            uniform={},
        )
        state = self._empty(problem, state)
        if self.left:
            state, _, _ = self._advance(
                problem, state, self.options, nothing_seen(problem), CHUNK, Enough(self.tolerance)
            )
        return self._with_points(proximal.recentre(self.problem, state, x), x)
