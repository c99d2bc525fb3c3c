"""One pass over images: stopped at any moment and resumed, what it writes, what it is compared with."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from typing import ClassVar

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.apps import cli
from gbplearn.apps.experiments import image_settings
from gbplearn.apps.experiments.catalogue import EXPERIMENTS
from gbplearn.apps.experiments.experiment import run
from gbplearn.apps.experiments.image_stream import ImageStream
from gbplearn.apps.learning_curve import in_portions, points_of_curve
from gbplearn.apps.report.record import settings_hash
from gbplearn.io.checkpoint import load


def small_network():
    return gbp.Sequential(gbp.Dense(10, weight_prior=0.3, weight_init=0.0, prior=3.0), gbp.SoftmaxObservation())


@dataclasses.dataclass(frozen=True)
class Small(ImageStream):
    """The digits of scikit-learn, which need no download, in place of MNIST."""

    name: ClassVar[str] = "small"
    data: ClassVar[str] = "digits"
    title: ClassVar[str] = "small"
    seeds: ClassVar[int] = 1
    published: ClassVar[dict[str, str]] = {}
    unknown: ClassVar[str | None] = "digits"


CHOSEN = {
    "adam": {"rate": 0.01, "steps": 10, "temperature": 2.0},
    "kalman": {"prior_std": 0.3},
    "linear": {"rate": 0.03, "steps": 5},
}


@pytest.fixture
def small(monkeypatch):
    """An experiment of seconds."""
    monkeypatch.setitem(image_settings.NETWORKS, "convolutional", small_network)
    monkeypatch.setitem(image_settings.CHOSEN, "digits", CHOSEN)
    monkeypatch.setitem(image_settings.CHOSEN_DEEP["dense-vector"], "digits", {"adam cosine": {"rate": 0.001}})
    monkeypatch.setattr(image_settings, "paper_classifier", small_network)
    return Small(examples=140, iterations=60, batch=20, compared=("adam", "kalman", "linear"))


def test_patches_stand_in_front_of_their_network(small, tmp_path, monkeypatch):
    front = gbp.WhitenedPatches(5, kernel=3)
    monkeypatch.setattr(image_settings, "patches_features", lambda mirrored: front)
    patches = dataclasses.replace(small, graph="patches")
    assert "features" not in small.settings()
    assert patches.settings()["features"] == repr(front)
    results, *_ = run(patches, [0], tmp_path / "out", None)
    assert results["metrics"]["test accuracy/random"]["mean"] > 0.4
    assert not any("/linear" in name for name in results["metrics"])
    learner = load(tmp_path / "out" / "seed-0.safetensors")
    images = patches._load()[0]
    order = np.random.default_rng(0).permutation(len(images.train_y))
    assert np.array_equal(learner.state.features["filters"], front.fit(images.train_x[order[:20]], 0)["filters"])


def test_classes_that_change_in_the_mirror_are_not_mirrored():
    assert image_settings.features("patches", "cifar10").mirrored
    assert not image_settings.features("patches", "mnist").mirrored
    assert image_settings.features("vector", "cifar10") is None


def test_a_pass_has_all_numbers_and_is_not_run_twice(small, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    results, *_ = run(small, [0, 1], tmp_path / "out", ledger)
    for how in ("fixed", "random", "forward", "adam", "adam scaled", "kalman", "linear"):
        assert results["metrics"][f"test accuracy/{how}"]["mean"] > 0.4, how  # of ten classes
        for score in ("negative log likelihood", "expected calibration error", "Brier score"):
            assert np.isfinite(results["metrics"][f"{score}/{how}"]["mean"])
        alike = results["metrics"][f"AUROC of digits/{how}"]["values"]  # from themselves
        assert alike == [0.5] * (1 if how == "kalman" else 2)
    assert results["cpu_seconds"] == pytest.approx(
        sum(json.loads(s)["cpu_seconds"] for s in ledger.read_text().splitlines()), abs=0.01
    )
    assert "test accuracy/kalman scaled" not in results["metrics"]
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"seed-0.json", "seed-1.safetensors", "small.png"}
    assert len(ledger.read_text().splitlines()) == 2

    head, *rows = small.rows(results)
    assert head[1:4] == ("fixed", "random", "forward")
    first = dict(zip(head, rows[0]))
    values = results["metrics"]["test accuracy/fixed"]["values"]
    assert first[""] == "test accuracy"
    assert first["fixed"].startswith(f"{np.mean(values):.4f} ± {abs(values[0] - values[1]) / 2:.2g}")
    assert first["kalman"].endswith("(1 seed)")

    again, *_ = run(small, [0, 1], tmp_path / "out", ledger)
    assert again["metrics"] == results["metrics"]
    assert again["cpu_seconds"] == results["cpu_seconds"]
    assert len(ledger.read_text().splitlines()) == 2  # nothing was run
    (tmp_path / "new").mkdir()
    run(small, [0], tmp_path / "out", tmp_path / "new" / "ledger.jsonl")
    (added,) = (tmp_path / "new" / "ledger.jsonl").read_text().splitlines()  # a line that was missing
    assert json.loads(added) == json.loads(ledger.read_text().splitlines()[0])

    other = dataclasses.replace(small, iterations=61)
    with pytest.raises(ValueError, match=r"seed-0.json is of a run with other settings"):
        run(other, [0], tmp_path / "out", None)
    (tmp_path / "out" / "seed-0.json").write_text("{")
    with pytest.raises(ValueError, match=r"seed-0.json is damaged"):
        run(small, [0], tmp_path / "out", None)
    (tmp_path / "out" / "seed-0.json").unlink()
    with pytest.raises(ValueError, match=r"seed-0.safetensors is of a run with other settings"):
        run(other, [0], tmp_path / "out", None)


def test_temperature_changes_probabilities_and_no_decision(small, tmp_path):
    found = dataclasses.replace(small, compared=("adam",)).run_seed(0).metrics
    assert found["test accuracy/adam"] == found["test accuracy/adam scaled"]
    assert found["negative log likelihood/adam"] != found["negative log likelihood/adam scaled"]


def test_images_of_another_kind_are_found_by_how_undecided_they_are(small):
    certain, undecided = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.6, 0.4], [0.5, 0.5]])
    assert small.auroc(undecided, certain, "x") == {"AUROC of digits/x": 1.0}
    assert small.auroc(certain, undecided, "x") == {"AUROC of digits/x": 0.0}


@pytest.mark.slow
def test_a_comparison_that_is_finished_is_kept_and_one_that_diverged_is_reported(small, tmp_path, capsys, monkeypatch):
    one = dataclasses.replace(small, compared=("linear",))
    whole = one.resume_seed(0, tmp_path)
    (tmp_path / "seed-0.json").unlink()  # killed before that was written
    monkeypatch.setattr(one.__class__, "compare", lambda *_: pytest.fail("it was run again"))
    again = one.resume_seed(0, tmp_path)
    same = {k for k, v in whole.metrics.items() if again.metrics.get(k) == v}
    assert {k for k in whole.metrics if "memory" not in k} == same

    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setitem(image_settings.CHOSEN, "digits", {"linear": {"rate": 1e38, "steps": 2}})
        patch.setitem(image_settings.NETWORKS, "convolutional", small_network)
        lost = dataclasses.replace(small, examples=40, compared=("linear",)).run_seed(0).metrics
    assert "linear has diverged" in capsys.readouterr().err
    assert lost["negative log likelihood/linear"] == pytest.approx(np.log(10))


def test_a_dense_graph_is_not_compared_with_a_convolutional_one(small):
    assert small.compared_with(0) == ["adam", "kalman", "linear"]
    assert small.compared_with(1) == ["adam", "linear"]
    assert dataclasses.replace(small, graph="dense").compared_with(0) == ["linear"]
    wide = dataclasses.replace(small, graph="dense-vector", compared=("adam", "adam cosine", "kalman"))
    assert wide.compared_with(0) == ["adam cosine"]
    assert wide.settings()["compared"].keys() == {"adam cosine"}
    assert dataclasses.replace(small, compared_seeds=0).compared_with(0) == []
    with pytest.raises(ValueError, match=r"--examples must be 1437 or less for digits, got 2000"):
        dataclasses.replace(small, examples=2000).run_seed(0)


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
import test_image_stream as t
from pathlib import Path
t.image_settings.NETWORKS["convolutional"] = t.small_network
t.image_settings.CHOSEN["digits"] = t.CHOSEN
experiment = t.Small(examples=605, iterations=5, batch=10, compared=())
experiment.resume_seed(0, Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_resumes_to_the_same_bits(tmp_path):
    """`kill -9` at a moment that nobody chose; the posterior is that of a run that nobody disturbed."""

    def start(folder):
        folder.mkdir(exist_ok=True)
        words = [sys.executable, "-c", KILLED, str(folder), os.path.dirname(__file__)]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait() == 0
    path, seen = tmp_path / "parted" / "seed-0.safetensors", []
    for delay in np.random.default_rng(time.time_ns()).uniform(0, 0.1, 1):  # so that it may come while it is written
        process, before = start(tmp_path / "parted"), path.stat().st_mtime_ns if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_mtime_ns == before):
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen.append(load(path).note["seen"])
    assert 0 < seen[0] < 605
    assert start(tmp_path / "parted").wait() == 0
    whole, parted = (load(tmp_path / name / "seed-0.safetensors") for name in ("whole", "parted"))
    assert (parted.batches, parted.examples, parted.note["seen"]) == (whole.batches, whole.examples, 605)
    for name, belief in whole.posterior.items():
        for part in ("eta", "lam"):
            a, b = (np.asarray(getattr(g, part)).tobytes() for g in (belief, parted.posterior[name]))
            assert a == b, name
    ends = [json.loads((tmp_path / name / "seed-0.json").read_text()) for name in ("whole", "parted")]
    assert ends[0]["kept"] == ends[1]["kept"]
    same = {k for k, v in ends[0]["metrics"].items() if ends[1]["metrics"].get(k) == v}
    assert {k for k in ends[0]["metrics"] if "seconds" not in k and "memory" not in k} <= same


def test_settings_decide_the_hash_and_folders_do_not(small, tmp_path):
    same = dataclasses.replace(small, data_dir=tmp_path)
    assert settings_hash(same.settings()) == settings_hash(small.settings())
    assert settings_hash(dataclasses.replace(small, batch=21).settings()) != settings_hash(small.settings())


def test_curves_have_points_at_powers_of_two_and_at_the_end():
    assert points_of_curve(1) == [1]
    assert points_of_curve(8) == [1, 2, 4, 8]
    assert points_of_curve(12) == [1, 2, 4, 8, 12]
    x = np.arange(2345.0)
    np.testing.assert_array_equal(in_portions(lambda part: part, x), x)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_published_experiments_are_set_up(name):
    experiment = EXPERIMENTS[name]()
    assert experiment.settings()["compared"].keys() >= {"adam", "adam cosine", "linear"}
    assert "Conv2D(filters=16, kernel=5" in experiment.settings()["network"]
    assert "test accuracy/fixed" in experiment.published


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["xor", "--graph", "dense"], "--graph is no option of xor"),
        (["xor", "--examples", "10"], "--examples is no option of xor"),
        (["mnist", "--examples", "0"], "--examples must be 1 or larger"),
        (["mnist", "--data-dir", "none"], "none: there is no such folder"),
    ],
)
def test_refused_on_the_command_line(words, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["experiment", *words]) == 2
    assert named in capsys.readouterr().err
