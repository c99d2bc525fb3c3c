"""Learner: a network that learns from a stream, batch after batch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from .acceptance import all_sound, ended_badly
from .answers import answer, explains_input, log_evidence, variable
from .batch import Batch
from .batch_evidence import log_evidence_of_batch
from .carried import check_carried
from .filtering import Filtering
from .forked import check_not_forked
from .gaussian import Gaussian, Numbers
from .graph import FactorGraph
from .group import check_mode
from .history import BatchRecord, Before, History
from .inference import Result
from .lay_out import default_input_prior, tied_parameters
from .layers.layer import Transform
from .layers.softmax import SoftmaxObservation
from .learning import learn_batch
from .locks import locked
from .network import Sequential
from .noise import LearnNoise
from .notebook import learner_html
from .posterior import Posterior
from .schedule import Damping, Schedule
from .uncertainty import Uncertainty, draw, split
from .unusual import CHOICES, statistics_of
from .update_report import Report, refused_report, report_of

# After a batch where the guard damped more: a quarter of the step, which eight good batches give back; at most 1/64.
_MORE_CAUTION, _MOST_CAUTION = 8, 24


class Learner:
    """Learns a network from a stream of batches, each seen once: the posterior of one is the prior of the next.

    ```python
    learner = gbp.Learner(net, input_shape=(28, 28, 1))
    for images, labels in batches:
        report = learner.update(images, labels)
    logits = learner.predict(images)
    ```

    Threads may share a learner: changes (`update`, `forget`) and `save` wait for each other; predictions do not wait,
    and know what was known when they began.

    **Arguments:**

    - `net`: `gbp.Sequential(...)`.
    - `input_shape`: of one example; not needed if the network knows.
    - `iterations`, `dropout`, `schedule`, `messages`, `guard`: of learning, as `gbp.infer`.
    - `tolerance`: of all beliefs, as `gbp.infer`; by default until the parameters have settled to 0.03 standard
        deviations.
    - `damping`: as `gbp.infer`; parameters and activations want different damping. By default that of parameters
        follows from the size of the batch and from how much is known already (`gbp.damping_for`).
    - `input_sigma`: standard deviation of noise on the inputs; None if they are what they are.
    - `input_prior`: a Gaussian, what is known of an input that is not observed; by default `N(0, 1)`.
    - `alpha`, `process_noise`, `forgetting`: what happens to the posterior between two batches, see `gbp.Filtering`.
    - `parameters`: at prediction "fixed" at their means, or "random", with their uncertainty.
    - `factors`: `fn(graph)` adds factors of your own to every graph that is built, those of prediction too. Variables
        are named after the layers; the batch is the first axis of activations. Parameters that it ties, the same in
        every graph, are one: their priors multiply, and `posterior` has what is known of it under each of its names.
    - `unusual`: what to do with a batch that is far outside all that was learnt from (inputs over ten times larger,
        images without contrast, all of them equal, one number a hundred times larger than any before): "refuse" it, or
        learn from it, with a warning ("warn") or without ("learn"). `report.unusual` says why. `learner.unusual =
        "learn"` takes up a stream that has changed so much; what was learnt from is usual from then on.
    - `record`: keep what the last 1,000 batches have said, two numbers a parameter each, so that `forget` can take
        it back.
    - `dtype`: float32 (default) or float64 (in JAX's 64-bit mode).
    - `seed`: of the random prior means, and of dropout and random schedules.
    """

    def __init__(
        self,
        net: Sequential,
        input_shape: tuple[int, ...] | None = None,
        *,
        iterations: int = 200,
        tolerance: float | None = None,
        damping: float | Damping | None = None,
        dropout: float | Damping = 0.0,
        schedule: Schedule | None = None,
        messages: str = "auto",
        guard: bool = True,
        input_sigma: float | None = None,
        input_prior: Gaussian | None = None,
        alpha: float = 0.0,
        process_noise: float = 0.0,
        forgetting: float = 1.0,
        parameters: str = "fixed",
        factors: Callable[[FactorGraph], Any] | None = None,
        unusual: str = "refuse",
        record: bool = False,
        dtype: Any = None,
        seed: int = 0,
    ):
        if not isinstance(net, Sequential):
            raise TypeError(f"Learner takes a gbp.Sequential, got {type(net).__name__}")
        if parameters not in ("fixed", "random"):
            raise ValueError(f"parameters must be 'fixed' or 'random' (at prediction), got {parameters!r}")
        check_mode(messages)
        if input_sigma is not None and (net.observes_input or not 0 < input_sigma < float("inf")):
            twice = "the network observes its input already" if net.observes_input else f"got {input_sigma!r}"
            raise ValueError(f"input_sigma must be a number > 0: {twice}")
        check_not_forked()
        self._make_locks()
        self.net, self.input_shape = net, net._input_shape(input_shape)
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
        self.parameters, self.factors, self.seed, self.unusual = parameters, factors, seed, unusual
        self.dtype = FactorGraph(dtype=dtype).dtype
        self.input_sigma = input_sigma
        self.input_prior = (default_input_prior() if input_prior is None else input_prior).astype(self.dtype)
        self.prior = {n: p.astype(self.dtype) for n, p in net.priors(self.input_shape, seed=seed).items()}
        self._history = History(bool(record))
        self._tied: list[list[str]] | None = None  # names of parameters that `factors` tie; None: not known yet
        self._begin_again(dict(self.prior), net._start_noise(None), batches=0, examples=0)
        if self.noise and isinstance(iterations, int) and iterations < 2:
            raise ValueError("a network that learns its noise needs at least 2 iterations")

    def _begin_again(
        self, posterior: dict[str, Gaussian], noise: dict[str, LearnNoise], *, batches: int, examples: int
    ) -> None:
        """Know this, from so many batches and examples of which no records are."""
        self._posterior, self.noise = posterior, noise
        self.batches, self.examples = batches, examples  # that were learnt from
        self.failures = 0  # batches that were not learnt from
        self.caution = 0  # how much more messages to parameters are damped, see `gbp.damping_for`
        self._sizes: list[int] = []  # of batches that have been compiled
        self._history = History(self._history.record)
        self.note: dict[str, Any] = {}  # the user's own numbers and strings, that go into checkpoints

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # held by whoever changes the learner
        self._swap = threading.Lock()  # held while what is known is read or replaced as a whole

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy or a pickle, which has locks, and records, of its own."""
        with self._swap:
            held = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_swap")}
            return {**held, "_sizes": list(self._sizes), "_history": self._history.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make_locks()
        self.__dict__.update({"_unusual": "refuse", "_tied": None} | state)  # older pickles have neither

    def _become(self, other: Learner) -> None:
        """Know what another one knows."""
        state = other.__getstate__()
        with self._swap:
            self.__dict__.update(state)

    @property
    def posterior(self) -> Posterior:
        """What is known of each parameter, by name."""
        return Posterior(self._posterior)

    @property
    def unusual(self) -> str:
        """What is done with a batch that is far outside all that was learnt from: "refuse", "warn" or "learn"."""
        return self._unusual

    @unusual.setter
    def unusual(self, choice: str) -> None:
        if choice not in CHOICES:
            raise ValueError(f"unusual must be one of {', '.join(map(repr, CHOICES))}, got {choice!r}")
        self._unusual = choice

    @property
    def inputs(self) -> dict[str, Any]:
        """What every graph is told about the inputs, see `Sequential.graph`."""
        return {
            "input_sigma": self.input_sigma,
            "input_prior": self.input_prior,
            "factors": self.factors,
            "only_evidence": True,
        }

    _repr_html_ = learner_html

    def __repr__(self) -> str:
        return f"Learner({self.net!r}, batches={self.batches}, examples={self.examples})"

    @locked
    def update(
        self,
        x: Numbers,
        y: Numbers | None = None,
        *,
        x_observed: Numbers | None = None,
        y_observed: Numbers | None = None,
        x_prior: Gaussian | None = None,
        sample_weight: Numbers | None = None,
        want: str | None = None,
        evidence: bool = False,
        carry: Sequence[str] = (),
        carried: Mapping[str, Any] | None = None,
    ) -> Report:
        """Learn from a batch, after which it may be thrown away.

        An example without a label teaches a feed-forward layer nothing: only generative layers learn from inputs alone.

        **Arguments:**

        - `x`: inputs `(batch,) + input_shape`, any number of them.
        - `y`: what the head observes: classes, or values.
        - `x_observed`, `y_observed`: True for what was observed, of their shapes or one for each example; what was not
            may be anything, NaN included.
        - `x_prior`: what is known of each input that is not observed, where a feed-forward network holds it while it
            learns; by default the learner's `input_prior`, which the labels may change.
        - `sample_weight`: of each example; 2 counts like two of it.
        - `want`: also tell what is now believed of this batch, as `report.belief`: of its "input" (of a noisy frame:
            the clean one), its "output", or the outputs of a layer by its name.
        - `evidence`: also tell how likely this batch was, given all before it, as `report.log_evidence`: of classes,
            the logarithm of the probabilities that were predicted for them; of values, and of inputs that a generative
            layer explains, a log density (with `sample_weight` of 0 and 1 only: an example of weight 2 is learnt from
            like two, but its density is not that of two). It takes another inference, or a prediction.
        - `carry`: layers without parameters, such as `Upsample2D`, by name, whose messages the report is to hold
            (`report.carried`), for the next batch to begin with if it resembles this one, as frames of a video do.
        - `carried`: such messages of the batch before, which had the same size.

        **Returns:** a report. If inference ended badly, or if the batch is unusual and such are refused,
        `report.accepted` is False and the posterior as it was before.
        """
        wanted = None if want is None else variable(self, want)
        check_carried(self.net, self.prior, (*carry, *(carried or {})))
        batch = self._checked(
            x, y, x_observed=x_observed, y_observed=y_observed, x_prior=x_prior, sample_weight=sample_weight
        )
        if batch.y is None and self.net.head is not None:
            raise ValueError("update needs y, with y_observed=False for examples without a label")
        statistics = statistics_of(self.net, batch, self._history.statistics, self.factors is not None)
        unusual = self._history.statistics.unusual(statistics)
        if unusual and self.unusual == "refuse":
            self.failures += 1
            return refused_report(batch.size, unusual)
        if unusual and self.unusual == "warn":
            warnings.warn(f"this batch is unusual: {'; '.join(map(str, unusual))}", stacklevel=3)
        before = self.filtering.next_prior(self._posterior, self.prior) if self.batches else self._posterior
        kept = self.filtering.forgetting if self.batches else 1.0
        noise = {n: dataclasses.replace(p, weight=p.weight * kept) for n, p in self.noise.items()}
        result, padded = learn_batch(self, batch, before, noise, carried)
        found = {name: result[name] for name in before if name in result}
        accepted = not ended_badly(result) and len(found) == len(before) and all_sound(found)
        raised = any("damping raised" in line for line in result.guard)
        caution = min(_MOST_CAUTION, self.caution + _MORE_CAUTION) if raised else max(0, self.caution - 1)
        belief = result[wanted][: batch.size] if wanted is not None and accepted else None
        number = self._history.count if accepted else None
        likely = self._log_evidence(result, padded, before) if evidence else None
        layers = [s.name for s in self.net.sites if isinstance(s.layer, Transform)]
        report = report_of(result, batch.size, accepted, belief, number, likely, carry, layers, unusual)
        if not accepted:
            self.failures, self.caution = self.failures + 1, caution
            return report
        seen = {n: batch.measured(head=n == self.net.head) for n in noise}
        learnt = {n: LearnNoise(result.noise[n], noise[n].weight + seen[n]) for n in noise}
        known = Before(self._posterior, self.noise, self.caution)
        repeated = [name for names in self._tied or () for name in names[1:]]
        entry = self._history.entry(report, known, before, found, noise, learnt, statistics, repeated)
        # All at once: an interruption leaves the old state, or the new.
        counts = self.batches + 1, self.examples + batch.size
        with self._swap:
            self._posterior, self.noise, self.batches, self.examples, self.caution = found, learnt, *counts, caution
            self._history.put(entry)
        return report

    def _log_evidence(self, result: Result, batch: Batch, before: Mapping[str, Gaussian]) -> float:
        return log_evidence_of_batch(self, result, batch, before)

    def fit(self, batches: Iterable[Any], callbacks: Sequence[Any] = ()) -> Learner:
        """Learn from a stream: any iterable of batches, a data loader of PyTorch included.

        **Arguments:**

        - `batches`: each `x`, a pair `(x, y)`, or a mapping of arguments of `update` by name.
        - `callbacks`: after every batch each is called with its report, or its `on_batch(report)` if it has one, such
            as `gbp.DriftAlarm()`.
        """
        from .stream import learn_stream

        learn_stream(self, batches, callbacks)
        return self

    def history(self) -> list[BatchRecord]:
        """The batches that were learnt from, in their order: the last 10,000."""
        return list(self._history.entries)

    @locked
    def forget(self, batch: int, again: Iterable[Any] | None = None) -> None:
        """Take back what a recorded batch has said (`record=True`): the posterior divided by its contribution.

        The last batch is taken back bit for bit. What batches after it have said was said with it known: of others the
        result is not that of a learner that never saw the batch, unless the posterior factorises, or unless the batches
        after it are given `again`: then all of them are divided away, and these learnt anew. If a parameter would be
        vaguer than its prior, a `ValueError` says so, and nothing changes.

        **Arguments:**

        - `batch`: its number, `report.batch` or as in `history()`.
        - `again`: the batches after it that are not forgotten, in their order, as `fit` takes them.
        """
        from .forgetting import forget_and_learn_again, forget_batch

        if again is None:
            forget_batch(self, batch)
        else:
            forget_and_learn_again(self, batch, again)

    def _checked(self, x: Numbers, y: Numbers | None = None, **more: Any) -> Batch:
        check_not_forked()
        if np.shape(x)[1:] != self.input_shape:
            raise ValueError(f"the learner takes examples of shape {self.input_shape}, got {np.shape(x)[1:]}")
        batch = self.net.batch(x, y, **more)
        if self.factors is not None and self._tied is None:
            self._share_tied(batch)
        return batch

    def _share_tied(self, batch: Batch) -> None:
        """Find out which parameters the user's factors tie: these have one prior, the product, under all their names.

        (Not before there is a batch: factors know it by its size.)
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

    def predict(
        self,
        x: Numbers,
        *,
        x_observed: Numbers | None = None,
        x_prior: Gaussian | None = None,
        parameters: str | None = None,
    ) -> Gaussian:
        """The belief of the outputs (before the head) by messages: `.mean` and `.std`, a row an example.

        No example depends on another (with generative layers or factors of your own, which go on until all are at rest:
        up to the tolerance of 1e-4 standard deviations).

        **Arguments:**

        - `x`, `x_observed`, `x_prior`: as `update`; any number of examples.
        - `parameters`: "fixed" or "random"; by default as the learner was told.
        """
        batch = self._checked(x, x_observed=x_observed, x_prior=x_prior)
        return answer(copy.copy(self), batch, parameters, None)

    def query(
        self,
        want: str = "output",
        *,
        x: Numbers | None = None,
        y: Numbers | None = None,
        x_observed: Numbers | None = None,
        y_observed: Numbers | None = None,
        x_prior: Gaussian | None = None,
        parameters: str | None = None,
    ) -> Gaussian:
        """The belief of inputs, outputs or any activation, given what was observed of inputs and targets.

        Pixels that are missing are filled in by generative layers (`gbp.ConvTranspose2D`); a feed-forward first layer
        can hardly say anything about them, and asking it warns.

        **Arguments:**

        - `want`: "input", "output", or the name of a layer: its outputs.
        - `x`, `y`, `x_observed`, `y_observed`, `x_prior`: as `update`; without `x` nothing is observed of the inputs,
            and there are as many examples as targets.
        - `parameters`: as `predict`.
        """
        wanted = variable(self, want)
        if want == "input" and not explains_input(self.net):
            warnings.warn("only the prior of the pixels answers: the first layer is not generative", stacklevel=2)
        if x is None:
            if y is None or x_observed is not None:
                raise ValueError("query needs x or y" if y is None else "x_observed needs x")
            y = np.atleast_1d(np.asarray(y))
            x, x_observed = np.zeros((len(y), *self.input_shape)), False
        batch = self._checked(x, y, x_observed=x_observed, y_observed=y_observed, x_prior=x_prior)
        return answer(copy.copy(self), batch, parameters, wanted)

    def log_evidence(
        self,
        x: Numbers,
        y: Numbers | None = None,
        *,
        x_observed: Numbers | None = None,
        y_observed: Numbers | None = None,
        parameters: str | None = None,
    ) -> np.ndarray:
        """How likely each example is: low for anomalies. One number an example, a log density.

        `log p(y | x)`; of networks whose first layer is generative `log p(x)`, or `log p(x, y)` with targets, in which
        what is not observed is left out. Exact on trees of linear layers, else the Bethe approximation.

        **Arguments:**

        - `x`, `y`, `x_observed`, `y_observed`: as `update`.
        - `parameters`: as `predict`.
        """
        batch = self._checked(x, y, x_observed=x_observed, y_observed=y_observed)
        return log_evidence(copy.copy(self), batch, parameters)

    def uncertainty(
        self, x: Numbers, *, x_observed: Numbers | None = None, x_prior: Gaussian | None = None
    ) -> Uncertainty:
        """What is predicted, and which part of its uncertainty more data would take away; arguments as `predict`."""
        batch = self._checked(x, x_observed=x_observed, x_prior=x_prior)
        return split(copy.copy(self), batch)

    def sample(self, x: Numbers, count: int = 1, *, seed: int = 0, **how: Any) -> np.ndarray:
        """Draws `(count, batch, ...)` of what would be observed: values with the noise of the head, or classes.

        Each output of each example for itself, by its belief. `how` as `predict`.
        """
        self._checked(x, **{name: how[name] for name in ("x_observed", "x_prior") if name in how})
        now = copy.copy(self)
        return draw(now, now.predict(x, **how), count, seed)

    def predict_proba(self, x: Numbers, **how: Any) -> Array:
        """Class probabilities `(batch, classes)`: the mean softmax over the Gaussian belief of the logits.

        Arguments as `predict`.
        """
        if not isinstance(self.net.layers[-1], SoftmaxObservation):
            raise ValueError("predict_proba needs a network that ends with gbp.SoftmaxObservation")
        return self.net.probabilities(self.predict(x, **how))

    def forward(self, x: Numbers) -> Array:
        """The outputs by a forward pass with the posterior means: no inference, a read-out to compare with."""
        out = self.net.forward(self._checked(x).x, self._posterior)
        if self.net.output not in out:
            raise ValueError("a network with generative layers has no forward pass")
        return out[self.net.output]

    @locked
    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file, which appears whole or not at all.

        Functions (`factors`, an activation of your own) cannot be saved: `factors` must be given again to `load`.
        `learner.note`, numbers and strings by name, goes along.
        """
        from .checkpoint import save

        save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, factors: Callable[[FactorGraph], Any] | None = None) -> Learner:
        """Read what `save` wrote, checked: to go on with it is as if nothing had happened.

        Raises a `gbp.CheckpointError` that says what is wrong with the file. Nothing in it is executed.
        """
        from .checkpoint import load

        return load(Path(path), factors)
