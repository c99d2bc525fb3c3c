"""`gbp.solve`: the beliefs of a graph as a function of its numbers, for `jax.jit`, `jax.vmap` and `jax.grad`.

    solve(program, data)  ->  beliefs

One compiled loop sends messages until they are at rest, in a fixed order of groups. There is no guard, and nothing is
decided in Python: `gbp.infer` is the one that rescues a graph whose messages diverge.

**Derivatives** are those of the fixed point, not of the iterations that led there. Messages at rest are `m = F(m, x)`,
with one iteration `F` and the numbers `x` of the graph. So

    dm = A dm + b ,   A = dF/dm ,   b = dF/dx dx

and derivatives of beliefs, means and precisions alike, follow from `dm`. It is solved as it stands, `dm <- b + A dm`,
which contracts as quickly as the messages themselves did; reverse mode solves with the transpose of `A`. Only one
iteration is differentiated, however many were made. A linearisation point is a function of the beliefs, and so are
robust scales and noises that are learnt: their derivatives count.

Messages have units (metres, radians, and one over their squares). To know when `dm` is at rest, they are written in
units of the beliefs: information as a distance from the belief's mean in its standard deviations, precision as a share
of the belief's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.dtypes import float0
from jax.flatten_util import ravel_pytree

from ..core import linalg
from ..core.gaussian import Gaussian
from ..core.vector import Belief, VectorGaussian
from ..graph.data import Data
from ..graph.problem import Problem
from ..kernels.registry import without_kernels
from .damping import Damping
from .diagnostics import no_diagnostics
from .exchange import visit_group
from .loop import Enough, iterate
from .moves import fixed_order
from .options import Options, make_options
from .program import Program
from .result import FoundBeliefs
from .schedules import FixedOrder, Schedule, Sweep, TreeOrder
from .state import Messages, State, belief, empty_state

Carry = TypeVar("Carry")

# What rounding still lets messages of large graphs reach.
_TOLERANCE_32, _TOLERANCE_64 = 1e-4, 1e-8
# Of the tolerance of messages: the linear system of a derivative is solved further, its iterations are cheap.
_DERIVATIVE = 0.01
# A derivative whose last iteration still moved it by this share is none: NaN.
_MOVING = 0.01


class Solution(NamedTuple):
    """Beliefs at rest, and how they came to it. All are arrays that JAX may trace.

    - `beliefs`: of each variable, by name.
    - `converged`: whether the residual was below the tolerance in two iterations in a row. If not, the beliefs are
        those of the last iteration, and their derivatives are of no use.
    - `residual`: how far the last iteration would still have moved a belief, in standard deviations or log precision.
    - `iterations`: how many were made.
    - `noise`: standard deviation of each factor group whose noise is learnt.
    """

    beliefs: dict[str, Belief]
    converged: Array
    residual: Array
    iterations: Array
    noise: dict[str, Array]


@overload
def solve(
    program: Program,
    data: Data,
    *,
    iterations: int = ...,
    tolerance: float | None = ...,
    damping: float | Damping = ...,
    schedule: Schedule | None = ...,
    full: Literal[False] = ...,
) -> dict[str, Belief]: ...


@overload
def solve(
    program: Program,
    data: Data,
    *,
    iterations: int = ...,
    tolerance: float | None = ...,
    damping: float | Damping = ...,
    schedule: Schedule | None = ...,
    full: Literal[True],
) -> Solution: ...


def solve(
    program: Program,
    data: Data,
    *,
    iterations: int = 1000,
    tolerance: float | None = None,
    damping: float | Damping = 0.0,
    schedule: Schedule | None = None,
    full: bool = False,
) -> dict[str, Belief] | Solution:
    """Beliefs at rest, as a function of the numbers of a graph: pure, so that JAX may transform it.

    ```python
    program, data = gbp.compile(graph), graph.data()


    def position(y):
        return gbp.solve(program, data.replace(y={"odometry": y}))["pose"].mean


    jax.jit(position)(y)
    jax.vmap(position)(many)        # many problems of one structure
    jax.jacobian(position)(y)       # how the solution moves with the data
    ```

    Derivatives are those of the solution (implicit differentiation), with respect to any number in `data`:
    observations, noises, weights, priors, constants, observed values; forward and reverse, of first and higher order.
    They hold if it converged. Where their own iteration does not come to rest within `iterations`, they are NaN.

    There is no guard: messages that diverge end as numbers that are not finite, or at the limit; ask for the `full`
    solution to know. There are no kernels either: large networks are quicker with `gbp.infer`.

    **Arguments:**

    - `program`: of `gbp.compile(graph)`.
    - `data`: its numbers, `graph.data()`, perhaps with some replaced by values that JAX traces.
    - `iterations`: at most so many full schedules.
    - `tolerance`: converged when every belief would move by less, undamped, in two iterations in a row: as `gbp.infer`.
        By default 1e-4 in float32, and 1e-8 in float64.
    - `damping`: weight of the old message: a number, or `gbp.Damping(...)` by variable.
    - `schedule`: `gbp.Sweep()` (default), or another one of a fixed order, such as `gbp.Order(...)`.
    - `full`: return a `gbp.Solution`: the beliefs and how they came about.

    **Returns:** the belief of every variable, by name; or the full solution.
    """
    if not isinstance(program, Program):
        raise TypeError(f"solve: program must be a gbp.Program (gbp.compile(graph)), got {type(program).__name__}")
    if not isinstance(data, Data):
        raise TypeError(f"solve: data must be a gbp.Data (graph.data()), got {type(data).__name__}")
    if not (isinstance(iterations, int) and iterations >= 1):
        raise ValueError(f"iterations must be a whole number >= 1, got {iterations!r}")
    if tolerance is None:
        tolerance = _TOLERANCE_64 if program.dtype == jnp.float64 else _TOLERANCE_32
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be >= 0, got {tolerance!r}")
    bare = program.structure.problem
    vectors = [name for name, p in bare.prior.items() if isinstance(p, VectorGaussian)]
    if vectors:
        raise ValueError(f"solve: '{vectors[0]}' is a vector variable: use gbp.infer")
    schedule = schedule or program.schedule or Sweep()
    if isinstance(schedule, Schedule) and (isinstance(schedule, TreeOrder) or not isinstance(schedule, FixedOrder)):
        how = "sweeps over a tree" if isinstance(schedule, TreeOrder) else "picks its groups while it runs"
        raise ValueError(f"solve: gbp.{type(schedule).__name__}() {how}; take an order of groups, such as gbp.Sweep()")
    options = make_options(program, bare, damping, 0.0, schedule, 1)
    found = _solve(program, data, options, iterations, tolerance)
    return found if full else found.beliefs


@partial(jax.jit, static_argnums=0)
def _solve(program: Program, data: Data, options: Options, limit: Array, tolerance: Array) -> Solution:
    problem = program.problem(data).with_known()
    at_rest, ending = _come_to_rest(problem, options, limit, jnp.asarray(tolerance, program.dtype))
    learnt = zip(problem.groups, at_rest.noise)
    noise = {g.name: jnp.sqrt(v) for g, v in learnt if v is not None and g.slots}
    beliefs = dict(FoundBeliefs(program, problem, _state_of(at_rest)))
    return Solution(beliefs, ending.converged, ending.residual, ending.iterations, noise)


class _AllMessages(NamedTuple):
    """What an iteration maps to itself."""

    messages: tuple[tuple[Messages, ...], ...]  # of each group, of each slot
    noise: tuple[Array | None, ...]  # of each group whose noise is learnt, its variance


class _Ending(NamedTuple):
    converged: Array
    residual: Array
    iterations: Array


def _state_of(all_messages: _AllMessages) -> State:
    """A state in which every group has been visited."""
    count = len(all_messages.messages)
    visits, key = jnp.ones(count, jnp.int32), jax.random.PRNGKey(0)
    return State(all_messages.messages, (None,) * count, visits, key, all_messages.noise)


@without_kernels()
def _iteration(problem: Problem, options: Options, before: _AllMessages) -> _AllMessages:
    """`F`: a full round of the schedule."""
    state = _state_of(before)
    for g in fixed_order(problem, options) or ():
        state = visit_group(problem, state, options, g)[0]
    return _AllMessages(state.messages, state.noise)


@jax.custom_jvp
@without_kernels()
def _come_to_rest(problem: Problem, options: Options, limit: Array, tolerance: Array) -> tuple[_AllMessages, _Ending]:
    """Iterations from no messages at all, until they are at rest."""
    fresh, enough = no_diagnostics(problem), Enough(tolerance)

    def finite(state: State) -> Array:
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state.messages)]))

    def round_of_visits(carry: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state, quiet, residual = carry
        state, latest = iterate(problem, state, options, fresh._replace(quiet=quiet, residual=residual))
        latest = enough.counted(latest, jnp.ones_like(quiet))
        return state, latest.quiet, latest.residual

    def done(carry: tuple[State, Array, Array]) -> Array:
        return enough.at_rest(fresh._replace(quiet=carry[1])) | ~finite(carry[0])

    state = empty_state(problem, jax.random.PRNGKey(0), False)
    if not problem.active():
        ending = _Ending(jnp.ones((), bool), jnp.zeros_like(tolerance), jnp.zeros_like(limit))
        return _AllMessages(state.messages, state.noise), ending
    carry, made = _repeat(round_of_visits, done, (state, fresh.quiet, fresh.residual), limit)
    state, residual, good = carry[0], carry[2].max(), finite(carry[0])
    converged = enough.at_rest(fresh._replace(quiet=carry[1])) & good
    return _AllMessages(state.messages, state.noise), _Ending(converged, jnp.where(good, residual, jnp.inf), made)


# Whether an iteration is the last is asked after so many. Inside of `jax.vmap` problems that are done keep what they
# have, and to choose between old and new numbers takes as long as an iteration of a small graph.
_ROUNDS = 4


def _repeat(
    step: Callable[[Carry], Carry], done: Callable[[Carry], Array], carry: Carry, limit: Array
) -> tuple[Carry, Array]:
    """Steps until they are done, at most `limit`, and how many that were. In a batch each problem stops by itself."""

    def going(now: tuple[Carry, Array, Array, Array]) -> Array:
        return (now[3] < limit) & ~linalg.all_true(now[1])

    def some(now: tuple[Carry, Array, Array, Array]) -> tuple[Carry, Array, Array, Array]:
        before, stopped, made, count = now
        more = jnp.minimum(_ROUNDS, limit - count)
        after = lax.fori_loop(0, more, lambda _, x: step(x), before)
        kept = jax.tree.map(lambda a, b: jnp.where(stopped, a, b), before, after)
        return kept, stopped | done(kept), jnp.where(stopped, made, made + more), count + more

    zero = jnp.zeros_like(limit)
    found = lax.while_loop(going, some, (carry, jnp.zeros((), bool), zero, zero))
    return found[0], found[2]


@partial(_come_to_rest.defjvp, symbolic_zeros=True)
def _come_to_rest_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    problem, options, limit, tolerance = primals
    found, ending = _come_to_rest(*primals)
    still = jax.tree.map(_no_tangent, (found, ending))
    leaves, kind = jax.tree.flatten(problem)
    moving = {i: t for i, t in enumerate(jax.tree.leaves(tangents[0])) if not _is_zero(t)}
    if not moving or not problem.active():
        return (found, ending), still
    units = jax.tree.map(lax.stop_gradient, _units_of(problem, found))

    def scaled_iteration(scaled: _AllMessages, some: list[Array]) -> _AllMessages:
        new = list(leaves)
        for i, number in zip(moving, some):
            new[i] = number
        moved = _iteration(jax.tree.unflatten(kind, new), options, _unscaled(problem, units, scaled))
        return _scaled(problem, units, moved)

    scaled, some = _scaled(problem, units, found), [leaves[i] for i in moving]
    _, linear = jax.linearize(scaled_iteration, scaled, some)
    shift = linear(jax.tree.map(jnp.zeros_like, scaled), list(moving.values()))
    # One vector: JAX transposes a linear solve only if every array of its right-hand side depends on what moves.
    vector, as_messages = ravel_pytree(shift)
    solution = lax.custom_linear_solve(
        lambda x: x - ravel_pytree(linear(as_messages(x), jax.tree.map(jnp.zeros_like, some)))[0],
        vector,
        solve=lambda matrix, b: _fixed_point(matrix, b, limit, tolerance),
        transpose_solve=lambda matrix, b: _fixed_point(matrix, b, limit, tolerance),
    )
    solved = as_messages(solution)
    tangent = jax.jvp(lambda x: _unscaled(problem, units, x), (scaled,), (solved,))[1]
    return (found, ending), (tangent, still[1])


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero) or tangent.dtype == float0


def _no_tangent(x: Array) -> Any:
    """A tangent of zero, of the type that JAX wants."""
    return jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, float0)


def _fixed_point(matrix: Callable[[Array], Array], b: Array, limit: Array, tolerance: Array) -> Array:
    """`x` with `(I - A) x = b`, by `x <- b + A x`; `matrix` multiplies by `I - A`, or by its transpose."""
    tolerance = jnp.maximum(_DERIVATIVE * tolerance, 8 * jnp.finfo(tolerance.dtype).eps)

    def once_more(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        x, _ = carry
        step = b - matrix(x)
        x = x + step
        size = jnp.max(jnp.abs(x))
        return x, jnp.max(jnp.abs(step)) / jnp.where(size > 0, size, 1)

    start = b, jnp.full((), jnp.inf, tolerance.dtype)
    (x, change), _ = _repeat(once_more, lambda carry: carry[1] <= tolerance, start, limit)
    return jnp.where(change <= _MOVING, x, jnp.nan)


class _Units(NamedTuple):
    """What messages are measured by."""

    mean: dict[str, Array]  # of the belief of each variable
    root: dict[str, Array]  # of its precision (of blocks: of the diagonal)
    reaction: tuple[tuple[Array | None, ...], ...]  # of each group, of each slot
    noise: tuple[Array | None, ...]


def _units_of(problem: Problem, found: _AllMessages) -> _Units:
    state, mean, root = _state_of(found), {}, {}
    for name in problem.prior:
        b = belief(problem, state, name)
        lam = b.precisions
        mean[name] = b.mean_or(problem.start[name], name in problem.proper)
        root[name] = jnp.sqrt(jnp.maximum(lam, 0))
    reaction = tuple(
        tuple(None if m.reaction is None else jnp.max(jnp.abs(m.reaction)) for m in row) for row in found.messages
    )
    return _Units(mean, root, *jax.tree.map(lambda x: jnp.where(x > 0, x, 1), (reaction, found.noise)))


def _map_messages(problem: Problem, units: _Units, numbers: _AllMessages, gaussian: Any, scalar: Any) -> _AllMessages:
    """`gaussian(message, mean, root)` of every message, `scalar(number, unit)` of every other number."""
    rows = []
    for group, row, reactions in zip(problem.groups, numbers.messages, units.reaction):
        out = []
        for slot, m, reaction in zip(group.slots, row, reactions):
            mean, root = units.mean[slot.variable], units.root[slot.variable]
            spread = slot.edges.spread
            each = None if m.each is None else gaussian(m.each, spread(mean), spread(root))
            summed = None if m.summed is None else gaussian(m.summed, mean, root)
            out.append(Messages(each, summed, None if m.reaction is None else scalar(m.reaction, reaction)))
        rows.append(tuple(out))
    noise = tuple(None if v is None else scalar(v, unit) for v, unit in zip(numbers.noise, units.noise))
    return _AllMessages(tuple(rows), noise)


def _scaled(problem: Problem, units: _Units, messages: _AllMessages) -> _AllMessages:
    """Messages in units of the beliefs."""

    def of(message: Gaussian, mean: Array, root: Array) -> Gaussian:
        root = jnp.where(root > 0, root, 1)
        moved = message.eta - linalg.information(message.lam, mean)
        return Gaussian(moved / root, message.lam / message.family.pairs(root))

    return _map_messages(problem, units, messages, of, jnp.divide)


def _unscaled(problem: Problem, units: _Units, scaled: _AllMessages) -> _AllMessages:
    """The opposite of `_scaled`."""

    def of(message: Gaussian, mean: Array, root: Array) -> Gaussian:
        root = jnp.where(root > 0, root, 1)
        lam = message.lam * message.family.pairs(root)
        return Gaussian(message.eta * root + linalg.information(lam, mean), lam)

    return _map_messages(problem, units, scaled, of, jnp.multiply)
