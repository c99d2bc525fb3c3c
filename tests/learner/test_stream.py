"""Streams: batches of any kind, callbacks, evidence, an alarm when the world changes; and messages that go on."""

import dataclasses

import numpy as np
import pytest

import gbplearn as gbp
from checkpoint_files import bits
from gbplearn.apps.data.images import load_images
from gbplearn.core.progress import progress
from gbplearn.network.warm_start import read_messages, write_messages
from learners import HOW, SEEN, SIGMA, WIDE, classifier, line, measured, points


class Tensor:
    """Like those of PyTorch: an array, if NumPy asks for one."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_a_stream_is_update_after_update():
    x, y = points(30)
    by_hand, fitted = classifier(), classifier()
    for start in (0, 10, 20):
        by_hand.update(x[start : start + 10], y[start : start + 10], y_observed=np.arange(10) != start // 10)
    reports = []

    def batches():  # of which nobody knows how many
        for start in (0, 10, 20):
            rows = slice(start, start + 10)
            observed = np.arange(10) != start // 10
            yield {"x": Tensor(x[rows]), "y": Tensor(y[rows]), "y_observed": observed}

    assert fitted.fit(batches(), callbacks=[reports.append]) is fitted
    assert bits(*fitted.posterior.values()) == bits(*by_hand.posterior.values())
    assert [r.batch for r in reports] == [0, 1, 2]
    assert all(r.log_evidence is None for r in reports)  # it costs, and nobody asked


def test_batches_and_callbacks_that_are_none():
    learner = classifier()
    x, y = points(10)
    for batch, words in (
        ((x, y, y), "a pair"),
        ({"y": y}, "there is no 'x'"),
        ({"x": x, "labels": y}, "got 'labels'"),
    ):
        with pytest.raises(ValueError, match=words):
            learner.fit([batch])
    with pytest.raises(TypeError, match="on_batch"):
        learner.fit([(x, y)], callbacks=[3])
    assert learner.batches == 0


def test_evidence_of_one_example_is_its_predictive_density():
    """With one example the graph is a tree: a product of Gaussians over the output, integrated by hand."""
    learner = line()
    x, y = np.array([[0.5, -1.0, 2.0]]), np.array([[0.3, -0.2]])
    found = learner.update(x, y, evidence=True).log_evidence
    told = np.sum((x[0] * HOW["weight_prior"]) ** 2) + HOW["bias_prior"] ** 2 + SIGMA**2  # variance of w x + d + noise
    total = 0.0
    for value in y[0]:
        # N(o; 0, WIDE²) N(o; 0, told) is N(o; 0, both) times what does not depend on the target.
        both = 1 / (1 / WIDE**2 + 1 / told)
        total += -0.5 * np.log(2 * np.pi * (both + SEEN**2)) - value**2 / (2 * (both + SEEN**2))
    assert found == pytest.approx(total, rel=1e-4)


def test_evidence_of_a_batch_is_the_density_of_all_targets():
    """A Gaussian over all outputs, by hand; the graph has loops, in which Bethe's is an approximation."""
    x, y = measured(20)
    found = line().update(x, y, evidence=True).log_evidence
    prior = HOW["weight_prior"] ** 2 * x @ x.T + HOW["bias_prior"] ** 2 + SIGMA**2 * np.eye(20)
    covariance = np.linalg.inv(np.linalg.inv(prior) + np.eye(20) / WIDE**2) + SEEN**2 * np.eye(20)
    squares = np.sum(y * np.linalg.solve(covariance, y))
    total = -0.5 * squares - np.linalg.slogdet(2 * np.pi * covariance)[1]  # of two columns
    assert found == pytest.approx(total, abs=0.5)


def test_evidence_of_examples_without_a_label_is_none():
    x, y = measured(6)
    known = np.arange(6) < 4
    found = line().update(x, np.where(known[:, None], y, np.nan), y_observed=np.tile(known, (2, 1)).T, evidence=True)
    right = line().update(x[:4], y[:4], evidence=True)
    assert found.log_evidence == pytest.approx(right.log_evidence, abs=1e-3)


def test_evidence_of_classes_is_the_probability_that_was_predicted():
    learner = classifier()
    x, y = points(30)
    learner.update(x[:20], y[:20])
    p = np.asarray(learner.predict_proba(x[20:], parameters="random"), float)
    weight, known = np.linspace(0.5, 2.0, 10), np.arange(10) % 3 > 0
    right = np.sum((weight * np.log(p[np.arange(10), y[20:]]))[known])
    report = learner.update(x[20:], y[20:], y_observed=known, sample_weight=weight, evidence=True)
    assert report.log_evidence == pytest.approx(right, rel=1e-3)


