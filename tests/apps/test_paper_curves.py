"""Random layer order, iterations, stability: small cousins on the digits of scikit-learn, with a network of seconds."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.apps.data.images import load_images
from gbplearn.apps.experiments import async_layers, image_settings
from gbplearn.apps.experiments.async_layers import ITERATION, SWEEP, VISIT, AsyncLayers
from gbplearn.apps.experiments.experiment import run, total_cost
from gbplearn.apps.experiments.iterations import Iterations
from gbplearn.apps.experiments.stability import Stability


def small_network():
    return gbp.Sequential(
        gbp.Dense(10, weight_prior=0.2, prior=3.0, sigma=0.1), gbp.Dense(10, weight_init=0.0), gbp.SoftmaxObservation()
    )


@dataclasses.dataclass(frozen=True)
class SmallAsync(AsyncLayers):
    data: ClassVar[str] = "digits"


@dataclasses.dataclass(frozen=True)
class SmallIterations(Iterations):
    data: ClassVar[str] = "digits"


@dataclasses.dataclass(frozen=True)
class SmallStability(Stability):
    data: ClassVar[str] = "digits"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(image_settings.NETWORKS, "convolutional", small_network)


def test_random_order_has_as_many_iterations_or_as_many_visits(tmp_path, monkeypatch):
    experiment = SmallAsync(examples=120)
    results, *_ = run(experiment, [0], tmp_path, None)
    mean = {name: m["mean"] for name, m in results["metrics"].items()}
    assert mean[f"iterations a batch/{SWEEP}"] == mean[f"iterations a batch/{ITERATION}"]
    # Three groups: four visits a sweep, three of the random order; a batch may be off by half an iteration.
    assert mean[f"visits a batch/{SWEEP}"] == 4 * mean[f"iterations a batch/{SWEEP}"]
    assert mean[f"visits a batch/{VISIT}"] == pytest.approx(mean[f"visits a batch/{SWEEP}"], abs=1.5)
    for how in (SWEEP, ITERATION, VISIT):
        assert mean[f"test accuracy/{how}"] > 0.5
    monkeypatch.setattr(async_layers, "Learner", lambda *a, **k: pytest.fail("it ran again"))
    assert run(experiment, [0], tmp_path, None)[0]["metrics"] == results["metrics"]


@pytest.mark.slow
def test_every_pair_of_iterations_is_measured(tmp_path):
    experiment = SmallIterations(examples=150, tested=100, counts=(2, 80))
    results, *_ = run(experiment, [0], tmp_path, None)
    mean = {name: m["mean"] for name, m in results["metrics"].items()}
    assert mean["test accuracy, trained with 80/default"] > 0.8
    for how in ("forward", "random"):
        many = mean[f"test accuracy, trained with 80, asked with 80/{how}"]
        assert many == pytest.approx(mean["test accuracy, trained with 80/default"], abs=0.05)
    rows = experiment.rows(results)
    assert len(rows) == 1 + 2
    assert rows[0][:4] == ("trained with", "default", "forward, 2", "forward, 80")
    assert rows[2][1] == f"{100 * mean['test accuracy, trained with 80/default']:.1f}"


def test_a_damped_prediction_goes_on_from_where_it_was():
    """Eighty iterations in two parts are eighty, and end where the learner's own way ends."""
    images = load_images("digits").centred()
    learner = gbp.Learner(small_network(), (8, 8, 1), iterations=40)
    learner.update(images.train_x[:50], images.train_y[:50])
    x = images.test_x[:30]
    end = np.asarray(learner.predict(x).mean)
    once, twice = (
        SmallIterations(counts=counts, dropout=0.0).outputs_after(learner, x, "random", 0)
        for counts in ((80,), (2, 80))
    )
    np.testing.assert_allclose(once[80], twice[80], atol=1e-5)
    np.testing.assert_allclose(once[80], end, atol=0.02 * np.abs(end).max())


@pytest.mark.slow
def test_every_pair_of_damping_and_dropout_is_tried(tmp_path):
    experiment = SmallStability(examples=100, iterations=60, dampings=(0.9,), dropouts=(0.5,))
    results, *_ = run(experiment, [0], tmp_path, tmp_path / "ledger.jsonl")
    rows = experiment.rows(results)
    assert [row[:2] for row in rows[1:]] == [(f"0.9{more}", "0.5") for more in ("", " (activations 0.5)")]
    metrics = results["metrics"]
    for name, found in metrics.items():
        assert np.isfinite(found["values"]).all(), name
    assert metrics["test accuracy, separate damping 0.9, dropout 0.5/guarded"]["mean"] > 0.4
    (line,) = map(json.loads, (tmp_path / "ledger.jsonl").read_text().splitlines())
    assert line["cpu_seconds"] == results["cpu_seconds"]
    assert len(list(tmp_path.glob("seed-0-*.json"))) == 2


def test_costs_add_up():
    cost = {"commit": "a", "seconds": 1.0, "cpu_seconds": 2.0, "peak_memory_mb": 3.0}
    other = {"commit": "b, a", "seconds": 0.5, "cpu_seconds": 0.25, "peak_memory_mb": 2.0}
    none = {"commit": None, "seconds": 0.0, "cpu_seconds": 0.0, "peak_memory_mb": 9.0}
    assert total_cost([cost, other, none]) == {
        "commit": "a, b",
        "seconds": 1.5,
        "cpu_seconds": 2.25,
        "peak_memory_mb": 9.0,
    }
    assert total_cost([none])["commit"] is None


def test_each_has_its_settings_in_words():
    for experiment in (AsyncLayers(), Iterations(), Stability()):
        settings = experiment.settings()
        assert "SoftmaxObservation" in settings["network"]
        assert "data_dir" not in settings
