"""Draws factor graphs and networks: the text of each box, and the links between them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ..core.gaussian import Gaussian
from ..core.vector import VectorGaussian
from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.graph import FactorGraph
from ..graph.variable import Variable
from ..layers.layer import Transform, check_whole
from ..network.layer_graph import LayerGraph
from ..network.places import INPUT
from ..network.summary import factors_of
from .drawing import Box, Drawing, Link, counted


def draw_graph(graph: FactorGraph, path: str | Path | None = None) -> Drawing:
    """A graph with its evidence; tied variables are one. It is saved if a path is given."""
    evidence, priors = graph.evidence, graph.priors()
    names: dict[str, list[str]] = {name: [] for name in priors}
    for name in graph.variables:
        names[graph.canonical(name)].append(name)
    boxes = []
    for name, same in names.items():
        if name in evidence.values:
            state = "observed" if name in evidence.fixed else "partly observed"
        else:
            state = "held" if name in evidence.held else prior_in_words(priors[name])
        style = (graph.kinds[name], *(s for s in ("observed", "held") if s in state))
        boxes.append(Box(" = ".join(same), (shape_in_words(graph.variables[name]), state), style))
    order = {name: i for i, name in enumerate(names)}
    joined = [[order[graph.canonical(v.variable.name)] for v in f.views] for f in graph.factors.values()]
    observed = {order[name] for name in evidence.fixed}
    return _with_factors("factor graph", boxes, list(graph.factors.values()), joined, observed, path)


def draw_network(
    net: LayerGraph, path: str | Path | None = None, batch: int = 1, input_shape: Shape | None = None
) -> Drawing:
    """A network for a batch of some size; nothing is allocated. It is saved if a path is given."""
    check_whole("draw", batch=batch)
    shape = net.checked_input_shape(input_shape)
    factors = [f for layer in factors_of(net.places, net.shapes(shape), int(batch)) for f in layer]
    variables = {INPUT: Variable(INPUT, (int(batch), *shape))}
    variables |= {v.variable.name: v.variable for f in factors for v in f.views}
    priors = {name: p.prior for name, p in net.parameters(shape).items()}
    outputs = {s.variable: s.layer.output_prior for s in net.places if isinstance(s.layer, Transform)}
    observed = {place.mask for place in net.places if place.mask is not None}
    observed |= set() if net.observes_input else {INPUT}
    boxes = []
    for name, variable in variables.items():
        std = priors.get(name, outputs.get(name))
        state = "observed" if name in observed else "no prior" if std is None else _spread(std)
        style = ("parameter" if name in priors else "activation", *(("observed",) if name in observed else ()))
        boxes.append(Box(name, (shape_in_words(variable), state), style))
    order = {name: i for i, name in enumerate(variables)}
    joined = [[order[v.variable.name] for v in f.views] for f in factors]
    return _with_factors("network", boxes, factors, joined, {order[name] for name in observed}, path)


def _with_factors(
    title: str,
    variables: list[Box],
    factors: list[Factor],
    joined: list[list[int]],
    observed: set[int],
    path: str | Path | None,
) -> Drawing:
    """The drawing of these variables with their factor groups and links; it is saved if a path is given.

    **Arguments:**

    - `joined`: for each factor group, the variables that it is joined to, by their numbers.
    - `observed`: variables that are wholly observed, by their numbers.
    """
    boxes, links = list(variables), []
    for factor, ends in zip(factors, joined):
        edges: dict[int, int] = {}
        for end, count in zip(ends, factor.edge_counts):
            edges[end] = edges.get(end, 0) + count
        links += [Link(end, len(boxes), count, end in observed) for end, count in edges.items()]
        active = sum(count for end, count in edges.items() if end not in observed)
        boxes.append(Box(factor.name, (counted(factor.factors, "factor"), counted(active, "edge")), ("factor",)))
    drawing = Drawing(title, tuple(boxes), tuple(links))
    if path is not None:
        drawing.save(path)
    return drawing


def _spread(std: Any) -> str:
    """Standard deviations of a prior, one or several."""
    low, high = (f"{x:.3g}" for x in (np.min(std), np.max(std)))
    return f"prior ± {low}" if low == high else f"prior ± {low} to {high}"


def prior_in_words(prior: Gaussian | VectorGaussian) -> str:
    """The range of its standard deviations, in a few words."""
    if isinstance(prior, VectorGaussian):
        return _spread(np.asarray(prior.std))
    lam = np.asarray(prior.lam)
    if not (lam != 0).any():
        return "no prior"
    if prior.block:
        return "prior"
    if not (lam > 0).all():
        return "prior of some"
    low, high = (f"{1 / math.sqrt(x):.3g}" for x in (lam.max(), lam.min()))
    return f"prior ± {low}" if low == high else f"prior ± {low} to {high}"


def shape_in_words(variable: Variable) -> str:
    """Such as `4 × 3`, `4 blocks of 3`, or `4 vectors of 30`."""
    if variable.vector:
        return f"{variable.shape[0]} vector{'s' * (variable.shape[0] != 1)} of {variable.shape[-1]}"
    units = " × ".join(map(str, variable.unit_shape))
    return f"{units} block{'s' * (variable.unit_shape != (1,))} of {variable.dim}" if variable.block else units
