"""The regression of `benchmarks/filtering.py`, learnt by `gbp.Learner` with a covariance: what is left to be lost.

    python benchmarks/vector_filtering.py     # prints the table of docs/concepts/vectors.md, and draws its picture

All by messages, in float32. KL is of the posterior of all data at once (dense algebra, float64) from the learner's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gbplearn as gbp
from filtering import EXAMPLES, NOISE, WEIGHTS, posterior
from gbplearn.show.figures import BLUE, GREY, ORANGE

ROOT = Path(__file__).parents[1]
CORRELATION, BATCHES, DRAWS = 0.9, (200, 20, 5), 10


def regression(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    correlation = (1 - CORRELATION) * np.eye(WEIGHTS) + CORRELATION
    x = rng.multivariate_normal(np.zeros(WEIGHTS), correlation, EXAMPLES)
    return x, x @ rng.standard_normal(WEIGHTS) + NOISE * rng.standard_normal(EXAMPLES)


def learn(how: str, batch: int, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the weights after all batches."""
    net = gbp.Sequential(
        gbp.Dense(1, sigma=1e-3, weight_prior=1.0, weight_init=0.0, bias_prior=1e-3, prior=1e3, posterior=how),
        gbp.GaussianObservation(sigma=NOISE),
    )
    learner = gbp.Learner(net, (x.shape[1],), tolerance=1e-5, damping=0.0 if how == "block" else 0.5, unusual="learn")
    for i in range(0, len(x), batch):
        learner.update(x[i : i + batch], y[i : i + batch, None])
    if how == "diagonal":
        belief = learner.posterior["dense/weight"]
        return np.asarray(belief.mean, float)[:, 0], np.diag(np.asarray(belief.variance, float)[:, 0])
    vector = learner.posterior["dense/parameters"]
    return np.asarray(vector.mean, float)[0, :-1], np.asarray(vector.covariance, float)[0, :-1, :-1]


def divergence(mean: np.ndarray, covariance: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """KL a weight, in nats."""
    full_mean, full = posterior(np.zeros(x.shape[1]), np.eye(x.shape[1]), x, y)
    off, inverse = mean - full_mean, np.linalg.inv(covariance)
    logs = np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(full)[1]
    return float(0.5 * (np.trace(inverse @ full) - len(mean) + off @ inverse @ off + logs) / len(mean))


def draw(path: Path) -> None:
    """Two weights of alike features, learnt in batches of two: what each family knows of them."""
    from matplotlib.figure import Figure

    x, y = regression(0)
    x = x[:20, :2]
    y = x @ np.array([0.8, -0.3]) + NOISE * np.random.default_rng(1).standard_normal(20)
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    axes, turn = figure.subplots(), np.linspace(0, 2 * np.pi, 200)
    exact = posterior(np.zeros(2), np.eye(2), x, y)
    named = [("exact", exact, GREY, "-"), ("block", learn("block", 2, x, y), ORANGE, "--")]
    named.append(("diagonal", learn("diagonal", 2, x, y), BLUE, "-"))
    for name, (mean, covariance), colour, style in named:
        ring = mean[:, None] + 2 * np.linalg.cholesky(covariance) @ np.stack([np.cos(turn), np.sin(turn)])
        axes.plot(
            *ring, style, color=colour, linewidth=4 if name == "exact" else 1.6, alpha=0.6 if name == "exact" else 1
        )
        axes.plot(*mean, "o", color=colour, markersize=8 if name == "exact" else 4)
        axes.plot([], [], style, color=colour, label=name)
    axes.set(xlabel="first weight", ylabel="second weight", title="two standard deviations")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    draw(ROOT / "docs" / "images" / "vector_beliefs.png")
    print("| examples a batch | diagonal | block |\n|---|---|---|")
    for batch in BATCHES:
        cells = []
        for how in ("diagonal", "block"):
            draws = [divergence(*learn(how, batch, *regression(seed)), *regression(seed)) for seed in range(DRAWS)]
            cells.append(f"{np.mean(draws):.2g}")
        print(f"| {batch} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
