"""What a trained network is asked, answered by messages: the graph of the examples with the parameters known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from .batch import PREDICT_SIZES, Batch, portions
from .gaussian import Gaussian
from .inference import Result, infer
from .layers.layer import Observation, Transform
from .learning import options_for
from .network import Sequential

if TYPE_CHECKING:
    from .learner import Learner

# Iterations that predict with a feed-forward network.
SWEEPS = 5
# Standard deviation of the prior of pixels about which only a generative layer is to speak.
_WIDE = 1e3


def answer(
    learner: Learner,
    batch: Batch,
    parameters: str | None,
    want: str | None,
    beliefs: Mapping[str, Gaussian] | None = None,
) -> Gaussian:
    """The belief of a variable, a row an example; None for the outputs. `beliefs` as `_results` has it."""
    name = learner.net.output if want is None else want
    found = [result[name][:count] for result, count in _results(learner, batch, parameters, beliefs)]
    eta, lam = (np.concatenate([np.asarray(getattr(b, part)) for b in found]) for part in ("eta", "lam"))
    return Gaussian(jnp.asarray(eta), jnp.asarray(lam))


def log_evidence(learner: Learner, batch: Batch, parameters: str | None) -> np.ndarray:
    """`log p(observed)` of each example; of targets given inputs, unless a generative layer explains the inputs.

    With `Z(a)` the integral of all factors with `a` observed it is `log Z(x, y) - log Z(x)`, and if the inputs are
    explained `log Z(x, y) - log Z()`: the priors of activations are factors too, so that without observations it is not
    1 for forward layers.
    """
    net = learner.net
    if learner.factors is not None:
        raise ValueError("log_evidence: factors of your own may join the examples")
    if not explains_input(net):
        if batch.y is None:
            raise ValueError("log_evidence needs y: a feed-forward first layer says nothing about inputs")
        alone = dataclasses.replace(batch, y=None, y_seen=None)
        return _log_integral(learner, batch, parameters) - _log_integral(learner, alone, parameters)
    known = _log_integral_over_hidden(learner, batch, parameters)
    if is_normalised(net):
        return known
    few = batch.x[: PREDICT_SIZES[-1]]  # as many as are predicted at a time: the same program
    nothing = Batch(np.zeros_like(few), np.zeros(few.shape, bool))
    return known - _log_integral_over_hidden(learner, nothing, parameters)[0]


def _log_integral(learner: Learner, batch: Batch, parameters: str | None) -> np.ndarray:
    """`log Z` of each example."""
    return np.concatenate([r.log_evidence_by_example[:count] for r, count in _results(learner, batch, parameters)])


def _log_integral_over_hidden(learner: Learner, batch: Batch, parameters: str | None) -> np.ndarray:
    """The same where only the layers speak about pixels that are not observed: their prior is as good as none."""
    wide = over_hidden(batch)
    assert wide.x_seen is not None
    assert wide.x_prior is not None
    total = _log_integral(learner, wide, parameters)
    # The graph also counts what is observed with its density under that prior, unless it is observed with noise.
    noisy = learner.net.observes_input or learner.input_sigma is not None
    counted = np.where(wide.x_seen & noisy, 0, np.asarray(wide.x_prior.log_density(batch.x)))
    return total - counted.reshape(batch.size, -1).sum(1)


def over_hidden(batch: Batch) -> Batch:
    """With a prior of inputs that are not observed that is as good as none."""
    seen = np.ones(batch.x.shape, bool) if batch.x_seen is None else batch.x_seen
    prior = Gaussian.from_moments(mean=np.zeros(batch.x.shape), std=_WIDE)
    return dataclasses.replace(batch, x_seen=seen, x_prior=prior)


def _results(
    learner: Learner, batch: Batch, parameters: str | None, beliefs: Mapping[str, Gaussian] | None = None
) -> Iterator[tuple[Result, int]]:
    """Inference with the parameters given, portion by portion, and how many rows of each are no padding.

    **Arguments:**

    - `beliefs`: of the parameters; by default the posterior.
    """
    how = learner.parameters if parameters is None else parameters
    posterior = learner.posterior if beliefs is None else beliefs
    if how not in ("fixed", "random"):
        raise ValueError(f"parameters must be 'fixed' or 'random' at prediction, got {how!r}")
    net = learner.net
    # The user's factors know the batch by its size, so that it cannot be divided.
    for portion, count in [(batch, batch.size)] if learner.factors is not None else portions(batch):
        known = {name: n.start for name, n in learner.noise.items() if name != net.head or portion.y is not None}
        graph = net.graph(
            portion,
            parameters=how,
            beliefs=posterior,
            noise=known,
            inputs=learner.inputs,
            dtype=learner.dtype,
        )
        # Feed-forward, with the parameters given, nothing is observed above: a few sweeps without damping settle it,
        # for each batch the same number, so that no example depends on how long another one takes.
        loops = net.generative or learner.factors is not None or portion.y is not None
        result = infer(
            graph,
            iterations=max(200, learner.options["iterations"]) if loops else SWEEPS,
            tolerance=1e-4 if loops else 0.0,
            damping=options_for(learner, portion, posterior)["damping"] if loops else 0.0,
            guard=loops,  # which would look at all examples together
            messages=learner.options["messages"],
        )
        yield result, count


def variable(learner: Learner, want: str) -> str:
    """The name in the graph of what is asked for."""
    net = learner.net
    names = {"output": net.output, **{s.variable: s.variable for s in net.sites}, "input": "input"}
    if want not in names:
        raise ValueError(f"want must be one of {', '.join(names)}, got {want!r}")
    return names[want]


def explains_input(net: Sequential) -> bool:
    """Whether the first layer is generative (or there is none, but relations among the inputs)."""
    first = next((layer for layer in net.layers if isinstance(layer, Transform)), None)
    return first is None or _is_generative(first)


def is_normalised(net: Sequential) -> bool:
    """Whether the integral over everything is 1: each layer is a density of what it explains."""
    return all(isinstance(layer, Observation) or _is_generative(layer) for layer in net.layers)


def _is_generative(layer: object) -> bool:
    return isinstance(layer, Transform) and layer.generative
