"""The history of a learner in a checkpoint: records of its batches as JSON, and their contributions as tensors.

Tensors are `taught/NUMBER/PARAMETER`, the contribution of every batch that can be forgotten, and `before/PARAMETER`; of
vectors `taught/...` is the belief after the batch, and `given/NUMBER/PARAMETER` that before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.noise import LearnNoise
from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief
from ..engine.result import Status
from ..learner.history import MOST, BatchRecord, Before, Change, Contribution, History
from ..learner.unusual import BatchStatistics, joined
from .container import as_dict, as_list, check_names
from .limits import Limits, check_whole
from .values import from_json, is_number, is_whole, to_json

_FIELDS = tuple(f.name for f in dataclasses.fields(BatchRecord))


def facts_of(history: History) -> dict[str, Any]:
    """All but the tensors, as JSON has it."""
    before = history.before
    return {
        "record": history.keeps,
        "batches": [[getattr(record, name) for name in _FIELDS] for record in history.entries],
        "noise": {str(n): {name: list(v) for name, v in c.noise.items()} for n, c in history.contributions.items()},
        "count": history.count,
        "statistics": {
            "earlier": to_json(history.earlier, "statistics"),
            "taught": {str(n): to_json(c.statistics, "statistics") for n, c in history.contributions.items()},
        },
        "before": None
        if before is None
        else {"noise": {n: to_json(v, n) for n, v in before.noise.items()}, "caution": before.caution},
    }


def tensors_of(history: History) -> dict[str, Belief]:
    """The Gaussians, by the names that `names_in` gives them."""
    out: dict[str, Belief] = {}
    for n, contribution in history.contributions.items():
        for name, by in contribution.beliefs.items():
            if isinstance(by, Change):
                out |= {f"taught/{n}/{name}": by.after, f"given/{n}/{name}": by.given}
            else:
                out[f"taught/{n}/{name}"] = by
    if history.before is not None:
        out |= {f"before/{name}": g for name, g in history.before.beliefs.items()}
    return out


def checked(data: Any, noisy: Iterable[str], limits: Limits, most: Mapping[str, int]) -> dict[str, Any]:
    """Facts that were read, checked; a `ValueError` names what is wrong with them.

    **Arguments:**

    - `noisy`: the layers that learn their noise.
    - `most`: how large "batches" and "caution" of a learner may be.
    """
    facts, layers = {"statistics": None, **as_dict(data, "history")}, sorted(noisy)
    check_names(facts, ("record", "count", "batches", "noise", "statistics", "before"), "history")
    if not isinstance(facts["record"], bool):
        check_whole(facts["record"], "history: record", least=1, most=MOST)
    rows, count = as_list(facts["batches"], "history: batches"), facts["count"]
    if len(rows) > MOST:
        raise ValueError(f"history: more than {MOST:,} batches")
    check_whole(count, "history: count", least=len(rows), most=most["batches"])
    batches = [_record(row, number) for number, row in enumerate(rows, count - len(rows))]
    kept = [str(record.batch) for record in batches if record.recorded and not record.forgotten]
    noise = {}
    check_names(as_dict(facts["noise"], "history: noise"), tuple(kept), "history: noise")
    for number, by_layer in facts["noise"].items():
        check_names(as_dict(by_layer, "history: noise"), tuple(layers), "history: noise")
        for pair in by_layer.values():
            if len(as_list(pair, "history: noise")) != 2 or not all(map(is_number, pair)):
                raise ValueError("history: noise must be pairs of numbers")
            limits.check(pair, f"history: noise of batch {number}")
        noise[int(number)] = {name: (pair[0], pair[1]) for name, pair in by_layer.items()}
    before = facts["before"]
    if before is not None:
        check_names(as_dict(before, "history: before"), ("noise", "caution"), "history: before")
        known = as_dict(before["noise"], "history: before")
        known = {n: from_json(v, f"noise of {n}") for n, v in known.items()}
        if sorted(known) != layers or not all(isinstance(v, LearnNoise) for v in known.values()):
            raise ValueError("history: the noise before is not what the network learns")
        limits.check(known, "history: noise before")
        check_whole(before["caution"], "history: caution", most=most["caution"])
        if not kept or int(kept[-1]) != count - 1:
            raise ValueError("history: there is no batch before which anything could have been known")
        before = {"noise": known, "caution": before["caution"]}
    statistics = _statistics(facts["statistics"], tuple(kept))
    out = {"record": facts["record"], "count": count, "batches": batches, "noise": noise, "before": before}
    return {**out, "statistics": statistics}


def _statistics(data: Any, kept: tuple[str, ...]) -> dict[int | None, BatchStatistics]:
    """Statistics of batches by their numbers; under None those of all others. Older files have none."""
    if data is None:
        return {None: BatchStatistics(), **{int(n): BatchStatistics() for n in kept}}
    what = "history: statistics"
    check_names(as_dict(data, what), ("earlier", "taught"), what)
    check_names(as_dict(data["taught"], what), kept, what)
    out = {None: data["earlier"], **{int(n): value for n, value in data["taught"].items()}}
    found = {n: from_json(value, what) for n, value in out.items()}
    if not all(isinstance(value, BatchStatistics) for value in found.values()):
        raise ValueError(f"{what} are damaged")
    return found


def _record(row: Any, number: int) -> BatchRecord:
    values = as_list(row, "history: a batch")
    if len(values) != len(_FIELDS):
        raise ValueError(f"history: a batch has {', '.join(_FIELDS)}")
    of = dict(zip(_FIELDS, values))
    sound = all(is_whole(of[name]) and of[name] >= 0 for name in ("batch", "examples", "iterations"))
    sound &= is_number(of["energy"]) and is_number(of["gained"])
    sound &= all(isinstance(of[name], bool) for name in ("recorded", "forgotten"))
    if not sound or of["batch"] != number or of["status"] not in list(Status.__members__):
        raise ValueError(f"history: batch {number} is damaged")
    return BatchRecord(**{**of, "energy": float(of["energy"]), "gained": float(of["gained"])})


def names_in(facts: dict[str, Any], parameters: Mapping[str, bool]) -> dict[str, str]:
    """The tensors that belong to checked facts, without their last parts (`eta`, `lam`), and the parameter of each.

    **Arguments:** `parameters`: by name, whether they are vectors.
    """
    out = {f"taught/{number}/{name}": name for number in facts["noise"] for name in parameters}
    out |= {f"given/{number}/{name}": name for number in facts["noise"] for name, v in parameters.items() if v}
    return out if facts["before"] is None else out | {f"before/{name}": name for name in parameters}


def history_of(facts: dict[str, Any], parameters: Mapping[str, Belief], belief: Callable[[str], Belief]) -> History:
    """The history that checked facts and their tensors, by name, stand for."""
    names, out = list(parameters), History.keeping(facts["record"], parameters)
    out.entries.extend(facts["batches"])
    out.count = facts["count"]
    of = facts["statistics"]
    out.earlier, out.statistics = of[None], joined(of.values())
    for number, noise in facts["noise"].items():
        beliefs: dict[str, Any] = {name: belief(f"taught/{number}/{name}") for name in names}
        for name, after in beliefs.items():
            if isinstance(after, UnitVectors):
                given = belief(f"given/{number}/{name}")
                assert isinstance(given, UnitVectors)
                beliefs[name] = Change(given, after)
        out.contributions[number] = Contribution(beliefs, noise, of[number])
    if facts["before"] is not None:
        out.before = Before({name: belief(f"before/{name}") for name in names}, **facts["before"])
    return out
