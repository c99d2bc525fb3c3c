"""The table that `print(net)` shows: layers, variables, factors, edges and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.variable import Variable
from ..layers.layer import Observation, Transform
from .places import INPUT, Place

_HEADINGS = ("layer", "kind", "variables", "factors", "edges", "parameters")


def table(places: Sequence[Place], shapes: Mapping[str, Shape] | None) -> str:
    """Layers, variables, factors and edges of one example, parameters.

    **Arguments:** `shapes`: of one example of every variable; None if the input is not known: question marks.
    """
    rows: list[tuple[str, ...]] = [_HEADINGS]
    if shapes is None:
        rows += [(p.name, type(p.layer).__name__, "?", "?", "?", "?") for p in places]
    else:
        counts = _counts(places, shapes)
        for place, numbers in zip(places, counts):
            made = "x".join(map(str, shapes[place.variable])) if isinstance(place.layer, Transform) else ""
            rows.append((place.name, type(place.layer).__name__, made, *_spelt(numbers)))
        rows.append(
            (
                "total",
                "",
                "",
                *_spelt((sum(c[0] for c in counts), sum(c[1] for c in counts), sum(c[2] for c in counts))),
            )
        )
    widths = [max(len(r[i]) for r in rows) for i in range(len(_HEADINGS))]
    pad = (str.ljust, str.ljust, str.rjust, str.rjust, str.rjust, str.rjust)
    lines = ["  ".join(p(c, w) for p, c, w in zip(pad, r, widths)).rstrip() for r in rows]
    lines.insert(1, "-" * len(lines[0]))
    inputs = "input shape unknown (give input_shape=)"
    if shapes is not None:
        inputs = f"input {'x'.join(map(str, shapes[INPUT]))}"
    return "\n".join([*lines, f"{inputs}; factors and edges of one example"])


def _spelt(numbers: tuple[int, int, int]) -> tuple[str, str, str]:
    factors, edges, parameters = (f"{n:,}" for n in numbers)
    return factors, edges, parameters


def _counts(places: Sequence[Place], shapes: Mapping[str, Shape]) -> list[tuple[int, int, int]]:
    """Factors and edges of one example, and parameters, layer by layer. Nothing is allocated."""
    out, observes_input = [], isinstance(places[0].layer, Observation)
    for place, factors in zip(places, factors_of(places, shapes, 1)):
        edges = 0
        for factor in factors:
            counts = zip(factor.edge_counts, factor.views)
            named = ((n, v.variable.name) for n, v in counts)
            edges += sum(n for n, name in named if name != place.mask and (name != INPUT or observes_input))
        parameters = place.parameters(shapes) if place.tied is None else {}
        out.append((sum(f.factors for f in factors), edges, sum(math.prod(p.shape) for p in parameters.values())))
    return out


def factors_of(places: Sequence[Place], shapes: Mapping[str, Shape], batch: int) -> list[list[Factor]]:
    """The factor groups of each layer for a batch of some size. Nothing is allocated."""
    variables, out = {name: Variable(name, (batch, *shape)) for name, shape in shapes.items()}, []
    for place in places:
        if isinstance(place.layer, Observation):
            variable = variables[place.variable]
            anything = np.zeros((1,) * len(variable.shape))
            out.append([place.layer.factor(place.name, variable, anything)])
            continue
        variables |= {name: Variable(name, p.shape) for name, p in place.parameters(shapes).items()}
        if place.mask is not None:
            variables[place.mask] = Variable(place.mask, variables[place.variable].shape)
        out.append(place.factors(variables))
    return out
