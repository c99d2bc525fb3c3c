"""Factors of image layers between variables of any shapes."""

import gbplearn as gbp


def variables_of(*shapes):
    graph = gbp.FactorGraph()
    return [graph.variable(f"v{i}", s) for i, s in enumerate(shapes)]


def join(layer, x, y, weight=(2, 2, 1, 1), bias=(1,)):
    """The layer's factor between variables of these shapes."""
    x, y, w, d = variables_of(x, y, weight, bias)
    return layer.factor("layer", x, {"weight": w, "bias": d}, y)
