"""The demo and the digits experiment: what they write, and (slow) what they must reach."""

import html.parser
import json

import numpy as np
import pytest

import gbplearn as gbp
from browser import shows_in_a_browser
from gbplearn.apps.demo import run_demo
from gbplearn.apps.demo.fill_in import Filled
from gbplearn.apps.experiments.digits import Digits, Stream, digits_stream
from gbplearn.apps.experiments.experiment import run
from gbplearn.apps.report.classifier import most_uncertain
from gbplearn.core import progress

PICTURES = ("curves", "filled", "messages", "filters", "calibration", "uncertain")


class Pictures(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.found.append(dict(attrs))


def check_what_is_left(out, results):
    assert {p.name for p in out.iterdir()} == {f"{n}.{kind}" for n in PICTURES for kind in ("png", "svg")} | {
        "results.json",
        "report.html",
    }  # and no partial file
    for name in PICTURES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results))
    page, text = Pictures(), (out / "report.html").read_text()
    page.feed(text)
    assert len(page.found) == len(PICTURES)
    assert all(i["alt"] and i["src"].startswith("data:image/svg+xml;base64,") for i in page.found)
    for words in ("by messages", "by forward pass", "Adam", "half of the labels", "hidden half", "RMSE"):
        assert words in text
    shows_in_a_browser(out / "report.html", pictures=len(PICTURES))


def test_demo_leaves_all_parts_behind(tmp_path, capsys):
    """Two batches of 50 images, small networks."""
    out = tmp_path / "new" / "folder"
    classifier = gbp.Sequential(
        gbp.Conv2D(4, kernel=3, activation="leaky_relu", weight_prior=0.3),
        gbp.Dense(10, weight_init=0.0, prior=2.0),
        gbp.SoftmaxObservation(),
    )
    generator = gbp.Sequential(gbp.ConvTranspose2D(4, kernel=4, stride=4, sigma=0.2))
    results = run_demo(out, seed=3, batches=2, tests=40, classifier=classifier, generator=generator)
    printed = capsys.readouterr()
    check_what_is_left(out, results)
    assert str(out / "report.html") in printed.out
    assert results["settings"]["seed"] == 3
    assert all(len(curve) == 2 for curve in results["curves"].values())
    assert results["curves"]["images seen"] == [50, 100]
    accuracy = results["metrics"]["test accuracy"]
    assert accuracy["all labels/messages"] > 0.5  # a guess has 0.1
    assert results["metrics"]["hidden half"]["batches refused"] == 0


@pytest.mark.slow
def test_demo(tmp_path):
    results = run_demo(tmp_path / "demo")
    check_what_is_left(tmp_path / "demo", results)
    accuracy, hidden = results["metrics"]["test accuracy"], results["metrics"]["hidden half"]
    assert accuracy["all labels/messages"] >= 0.95
    assert accuracy["half of the labels/messages"] >= 0.9
    assert hidden["rmse"] < 0.95 * hidden["rmse of the mean training image"]


@pytest.mark.slow
def test_digits_five_seeds(tmp_path):
    results, *_ = run(Digits(), range(5), tmp_path, None)
    assert results["metrics"]["test accuracy/fixed"]["mean"] >= 0.95


def test_the_stream_is_the_training_part_in_another_order():
    one, other, few = digits_stream(0, 50), digits_stream(1, 50), digits_stream(0, 50, 3)
    assert len(one.y) == 1437
    assert len(one.test_y) == 360
    assert one.images_used[-1] == 1437
    assert len(one.batches) == 29
    assert not np.array_equal(one.y, other.y)
    assert np.array_equal(np.sort(one.y), np.sort(other.y))
    assert np.array_equal(few.x, one.x[:150])


def test_most_uncertain_has_the_largest_entropy():
    p = np.array([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]])
    assert most_uncertain(p, 2).tolist() == [1, 2]


def test_accuracy_counts_the_largest_logit():
    stream = Stream(np.zeros(0), np.zeros(0), np.zeros(3), np.array([0, 1, 1]), 1)
    assert stream.accuracy([[3.0, 0.0], [0.1, 0.2], [0.9, 0.1]]) == pytest.approx(2 / 3)


def test_progress_tells_what_was_reached(capsys, monkeypatch):
    now = iter(range(0, 100, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    done = []
    for item in progress.progress("abc", "work", status=lambda: f"{len(done)} done", period=10.0):
        done.append(item)
    assert capsys.readouterr().err == "work: 1 of 3, 12 s, 1 done\n"


def test_hidden_half_is_measured_on_hidden_pixels_only():
    images = np.zeros((2, 2, 2, 1))
    seen = np.array([[[True], [False]], [[True], [False]]])
    mean = np.where(seen, 9.0, [[[0.1], [0.1]], [[0.3], [0.3]]])[None].repeat(2, 0)
    filled = Filled(images, np.array([0, 1]), seen, mean, np.full(images.shape, 0.1), np.full((2, 2, 1), 0.5), 0)
    found = filled.metrics()
    assert found["rmse"] == pytest.approx(np.sqrt((0.01 + 0.09) / 2))
    assert found["rmse of the mean training image"] == pytest.approx(0.5)
    assert found["share within 2 sd"] == pytest.approx(0.5)
    assert filled.one_of_each().tolist() == [0, 1]
