"""A batch taken back, and those after it learnt again."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .filtering import Beliefs
from .history import Before
from .report.progress import progress
from .stream import batch_arguments

if TYPE_CHECKING:
    from .learner import Learner


def forget_batch(learner: Learner, batch: int, least: Beliefs | None = None) -> None:
    """Divide by what a batch has said.

    **Arguments:** `least`: what is known without any recorded batch; by default the prior of the learner.
    """
    now = Before(learner._posterior, learner.noise, learner.caution)
    least = learner.prior if least is None else least
    left, told = learner._history.without(batch, now, least, learner.filtering)
    counts = learner.batches - 1, learner.examples - told.examples
    with learner._swap:
        learner._history.forget(batch)
        learner._posterior, learner.noise, learner.caution = left.beliefs, left.noise, left.caution
        learner.batches, learner.examples = counts


def forget_and_learn_again(learner: Learner, batch: int, again: Iterable[Any]) -> None:
    """Divide by what a batch and all after it have said: what was known before it. Then learn those after it again.

    All of it, or nothing: a copy does it, and on an error, or an interruption, the learner is what it was.
    """
    learner._history.check_recorded(batch)
    later = [e for e in learner._history.entries if e.batch > batch and not e.forgotten]
    batches = [batch_arguments(b) for b in again]
    sizes = [len(np.asarray(b["x"])) for b in batches]
    if sizes != [e.examples for e in later]:
        raise ValueError(
            f"again must be the {len(later)} batches after {batch}, of {[e.examples for e in later]} examples, "
            f"got {sizes}"
        )
    trial = copy.copy(learner)
    for entry in reversed(later):
        forget_batch(trial, entry.batch)
    forget_batch(trial, batch)
    trial._history.go_back(batch)
    trial.unusual = "learn"  # as they were before, whatever they are
    for entry, arguments in progress(list(zip(later, batches)), "learn again"):
        trial._history.skip_to(entry.batch)
        if not trial.update(**arguments).accepted:
            raise ValueError(f"batch {entry.batch} could not be learnt again; nothing has changed")
    trial._history.skip_to(learner._history.count)
    trial.unusual = learner.unusual
    learner._become(trial)
