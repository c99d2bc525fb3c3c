"""What a trained network is asked, answered by messages: the graph of the examples with the parameters known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from .batch import Batch, portions
from .gaussian import Gaussian
from .learning import options_for

if TYPE_CHECKING:
    from .learner import Learner

# Iterations that predict with a feed-forward network.
SWEEPS = 5


def answer(learner: Learner, batch: Batch, parameters: str | None, want: str | None) -> Gaussian:
    """The belief of a variable, a row an example; None for the outputs."""
    parts = []
    # The user's factors know the batch by its size, so that it cannot be divided.
    for portion, count in [(batch, batch.size)] if learner.factors is not None else portions(batch):
        belief = _infer(learner, portion, parameters, want)
        parts.append((np.asarray(belief.eta)[:count], np.asarray(belief.lam)[:count]))
    eta, lam = (np.concatenate(p) for p in zip(*parts))
    return Gaussian(jnp.asarray(eta), jnp.asarray(lam))


def _infer(learner: Learner, batch: Batch, parameters: str | None, want: str | None) -> Gaussian:
    # Feed-forward, with the parameters given, nothing is observed above: a few sweeps without damping settle it,
    # for each batch the same number, so that no example depends on how long another one takes.
    loops = learner.net.generative or learner.factors is not None or batch.y is not None
    return learner.net.predict(
        batch,
        learner.posterior,
        parameters=learner.parameters if parameters is None else parameters,
        want=want,
        noise=learner.noise,
        inputs=learner.inputs,
        dtype=learner.dtype,
        iterations=max(200, learner.options["iterations"]) if loops else SWEEPS,
        tolerance=1e-4 if loops else 0.0,
        damping=options_for(learner, batch, learner.posterior)["damping"] if loops else 0.0,
        guard=loops,  # which would look at all examples together
        messages=learner.options["messages"],
    )


def variable(learner: Learner, want: str) -> str:
    """The name in the graph of what is asked for."""
    net = learner.net
    names = {"output": net.output, **{s.variable: s.variable for s in net.sites}, "input": "input"}
    if want not in names:
        raise ValueError(f"want must be one of {', '.join(names)}, got {want!r}")
    return names[want]
