"""`Predictor`: predictions, queries and log evidence of a trained network, by messages with the parameters given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..core.gaussian import Gaussian
from ..core.noise import LearnNoise
from ..core.vector import Belief
from ..engine.result import Result
from ..layers.class_observation import ClassObservation
from ..layers.gaussian_observation import GaussianObservation
from ..layers.layer import Layer, Observation, Transform
from ..network.batch import PREDICT_SIZES, Batch, portions
from ..network.class_probabilities import expected_entropy, probabilities
from ..network.layer_graph import LayerGraph, OfHeads
from ..network.places import INPUT
from ..network.vector_activations import VectorActivations
from .uncertainty import Uncertainty

# Iterations that predict with a feed-forward network.
SWEEPS = 5
# Standard deviation of a prior of missing inputs that is as good as none: only generative layers constrain them.
_WIDE = 1e3


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A network with the beliefs of its parameters at one time: infers predictions and queries by messages.

    **Arguments:**

    - `posterior`, `noise`: of the parameters, and of observations that learn their noise.
    - `inputs`: as `Sequential.graph`: noise and prior of inputs, the user's factors.
    - `parameters`: "fixed" at their means or "random", unless a call has its own choice.
    - `options`: of `gbp.infer` for a batch, given the prior of its parameters.
    - `sizes`: examples that are predicted at a time, see `network.batch.portions`.
    - `chain`: predicts instead, where the activations of an example are one variable a layer.
    """

    net: LayerGraph
    posterior: Mapping[str, Belief]
    noise: Mapping[str, LearnNoise]
    inputs: Mapping[str, Any]
    dtype: Any
    parameters: str
    options: Callable[[Batch, Mapping[str, Belief]], dict[str, Any]]
    sizes: tuple[int, ...] = PREDICT_SIZES
    chain: VectorActivations | None = None

    @property
    def _coupled(self) -> bool:
        """Whether factors of the user's may couple the examples of a batch."""
        return self.inputs["factors"] is not None

    def belief(self, batch: Batch, want: str, parameters: str | None = None) -> Gaussian:
        """The belief of the variable `want`, a row an example; `parameters` "fixed" or "random"."""
        return self._beliefs(batch, (want,), parameters)[want]

    def outputs(
        self, batch: Batch, parameters: str | None = None, beliefs: Mapping[str, Belief] | None = None
    ) -> dict[str, Gaussian]:
        """The beliefs of what the heads observe, by variable.

        **Arguments:**

        - `parameters`: "fixed" or "random".
        - `beliefs`: of the parameters; by default the posterior.
        """
        return self._beliefs(batch, self.net.outputs, parameters, beliefs)

    def _beliefs(
        self,
        batch: Batch,
        names: Sequence[str],
        parameters: str | None,
        beliefs: Mapping[str, Belief] | None = None,
    ) -> dict[str, Gaussian]:
        """Of several variables."""
        found = (self._results if self.chain is None else self._by_chain)(batch, names, parameters, beliefs)
        parts = [{name: result[name][:count] for name in names} for result, count in found]
        return {name: _concatenated([part[name] for part in parts]) for name in names}

    def _by_chain(
        self, batch: Batch, names: Sequence[str], parameters: str | None, beliefs: Mapping[str, Belief] | None
    ) -> Iterator[tuple[Mapping[str, Gaussian], int]]:
        assert self.chain is not None
        how, posterior = self._how(parameters), self.posterior if beliefs is None else beliefs
        for name in names:
            self.chain.check_prediction(batch, name)
        for portion, count in portions(batch, self.sizes):
            yield self.chain.predict(portion, posterior, how), count

    def _how(self, parameters: str | None) -> str:
        how = self.parameters if parameters is None else parameters
        if how not in ("fixed", "random"):
            raise ValueError(f"parameters must be 'fixed' or 'random' at prediction, got {how!r}")
        return how

    def log_evidence(self, batch: Batch, parameters: str | None = None) -> np.ndarray:
        """`log p(observed)` of each example; of targets given inputs, unless a generative layer explains the inputs.

        With `Z(a)` the integral of all factors with `a` observed it is `log Z(x, y) - log Z(x)`, and if the inputs are
        explained `log Z(x, y) - log Z()`: the priors of activations are factors too, so that without observations it is
        not 1 for forward layers.
        """
        if self._coupled:
            raise ValueError("log_evidence: factors of your own may join the examples")
        if self.chain is not None:
            outputs = self.outputs(batch.without_targets(), parameters)
            return self.chain.log_evidence(batch, outputs, {name: self.noise_of(name) for name in self.net.heads})
        if not explains_input(self.net):
            if not batch.targets:
                raise ValueError("log_evidence needs y: a feed-forward first layer does not explain inputs")
            return self._log_integral(batch, parameters) - self._log_integral(batch.without_targets(), parameters)
        known = self._log_integral_over_hidden(batch, parameters)
        if is_normalised(self.net):
            return known
        few = batch.x[: self.sizes[-1]]  # as many as are predicted at a time: the same program
        nothing = Batch(np.zeros_like(few), np.zeros(few.shape, bool))
        return known - self._log_integral_over_hidden(nothing, parameters)[0]

    def _log_integral(self, batch: Batch, parameters: str | None) -> np.ndarray:
        """`log Z` of each example."""
        results = self._results(batch, (), parameters)
        return np.concatenate([result.log_evidence_by_example[:count] for result, count in results])

    def _log_integral_over_hidden(self, batch: Batch, parameters: str | None) -> np.ndarray:
        """The same with only the layers to constrain missing inputs: their prior is as good as none."""
        wide = over_hidden(batch)
        assert wide.x_observed is not None
        assert wide.x_prior is not None
        total = self._log_integral(wide, parameters)
        # The graph also counts the density of observed inputs under that prior, unless they are observed with noise.
        noisy = self.net.observes_input or self.inputs["input_sigma"] is not None
        counted = np.where(wide.x_observed & noisy, 0, np.asarray(wide.x_prior.log_density(batch.x)))
        return total - counted.reshape(batch.size, -1).sum(1)

    def _results(
        self,
        batch: Batch,
        names: Sequence[str],
        parameters: str | None,
        beliefs: Mapping[str, Belief] | None = None,
    ) -> Iterator[tuple[Result, int]]:
        """Inference with the parameters given, portion by portion, and how many rows of each are no padding.

        (Of all variables, whatever the `names` of those that are wanted.)
        """
        how = self._how(parameters)
        posterior = self.posterior if beliefs is None else beliefs
        net = self.net
        # The user's factors know the batch by its size, so that it cannot be divided.
        for portion, count in [(batch, batch.size)] if self._coupled else portions(batch, self.sizes):
            known = {name: n.start for name, n in self.noise.items() if name not in net.heads or portion.targets}
            # Feed-forward, with the parameters given, nothing is observed above: a few sweeps without damping settle
            # it, for each batch the same number, so that no example depends on how long another one takes.
            loops = net.generative or self._coupled or bool(portion.targets)
            options = self.options(portion, posterior)
            result = net.infer(
                portion,
                parameters=how,
                beliefs=posterior,
                noise=known,
                inputs=self.inputs,
                dtype=self.dtype,
                iterations=max(200, options["iterations"]) if loops else SWEEPS,
                tolerance=1e-4 if loops else 0.0,
                damping=options["damping"] if loops else 0.0,
                guard=loops,  # which would judge all examples together
                messages=options["messages"],
            )
            yield result, count

    def uncertainty(self, batch: Batch) -> OfHeads:
        """`Var = (Var with parameters as they are believed - Var with known ones) + Var with known ones`."""
        known, believed = (self.outputs(batch, how) for how in ("fixed", "random"))
        return self._for_each(lambda head, variable: self._split(head, known[variable], believed[variable]))

    def _for_each(self, function: Callable[[str | None, str], Any]) -> OfHeads:
        """A function of each head, by name, and of the variable that it observes; of one head or none as it is."""
        heads = {name: place.variable for name, place in self.net.heads.items()} or {None: self.net.output}
        found = {name: function(name, variable) for name, variable in heads.items()}
        return found if len(found) > 1 else found.popitem()[1]

    def _split(self, head: str | None, known: Gaussian, believed: Gaussian) -> Uncertainty:
        inherent, total = (np.asarray(g.variance) for g in (known, believed))
        parts = (
            np.asarray(believed.mean),
            np.sqrt(np.maximum(total - inherent, 0)),
            np.sqrt(inherent + self.noise_of(head) ** 2),
        )
        if not isinstance(self._layer(head), ClassObservation):
            return Uncertainty(*parts)
        p = np.asarray(probabilities(believed))
        entropy = -np.sum(p * np.log(np.maximum(p, 1e-30)), -1)
        return Uncertainty(*parts, entropy, np.asarray(expected_entropy(believed)))

    def draw(self, batch: Batch, count: int, seed: int, parameters: str | None = None) -> OfHeads:
        """Targets `(count, batch, ...)` by the belief of the outputs: classes, or values with the noise of the head."""
        if isinstance(count, bool) or not (isinstance(count, (int, np.integer)) and count >= 1):
            raise ValueError(f"sample: count must be a whole number >= 1, got {count!r}")
        rng, outputs = np.random.default_rng(seed), self.outputs(batch, parameters)
        return self._for_each(lambda head, variable: self._drawn(head, outputs[variable], count, rng))

    def _drawn(self, head: str | None, outputs: Gaussian, count: int, rng: np.random.Generator) -> np.ndarray:
        if isinstance(self._layer(head), ClassObservation):
            below = np.cumsum(np.asarray(probabilities(outputs)), -1)
            chance = rng.random((count, *below.shape[:-1], 1)) * below[..., -1:]
            return (chance >= below).sum(-1)
        std = np.sqrt(np.asarray(outputs.variance) + self.noise_of(head) ** 2)
        return np.asarray(outputs.mean) + std * rng.standard_normal((count, *outputs.shape)).astype(std.dtype)

    def _layer(self, head: str | None) -> Layer | None:
        return None if head is None else self.net.heads[head].layer

    def noise_of(self, head: str | None) -> float:
        """Standard deviation of an observed value around the output, given or learnt; 0 if no values are observed."""
        layer = self._layer(head)
        if head is None or not isinstance(layer, GaussianObservation):
            return 0.0
        noise = self.noise.get(head)
        return float(layer.sigma) if noise is None else noise.start  # pyright: ignore[reportArgumentType]


