"""Posteriors that are compared, merged and taken back: against closed forms, and learners that never saw a batch."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

import gbplearn as gbp
from checkpoint_files import bits, parts, put_together, refused, state
from gbplearn.apps.data.images import load_images
from gbplearn.io import checkpoint
from gbplearn.learner.history import History
from learners import HOW, assert_same, classifier, points


def gaussian(mean, std):
    return gbp.Gaussian.from_moments(mean=np.asarray(mean, float), std=np.asarray(std, float))


def apart(**options):
    """Each example speaks about one weight alone: the posterior factorises. (The bias is next to known.)"""
    layers = gbp.Dense(1, **{**HOW, "bias_prior": 1e-4}, weight_init=0.0), gbp.GaussianObservation(sigma=0.2)
    how = {"iterations": 60, "tolerance": 0.0, "damping": 0.0, "record": True, "guard": False, **options}
    return gbp.Learner(gbp.Sequential(*layers, input_shape=(4,)), **how)


def one_hot(seed, n=8):
    rng = np.random.default_rng(seed)
    return np.eye(4)[np.arange(n) % 4], rng.standard_normal((n, 1))


def test_divergence_by_layer_is_the_closed_form():
    mine = {"a/weight": gaussian([0.0, 1.0], [1.0, 0.5]), "a/bias": gaussian([2.0], [0.1])}
    other = {"a/weight": gaussian([0.5, 1.0], [2.0, 0.5]), "a/bias": gaussian([2.0], [0.2])}
    for beliefs in (mine, other):
        beliefs["b/weight"] = gaussian([0.0], [1.0])

    def kl(m, s, n, o):
        return np.log(o / s) + (s**2 + (m - n) ** 2) / (2 * o**2) - 0.5

    found = gbp.Posterior(mine).diff(other)
    assert found["a"] == pytest.approx(kl(0.0, 1.0, 0.5, 2.0) + kl(2.0, 0.1, 2.0, 0.2), rel=1e-5)
    assert found["b"] == pytest.approx(0.0, abs=1e-12)
    plain = gbp.Posterior(mine).as_dict()
    np.testing.assert_allclose(plain["a/weight"]["std"], [1.0, 0.5], rtol=1e-6)
    assert isinstance(plain["a/weight"]["mean"], np.ndarray)
    with pytest.raises(ValueError, match="'b/weight' is not in all"):
        gbp.Posterior(mine).diff({n: g for n, g in other.items() if n != "b/weight"})
    with pytest.raises(ValueError, match=r"'a/bias' has shape \(1,\) in one and \(2,\)"):
        gbp.Posterior(mine).diff({**other, "a/bias": gaussian([1.0, 2.0], 1.0)})
    with pytest.raises(ValueError, match="of 'a/bias' one keeps a variance for each number, another blocks"):
        gbp.Posterior(mine).diff({**other, "a/bias": gbp.Gaussian(np.ones(1), np.ones((1, 1)))})


numbers = st.floats(-3, 3)
precisions = st.floats(0.01, 100)


@given(st.lists(st.tuples(numbers, precisions), min_size=1, max_size=5), numbers, precisions)
@settings(max_examples=50, deadline=None)
def test_what_each_has_learnt_is_counted_once(said, mean, precision):
    """Measurements of one number with its prior: weighted means, by hand."""
    prior = {"w": gaussian([mean], [precision**-0.5])}
    models = []
    for z, p in said:
        lam = precision + p
        models.append({"w": gaussian([(precision * mean + p * z) / lam], [lam**-0.5])})
    found = gbp.merge(models, prior)["w"]
    lam = precision + sum(p for _, p in said)
    expected = (precision * mean + sum(p * z for z, p in said)) / lam
    assert float(found.std[0]) == pytest.approx(lam**-0.5, rel=1e-4)
    assert float(found.mean[0]) == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_learners_trained_apart_know_what_one_knows_that_saw_all(x64):
    a, b, both = (apart(dtype="float64") for _ in range(3))
    first, second = one_hot(1), one_hot(2)
    a.update(*first)
    b.update(*second)
    both.update(*first)
    both.update(*second)
    before = bits(*a.posterior.values(), *b.posterior.values())
    merged = gbp.merge([a, b])
    assert (merged.batches, merged.examples) == (2, 16)
    assert_same(merged.posterior, both.posterior, 1e-6)
    assert bits(*a.posterior.values(), *b.posterior.values()) == before
    assert merged.update(*one_hot(3)).accepted  # and goes on
    assert_same(gbp.merge([a.posterior, b.posterior], a.prior), both.posterior, 1e-6)


def test_noise_is_merged_by_its_measurements():
    net = gbp.Sequential(gbp.Dense(1, **HOW), gbp.GaussianObservation(sigma=gbp.LearnNoise(0.5, 2.0)), input_shape=(2,))
    a, b = (gbp.Learner(net) for _ in range(2))
    a.noise, b.noise = ({"gaussian": gbp.LearnNoise(s, w)} for s, w in ((0.2, 12.0), (0.4, 22.0)))
    found = gbp.merge([a, b]).noise["gaussian"]
    assert found.weight == pytest.approx(32.0)
    assert found.start**2 == pytest.approx((12 * 0.04 + 22 * 0.16 - 2 * 0.25) / 32)


def test_what_cannot_be_merged():
    prior = {"w": gaussian([0.0], [1.0])}
    with pytest.raises(ValueError, match="'w' cannot be merged: a posterior is vaguer"):
        gbp.merge([{"w": gaussian([0.0], [2.0])}] * 2, prior)
    with pytest.raises(ValueError, match="needs the prior"):
        gbp.merge([prior, prior])
    with pytest.raises(ValueError, match="at least one"):
        gbp.merge([])
    with pytest.raises(ValueError, match=r"that of 'dense/weight' differs \(seed=, fit_priors\)"):
        gbp.merge([classifier(), classifier(seed=1)])
    with pytest.raises(ValueError, match="of one network"):
        gbp.merge([classifier(), apart()])
    with pytest.raises(TypeError, match="not both"):
        gbp.merge([classifier(), prior])
    with pytest.raises(ValueError, match="leave prior= away"):
        gbp.merge([classifier()], prior)


def test_the_last_batch_is_forgotten_bit_for_bit():
    learner, never = classifier(record=True, alpha=0.1, dropout=0.2), classifier(record=True, alpha=0.1, dropout=0.2)
    x, y = points(30)
    for one in (learner, never):
        one.update(x[:10], y[:10])
    number = learner.update(x[10:20], y[10:20]).batch
    assert bits(*learner.posterior.values()) != bits(*never.posterior.values())
    learner.forget(number)
    assert state(learner) == state(never)
    for one in (learner, never):  # and so it goes on
        one.update(x[20:], y[20:])
    assert bits(*learner.posterior.values()) == bits(*never.posterior.values())
    assert [told.forgotten for told in learner.history()] == [False, True, False]


def test_any_batch_is_forgotten_where_the_posterior_factorises(x64):
    learner, never = apart(dtype="float64"), apart(dtype="float64")
    for seed in range(4):
        learner.update(*one_hot(seed))
        if seed != 1:
            never.update(*one_hot(seed))
    learner.forget(1)
    assert (learner.batches, learner.examples) == (3, 24)
    assert_same(learner.posterior, never.posterior, 1e-6)


def test_the_noise_of_a_forgotten_batch_is_forgotten_with_it():
    """Weights that are as good as known to be 0: then squares of the targets add up, which is conjugate."""
    layers = gbp.Dense(1, sigma=1e-4, weight_prior=1e-5, bias_prior=1e-5, prior=10.0, weight_init=0.0)
    net = gbp.Sequential(layers, gbp.GaussianObservation(sigma=gbp.LearnNoise(0.5, 2.0)), input_shape=(2,))
    how = {"record": True, "iterations": 8, "guard": False, "schedule": gbp.Order("dense", "gaussian")}
    learner, never = (gbp.Learner(net, **how) for _ in range(2))
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((6, 2)), scale * rng.standard_normal((6, 1))) for scale in (1, 3, 1)]
    for x, y in batches:
        learner.update(x, y)
    for x, y in (batches[0], batches[2]):
        never.update(x, y)
    learner.forget(1)
    found, right = learner.noise["gaussian"], never.noise["gaussian"]
    assert found.weight == right.weight == 2 + 6 + 6
    squares = 2 * 0.5**2 + np.sum(batches[0][1] ** 2) + np.sum(batches[2][1] ** 2)
    for noise in (found, right):  # which messages find up to their tolerance
        assert noise.start**2 == pytest.approx(squares / 14, rel=0.01)


def test_half_of_a_batch_of_digits_is_forgotten_by_division():
    """The bar: at most half of the KL is left. One layer on whitened features of images in no batch."""
    images = load_images("digits")
    features = PCA(40, whiten=True, random_state=0).fit(images.train_x[1000:].reshape(437, -1))
    x, test_x = (features.transform(a.reshape(len(a), -1)) for a in (images.train_x[:1000], images.test_x[:]))
    batches = [(x[i : i + 50], np.eye(10)[images.train_y[i : i + 50]]) for i in range(0, 1000, 50)]
    layers = gbp.Dense(10, sigma=0.05, weight_prior=0.1, weight_init=0.0, bias_prior=0.3, prior=5.0)
    net = gbp.Sequential(layers, gbp.GaussianObservation(sigma=0.3), input_shape=(40,))
    learner, never = gbp.Learner(net, record=True).fit(batches), gbp.Learner(net).fit(batches[:9] + batches[10:])
    assert (np.asarray(learner.forward(test_x)).argmax(1) == images.test_y).mean() > 0.9
    before = sum(never.posterior.diff(learner.posterior).values())
    learner.forget(9)
    assert sum(never.posterior.diff(learner.posterior).values()) <= before / 2


def test_with_the_batches_after_it_learnt_again_a_batch_was_never_there(monkeypatch):
    x, y = points(60)
    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 60, 10)]
    learner, never = classifier(record=True), classifier(record=True)
    learner.fit(batches)
    learner.forget(3)
    before = state(learner), learner.history()
    with pytest.raises(
        ValueError, match=r"again must be the 3 batches after 1, of \[10, 10, 10\] examples, got \[10\]"
    ):
        learner.forget(1, again=batches[:1])
    assert (state(learner), learner.history()) == before

    update, left = gbp.Learner.update, [2]

    def stop(self, *args, **how):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return update(self, *args, **how)

    monkeypatch.setattr(gbp.Learner, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        learner.forget(1, again=[batches[i] for i in (2, 4, 5)])
    monkeypatch.undo()
    assert (state(learner), learner.history()) == before

    learner.forget(1, again=[batches[i] for i in (2, 4, 5)])
    never.fit([batches[i] for i in (0, 2, 4, 5)])
    assert_same(learner.posterior, never.posterior, 1e-3)
    assert (learner.batches, learner.examples) == (4, 40)
    assert [(e.batch, e.forgotten) for e in learner.history()] == [
        (i, forgotten) for i, forgotten in enumerate([False, True, False, True, False, False])
    ]
    learner.forget(5)  # and so it goes on
    learner.forget(2, again=[batches[4]])
    assert learner.batches == 2
    assert [e.forgotten for e in learner.history()] == [False, True, True, True, False, True]
    assert learner.update(x[:10], y[:10]).batch == 6  # no number is used twice
    with pytest.raises(ValueError, match="there is no batch"):
        learner.forget(9, again=[])


def test_a_learner_can_be_saved_after_later_batches_were_forgotten(tmp_path):
    """What was known before the last batch is not kept where the last one is a forgotten one."""
    learner = classifier(record=True)
    x, y = points(40)
    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 40, 10)]
    learner.fit(batches)
    learner.forget(3)
    learner.forget(1, again=[batches[2]])
    learner.save(tmp_path / "run.safetensors")
    again = gbp.Learner.load(tmp_path / "run.safetensors")
    assert [e.forgotten for e in again.history()] == [False, True, False, True]
    again.forget(2)


def test_what_cannot_be_forgotten_changes_nothing():
    learner = classifier(record=True)
    x, y = points(30)
    for start in (0, 10, 20):
        learner.update(x[start : start + 10], y[start : start + 10])
    before = state(learner)
    for batch in (3, -1, True):
        with pytest.raises(ValueError, match="there is no batch"):
            learner.forget(batch)
    known = learner.state
    bias = known.history.contributions[1].beliefs["dense/bias"]
    too_much = {**known.history.contributions[1].beliefs, "dense/bias": gbp.Gaussian(bias.eta, 1e6 + bias.lam)}
    known.history.contributions[1] = dataclasses.replace(known.history.contributions[1], beliefs=too_much)
    learner.restore(known)
    with pytest.raises(ValueError, match="batch 1 cannot be forgotten: 'dense/bias' would be vaguer than its prior"):
        learner.forget(1)
    learner.filtering = gbp.Filtering(forgetting=0.9)
    with pytest.raises(ValueError, match="only the batch learnt last can"):
        learner.forget(0)
    learner.filtering = gbp.Filtering()
    assert state(learner) == before
    learner.forget(2)
    with pytest.raises(ValueError, match="batch 2 has been forgotten already"):
        learner.forget(2)
    plain = classifier()
    plain.update(x[:10], y[:10])
    with pytest.raises(ValueError, match=r"batch 0 was not recorded: Learner\(\.\.\., record=True\)"):
        plain.forget(0)


def test_the_history_tells_what_was_gained(tmp_path):
    learner = classifier(record=True)
    x, y = points(20)
    reports = [learner.update(x[:10], y[:10]), learner.update(x[10:], y[10:])]
    first, second = learner.history()
    assert (first.batch, first.examples, first.energy) == (0, 10, reports[0].energy)
    learner.forget(1)
    after = sum(learner.posterior.diff(learner.prior).values())
    assert first.gained == pytest.approx(after, rel=1e-6)
    assert second.gained > 0


def test_a_learner_can_forget_after_it_was_saved(tmp_path):
    learner = classifier(record=True)
    x, y = points(30)
    for start in (0, 10, 20):
        learner.update(x[start : start + 10], y[start : start + 10])
    learner.save(tmp_path / "run.safetensors")
    for batch in (2, 0):
        again = gbp.Learner.load(tmp_path / "run.safetensors")
        assert again.history() == learner.history()
        other = gbp.Learner.load(tmp_path / "run.safetensors")
        again.forget(batch)
        other.forget(batch)
        other.save(tmp_path / "after.safetensors")
        assert state(gbp.Learner.load(tmp_path / "after.safetensors")) == state(again)
    learner.forget(0)
    assert bits(*learner.posterior.values()) == bits(*again.posterior.values())


@pytest.mark.parametrize(
    ("wrong", "saying"),
    [
        ({"record": 0}, "record must be a whole number from 1 to 10,000"),
        ({"record": "yes"}, "record must be a whole number from 1 to 10,000"),
        ({"record": 10_001}, "record must be a whole number from 1 to 10,000"),
        ({"batches": [[0, 10]]}, "a batch has batch, examples, status"),
        ({"batches": [[5, 10, "CONVERGED", 3, 1.0, 1.0, True, False]]}, "batch 0 is damaged"),
        ({"batches": [[0, 10, "GREAT", 3, 1.0, 1.0, True, False]]}, "batch 0 is damaged"),
        ({"noise": {}}, "'0' is missing"),
        ({"noise": {"0": {"dense": [1, 2]}}}, "'dense' does not belong there"),
        ({"before": None}, "tensors: 'before/dense/bias/eta' does not belong there"),
        ({"before": {"noise": {}, "caution": "some"}}, "caution must be a whole number from 0 to 24"),
        ({"count": 0}, "count must be a whole number"),
    ],
)
def test_a_history_that_lies_is_refused(wrong, saying, tmp_path):
    learner = classifier(record=True)
    x, y = points(10)
    learner.update(x, y)
    facts, header, body = parts(checkpoint.encode(learner, {}))
    facts["history"] |= wrong
    assert saying in refused(put_together(json.loads(json.dumps(facts)), header, body), tmp_path)


def test_an_interruption_leaves_the_old_state_or_the_new(monkeypatch):
    learner = classifier(record=True)
    x, y = points(20)
    learner.update(x[:10], y[:10])
    before = state(learner), learner.history()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gbplearn.learner.learner.log_evidence_of_batch", stop)
    with pytest.raises(KeyboardInterrupt):
        learner.update(x[10:], y[10:], evidence=True)
    assert (state(learner), learner.history()) == before


def test_no_more_batches_are_recorded_than_are_remembered():
    """Neither could their records be found again, nor could a checkpoint of it be read."""
    assert classifier(record=10_000).most_recorded == 10_000
    for wrong in (10_001, -1):
        with pytest.raises(ValueError, match="record must be True, False or a number of batches up to 10,000"):
            classifier(record=wrong)


def test_a_batch_that_says_very_much(tmp_path):
    """Precisions that grow by more than single precision holds beside 1: the divergence is still a number."""
    mine, other = {"w": gaussian([0.0], [1e-5])}, {"w": gaussian([0.0], [1.0])}
    assert gbp.Posterior(mine).diff(other)["w"] == pytest.approx(np.log(1e5) - 0.5, rel=1e-4)


def test_to_forget_the_only_batch_is_to_know_the_prior():
    """Although after rounding a precision may seem to fall below it."""
    learner = apart(iterations=30)
    x = 300 * one_hot(0)[0]
    for seed in (0, 1):
        learner.update(x, one_hot(seed)[1])
    learner.forget(0)
    learner.forget(1)
    np.testing.assert_allclose(learner.posterior["dense/weight"].lam, learner.prior["dense/weight"].lam, rtol=0.1)
    assert learner.examples == 0


def test_only_the_last_batches_are_remembered(tmp_path):
    learner = classifier()
    learner.restore(dataclasses.replace(learner.state, history=History(True, most=3, most_contributions=2)))
    x, y = points(50)
    for start in range(0, 50, 10):
        learner.update(x[start : start + 10], y[start : start + 10])
    assert [(told.batch, told.recorded) for told in learner.history()] == [(2, False), (3, True), (4, True)]
    learner.save(tmp_path / "run.safetensors")
    again = gbp.Learner.load(tmp_path / "run.safetensors")
    assert again.history() == learner.history()
    with pytest.raises(ValueError, match="batch 2 was not recorded"):
        again.forget(2)
    with pytest.raises(ValueError, match="there is no batch 1: those from 2 to 4"):
        again.forget(1)
    again.forget(3)
    assert [told.forgotten for told in again.history()] == [False, True, False]


def test_as_many_contributions_as_batches_are_remembered():
    """The oldest batch leaves the records and the contributions at once; the newest can still be forgotten."""
    from gbplearn.learner.history import BatchRecord, Contribution, Entry, History
    from gbplearn.learner.unusual import BatchStatistics

    history = History(True, most=3, most_contributions=3)
    for n in range(4):
        record = BatchRecord(n, 1, "CONVERGED", 1, 0.0, 0.0, True)
        history.put(Entry(record, Contribution({}, {}, BatchStatistics()), None, BatchStatistics()))
    assert [(e.batch, e.recorded) for e in history.entries] == [(1, True), (2, True), (3, True)]
    assert sorted(history.contributions) == [1, 2, 3]


def test_a_state_keeps_its_note():
    learner = gbp.Learner(gbp.Sequential(gbp.Dense(1), gbp.GaussianObservation(sigma=1.0), input_shape=(2,)))
    state = learner.state
    learner.note["a"] = 1
    learner.restore(state)
    assert learner.note == {}


def test_a_guard_goes_through_a_checkpoint(tmp_path):
    net = gbp.Sequential(gbp.Dense(1), gbp.GaussianObservation(sigma=1.0), input_shape=(2,))
    guard = gbp.Guard(grown=1e30, memory=1)
    gbp.Learner(net, guard=guard, record=7).save(tmp_path / "a.safetensors")
    loaded = gbp.Learner.load(tmp_path / "a.safetensors")
    assert loaded.options["guard"] == guard
    assert loaded.most_recorded == 7
