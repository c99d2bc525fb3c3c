"""Lays out the factor graph of a network for a batch: all variables first, then the factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.gaussian import Gaussian
from ..core.vector import Belief
from ..factors.operators import Shape
from ..graph.factor import Factor
from ..graph.graph import FactorGraph
from ..graph.variable import Variable
from ..layers.gaussian_observation import GaussianObservation
from ..layers.layer import Observation, Transform
from .batch import Batch, Target
from .places import INPUT, Place, above, heads_above


def default_input_prior() -> Gaussian:
    """The default prior of an input that is not observed.

    (A function: to import the package must not start JAX, which the user may still want to configure.)
    """
    return Gaussian.from_moments(mean=0.0, std=1.0)


# Standard deviation of an observed input, where missing inputs of the same variable are held at a belief.
_OBSERVED_STD = 1e-3


def holds_inputs(places: Sequence[Place], batch: Batch) -> bool:
    """Whether missing inputs are held at their prior belief (`FactorGraph.hold`) while a batch is learnt from.

    Otherwise a feed-forward network would explain labels by inputs that were not observed: of digits with 30 % of the
    pixels missing, 92 % were then classified correctly, and 94 % with them held. Their uncertainty counts as noise.
    """
    generative = any(isinstance(s.layer, Transform) and s.layer.generative for s in places)
    return batch.x_observed is not None and batch.x_prior is not None and not generative


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a graph is laid out from, except the batch.

    **Arguments:**

    - `shapes`: of one example of every activation.
    - `priors`: of every parameter; `given`: those that are beliefs of the caller's, not priors of the layers.
    - `starts`: of parameters that do not start at the mean of their prior.
    - `activations`: where the forward pass starts them.
    - `observations`: the observation layers by name, with the noise to use.
    - `learning`: parameters are learnt. In feed-forward layers examples without a label (of a head above the layer)
        then have weight 0, unless a factor of the user's is above them.
    - `input_sigma`: standard deviation of noise on the inputs; None if they have none.
    - `input_prior`: belief of inputs that are not observed, unless the batch has its own.
    - `factors`: adds the user's factors to the graph.
    - `masks`: of layers that drop units, by name.
    - `only_evidence`: a batch without any target counts as one without labels (see `learning`).
    """

    places: list[Place]
    shapes: dict[str, Shape]
    priors: dict[str, Belief]
    given: frozenset[str]
    starts: dict[str, Array]
    activations: dict[str, Array]
    observations: dict[str, Observation]
    learning: bool
    input_sigma: float | None = None
    input_prior: Gaussian | None = None
    factors: Callable[[FactorGraph], Any] | None = None
    only_evidence: bool = False
    masks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def lay_out(plan: Plan, batch: Batch, dtype: Any) -> FactorGraph:
    """The factor graph: first all variables, then the user's factors, then those of the layers."""
    graph = FactorGraph(dtype=dtype)
    _add_input(graph, plan, batch)
    for place in plan.places:
        if not isinstance(place.layer, Transform):
            continue
        for name in _of_layer(place, plan.priors) if place.tied is None else ():
            graph.variable(
                name, plan.priors[name].shape, prior=plan.priors[name], start=plan.starts.get(name), kind="parameter"
            )
        graph.variable(
            place.variable,
            (batch.size, *plan.shapes[place.variable]),
            prior=activation_prior(place.layer.output_prior, batch, len(plan.shapes[place.variable])),
            start=plan.activations.get(place.variable),
        )
        if place.mask is not None:
            graph.variable(place.mask, plan.masks[place.mask].shape)
            graph.observe(place.mask, plan.masks[place.mask])
    if plan.factors is not None:
        plan.factors(graph)
        _count_once(graph, plan)
    touched = {v.variable.name for f in graph.factors.values() for v in f.views}
    heads = heads_above(plan.places)
    for i, place in enumerate(plan.places):
        if isinstance(place.layer, Observation):
            _add_observation(graph, plan, batch, place, graph.variables[place.variable], first=i == 0)
            continue
        labelled = None
        if isinstance(place.layer, Transform) and needs_label(plan, batch, place.layer):
            labelled = None if above(plan.places, place) & touched else batch.labelled_by(heads[place.variable])
        for factor in place.factors(graph.variables):
            graph.add(_weighted(factor, labelled, batch))
    return graph


def needs_label(plan: Plan, batch: Batch, layer: Transform) -> bool:
    """Whether a layer learns from examples alone that have a label of a head above it, or a factor of the user's there.

    If nothing above a feed-forward layer is observed, the messages from its outputs hold only their priors, which are
    not evidence. (A graph without any target is laid out as it stands, unless it is for learning.)
    """
    learning = plan.learning and (bool(batch.targets) or plan.only_evidence)
    return learning and not layer.generative


