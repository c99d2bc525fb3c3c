"""`gbp.Learner`: learns a network from a stream of batches, predicts, infers what is missing, and forgets."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from ..core.compiling import release_memory
from ..core.forked import check_not_forked
from ..core.gaussian import Gaussian, Numbers
from ..core.noise import LearnNoise
from ..core.progress import progress
from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief
from ..engine.damping import Damping, damping_for
from ..engine.guard.events import GuardAction
from ..engine.guard.guard import Guard, as_guard
from ..engine.result import InferenceError, Result, Status
from ..engine.schedules import Schedule
from ..graph.graph import FactorGraph, all_proper
from ..graph.group import check_mode
from ..layers.features import Features, Fitted
from ..layers.layer import Transform, check_whole
from ..network.batch import PREDICT_SIZES, Batch, ByHead, as_inputs, as_weights, padded_size
from ..network.choices import choose_activations, choose_layers
from ..network.layer_graph import LayerGraph, OfHeads
from ..network.layout import default_input_prior, tied_parameters
from ..network.memory import check_memory
from ..network.vector_activations import ChainResult, VectorActivations
from ..network.warm_start import check_warm_layers
from .batch_evidence import log_evidence_of_batch
from .filtering import Beliefs, Filtering
from .history import MOST, BatchRecord, Before, History
from .locks import locked
from .posterior import Posterior
from .prediction import Predictor, explains_input, variable_name
from .report import Report, refused_report, report_of, strained_layers
from .stream import batch_arguments
from .unusual import CHOICES, statistics_of

# How the activations of an example are kept: a variable each, or one a layer.
ACTIVATIONS = ("scalar", "vector")
# Parameters that would move by less have settled: means in standard deviations, log precisions; root mean square.
SETTLED = 0.03
# After a batch where the guard damped more, or that was refused because its layers did not hold: a quarter of the
# step, which eight good batches give back; at most 1/64.
_MORE_CAUTION, MOST_CAUTION = 8, 24
# Where layers do not hold although messages have come to rest, the world has changed, or the noise is larger: learnt.
_STOPPED = (Status.ITERATION_LIMIT, Status.ROUNDING)
# Batches that a setting refuses, by their status.
_REFUSED = {Status.UNUSUAL: "unusual", Status.STRAINED: "strained"}
# A batch without labels gains nothing but rounding, in nats.
_TAUGHT = 1e-3
# If noise is learnt: between these, messages with the noise held.
_NOISE_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class LearnerState:
    """All that changes when a learner learns: what a checkpoint holds beside the settings.

    - `prior`, `posterior`: beliefs of the parameters before all batches, and now.
    - `noise`: of observations that learn theirs.
    - `history`: of the batches.
    - `tied`: names of parameters that the user's factors tie; None: not known yet.
    - `sizes`: of batches that have been compiled.
    - `batches`, `examples`: that were learnt from; `failures`: batches that were not.
    - `caution`: how much more messages to parameters are damped, see `gbp.damping_for`.
    - `note`: numbers and strings of the user's.
    - `features`: the numbers of the features, by name; None: there are none, or they have not been fitted yet.
    - `fitted`: whether prior means that follow from the first inputs have been found.
    """

    prior: Beliefs
    posterior: Beliefs
    noise: dict[str, LearnNoise]
    history: History
    tied: list[list[str]] | None = None
    sizes: list[int] = dataclasses.field(default_factory=list)
    batches: int = 0
    examples: int = 0
    failures: int = 0
    caution: int = 0
    note: dict[str, Any] = dataclasses.field(default_factory=dict)
    features: Fitted | None = None
    fitted: bool = False


class Learner:
    """Learns a network from a stream of batches, each visited once: the posterior of one is the prior of the next.

    ```python
    learner = gbp.Learner(net, input_shape=(28, 28, 1))
    for images, labels in batches:
        report = learner.update(images, labels)
    logits = learner.predict(images)
    ```

    Threads may share a learner: changes (`update`, `forget`) and `save` wait for each other. Predictions do not wait:
    they use the posterior as it was when they began.

    **Arguments:**

    - `net`: `gbp.Sequential(...)` or `gbp.Network(...)`.
    - `input_shape`: of one example; not needed if the network has it.
    - `features`: a fixed function of the inputs in front of the network, such as `gbp.WhitenedPatches(200)`: the
        network takes what it makes of an example. It is fitted to the inputs of the first batch that is learnt from.
        Inputs are then observed, all of them and without noise.
    - `iterations`, `dropout` (of messages; `gbp.Dropout` drops units), `schedule`, `messages`, `guard`: of learning, as
        `gbp.infer`.
    - `tolerance`: of all beliefs, as `gbp.infer`; by default until the parameters have settled to 0.03 standard
        deviations.
    - `damping`: as `gbp.infer`; parameters and activations want different damping. By default that of parameters
        follows from the size of the batch and from the examples learnt from before (`gbp.damping_for`).
    - `activations`: "scalar", a variable for each activation, as in the paper; or "vector", all activations of an
        example and layer as one: then a batch is learnt from jointly, exact for the linearised layers, without loops
        among units. For feed-forward networks whose heads are each a `gbp.CategoricalObservation` or a
        `gbp.GaussianObservation`; layers with `posterior="auto"` then get the family of beliefs that measured best.
        `tolerance` and `iterations` are those between targets and outputs; `damping`, `dropout`, `schedule`,
        `messages` and `guard` are refused, which are for scalars. "auto" is "vector" for networks with a
        `gbp.CategoricalObservation` that can have it, if nothing is asked for that only scalars can do.
    - `input_sigma`: standard deviation of noise on the inputs; None if they have none.
    - `input_prior`: a Gaussian, the prior of an input that is not observed; by default `N(0, 1)`.
    - `alpha`, `process_noise`, `forgetting`: what happens to the posterior between two batches, see `gbp.Filtering`.
    - `parameters`: at prediction "fixed" at their means, or "random", with their uncertainty.
    - `factors`: `fn(graph)` adds factors of your own to every graph that is built, those of prediction too. Variables
        are named after the layers; the batch is the first axis of activations. Parameters that it ties, the same in
        every graph, are one: their priors multiply, and `posterior` has its belief under each of its names.
    - `unusual`: what to do with a batch that is far outside all that was learnt from (inputs over ten times larger,
        images without contrast, all of them equal, one number a hundred times larger than any before): "refuse" it, or
        learn from it, with a warning ("warn") or without ("learn"). `report.unusual` has the reasons. After a stream
        has changed so much, set `learner.unusual = "learn"`: what was learnt from is usual from then on.
    - `strained`: what to do with a batch whose messages ended far from rest, so that layers do not hold
        (`report.strained`: activations more than five times the noise away from what the layer says): "refuse" it, once
        layers have held in some batch before, and be more cautious with the next one; or learn from it, with a warning
        ("warn") or without ("learn"). Where messages came to rest all the same, the batch is learnt, and flagged.
    - `record`: keep the contributions of the last 1,000 batches (or of as many as given), two numbers a parameter
        each, so that `forget` can divide the posterior by them. Of vectors each keeps a belief: of the last batches
        that fit a gigabyte.
    - `dtype`: float32 (default) or float64 (in JAX's 64-bit mode).
    - `seed`: of the random prior means, of dropout of messages and of units (`gbp.Dropout`), of random schedules, and
        of features that are drawn at random.
    """

    def __init__(
        self,
        net: LayerGraph,
        input_shape: tuple[int, ...] | None = None,
        *,
        features: Features | None = None,
        iterations: int = 200,
        tolerance: float | None = None,
        damping: float | Damping | None = None,
        dropout: float | Damping = 0.0,
        schedule: Schedule | None = None,
        messages: str = "auto",
        guard: bool | Guard = True,
        activations: str = "auto",
        input_sigma: float | None = None,
        input_prior: Gaussian | None = None,
        alpha: float = 0.0,
        process_noise: float = 0.0,
        forgetting: float = 1.0,
        parameters: str = "fixed",
        factors: Callable[[FactorGraph], Any] | None = None,
        unusual: str = "refuse",
        strained: str = "refuse",
        record: bool | int = False,
        dtype: Any = None,
        seed: int = 0,
    ):
        if not isinstance(net, LayerGraph):
            raise TypeError(f"Learner takes a gbp.Sequential or a gbp.Network, got {type(net).__name__}")
        if parameters not in ("fixed", "random"):
            raise ValueError(f"parameters must be 'fixed' or 'random' (at prediction), got {parameters!r}")
        check_mode(messages)
        as_guard(guard)
        if input_sigma is not None and (net.observes_input or not 0 < input_sigma < float("inf")):
            twice = "the network observes its input already" if net.observes_input else f"got {input_sigma!r}"
            raise ValueError(f"input_sigma must be a number > 0: {twice}")
        check_not_forked()
        self._make_locks()
        self.net, self.features = net, features
        if features is None:
            self.input_shape = net.checked_input_shape(input_shape)
        else:
            self.input_shape = _shape_before(features, net, input_shape)
            self._check_known({"input_sigma": input_sigma, "input_prior": input_prior})
        self.filtering = Filtering(alpha, process_noise, forgetting)
        self.options: dict[str, Any] = {
            "iterations": iterations,
            "tolerance": tolerance,
            "damping": damping,
            "dropout": dropout,
            "schedule": schedule,
            "messages": messages,
            "guard": guard,
        }
        self.parameters, self.factors, self.seed = parameters, factors, seed
        self.unusual, self.strained = unusual, strained
        self.dtype = FactorGraph(dtype=dtype).dtype
        self.input_sigma = input_sigma
        given = {"factors": factors, "schedule": schedule, "damping": damping}
        odd = [name for name, value in given.items() if value is not None]
        usual = {"dropout": (dropout, 0.0), "messages": (messages, "auto"), "guard": (guard, True)}
        odd += [name for name, (value, default) in usual.items() if value != default]
        if activations not in ("auto", *ACTIVATIONS):
            choices = ", ".join(map(repr, ("auto", *ACTIVATIONS)))
            raise ValueError(f"activations must be one of {choices}, got {activations!r}")
        self.activations = choose_activations(net, self.net_shape, odd) if activations == "auto" else activations
        if self.activations == "vector":
            if odd:
                raise ValueError(f"vector activations take no {odd[0]}")
            check_whole("Learner", iterations=iterations)
            if tolerance is not None and not (isinstance(tolerance, (int, float)) and tolerance >= 0):
                raise ValueError(f"tolerance must be a number >= 0 or None, got {tolerance!r}")
            net = self.net = choose_layers(net, self.net_shape)
        rotated = [name for name, p in net.parameters(self.net_shape).items() if p.posterior == "rotated"]
        if rotated and self.activations == "scalar":
            raise ValueError(f"'{rotated[0]}': posterior='rotated' needs vector activations")
        self.input_prior = (default_input_prior() if input_prior is None else input_prior).astype(self.dtype)
        self._chain = self._make_chain()
        if record is None or isinstance(record, np.bool_):
            record = bool(record)
        if not isinstance(record, (bool, int, np.integer)) or not 0 <= record <= MOST:
            raise ValueError(f"record must be True, False or a number of batches up to {MOST:,}, got {record!r}")
        self.predict_sizes = PREDICT_SIZES  # examples that are predicted at a time: each has its compiled program
        prior = {n: p.astype(self.dtype) for n, p in net.priors(self.net_shape, seed=seed).items()}
        self.restore(LearnerState(prior, dict(prior), net.start_noise(None), History.keeping(record, prior)))
        if self.noise and isinstance(iterations, int) and iterations < 2:
            raise ValueError("a network that learns its noise needs at least 2 iterations")

    @property
    def net_shape(self) -> tuple[int, ...]:
        """Shape of what the network takes of one example: the input, or its features."""
        return self.input_shape if self.features is None else tuple(self.features.output_shape(self.input_shape))

    @property
    def state(self) -> LearnerState:
        """All that it has learnt so far; `restore` goes back to it."""
        with self._swap:
            return LearnerState(
                self.prior,
                self._posterior,
                self.noise,
                self._history.copy(),
                self._tied,
                list(self._sizes),
                self.batches,
                self.examples,
                self.failures,
                self.caution,
                dict(self.note),
                self._fitted,
                self._fitted_priors,
            )

    @locked
    def restore(self, state: LearnerState) -> None:
        """Replace all that it has learnt by a state."""
        with self._swap:
            self.prior, self._posterior, self.noise = state.prior, state.posterior, state.noise
            self._history, self._tied, self._sizes = state.history.copy(), state.tied, list(state.sizes)
            self.batches, self.examples = state.batches, state.examples
            self.failures, self.caution, self.note = state.failures, state.caution, dict(state.note)
            self._fitted, self._fitted_priors = state.features, state.fitted

    def _make_chain(self) -> VectorActivations | None:
        if self.activations == "scalar":
            return None
        return VectorActivations(self.net, self.net_shape, self.dtype, self.input_sigma, self.input_prior)

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # held by whoever changes the learner
        self._swap = threading.Lock()  # held while the state is read or replaced as a whole

    def __getstate__(self) -> dict[str, Any]:
        """For a copy or a pickle, which has its own locks and its own history."""
        with self._swap:
            held = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_swap", "_chain")}
            return {**held, "_sizes": list(self._sizes), "_history": self._history.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make_locks()
        # Older pickles have none of these.
        new = {"_unusual": "refuse", "_tied": None, "predict_sizes": PREDICT_SIZES, "activations": "scalar"}
        new |= {"features": None, "_fitted": None, "_fitted_priors": False, "_strained": "learn"}
        self.__dict__.update(new | state)
        self._chain = self._make_chain()

    @property
    def posterior(self) -> Posterior:
        """The belief of each parameter, by name."""
        return Posterior(self._posterior)

    @property
    def unusual(self) -> str:
        """What is done with a batch that is far outside all that was learnt from: "refuse", "warn" or "learn"."""
        return self._unusual

    @unusual.setter
    def unusual(self, choice: str) -> None:
        self._unusual = _checked_choice("unusual", choice)

    @property
    def strained(self) -> str:
        """What is done with a batch whose layers do not hold: "refuse", "warn" or "learn"."""
        return self._strained

    @strained.setter
    def strained(self, choice: str) -> None:
        self._strained = _checked_choice("strained", choice)

    @property
    def inputs(self) -> dict[str, Any]:
        """The argument `inputs` of `Sequential.graph`, for every graph of this learner."""
        return {
            "input_sigma": self.input_sigma,
            "input_prior": self.input_prior,
            "factors": self.factors,
            "only_evidence": True,
        }

    def _repr_html_(self) -> str:
        from ..show.notebook import learner_html

        return learner_html(self)

    def __repr__(self) -> str:
        return f"Learner({self.net!r}, batches={self.batches}, examples={self.examples})"

    @locked
    def update(
        self,
        x: Numbers,
        y: ByHead | None = None,
        *,
        x_observed: Numbers | None = None,
        y_observed: ByHead | None = None,
        x_prior: Gaussian | None = None,
        sample_weight: Numbers | None = None,
        want: str | None = None,
        evidence: bool = False,
        carry: Sequence[str] = (),
        carried: Mapping[str, Any] | None = None,
    ) -> Report:
        """Learn from a batch, after which it may be thrown away.

        Feed-forward layers learn nothing from an example without a label; generative layers learn from inputs alone.

        **Arguments:**

        - `x`: inputs `(batch,) + input_shape`, any number of them.
        - `y`: what the head observes: classes, or values. Of several heads a mapping by head; a head that it does not
            name has no targets in this batch.
        - `x_observed`, `y_observed`: True for what was observed, of their shapes or one for each example; what was not
            may be anything, NaN included. Of several heads `y_observed` is a mapping, too.
        - `x_prior`: belief of each input that is not observed. A feed-forward network holds such inputs at it while it
            learns. By default they have the learner's `input_prior`, and are inferred, from the labels too.
        - `sample_weight`: of each example; 2 counts like two of it.
        - `want`: a variable whose belief the report is to hold (`report.belief`): the "input" (of a noisy frame: the
            clean one), the "output", or the outputs of a layer by its name (or by that of one of several heads).
        - `evidence`: also compute how likely this batch was, given all before it (`report.log_evidence`): for classes,
            the logarithm of the probabilities that were predicted for them; for values, and for inputs that a
            generative layer explains, a log density (with `sample_weight` of 0 and 1 only: an example of weight 2 is
            learnt from like two, but its density is not that of two). It takes another inference, or a prediction. Of
            vector activations: of all targets of the batch together.
        - `carry`: layers without parameters, such as `Upsample2D`, by name. The report holds their messages
            (`report.carried`), which can warm-start the next batch, if it resembles this one as frames of a video do.
        - `carried`: messages that warm-start this batch: `report.carried` of the batch before, of the same size.

        **Returns:** a report. If inference ended badly, or if the batch is unusual or its layers do not hold and such
        batches are refused, `report.accepted` is False, and the posterior is as it was before.
        """
        wanted = None if want is None else variable_name(self.net, want)
        if self.features is not None and want == "input":
            raise ValueError("features are functions of known inputs: there is no belief of these")
        check_warm_layers(self.net.places, self.prior, (*carry, *(carried or {})))
        more = {"x_observed": x_observed, "y_observed": y_observed, "x_prior": x_prior, "sample_weight": sample_weight}
        fitted = self._fitted_to(x, sample_weight) if self._fitted is None else self._fitted
        batch = self._checked(fitted, x, y, **more)
        if not batch.targets and self.net.heads:
            raise ValueError("update needs y, with y_observed=False for examples without a label")
        if self._chain is not None:
            self._chain.check_update(batch, wanted, carry, carried)
        given = batch if self.features is None else dataclasses.replace(batch, x=np.asarray(x, float))
        statistics = statistics_of(self.net, given, self._history.statistics, self.factors is not None)
        unusual = self._history.statistics.unusual(statistics)
        if unusual and self.unusual == "refuse":
            self.failures += 1
            return refused_report(batch.size, unusual)
        if unusual and self.unusual == "warn":
            warnings.warn(f"this batch is unusual: {'; '.join(map(str, unusual))}", stacklevel=3)
        first = self._priors_of(batch) if self.net.fits_priors and not self._fitted_priors else None
        start = self._posterior if first is None else first
        before = self.filtering.next_prior(start, self.prior) if self.batches else start
        kept = self.filtering.forgetting if self.batches else 1.0
        noise = {n: dataclasses.replace(p, weight=p.weight * kept) for n, p in self.noise.items()}
        result, padded = self.infer_batch(batch, before, noise, carried)
        found = {name: result[name] for name in before if name in result}
        sound = result.usable and len(found) == len(before) and _all_sound(found)
        layers = [place.name for place in self.net.places if isinstance(place.layer, Transform)]
        if self._chain is not None:
            layers += self.net.heads  # hidden layers hold by construction
        strained = strained_layers(result, layers)
        refused = bool(strained) and result.status in _STOPPED and self._refuses_strained()
        accepted = sound and not refused
        if strained and accepted and self.strained == "warn":
            names = ", ".join(map(repr, strained))
            warnings.warn(f"layers do not hold in this batch: {names}", stacklevel=3)
        raised = any(event.action is GuardAction.DAMPING_RAISED for event in result.guard)
        more_cautious = raised or (sound and refused)
        caution = min(MOST_CAUTION, self.caution + _MORE_CAUTION) if more_cautious else max(0, self.caution - 1)
        belief = result[wanted][: batch.size] if wanted is not None and accepted else None
        number = self._history.count if accepted else None
        likely = self._log_evidence(result, padded, before) if evidence else None
        report = report_of(result, batch.size, sound, accepted, belief, number, likely, carry, strained, unusual)
        if not accepted:
            self.failures, self.caution = self.failures + 1, caution
            return report
        more = {n: batch.measured(n if n in self.net.heads else None) for n in noise}
        learnt = {n: LearnNoise(result.noise[n], noise[n].weight + more[n]) for n in noise}
        known = Before(start, self.noise, self.caution)
        repeated = [name for names in self._tied or () for name in names[1:]]
        entry = self._history.entry(report, known, before, found, noise, learnt, statistics, repeated)
        # All at once: an interruption leaves the old state, or the new.
        counts = self.batches + 1, self.examples + batch.size
        with self._swap:
            self._posterior, self.noise, self.batches, self.examples, self.caution = found, learnt, *counts, caution
            self._fitted = fitted
            if first is not None:
                self.prior, self._fitted_priors = first, True
            self._history.put(entry)
        return report

    def _refuses_strained(self) -> bool:
        """Whether a batch is refused now if its messages were stopped where its layers do not hold.

        Not before some batch that taught anything has held: until then there is nothing that it could spoil, and a
        network whose first batches never hold would not learn.
        """
        if self.strained != "refuse":
            return False
        learnt = [entry for entry in self._history.entries if not entry.forgotten]
        held = [entry for entry in learnt if entry.status != Status.STRAINED.name and entry.gained > _TAUGHT]
        # Of batches of which there is no record any more, or of models that were merged, nothing else is known.
        return len(learnt) < self.batches or bool(held)

    def _log_evidence(self, result: Result | ChainResult, batch: Batch, before: Mapping[str, Belief]) -> float:
        if isinstance(result, ChainResult):
            return result.log_evidence
        return log_evidence_of_batch(self.predictor(), result, batch, before, self.seed + self.batches)

    def infer_batch(
        self,
        batch: Batch,
        before: Beliefs,
        noise: Mapping[str, LearnNoise],
        initial: Mapping[str, Any] | None = None,
    ) -> tuple[Result | ChainResult, Batch]:
        """Infer the parameters from a batch, given their beliefs before it; the posterior does not change.

        The batch is padded to a size that has been compiled, and refused (`MemoryError`) if it needs more memory than
        there is.

        **Arguments:**

        - `before`, `noise`: the prior of the parameters, and the noise, before this batch.
        - `initial`: messages of layers that warm-start it, by name.

        **Returns:** the result, and the batch with its padding.
        """
        net = self.net
        if self._chain is not None:
            size = padded_size(batch.size, self._sizes)
            check_memory(self._chain.memory(size), f"a batch of {batch.size}")
            new, padded = self.expect_size(size), batch.padded(size)
            tolerance = SETTLED if self.options["tolerance"] is None else self.options["tolerance"]
            seed = self.seed + self.batches
            result = self._chain.learn(padded, before, self.options["iterations"], tolerance, noise, seed=seed)
            if new:
                release_memory()
            return result, padded
        # The user's factors know the batch by its size, so that it cannot be padded.
        size = batch.size if self.factors is not None else padded_size(batch.size, self._sizes)
        inputs_fixed = batch.x_observed is None and self.input_sigma is None and not net.observes_input
        needed = net.memory_of(self.net_shape, size, inputs_fixed)
        check_memory(needed[self.options["messages"]] * self.dtype.itemsize // 4, f"a batch of {batch.size}")
        new = self.expect_size(size)
        padded = batch.padded(size)
        # One round is enough if the noise has been learnt from more measurements than the batch has.
        rounds = 1 if all(n.weight > batch.size for n in noise.values()) else _NOISE_ROUNDS
        try:
            result = net.learn(
                padded,
                beliefs=before,
                noise=noise,
                inputs=self.inputs,
                seed=self.seed + self.batches,
                dtype=self.dtype,
                throw=False,
                carried=initial,
                **({"rounds": min(rounds, self.options["iterations"])} if noise else {}),
                **self.infer_options(batch, before),
            )
        except InferenceError as error:  # of the noise
            result = error.result
        if new:
            release_memory()
        if self._tied is not None and tied_parameters(result.graph, self.prior) != self._tied:
            raise ValueError("factors must tie the same parameters in every graph")
        return result, padded

    def expect_size(self, size: int) -> bool:
        """Compile for batches of so many examples: smaller ones are padded to it. Whether that is new."""
        new = size not in self._sizes
        if new:
            self._sizes.append(size)
        return new

    def infer_options(self, batch: Batch, prior: Mapping[str, Belief]) -> dict[str, Any]:
        """Options of `gbp.infer` for a batch, whose prior this is."""
        out = dict(self.options)
        if out["tolerance"] is None:
            out |= {"tolerance": 1e-3, "settled": SETTLED}
        if out["damping"] is None:
            # A feed-forward network learns nothing from examples without a label.
            count_all = not self.net.heads or self.net.generative or self.factors is not None
            count = max(1, batch.size if count_all else round(batch.label_count))
            known = self.filtering.examples_known(self.examples, count, self.prior, self._posterior, prior)
            out["damping"] = damping_for(count, known, self.caution)
        return out

    def fit(self, batches: Iterable[Any], callbacks: Sequence[Any] = ()) -> Learner:
        """Learn from a stream: any iterable of batches, a data loader of PyTorch included.

        **Arguments:**

        - `batches`: each `x`, a pair `(x, y)`, or a mapping of arguments of `update` by name.
        - `callbacks`: after every batch each is called with its report, or its `on_batch(report)` if it has one, such
            as `gbp.DriftAlarm()`.
        """
        calls = [getattr(c, "on_batch", c) for c in callbacks]
        for call, given in zip(calls, callbacks):
            if not callable(call):
                raise TypeError(f"a callback must be callable or have on_batch(report), got {type(given).__name__}")
        evidence = any(getattr(getattr(c, "__self__", c), "needs_evidence", False) for c in callbacks)
        warn = not calls  # nobody else reads the reports
        for batch in progress(batches, "learn", status=lambda: f"{self.examples} examples"):
            report = self.update(**batch_arguments(batch), evidence=evidence)
            for call in calls:
                call(report)
            if warn and not report.accepted and report.status in _REFUSED:
                warn = False
                setting = _REFUSED[report.status]
                warnings.warn(f"a batch was {report.message}; more may follow: see Learner({setting}=)", stacklevel=2)
        return self

    def history(self) -> list[BatchRecord]:
        """Records of the batches that were learnt from, in their order: the last 10,000."""
        return list(self._history.entries)

    @locked
    def forget(self, batch: int, again: Iterable[Any] | None = None) -> None:
        """Forget a recorded batch (`record=True`): divide the posterior by its contribution.

        The last batch is taken out bit for bit. The contribution of a batch depends on the batches before it. So if an
        earlier batch is forgotten, the result is that of a learner that never had it only if the posterior factorises,
        or if the batches after it are given `again`: then these are divided away, too, and learnt anew. If a parameter
        would become vaguer than its prior, a `ValueError` is raised, and nothing changes. Features, and prior means
        that follow from the first inputs, stay as they are.

        **Arguments:**

        - `batch`: its number, `report.batch` or as in `history()`.
        - `again`: the batches after it that are not forgotten, in their order, as `fit` takes them.
        """
        if again is None:
            self.divide_away(batch)
        else:
            self._forget_and_learn_again(batch, again)

    @locked
    def divide_away(self, batch: int, least: Beliefs | None = None) -> None:
        """Divide the posterior by the contribution of a recorded batch; a `ValueError` if that is impossible.

        **Arguments:** `least`: beliefs without any recorded batch; by default the prior of the learner.
        """
        now = Before(self._posterior, self.noise, self.caution)
        left, record = self._history.without(batch, now, self.prior if least is None else least, self.filtering)
        counts = self.batches - 1, self.examples - record.examples
        with self._swap:
            self._history.forget(batch)
            self._posterior, self.noise, self.caution = left.beliefs, left.noise, left.caution
            self.batches, self.examples = counts

    def _forget_and_learn_again(self, batch: int, again: Iterable[Any]) -> None:
        """Divide by the contributions of a batch and of all after it, then learn those after it again.

        All of it, or nothing: it is done on a copy, so that an error or an interruption leaves the learner unchanged.
        """
        self._history.check_recorded(batch)
        later = [e for e in self._history.entries if e.batch > batch and not e.forgotten]
        batches = [batch_arguments(b) for b in again]
        sizes = [len(np.asarray(b["x"])) for b in batches]
        if sizes != [e.examples for e in later]:
            raise ValueError(
                f"again must be the {len(later)} batches after {batch}, of {[e.examples for e in later]} examples, "
                f"got {sizes}"
            )
        trial = copy.copy(self)
        for entry in reversed(later):
            trial.divide_away(entry.batch)
        trial.divide_away(batch)
        trial._history.go_back(batch)
        trial.unusual = trial.strained = "learn"  # as they were before, whatever they are
        for entry, arguments in progress(list(zip(later, batches)), "learn again"):
            trial._history.skip_to(entry.batch)
            if not trial.update(**arguments).accepted:
                raise ValueError(f"batch {entry.batch} could not be learnt again; nothing has changed")
        trial._history.skip_to(self._history.count)
        self.restore(trial.state)

    @property
    def most_recorded(self) -> int:
        """The largest number of batches whose contributions are kept, if they are recorded."""
        return self._history.most_contributions

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which batches are recorded; contributions are dropped at its end, unless the learner records."""
        recorded, self._history.record = self._history.record, True
        try:
            yield
        finally:
            self._history.record = recorded
            if not recorded:
                self._history.drop_records()

    @locked
    def filter_once(self) -> None:
        """Switch filtering off, after it was applied before the last batch: from now on the posterior is the prior.

        The state before the last batch is dropped, since that was before the filtering, too: the batch can still be
        divided away, but not bit for bit.
        """
        self.filtering = Filtering()
        self._history.before = None

    @locked
    def fit_features(self, x: Numbers) -> None:
        """Fit the features to these inputs, before anything is learnt: so that several learners have the same ones."""
        if self.features is None:
            raise ValueError("the learner has no features")
        if self.batches:
            raise ValueError("features are fitted before anything is learnt")
        found = self._fitted_to(x)
        with self._swap:  # prior means that followed from other features are found anew
            self._fitted, self._fitted_priors = found, False

    @locked
    def fit_priors(self, x: Numbers) -> None:
        """Find the prior means that follow from the first inputs (`gbp.Conv2D(weight_init="patches")`) by these.

        Before anything is learnt: so that several learners have the same ones. Else the first batch that is learnt from
        is what they follow from.
        """
        if not self.net.fits_priors:
            raise ValueError("no prior means of the network follow from its inputs")
        if self.batches:
            raise ValueError("prior means are found before anything is learnt")
        first = self._priors_of(self.checked(x))
        with self._swap:
            self.prior, self._posterior, self._fitted_priors = first, dict(first), True

    def _priors_of(self, batch: Batch) -> dict[str, Belief]:
        """The prior that follows from these inputs; those that are missing are at their prior mean."""
        x = batch.x
        if batch.x_observed is not None:
            prior = self.input_prior if batch.x_prior is None else batch.x_prior
            x = np.where(batch.x_observed, x, np.asarray(prior.broadcast_to(x.shape).mean))
        found = self.net.fitted_priors(x[batch.counted], self.prior, seed=self.seed)
        tied = [name for names in self._tied or () for name in names if found[name] is not self.prior[name]]
        if tied:
            raise ValueError(f"'{tied[0]}' is tied by factors: its prior means cannot follow from the inputs")
        return {name: belief.astype(self.dtype) for name, belief in found.items()}

    def _fitted_to(self, x: Numbers, weight: Numbers | None = None) -> Fitted | None:
        """The numbers that the features have if these are the first inputs; None if there are none."""
        if self.features is None:
            return None
        examples = self._examples(x)
        weights = as_weights(weight, len(examples))
        return self.features.fit(examples if weights is None else examples[weights > 0], self.seed)

    def _examples(self, x: Numbers) -> np.ndarray:
        """Inputs of features, as numbers."""
        self._check_shape(x)
        return as_inputs(x, None, self.input_shape)[0]

    def _check_shape(self, x: Numbers) -> None:
        if np.shape(x)[1:] != self.input_shape:
            raise ValueError(f"the learner takes examples of shape {self.input_shape}, got {np.shape(x)[1:]}")

    def checked(self, x: Numbers, y: ByHead | None = None, **more: Any) -> Batch:
        """A batch of examples as the network takes them, checked; arguments as `Sequential.batch`."""
        return self._checked(self._fitted, x, y, **more)

    def _checked(self, fitted: Fitted | None, x: Numbers, y: ByHead | None, **more: Any) -> Batch:
        check_not_forked()
        self._check_shape(x)
        if self.features is None:
            batch = self.net.batch(x, y, **more)
        else:
            self._check_known(more)
            if fitted is None:
                raise ValueError("features are fitted to the first batch that is learnt from: there was none yet")
            found = self.features.computed(self._examples(x), fitted, self.dtype)
            # Masks and targets are checked beside zeros, which take no memory.
            batch = dataclasses.replace(self.net.batch(np.broadcast_to(0.0, found.shape), y, **more), x=found)
        if self.factors is not None and self._tied is None:
            self._share_tied(batch)
        return batch

    @staticmethod
    def _check_known(given: Mapping[str, Any]) -> None:
        """Raise if anything is given of inputs that are not known."""
        for name in ("x_observed", "x_prior", "input_sigma", "input_prior"):
            if given.get(name) is not None:
                raise ValueError(f"features are functions of known inputs: leave {name} away")

    def _share_tied(self, batch: Batch) -> None:
        """Give the parameters that the user's factors tie one prior, the product of theirs, under each of their names.

        (When there is a batch: the factors may depend on its size.)
        """
        tied = tied_parameters(self.net.graph(batch, inputs=self.inputs, dtype=self.dtype), self.prior)
        with self._swap:
            if self._tied is not None:  # another thread was quicker
                return
            prior = dict(self.prior)
            for names in tied:
                one = functools.reduce(operator.mul, (self.prior[name] for name in names))
                prior |= dict.fromkeys(names, one)
            if not self.batches:
                self._posterior = dict(prior)
            self.prior, self._tied = prior, tied

    def predictor(self) -> Predictor:
        """The network with the beliefs of now: later updates do not change it."""
        now = copy.copy(self)
        return Predictor(
            now.net,
            now._posterior,
            now.noise,
            now.inputs,
            now.dtype,
            now.parameters,
            now.infer_options,
            now.predict_sizes,
            now._chain,
        )

    def predict(
        self,
        x: Numbers,
        *,
        x_observed: Numbers | None = None,
        x_prior: Gaussian | None = None,
        parameters: str | None = None,
    ) -> OfHeads:
        """The belief of the outputs (before the head) by messages: `.mean` and `.std`, a row an example.

        Of several heads it is a dictionary by head. No example depends on another (with generative layers or factors of
        your own, which go on until all are at rest: up to the tolerance of 1e-4 standard deviations).

        **Arguments:**

        - `x`, `x_observed`, `x_prior`: as `update`; any number of examples.
        - `parameters`: "fixed" or "random"; by default those of the learner.
        """
        batch = self.checked(x, x_observed=x_observed, x_prior=x_prior)
        return self.net.by_head(self.predictor().outputs(batch, parameters))

    def query(
        self,
        want: str = "output",
        *,
        x: Numbers | None = None,
        y: ByHead | None = None,
        x_observed: Numbers | None = None,
        y_observed: ByHead | None = None,
        x_prior: Gaussian | None = None,
        parameters: str | None = None,
    ) -> Gaussian:
        """The belief of inputs, outputs or any activation, given what was observed of inputs and targets.

        Missing pixels are filled in by generative layers (`gbp.ConvTranspose2D`). A feed-forward first layer hardly
        constrains them: to query the input then gives a warning.

        **Arguments:**

        - `want`: "input", "output", or the name of a layer: its outputs. Of several heads one of them, not "output".
        - `x`, `y`, `x_observed`, `y_observed`, `x_prior`: as `update`; without `x` nothing is observed of the inputs,
            and there are as many examples as targets.
        - `parameters`: as `predict`.
        """
        wanted = variable_name(self.net, want)
        if self.features is not None and (want == "input" or x is None):
            raise ValueError("features are functions of known inputs: query needs x, and want= something else")
        if want == "input" and not explains_input(self.net):
            warnings.warn("only the prior of the pixels counts here: the first layer is not generative", stacklevel=2)
        if x is None:
            if y is None or x_observed is not None:
                raise ValueError("query needs x or y" if y is None else "x_observed needs x")
            y = y if isinstance(y, Mapping) else np.atleast_1d(np.asarray(y))
            given = list(y.values()) if isinstance(y, Mapping) else [y]
            if not given:
                raise ValueError("query needs x or y")
            x, x_observed = np.zeros((np.atleast_1d(np.asarray(given[0])).shape[0], *self.input_shape)), False
        batch = self.checked(x, y, x_observed=x_observed, y_observed=y_observed, x_prior=x_prior)
        return self.predictor().belief(batch, wanted, parameters)

    def log_evidence(
        self,
        x: Numbers,
        y: ByHead | None = None,
        *,
        x_observed: Numbers | None = None,
        y_observed: ByHead | None = None,
        parameters: str | None = None,
    ) -> np.ndarray:
        """How likely each example is: low for anomalies. One number an example, a log density.

        `log p(y | x)`; of networks whose first layer is generative `log p(x)`, or `log p(x, y)` with targets, in which
        what is not observed is left out. Exact on trees of linear layers, else the Bethe approximation.

        **Arguments:**

        - `x`, `y`, `x_observed`, `y_observed`: as `update`.
        - `parameters`: as `predict`.
        """
        batch = self.checked(x, y, x_observed=x_observed, y_observed=y_observed)
        return self.predictor().log_evidence(batch, parameters)

    def uncertainty(self, x: Numbers, *, x_observed: Numbers | None = None, x_prior: Gaussian | None = None) -> OfHeads:
        """The prediction, and which part of its uncertainty more data would remove; arguments as `predict`.

        A `gbp.Uncertainty`; of several heads a dictionary by head.
        """
        batch = self.checked(x, x_observed=x_observed, x_prior=x_prior)
        return self.predictor().uncertainty(batch)

    def sample(
        self,
        x: Numbers,
        count: int = 1,
        *,
        seed: int = 0,
        x_observed: Numbers | None = None,
        x_prior: Gaussian | None = None,
        parameters: str | None = None,
    ) -> OfHeads:
        """Samples `(count, batch, ...)` of the targets: values with the noise of the head, or classes.

        Each output of each example is drawn by itself, from its belief. Of several heads they are a dictionary by head.
        `x_observed`, `x_prior` and `parameters` as `predict`.
        """
        batch = self.checked(x, x_observed=x_observed, x_prior=x_prior)
        return self.predictor().draw(batch, count, seed, parameters)

    def predict_proba(
        self,
        x: Numbers,
        *,
        head: str | None = None,
        x_observed: Numbers | None = None,
        x_prior: Gaussian | None = None,
        parameters: str | None = None,
    ) -> Array:
        """Class probabilities `(batch, classes)`: the mean softmax over the Gaussian belief of the logits.

        **Arguments:**

        - `head`: its name, where several heads observe classes.
        - `x`, `x_observed`, `x_prior`, `parameters`: as `predict`.
        """
        logits = self.net.heads[self.net.class_head(head)].variable
        batch = self.checked(x, x_observed=x_observed, x_prior=x_prior)
        return self.net.probabilities(self.predictor().belief(batch, logits, parameters))

    def forward(self, x: Numbers) -> OfHeads:
        """The outputs by a forward pass with the posterior means: no inference, a read-out to compare with.

        Of several heads they are a dictionary by head.
        """
        out = self.net.forward(self.checked(x).x, self._posterior)
        if not set(self.net.outputs) <= set(out):
            raise ValueError("a network with generative layers has no forward pass")
        return self.net.by_head(out)

    @locked
    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file, which appears whole or not at all.

        Functions (`factors`, an activation of your own) cannot be saved: `factors` must be given again to `load`.
        `learner.note`, numbers and strings by name, goes along.
        """
        from ..io.checkpoint import save

        save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, factors: Callable[[FactorGraph], Any] | None = None) -> Learner:
        """Read what `save` wrote, checked: to go on with it is as if nothing had happened.

        Raises a `gbp.CheckpointError` if anything is wrong with the file. Nothing in it is executed.
        """
        from ..io.checkpoint import load

        return load(Path(path), factors)


def _checked_choice(setting: str, choice: str) -> str:
    if choice not in CHOICES:
        raise ValueError(f"{setting} must be one of {', '.join(map(repr, CHOICES))}, got {choice!r}")
    return choice


def _shape_before(features: Features, net: LayerGraph, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """Shape of an example whose features a network takes."""
    if not isinstance(features, Features):
        raise TypeError(f"features must be gbp.WhitenedPatches(...) or the like, got {type(features).__name__}")
    if given is None:
        raise ValueError("features need input_shape=, the shape of one example")
    net.checked_input_shape(tuple(features.output_shape(tuple(given))))
    return tuple(given)


def _all_sound(beliefs: Beliefs) -> bool:
    """Whether every belief is finite and proper."""
    return all(
        all_proper(g) and (isinstance(g, UnitVectors) or np.isfinite(np.asarray(g.eta) + np.asarray(g.lam)).all())
        for g in beliefs.values()
    )
