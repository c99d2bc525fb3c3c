"""Batches that are far outside all that was learnt from: what is refused, and what must not be."""

import dataclasses
import json

import numpy as np
import pytest

import gbplearn as gbp
from checkpoint_files import bits, parts, put_together, refused, there_and_back
from gbplearn.apps.data.images import load_images
from gbplearn.io import checkpoint
from gbplearn.learner.unusual import BatchStatistics, Spread, joined, statistics_of
from gbplearn.network.batch import Batch, Target
from learners import line, measured

SCALE, CONTRAST, VARIETY = gbp.Oddity.SCALE, gbp.Oddity.CONTRAST, gbp.Oddity.VARIETY
INPUT, TARGET = gbp.Oddity.LARGEST_INPUT, gbp.Oddity.LARGEST_TARGET


def values(inputs):
    """A network of `inputs` numbers and one value."""
    return gbp.Sequential(gbp.Dense(1), gbp.GaussianObservation(sigma=0.1), input_shape=(inputs,))


def classes():
    layers = gbp.Dense(10, sigma=0.1, weight_prior=0.3, weight_init=0.0), gbp.SoftmaxObservation(sigma=0.1)
    return gbp.Sequential(*layers, input_shape=(64,))


@pytest.fixture(scope="module")
def digits():
    images = load_images("digits")
    return np.asarray(images.train_x[:300], float).reshape(300, 64), images.train_y[:300]


@pytest.fixture(scope="module")
def taught(digits, tmp_path_factory):
    """A file of a learner that has learnt from 250 images."""
    learner = gbp.Learner(classes(), iterations=5, tolerance=0.0, guard=False)
    for i in range(0, 250, 50):
        report = learner.update(digits[0][i : i + 50], digits[1][i : i + 50])
        assert (report.accepted, report.unusual) == (True, ())
    path = tmp_path_factory.mktemp("taught") / "run.safetensors"
    learner.save(path)
    return path


def junk(x):
    rng = np.random.default_rng(0)
    one_pixel, huge, pale = np.zeros_like(x), np.array(x), rng.uniform(0, 1, (len(x), 1)) + 0 * x
    one_pixel[:, 20], huge[3, 30] = 1.0, 1e6
    return {
        "nothing": (0 * x, {CONTRAST, VARIETY}),
        "one grey": (0 * x + 0.5, {CONTRAST, VARIETY}),
        "a grey each": (pale, {CONTRAST}),
        "one pixel": (one_pixel, {VARIETY}),
        "one image": (np.repeat(x[:1], len(x), 0), {VARIETY}),
        "almost one image": (x[:1] + 1e-3 * rng.standard_normal(x.shape), {VARIETY}),
        "one number": (huge, {INPUT}),
        "a hundred times darker": (0.01 * x, {CONTRAST, VARIETY}),
        "inverted, ten times brighter": (10 * (1 - x), {SCALE}),
        "30 times brighter": (30 * x, {SCALE}),
        "in other units": (255 * x, {SCALE, INPUT}),
        "a million times brighter": (1e6 * x, {SCALE, INPUT}),
        "mostly nothing": (np.where(np.arange(len(x))[:, None] % 4 == 0, x, 0), {CONTRAST}),
        "as large as numbers are": (1e307 * x, {SCALE, INPUT}),
    }


def test_junk_is_refused_and_changes_nothing(digits, taught):
    learner = gbp.Learner.load(taught)
    before, right = bits(*learner.posterior.values()), np.asarray(learner.forward(digits[0])).argmax(1) == digits[1]
    x, y = digits[0][250:], digits[1][250:]
    for number, (what, (images, reasons)) in enumerate(junk(x).items(), 1):
        report = learner.update(images, y, evidence=True)
        assert (report.accepted, report.status, report.batch) == (False, gbp.Status.UNUSUAL, None), what
        assert {reason.oddity for reason in report.unusual} == reasons, what
        assert all(str(reason) in report.message for reason in report.unusual)
        assert (report.iterations, learner.failures, learner.batches) == (0, number, 5)
    assert bits(*learner.posterior.values()) == before
    assert (np.asarray(learner.forward(digits[0])).argmax(1) == digits[1]).mean() == right.mean() > 0.8
    assert learner.update(x, y).accepted  # and it goes on


