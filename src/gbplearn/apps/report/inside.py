"""What a report says of inference itself: how messages come to rest, what layers cost, what parameters are believed."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from ...engine.damping import Damping
from ...engine.result import Result, Status
from ...engine.schedules import Schedule
from ...learner.posterior import Posterior
from ...show.figures import picture
from ...show.page import Section
from .layer_cost import GroupCost, cost_rows, group_costs


def ending(result: Result) -> str:
    """How inference ended, and what to think of it."""
    text = f"{result.message} after {result.iterations} iterations."
    if result.status in (Status.ITERATION_LIMIT, Status.SETTLED):
        text += (
            " Units at a kink (of a ReLU, of max-pooling) may jump to and fro for ever, so that the residual of their "
            "layer stays up: that is ordinary. What counts is that energies and the layers above are at rest."
        )
    return text


def messages_section(figure: Figure, text: str, folder: Path | None) -> Section:
    """The figure of a trace."""
    words = (
        "Over the iterations, for each group of factors: left, how far what it has to say would move a belief (in "
        "standard deviations, or of the logarithm of a precision), right its energy."
    )
    return Section("How messages come to rest", text, pictures=[picture(figure, "messages", words, folder)])


def cost_section(costs: list[GroupCost], what: str) -> Section:
    """`what` was computed for."""
    return Section(
        "What each layer costs",
        f"Time and memory of a visit of each group of factors, by itself, for {what} on this machine. Messages are "
        "kept from visit to visit; temporary memory is needed during a visit only (as the compiler has it: native "
        "kernels hold a little more of their own).",
        cost_rows(costs),
    )


def posterior_section(posterior: Posterior, folder: Path) -> Section:
    """Every parameter."""
    words = (
        "Posterior of every parameter: on the left means (filters as images, other parameters sorted), on the right "
        "standard deviations of the same."
    )
    return Section(
        "What the parameters are believed to be",
        "Weights are Gaussian variables: each has a mean and a standard deviation.",
        pictures=[picture(posterior.plot(), "filters", words, folder)],
    )


def result_sections(
    result: Result, what: str, folder: Path, *, damping: float | Damping, schedule: Schedule | None
) -> list[Section]:
    """All three of a network that was learnt in one go; damping and schedule as it was."""
    kinds = result.graph.kinds
    posterior = Posterior({name: belief for name, belief in result.items() if kinds[name] == "parameter"})
    text = f"{what[0].upper()}{what[1:]}: {ending(result)}"
    return [
        messages_section(result.plot(), text, folder),
        cost_section(group_costs(result.graph, damping=damping, schedule=schedule), what),
        posterior_section(posterior, folder),
    ]
