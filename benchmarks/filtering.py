"""What handing on marginals loses: filtering with factorised posteriors against the full posterior.

    python benchmarks/filtering.py     # fills docs/concepts/filtering.md and draws docs/images/filtering_loss.png

Linear regression with P = 20 weights `~ N(0, 1)`, features with correlation `rho` between any two, noise 0.5. Every
batch of B examples is solved under the prior it was given; then only the mean and the variance of each weight are
handed on: the exact variances, or those of belief propagation (its means are the exact ones). Dense algebra in float64;
tests/learner/test_filtering.py checks that `gbp.Learner` does the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gbplearn.show.figures import BLUE, GREY, ORANGE

ROOT = Path(__file__).parents[1]
WEIGHTS, NOISE, EXAMPLES, DRAWS = 20, 0.5, 400, 50
CORRELATIONS, RATIOS = (0.0, 0.5, 0.9), (0.1, 1.0, 4.0)


def posterior(mean, precision, x, y):
    """Mean and covariance of the weights after a batch, from a Gaussian prior."""
    total = precision + x.T @ x / NOISE**2
    return np.linalg.solve(total, precision @ mean + x.T @ y / NOISE**2), np.linalg.inv(total)


def loopy_precision(precision, x, sweeps=300):
    """Precisions of the weights that belief propagation ends with: row by row, leaving each weight's own share out."""
    told = np.zeros_like(x)
    for _ in range(sweeps):
        others = x**2 / (precision + told.sum(0) - told)
        new = x**2 / (NOISE**2 + others.sum(1, keepdims=True) - others)
        told, moved = new, np.abs(new - told).max()
        if moved < 1e-9 * new.max():
            break
    return precision + told.sum(0)


def loss(rho: float, batch: int, loopy: bool, rng: np.random.Generator) -> tuple[float, float, float]:
    """Error of the means in posterior standard deviations (root mean square), KL a weight, ratio of the deviations."""
    correlation = (1 - rho) * np.eye(WEIGHTS) + rho
    x = rng.multivariate_normal(np.zeros(WEIGHTS), correlation, EXAMPLES)
    y = x @ rng.standard_normal(WEIGHTS) + NOISE * rng.standard_normal(EXAMPLES)
    full_mean, full = posterior(np.zeros(WEIGHTS), np.eye(WEIGHTS), x, y)
    mean, variance = np.zeros(WEIGHTS), np.ones(WEIGHTS)
    for start in range(0, EXAMPLES, batch):
        rows = slice(start, start + batch)
        before = 1 / variance
        mean, covariance = posterior(mean, np.diag(before), x[rows], y[rows])
        variance = 1 / loopy_precision(before, x[rows]) if loopy else np.diag(covariance)
    deviation, off = np.sqrt(np.diag(full)), mean - full_mean
    divergence = (full.diagonal() / variance).sum() - WEIGHTS + (off**2 / variance).sum()
    divergence += np.log(variance).sum() - np.linalg.slogdet(full)[1]
    return (
        float(np.sqrt(np.mean((off / deviation) ** 2))),
        float(0.5 * divergence / WEIGHTS),
        float(np.mean(np.sqrt(variance) / deviation)),
    )


def draw(found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, which, label in zip(figure.subplots(1, 2), (0, 1), ("error of the means / sd", "KL a weight (nats)")):
        for ratio, colour in zip(RATIOS, (GREY, BLUE, ORANGE)):
            for loopy, style in ((True, "o-"), (False, "s:")):
                values = [found[rho, ratio, loopy][which] for rho in CORRELATIONS]
                told = f"P / B = {ratio:g}" if loopy else None
                axes.plot(CORRELATIONS, values, style, color=colour, markersize=4, label=told)
        axes.plot([], [], ":", color=GREY, label="exact marginals")
        axes.set(xlabel="correlation of the features", ylabel=label, yscale="log", xticks=CORRELATIONS)
        axes.legend(frameon=False, fontsize="small")
    return figure


def main() -> None:
    found = {}
    for rho in CORRELATIONS:
        for ratio in RATIOS:
            for loopy in (False, True):
                batch = round(WEIGHTS / ratio)
                draws = [loss(rho, batch, loopy, np.random.default_rng(seed)) for seed in range(DRAWS)]
                found[rho, ratio, loopy] = np.mean(draws, 0)
    draw(found).savefig(ROOT / "docs" / "images" / "filtering_loss.png", dpi=150)
    rows = [
        "| correlation | P / B | batches | error of the means, sd | KL a weight | sd / right one |",
        "|---" * 6 + "|",
    ]
    for rho in CORRELATIONS:
        for ratio in RATIOS:
            (e, d, w), (error, divergence, width) = found[rho, ratio, False], found[rho, ratio, True]
            cells = f"{error:.2f} ({e:.2f}) | {divergence:.2f} ({d:.2f}) | {width:.2f} ({w:.2f})"
            rows.append(f"| {rho:g} | {ratio:g} | {EXAMPLES // round(WEIGHTS / ratio)} | {cells} |")
    page = ROOT / "docs" / "concepts" / "filtering.md"
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    head, rest = page.read_text().split(begin)
    page.write_text(head + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