def test_a_world_that_has_changed_is_learnt(digits, taught):
    x, y = digits[0][250:], digits[1][250:]
    order = np.random.default_rng(0).permutation(64)
    images = x.reshape(-1, 8, 8)
    for what, changed, labels in (
        ("upside down", images[:, ::-1].reshape(x.shape), y),
        ("turned", images.swapaxes(1, 2).reshape(x.shape), y),
        ("inverted", 1 - x, y),
        ("permuted", x[:, order], y),
        ("other labels", x, (y + 1) % 10),
        ("one class", x[y == y[0]], y[y == y[0]]),
        ("five times darker", 0.2 * x, y),
        ("five times brighter", 5 * x, y),
        ("one black image", np.where(np.arange(50)[:, None] == 7, 0, x), y),
        ("three images", x[:3], y[:3]),
    ):
        statistics = gbp.Learner.load(taught).state.history.statistics
        assert statistics.unusual(statistics_of(classes(), classes().batch(changed, labels), statistics)) == (), what
    learner = gbp.Learner.load(taught)
    assert learner.update(x[:, order], y).accepted


def stream(x, y=None, size=10):
    """How many batches of a stream are refused, and of how many."""
    net, known, count = values(x.shape[1]), BatchStatistics(), 0
    y = np.zeros(len(x)) if y is None else y
    starts = range(0, len(x) - size + 1, size)
    for i in starts:
        now = statistics_of(net, Batch(x[i : i + size], targets={net.head: Target(y[i : i + size, None])}), known)
        unusual = known.unusual(now)
        count += bool(unusual)
        known = known if unusual else known.joined(now)
    return count, len(starts)


def tables(n=1000):
    rng = np.random.default_rng(1)
    normal, moving = rng.standard_normal((n, 8)), np.arange(n)[:, None]
    return {
        "normal": (normal, normal[:, 0]),
        "one column": (normal[:, :1], None),
        "Cauchy": (rng.standard_cauchy((n, 5)), rng.standard_cauchy(n)),
        "Student": (rng.standard_t(3, (n, 5)), rng.standard_t(2, n)),
        "log normal": (np.exp(3 * normal[:, :4]), np.exp(2 * normal[:, 0])),
        "binary": (rng.integers(0, 2, (n, 10)).astype(float), None),
        "exclusive or": (rng.integers(0, 2, (n, 2)).astype(float), None),
        "one-hot": (np.eye(20)[rng.integers(0, 20, n)], None),
        "sparse": (rng.standard_normal((n, 20)) * (rng.uniform(size=(n, 20)) < 0.05), None),
        "counts": (rng.poisson(0.3, (n, 5)).astype(float), None),
        "in order": (np.linspace(0, 100, n)[:, None], None),
        "a random walk": (np.cumsum(normal[:, :3], 0), np.cumsum(normal[:, 3])),
        "night falls": (normal * np.geomspace(1, 1e-5, n)[:, None], None),
        "it gets louder": (normal * np.geomspace(1, 1e5, n)[:, None], None),
        "windows of a signal": (np.sin(0.05 * (moving + np.arange(10))), None),
        "raw units": (np.stack([rng.uniform(18, 90, n), np.exp(10 + normal[:, 0]), rng.integers(0, 2, n)], 1), None),
    }


@pytest.mark.parametrize("size", [1, 5, 50])
def test_tables_with_heavy_tails_and_rows_of_zeros_are_not_refused(size):
    for what, (x, y) in tables(100 + 20 * size).items():
        assert stream(x, y, size)[0] == 0, what


def test_a_jump_by_two_orders_of_magnitude_is_refused():
    x = tables()["normal"][0]
    for after in (100 * x[500:], 1e-3 * x[500:]):
        assert stream(np.concatenate([x[:500], after])) == (50, 100)


def test_targets_of_another_magnitude_are_refused():
    learner = line()
    x, y = measured(40)
    assert learner.update(x[:20], y[:20]).accepted
    assert learner.update(x[20:], y[20:]).accepted
    report = learner.update(x[:20], 1e6 * y[:20])
    assert [reason.oddity for reason in report.unusual] == [TARGET]
    (reason,) = report.unusual
    assert (reason.learnt, reason.value) == (np.abs(y).max(), 1e6 * np.abs(y[:20]).max())
    assert reason.bound == 100 * reason.learnt
    assert "the largest target is" in report.message