def _concatenated(parts: Sequence[Gaussian]) -> Gaussian:
    eta, lam = (np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in ("eta", "lam"))
    return Gaussian(jnp.asarray(eta), jnp.asarray(lam))


def over_hidden(batch: Batch) -> Batch:
    """The batch with a prior of missing inputs that is as good as none."""
    observed = np.ones(batch.x.shape, bool) if batch.x_observed is None else batch.x_observed
    prior = Gaussian.from_moments(mean=np.zeros(batch.x.shape), std=_WIDE)
    return dataclasses.replace(batch, x_observed=observed, x_prior=prior)


def variable_name(net: LayerGraph, want: str) -> str:
    """The variable of a query: "input", "output", or the outputs of a layer by its name; what a head observes, too."""
    names = {"output": net.output} if len(net.heads) < 2 else {}
    names |= {p.variable: p.variable for p in net.places if p.variable not in names}
    if len(net.heads) > 1:
        names |= {name: place.variable for name, place in net.heads.items()}
    names["input"] = INPUT
    if want not in names:
        raise ValueError(f"want must be one of {', '.join(names)}, got {want!r}")
    return names[want]


def explains_input(net: LayerGraph) -> bool:
    """Whether a layer that takes the input is generative (or none takes it, but relations among the inputs)."""
    first = [p.layer for p in net.places if isinstance(p.layer, Transform) and INPUT in p.inputs]
    return not first or any(map(_is_generative, first))


def is_normalised(net: LayerGraph) -> bool:
    """Whether the integral over everything is 1: each layer is a density of what it explains, and alone in that."""
    if not all(isinstance(layer, Observation) or _is_generative(layer) for layer in net.layers):
        return False
    explained = [p.inputs[0] for p in net.places if isinstance(p.layer, Transform)]
    return len(set(explained)) == len(explained)


def _is_generative(layer: object) -> bool:
    return isinstance(layer, Transform) and layer.generative
