"""The result of inference: beliefs, how it ended, and what happened in each iteration."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import linalg
from ..core.gaussian import Gaussian
from ..core.vector import Belief, VectorGaussian
from ..graph.graph import FactorGraph
from ..graph.problem import Problem
from . import log_evidence
from .guard.events import GuardAction, GuardEvent
from .program import Program
from .rounding import some_beliefs
from .state import State

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Status(enum.Enum):
    """How inference ended; the values are the sentences a user reads. The last two are those of a learner's update."""

    CONVERGED = "converged"
    SETTLED = "the parameters have settled; activations may still move"
    ITERATION_LIMIT = "stopped at the iteration limit before reaching the tolerance"
    ROUNDING = "float32 is not enough: rounding alone moves beliefs by more than the tolerance; use float64"
    DIVERGED = "diverged; the beliefs are those of the last good state"
    STRAINED = "layers do not hold: their residuals are far beyond their noise"
    UNUSUAL = "not learnt: the batch is far outside all that was learnt from"

    def __str__(self) -> str:
        return self.value


# Beliefs that would still move by so many standard deviations are lost.
_LOST = 100.0
_DIVERGING = (GuardAction.DIVERGING, GuardAction.BEST_MEANS_KEPT, GuardAction.NOTHING_BETTER)


class InferenceError(RuntimeError):
    """Inference diverged and could not be rescued. `.result` holds the last good state."""

    def __init__(self, message: str, result: Result):
        super().__init__(message)
        self.result = result


@dataclasses.dataclass(frozen=True)
class Trace:
    """Diagnostics of each iteration. Arrays have one entry an iteration."""

    residual: np.ndarray  # largest undamped change of any belief, in standard deviations or log precision
    energy: dict[str, np.ndarray]  # of each factor group, at the means it was visited with
    prior_energy: np.ndarray  # of all priors
    switched: dict[str, np.ndarray]  # share of robust factors with a scale below 1
    residuals: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # of each group; the largest: `residual`

    @classmethod
    def joined(cls, parts: Sequence[Trace]) -> Trace:
        """Traces one after the other, of the same graph."""

        def names(of: str) -> dict[str, np.ndarray]:
            first = getattr(parts[0], of)
            return {name: np.concatenate([getattr(p, of)[name] for p in parts]) for name in first}

        return cls(
            np.concatenate([p.residual for p in parts]),
            names("energy"),
            np.concatenate([p.prior_energy for p in parts]),
            names("switched"),
            names("residuals"),
        )

    @property
    def total_energy(self) -> np.ndarray:
        """Energy of all groups and priors."""
        return self.prior_energy + sum(self.energy.values())


class FoundBeliefs(Mapping[str, Belief]):
    """The beliefs of all variables by name, computed when they are first asked for: parameters, or all others.

    **Arguments:**

    - `means`: where they are not those of the messages; by canonical names.
    - `known`: beliefs that have been computed already, by canonical names.
    """

    def __init__(
        self,
        program: Program,
        problem: Problem,
        state: State,
        means: Mapping[str, Array] | None = None,
        known: Mapping[str, Belief] | None = None,
    ):
        self._program, self._problem, self._state, self._means = program, problem, state, means
        self._names = dict(program.names)
        self._cut: dict[str, Belief] = {}  # of variables that grow, the rows in use
        self._found: dict[str, Belief] = {} if known is None else {n: self._centred(n, g) for n, g in known.items()}

    def __getitem__(self, name: str) -> Belief:
        keep = self._names[name]
        if keep not in self._found:
            self._find(keep)
        return self._shown(keep)

    def padded_mean(self, name: str) -> Array:
        """The mean of a variable, with rows that are not in use if it grows."""
        keep = self._names[name]
        if keep not in self._found:
            self._find(keep)
        return jnp.asarray(self._found[keep].mean)

    def _shown(self, keep: str) -> Belief:
        """A belief without the rows that are not in use: NumPy's, since JAX would compile for each new length."""
        used, belief = self._problem.used, self._found[keep]
        if keep not in used:
            return belief
        if keep not in self._cut:
            rows = int(used[keep]) // math.prod(belief.shape[1:])
            cut: Any = np.asarray(belief.eta)[:rows], np.asarray(belief.lam)[:rows]
            self._cut[keep] = Gaussian(*cut)
        return self._cut[keep]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def _find(self, keep: str) -> None:
        problem = self._problem
        if keep in problem.held:
            self._found[keep] = problem.held[keep]
        elif keep in problem.fixed:
            self._found[keep] = Gaussian.point(problem.fixed[keep], block=keep in self._program.blocks)
        else:
            kind = keep in problem.parameters
            prior = problem.prior[keep]
            if isinstance(prior, VectorGaussian):
                places = problem.touching(keep)
                sent = [self._state.messages[g][s].along for g, s in places]
                belief = prior if not sent or sent[0] is None else prior.absorbed(sent[0])
                self._found[keep] = belief if self._means is None else belief.with_mean(self._means[keep])
                return
            names = tuple(
                n
                for n, p in problem.prior.items()
                if (n in problem.parameters) == kind and n not in self._found and isinstance(p, Gaussian)
            )
            found = some_beliefs(problem, self._state, names)
            self._found |= {n: self._centred(n, g) for n, g in found.items()}

    def _centred(self, name: str, belief: Gaussian) -> Gaussian:
        if self._means is None:
            return belief
        return Gaussian(linalg.information(belief.lam, self._means[name]), belief.lam)


