"""How likely a batch was, given all batches before it.

With `Z(a)` the integral of all factors with `a` observed, parameters included, which have what was known of them before
the batch,

    targets that are values                        log p(y | x) = log Z(x, y) - log Z(x)
    inputs that a generative layer explains, too   log p(x, y) = log Z(x, y) - log Z()

as `answers.log_evidence` has it with known parameters: the priors of activations are factors too, so that without
observations the integral is not 1 for forward layers. All examples of the batch together, in which what one teaches
helps to predict the next; Bethe's approximation, exact on trees of linear layers.

Of classes it is the probability that was predicted for them, example by example:

    log p(y | x) = sum_n w_n sum_c y_nc log E[softmax_c(f_n)]

(The density of a one-hot vector under the softmax factor's Gaussian is no probability of a class, and neither
comparable between class noises nor with a log loss.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .answers import answer, explains_input, is_normalised, over_hidden
from .batch import Batch
from .gaussian import Gaussian
from .inference import Result, infer
from .lay_out import holds_inputs
from .layers.softmax import SoftmaxObservation
from .learning import options_for

if TYPE_CHECKING:
    from .learner import Learner


def log_evidence_of_batch(learner: Learner, result: Result, batch: Batch, before: Mapping[str, Gaussian]) -> float:
    """`log p(batch | batches before)`; noise that is learnt counts as it is after the batch.

    **Arguments:**

    - `result`: of learning from the batch; `batch`: with its padding.
    - `before`: what was known of the parameters.
    """
    net = learner.net
    classes = batch.y is not None and isinstance(net.layers[-1], SoftmaxObservation)
    out = _of_classes(learner, batch, before) if classes else 0.0
    if not explains_input(net):
        if classes:
            return out
        if batch.y is not None:
            # Examples without a label told a feed-forward network nothing.
            inputs = dataclasses.replace(batch, y=None, y_seen=None, weight=batch.label_weights)
            return result.log_evidence - _log_integral(learner, result, inputs, before)
    alone = dataclasses.replace(batch, y=None, y_seen=None)
    out += _log_integral(learner, result, alone, before) if classes else result.log_evidence
    out -= _density_of_inputs(learner, batch)
    if net.generative and not is_normalised(net):
        hidden = dataclasses.replace(alone, x=np.zeros_like(batch.x), x_seen=np.zeros(batch.x.shape, bool))
        nothing = over_hidden(hidden)
        assert nothing.x_prior is not None
        # Without the density of that prior, which is to stand for none; padding has nothing but its prior.
        there = np.ones(batch.size) if batch.weight is None else batch.weight
        density = np.asarray(nothing.x_prior.log_density(hidden.x))[there > 0].sum()
        out -= _log_integral(learner, result, nothing, before) - float(density)
    return out


def _log_integral(learner: Learner, result: Result, batch: Batch, before: Mapping[str, Gaussian]) -> float:
    """`log Z` of a batch without targets."""
    graph = learner.net.graph(
        batch,
        beliefs=before,
        noise={name: sigma for name, sigma in result.noise.items() if name != learner.net.head},
        inputs={**learner.inputs, "only_evidence": False},
        seed=learner.seed + learner.batches,
        dtype=learner.dtype,
    )
    how = {**options_for(learner, batch, before), "dropout": 0.0}
    return infer(graph, throw=False, **how).log_evidence


def _of_classes(learner: Learner, batch: Batch, before: Mapping[str, Gaussian]) -> float:
    """Predicted with the uncertainty of the parameters."""
    assert batch.y is not None
    inputs = dataclasses.replace(batch, y=None, y_seen=None, weight=None)
    logits = answer(learner, inputs, "random", None, before)
    p = np.asarray(learner.net.probabilities(logits), float)
    p = np.maximum(p / p.sum(1, keepdims=True), np.finfo(np.float32).tiny)
    return float(np.sum(batch.label_weights[:, None] * np.asarray(batch.y, float) * np.log(p)))


def _density_of_inputs(learner: Learner, batch: Batch) -> float:
    """The graph counts observed inputs, and padding, with their density under the prior of missing ones."""
    noisy = learner.net.observes_input or learner.input_sigma is not None
    if batch.x_seen is None or noisy or holds_inputs(learner.net.sites, batch):
        return 0.0
    prior = learner.input_prior if batch.x_prior is None else batch.x_prior
    density = np.asarray(prior.broadcast_to(batch.x.shape).log_density(batch.x))
    return float(density[batch.x_seen].sum())
