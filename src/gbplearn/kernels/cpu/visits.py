"""Visits by kernels: which kernel fits which group, and how messages are handed to it and taken back."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ...core.gaussian import Gaussian
from ...core.robust import Huber, Tukey
from ...edges.axes import AxesEdges
from ...edges.indexed import SliceEdges
from ...engine.inbox import Inbox, beliefs_with, means_of, undamped
from ...engine.linearisation import linearisation_points
from ...engine.options import GroupOptions
from ...engine.state import Messages, Own
from ...factors.measurement import FactorKind
from ...graph.group import Group, Role, Slot
from ...graph.local import LocalGroup
from ..forms import Form, MatrixForm, TileMaxForm
from ..registry import Call, KernelDiagnostics, KernelVisit, VisitKernel
from .calls import call as call_now
from .library import available

# Rows, parameters, outputs: all unknown, rows known, parameters known.
_MATRIX_ARGUMENTS = (
    [Role.SLOT] * 4,
    [Role.FIXED, *[Role.SLOT] * 3],
    [Role.SLOT, Role.FIXED, Role.FIXED, Role.SLOT],
)
_ALL_KNOWN = [*[Role.FIXED] * 3, Role.SLOT]  # but for the outputs


def visit_kernel(local: LocalGroup, options: GroupOptions) -> VisitKernel | None:
    """The kernel for a group, None if there is none for it: then XLA compiles its visit."""
    group = local.group
    ordinary = (
        group.slots
        and group.scalar
        and group.noise_prior is None
        and not group.held
        and options.relinearise == 1
        and not options.dropping
        and all(local.start[s.variable].dtype == jnp.float32 for s in group.slots)
    )
    if not ordinary or not available():
        return None
    if local.frozen is not None:
        return _slices if _are_slices(group) else None
    known = group.robust is None and all(s.proper for s in group.slots)
    if not known or not isinstance(group.measurement, FactorKind):
        return None
    roles = [role for role, _ in group.arguments]
    form = _form(local, local.start)
    if isinstance(form, TileMaxForm) and roles == [Role.SLOT, Role.SLOT]:
        return tile_max if group.slots[0].edges.dense else None
    if isinstance(form, MatrixForm) and roles == _ALL_KNOWN:
        return _slices if _are_slices(group) else None
    if not isinstance(form, MatrixForm) or roles not in _MATRIX_ARGUMENTS:
        return None
    *many, y = group.slots
    if y.pooled or any(s.variable in local.started for s in many[-2:] if len(many) > 1):
        return None
    if len(many) > 1 and all(s.pooled for s in many):
        # One reaction for the parameters, one for the inputs, as layers have them.
        return matrix_pooled if [s.reaction for s in many] in ([0, 0], [0, 1, 1]) else None
    each = not any(s.pooled or s.edges.injective for s in many)
    return _matrix_edges if each else None


def _form(local: LocalGroup, points: dict[str, Array]) -> Form | None:
    assert isinstance(local.group.measurement, FactorKind)
    return local.group.measurement.form(*local.arguments_at(points))


class _Matrix(NamedTuple):
    """A group of the matrix form at a visit: which slots are what, and where it is linearised."""

    form: MatrixForm
    points: list[Array]  # of rows, weights, biases
    slots: list[int | None]  # of rows, weights, biases; None where they are known
    y: int


def _read_matrix(local: LocalGroup, inbox: Inbox, own: Own, options: GroupOptions) -> _Matrix:
    group = local.group
    belief = beliefs_with(group, inbox.outside(), own.outbox(group))
    means = means_of(local, {s.variable: belief[s.variable] for s in group.slots[:-1]})
    points, _ = linearisation_points(local, options.relinearise, own, means, belief)
    last = group.slots[-1].variable  # linear in it: any point will do
    at = {**points, last: local.start[last]}
    form = _form(local, at)
    assert isinstance(form, MatrixForm)
    slots = [i if role is Role.SLOT else None for role, i in group.arguments[:3]]
    return _Matrix(form, local.arguments_at(at)[:3], slots, len(group.slots) - 1)


def _numbers(*values: Array | float | int) -> Array:
    return jnp.stack([jnp.asarray(v, jnp.float32) for v in values])


def _pair(gaussian: Gaussian | None) -> list[Array]:
    assert gaussian is not None
    return [gaussian.eta, gaussian.lam]


def _inbox_arrays(inbox: Inbox, name: str) -> list[Array]:
    """The inbox of a variable as pairs of arrays, not yet multiplied; a prior that is one for all units once."""
    prior, *others = inbox.parts[name]
    return [x for part in (inbox.uniform.get(name, prior), *others) for x in _pair(part)]


def _weight(group: Group) -> Array:
    """Weights: one for all factors, or one for as many in a row as the kernel computes from their number."""
    return jnp.ones(1, jnp.float32) if group.weight is None else group.weight.reshape(-1)[:: group.weight_repeat]


def _damping(own: Own, options: GroupOptions, s: int) -> Array:
    """The damping of messages on edges: the first is taken whole."""
    return jnp.where(own.visits == 0, 0, options.damping[s])


_NONE = (0,)
# `Diagnostics` of parallel.h: largest squared move and ratio, poison, energies of the factors and of the prior.
_REPORT = (5,)


def _change(reported: Array) -> Array:
    change = jnp.maximum(jnp.sqrt(reported[0]), jnp.log(reported[1]))
    return jnp.where(reported[2] == 0, change, jnp.inf)


def _diagnostics(names: list[str], reported: list[Array]) -> KernelDiagnostics | None:
    """From what a matrix kernel reports of `y`, and of its rows; None if it reports nothing."""
    if not reported:
        return None
    pairs = list(zip(names, reported))
    return KernelDiagnostics({n: _change(x) for n, x in pairs}, {n: x[4] for n, x in pairs}, reported[0][3])


def matrix_pooled(
    local: LocalGroup, inbox: Inbox, before: Own, options: GroupOptions, diagnose: bool, call: Call | None
) -> KernelVisit:
    """Pooled parameters, and inputs if they are variables. See `matrix_pooled.cc`, `matrix_pooled_inputs.cc`."""
    group, messages, slots = local.group, before.messages, local.group.slots
    names, count = [s.variable for s in slots], len(slots)
    own_before = before.outbox(group)
    outside = [_inbox_arrays(inbox, name) for name in names]
    keep = [*(options.kept(s) for s in range(count - 1)), _damping(before, options, count - 1)]
    args = [group.noise.reshape(-1), group.y.reshape(-1), _weight(group)]
    form = _form(local, local.start)
    assert isinstance(form, MatrixForm)
    if count == 4:  # the rows are variables
        name, holders, numbers = "gbplearn_matrix_pooled_inputs", [1, 0], [before.visits == 0]
        start = local.start[names[0]] if names[0] in local.started else jnp.zeros(_NONE, jnp.float32)
        args.insert(0, start)
    else:
        name, holders, numbers = "gbplearn_matrix_pooled", [0], []
        args.insert(0, form.rows)
    reactions: list[Array] = [r for s in holders if (r := messages[s].reaction) is not None]
    own = [x for m in own_before for x in _pair(m)]
    args += [*reactions, _numbers(*keep, *numbers, *(len(h) for h in outside))]
    first = len(args)  # own messages begin here; the reactions lie before the numbers
    aliases = {first + i: i for i in range(len(own))} | {4 + i: len(own) + i for i in range(len(reactions))}
    shapes = [x.shape for x in (*own, *reactions)] + [_REPORT] * len(reactions) * diagnose
    results = (call or call_now)(name, shapes, [*args, *own, *(x for h in outside for x in h)], aliases, form.slope)
    now = [Gaussian(a, b) for a, b in zip(results[0 : 2 * count : 2], results[1 : 2 * count : 2])]
    held = dict(zip(holders, results[2 * count :]))
    proposed = [undamped(old, new, weight) for old, new, weight in zip(own_before, now, keep)]
    out = [Messages(None, m, held.get(s)) for s, m in enumerate(now)]
    return KernelVisit(out, proposed, _diagnostics([names[-1], names[0]], results[2 * count + len(reactions) :]))


def _matrix_edges(
    local: LocalGroup, inbox: Inbox, before: Own, options: GroupOptions, diagnose: bool, call: Call | None
) -> KernelVisit:
    """A message an edge for parameters, or inputs, or both: those that are variables. See `matrix_edges.cc`."""
    group, messages, m = local.group, before.messages, _read_matrix(local, inbox, before, options)
    sent = before.outbox(group)
    (_, weight, bias), y, (n, p) = m.points, m.y, m.form.rows.shape
    nothing = [jnp.zeros(_NONE, jnp.float32)] * 2
    rows, weights, outputs = (n, p), (p, bias.shape[0]), n * bias.shape[0]
    outside, own_before, shapes, aliases, damp = [], [], [], {}, []
    for place, (s, shape, row) in enumerate(zip(m.slots, (rows, weights, bias.shape), (p, p, 1))):
        from_outside = None if s is None else Gaussian.product(inbox.parts[group.slots[s].variable])
        outside.append(nothing if from_outside is None else [a.reshape(shape) for a in _pair(from_outside)])
        own_before.append(nothing if s is None else _pair(messages[s].each))
        shapes.append([_NONE] * 4 if s is None else [(outputs, row)] * 2 + [shape] * 2)
        damp.append(0.0 if s is None else _damping(before, options, s))
        # Weights, biases, rows: in this order the kernel has them; messages to y come first among the results.
        argument, result = ((13, 10), (9, 2), (11, 6))[place]
        aliases |= {} if s is None else {argument: result, argument + 1: result + 1}
    own, damp_y = sent[y], _damping(before, options, y)
    args = [
        m.form.rows, weight.reshape(weights), bias, *outside[1], *outside[2], *outside[0],
        *own_before[1], *own_before[2], *own_before[0],
        *_pair(own), group.noise.reshape(-1), _weight(group), _numbers(damp_y, damp[1], damp[2], damp[0]),
        group.y.reshape(-1), *_inbox_arrays(inbox, group.slots[y].variable),
    ]  # fmt: skip
    results = [own.shape] * 2 + shapes[1] + shapes[2] + shapes[0] + [_REPORT] * diagnose
    eta, lam, *rest = (call or call_now)("gbplearn_matrix_edges", results, args, aliases | {15: 0, 16: 1}, m.form.slope)
    new = Gaussian(eta, lam)
    out, proposed = {y: Messages(None, new)}, {y: undamped(own, new, damp_y)}
    for s, first, point, kept in zip(m.slots, (8, 0, 4), m.points, damp):
        if s is None:
            continue
        on_edges, on_units = (Gaussian(*rest[i : i + 2]) for i in (first, first + 2))
        on_units = Gaussian(*(a.reshape(point.shape) for a in _pair(on_units)))
        out[s], proposed[s] = Messages(on_edges, on_units), undamped(sent[s], on_units, kept)
    slots = range(y + 1)
    reported = _diagnostics([group.slots[y].variable], rest[12:])
    return KernelVisit([out[s] for s in slots], [proposed[s] for s in slots], reported)


def tile_max(
    local: LocalGroup, inbox: Inbox, before: Own, options: GroupOptions, diagnose: bool, call: Call | None
) -> KernelVisit:
    """See `tile_max.cc`."""
    group = local.group
    form = _form(local, local.start)
    assert isinstance(form, TileMaxForm)
    own_before = before.outbox(group)
    x, y = (slot.variable for slot in group.slots)
    damp = [_damping(before, options, s) for s in range(2)]
    from_x, from_y = (_inbox_arrays(inbox, name) for name in (x, y))
    start = (before.visits == 0) if x in local.started else 0.0
    args = [
        *_pair(own_before[0]), *_pair(own_before[1]), group.noise.reshape(-1), _weight(group), local.start[x],
        _numbers(*damp, start, len(from_x), *form.size), group.y.reshape(-1), *from_x, *from_y,
    ]  # fmt: skip
    shapes = [own_before[0].shape] * 2 + [own_before[1].shape] * 2 + [_REPORT] * 2 * diagnose
    a, b, c, e, *reported = (call or call_now)("gbplearn_tile_max", shapes, args, {0: 0, 1: 1, 2: 2, 3: 3})
    new = [Gaussian(a, b), Gaussian(c, e)]
    diagnostics = None
    if diagnose:
        of_x, of_y = reported
        diagnostics = KernelDiagnostics({x: _change(of_x), y: _change(of_y)}, {y: of_y[4]}, of_y[3])
    proposed = [undamped(old, now, d) for old, now, d in zip(own_before, new, damp)]
    return KernelVisit([Messages(None, m) for m in new], proposed, diagnostics)


_MOST_SLICES = 5
# Units side by side: below, the kernel is no quicker than XLA (measured on pairs in rows of 3 to 65 pixels).
_SHORTEST_RUN = 8
_ROBUST = {(Tukey, "value"): 1, (Tukey, "gradient"): 2, (Huber, "value"): 3, (Huber, "gradient"): 4}


def _which_robust(group: Group) -> int | None:
    """By number, 0 for none; None for one that the kernel does not know."""
    if group.robust is None:
        return 0
    return None if group.switch_axes else _ROBUST.get((type(group.robust), group.robust.match))


def _slices_of(slot: Slot) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None:
    """The shape of its variable, and along each axis where its units begin and how many they are; None if they do not.

    One unit a factor, in order, and most of all units.
    """
    edges = slot.edges
    if not edges.dense or edges.row != 1:
        return None
    if isinstance(edges, SliceEdges):
        steps = [step for _, _, step in edges.slices]
        return (edges.unit_shape, tuple(x[:2] for x in edges.slices)) if set(steps) == {1} else None
    whole = isinstance(edges, AxesEdges) and list(edges.axes) == sorted(edges.axes)
    return ((edges.units,), ((0, edges.units),)) if whole else None


def _run_length(shape: tuple[int, ...], slices: tuple[tuple[int, int], ...]) -> int:
    """How many units of a slice lie side by side."""
    length = 1
    for n, (_, size) in zip(reversed(shape), reversed(slices)):
        length *= size
        if size != n:
            break
    return length


def _are_slices(group: Group) -> bool:
    """Whether its factors are over a few slices of one variable, of the same shape, without gaps; or each over a unit.

    Where units may be unknown, over two at most: that one is, is then a matter of the other alone.
    """
    found = [x for s in group.slots if (x := _slices_of(s)) is not None]
    slices = [x[1] for x in found]
    most = _MOST_SLICES if all(s.proper for s in group.slots) else 2
    return (
        len(slices) == len(group.slots) <= most
        and len(group.variables) == 1
        and len({tuple(n for _, n in x) for x in slices}) == 1
        and _which_robust(group) is not None
        and _run_length(*found[0]) >= _SHORTEST_RUN
    )


def _slices(
    local: LocalGroup, inbox: Inbox, before: Own, options: GroupOptions, diagnose: bool, call: Call | None
) -> KernelVisit:
    """See `slices.cc`."""
    group, linear = local.group, local.frozen
    found = [x for s in group.slots if (x := _slices_of(s)) is not None]
    (shape, first), name, known = found[0], group.slots[0].variable, group.slots[0].proper
    own_before = before.outbox(group)
    damp = [_damping(before, options, s) for s in range(len(own_before))]
    threshold = 0.0 if group.robust is None else group.robust.threshold
    at_start = (before.visits == 0) if name in local.started else False
    numbers = [len(own_before), not known, at_start, _which_robust(group) or 0, threshold, len(shape)]
    sizes = [*shape, *(n for _, n in first), *(begin for _, x in found for begin, _ in x)]
    numbers += [part for n in sizes for part in divmod(n, 65536)]  # a float holds 24 bits
    if linear is None:  # all that is known, less the unit
        value, jacobians = group.value({name: jnp.zeros_like(local.start[name]), **local.fixed}), [jnp.ones(1)]
    else:
        value, jacobians = linear.value, [j.each().reshape(-1) for j in group.operators(linear)]
    # A user's own may be integers.
    r, *jacobians = (a.astype(jnp.float32) for a in ((group.y - value).reshape(-1), *jacobians))
    args = [
        _numbers(*numbers, *damp), group.noise.reshape(-1), r, _weight(group), local.start[name], *jacobians,
    ]  # fmt: skip
    own = [x for m in own_before for x in _pair(m)]
    aliases = {len(args) + i: i for i in range(len(own))}
    outside = _inbox_arrays(inbox, name)
    shapes = [x.shape for x in own] + [_REPORT, (1,)] * diagnose
    results = (call or call_now)("gbplearn_slices", shapes, [*args, *own, *outside], aliases)
    own, reported = results[: len(own)], results[len(own) :]
    new = [Gaussian(a, b) for a, b in zip(own[0::2], own[1::2])]
    proposed = [undamped(old, now, d) for old, now, d in zip(own_before, new, damp)]
    diagnostics = None
    if diagnose:
        of, switched = reported
        diagnostics = KernelDiagnostics({name: _change(of)}, {name: of[4]}, of[3], switched[0])
    return KernelVisit([Messages(None, m) for m in new], proposed, diagnostics)
