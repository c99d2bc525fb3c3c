"""A network as a program: laid out once for batches of one kind, of which each is new data.

`layout.py` makes the graph of a batch, with all checks. Here the same numbers are put straight into the data of a
program that was made of such a graph: nothing that depends on the structure alone happens twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.gaussian import Gaussian
from ..core.noise import LearnNoise, NoisePrior
from ..engine.program import Program, program_of
from ..graph.data import Data, FactorData
from ..graph.graph import FactorGraph
from ..graph.problem import data_of
from ..layers.gaussian_observation import GaussianObservation
from ..layers.layer import Observation, Transform
from .batch import Batch, Target
from .layout import Plan, activation_prior, factor_weights, input_belief, needs_label
from .places import INPUT, Place, heads_above, layer_of


def run_forward(places: Sequence[Place], now: Array, numbers: dict[str, Array]) -> dict[str, Array]:
    """The forward pass as a pure function: inputs and parameters by name, activations by name."""
    out: dict[str, Array] = {INPUT: now}
    for place in places:
        if not isinstance(place.layer, Transform) or any(name not in out for name in place.inputs):
            continue  # behind a generative layer, which has no forward pass
        result = place.forward(out, numbers)
        if result is not None:
            out[place.variable] = result
    return out


@dataclasses.dataclass(frozen=True)
class Starts:
    """Completes the data of a network: parameters start at the means of their priors, activations by a forward pass.

    What has a start already keeps it. Equal networks have equal ones, so that they share compiled programs.
    """

    places: tuple[Place, ...]

    def __hash__(self) -> int:
        return hash(tuple((p.name, type(p.layer), p.inputs) for p in self.places))

    def __call__(self, data: Data) -> Data:
        """The data with the starts that were missing."""
        means = {n: p.mean for n, p in data.prior.items() if n not in data.start}
        parameters = {n: jnp.asarray(v) for n, v in {**means, **data.start, **data.fixed}.items() if "/" in n}
        start = {**means, **data.start}
        x = jnp.asarray(data.fixed[INPUT] if INPUT in data.fixed else data.start[INPUT])
        for name, value in run_forward(self.places, x, parameters).items():
            if name in means:
                start[name] = value.astype(x.dtype)
        return dataclasses.replace(data, start={n: start[n] for n in data.prior})


def kind_of(plan: Plan, batch: Batch, parameters: str, messages: str, dtype: Any) -> tuple[Any, ...]:
    """Batches of one kind have one program: all that decides on the structure of their graphs."""
    given = tuple(part is None for part in (batch.x_observed, batch.weight, batch.x_prior))
    observed = tuple((name, target.y is None, target.observed is None) for name, target in batch.targets.items())
    binary = batch.weight is None or bool(np.isin(batch.weight, (0, 1)).all())
    noise = tuple((name, type(getattr(o, "sigma", None))) for name, o in plan.observations.items())
    weighted = tuple(None if w is None else w.shape for w in (*_weights(plan, batch).values(), _weight_of_all(batch)))
    noisy = plan.input_sigma is None
    how = plan.only_evidence, parameters, messages, str(dtype)
    return batch.x.shape, given, observed, binary, noise, weighted, noisy, *how


def _weights(plan: Plan, batch: Batch) -> dict[str, np.ndarray | None]:
    """Weights of the factors of each layer with outputs and of each observation, `(B, ...)`; None for 1."""
    out: dict[str, np.ndarray | None] = {}
    heads = heads_above(plan.places)
    for i, place in enumerate(plan.places):
        if isinstance(place.layer, Transform):
            mask = batch.labelled_by(heads[place.variable]) if needs_label(plan, batch, place.layer) else None
            out[place.name] = factor_weights(mask, batch)
        elif isinstance(place.layer, Observation):
            target = batch.targets.get(place.name, Target(None))
            out[place.name] = factor_weights(batch.x_observed if i == 0 else target.observed, batch)
    return out


def _weight_of_all(batch: Batch) -> np.ndarray | None:
    """The weights of factors that nothing is observed by, such as those of relations."""
    return factor_weights(None, batch)


class BatchProgram:
    """The program of a network for batches of one kind, and how such a batch becomes its data.

    **Arguments:**

    - `graph`: of the first such batch, whose numbers that do not depend on the batch are kept.
    """

    def __init__(self, graph: FactorGraph, plan: Plan, messages: str):
        problem = graph.problem(None, messages)
        self.program: Program = program_of(graph, problem, Starts(tuple(plan.places)))
        self._first = data_of(problem)
        self._grids = {g.name: g.grid for g in problem.groups}
        self._outputs = {g.name: g.outputs for g in problem.groups}

    @property
    def holds_input(self) -> bool:
        """Whether inputs are held at a belief."""
        return INPUT in self._first.held

    def data(self, plan: Plan, batch: Batch, activations: dict[str, Array]) -> Data:
        """The numbers of a batch.

        **Arguments:** `activations`: where these start, if not by the forward pass of `Starts`.
        """
        first, dtype = self._first, self.program.dtype
        prior, start, held = dict(first.prior), {}, dict(first.held)
        fixed: dict[str, Any] = dict(first.fixed)
        for name, belief in plan.priors.items():
            if name in prior:
                prior[name] = belief.astype(dtype)
            else:
                fixed[name] = belief.mean.astype(dtype)
                if name in held:
                    held[name] = belief.astype(dtype)
        start |= {n: a.astype(dtype) for n, a in plan.starts.items() if n in prior}
        fixed |= {name: np.asarray(mask, dtype) for name, mask in plan.masks.items()}
        x, belief = np.asarray(batch.x, dtype), input_belief(plan, batch)
        if INPUT in held:
            assert belief.held is not None
            held[INPUT] = belief.held.astype(dtype)
            fixed[INPUT] = held[INPUT].mean
        elif INPUT in fixed:
            fixed[INPUT] = x
        else:
            start[INPUT] = x
            given = belief.prior
            if given is not None:
                given = given.astype(dtype).broadcast_to(x.shape)
                if belief.observed is not None:
                    given = Gaussian.point(jnp.asarray(x)).where(jnp.asarray(belief.observed), given)
                prior[INPUT] = given
        for place in plan.places:
            if isinstance(place.layer, Transform) and not (batch.weight is None or place.variable in first.uniform):
                wide = activation_prior(place.layer.output_prior, batch, len(plan.shapes[place.variable])).astype(dtype)
                prior[place.variable] = wide.broadcast_to(prior[place.variable].shape)
        start |= {n: jnp.asarray(a, dtype) for n, a in activations.items() if n in prior}
        return Data(prior, start, fixed, held, first.uniform, self._factors(plan, batch, dtype))

    def _factors(self, plan: Plan, batch: Batch, dtype: Any) -> dict[str, FactorData]:
        out, weights, of_all = {}, _weights(plan, batch), _weight_of_all(batch)
        for group, factor in self._first.factors.items():
            more: dict[str, Any] = {}
            weight = weights.get(layer_of(group), of_all)
            if weight is not None:
                grid = self._grids[group]
                more["weight"] = np.asarray(weight, dtype).reshape(weight.shape + (1,) * (len(grid) - weight.ndim))
            observation = plan.observations.get(group)
            if observation is not None:
                target = batch.x if group == plan.places[0].name else batch.targets[group].y
                more["y"] = np.asarray(target, dtype).reshape(-1, self._outputs[group])
                if isinstance(observation, GaussianObservation):
                    more |= _noise(observation, factor, dtype)
            out[group] = dataclasses.replace(factor, **more)
        return out


def _noise(observation: GaussianObservation, factor: FactorData, dtype: Any) -> dict[str, Any]:
    """The noise of an observation that learns its own, as it is now."""
    learnt = observation.learnt
    sigma = observation.sigma if learnt is None else learnt.start
    assert isinstance(sigma, (int, float))
    variance = np.asarray(sigma, dtype) ** 2
    out: dict[str, Any] = {"noise": np.full(factor.noise.shape, float(sigma) ** 2, dtype)}
    if isinstance(learnt, LearnNoise):
        out["noise_prior"] = NoisePrior(jnp.asarray(variance), jnp.asarray(learnt.weight, dtype))
    return out