def test_first_batches_are_accepted_whatever_they_are():
    learner = line()
    x, y = measured(20)
    assert learner.update(x, y).accepted
    assert learner.update(0 * x, y).accepted  # 20 examples say little
    assert learner.update(x, y).accepted
    assert not learner.update(1e4 * x, y).accepted


def test_learnt_all_the_same_if_the_user_wants_it():
    x, y = measured(40)
    learner = line(unusual="warn", strained="learn", iterations=2, tolerance=0.0)
    learner.update(x, y)
    with pytest.warns(UserWarning, match="this batch is unusual: the root mean square of the inputs"):
        report = learner.update(50 * x, y)
    assert report.accepted
    assert [reason.oddity for reason in report.unusual] == [SCALE]
    assert learner.update(50 * x, y).unusual == ()  # it is usual now
    learner.unusual = "learn"
    report = learner.update(1e6 * x, y)
    assert (report.accepted, len(report.unusual)) == (True, 2)
    for wrong in (lambda: line(unusual="ignore"), lambda: setattr(learner, "unusual", "yes")):
        with pytest.raises(ValueError, match="unusual must be one of 'refuse', 'warn', 'learn'"):
            wrong()


def test_only_what_teaches_and_was_observed_counts():
    net, known = values(3), BatchStatistics()
    x, y = measured(20)
    y = y[:, :1]
    right = statistics_of(net, net.batch(x[:10], y[:10]), known)
    spoiled, weight = np.array(x), np.ones(20)
    spoiled[10:], weight[10:] = 1e9, 0
    assert statistics_of(net, net.batch(spoiled, y, sample_weight=weight), known) == right
    assert statistics_of(net, net.batch(spoiled, y, y_observed=weight > 0), known) == right
    seen = np.ones(x.shape, bool)
    seen[10:] = False
    assert statistics_of(net, net.batch(spoiled, y, x_observed=seen), known).scale == right.scale
    hidden = np.array(x[:10])
    hidden[:, 2] = 1e9
    found = statistics_of(net, net.batch(hidden, y[:10], x_observed=np.arange(3) < 2), known)
    np.testing.assert_allclose(found.scale.mean, np.log(np.sqrt((x[:10, :2] ** 2).mean(1))).mean())
    assert found.largest_input == np.abs(x[:10, :2]).max()
    none = statistics_of(net, net.batch(x, y, y_observed=np.zeros(20, bool)), known)
    assert none == BatchStatistics()


def test_statistics_of_parts_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=(60, 4))
    net = values(4)
    several = [statistics_of(net, net.batch(part, np.zeros((20, 1))), BatchStatistics()) for part in np.split(x, 3)]
    both = joined(several)
    logs = np.log(np.sqrt((x**2).mean(1)))
    np.testing.assert_allclose([both.scale.count, both.scale.mean], [60, logs.mean()])
    np.testing.assert_allclose(both.scale.squares, 60 * logs.var())
    assert (both.scale.low, both.scale.high) == (min(s.scale.low for s in several), max(s.scale.high for s in several))
    assert both.largest_input == x.max()
    assert joined([]) == BatchStatistics()


def numbers(statistics):
    found = dataclasses.asdict(statistics)
    return {name: list(value.values()) if isinstance(value, dict) else value for name, value in found.items()}


def test_a_forgotten_batch_was_never_usual():
    x, y = measured(40)
    learner, never = (line(record=True, unusual="learn", iterations=2, tolerance=0.0) for _ in range(2))
    for scale in (1, 1e4, 1):
        learner.update(scale * x, y)
        if scale == 1:
            never.update(x, y)
    learner.forget(1)
    for name, right in numbers(never.state.history.statistics).items():
        np.testing.assert_allclose(numbers(learner.state.history.statistics)[name], right, rtol=1e-9, atol=1e-12)
    learner.unusual = "refuse"
    assert not learner.update(1e4 * x, y).accepted
    learner.update(x, y)
    learner.forget(2, again=[(1e4 * x, y)])  # which was usual when it was learnt first, or else wanted
    assert learner.unusual == "refuse"
    assert learner.batches == 2


