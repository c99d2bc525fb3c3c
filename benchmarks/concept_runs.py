"""What is measured for the pages of docs/concepts: steps of a stream, paths of damped messages, the guard at work.

python benchmarks/concept_runs.py [--png FOLDER]     # docs/images/concept-*.svg and benchmarks/concept_runs.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import gbplearn as gbp
import guard as guard_bench
from concept_pictures import keep
from gbplearn.apps.data.images import Images, load_images
from gbplearn.show.figures import BLUE, GREEN, GREY, ORANGE, PALE

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
    learner = gbp.Learner(network(scale, class_sigma), input_shape=(8, 8, 1), strained="learn", seed=SEED, **more)
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


def draw_learning_rate(found: dict) -> Figure:
    """How far means move, batch by batch: of one stream beside its standard deviations, and of all streams."""
    figure = Figure(figsize=(10.4, 4.6), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    seen = BATCH * np.arange(1, IMAGES // BATCH + 1)
    for (name, label), colour in zip(PARAMETERS.items(), (BLUE, ORANGE)):
        one = found["as it is"][name]
        left.plot(seen, one["std"], "--", color=colour, linewidth=1.4, label=f"{label}: posterior sd")
        left.plot(seen, one["moved"], "-", color=colour, label=f"{label}: moved")
    std = found["as it is"]["conv/weight"]["std"][-1]
    left.plot(seen, std * np.sqrt(seen[-1] / seen), ":", color=GREY, linewidth=1.2, label="1 / √n")
    left.set_title("one stream", fontsize=11)
    for (name, one), colour in zip(found.items(), (BLUE, GREEN, ORANGE, "#cc79a7", GREY)):
        label = f"{name}: {one['accuracy']:.0%} right"
        right.plot(seen, one["dense/weight"]["moved"], color=colour, label=label)
    right.set_title("last layer: movement of the means a batch", fontsize=11)
    for ax, ticks in ((left, (0.02, 0.05, 0.1, 0.2, 0.5)), (right, (0.0001, 0.001, 0.01, 0.1))):
        ax.set(xscale="log", yscale="log", xlabel="images seen")
        ax.minorticks_off()
        ax.set_xticks((50, 100, 200, 400, 800, 1400), ("50", "100", "200", "400", "800", "1400"))
        ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, -0.15))
    return figure


def draw_damping(path: dict) -> Figure:
    figure = Figure(figsize=(6.4, 3.4), layout="constrained", facecolor="white")
    ax = figure.subplots()
    for (name, means), colour in zip(path["means"].items(), (BLUE, GREEN, ORANGE, "#cc79a7")):
        off = np.abs(np.array(means) - path["exact"]).max(1)
        ax.plot(1 + np.arange(len(means)), off, color=colour, label=f"damping {name}")
    ax.set(yscale="log", xlabel="iteration", ylabel="largest error of a weight")
    ax.legend(frameon=False, fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def guarded() -> dict:
    """The first regression of guard.py, seed 0: energy of its rows in each iteration, plain and guarded."""
    (kind, n, p, (prior, *_)), *_ = guard_bench.KINDS.values()
    rng = np.random.default_rng(SEED)
    rows = guard_bench.features(kind, n, p, rng)
    y = rows @ rng.standard_normal(p) + 0.1 * rng.standard_normal(n)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (p,), prior=gbp.Gaussian.from_moments(0.0, prior))
    graph.add(gbp.Factor(guard_bench.predict, (rows, w[None]), y=y, sigma=0.1, linear=True, name="rows"))
    mean = np.linalg.solve(rows.T @ rows / 0.01 + np.eye(p) / prior**2, rows.T @ y / 0.01)
    found: dict = {"least": 0.5 * float(((y - rows @ mean) ** 2).sum() / 0.01)}
    for how in ("plain", "guarded"):
        result = gbp.infer(graph, iterations=300, guard=how == "guarded", throw=False)
        found[how] = {
            "energy": np.asarray(result.trace.energy["rows"], float).tolist(),
            "status": str(result.status),
            "guard": list(result.guard),
        }
    return found


def draw_guard(found: dict) -> Figure:
    figure = Figure(figsize=(8.8, 4.4), layout="constrained", facecolor="white")
    ax = figure.subplots()
    top, bottom = 1e10, 0.1
    energies = found["guarded"]["energy"]
    # Every attempt begins where the first did; the last iterations, with no energy, are for the precisions.
    begins = [i for i, e in enumerate(energies) if e == energies[0]] + [energies.index(0.0), len(energies)]
    words = ("as asked", "damped 0.7", "proximal, weight 4", "weight 16", "weight 64", "precisions")
    for number, (begin, end, word) in enumerate(zip(begins[:-1], begins[1:], words, strict=True)):
        ax.axvspan(begin + 0.5, end + 0.5, color=PALE, alpha=0.55 if number % 2 else 0.15, linewidth=0)
        ax.text((begin + end + 1) / 2, 1.5 * top, word, ha="center", va="bottom", fontsize=9, color=GREY)
    for how, colour, width in (("guarded", BLUE, 1.8), ("plain", ORANGE, 1.8)):
        energy = np.array(found[how]["energy"]) / found["least"]
        energy[~np.isfinite(energy)] = 1e36
        energy[energy == 0] = np.nan  # where precisions are computed, the means stay
        label = f"{'without' if how == 'plain' else 'with'} the guard: {found[how]['status'].split(';')[0]}"
        style = "--" if how == "plain" else "-"
        ax.plot(1 + np.arange(len(energy)), energy, style, color=colour, label=label, linewidth=width)
    ax.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    ax.text(2, 0.8, "the dense solution", fontsize=9, color=GREY, va="top")
    ax.set(
        yscale="log",
        ylim=(bottom, top),
        xlim=(0.5, len(energies) + 0.5),
        xlabel="iteration",
        ylabel="energy of the rows / that of the dense solution",
    )
    ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def streams() -> dict:
    digits = load_images("digits")
    return {name: stream(digits, *how) for name, how in STREAMS.items()}


RUNS = {"streams": streams, "paths": paths, "guard": guarded}


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--png", type=Path, help="folder for PNGs")
    parser.add_argument(
        "--only", nargs="*", choices=sorted(RUNS), help="measure these, and take the others as they are"
    )
    asked = parser.parse_args()
    file = Path(__file__).with_suffix(".json")
    report = {} if asked.only is None else json.loads(file.read_text())
    report |= {name: RUNS[name]() for name in (RUNS if asked.only is None else asked.only)}
    file.write_text(json.dumps(report, indent=1) + "\n")
    keep(draw_learning_rate(report["streams"]), "learning-rate", asked.png)
    keep(draw_damping(report["paths"]), "damping", asked.png)
    keep(draw_guard(report["guard"]), "guard", asked.png)


if __name__ == "__main__":
    main()
