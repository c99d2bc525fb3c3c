"""A network of layers, and its factor graph for a batch of examples."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.gaussian import Gaussian, Numbers
from ..core.noise import LearnNoise
from ..core.rotated import RotatedGaussian
from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief, VectorGaussian
from ..engine.infer import infer
from ..engine.program import kernels_of_now
from ..engine.result import Result, Status
from ..factors.operators import Shape
from ..graph.graph import FactorGraph
from ..layers.class_observation import ClassObservation
from ..layers.gaussian_observation import GaussianObservation
from ..layers.layer import Layer, Observation, Parameter, Relation, Transform, check_whole, of_vectors
from ..layers.patches import some_images
from . import class_probabilities as classes
from .batch import Batch, ByHead, as_input_prior, as_inputs, as_targets, as_weights, quoted
from .batch_program import BatchProgram, kind_of, run_forward
from .initial import dropout_masks, first_values, known_beliefs, random_outputs, random_starts
from .layout import Plan, lay_out
from .memory import network_memory
from .places import INPUT, Place, heads_above, heads_of
from .rounds import joined_rounds
from .summary import table

if TYPE_CHECKING:
    from ..show.drawing import Drawing


# What was compiled or computed on the way: not part of a copy or a pickle.
_COMPUTED = ("_forward", "_memory", "_programs")

# What is found for the heads: of one head a `Gaussian` (or whatever it is), of several a dictionary of them by head.
# (Type checkers take it for any object: only the network knows which.)
OfHeads = Any


class LayerGraph(ABC):
    """Layers in their places, as a factor graph for each batch: what `gbp.Sequential` and `gbp.Network` share.

    **Arguments:**

    - `places`: the layers with their names and what they take, each behind those that it takes.
    - `input_shape`: of one example. If it is given, all shapes are checked at once and `print(net)` knows all sizes.
    """

    def __init__(self, places: list[Place], input_shape: Shape | int | None):
        if not any(isinstance(place.layer, (Transform, Relation)) for place in places):
            raise ValueError(f"{type(self).__name__} needs at least one layer with outputs, such as gbp.Dense(10)")
        self.places = places
        self.layers: tuple[Layer, ...] = tuple(place.layer for place in places)
        if self.heads:
            _check_heads(places, self.heads)
        self._memory: dict[tuple[Shape, int, bool], Mapping[str, int]] = {}
        self._programs: dict[tuple[Any, ...], BatchProgram] = {}
        self.input_shape: Shape | None = None
        if input_shape is not None:
            if isinstance(input_shape, str):
                raise ValueError(f"input_shape must be whole numbers, got {input_shape!r}")
            self.input_shape = tuple(int(n) for n in np.atleast_1d(np.asarray(input_shape, int)))
            self.parameters(self.input_shape)

    @abstractmethod
    def with_layers(self, layers: Sequence[Layer]) -> LayerGraph:
        """The same network with other layers in the same places; of those that are tied the first one counts."""

    @property
    def heads(self) -> dict[str, Place]:
        """The observations of outputs by name: each takes targets of its own."""
        return heads_of(self.places)

    @property
    def head(self) -> str | None:
        """Name of the one head; None if there is none."""
        return self._alone(list(self.heads), "heads") if self.heads else None

    @property
    def output(self) -> str:
        """Name of the variable that is predicted: what the one head observes, or the last one."""
        if not self.heads:
            return self.places[-1].variable
        return self.heads[self._alone(list(self.heads), "outputs")].variable

    @staticmethod
    def _alone(names: list[str], what: str) -> str:
        if len(names) > 1:
            raise ValueError(f"the network has several {what}: name one of {quoted(names)}")
        return names[0]

    def class_head(self, head: str | None = None) -> str:
        """The head that observes classes: the only one, or the one that is named; else a `ValueError`."""
        if head is not None and head not in self.heads:
            raise ValueError(f"the network has no head {head!r} (it has {quoted(self.heads) or 'none'})")
        given = self.heads if head is None else {head: self.heads[head]}
        found = [name for name, place in given.items() if isinstance(place.layer, ClassObservation)]
        if not found:
            raise ValueError("predict_proba needs a network that observes classes, as by gbp.SoftmaxObservation")
        return self._alone(found, "heads that observe classes (head=)")

    def by_head(self, found: Mapping[str, Any]) -> Any:
        """What was found of the variables that heads observe: of one head or none as it is, else by head."""
        if len(self.heads) < 2:
            return found[self.output]
        return {name: found[place.variable] for name, place in self.heads.items()}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the variables that are predicted, each once, in the order of the layers."""
        observed = {place.variable for place in self.heads.values()} or {self.output}
        return tuple(dict.fromkeys(place.variable for place in self.places if place.variable in observed))

    @property
    def observes_input(self) -> bool:
        """Whether inputs are random variables, observed with noise."""
        return isinstance(self.layers[0], Observation)

    @property
    def generative(self) -> bool:
        """Whether any layer is: its outputs explain its inputs."""
        return any(isinstance(layer, Transform) and layer.generative for layer in self.layers)

    def shapes(self, input_shape: Shape) -> dict[str, Shape]:
        """Shape of one example of every variable; a `ValueError` names the layer that does not fit."""
        shape = tuple(input_shape)
        if any(n < 1 for n in shape):
            raise ValueError(f"the input shape {shape} has an axis of length 0")
        out = {INPUT: shape}
        for place in self.places:
            out[place.variable] = place.output_shape(out)
        return out

    def parameters(self, input_shape: Shape) -> dict[str, Parameter]:
        """All parameters by name, for examples of this shape."""
        shapes, out, first = self.shapes(input_shape), {}, {}
        for place in self.places:
            found = place.parameters(shapes)
            if place.tied is not None:
                wrong = [name for name, p in found.items() if p.shape != out[name].shape]
                if wrong:
                    raise ValueError(f"'{place.name}' is tied to '{place.tied}', but takes another number of inputs")
                continue
            other = first.setdefault(id(place.layer), place.name) if found else place.name
            if other != place.name:
                raise ValueError(
                    f"'{other}' and '{place.name}' are one object: write the layer twice for two with parameters of "
                    "their own; in a gbp.Network, gbp.Tied(name) is the same layer once more"
                )
            out |= found
        return out

    def priors(self, input_shape: Shape | None = None, *, seed: int = 0) -> dict[str, Belief]:
        """Prior of every parameter, its random means drawn with `seed`.

        Draws depend on the seed and on the place of a parameter in the network, not on what stands behind it.
        """
        found = self.parameters(self.checked_input_shape(input_shape))
        out = {}
        for i, (name, p) in enumerate(found.items()):
            mean = p.draw(np.random.default_rng([seed, i]))
            if p.posterior == "rotated":
                out[name] = RotatedGaussian.from_moments(mean, p.prior, p.correlation)
                continue
            if of_vectors(p.posterior):
                shared = p.posterior == "shared"
                out[name] = VectorGaussian.from_moments(mean, p.prior, shared=shared, correlation=p.correlation)
                continue
            out[name] = Gaussian.from_moments(mean=jnp.asarray(mean, jnp.result_type(float)), std=p.prior)
        return out

    @property
    def fits_priors(self) -> bool:
        """Whether a layer's prior means follow from the first inputs (`fitted_priors`)."""
        return any(isinstance(place.layer, Transform) and place.layer.fits_means for place in self.places)

    def fitted_priors(
        self, x: Numbers, priors: Mapping[str, Belief], *, seed: int = 0, given: Collection[str] = ()
    ) -> dict[str, Belief]:
        """Priors whose means follow from the first inputs `(n,) + input_shape`, layer after layer.

        What comes to a layer is that of a forward pass with the means so far.

        **Arguments:** `priors`: of all parameters; those of layers that fit none stay as they are, and those `given`.
        """
        out, images = dict(priors), some_images(np.asarray(x), np.random.default_rng([seed, 3]))
        for i, place in enumerate(self.places):
            layer = place.layer
            if not isinstance(layer, Transform) or not layer.fits_means or place.tied is not None:
                continue
            known = {INPUT: images} if place.inputs[0] == INPUT else self.forward(images, out)
            if place.inputs[0] not in known:
                raise ValueError(
                    f"layer '{place.name}': its prior means cannot follow from a generative layer's outputs"
                )
            taken = np.asarray(known[place.inputs[0]])
            try:
                means = layer.fitted_means(taken, np.random.default_rng([seed, i, 2]))
            except ValueError as error:
                raise ValueError(f"layer '{place.name}': {error}") from None
            fitted = {f"{place.name}/{name}": mean for name, mean in means.items()}
            out |= {n: out[n].with_mean(jnp.asarray(mean)) for n, mean in fitted.items() if n not in given}
        return out

    def checked_input_shape(self, given: Shape | None) -> Shape:
        """Shape of one example: as given, or the network's own; a `ValueError` if neither is known, or they differ."""
        shape = self.input_shape if given is None else tuple(given)
        if shape is None:
            raise ValueError("the network does not know its input shape: give input_shape=")
        if self.input_shape is not None and shape != self.input_shape:
            raise ValueError(f"the network takes examples of shape {self.input_shape}, got {shape}")
        return shape

    def forward(self, x: Numbers, values: Mapping[str, Any]) -> dict[str, Array]:
        """The forward pass: no inference, every layer's function in turn. Activations by name.

        **Arguments:**

        - `values`: parameters by name: numbers, or beliefs, of which the means are taken.
        """
        numbers = {n: v.mean if isinstance(v, (Gaussian, UnitVectors)) else jnp.asarray(v) for n, v in values.items()}
        return self._forward(jnp.asarray(x, jnp.result_type(float)), numbers)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was compiled or computed on the way."""
        return {name: value for name, value in self.__dict__.items() if name not in _COMPUTED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle."""
        for name, value in ({"_memory": {}, "_programs": {}} | state).items():
            setattr(self, name, value)

    @cached_property
    def _forward(self) -> Callable[..., dict[str, Array]]:
        return jax.jit(self.run_forward)  # else every operation of it would be compiled for itself

    def run_forward(self, now: Array, numbers: dict[str, Array]) -> dict[str, Array]:
        """The forward pass as a pure function, for `jax.jit`: inputs and parameters by name, activations by name."""
        return run_forward(self.places, now, numbers)

    def batch(
        self,
        x: Numbers,
        y: ByHead | None = None,
        *,
        x_observed: Numbers | None = None,
        y_observed: ByHead | None = None,
        x_prior: Gaussian | None = None,
        sample_weight: Numbers | None = None,
    ) -> Batch:
        """A batch of examples, checked; masks are True for what is observed.

        Of several heads `y` and `y_observed` are mappings by head; a target that is not there is missing.
        """
        inputs, x_observed = as_inputs(x, x_observed, self.input_shape)
        shapes = self.shapes(self.checked_input_shape(inputs.shape[1:]))
        more = {"weight": as_weights(sample_weight, len(inputs)), "x_prior": as_input_prior(x_prior, inputs.shape)}
        heads = {
            name: (_as_observation(place.layer), (inputs.shape[0], *shapes[place.variable]))
            for name, place in self.heads.items()
        }
        return Batch(inputs, x_observed, as_targets(heads, y, y_observed), **more)

    def graph(
        self,
        x: Numbers | Batch,
        y: ByHead | None = None,
        *,
        parameters: str = "learnt",
        beliefs: Mapping[str, Belief] | None = None,
        start: Mapping[str, Numbers] | None = None,
        noise: Mapping[str, float | LearnNoise] | None = None,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        dtype: Any = None,
    ) -> FactorGraph:
        """The factor graph for a batch of examples: `gbp.infer(net.graph(x, y))` learns.

        Activations are started by a forward pass: there the layers are linearised at their first visit.

        **Arguments:**

        - `x`: inputs `(batch,) + input_shape`; or a batch as `net.batch` makes it, with targets and masks.
        - `y`: what the head observes, of several by head; without it heads are left out.
        - `parameters`: "learnt", "fixed" at the means of their beliefs, or "random": held at their beliefs, which this
            batch does not change (`FactorGraph.hold`).
        - `beliefs`: of parameters, such as a `Result` of an earlier batch: the posterior is the prior. Others have
            the prior that their layer gives them. Of parameters that `factors` tie, each name has the belief of the one
            variable that they are, and it counts once.
        - `start`: values to linearise at first, by name: of parameters, by default the means of their beliefs; of
            activations, by default those of a forward pass.
        - `noise`: standard deviations to use for observations that learn their own, by layer; or how to learn them.
        - `inputs`: `{"input_sigma": ...}` for noisy inputs, `{"input_prior": ...}` for pixels that are not observed,
            `{"factors": fn}` for the user's own factors; see `gbp.Learner`.
        - `seed`: of random prior means and starts, and of the masks of `gbp.Dropout`, where parameters are learnt.
        """
        batch = x if isinstance(x, Batch) else self.batch(x, y)
        plan, first = self._plan(batch, parameters, beliefs, start, noise, inputs, seed)
        numbers = {**{n: plan.starts.get(n, p.mean) for n, p in plan.priors.items()}, **plan.masks}
        plan = dataclasses.replace(plan, activations={**self.forward(batch.x, numbers), **first})
        return self._lay_out(plan, batch, parameters, dtype)

    def _plan(
        self,
        batch: Batch,
        parameters: str,
        beliefs: Mapping[str, Belief] | None,
        start: Mapping[str, Numbers] | None,
        noise: Mapping[str, float | LearnNoise] | None,
        inputs: Mapping[str, Any] | None,
        seed: int,
    ) -> tuple[Plan, dict[str, Array]]:
        """All that a graph is laid out from, and where activations start that a forward pass does not start.

        Arguments as `graph`.
        """
        if parameters not in ("learnt", "fixed", "random"):
            raise ValueError(f"parameters must be 'learnt', 'fixed' or 'random', got {parameters!r}")
        shape = batch.x.shape[1:]
        priors = known_beliefs(self.parameters(shape), beliefs)
        given = frozenset(priors)
        if len(priors) < len(self.parameters(shape)):
            drawn = self.priors(shape, seed=seed)
            if parameters == "learnt" and self.fits_priors:
                drawn = self.fitted_priors(batch.x[batch.counted], {**drawn, **priors}, seed=seed, given=given)
            priors = {**drawn, **priors}
        outputs = {n: (batch.size, *s) for n, s in self.shapes(shape).items() if n != INPUT}
        first = random_starts(self.parameters(shape), priors, seed) if parameters == "learnt" else {}
        first |= first_values(start or {}, priors, outputs)
        activations = random_outputs(self.places, outputs, seed)
        activations |= {n: a for n, a in first.items() if n in outputs}
        plan = Plan(
            self.places,
            self.shapes(shape),
            priors,
            given,
            {n: a for n, a in first.items() if n in priors},
            {},
            self._with_noise(noise),
            learning=parameters == "learnt",
            masks=dropout_masks(self.places, outputs, seed if parameters == "learnt" else None),
            **({} if inputs is None else inputs),
        )
        return plan, activations

    def _lay_out(self, plan: Plan, batch: Batch, parameters: str, dtype: Any) -> FactorGraph:
        graph = lay_out(plan, batch, dtype)
        known, one = graph.priors() if graph.tied else plan.priors, graph.tied
        for name in plan.priors:
            if parameters == "fixed":
                graph.observe(name, known[one.get(name, name)].mean)
            elif parameters == "random":
                graph.hold(name)
        return graph

    def infer(
        self,
        batch: Batch,
        *,
        parameters: str = "learnt",
        beliefs: Mapping[str, Belief] | None = None,
        noise: Mapping[str, float | LearnNoise] | None = None,
        inputs: Mapping[str, Any] | None = None,
        graph_seed: int = 0,
        dtype: Any = None,
        messages: str = "auto",
        **options: Any,
    ) -> Result:
        """`gbp.infer(net.graph(batch, ...), ...)`, with the program of an earlier batch of the same kind.

        **Arguments:**

        - `parameters`, `beliefs`, `noise`, `inputs`, `dtype`: as `graph`; `graph_seed`: its `seed`.
        - `messages`, `options`: of `gbp.infer`.
        """
        how = {"beliefs": beliefs, "noise": noise, "inputs": inputs, "seed": graph_seed, "dtype": dtype}
        if (inputs or {}).get("factors") is not None:  # they know the batch by its numbers
            return infer(self.graph(batch, parameters=parameters, **how), messages=messages, **options)
        plan, first = self._plan(batch, parameters, beliefs, None, noise, inputs, graph_seed)
        kind = (*kind_of(plan, batch, parameters, messages, dtype), kernels_of_now())
        known = self._programs.get(kind)
        if known is None:
            graph = self.graph(batch, parameters=parameters, **how)
            known = self._programs[kind] = BatchProgram(graph, plan, messages)
        if known.holds_input:  # means of the belief stand in for inputs that are missing; the forward pass has none
            numbers = {**{n: plan.starts.get(n, p.mean) for n, p in plan.priors.items()}, **plan.masks}
            first = {**self.forward(batch.x, numbers), **first}
        data = known.data(plan, batch, first)
        make = partial(self.graph, batch, parameters=parameters, **how)
        return infer(known.program, data=data, origin=make, **options)

    def _with_noise(self, given: Mapping[str, float | LearnNoise] | None) -> dict[str, Observation]:
        """The observations by name, those that learn their noise with what is given for them."""
        out = {s.name: s.layer for s in self.places if isinstance(s.layer, Observation)}
        for name, value in (given or {}).items():
            layer = out.get(name)
            if not isinstance(layer, GaussianObservation) or layer.learnt is None:
                raise ValueError(f"noise: there is no layer '{name}' that learns its noise")
            out[name] = dataclasses.replace(layer, sigma=value if isinstance(value, LearnNoise) else float(value))
        return out

    def start_noise(self, beliefs: Mapping[str, Belief] | None) -> dict[str, LearnNoise]:
        """How the observations that learn their noise do so, from where an earlier result left it."""
        known = beliefs.noise if isinstance(beliefs, Result) else {}
        layers = {s.name: s.layer for s in self.places if isinstance(s.layer, GaussianObservation)}
        learnt = {name: layer.learnt for name, layer in layers.items() if layer.learnt is not None}
        return {name: dataclasses.replace(n, start=known.get(name, n.start)) for name, n in learnt.items()}

    def learn(
        self,
        x: Numbers | Batch,
        y: ByHead | None = None,
        *,
        beliefs: Mapping[str, Belief] | None = None,
        noise: Mapping[str, LearnNoise] | None = None,
        inputs: Mapping[str, Any] | None = None,
        carried: Mapping[str, Any] | None = None,
        iterations: int = 1000,
        rounds: int = 8,
        seed: int = 0,
        dtype: Any = None,
        **options: Any,
    ) -> Result:
        """Learn from one batch: `gbp.infer(net.graph(x, y))`, and the noise of observations that learn theirs.

        Noise is learnt in rounds: messages with the noise held, then the noise (`gbp.LearnNoise`) by messages on the
        same graph with the parameters fixed at their means. Not in one go: beliefs take the parameters of a factor for
        independent, so that together they leave its output more uncertain than they should, and that would count as
        noise.

        **Arguments:**

        - `x`, `y`, `inputs`, `dtype`: as `net.graph`.
        - `beliefs`: of the parameters before this batch; if it is the `Result` of an earlier one, noise starts there.
        - `noise`: belief of the noise before this batch, by layer.
        - `carried`: messages of layers, by name, that warm-start this batch: `report.carried` of an earlier batch, of
            the same size.
        - `iterations`: in all rounds together.
        - `rounds`: if noise is learnt; 1 is for batches that change it little: messages, then the noise.
        - `seed`: of the random prior means, dropout and random schedules.
        - `options`: for `gbp.infer`: tolerance, damping, ...

        **Returns:** the result of inference; `result.noise` holds the noise that was learnt.
        """
        batch = x if isinstance(x, Batch) else self.batch(x, y)
        if not batch.targets and self.heads:
            raise ValueError("learn needs y: the targets of the observation at the end of the network")
        if "init" in options:
            raise ValueError("learn starts afresh; give the posterior of earlier batches as beliefs=")
        learnt = {**self.start_noise(beliefs), **(noise or {})}
        how = {"inputs": inputs, "graph_seed": seed, "dtype": dtype}
        if not learnt:
            return self.infer(batch, beliefs=beliefs, **how, iterations=iterations, init=carried, seed=seed, **options)
        if not (isinstance(rounds, int) and 1 <= rounds <= iterations):
            raise ValueError(f"rounds must be a whole number from 1 to the iterations ({iterations}), got {rounds!r}")
        results: list[Result] = []
        now = {name: n.start for name, n in learnt.items()}

        def noise_after(result: Result) -> dict[str, float] | None:
            """The noise, learnt with the parameters fixed at their means; None if that diverged."""
            known = {name: result[name] for name in self.parameters(batch.x.shape[1:])}
            fixed = {"parameters": "fixed", "beliefs": known, "noise": learnt, **how}
            inferred = self.infer(batch, **fixed, iterations=200, damping=0.5, throw=False)
            return None if inferred.status is Status.DIVERGED else inferred.noise

        for i in range(rounds):
            share = (i + 1) * iterations // rounds - i * iterations // rounds
            if results:
                after = noise_after(results[-1])
                if after is None:
                    break
                now = after
            with_noise = {"beliefs": beliefs, "noise": now, **how}
            before = results[-1] if results else carried
            found = self.infer(batch, **with_noise, iterations=share, init=before, seed=seed + i, **options)
            results.append(dataclasses.replace(found, noise=now))
            if found.status is Status.DIVERGED:
                break
        if rounds == 1 and results[0].status is not Status.DIVERGED:
            return dataclasses.replace(results[0], noise=noise_after(results[0]) or now)
        return joined_rounds(results)

    def predict(
        self,
        x: Numbers | Batch,
        beliefs: Mapping[str, Belief],
        *,
        parameters: str = "fixed",
        want: str | None = None,
        noise: Mapping[str, LearnNoise] | None = None,
        inputs: Mapping[str, Any] | None = None,
        dtype: Any = None,
        **options: Any,
    ) -> OfHeads:
        """The belief of the outputs for new inputs, by messages; without targets the head is left out.

        No example depends on another: parameters are fixed, or held at their beliefs, and nothing else is shared. Of
        several heads it is a dictionary by head.

        **Arguments:**

        - `x`, `inputs`, `dtype`: as `net.graph`.
        - `beliefs`: of all parameters: the `Result` of training, or Gaussians by name.
        - `parameters`: "fixed" at their means, or "random", with their uncertainty.
        - `want`: name of another variable to infer, such as "input" where pixels are missing.
        - `noise`: belief of the noise of inputs that learn theirs.
        - `options`: for `gbp.infer`: iterations, tolerance, damping, ...
        """
        if parameters not in ("fixed", "random"):
            raise ValueError(f"parameters must be 'fixed' or 'random' at prediction, got {parameters!r}")
        batch = x if isinstance(x, Batch) else self.batch(x)
        missing = [n for n in self.parameters(batch.x.shape[1:]) if beliefs is None or n not in beliefs]
        if missing:
            raise ValueError(f"predict needs the beliefs of all parameters: '{missing[0]}' is missing")
        known = {**self.start_noise(beliefs), **(noise or {})}
        now = {name: n.start for name, n in known.items() if name not in self.heads or batch.targets}
        known = {"parameters": parameters, "beliefs": beliefs, "noise": now, "inputs": inputs, "dtype": dtype}
        result = self.infer(batch, **known, **options)
        return self.by_head(result) if want is None else result[want]

    def memory(self, batch: int, input_shape: Shape | None = None) -> dict[str, int]:
        """Bytes that learning from a batch takes, "per-edge", "pooled" and "auto"; nothing is allocated to find out."""
        check_whole("memory", batch=batch)
        return dict(self.memory_of(self.checked_input_shape(input_shape), int(batch), not self.observes_input))

    def memory_of(self, input_shape: Shape, batch: int, inputs_fixed: bool) -> Mapping[str, int]:
        """The same, for inputs that are fixed or not; computed once."""
        key = input_shape, batch, inputs_fixed
        if key not in self._memory:
            self._memory[key] = network_memory(self.places, self.shapes(input_shape), batch, inputs_fixed)
        return self._memory[key]

    probabilities = staticmethod(classes.probabilities)

    def draw(self, path: str | Path | None = None, batch: int = 1, input_shape: Shape | None = None) -> Drawing:
        """A picture of all variables and factor groups, for a batch of some size; saved as SVG if a path is given."""
        from ..show.graph_drawing import draw_network

        return draw_network(self, path, batch, input_shape)

    def _repr_html_(self) -> str:
        from ..show.notebook import network_html

        return network_html(self)

    def __str__(self) -> str:
        return table(self.places, None if self.input_shape is None else self.shapes(self.input_shape))


def _check_heads(places: Sequence[Place], heads: Mapping[str, Place]) -> None:
    """Raise if a head observes the input beside others, or if no head depends on a feed-forward layer."""
    for name, place in heads.items():
        if len(heads) > 1 and place.variable == INPUT:
            raise ValueError(f"'{name}' observes the input: of several observations that one stands first")
    # The prior of its outputs would pass for evidence of the layers before it.
    above = heads_above(places)
    forward = [p for p in places if isinstance(p.layer, Transform) and not p.layer.generative]
    loose = [p.name for p in forward if not above[p.variable]]
    if loose and len(heads) == 1:
        raise ValueError(f"nothing that {quoted(heads)} observes depends on '{loose[0]}': leave it out")
    if loose:
        raise ValueError(f"no head ({quoted(heads)}) depends on '{loose[0]}': leave it out")


def _as_observation(layer: Layer) -> Observation:
    assert isinstance(layer, Observation)
    return layer