def test_what_was_usual_of_models_that_are_merged():
    x, y = measured(40)
    apart = [line(strained="learn", iterations=2, tolerance=0.0) for _ in range(2)]
    apart[0].update(x, y)
    apart[1].update(8 * x, y)
    merged = gbp.merge(apart)
    assert merged.state.history.statistics == joined(one.state.history.statistics for one in apart)
    assert not merged.update(1e4 * x, y).accepted
    assert merged.update(50 * x, y).accepted


@pytest.mark.parametrize("record", [False, True])
def test_checkpoints_know_what_is_usual(record, tmp_path):
    x, y = measured(40)
    learner = line(record=record, unusual="warn", iterations=2, tolerance=0.0)
    learner.update(x, y)
    learner.update(2 * x, y)
    again = there_and_back(learner, tmp_path)
    assert again.unusual == "warn"
    assert again.state.history.statistics == learner.state.history.statistics
    if record:
        for one in (learner, again):
            one.forget(0)
        assert again.state.history.statistics == learner.state.history.statistics


def test_older_checkpoints_do_not_know_what_is_usual(tmp_path):
    x, y = measured(40)
    learner = line(record=True, iterations=2, tolerance=0.0)
    learner.update(x, y)
    facts, header, body = parts(checkpoint.encode(learner, {}))
    del facts["settings"]["unusual"], facts["history"]["statistics"], facts["tied"]
    (tmp_path / "old.safetensors").write_bytes(put_together(facts, header, body))
    old = gbp.Learner.load(tmp_path / "old.safetensors")
    assert (old.unusual, old.state.history.statistics) == ("refuse", BatchStatistics())
    assert bits(*old.posterior.values()) == bits(*learner.posterior.values())
    assert old.update(50 * x, y).accepted
    old.forget(0)


@pytest.mark.parametrize(
    ("wrong", "saying"),
    [
        ([], "must be an object"),
        ({"earlier": None, "taught": {}}, "'0' is missing"),
        ({"earlier": 3}, "statistics"),
        ({"earlier": {"BatchStatistics": {}}}, "has the fields"),
        ({"earlier": {"Damping": {}}}, "Damping has the fields"),
        ({"scale": [1, 2]}, "scale"),
        ({"scale": {"Spread": {**dataclasses.asdict(Spread()), "count": -1.0}}}, "no such numbers"),
        ({"scale": 4}, ""),
        ({"largest_input": -1.0}, "no such statistics"),
    ],
)
def test_statistics_that_lie_are_refused(wrong, saying, tmp_path):
    x, y = measured(10)
    learner = line(record=True, iterations=2, tolerance=0.0)
    learner.update(x, y)
    facts, header, body = parts(checkpoint.encode(learner, {}))
    statistics = facts["history"]["statistics"]
    if isinstance(wrong, dict) and not wrong.keys() & {"earlier", "taught"}:
        statistics["taught"]["0"]["BatchStatistics"] |= wrong
    else:
        facts["history"]["statistics"] = {**statistics, **wrong} if isinstance(wrong, dict) else wrong
    assert saying in refused(put_together(json.loads(json.dumps(facts)), header, body), tmp_path)


def test_an_alarm_for_a_batch_that_was_refused():
    x, y = measured(40)
    alarm, learner = gbp.DriftAlarm(), line(iterations=2, tolerance=0.0)
    with pytest.warns(UserWarning, match="the stream has changed: not learnt: the batch is far outside"):
        learner.fit([(x, y), (1e4 * x, y), (x, y)], callbacks=[alarm])
    assert (alarm.alarms, learner.batches) == ([None], 2)


def test_a_stream_that_is_refused_is_not_refused_in_silence():
    learner = gbp.Learner(values(2))
    rng = np.random.default_rng(0)
    good = [(rng.standard_normal((40, 2)), rng.standard_normal(40)) for _ in range(3)]
    with pytest.warns(UserWarning, match="far outside all that was learnt from") as told:
        learner.fit([*good, *((1e4 * x, y) for x, y in good)])
    assert len(told) == 1  # once for all
    assert (learner.batches, learner.failures) == (3, 3)
    seen = []
    learner.fit([(1e4 * x, y) for x, y in good], callbacks=[seen.append])  # who watches is told by the reports
    assert [r.accepted for r in seen] == [False] * 3