def tied_parameters(graph: FactorGraph, parameters: Iterable[str]) -> list[list[str]]:
    """Names of parameters that the user's factors tie, so that they are one variable."""
    one = graph.tied
    groups: dict[str, list[str]] = {}
    for name in parameters:
        groups.setdefault(one.get(name, name), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _count_once(graph: FactorGraph, plan: Plan) -> None:
    """Count a belief that is given for tied parameters once: it is that of one variable, under each of its names.

    Priors of layers multiply when they are tied. A posterior contains them, and must not be multiplied with itself.
    """
    for names in tied_parameters(graph, plan.priors):
        known = [name for name in names if name in plan.given]
        if not known:
            continue
        first = plan.priors[known[0]]
        for name in known[1:]:
            other = plan.priors[name]
            if not (np.array_equal(first.eta, other.eta) and np.array_equal(first.lam, other.lam)):
                raise ValueError(f"'{known[0]}' and '{name}' are tied, one variable: two different beliefs are given")
        for name in names:
            if name != known[0]:
                graph.drop_prior(name)


def activation_prior(std: float, batch: Batch, axes: int) -> Gaussian:
    """The prior of activations: to the power of the weight of each example; one number if all weights are 0 or 1."""
    prior = Gaussian.from_moments(mean=0.0, std=std)
    if batch.weight is None or np.isin(batch.weight, (0, 1)).all():
        return prior
    weight = np.where(batch.weight > 0, batch.weight, 1).reshape(-1, *(1,) * axes)
    return Gaussian.from_moments(mean=np.zeros(weight.shape), std=std / np.sqrt(weight))


def _of_layer(place: Place, priors: Mapping[str, Belief]) -> list[str]:
    return [n for n in priors if n.startswith(f"{place.name}/")]


class InputBelief(NamedTuple):
    """What is known of the inputs of a batch before any message."""

    prior: Gaussian | None
    held: Gaussian | None  # the belief that they are held at, if they are
    fixed: bool  # whether they are observed without noise, where the mask says so
    observed: np.ndarray | None  # that mask; None for all


def input_belief(plan: Plan, batch: Batch) -> InputBelief:
    """What is known of the inputs of a batch."""
    layer = plan.observations.get(plan.places[0].name)
    prior, x = None, batch.x
    if isinstance(layer, GaussianObservation):
        # With known Gaussian noise, an observation of the input is a prior: the same density, and no group to visit.
        prior = layer.as_prior(x)
    elif plan.input_sigma is not None:
        prior = Gaussian.from_moments(mean=x, std=plan.input_sigma)
    if batch.x_observed is not None:
        usual = default_input_prior() if plan.input_prior is None else plan.input_prior
        missing = (usual if batch.x_prior is None else batch.x_prior).broadcast_to(x.shape)
        if prior is None and layer is not None:  # it is observed by factors
            prior = Gaussian.flat(x.shape, dtype=missing.dtype)
        prior = missing if prior is None else prior.where(jnp.asarray(batch.x_observed), missing)
    fixed, held = layer is None and plan.input_sigma is None, None
    if fixed and plan.learning and holds_inputs(plan.places, batch):
        assert prior is not None
        mask = jnp.asarray(batch.x_observed)
        mean, std = jnp.where(mask, x, prior.mean), jnp.where(mask, _OBSERVED_STD, prior.std)
        fixed, held = False, Gaussian.from_moments(mean=mean, std=std)
    return InputBelief(prior, held, fixed, batch.x_observed if fixed else None)


def _add_input(graph: FactorGraph, plan: Plan, batch: Batch) -> None:
    known = input_belief(plan, batch)
    graph.variable(INPUT, batch.x.shape, start=batch.x, prior=known.prior)
    if known.held is not None:
        graph.hold(INPUT, known.held)
    elif known.fixed:
        graph.observe(INPUT, batch.x, known.observed)


def _add_observation(
    graph: FactorGraph, plan: Plan, batch: Batch, place: Place, variable: Variable, first: bool
) -> None:
    layer = plan.observations[place.name]
    if first:
        if isinstance(layer, GaussianObservation) and layer.as_prior(batch.x) is not None:
            return  # laid out as the prior
        target = Target(batch.x, batch.x_observed)
    else:
        target = batch.targets.get(place.name, Target(None))
    if target.y is not None:
        graph.add(_weighted(layer.factor(place.name, variable, target.y), target.observed, batch))


def factor_weights(mask: np.ndarray | None, batch: Batch) -> np.ndarray | None:
    """The weight of each example, 0 where the mask is False: `(B,)`, or of the shape of the mask; None for 1."""
    if batch.weight is None and (mask is None or mask.all()):
        return None
    rows = np.ones(batch.size) if batch.weight is None else batch.weight
    return rows if mask is None else mask.astype(float) * rows.reshape(-1, *(1,) * (mask.ndim - 1))


def _weighted(factor: Factor, mask: np.ndarray | None, batch: Batch) -> Factor:
    """A factor whose grid begins with the batch, with the weights of `factor_weights`."""
    weights = factor_weights(mask, batch)
    if weights is None:
        return factor
    return factor.weighted(weights.reshape(weights.shape + (1,) * (len(factor.grid) - weights.ndim)))
