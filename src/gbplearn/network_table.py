"""`print(net)`: a network as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .factor import Factor
from .layers.layer import Observation, Relation, Transform
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
    out, shapes, inputs = [], net.shapes(input_shape), INPUT
    for site, factors in zip(net.sites, factors_of(net, input_shape, 1)):
        edges, parameters = 0, {}
        for factor in factors:
            counts = zip(factor.edge_counts, factor.views)
            edges += sum(n for n, v in counts if v.variable.name != INPUT or net.observes_input)
        if isinstance(site.layer, Transform):
            parameters = site.layer.parameters(shapes[inputs])
            inputs = site.variable
        out.append((sum(f.factors for f in factors), edges, sum(math.prod(p.shape) for p in parameters.values())))
    return out


def factors_of(net: Sequential, input_shape: Shape, batch: int) -> list[list[Factor]]:
    """The factor groups of each layer for a batch of some size. Nothing is allocated."""
    shapes, inputs, out = net.shapes(input_shape), INPUT, []
    for site in net.sites:
        variable = Variable(site.variable, (batch, *shapes[site.variable]))
        if isinstance(site.layer, Transform):
            parameters = site.layer.parameters(shapes[inputs])
            own = {name: Variable(f"{site.name}/{name}", p.shape) for name, p in parameters.items()}
            out.append([site.layer.factor(site.name, Variable(inputs, (batch, *shapes[inputs])), own, variable)])
            inputs = site.variable
        elif isinstance(site.layer, Observation):
            anything = np.zeros((1,) * len(variable.shape))
            out.append([site.layer.factor(site.name, variable, anything)])
        else:
            assert isinstance(site.layer, Relation)
            out.append(site.layer.factors(site.name, variable))
    return out
