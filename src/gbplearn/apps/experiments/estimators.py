"""`GBPClassifier` and `GBPRegressor`, their defaults untouched, on the tables that come with scikit-learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_friedman1
from sklearn.impute import SimpleImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ...core.progress import progress
from ...estimators.estimators import GBPClassifier, GBPRegressor
from ...show.figures import BLUE, GREY, ORANGE
from .experiment import Experiment, SeedRun, rows_by_read_out

_INTERVAL = 1.96  # standard deviations: 95 %
CLASSES = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
VALUES = {
    "diabetes": load_diabetes,
    "friedman1": lambda return_X_y: make_friedman1(1000, noise=1.0, random_state=0),
}
Table = tuple[np.ndarray, np.ndarray]


def classify(table: Table, missing: float, iterations: int, seed: int) -> dict[str, float]:
    """Accuracies on the held-out folds, with so many of the inputs missing in training and test."""
    x, y = table
    rows: dict[str, list[float]] = {"GBP": [], "linear": [], "mean imputation, then GBP": []}
    if missing:
        x = np.where(np.random.default_rng(seed).random(x.shape) < missing, np.nan, x)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(x, y):
        ours = GBPClassifier(iterations=iterations, random_state=seed)
        rows["GBP"].append(ours.fit(x[train], y[train]).score(x[test], y[test]))
        linear = make_pipeline(
            SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(max_iter=2000)
        )
        rows["linear"].append(float(linear.fit(x[train], y[train]).score(x[test], y[test])))
        if missing:
            filled = make_pipeline(
                SimpleImputer(keep_empty_features=True), GBPClassifier(iterations=iterations, random_state=seed)
            )
            name = "mean imputation, then GBP"
            rows[name].append(float(filled.fit(x[train], y[train]).score(x[test], y[test])))
    return {name: float(np.mean(values)) for name, values in rows.items() if values}


def regress(table: Table, iterations: int, seed: int) -> dict[str, dict[str, float]]:
    """R², and the share of held-out values in their 95 % intervals."""
    x, y = table
    scores: dict[str, list[float]] = {"GBP": [], "linear": []}
    shares: dict[str, list[float]] = {"GBP": [], "linear": []}
    for train, test in KFold(5, shuffle=True, random_state=0).split(x):
        models: dict[str, Any] = {
            "GBP": GBPRegressor(iterations=iterations, random_state=seed),
            "linear": BayesianRidge(),
        }
        for name, model in models.items():
            mean, std = model.fit(x[train], y[train]).predict(x[test], return_std=True)
            scores[name].append(1 - float(np.mean((mean - y[test]) ** 2) / np.var(y[test])))
            shares[name].append(float(np.mean(np.abs(mean - y[test]) < _INTERVAL * std)))
    return {
        "R²": {n: float(np.mean(v)) for n, v in scores.items()},
        "in 95 % intervals": {n: float(np.mean(v)) for n, v in shares.items()},
    }


@dataclasses.dataclass(frozen=True)
class Estimators(Experiment):
    """Five folds of each table. A seed is the `random_state` of our estimators, and which pixels are missing."""

    tables: tuple[str, ...] = (*CLASSES, *VALUES)
    missing: float = 0.3  # of the pixels of the digits, in a run of its own
    iterations: int = 1000

    name: ClassVar[str] = "estimators"
    title: ClassVar[str] = "Tables, by the scikit-learn face"
    seeds: ClassVar[int] = 3
    read_out: ClassVar[dict[str, str]] = {
        "GBP": "by messages with the parameters fixed at their means; intervals with the parameters at their "
        "posteriors and the learnt noise",
        "linear": "no GBP: logistic regression (standardised, missing inputs at their means), or BayesianRidge",
        "mean imputation, then GBP": "the same classifier after missing inputs were set to their means",
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = "Accuracy, or R², on the held-out folds: the defaults of our estimators and linear models."

    def __post_init__(self):
        for table in self.tables:
            if table not in (*CLASSES, *VALUES):
                raise ValueError(f"a table must be one of {', '.join((*CLASSES, *VALUES))}, got {table!r}")

    def run_seed(self, seed: int) -> SeedRun:
        """All tables."""
        metrics: dict[str, float] = {}
        for table in progress(self.tables, f"estimators, seed {seed}"):
            if table in VALUES:
                for what, found in regress(VALUES[table](return_X_y=True), self.iterations, seed).items():
                    metrics |= {f"{what}, {table}/{how}": value for how, value in found.items()}
                continue
            data = CLASSES[table](return_X_y=True)
            runs = {f"accuracy, {table}": 0.0}
            if table == "digits" and self.missing:
                runs[f"accuracy, {table}, {self.missing:.0%} missing"] = self.missing
            for what, missing in runs.items():
                found = classify(data, missing, self.iterations, seed)
                metrics |= {f"{what}/{how}": value for how, value in found.items()}
        return SeedRun(seed, metrics, metrics)

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A column a method."""
        return rows_by_read_out(results)

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """A row a table."""
        shown = [n for n in dict.fromkeys(k.rsplit("/", 1)[0] for k in runs[0].metrics) if not n.startswith("in 95")]
        figure = Figure(figsize=(7.2, 1.0 + 0.4 * len(shown)), layout="constrained")
        ax = figure.subplots()
        marks = {"linear": (GREY, "s"), "mean imputation, then GBP": (ORANGE, "D"), "GBP": (BLUE, "o")}
        for how, (colour, mark) in marks.items():
            points = [
                (r.metrics[f"{n}/{how}"], i) for i, n in enumerate(shown) for r in runs if f"{n}/{how}" in r.metrics
            ]
            if points:
                ax.scatter(*zip(*points), color=colour, marker=mark, s=36, label=how, zorder=3)
        ax.set_yticks(range(len(shown)), shown)
        ax.invert_yaxis()
        ax.set_xlim(0.4, 1.0)
        ax.grid(axis="x", color="#dddddd", linewidth=0.7)
        ax.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        return figure
