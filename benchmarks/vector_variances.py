"""The regressions of `gbplearn experiment variances`, learnt with vector beliefs: how far standard deviations are off.

    python benchmarks/vector_variances.py     # prints rows for docs/concepts/variances.md

One batch of all rows, five seeds, float32. "vector": one vector for the weights, messages of two numbers a row;
"joint": vector activations, with what the family keeps. Outputs: of 200 fresh rows, by messages with random parameters.
"""

from __future__ import annotations

import numpy as np

import gbplearn as gbp
from gbplearn.apps.experiments.variance_graphs import regression

NOISE, FEATURES = 0.5, 20
HOW = {
    "vector, block": ("block", "scalar"),
    "joint, diagonal": ("diagonal", "vector"),
    "joint, block": ("block", "vector"),
}


def ratios(how: str, rows: int, correlation: float, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Of the weights, of the outputs, and the largest error of a mean in standard deviations."""
    posterior, activations = HOW[how]
    exact = regression(rows, FEATURES, correlation, NOISE, True, seed)
    rng = np.random.default_rng(seed)  # the same rows and values, as it draws them
    shared = rng.standard_normal((rows + len(exact.fresh), 1))
    x = np.sqrt(1 - correlation) * rng.standard_normal((len(shared), FEATURES)) + np.sqrt(correlation) * shared
    y = x[:rows] @ rng.standard_normal(FEATURES) + NOISE * rng.standard_normal(rows)
    tiny = 1e-3
    net = gbp.Sequential(
        gbp.Dense(1, sigma=tiny, weight_prior=1.0, weight_init=0.0, bias_prior=tiny, prior=1e3, posterior=posterior),
        gbp.GaussianObservation(sigma=NOISE),
        input_shape=(FEATURES,),
    )
    learner = gbp.Learner(net, activations=activations, unusual="learn", tolerance=1e-5)
    learner.update(x[:rows], y[:, None])
    name = "dense/parameters" if posterior == "block" else "dense/weight"
    belief = learner.posterior[name]
    mean, std = (np.asarray(a, float).ravel()[:FEATURES] for a in (belief.mean, belief.std))
    of_outputs = np.asarray(learner.predict(exact.fresh, parameters="random").std, float).ravel()
    # Without the noise of the layer, which the right ones do not have.
    of_outputs = np.sqrt(of_outputs**2 - tiny**2)
    off = np.abs(mean - exact.mean.ravel()) / exact.std.ravel()
    return std / exact.std.ravel(), of_outputs / exact.fresh_std, float(off.max())


def main() -> None:
    for rows in (4, 20, 100, 400):
        for correlation in (0.5, 0.9):
            for how in HOW:
                found = [ratios(how, rows, correlation, seed) for seed in range(5)]
                weights, outputs = (np.concatenate([f[i] for f in found]) for i in (0, 1))
                words = [f"{rows} rows of {FEATURES} features, correlation {correlation:g}", how]
                words += [f"{v:.3f}" for v in (np.median(weights), weights.min(), weights.max(), np.median(outputs))]
                print(f"| {' | '.join(words)} | {max(f[2] for f in found):.0e} |", flush=True)


if __name__ == "__main__":
    main()
