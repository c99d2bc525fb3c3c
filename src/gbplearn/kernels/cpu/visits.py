"""Visits by kernels: which kernel fits which group, and how messages are handed to it and taken back.

`VISITS`, at the end, lists them as the registry takes them: a kernel a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core.gaussian import Gaussian
from ...core.robust import Huber, Tukey
from ...edges.axes import AxesEdges
from ...edges.indexed import SliceEdges
from ...engine.group_options import GroupOptions
from ...engine.inbox import EdgeSet, Inbox, beliefs_with, means_of, undamped
from ...engine.linearisation import linearisation_points
from ...engine.state import Messages, Own
from ...factors.measurement import FactorKind
from ...graph.group import Group, Role, Slot
from ...graph.local import LocalGroup
from ..forms import Form, MatrixForm, TileMaxForm
from ..registry import Call, KernelDiagnostics, KernelVisit, Part, Place, VisitKernel
from .calls import Argument, Attribute, KernelCall, call_now, number, size, sizes

# Rows, parameters, outputs: all unknown, rows known, parameters known.
_MATRIX_ARGUMENTS = (
    [Role.SLOT] * 4,
    [Role.FIXED, *[Role.SLOT] * 3],
    [Role.SLOT, Role.FIXED, Role.FIXED, Role.SLOT],
)
_ALL_KNOWN = [*[Role.FIXED] * 3, Role.SLOT]  # but for the outputs


def _ordinary(group: Group) -> bool:
    """Whether all factors have one measurement, of a noise that is known, and nothing is held at a belief."""
    return group.scalar and group.noise_prior is None and not group.held


def _all_proper(group: Group) -> bool:
    """Whether, beside that, no factor is robust, and something is known of every unit."""
    return _ordinary(group) and group.robust is None and all(s.proper for s in group.slots)


def _roles(group: Group) -> list[Role]:
    return [role for role, _ in group.arguments]


def _fits_tile_max(local: LocalGroup) -> bool:
    group = local.group
    return _all_proper(group) and _roles(group) == [Role.SLOT, Role.SLOT] and group.slots[0].edges.dense


def _fits_linear_slices(local: LocalGroup) -> bool:
    return local.frozen is not None and _ordinary(local.group) and _are_slices(local.group)


def _fits_output_slices(local: LocalGroup) -> bool:
    """Only the outputs are unknown."""
    return _all_proper(local.group) and _roles(local.group) == _ALL_KNOWN and _are_slices(local.group)


def _fits_matrix(group: Group) -> bool:
    return _all_proper(group) and _roles(group) in _MATRIX_ARGUMENTS and not group.slots[-1].pooled


def _fits_matrix_pooled(local: LocalGroup) -> bool:
    """One reaction for the parameters, one for the inputs, as layers have them."""
    group, many = local.group, local.group.slots[:-1]
    return (
        _fits_matrix(group)
        and len(many) > 1
        and all(s.pooled for s in many)
        and not any(s.variable in local.started for s in many[-2:])
        and [s.reaction for s in many] in ([0, 0], [0, 1, 1])
    )


def _fits_matrix_edges(local: LocalGroup) -> bool:
    group, many = local.group, local.group.slots[:-1]
    started = len(many) > 1 and any(s.variable in local.started for s in many[-2:])
    return _fits_matrix(group) and not started and not any(s.pooled or s.edges.injective for s in many)


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


def _pair(name: str, gaussian: Gaussian | None) -> dict[str, Argument]:
    """Two arguments, which are no messages that visits of others read."""
    assert gaussian is not None
    return {f"{name}.eta": Argument(gaussian.eta), f"{name}.lam": Argument(gaussian.lam)}


def _sent(name: str, found: Gaussian, sender: EdgeSet | None) -> dict[str, Argument]:
    """Messages on the units as two arguments, with their places in the state where they have one."""
    places = [None if sender is None else Place(*sender, part) for part in (Part.ETA, Part.LAM)]
    return {f"{name}.eta": Argument(found.eta, places[0]), f"{name}.lam": Argument(found.lam, places[1])}


def _own(name: str, local: LocalGroup, own: Own, s: int) -> dict[str, Argument]:
    """The messages of a slot on the units, as two arguments."""
    # Where a state has them on the edges alone, no kernel writes them on the units.
    kept = own.messages[s].summed is not None
    found = own.messages[s].on_units(local.group.slots[s].edges)
    return _sent(name, found, EdgeSet(local.number, s) if kept else None)


def _inbox(name: str, inbox: Inbox, variable: str) -> dict[str, Argument]:
    """The inbox of a variable as pairs of arguments, not yet multiplied; a prior that is one for all units once."""
    prior, *others = inbox.parts[variable]
    out = _pair(f"{name}.inbox.0", inbox.uniform.get(variable, prior))
    for i, (part, sender) in enumerate(zip(others, inbox.senders_of(variable)), 1):
        out |= _sent(f"{name}.inbox.{i}", part, sender)
    return out


def _count(*inboxes: Mapping[str, Argument]) -> np.ndarray:
    """How many pairs each has."""
    return sizes([len(inbox) // 2 for inbox in inboxes])


def _numbers(**values: Array) -> dict[str, Argument]:
    """Single numbers that may change without another program, or truths."""
    return {name: Argument(x if x.dtype == bool else x.astype(jnp.float32)) for name, x in values.items()}


def _arrays(**arrays: Array) -> dict[str, Argument]:
    return {name: Argument(a) for name, a in arrays.items()}


def _factor_numbers(group: Group) -> dict[str, Argument]:
    """What every kernel of factors with one measurement takes."""
    return _arrays(noise=group.noise.reshape(-1), measured=group.y.reshape(-1), weight=_weight(group))


def _start(local: LocalGroup, own: Own, variable: str) -> dict[str, Argument]:
    """The start of a variable and whether it counts now, if it has one."""
    if variable not in local.started:
        return {}
    return _arrays(start=local.start[variable]) | _numbers(first=own.visits == 0)


def _gaussian(name: str, found: Mapping[str, Array]) -> Gaussian:
    """From the results of a kernel."""
    return Gaussian(found[f"{name}.eta"], found[f"{name}.lam"])


def _weight(group: Group) -> Array:
    """Weights: one for all factors, or one for as many in a row as the kernel computes from their number."""
    return jnp.ones(1, jnp.float32) if group.weight is None else group.weight.reshape(-1)[:: group.weight_repeat]


def _damping(own: Own, options: GroupOptions, s: int) -> Array:
    """The damping of messages on edges: the first is taken whole."""
    return jnp.where(own.visits == 0, 0, options.damping[s])


# `Diagnostics` of parallel.h: largest squared move and ratio, poison, energies of the factors and of the prior.
_REPORT = (5,)


def _change(reported: Array) -> Array:
    change = jnp.maximum(jnp.sqrt(reported[0]), jnp.log(reported[1]))
    return jnp.where(reported[2] == 0, change, jnp.inf)


def matrix_pooled(
    local: LocalGroup, inbox: Inbox, before: Own, options: GroupOptions, diagnose: bool, call: Call | None
) -> KernelVisit:
    """Pooled parameters, and inputs if they are variables. See `matrix_pooled.cc`, `matrix_pooled_inputs.cc`."""
    group, messages, slots = local.group, before.messages, local.group.slots
    form = _form(local, local.start)
    assert isinstance(form, MatrixForm)
    uncertain = len(slots) == 4  # the rows are variables
    names = ["x", "w", "d", "y"] if uncertain else ["w", "d", "y"]
    held = {1: "reaction_w", 0: "reaction_x"} if uncertain else {0: "reaction"}  # by which slot
    y = len(slots) - 1
    keep = [*(options.kept(s) for s in range(y)), _damping(before, options, y)]
    inboxes = [_inbox(n, inbox, slot.variable) for n, slot in zip(names, slots)]
    start = _start(local, before, slots[0].variable) if uncertain else {}
    arguments = {} if uncertain else _arrays(rows=form.rows)
    arguments |= _factor_numbers(group) | start | _numbers(**{f"keep_{n}": k for n, k in zip(names, keep)})
    own: dict[str, Argument] = {}
    for s, name in enumerate(names):
        own |= _own(name, local, before, s)
    for s, name in held.items():
        reaction = messages[s].reaction
        assert reaction is not None
        own[name] = Argument(reaction, Place(local.number, s, Part.REACTION))
    for part in (own, *inboxes):
        arguments |= part
    of = {"diagnostics_y": y, "diagnostics_x": 0} if uncertain else {"diagnostics": y}
    attributes: dict[str, Attribute] = {
        **_matrix_sizes(form, slots[-2].edges.units), "diagnose": np.bool_(diagnose), "inbox": _count(*inboxes)
    }  # fmt: skip
    if uncertain:
        attributes["started"] = np.bool_(bool(start))
    kernel = "gbplearn_matrix_pooled_inputs" if uncertain else "gbplearn_matrix_pooled"
    reported = dict.fromkeys(of, _REPORT) if diagnose else {}
    found = (call or call_now)(KernelCall(kernel, attributes, arguments, list(own), reported))
    now = [_gaussian(name, found) for name in names]
    reactions = {s: found[name] for s, name in held.items()}
    proposed = [
        undamped(m.on_units(slot.edges), new, k) for m, slot, new, k in zip(messages, slots, now, keep, strict=True)
    ]
    out = [Messages(None, m, reactions.get(s)) for s, m in enumerate(now)]
    diagnostics = _diagnostics({slots[s].variable: found[name] for name, s in of.items()}) if diagnose else None
    return KernelVisit(out, proposed, diagnostics)


def _matrix_sizes(form: MatrixForm, outputs: int) -> dict[str, Attribute]:
    """The attributes that all kernels of the matrix form have."""
    rows, inputs = form.rows.shape
    return {"rows": size(rows), "inputs": size(inputs), "outputs": size(outputs), "slope": number(form.slope)}


def _diagnostics(reported: dict[str, Array]) -> KernelDiagnostics:
    """From what a matrix kernel reports of `y`, and of its rows, by variable."""
    first = next(iter(reported.values()))
    return KernelDiagnostics(
        {n: _change(x) for n, x in reported.items()}, {n: x[4] for n, x in reported.items()}, first[3]
    )


def _matrix_edges(
    local: LocalGroup, inbox: Inbox, before: Own, options: GroupOptions, diagnose: bool, call: Call | None
) -> KernelVisit:
    """A message an edge for parameters, or inputs, or both: those that are variables. See `matrix_edges.cc`."""
    group, messages, m = local.group, before.messages, _read_matrix(local, inbox, before, options)
    sent = before.outbox(group)
    (_, weight, bias), y, (n, p) = m.points, m.y, m.form.rows.shape
    shapes = {"x": (n, p), "w": (p, bias.shape[0]), "d": bias.shape}
    slots = {name: s for name, s in zip(shapes, m.slots) if s is not None}
    damp = {name: _damping(before, options, s) for name, s in (*slots.items(), ("y", y))}
    arguments = _arrays(rows=m.form.rows, w=weight.reshape(shapes["w"]), d=bias)
    arguments |= _factor_numbers(group) | _numbers(keep_y=damp["y"]) | _own("y", local, before, y)
    replaced, reported = ["y.eta", "y.lam"], {}
    for names in (("w", "d"), ("x",)):  # parameters are known together, or both are not
        there = [name for name in names if name in slots]
        for name in there:
            outside = Gaussian.product(inbox.parts[group.slots[slots[name]].variable])
            arguments |= _pair(
                f"{name}.outside", Gaussian(*(a.reshape(shapes[name]) for a in (outside.eta, outside.lam)))
            )
        arguments |= _numbers(**{f"keep_{name}": damp[name] for name in there})
        for name in there:
            arguments |= _pair(name, messages[slots[name]].each)
            replaced += [f"{name}.eta", f"{name}.lam"]
            reported |= {f"{name}.sum.eta": shapes[name], f"{name}.sum.lam": shapes[name]}
    from_others = _inbox("y", inbox, group.slots[y].variable)
    attributes: dict[str, Attribute] = {
        **_matrix_sizes(m.form, bias.shape[0]), "learnt": np.bool_("w" in slots), "uncertain": np.bool_("x" in slots),
        "diagnose": np.bool_(diagnose), "inbox": size(len(from_others) // 2),
    }  # fmt: skip
    reported |= {"diagnostics": _REPORT} if diagnose else {}
    arguments |= from_others
    found = (call or call_now)(KernelCall("gbplearn_matrix_edges", attributes, arguments, replaced, reported))
    new = _gaussian("y", found)
    out, proposed = {y: Messages(None, new)}, {y: undamped(sent[y], new, damp["y"])}
    for (name, s), point in zip(slots.items(), [x for x, s in zip(m.points, m.slots) if s is not None]):
        on_units = _gaussian(f"{name}.sum", found)
        on_units = Gaussian(*(a.reshape(point.shape) for a in (on_units.eta, on_units.lam)))
        out[s] = Messages(_gaussian(name, found), on_units)
        proposed[s] = undamped(sent[s], on_units, damp[name])
    diagnostics = _diagnostics({group.slots[y].variable: found["diagnostics"]}) if diagnose else None
    return KernelVisit([out[s] for s in range(y + 1)], [proposed[s] for s in range(y + 1)], diagnostics)


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
    from_x, from_y = (_inbox(name, inbox, v) for name, v in (("x", x), ("y", y)))
    start = _start(local, before, x)
    own = _own("x", local, before, 0) | _own("y", local, before, 1)
    attributes: dict[str, Attribute] = {
        "image": sizes(own_before[0].shape), "tile": sizes(form.size), "started": np.bool_(bool(start)),
        "diagnose": np.bool_(diagnose), "inbox": _count(from_x, from_y),
    }  # fmt: skip
    arguments = _factor_numbers(group) | start | _numbers(keep_x=damp[0], keep_y=damp[1]) | own | from_x | from_y
    reported: dict[str, tuple[int, ...]] = {"diagnostics_x": _REPORT, "diagnostics_y": _REPORT} if diagnose else {}
    found = (call or call_now)(KernelCall("gbplearn_tile_max", attributes, arguments, list(own), reported))
    new = [_gaussian("x", found), _gaussian("y", found)]
    diagnostics = None
    if diagnose:
        of_x, of_y = found["diagnostics_x"], found["diagnostics_y"]
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
    for n, (_, taken) in zip(reversed(shape), reversed(slices)):
        length *= taken
        if taken != n:
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
    if linear is None:  # all that is known, less the unit
        value, jacobians = group.value({name: jnp.zeros_like(local.start[name]), **local.fixed}), [jnp.ones(1)]
    else:
        value, jacobians = linear.value, [j.each().reshape(-1) for j in group.operators(linear)]
    # A user's own may be integers.
    r, *jacobians = (a.astype(jnp.float32) for a in ((group.y - value).reshape(-1), *jacobians))
    arguments = _factor_numbers(group) | _arrays(measured=r) | ({} if known else _arrays(start=local.start[name]))
    arguments |= _start(local, before, name)
    replaced = []
    for s, (jacobian, keep) in enumerate(zip(jacobians, damp, strict=True)):
        own = _own(f"slice.{s}", local, before, s)
        arguments |= _arrays(**{f"slice.{s}.jacobian": jacobian}) | _numbers(**{f"slice.{s}.keep": keep}) | own
        replaced += own
    from_others = _inbox("x", inbox, name)
    attributes: dict[str, Attribute] = {
        "shape": sizes(shape), "sizes": sizes([n for _, n in first]),
        "begins": sizes([begin for _, x in found for begin, _ in x]), "unknown": np.bool_(not known),
        "started": np.bool_(name in local.started), "robust": size(_which_robust(group) or 0),
        "threshold": number(0.0 if group.robust is None else group.robust.threshold), "diagnose": np.bool_(diagnose),
        "inbox": size(len(from_others) // 2),
    }  # fmt: skip
    reported = {"diagnostics": _REPORT, "switched": (1,)} if diagnose else {}
    results = (call or call_now)(KernelCall("gbplearn_slices", attributes, arguments | from_others, replaced, reported))
    new = [_gaussian(f"slice.{s}", results) for s in range(len(own_before))]
    proposed = [undamped(old, now, d) for old, now, d in zip(own_before, new, damp)]
    diagnostics = None
    if diagnose:
        of, switched = results["diagnostics"], results["switched"]
        diagnostics = KernelDiagnostics({name: _change(of)}, {name: of[4]}, of[3], switched[0])
    return KernelVisit([Messages(None, m) for m in new], proposed, diagnostics)


def _registered(
    name: str, form: type | None, fits: Callable[[LocalGroup], bool], visit: Callable[..., KernelVisit]
) -> VisitKernel:
    return VisitKernel(name, "cpu", jnp.dtype("float32"), form, fits, visit)


MATRIX_POOLED = _registered("matrix-pooled", MatrixForm, _fits_matrix_pooled, matrix_pooled)
TILE_MAX = _registered("tile-max", TileMaxForm, _fits_tile_max, tile_max)
VISITS = (
    MATRIX_POOLED,
    TILE_MAX,
    _registered("matrix-edges", MatrixForm, _fits_matrix_edges, _matrix_edges),
    _registered("slices", MatrixForm, _fits_output_slices, _slices),
    _registered("slices", None, _fits_linear_slices, _slices),
)
