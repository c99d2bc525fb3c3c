"""A network as chains, one an example: what `engine/chain.py` needs of it, and what it makes of a batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.gaussian import Gaussian
from ..core.independent import IndependentVectors
from ..core.noise import LearnNoise
from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief, VectorGaussian
from ..engine import chain
from ..engine.chain_newton import Mode, most_probable
from ..engine.chain_noise import LearntNoiseTargets, value_targets
from ..engine.guard.events import GuardEvent
from ..engine.result import Status, Trace
from ..factors.likelihood import Likelihood
from ..factors.measurement import FactorKind
from ..factors.operators import Shape
from ..graph.variable import Variable
from ..layers.categorical import CategoricalObservation
from ..layers.gaussian_observation import GaussianObservation
from ..layers.join import Join
from ..layers.layer import Observation, Transform, of_vectors
from ..layers.transposed_dense import TransposedDense
from .batch import Batch
from .initial import dropout_masks
from .layer_graph import LayerGraph
from .layout import default_input_prior
from .places import INPUT, Place

# What a layer of scalars calls its parameters, and one of vectors.
_SCALARS, _VECTORS = ("weight", "bias"), "parameters"


class ChainResult(Mapping[str, Belief]):
    """What a batch has taught a network of vector activations: beliefs of its parameters by name, as `gbp.Result`."""

    def __init__(
        self,
        beliefs: Mapping[str, Belief],
        status: Status,
        trace: Trace,
        log_evidence: Callable[[], float],
        measurements: Mapping[str, float],
        shortened: int,
        noise: Mapping[str, float] | None = None,
    ):
        self.beliefs, self.status, self.trace, self._log_evidence = beliefs, status, trace, log_evidence
        self.measurements, self.shortened = dict(measurements), shortened
        self.noise: dict[str, float] = dict(noise or {})
        self.guard: tuple[GuardEvent, ...] = ()

    def __getitem__(self, name: str) -> Belief:
        return self.beliefs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.beliefs)

    def __len__(self) -> int:
        return len(self.beliefs)

    @cached_property
    def log_evidence(self) -> float:
        """`log p(targets | inputs, all before)` of all examples together; exact for linear networks, Gaussian heads."""
        return self._log_evidence()

    @property
    def iterations(self) -> int:
        """Between the targets and the outputs."""
        return len(self.trace.residual)

    @property
    def residual(self) -> float:
        """Of the last iteration."""
        return float(self.trace.residual[-1]) if self.iterations else 0.0

    @property
    def message(self) -> str:
        """The status with its circumstances."""
        short = f"; its targets counted 1/{2**self.shortened}: layers are not linear so far" if self.shortened else ""
        return f"{self.status} ({self.iterations} iterations){short}"

    @property
    def usable(self) -> bool:
        """Whether its beliefs may become a prior."""
        return self.status is not Status.DIVERGED


def links_of(places: Sequence[Place], shapes: Mapping[str, Shape]) -> list[chain.Link]:
    """The layers of a network as links; a `ValueError` names one that cannot be.

    **Arguments:** `shapes`: of one example of every variable.
    """
    if not isinstance(places[-1].layer, Observation):
        raise ValueError("vector activations: the network needs a head, such as gbp.CategoricalObservation()")
    out: list[chain.Link] = []
    for place in places:
        if isinstance(place.layer, Observation):
            if place is places[-1]:
                _check_head(place)
            else:
                _check_input(place)
            continue
        out.append(_link(place, shapes))
    if not any(link.parameters for link in out):
        raise ValueError("vector activations: no layer of the network has parameters")
    if len(shapes[places[-1].variable]) != 1:
        raise ValueError("vector activations: the last layer must have outputs (units,), such as gbp.Dense")
    return out


def _check_input(place: Place) -> None:
    layer = place.layer
    if not isinstance(layer, GaussianObservation) or layer.robust is not None or layer.learnt is not None:
        raise ValueError(
            f"vector activations: '{place.name}', of the input, must be a gbp.GaussianObservation with a given sigma "
            "that is not robust"
        )


def _check_head(place: Place) -> None:
    head = place.layer
    known = isinstance(head, CategoricalObservation) or (isinstance(head, GaussianObservation) and head.robust is None)
    if not known:
        raise ValueError(
            f"vector activations: '{place.name}' must be a gbp.CategoricalObservation, or a gbp.GaussianObservation "
            "that is not robust, at the end of the network"
        )


def _link(place: Place, shapes: Mapping[str, Shape]) -> chain.Link:
    layer, name = place.layer, place.name
    if not isinstance(layer, Transform) or layer.generative:
        raise ValueError(f"vector activations: '{name}' is no feed-forward layer")
    if isinstance(layer, Join):
        return chain.Link(None, layer.sigma**2, None, shapes[name], name, place.inputs, layer.joined)
    if isinstance(layer, TransposedDense):
        return chain.Link(
            layer.kind, layer.sigma**2, place.owner, shapes[name], name, place.inputs, None, transposed=True
        )
    if not of_vectors(getattr(layer, "posterior", "block")):
        layer = dataclasses.replace(layer, posterior="block")  # the same factors with one vector a unit  # pyright: ignore
        place = dataclasses.replace(place, layer=layer)
    parameters = place.parameters(shapes)
    if {n.rpartition("/")[2] for n in parameters} - {_VECTORS}:
        raise ValueError(f"vector activations: the parameters of '{name}' are no vectors of units")
    variables = {n: Variable(n, (1, *shapes[n])) for n in (*place.inputs, name)}
    variables |= {n: Variable(n, p.shape, vector=True) for n, p in parameters.items()}
    (factor,) = place.factors(variables)
    noise = np.unique(factor.noise)
    if not isinstance(factor.measurement, FactorKind) or factor.robust is not None or noise.size != 1:
        raise ValueError(f"vector activations: the factors of '{name}' must be a gbp.FactorKind, not robust")
    owner = place.owner if parameters else None
    return chain.Link(factor.measurement, float(noise[0]), owner, shapes[name], name, place.inputs)


def as_vectors(beliefs: Mapping[str, Belief], links: Sequence[chain.Link], dtype: Any) -> dict[str, Any]:
    """The beliefs of the parameters of each layer, as vectors of its units."""
    out: dict[str, Any] = {}
    for layer in dict.fromkeys(link.parameters for link in links):
        if layer is None:
            continue
        known = beliefs.get(f"{layer}/{_VECTORS}")
        if isinstance(known, UnitVectors):
            out[layer] = known.astype(dtype)
            continue
        weight, bias = (beliefs[f"{layer}/{n}"] for n in _SCALARS)
        mean, variance = (
            jnp.concatenate([w.reshape(-1, w.shape[-1]).T, b[:, None]], 1)
            for w, b in ((weight.mean, bias.mean), (weight.variance, bias.variance))
        )
        out[layer] = IndependentVectors(mean.astype(dtype), variance.astype(dtype))
    return out


def as_parameters(vectors: Mapping[str, Any], before: Mapping[str, Belief]) -> dict[str, Belief]:
    """The other way round: beliefs by the names of the parameters."""
    out: dict[str, Belief] = {}
    for layer, belief in vectors.items():
        if isinstance(belief, UnitVectors):
            out[f"{layer}/{_VECTORS}"] = belief
            continue
        for name, part in zip(_SCALARS, (slice(None, -1), slice(-1, None))):
            shape = before[f"{layer}/{name}"].shape
            mean, variance = (a[:, part].T.reshape(shape) for a in (belief.mean, belief.variance))
            out[f"{layer}/{name}"] = Gaussian(mean / variance, 1 / variance)
    return out


@jax.jit
def _expand(kind: Likelihood, y: Any, mean: Any, variance: Any) -> tuple[Any, Any]:
    residual, jacobian = kind.expand(y, mean, variance)
    root = jacobian.each()[..., 0]
    return jnp.einsum("bcm,bdm->bcd", root, root), jnp.einsum("bcm,bm->bc", root, residual)


def targets_of(
    head: Observation, batch: Batch, dtype: Any, noise: LearnNoise | None = None
) -> chain.Targets | LearntNoiseTargets:
    """What the head of a network observes of a batch.

    **Arguments:** `noise`: what is known of it before the batch, if the head learns it.
    """
    assert batch.y is not None
    y = np.asarray(batch.y, float)
    if isinstance(head, GaussianObservation):
        observed = np.ones(y.shape, bool) if batch.y_observed is None else batch.y_observed
        observed = np.broadcast_to(observed.reshape(y.shape[0], -1), y.shape)
        learnt = head.learnt if noise is None else noise
        if learnt is not None:
            return LearntNoiseTargets(y, observed, learnt)
        return value_targets(y, observed, float(head.sigma) ** 2)  # pyright: ignore[reportArgumentType]
    kind = head.factor("head", Variable(INPUT, y.shape), y).measurement
    assert isinstance(kind, Likelihood)

    def expand(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = _expand(kind, *(jnp.asarray(a, dtype) for a in (y, mean, variance)))
        return np.asarray(found[0], float), np.asarray(found[1], float)

    def log_loss(outputs: np.ndarray) -> np.ndarray:
        top = outputs.max(1, keepdims=True)
        return -(y * (outputs - top - np.log(np.exp(outputs - top).sum(1, keepdims=True)))).sum(1)

    # `diag(p) - p p'` has no larger entry than a quarter.
    return chain.Targets(expand, log_loss, np.zeros(len(y)), 0.25, exact=False, shift=False)


class VectorActivations:
    """Learns and predicts with one variable for all activations of an example and layer.

    **Arguments:**

    - the network, the shape of an example, and the floating-point type.
    - `input_sigma`: standard deviation of noise on the inputs, unless the network observes them; None if there is none.
    - `input_prior`: of an input that is not observed.
    """

    def __init__(
        self,
        net: LayerGraph,
        input_shape: Shape,
        dtype: Any,
        input_sigma: float | None = None,
        input_prior: Gaussian | None = None,
    ):
        self.net, self.dtype = net, dtype
        self.links, self._input_shape = links_of(net.places, net.shapes(input_shape)), input_shape
        first = net.layers[0]
        self._input_sigma = float(first.sigma) if isinstance(first, GaussianObservation) else input_sigma  # pyright: ignore
        self._input_prior = default_input_prior() if input_prior is None else input_prior

    def check_update(self, batch: Batch, want: str | None, carry: Any, carried: Any) -> None:
        """Raise if a batch asks for what scalars alone can do."""
        if carry or carried:
            raise ValueError("vector activations carry no messages (carry=, carried=)")
        if want not in (None, self.net.output):
            raise ValueError(f"vector activations: want must be 'output', got {want!r}")

    def check_prediction(self, batch: Batch, want: str) -> None:
        """Raise if a prediction asks for what scalars alone can do."""
        if batch.y is not None:
            raise ValueError("vector activations: a query takes no y")
        self.check_update(batch, want, (), None)

    def memory(self, examples: int) -> int:
        """Bytes that learning from a batch of so many takes, about: matrices over all outputs, and of each unit."""
        outputs = self.links[-1].shape[0] * examples
        widths = sum(math.prod(link.shape) for link in self.links)
        units = max(link.shape[-1] for link in self.links if link.parameters is not None)
        # How every output moves with every weight, and the same of the layer whose weights they are.
        turned = sum(math.prod(link.shape) + 1 for link in self.links if link.transposed)
        kept = self._kept(examples) + 3 * units * outputs * turned
        return 8 * (8 * outputs**2 + 2 * units * outputs * examples) + 4 * (6 * outputs * widths + kept)

    def _kept(self, examples: int) -> int:
        """Numbers of the beliefs, of what replaces them, and of what is needed on the way."""
        total = 0
        for parameter in self.net.parameters(self._input_shape).values():
            units, p = math.prod(parameter.shape[:-1]), parameter.shape[-1]
            if parameter.posterior == "rotated":
                total += 4 * p**2 + 3 * examples**2 // 2 * p
            elif of_vectors(parameter.posterior):
                total += 5 * p**2 * (units if parameter.posterior == "block" else 1)
        return total

    def _inputs(self, batch: Batch) -> tuple[Array, Array | None]:
        """The inputs' means and variances; None if all are known exactly."""
        x, sigma, observed = jnp.asarray(batch.x, self.dtype), self._input_sigma, batch.x_observed
        if observed is None or observed.all():
            return x, None if sigma is None else jnp.full(x.shape, sigma**2, self.dtype)
        missing = (self._input_prior if batch.x_prior is None else batch.x_prior).broadcast_to(x.shape)
        mean = jnp.where(observed, x, missing.mean)
        return mean.astype(self.dtype), jnp.where(observed, (sigma or 0.0) ** 2, missing.variance).astype(self.dtype)

    def learn(
        self,
        batch: Batch,
        beliefs: Mapping[str, Belief],
        iterations: int,
        tolerance: float,
        noise: Mapping[str, LearnNoise] | None = None,
        mode: Mode | None = None,
        seed: int = 0,
    ) -> ChainResult:
        """Learn from a batch: targets and outputs exchange messages until these move by less than `tolerance`.

        **Arguments:**

        - `noise`: what is known before it of noise that is learnt, by layer.
        - `mode`: where to linearise, and the noise there (`most_probable`); by default at the means before the batch.
        - `seed`: of the masks of layers that drop units; with a `mode` they drop none.
        """
        head, weight = self.net.places[-1], batch.label_weights
        assert isinstance(head.layer, Observation)
        x, spread = self._inputs(batch)
        targets = targets_of(head.layer, batch, self.dtype, (noise or {}).get(head.name))
        if mode is not None and isinstance(targets, LearntNoiseTargets):
            targets = targets.given(mode.noise)
        updated = chain.update(
            self.links if mode is not None else self._masked_links(batch.size, seed),
            as_vectors(beliefs, self.links, self.dtype),
            x,
            targets,
            np.full(batch.size, self._output_layer.output_prior**-2),
            weight,
            iterations,
            tolerance,
            spread,
            None if mode is None else mode.means,
        )
        found = updated.conditioned
        if updated.beliefs is None or found is None:
            nothing = Trace(np.zeros(0), {}, np.zeros(0), {})
            return ChainResult(dict(beliefs), Status.DIVERGED, nothing, lambda: math.nan, {}, updated.shortened)
        status = Status.CONVERGED if found.settled else Status.ITERATION_LIMIT
        status = Status.STRAINED if updated.shortened else status
        moves, ones = np.asarray(found.moves), np.ones(len(found.moves))
        trace = Trace(moves, {head.name: updated.energy * ones}, found.joint.energy * ones, {})
        outputs = Gaussian.from_moments(mean=found.mean, std=np.sqrt(np.maximum(found.variance, 1e-12)))
        known = {**as_parameters(updated.beliefs, beliefs), self.net.output: outputs}
        counts = {head.name: batch.measured(head=True)}
        learnt = {} if updated.noise is None else {head.name: math.sqrt(updated.noise)}
        return ChainResult(known, status, trace, found.log_evidence, counts, updated.shortened, learnt)

    def _masked_links(self, examples: int, seed: int) -> list[chain.Link]:
        """The links with the masks of a batch, which are data: nothing is compiled anew for it."""
        outputs = {link.name: (examples, *link.shape) for link in self.links}
        masks = dropout_masks(self.net.places, outputs, seed, self.dtype)
        return [link.with_mask(masks.get(f"{link.name}/mask")) for link in self.links]

    def most_probable(
        self, batch: Batch, beliefs: Mapping[str, Belief], noise: Mapping[str, LearnNoise] | None = None
    ) -> Mode:
        """Parameters and noise where updates of this batch rest, each linearised where the last one has led.

        For layers whose units are vectors, and a head that learns its noise.
        """
        head, vectors = self.net.places[-1], as_vectors(beliefs, self.links, self.dtype)
        assert isinstance(head.layer, Observation)
        targets = targets_of(head.layer, batch, self.dtype, (noise or {}).get(head.name))
        if not isinstance(targets, LearntNoiseTargets) or not all(
            isinstance(b, VectorGaussian) for b in vectors.values()
        ):
            raise ValueError(
                "most_probable needs layers with posterior='block' or 'shared', and a head that learns noise"
            )
        x, spread = self._inputs(batch)
        held = np.full(batch.size, self._output_layer.output_prior**-2)
        return most_probable(self.links, vectors, x, targets, held, batch.label_weights, spread)

    def predict(self, batch: Batch, beliefs: Mapping[str, Belief], parameters: str) -> Gaussian:
        """The belief of the outputs: what layers and inputs leave uncertain, and with "random" the parameters, too."""
        mean, noise, uncertain = chain.predict(
            self.links, as_vectors(beliefs, self.links, self.dtype), *self._inputs(batch)
        )
        held = self._output_layer.output_prior**-2
        lam = held + 1 / (noise + uncertain if parameters == "random" else noise)
        return Gaussian(jnp.asarray(mean * (lam - held), self.dtype), jnp.asarray(lam, self.dtype))

    def log_evidence(self, batch: Batch, outputs: Gaussian, sigma: float) -> np.ndarray:
        """`log p(y | x)` of each example, given the belief of its outputs, and the noise of values around them."""
        head = self.net.places[-1].layer
        if batch.y is None or not isinstance(head, Observation):
            raise ValueError("log_evidence needs y: a feed-forward first layer does not explain inputs")
        there, y = batch.labelled, np.asarray(batch.y, float)
        if isinstance(head, GaussianObservation):
            total = np.asarray(outputs.variance, float) + sigma**2
            each = -0.5 * ((y - np.asarray(outputs.mean)) ** 2 / total + np.log(2 * math.pi * total))
            if batch.y_observed is not None:
                each = np.where(batch.y_observed.reshape(each.shape), each, 0)
            return np.where(there, each.sum(1), 0)
        p = np.asarray(self.net.probabilities(outputs), float)
        p = np.maximum(p / p.sum(1, keepdims=True), np.finfo(np.float32).tiny)
        return np.where(there, (y * np.log(p)).sum(1), 0)

    @property
    def _output_layer(self) -> Transform:
        return [s.layer for s in self.net.places if isinstance(s.layer, Transform)][-1]