@pytest.mark.slow
def test_evidence_ranks_class_noises_as_the_log_loss_of_other_images_does():
    digits, evidence, losses = load_images("digits"), [], []
    test_y = np.asarray(digits.test_y)
    for sigma in (0.01, 0.1, 0.2):
        net = gbp.Sequential(
            gbp.Conv2D(8, kernel=3, activation="leaky_relu", sigma=0.01, weight_prior=0.3, bias_prior=0.1, prior=3.0),
            gbp.MaxPool2D(2, sigma=0.01, prior=3.0),
            gbp.Dense(10, sigma=0.01, weight_prior=0.15, bias_prior=0.15, prior=2.0, weight_init=0.0),
            gbp.SoftmaxObservation(sigma=sigma),
            input_shape=(8, 8, 1),
        )
        learner, said = gbp.Learner(net), []
        for i in range(0, 500, 50):
            report = learner.update(digits.train_x[i : i + 50], digits.train_y[i : i + 50], evidence=True)
            said.append(report.log_evidence / 50)
        evidence.append(np.mean(said))
        p = np.asarray(learner.predict_proba(digits.test_x))
        losses.append(-np.log(p[np.arange(len(test_y)), test_y]).mean())
        assert said[0] == pytest.approx(-np.log(10), abs=0.05)
        assert -said[-1] == pytest.approx(losses[-1], rel=0.5)
    assert np.argsort(evidence)[::-1].tolist() == np.argsort(losses).tolist() == [0, 1, 2]


def test_evidence_does_not_depend_on_padding_or_on_a_mask_that_hides_nothing():
    x, y = points(10)
    found = []
    for sizes, seen in (([], None), ([10], np.ones((4, 2), bool))):
        learner = classifier()
        for size in sizes:
            learner.expect_size(size)  # to which a batch of four is padded
        found.append(learner.update(x[:4], y[:4], x_observed=seen, evidence=True).log_evidence)
    np.testing.assert_allclose(found, found[0], rtol=1e-4)


class Loader:
    """Like PyTorch's, of a stream: it has a length only to say that it has none."""

    def __init__(self, *batches):
        self.batches = batches

    def __len__(self):
        raise TypeError("object has no len()")

    def __iter__(self):
        return iter(self.batches)


def test_a_loader_that_does_not_know_its_length(capsys):
    now = progress("abcd", "learn", period=0.0), progress(Loader("a", "b", "c"), "learn", period=0.0)
    assert [list(items) for items in now] == [list("abcd"), ["a", "b", "c"]]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("learn: 1 of 4")
    assert lines[-1].startswith("learn: 2, ")


def test_an_alarm_when_the_world_changes():
    rng = np.random.default_rng(0)
    before, after = rng.standard_normal((2, 3, 2))

    def batches():
        for number in range(40):
            x = rng.standard_normal((10, 3))
            yield x, x @ (before if number < 25 else after) + SEEN * rng.standard_normal((10, 2))

    heard = []
    alarm = gbp.DriftAlarm(on_alarm=heard.append)
    line(iterations=50, tolerance=1e-3).fit(batches(), callbacks=[alarm.on_batch])
    assert alarm.alarms == [25]
    assert [r.batch for r in heard] == [25]


def test_an_alarm_warns_by_default_and_needs_evidence():
    alarm = gbp.DriftAlarm(window=3)
    learner = line()
    x, y = measured(10)
    usual = learner.update(x, y)
    with pytest.raises(ValueError, match="needs evidence"):
        alarm.on_batch(usual)
    for _ in range(3):
        alarm.on_batch(dataclasses.replace(usual, log_evidence=0.0))
    with pytest.warns(UserWarning, match="the stream has changed"):
        alarm.on_batch(learner.update(x, y + 100, evidence=True))
    for wrong in ({"threshold": 0.0}, {"window": 2}, {"least": -1.0}):
        with pytest.raises(ValueError, match=f"DriftAlarm: .*{next(iter(wrong))}"):
            gbp.DriftAlarm(**wrong)


def generator():
    net = gbp.Sequential(
        gbp.GaussianObservation(sigma=0.2),
        gbp.ConvTranspose2D(2, kernel=3, sigma=0.1, weight_prior=0.3, prior=0.5),
        gbp.Upsample2D(2, sigma=0.05, prior=1.0),
        input_shape=(6, 6, 1),
    )
    return gbp.Learner(net, iterations=3, tolerance=0.0, damping=0.5, guard=False)


def test_messages_go_on_from_batch_to_batch(tmp_path):
    """To go on is to begin with them: after no iteration has passed but one, activations remember."""
    frame = np.random.default_rng(0).uniform(0.3, 0.7, (1, 6, 6, 1))
    fresh, going = generator(), generator()
    reports = [one.update(frame, want="upsample", carry=("upsample",)) for one in (fresh, going)]
    assert set(reports[0].carried) == {"upsample"}
    write_messages(tmp_path / "messages.npz", reports[0].carried)
    held = read_messages(tmp_path / "messages.npz")
    for one in (fresh, going):
        one.options["iterations"] = 1
    anew = fresh.update(frame, want="upsample").belief.mean
    goes_on = going.update(frame, want="upsample", carried=held).belief.mean
    settled = np.asarray(reports[0].belief.mean)
    assert np.abs(goes_on - settled).mean() < 0.5 * np.abs(np.asarray(anew) - settled).mean()


def test_messages_of_layers_with_parameters_are_not_handed_on(tmp_path):
    learner = generator()
    frame = np.full((1, 6, 6, 1), 0.5)
    for name in ("conv_transpose", "gaussian", "nothing"):
        with pytest.raises(ValueError, match=f"carry: '{name}' is no layer without parameters"):
            learner.update(frame, carry=(name,))
    write_messages(tmp_path / "cut.npz", learner.update(frame, carry=("upsample",)).carried)
    whole = (tmp_path / "cut.npz").read_bytes()
    for wrong in (b"no archive", b"", whole[: len(whole) // 2]):
        (tmp_path / "cut.npz").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"cut\.npz is damaged"):
            read_messages(tmp_path / "cut.npz")
