"""What is measured for the pages of docs/concepts: steps of a stream, paths of damped messages, the guard at work.

python benchmarks/concept_runs.py [--png FOLDER]     # docs/images/concept-*.svg and benchmarks/concept_runs.json
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gbplearn as gbp
import guard as guard_bench
from concept_pictures import keep
from gbplearn.data.images import Images, load_images
from gbplearn.report.figures import BLUE, GREEN, GREY, ORANGE

BATCH, IMAGES, SEED = 50, 1400, 0
PARAMETERS = {"conv/weight": "filters", "dense/weight": "weights of the last layer"}
# Name: factor on the priors of the weights, noise of the classes, what else the learner is told.
STREAMS: dict[str, tuple[float, float, dict]] = {
    "as it is": (1.0, 0.01, {}),
    "priors a third as wide": (1 / 3, 0.01, {}),
    "priors three times as wide": (3.0, 0.01, {}),
    "class noise 1 instead of 0.01": (1.0, 1.0, {}),
    "process noise 0.02": (1.0, 0.01, {"process_noise": 0.02}),
}
DAMPINGS = (0.0, 0.5, 0.8, 0.95)


def network(scale: float, class_sigma: float) -> gbp.Sequential:
    """That of the README, with other priors or noise."""
    return gbp.Sequential(
        gbp.Conv2D(
            8, kernel=3, activation="leaky_relu", sigma=0.01, weight_prior=0.3 * scale, bias_prior=0.1, prior=3.0
        ),
        gbp.MaxPool2D(2, sigma=0.01, prior=3.0),
        gbp.Dense(10, sigma=0.01, weight_prior=0.15 * scale, bias_prior=0.15, prior=2.0, weight_init=0.0),
        gbp.SoftmaxObservation(sigma=class_sigma),
    )


def rms(a) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(a)))))


def stream(digits: Images, scale: float, class_sigma: float, more: dict) -> dict:
    """By batch: how far the means moved and the posterior standard deviation, root mean square over the parameters."""
    learner = gbp.Learner(network(scale, class_sigma), input_shape=(8, 8, 1), seed=SEED, **more)
    order = np.random.default_rng(SEED).permutation(len(digits.train_y))[:IMAGES]
    found = {name: {"moved": [], "std": []} for name in PARAMETERS}
    for start in range(0, IMAGES, BATCH):
        rows = order[start : start + BATCH]
        before = {name: np.asarray(learner.posterior[name].mean) for name in PARAMETERS}
        learner.update(digits.train_x[rows], digits.train_y[rows])
        for name, kept in found.items():
            kept["moved"].append(rms(np.asarray(learner.posterior[name].mean) - before[name]))
            kept["std"].append(rms(learner.posterior[name].std))
    right = np.asarray(learner.predict_proba(digits.test_x)).argmax(1) == digits.test_y
    return {**found, "accuracy": float(right.mean())}


def paths(rows: int = 60, features: int = 10, iterations: int = 60) -> dict:
    """A linear regression: a weight after each iteration by damping, and its value by a dense solve."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((rows, features))
    y = x @ rng.standard_normal(features) + 0.5 * rng.standard_normal(rows)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (features,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    graph.add(gbp.Factor(guard_bench.predict, (x, w[None]), y=y, sigma=0.5, linear=True, name="rows"))
    exact = np.linalg.solve(np.eye(features) + x.T @ x / 0.25, x.T @ y / 0.25)
    found = {}
    for damping in DAMPINGS:
        state, means = gbp.init(graph), []
        for _ in range(iterations):
            state = gbp.step(graph, state, damping=damping)
            means.append(np.asarray(gbp.beliefs(graph, state)["w"].mean, float).tolist())
        found[f"{damping:g}"] = means
    return {"exact": exact.tolist(), "means": found}


def draw_learning_rate(streams: dict, path: dict) -> Figure:
    figure = Figure(figsize=(12.0, 4.3), layout="constrained", facecolor="white")
    left, middle, right = figure.subplots(1, 3)
    seen = BATCH * np.arange(1, IMAGES // BATCH + 1)
    for (name, label), colour in zip(PARAMETERS.items(), (BLUE, ORANGE)):
        one = streams["as it is"][name]
        left.plot(seen, one["std"], "--", color=colour, linewidth=1.2)
        left.plot(seen, one["moved"], "-", color=colour, label=label)
    start = streams["as it is"]["conv/weight"]["moved"][0]
    left.plot(seen, start * seen[0] / seen, ":", color=GREY, linewidth=1.2)
    left.annotate("1 / n", (seen[-1], start / len(seen)), (-4, 10), textcoords="offset points", color=GREY, ha="right")
    left.plot([], [], "-", color=GREY, label="movement of the means a batch")
    left.plot([], [], "--", color=GREY, label="posterior standard deviation")
    left.set_title("Steps of a stream", fontsize=11)
    colours = (BLUE, GREEN, ORANGE, "#cc79a7", GREY)
    for (name, one), colour in zip(streams.items(), colours):
        middle.plot(seen, one["conv/weight"]["moved"], color=colour, label=f"{name} ({one['accuracy']:.0%})")
    middle.set_title("Movement of the filters, by what is assumed", fontsize=11)
    for ax in (left, middle):
        ax.set(xscale="log", yscale="log", xlabel="images seen")
        ax.set_xticks((50, 100, 200, 400, 800, 1400), ("50", "100", "200", "400", "800", "1,400"))
        ax.minorticks_off()
    for (name, means), colour in zip(path["means"].items(), (BLUE, GREEN, ORANGE, "#cc79a7")):
        off = np.abs(np.array(means) - path["exact"]).max(1)
        right.plot(1 + np.arange(len(means)), off, color=colour, label=f"damping {name}")
    right.set_title("Damping: another path, the same end", fontsize=11)
    right.set(yscale="log", xlabel="iteration", ylabel="largest error of a weight")
    for ax in (left, middle, right):
        ax.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def guarded() -> dict:
    """The first regression of guard.py, seed 0: energy above its least after each iteration, plain and guarded."""
    (kind, n, p, (prior, *_)), *_ = guard_bench.KINDS.values()
    rng = np.random.default_rng(SEED)
    rows = guard_bench.features(kind, n, p, rng)
    y = rows @ rng.standard_normal(p) + 0.1 * rng.standard_normal(n)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (p,), prior=gbp.Gaussian.from_moments(0.0, prior))
    graph.add(gbp.Factor(guard_bench.predict, (rows, w[None]), y=y, sigma=0.1, linear=True, name="rows"))
    mean = np.linalg.solve(rows.T @ rows / 0.01 + np.eye(p) / prior**2, rows.T @ y / 0.01)
    least = 0.5 * float(((y - rows @ mean) ** 2).sum() / 0.01 + (mean**2).sum() / prior**2)
    found: dict = {"least": least}
    for how in ("plain", "guarded"):
        result = gbp.infer(graph, iterations=300, guard=how == "guarded", throw=False)
        found[how] = {
            "energy": np.asarray(result.trace.total_energy, float).tolist(),
            "status": str(result.status),
            "guard": list(result.guard),
        }
    return found


def draw_guard(found: dict) -> Figure:
    figure = Figure(figsize=(8.4, 4.4), layout="constrained", facecolor="white")
    ax: Axes = figure.subplots()
    for how, colour in (("plain", ORANGE), ("guarded", BLUE)):
        energy = np.array(found[how]["energy"]) / found["least"]
        energy = energy[: np.argmin(np.isfinite(energy)) if not np.isfinite(energy).all() else None]
        label = f"{how}: {found[how]['status'].split(';')[0]}"
        ax.plot(1 + np.arange(len(energy)), energy, color=colour, label=label, linewidth=1.6)
    for number, line in enumerate(m for m in found["guarded"]["guard"] if m.startswith("iteration")):
        at = int(re.findall(r"\d+", line)[0])
        ax.axvline(at, color=GREY, linewidth=0.8, linestyle=":")
        ax.annotate(str(number + 1), (at, 1), (3, -10), xycoords=("data", "axes fraction"), textcoords="offset points")
    ax.set(yscale="log", xlabel="iteration", ylabel="energy / least energy")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", type=Path, help="folder for PNGs")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    asked = parser.parse_args()
    file = Path(__file__).with_suffix(".json")
    if not asked.draw:
        digits = load_images("digits")
        streams = {name: stream(digits, *how) for name, how in STREAMS.items()}
        report = {"streams": streams, "paths": paths(), "guard": guarded()}
        file.write_text(json.dumps(report, indent=1) + "\n")
    report = json.loads(file.read_text())
    keep(draw_learning_rate(report["streams"], report["paths"]), "learning-rate", asked.png)
    keep(draw_guard(report["guard"]), "guard", asked.png)


if __name__ == "__main__":
    main()
