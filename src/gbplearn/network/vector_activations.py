"""A network as chains, one an example: what `engine/chain.py` needs of it, and what it makes of a batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

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
from ..layers.layer import Layer, Observation, Transform, of_vectors
from ..layers.transposed_dense import TransposedDense
from .batch import Batch, Target, quoted
from .initial import dropout_masks
from .layer_graph import LayerGraph
from .layout import default_input_prior
from .places import INPUT, Place, heads_of

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
    heads, out = heads_of(places), []
    if not heads:
        raise ValueError("vector activations: the network needs a head, such as gbp.CategoricalObservation()")
    observed = {place.variable for place in heads.values()}
    for place in places:
        if place.name in heads:
            _check_head(place, len(heads))
        elif isinstance(place.layer, Observation):
            _check_input(place)
        else:
            out.append(_link(place, shapes, place.name in observed))
    if not any(link.parameters for link in out):
        raise ValueError("vector activations: no layer of the network has parameters")
    odd = [name for name, place in heads.items() if len(shapes[place.variable]) != 1]
    if odd:
        which = "the last layer" if len(heads) == 1 else f"what '{odd[0]}' observes"
        raise ValueError(f"vector activations: {which} must have outputs (units,), such as gbp.Dense")
    return out


def _check_input(place: Place) -> None:
    layer = place.layer
    if not isinstance(layer, GaussianObservation) or layer.robust is not None or layer.learnt is not None:
        raise ValueError(
            f"vector activations: '{place.name}', of the input, must be a gbp.GaussianObservation with a given sigma "
            "that is not robust"
        )


def _check_head(place: Place, heads: int) -> None:
    head = place.layer
    known = isinstance(head, CategoricalObservation) or (isinstance(head, GaussianObservation) and head.robust is None)
    if not known:
        raise ValueError(
            f"vector activations: '{place.name}' must be a gbp.CategoricalObservation, or a gbp.GaussianObservation "
            "that is not robust, at the end of the network"
        )
    if heads > 1 and isinstance(head, GaussianObservation) and head.learnt is not None:
        raise ValueError(f"vector activations: of several heads the noise must be given, that of '{place.name}' is not")


def _link(place: Place, shapes: Mapping[str, Shape], predicted: bool) -> chain.Link:
    layer, name = place.layer, place.name
    if not isinstance(layer, Transform) or layer.generative:
        raise ValueError(f"vector activations: '{name}' is no feed-forward layer")
    if isinstance(layer, Join):
        return chain.Link(None, layer.sigma**2, None, shapes[name], name, place.inputs, layer.joined, predicted)
    if isinstance(layer, TransposedDense):
        what = layer.kind, layer.sigma**2, place.owner, shapes[name], name, place.inputs
        return chain.Link(*what, predicted=predicted, transposed=True)
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
    what = factor.measurement, float(noise[0]), owner, shapes[name], name, place.inputs
    return chain.Link(*what, predicted=predicted, passes_few=layer.passes_few)


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


Targets = chain.Targets | LearntNoiseTargets


class HeadTargets(NamedTuple):
    """What one head observes of a batch, and where its outputs stand among those of all heads."""

    block: slice
    labelled: Bool[np.ndarray, " b"]
    targets: Targets


def targets_by_head(
    net: LayerGraph, batch: Batch, dtype: Any, noise: Mapping[str, LearnNoise] | None = None
) -> list[HeadTargets]:
    """What the heads of a network observe of a batch, in their order.

    **Arguments:** `noise`: what is known before the batch of noise that heads learn, by head.
    """
    shapes = net.shapes(batch.x.shape[1:])
    blocks = chain.side_by_side({name: shapes[name] for name in net.outputs})
    return [
        HeadTargets(
            blocks[place.variable],
            batch.labelled_by([name]),
            _targets_of_head(place.layer, batch.targets[name], dtype, (noise or {}).get(name)),
        )
        for name, place in net.heads.items()
    ]


def joint_targets(parts: Sequence[HeadTargets]) -> Targets:
    """What several heads observe together: where a head has no target nothing is observed of its outputs.

    Heads that observe the same outputs add up.
    """
    if len(parts) == 1:
        return parts[0].targets
    known = [(block, labelled, of) for block, labelled, of in parts if isinstance(of, chain.Targets)]
    assert len(known) == len(parts)
    same: dict[int, list[chain.Targets]] = {}
    for block, _, of in known:
        same.setdefault(block.start, []).append(of)
    blocks = {block.start: block for block, _, _ in known}
    size, count = len(parts[0].labelled), max(block.stop for block in blocks.values())

    def expand(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        precision, gradient = np.zeros((size, count, count)), np.zeros((size, count))
        for block, labelled, of in known:
            own = of.expand(mean[:, block], variance[:, block])
            precision[:, block, block] += labelled[:, None, None] * own[0]
            gradient[:, block] += labelled[:, None] * own[1]
        return precision, gradient

    def energies(outputs: np.ndarray) -> np.ndarray:
        return sum((labelled * of.energies(outputs[:, block]) for block, labelled, of in known), np.zeros(size))

    return chain.Targets(
        expand,
        energies,
        sum((labelled * of.normaliser for _, labelled, of in known), np.zeros(size)),
        max(sum(of.largest for of in heads) for heads in same.values()),
        all(of.exact for _, _, of in known),
        tuple(blocks.values()),
        tuple(blocks[start] for start, heads in same.items() if all(of.classes for of in heads)),
    )


def targets_of(net: LayerGraph, batch: Batch, dtype: Any, noise: Mapping[str, LearnNoise] | None = None) -> Targets:
    """What all heads of a network observe of a batch; arguments as `targets_by_head`."""
    return joint_targets(targets_by_head(net, batch, dtype, noise))


def _targets_of_head(head: Layer, target: Target, dtype: Any, noise: LearnNoise | None) -> Targets:
    assert isinstance(head, Observation)
    y = np.asarray(target.y, float)
    if isinstance(head, GaussianObservation):
        observed = np.ones(y.shape, bool) if target.observed is None else target.observed
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
    return chain.Targets(expand, log_loss, np.zeros(len(y)), 0.25, exact=False, classes=(slice(None),))


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
        if want not in (None, *self.net.outputs):
            known = "'output'" if len(self.net.heads) == 1 else f"one of {quoted(self.net.outputs)}"
            raise ValueError(f"vector activations: want must be {known}, got {want!r}")

    def check_prediction(self, batch: Batch, want: str) -> None:
        """Raise if a prediction asks for what scalars alone can do."""
        if batch.targets:
            raise ValueError("vector activations: a query takes no y")
        self.check_update(batch, want, (), None)

    def memory(self, examples: int) -> int:
        """Bytes that learning from a batch of so many takes, about: matrices over all outputs, and of each unit."""
        outputs = sum(link.shape[0] for link in self.links if link.predicted) * examples
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
        x, spread = self._inputs(batch)
        parts = targets_by_head(self.net, batch, self.dtype, noise)
        targets, weight = joint_targets(parts), batch.label_weights
        if mode is not None and isinstance(targets, LearntNoiseTargets):
            targets = targets.given(mode.noise)
        updated = chain.update(
            self.links if mode is not None else self._masked_links(batch.size, seed),
            as_vectors(beliefs, self.links, self.dtype),
            x,
            targets,
            self._held(parts),
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
        energies = {name: e * ones for name, e in zip(self.net.heads, _energies(updated, parts, weight))}
        trace = Trace(moves, energies, found.joint.energy * ones, {})
        known = as_parameters(updated.beliefs, beliefs)
        for name, block in chain.blocks_of(self.links).items():
            mean, variance = found.mean[:, block], found.variance[:, block]
            known[name] = Gaussian.from_moments(mean=mean, std=np.sqrt(np.maximum(variance, 1e-12)))
        counts = {name: batch.measured(name) for name in self.net.heads}
        learnt = {} if updated.noise is None else {name: math.sqrt(updated.noise) for name in self.net.heads}
        return ChainResult(known, status, trace, found.log_evidence, counts, updated.shortened, learnt)

    def _held(self, parts: Sequence[HeadTargets]) -> Float[np.ndarray, "b c"]:
        """The precisions of the priors of the outputs, where anything of them is observed."""
        out = np.zeros((len(parts[0].labelled), max(part.block.stop for part in parts)))
        for part, place in zip(parts, self.net.heads.values()):
            out[part.labelled, part.block] = self._prior_of(place.variable)
        return out

    def _prior_of(self, output: str) -> float:
        """The precision of the prior of an output."""
        (layer,) = (place.layer for place in self.net.places if place.name == output)
        assert isinstance(layer, Transform)
        return layer.output_prior**-2

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
        vectors, parts = (
            as_vectors(beliefs, self.links, self.dtype),
            targets_by_head(self.net, batch, self.dtype, noise),
        )
        targets = joint_targets(parts)
        if not isinstance(targets, LearntNoiseTargets) or not all(
            isinstance(b, VectorGaussian) for b in vectors.values()
        ):
            raise ValueError(
                "most_probable needs layers with posterior='block' or 'shared', and a head that learns noise"
            )
        x, spread = self._inputs(batch)
        return most_probable(self.links, vectors, x, targets, self._held(parts), batch.label_weights, spread)

    def predict(self, batch: Batch, beliefs: Mapping[str, Belief], parameters: str) -> dict[str, Gaussian]:
        """The beliefs of the outputs: what layers and inputs leave uncertain, and with "random" the parameters, too."""
        vectors = as_vectors(beliefs, self.links, self.dtype)
        means, noises, uncertain = chain.predict(self.links, vectors, *self._inputs(batch), parameters != "random")
        out = {}
        for name, block in chain.blocks_of(self.links).items():
            mean, noise, more = (a[:, block] for a in (means, noises, uncertain))
            held = self._prior_of(name)
            lam = held + 1 / (noise + more)
            out[name] = Gaussian(jnp.asarray(mean * (lam - held), self.dtype), jnp.asarray(lam, self.dtype))
        return out

    def log_evidence(self, batch: Batch, outputs: Mapping[str, Gaussian], sigmas: Mapping[str, float]) -> np.ndarray:
        """`log p(y | x)` of each example, with its outputs independent of each other.

        **Arguments:**

        - `outputs`: the beliefs of what the heads observe, by variable.
        - `sigmas`: noise of values around them, by head.
        """
        if not batch.targets:
            raise ValueError("log_evidence needs y: a feed-forward first layer does not explain inputs")
        each = [
            np.where(batch.labelled_by([name]), self._log_density(place, batch, outputs, sigmas[name]), 0)
            for name, place in self.net.heads.items()
        ]
        return sum(each[1:], each[0])

    def _log_density(
        self, head: Place, batch: Batch, outputs: Mapping[str, Gaussian], sigma: float
    ) -> Float[np.ndarray, " b"]:
        target, of = batch.targets[head.name], outputs[head.variable]
        y = np.asarray(target.y, float)
        if isinstance(head.layer, GaussianObservation):
            total = np.asarray(of.variance, float) + sigma**2
            each = -0.5 * ((y - np.asarray(of.mean)) ** 2 / total + np.log(2 * math.pi * total))
            if target.observed is not None:
                each = np.where(target.observed.reshape(each.shape), each, 0)
            return each.sum(1)
        p = np.asarray(self.net.probabilities(of), float)
        p = np.maximum(p / p.sum(1, keepdims=True), np.finfo(np.float32).tiny)
        return (y * np.log(p)).sum(1)


def _energies(updated: chain.Updated, parts: Sequence[HeadTargets], weight: np.ndarray) -> list[float]:
    """Of the targets of each head at the new parameters."""
    out = []
    for block, labelled, given in parts:
        of = given if isinstance(given, chain.Targets) else updated.targets
        assert of is not None
        assert updated.outputs is not None
        there = labelled & (weight > 0)
        out.append(float((weight * of.energies(updated.outputs[:, block]))[there].sum()))
    return out
