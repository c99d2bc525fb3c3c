"""HTML for notebooks: short tables, and drawings if they are small. No scripts, no colours of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from ..core.vector import Belief
from ..engine.result import Result
from ..graph.graph import FactorGraph
from ..learner.learner import Learner
from ..learner.posterior import Posterior
from ..network.layer_graph import LayerGraph
from .drawing import Drawing
from .graph_drawing import draw_graph, draw_network
from .page import table

_MOST_BOXES, _MOST_ROWS = 40, 60


def graph_html(graph: FactorGraph) -> str:
    """A drawing if it is small, else its boxes as a table."""
    drawing = draw_graph(graph)
    groups = sum(box.is_factor for box in drawing.boxes)
    heading = f"FactorGraph ({graph.dtype}): {len(drawing.boxes) - groups} variables, {groups} factor groups"
    return _page(heading, _drawn(drawing))


def network_html(net: LayerGraph) -> str:
    """The table that `print(net)` shows, and a drawing if the input shape is known."""
    picture = "" if net.input_shape is None else _drawn(draw_network(net))
    return _page(type(net).__name__, f"<pre>{escape(str(net))}</pre>", picture)


def result_html(result: Result) -> str:
    """How inference ended, and all beliefs."""
    facts = [
        ("status", result.message),
        ("iterations", f"{result.iterations:,}"),
        ("residual", f"{result.residual:.3g}"),
    ]
    facts += [(f"noise of {name}", f"{std:.3g}") for name, std in result.noise.items()]
    facts += [("guard", str(event)) for event in result.guard]
    return _page(f"Result: {result.status}", table([("", "value"), *facts]), _beliefs("variable", result))


def posterior_html(posterior: Posterior) -> str:
    """All parameters."""
    return _page("Posterior", _beliefs("parameter", posterior))


def learner_html(learner: Learner) -> str:
    """How much was learnt from, the beliefs of the parameters, and the network."""
    failed = f", {learner.failures:,} not learnt" if learner.failures else ""
    heading = f"Learner: {learner.batches:,} batches, {learner.examples:,} examples{failed}"
    picture = _drawn(draw_network(learner.net, input_shape=learner.net_shape))
    return _page(heading, _beliefs("parameter", learner.posterior), picture)


def _page(heading: str, *parts: str) -> str:
    return f"<div><p><b>{escape(heading)}</b></p>{''.join(parts)}</div>"


def _drawn(drawing: Drawing) -> str:
    if len(drawing.boxes) <= _MOST_BOXES:
        return drawing.svg
    rows = [("factor group" if b.is_factor else "variable", b.name, ", ".join(b.lines)) for b in drawing.boxes]
    return _rows(("", "name", ""), rows)


def _beliefs(what: str, beliefs: Mapping[str, Belief]) -> str:
    rows = []
    for name, belief in beliefs.items():
        mean, std = np.asarray(belief.mean), np.asarray(belief.std)
        std = np.where(std < 1e-9, 0.0, std)  # observed
        shape = " × ".join(map(str, belief.shape))
        rows.append((name, shape, _range(mean), _range(std)))
    return _rows((what, "shape", "mean", "standard deviation"), rows)


def _range(values: np.ndarray) -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    more = f"<p>and {len(rows) - _MOST_ROWS} more</p>" if len(rows) > _MOST_ROWS else ""
    return table([head, *rows[:_MOST_ROWS]]) + more
