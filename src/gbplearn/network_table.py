"""`print(net)`: a network as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .layers.layer import Observation, Transform
from .layers.prior import Prior
from .measurement import Shape
from .sites import INPUT
from .view import Variable

if TYPE_CHECKING:
    from .network import Sequential

_HEADINGS = ("layer", "kind", "variables", "factors", "edges", "parameters")


def table(net: Sequential) -> str:
    """Layers, variables, factors and edges of one example, parameters; question marks if the input is not known."""
    shape = net.input_shape
    rows: list[tuple[str, ...]] = [_HEADINGS]
    if shape is None:
        rows += [(s.name, type(s.layer).__name__, "?", "?", "?", "?") for s in net.sites]
    else:
        shapes, counts = net.shapes(shape), _counts(net, shape)
        for site, numbers in zip(net.sites, counts):
            made = "x".join(map(str, shapes[site.variable])) if isinstance(site.layer, Transform) else ""
            rows.append((site.name, type(site.layer).__name__, made, *_spelt(numbers)))
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
    told = "input shape unknown (give input_shape=)" if shape is None else f"input {'x'.join(map(str, shape))}"
    return "\n".join([*lines, f"{told}; factors and edges of one example"])


def _spelt(numbers: tuple[int, int, int]) -> tuple[str, str, str]:
    factors, edges, parameters = (f"{n:,}" for n in numbers)
    return factors, edges, parameters


def _counts(net: Sequential, input_shape: Shape) -> list[tuple[int, int, int]]:
    """Factors and edges of one example, and parameters, layer by layer. Nothing is allocated."""
    shapes, inputs, out = net.shapes(input_shape), INPUT, []
    for site in net.sites:
        variable, parameters = Variable(site.variable, (1, *shapes[site.variable])), {}
        if isinstance(site.layer, Transform):
            parameters = site.layer.parameters(shapes[inputs])
            own = {name: Variable(f"{site.name}/{name}", p.shape) for name, p in parameters.items()}
            factor = site.layer.factor(site.name, Variable(inputs, (1, *shapes[inputs])), own, variable)
            inputs = site.variable
        elif isinstance(site.layer, Observation):
            factor = site.layer.factor(site.name, variable, np.zeros(variable.shape))
        else:
            assert isinstance(site.layer, Prior)
            factor = site.layer.factor(site.name, variable)
        assert factor.layout is not None
        heard = [
            e.row for e, v in zip(factor.layout.edges, factor.views) if v.variable.name != INPUT or net.observes_input
        ]
        out.append((factor.factors, factor.factors * sum(heard), sum(math.prod(p.shape) for p in parameters.values())))
    return out
