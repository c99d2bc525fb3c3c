"""One iteration of the tree order: a sweep over the forest, visits of what is outside, and the diagnostics of both.

Other schedules diagnose each visit by how far it moves the beliefs. A sweep over a tree ends at the fixed point of the
linearised graph, so what counts is whether there is anything left to do: each group is visited once more, as by any
schedule, and that visit is diagnosed but not kept. Small residuals of all groups do not bound the way that is left: a
chain adds up what a thousand of them would move. So where factors are nonlinear or robust, or noise is learnt, the
residual is at least the step that the sweep made.

Groups with factors outside of the forest, those that close loops, are visited after the sweep as by any schedule. Then
too the residual is at least the step of the sweep.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ..core.gaussian import Gaussian
from ..graph.problem import Problem
from .diagnostics import Diagnostics, put
from .exchange import visit_group
from .options import Options
from .state import Messages, State, all_means, belief
from .tree import TreePlan, all_linear
from .tree_sweep import sweep
from .visit_diagnostics import change


def sweep_forest(
    problem: Problem, state: State, options: Options, plan: TreePlan, latest: Diagnostics
) -> tuple[State, Diagnostics]:
    """A sweep, and what follows it; noise that is learnt is updated at its end."""
    swept = sweep(problem, state, options, plan)
    after = swept
    if options.damped:  # by the guard: steps of nonlinear graphs that overshoot
        after = dataclasses.replace(swept, messages=_damped(problem, state, swept, options))
    # Linearised anew, unless it is the size of the step that decides on that.
    fresh = 1 if isinstance(options.relinearise, int) else options.relinearise
    undamped = dataclasses.replace(
        options, damped=False, dropping=False, damping=jax.tree.map(jnp.zeros_like, options.damping), relinearise=fresh
    )
    noise = list(after.noise)
    for g in problem.active():
        if g in plan.outside:
            continue
        visited = visit_group(problem, after, undamped, g, diagnosed=True)[1]
        assert visited.diagnostics is not None
        latest = put(problem, latest, g, visited.diagnostics)
        noise[g] = visited.own.noise
    after = dataclasses.replace(after, noise=tuple(noise))
    for g in plan.outside:
        after, visited = visit_group(problem, after, options, g, diagnosed=True)
        assert visited.diagnostics is not None
        latest = put(problem, latest, g, visited.diagnostics)
    if plan.outside or not all_linear(problem):
        step = _step_of(problem, state, swept)
        active = jnp.asarray([bool(g.slots) for g in problem.groups])
        latest = latest._replace(residual=jnp.where(active, jnp.maximum(latest.residual, step), latest.residual))
    return after, latest


def _step_of(problem: Problem, before: State, after: State) -> jax.Array:
    """How far a sweep has moved the beliefs, of the worst unit."""
    old, new = ({n: belief(problem, s, n) for n in problem.prior} for s in (before, after))
    start, end = all_means(problem, before), all_means(problem, after)
    worst = jnp.max(jnp.stack([change(old[n], start[n], new[n], end[n]) for n in problem.prior if problem.touching(n)]))
    return jnp.where(jnp.isnan(worst), jnp.inf, worst)


def _damped(problem: Problem, before: State, after: State, options: Options) -> tuple[tuple[Messages, ...], ...]:
    """Messages damped as in a visit: the first of an edge is taken whole."""
    out = []
    for g, group in enumerate(problem.groups):
        row = []
        for s, slot in enumerate(group.slots):
            old, new = (state.messages[g][s].on_edges(slot.edges) for state in (before, after))
            weight = jnp.where(before.visits[g] == 0, 0, options.damping[g][s]).astype(new.dtype)
            mixed: Gaussian = old.mix(new, weight)
            row.append(Messages.pack(slot.edges, mixed))
        out.append(tuple(row))
    return tuple(out)
