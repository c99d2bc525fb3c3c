"""The log evidence of a batch: how likely it was, given all batches before it.

Let `Z(a)` be the integral of all factors with `a` observed, over parameters too, whose priors are the beliefs before
the batch. Then

    targets that are values                        log p(y | x) = log Z(x, y) - log Z(x)
    inputs that a generative layer explains, too   log p(x, y) = log Z(x, y) - log Z()

as `Predictor.log_evidence` has it with known parameters: the priors of activations are factors too, so that without
observations the integral is not 1 for forward layers. It is of all examples of the batch together: what is learnt from
one helps to predict the next. Bethe's approximation, exact on trees of linear layers.

For classes it is the log probability that was predicted for them, example by example:

    log p(y | x) = sum_n w_n sum_c y_nc log E[softmax_c(f_n)]

Of classes and values together it is the sum: the probabilities of the classes do not know the values.

(The density of a one-hot vector under the softmax factor's Gaussian is no probability of a class, and neither
comparable between class noises nor with a log loss.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from ..core.vector import Belief
from ..engine.result import Result
from ..layers.class_observation import ClassObservation
from ..network.batch import Batch
from ..network.layout import holds_inputs
from .prediction import Predictor, explains_input, is_normalised, over_hidden


def log_evidence_of_batch(
    predictor: Predictor, result: Result, batch: Batch, before: Mapping[str, Belief], seed: int
) -> float:
    """`log p(batch | batches before)`; noise that is learnt counts as it is after the batch.

    **Arguments:**

    - `result`: of learning from the batch; `batch`: with its padding.
    - `before`: beliefs of the parameters before the batch.
    - `seed`: that the batch was learnt with.
    """
    net = predictor.net
    classes = [name for name in batch.targets if isinstance(net.heads[name].layer, ClassObservation)]
    out = _of_classes(predictor, batch, classes, before) if classes else 0.0
    only_classes = len(classes) == len(batch.targets)
    if batch.targets and only_classes and not explains_input(net):
        return out
    alone = batch.without_targets() if len(batch.targets) < 2 else _without(batch, net.heads)
    values = alone if only_classes else _without(batch, classes)
    out += _log_integral(predictor, result, values, before, seed) if classes else result.log_evidence
    if batch.targets and not explains_input(net):
        return out - _log_integral(predictor, result, _without(batch, net.heads), before, seed)
    out -= _density_of_inputs(predictor, batch)
    if net.generative and not is_normalised(net):
        hidden = dataclasses.replace(alone, x=np.zeros_like(batch.x), x_observed=np.zeros(batch.x.shape, bool))
        nothing = over_hidden(hidden)
        assert nothing.x_prior is not None
        # Without the density of that prior, which is to stand for none; padding has nothing but its prior.
        there = np.ones(batch.size) if batch.weight is None else batch.weight
        density = np.asarray(nothing.x_prior.log_density(hidden.x))[there > 0].sum()
        out -= _log_integral(predictor, result, nothing, before, seed) - float(density)
    return out


def _without(batch: Batch, heads: Collection[str]) -> Batch:
    """The batch with nothing observed by some heads. Layers count the examples that they have learnt from.

    (A feed-forward network has learnt nothing from examples without a label.)
    """
    if len(batch.targets) == 1:
        return dataclasses.replace(batch.without_targets(), weight=batch.label_weights)
    targets = {name: of.unobserved() if name in heads else of for name, of in batch.targets.items()}
    return dataclasses.replace(batch, targets=targets)


def _log_integral(predictor: Predictor, result: Result, batch: Batch, before: Mapping[str, Belief], seed: int) -> float:
    """`log Z` of a batch without the targets that were learnt from."""
    observed = [name for name, target in batch.targets.items() if target.y is not None]
    how = {**predictor.options(batch, before), "dropout": 0.0}
    inferred = predictor.net.infer(
        batch,
        beliefs=before,
        noise={n: sigma for n, sigma in result.noise.items() if n not in predictor.net.heads or n in observed},
        inputs={**predictor.inputs, "only_evidence": False},
        graph_seed=seed,
        dtype=predictor.dtype,
        throw=False,
        **how,
    )
    return inferred.log_evidence


def _of_classes(predictor: Predictor, batch: Batch, heads: Collection[str], before: Mapping[str, Belief]) -> float:
    """Predicted with the uncertainty of the parameters."""
    inputs, total = dataclasses.replace(batch.without_targets(), weight=None), 0.0
    logits = predictor.outputs(inputs, "random", before)
    for name in heads:
        p = np.asarray(predictor.net.probabilities(logits[predictor.net.heads[name].variable]), float)
        p = np.maximum(p / p.sum(1, keepdims=True), np.finfo(np.float32).tiny)
        weight = np.where(batch.labelled_by([name]), batch.label_weights, 0)
        total += float(np.sum(weight[:, None] * np.asarray(batch.targets[name].y, float) * np.log(p)))
    return total


def _density_of_inputs(predictor: Predictor, batch: Batch) -> float:
    """The graph counts observed inputs, and padding, with their density under the prior of missing ones."""
    noisy = predictor.net.observes_input or predictor.inputs["input_sigma"] is not None
    if batch.x_observed is None or noisy or holds_inputs(predictor.net.places, batch):
        return 0.0
    prior = predictor.inputs["input_prior"] if batch.x_prior is None else batch.x_prior
    density = np.asarray(prior.broadcast_to(batch.x.shape).log_density(batch.x))
    return float(density[batch.x_observed].sum())
