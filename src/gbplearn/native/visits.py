"""Visits by the kernels: which groups they fit, what goes in, and what comes out."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..gaussian import Gaussian
from ..group import Group
from ..measurement import FactorKind, Form, MatrixForm, TileMaxForm
from ..options import Options
from ..problem import Messages, Problem, State
from ..seen import means_of, parts_of, points_of, product, see, undamped
from .library import available

Visited = tuple[list[Messages], list[Gaussian]]  # new messages of each slot, and undamped ones on the units
Kernel = Callable[[Problem, State, Options, int], Visited]


def kernel_for(problem: Problem, options: Options, g: int) -> Kernel | None:
    """The kernel for a group, None if there is none for it: then XLA compiles its visit."""
    group = problem.groups[g]
    ordinary = (
        isinstance(group.measurement, FactorKind)
        and group.slots
        and group.scalar
        and problem.frozen[g] is None
        and group.robust is None
        and group.noise_prior is None
        and not group.held
        and options.relinearise == 1
        and not options.dropping
        and all(s.proper for s in group.slots)
        and all(problem.prior[s.variable].dtype == jnp.float32 for s in group.slots)
    )
    if not ordinary or not available():
        return None
    kinds = [kind for kind, _ in group.arguments]
    form = _form(problem, group)
    if isinstance(form, TileMaxForm) and kinds == ["slots", "slots"]:
        return _tile_max
    if not isinstance(form, MatrixForm) or kinds[1:] != ["slots"] * 3 or kinds[0] not in ("slots", "fixed"):
        return None
    *many, y = group.slots
    if y.pooled or any(s.variable in problem.started for s in many[-2:]):
        return None
    if all(s.pooled for s in many):
        return _matrix_pooled
    each = not any(s.pooled or s.edges.injective for s in many)
    return _matrix_edges if each else None


def _form(problem: Problem, group: Group, points: dict[str, Array] | None = None) -> Form | None:
    assert isinstance(group.measurement, FactorKind)
    if points is None:
        points = {s.variable: problem.start[s.variable] for s in group.slots}
    return group.measurement.form(*group._arguments({**points, **problem.fixed}))


def _numbers(*values: Array | float | int) -> Array:
    return jnp.stack([jnp.asarray(v, jnp.float32) for v in values])


def _pairs(gaussians: list[Gaussian]) -> list[Array]:
    return [x for g in gaussians for x in (g.eta, g.lam)]


def _from_outside(problem: Problem, state: State, g: int, name: str) -> list[Array]:
    """What comes in for a variable, not yet added up; a prior that is one for all units once."""
    prior, *others = parts_of(problem, state, g, name)
    return _pairs([problem.uniform.get(name, prior), *others])


def _weight(group: Group) -> Array:
    return jnp.ones(1, jnp.float32) if group.weight is None else group.weight.reshape(-1)


def _damping(state: State, options: Options, g: int, s: int) -> Array:
    """Of messages on edges: the first is taken whole."""
    return jnp.where(state.visits[g] == 0, 0, options.damping[g][s])


def _call(name: str, shapes: list[tuple[int, ...]], args: list[Array], aliases: dict[int, int], slope: float = 0.0):
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    call = jax.ffi.ffi_call(name, results, input_output_aliases=aliases)
    return call(*args, slope=np.float32(slope))


_NONE = (0,)


def _matrix_pooled(problem: Problem, state: State, options: Options, g: int) -> Visited:
    """Pooled parameters, and inputs if they are variables. See `matrix_pooled.cc`."""
    group, messages = problem.groups[g], state.messages[g]
    inbound, own, old = see(problem, state, g)
    means = means_of(problem, {s.variable: old[s.variable] for s in group.slots[:-1]})
    points, _ = points_of(problem, options, state, g, means, old)
    form = _form(problem, group, {**points, group.slots[-1].variable: old[group.slots[-1].variable].eta})
    assert isinstance(form, MatrixForm)
    (n, p), last = form.rows.shape, len(group.slots) - 1
    x, w, d = (None, *range(2)) if last == 2 else range(3)
    mean_w, mean_d = (means[group.slots[i].variable] for i in (w, d))
    of_w, of_d = (old[group.slots[i].variable] for i in (w, d))
    flat, nothing = mean_w.reshape(p, -1), jnp.zeros(_NONE, jnp.float32)
    spread = moved = of_x = nothing
    if x is not None:
        name = group.slots[x].variable
        spread, moved = (1 / old[name].lam).reshape(n, p), (means[name] - points[name]).reshape(n, p)
        reaction = messages[x].reaction
        assert reaction is not None
        of_x = reaction
    y = messages[last].on_units(group.slots[last].edges)
    keep = [options.kept(g, s) for s in range(last)]
    reaction = messages[w].reaction
    assert reaction is not None
    args = [
        form.rows, spread, moved, flat, (1 / of_w.lam).reshape(p, -1), mean_d, 1 / of_d.lam,
        group.noise.reshape(-1), _weight(group), reaction, of_x,
        _numbers(_damping(state, options, g, last), keep[w], keep[0 if x is None else x]),
        *_pairs([y]), group.y.reshape(-1), *_from_outside(problem, state, g, group.slots[last].variable),
    ]  # fmt: skip
    rows = _NONE if x is None else (n, p)
    shapes = [y.shape] * 2 + [reaction.shape, of_x.shape] + [flat.shape] * 2 + [mean_d.shape] * 2 + [rows] * 2
    aliases = {12: 0, 13: 1, 9: 2} | ({} if x is None else {10: 3})
    eta, lam, new_w, new_x, *sums = _call("gbplearn_matrix_pooled", shapes, args, aliases, form.slope)
    answers = {w: sums[0:2], d: sums[2:4], x: sums[4:6]}
    reactions = {w: new_w, x: new_x}
    out, proposed = [], []
    for s in range(last):
        mean = means[group.slots[s].variable]
        total, precision = (a.reshape(mean.shape) for a in answers[s])
        message = Gaussian(total + precision * mean, precision)
        before = messages[s].pooled
        assert before is not None
        out.append(Messages(None, before.mix(message, keep[s].astype(message.dtype)), reactions.get(s)))
        proposed.append(message)
    message = Gaussian(eta, lam)
    out.append(Messages(None, message))
    proposed.append(undamped(own[last], message, _damping(state, options, g, last)))
    return out, proposed


def _matrix_edges(problem: Problem, state: State, options: Options, g: int) -> Visited:
    """A message an edge for parameters, and inputs if they are variables. See `matrix_edges.cc`."""
    group, messages = problem.groups[g], state.messages[g]
    _, own, old = see(problem, state, g)
    means = means_of(problem, {s.variable: old[s.variable] for s in group.slots[:-1]})
    points, _ = points_of(problem, options, state, g, means, old)
    form = _form(problem, group, {**points, group.slots[-1].variable: old[group.slots[-1].variable].eta})
    assert isinstance(form, MatrixForm)
    (n, p), last = form.rows.shape, len(group.slots) - 1
    x, w, d = (None, *range(2)) if last == 2 else range(3)
    at_w, at_d = (points[group.slots[i].variable] for i in (w, d))
    flat, channels = at_w.reshape(p, -1), at_d.shape[0]
    factors, nothing = n * channels, jnp.zeros(_NONE, jnp.float32)
    outside = [product(parts_of(problem, state, g, s.variable)) for s in group.slots[:-1]]
    each = [messages[s].each for s in range(last)]
    from_x, said_x = [nothing] * 2, [nothing] * 2
    if x is not None:
        said = each[x]
        assert said is not None
        from_x, said_x = [a.reshape(n, p) for a in (outside[x].eta, outside[x].lam)], [said.eta, said.lam]
    y = messages[last].on_units(group.slots[last].edges)
    damp = [_damping(state, options, g, s) for s in range(last + 1)]
    said_w, said_d = each[w], each[d]
    assert said_w is not None
    assert said_d is not None
    args = [
        form.rows, flat, at_d, outside[w].eta.reshape(p, -1), outside[w].lam.reshape(p, -1), outside[d].eta, outside[d].lam,
        *from_x, said_w.eta, said_w.lam, said_d.eta, said_d.lam, *said_x, *_pairs([y]), group.noise.reshape(-1), _weight(group),
        _numbers(damp[last], damp[w], damp[d], damp[0 if x is None else x]), group.y.reshape(-1),
        *_from_outside(problem, state, g, group.slots[last].variable),
    ]  # fmt: skip
    wide, narrow = (factors, p), (factors, 1)
    rows = [_NONE] * 4 if x is None else [wide, wide, (n, p), (n, p)]
    shapes = [y.shape] * 2 + [wide] * 2 + [flat.shape] * 2 + [narrow] * 2 + [at_d.shape] * 2 + rows
    aliases = {15: 0, 16: 1, 9: 2, 10: 3, 11: 6, 12: 7} | ({} if x is None else {13: 10, 14: 11})
    eta, lam, *rest = _call("gbplearn_matrix_edges", shapes, args, aliases, form.slope)
    answers = {w: rest[0:4], d: rest[4:8], x: rest[8:12]}
    out, proposed = [], []
    for s in range(last):
        shape = points[group.slots[s].variable].shape
        on_edges, on_units = Gaussian(*answers[s][:2]), Gaussian(*(a.reshape(shape) for a in answers[s][2:]))
        out.append(Messages(on_edges, on_units))
        proposed.append(undamped(own[s], on_units, damp[s]))
    message = Gaussian(eta, lam)
    out.append(Messages(None, message))
    proposed.append(undamped(own[last], message, damp[last]))
    return out, proposed


def _tile_max(problem: Problem, state: State, options: Options, g: int) -> Visited:
    """See `tile_max.cc`."""
    group, messages = problem.groups[g], state.messages[g]
    form = _form(problem, group)
    assert isinstance(form, TileMaxForm)
    said = [messages[s].on_units(group.slots[s].edges) for s in range(2)]
    x, y = (slot.variable for slot in group.slots)
    damp = [_damping(state, options, g, s) for s in range(2)]
    from_x, from_y = (_from_outside(problem, state, g, name) for name in (x, y))
    start = (state.visits[g] == 0) if x in problem.started else 0.0
    args = [
        said[0].eta, said[0].lam, said[1].eta, said[1].lam, group.noise.reshape(-1), _weight(group), problem.start[x],
        _numbers(*damp, start, len(from_x), *form.size), group.y.reshape(-1), *from_x, *from_y,
    ]  # fmt: skip
    shapes = [said[0].shape] * 2 + [said[1].shape] * 2
    new = _call("gbplearn_tile_max", shapes, args, {0: 0, 1: 1, 2: 2, 3: 3})
    out = [Gaussian(*new[:2]), Gaussian(*new[2:])]
    proposed = [undamped(a, b, d) for a, b, d in zip(said, out, damp)]
    return [Messages(None, m) for m in out], proposed
