"""What handing on marginals loses: filtering with factorised posteriors against the full posterior.

    python benchmarks/filtering.py     # fills docs/filtering.md and draws docs/images/filtering_loss.png

Linear regression with P = 20 weights `~ N(0, 1)`, features with correlation `rho` between any two, noise 0.5. Every
batch of B examples is solved exactly under the prior it was given; then only the mean and the variance of each weight
are handed on. Dense algebra in float64: the loss is that of filtering, not of messages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gbplearn.report.figures import BLUE, GREY, ORANGE

ROOT = Path(__file__).parents[1]
WEIGHTS, NOISE, EXAMPLES, DRAWS = 20, 0.5, 400, 50
CORRELATIONS, RATIOS = (0.0, 0.5, 0.9), (0.1, 1.0, 4.0)


def posterior(mean, precision, x, y):
    """Mean and covariance of the weights after a batch, from a Gaussian prior."""
    total = precision + x.T @ x / NOISE**2
    return np.linalg.solve(total, precision @ mean + x.T @ y / NOISE**2), np.linalg.inv(total)


def loss(rho: float, batch: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Error of the means in posterior standard deviations (root mean square), KL a weight, ratio of the deviations."""
    correlation = (1 - rho) * np.eye(WEIGHTS) + rho
    x = rng.multivariate_normal(np.zeros(WEIGHTS), correlation, EXAMPLES)
    y = x @ rng.standard_normal(WEIGHTS) + NOISE * rng.standard_normal(EXAMPLES)
    full_mean, full = posterior(np.zeros(WEIGHTS), np.eye(WEIGHTS), x, y)
    mean, variance = np.zeros(WEIGHTS), np.ones(WEIGHTS)
    for start in range(0, EXAMPLES, batch):
        rows = slice(start, start + batch)
        mean, covariance = posterior(mean, np.diag(1 / variance), x[rows], y[rows])
        variance = np.diag(covariance)
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
            values = [found[rho, ratio][which] for rho in CORRELATIONS]
            axes.plot(CORRELATIONS, values, "o-", color=colour, label=f"P / B = {ratio:g}")
        axes.set(xlabel="correlation of the features", ylabel=label, yscale="log", xticks=CORRELATIONS)
        axes.legend(frameon=False)
    return figure


def main() -> None:
    found = {}
    for rho in CORRELATIONS:
        for ratio in RATIOS:
            draws = [loss(rho, round(WEIGHTS / ratio), np.random.default_rng(seed)) for seed in range(DRAWS)]
            found[rho, ratio] = np.mean(draws, 0)
    draw(found).savefig(ROOT / "docs" / "images" / "filtering_loss.png", dpi=150)
    rows = [
        "| correlation | P / B | batches | error of the means, sd | KL a weight | sd / right one |",
        "|---" * 6 + "|",
    ]
    for (rho, ratio), (error, divergence, width) in found.items():
        batches = EXAMPLES // round(WEIGHTS / ratio)
        rows.append(f"| {rho:g} | {ratio:g} | {batches} | {error:.2f} | {divergence:.3f} | {width:.2f} |")
    page = ROOT / "docs" / "filtering.md"
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    head, rest = page.read_text().split(begin)
    page.write_text(head + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
