"""`gbp.merge`: fuses models that were trained apart, each on its own data, into one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np

from ..core.gaussian import Gaussian
from ..core.noise import LearnNoise
from ..core.unit_vectors import UnitVectors
from ..core.vector import Belief
from ..layers.features import Fitted
from .history import History
from .learner import Learner, LearnerState
from .posterior import Posterior, check_same_parameters
from .unusual import joined


@overload
def merge(models: Sequence[Learner], prior: None = None) -> Learner: ...


@overload
def merge(models: Sequence[Mapping[str, Belief]], prior: Mapping[str, Belief]) -> Posterior: ...


def merge(
    models: Sequence[Learner] | Sequence[Mapping[str, Belief]], prior: Mapping[str, Belief] | None = None
) -> Learner | Posterior:
    """Fuse models that were trained apart, each on its own data, from one prior.

    The contribution of each is its posterior divided by the prior; the prior is multiplied by all of them:

        p(w | all data) ∝ p(w)^(1 - n) p(w | data 1) ... p(w | data n)
        lam = sum_i lam_i - (n - 1) lam_0 ,   eta = sum_i eta_i - (n - 1) eta_0

    That is exact if the true posteriors factorise over the parameters, as the Gaussians here do. Otherwise it neglects
    the correlations that one model's data induce between parameters, and that nonlinear layers were linearised at
    different points.

    **Arguments:**

    - `models`: learners with one network, one prior (the same seed) and the same features; or their posteriors.
    - `prior`: that all began with; of learners it is known.

    **Returns:** a learner that goes on from there, or the posterior. The models stay as they are.
    """
    several = list(models)
    if not several:
        raise ValueError("merge needs at least one model")
    if not any(isinstance(m, Learner) for m in several):
        if prior is None:
            raise ValueError("merge needs the prior that the posteriors began with: merge([a, b], prior)")
        return Posterior(_merged([m for m in several if not isinstance(m, Learner)], prior))
    learners = [copy.copy(m) for m in several if isinstance(m, Learner)]  # as they are now
    if len(learners) < len(several):
        raise TypeError("merge takes learners or posteriors, not both")
    if prior is not None:
        raise ValueError("merge knows the prior of learners: leave prior= away")
    return _merged_learners(learners)


def _merged(posteriors: list[Mapping[str, Belief]], prior: Mapping[str, Belief]) -> dict[str, Belief]:
    check_same_parameters([prior, *posteriors])
    out = {}
    for name, before in prior.items():
        several, dtype = [p[name] for p in posteriors], before.dtype
        if isinstance(before, UnitVectors):
            try:
                out[name] = type(before).merged(several, before)
            except ValueError:
                raise ValueError(f"'{name}' cannot be merged: a posterior is vaguer than the prior") from None
            continue
        # In double precision: sums of many large numbers, of which the prior is taken out again.
        eta, lam = (
            sum(np.asarray(getattr(g, part), float) for g in several)
            - (len(several) - 1) * np.asarray(getattr(before, part), float)
            for part in ("eta", "lam")
        )
        if not all(g.family.scalar for g in (before, *several)):
            raise ValueError(f"'{name}' is a block; only scalar parameters can be merged")
        if not (np.asarray(lam) > 0).all():
            raise ValueError(f"'{name}' cannot be merged: a posterior is vaguer than the prior")
        out[name] = Gaussian(jnp.asarray(eta, dtype), jnp.asarray(lam, dtype))
    return out


def _merged_learners(learners: list[Learner]) -> Learner:
    first = learners[0]
    for other in learners[1:]:
        if repr(other.net) != repr(first.net) or other.input_shape != first.input_shape:
            raise ValueError("merge takes learners of one network; these differ")
        if other.features != first.features or not _same_numbers(*(m.state.features for m in (first, other))):
            raise ValueError("merge takes learners with the same features: fit_features(x) before they learn")
        if other.activations != first.activations:
            raise ValueError("merge takes learners of one kind of activations; these differ")
        check_same_parameters([first.prior, other.prior])
        for name, g in first.prior.items():
            pairs = zip(jax.tree.leaves(g), jax.tree.leaves(other.prior[name]), strict=True)
            if not all(np.array_equal(a, b) for a, b in pairs):
                raise ValueError(
                    f"merge takes learners that began with one prior; that of '{name}' differs (seed=, fit_priors)"
                )
    out = copy.copy(first)
    out.options, states = dict(first.options), [learner.state for learner in learners]
    history = History(states[0].history.record, states[0].history.most, states[0].history.most_contributions)
    history.fits = states[0].history.fits
    history.begin_with(joined(state.history.statistics for state in states))
    out.restore(
        LearnerState(
            dict(first.prior),
            _merged([state.posterior for state in states], first.prior),
            _merged_noise([state.noise for state in states], first.net.start_noise(None)),
            history,
            tied=states[0].tied,
            batches=sum(state.batches for state in states),
            examples=sum(state.examples for state in states),
            features=states[0].features,
            fitted=states[0].fitted,
        )
    )
    return out


def _same_numbers(a: Fitted | None, b: Fitted | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def _merged_noise(several: list[dict[str, LearnNoise]], prior: dict[str, LearnNoise]) -> dict[str, LearnNoise]:
    """The same for noise, whose precision is Gamma distributed: weights add up, and so do squares."""
    out = {}
    for name, before in prior.items():
        extra = len(several) - 1
        weight = sum(n[name].weight for n in several) - extra * before.weight
        squares = sum(n[name].squares for n in several) - extra * before.squares
        if not (weight > 0 and squares > 0):
            raise ValueError(f"the noise of '{name}' cannot be merged: one is vaguer than the prior")
        out[name] = LearnNoise((squares / weight) ** 0.5, weight)
    return out