@dataclasses.dataclass(frozen=True, eq=False)
class Result(Mapping[str, Belief]):
    """Beliefs, and how they came about: a mapping, `result["x"]` is the belief of a variable."""

    beliefs: Mapping[str, Belief]
    status: Status
    message: str  # the status with its circumstances: which group, which iteration
    iterations: int
    noise: dict[str, float]  # standard deviation of each factor group whose noise is learnt
    trace: Trace
    guard: tuple[GuardEvent, ...]  # what the guard found and did, in order; empty if it was not needed
    state: State
    problem: Problem = dataclasses.field(repr=False)  # that the messages are of
    origin: FactorGraph | Callable[[], FactorGraph] | None = dataclasses.field(repr=False)  # the graph, or makes it
    counts: Array | None = dataclasses.field(repr=False, default=None)  # of the measurements of each group

    def __getitem__(self, name: str) -> Belief:
        if name not in self.beliefs:
            raise KeyError(f"there is no variable '{name}' (there are: {', '.join(self.beliefs)})")
        return self.beliefs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.beliefs)

    def __len__(self) -> int:
        return len(self.beliefs)

    @property
    def graph(self) -> FactorGraph:
        """The graph that was inferred."""
        if self.origin is None:
            raise ValueError("this result is of a program: it knows its numbers, but not the graph that they are of")
        return self.origin if isinstance(self.origin, FactorGraph) else self.origin()

    @property
    def measurements(self) -> dict[str, float]:
        """How many measurements each factor group has, each counted by its weight."""
        counts = [g.measurements() for g in self.problem.groups] if self.counts is None else np.asarray(self.counts)
        return {g.name: float(n) for g, n in zip(self.problem.groups, counts)}

    @property
    def residual(self) -> float:
        """Residual of the last iteration."""
        return float(self.trace.residual[-1]) if len(self.trace.residual) else 0.0

    @property
    def log_evidence(self) -> float:
        """Bethe approximation of `log p(observations)`; exact on trees of linear factors."""
        return float(log_evidence.log_evidence(self.problem, self._priors(), self.state, self._means()))

    @property
    def log_evidence_by_example(self) -> np.ndarray:
        """The same for each example, where the batch is the first axis of all but parameters, which are not learnt.

        The density of fixed parameters under their priors, which belongs to no example, is left out.
        """
        if self.problem.used:
            raise ValueError("evidence by example: variables that grow have no examples")
        kinds = self.graph.kinds
        prior = {name: p for name, p in self.graph.priors().items() if kinds[name] != "parameter"}
        if any(name not in prior for name in self.problem.prior):
            raise ValueError("evidence by example: parameters that are learnt join the examples")
        return np.asarray(log_evidence.log_evidence_by_example(self.problem, prior, self.state, self._means()))

    @property
    def usable(self) -> bool:
        """Whether its beliefs may become a prior.

        Not if inference diverged, nor if it ran out of iterations while the guard was still at it, so that precisions
        are those of messages that are lost. (Units at a kink keep moving by a few standard deviations; that is no
        divergence.)
        """
        if self.status not in (Status.ITERATION_LIMIT, Status.ROUNDING):
            return self.status is not Status.DIVERGED
        actions = [event.action for event in self.guard if event.round is None]
        if GuardAction.NOTHING_BETTER in actions:
            return False  # precisions would grow, and nothing would have been learnt
        struggling = any(a in _DIVERGING for a in actions[-2:]) and not self.residual <= _LOST
        proximal = GuardAction.PROXIMAL_FACTORS in actions
        return not (struggling or proximal) and bool(np.isfinite(self.trace.total_energy[-1]))

    def plot(self) -> Figure:
        """A figure of matplotlib: residual and energies over the iterations."""
        from ..show.plots import plot_result

        return plot_result(self)

    def _repr_html_(self) -> str:
        from ..show.notebook import result_html

        return result_html(self)

    def _means(self) -> dict[str, jax.Array]:
        found = self.beliefs
        if isinstance(found, FoundBeliefs):
            return {name: found.padded_mean(name) for name in self.problem.prior}
        return {name: found[name].mean for name in self.problem.prior}

    def _priors(self) -> dict[str, Belief]:
        """The priors without evidence. Those of variables that grow matter only where these are observed."""
        now, used = self.graph.priors(), self.problem.used
        return {n: _rows_of(p, self.problem.prior[n]) if n in used else p for n, p in now.items()}


def _rows_of(prior: Gaussian, padded: Gaussian) -> Gaussian:
    """The first rows of a prior, in the shape of another, whose rows it gets where it has none."""
    rows = min(prior.shape[0], padded.shape[0])
    eta, lam = (np.array(x) for x in (padded.eta, padded.lam))
    eta[:rows], lam[:rows] = np.asarray(prior.eta)[:rows], np.asarray(prior.lam)[:rows]
    return Gaussian(jnp.asarray(eta), jnp.asarray(lam))
