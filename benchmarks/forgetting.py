"""When does it suffice to divide by what a batch has said? The figures of docs/guides/learner.md, for five networks.

    python benchmarks/forgetting.py [SEEDS]     # a line a seed and network in results/ledger.jsonl

20 batches of 50 digits; each of them forgotten, one at a time, by `learner.forget(batch)` alone. The KL is from a
learner that never saw the batch; one that cannot be forgotten counts as it was. Beside it what reversing the examples
within every batch does, which says the same to a learner. Whitened features are fitted to training images that are in
none of the batches.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline

import gbplearn as gbp
from gbplearn.apps.experiments.digits import digits_stream
from gbplearn.apps.experiments.experiment import READ_OUT
from gbplearn.apps.report.record import Clock, append_to_ledger, ledger_line
from gbplearn.network.zoo import digits_classifier

SETTINGS = {"batch": 50, "batches": 20}


@dataclasses.dataclass(frozen=True)
class Case:
    net: gbp.Sequential
    features: Callable[[], Any] | None = None  # a transformer of scikit-learn; None for images as they are
    one_hot: bool = False  # what the head observes


def last_layer(sigma: float) -> gbp.Sequential:
    """One linear layer, and one number a class that is observed to be 1 or 0."""
    return gbp.Sequential(
        gbp.Dense(10, sigma=0.05, weight_prior=0.1, weight_init=0.0, bias_prior=0.3, prior=5.0),
        gbp.GaussianObservation(sigma=sigma),
    )


def noisy_convolutions() -> gbp.Sequential:
    """`digits_classifier` with more noise."""
    return gbp.Sequential(
        gbp.Conv2D(16, kernel=3, activation="leaky_relu", sigma=0.03, weight_prior=0.3, bias_prior=0.1, prior=3.0),
        gbp.MaxPool2D(2, sigma=0.03, prior=3.0),
        gbp.Dense(10, sigma=0.3, weight_prior=0.15, bias_prior=0.15, prior=2.0, weight_init=0.0),
        gbp.SoftmaxObservation(sigma=0.1),
    )


def whitened_pixels() -> Any:
    return PCA(40, whiten=True, random_state=0)


def whitened_kernel() -> Any:
    kernel = Nystroem(gamma=0.1, n_components=400, random_state=0)
    return make_pipeline(kernel, PCA(100, whiten=True, random_state=0))


CASES = {
    "convolutions": Case(digits_classifier()),
    "convolutions, more noise": Case(noisy_convolutions()),
    "40 whitened pixels, sigma 0.3": Case(last_layer(0.3), whitened_pixels, one_hot=True),
    "100 whitened kernels, sigma 0.3": Case(last_layer(0.3), whitened_kernel, one_hot=True),
    "100 whitened kernels, sigma 1": Case(last_layer(1.0), whitened_kernel, one_hot=True),
}


def forgotten(learner: gbp.Learner, batch: int) -> gbp.Learner | None:
    """A copy without the batch; None if it was refused."""
    out = copy.copy(learner)
    out._history = copy.deepcopy(learner._history)
    try:
        out.forget(batch)
    except ValueError:
        return None
    return out


def kl(mine: gbp.Learner, other: gbp.Learner) -> float:
    return sum(mine.posterior.diff(other.posterior).values())


def measure(case: Case, seed: int) -> dict[str, float]:
    size, count = SETTINGS["batch"], SETTINGS["batches"]
    everything, stream = digits_stream(seed, size), digits_stream(seed, size, count)
    x, test_x = stream.x, stream.test_x
    if case.features is not None:
        rest = everything.x[size * count :]
        fitted = case.features().fit(rest.reshape(len(rest), -1))
        x, test_x = (np.asarray(fitted.transform(a.reshape(len(a), -1)), float) for a in (x, test_x))
    y = np.eye(10)[stream.y] if case.one_hot else stream.y
    batches = [(x[b], y[b]) for b in stream.batches]

    def learnt(part):
        return gbp.Learner(case.net, x.shape[1:], record=True, strained="learn", seed=seed).fit(part)

    seen = learnt(batches)
    turned = learnt([(a[::-1], b[::-1]) for a, b in batches])
    before, after = [], []
    for gone in range(count):
        never = learnt(batches[:gone] + batches[gone + 1 :])
        left = forgotten(seen, gone)
        before.append(kl(never, seen))
        after.append(before[-1] if left is None else kl(never, left))
    ratios = np.array(after) / before
    each = {f"KL after / before, batch {gone}": float(r) for gone, r in enumerate(ratios)}
    tenth = {"KL in nats, before, batch 9": before[9], "KL in nats, divided, batch 9": after[9]}
    return {
        "accuracy/forward": stream.accuracy(seen.forward(test_x)),
        "batches at the iteration limit": float(sum(e.status == "ITERATION_LIMIT" for e in seen.history())),
        "KL in nats, examples reversed": kl(seen, turned),
        "KL in nats, before": float(np.mean(before)),
        "KL in nats, divided": float(np.mean(after)),
        "batches with half of the KL or less": float((ratios <= 0.5).sum()),
        **tenth,
        **each,
    }


def run(name: str, seed: int) -> None:
    clock, case = Clock(), CASES[name]
    metrics = measure(case, seed)
    features = None if case.features is None else repr(case.features())
    chosen = {**SETTINGS, "case": name, "network": repr(case.net), "features": features}
    line = ledger_line("forgetting", chosen, seed, metrics, {"forward": READ_OUT["forward"]}, clock)
    append_to_ledger(Path("results/ledger.jsonl"), line)
    print(seed, name, {k: round(v, 3) for k, v in metrics.items()}, flush=True)


def main() -> None:
    gbp.cache_programs()
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        for name in CASES:
            run(name, seed)


if __name__ == "__main__":
    main()
