"""Learner: what goes wrong leaves it as it was."""

import contextlib
import copy
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from checkpoint_files import parts, put_together
from gbplearn.apps.data.images import load_images
from gbplearn.io import checkpoint
from helpers import actions
from learners import assert_same, classifier, copies, line, measured, points


def test_messages_that_diverge_leave_the_posterior_alone():
    """Features that hardly differ, hardly any noise or damping, no guard: see docs/concepts/divergence.md."""
    rng = np.random.default_rng(0)
    layers = gbp.Dense(2, sigma=1e-3, weight_prior=1.0, weight_init=0.0), gbp.GaussianObservation(sigma=1e-3)
    hopeless = {"iterations": 600, "tolerance": 1e-3, "damping": 1e-6, "guard": False}
    student = gbp.Learner(gbp.Sequential(*layers, input_shape=3), **hopeless)
    before = copies(student.posterior)
    report = student.update(1 + 0.1 * rng.standard_normal((12, 3)), rng.standard_normal((12, 2)))
    assert (report.accepted, report.status) == (False, gbp.Status.DIVERGED)
    assert "as it was before" in report.message
    for name, (eta, lam) in before.items():
        np.testing.assert_array_equal(student.posterior[name].eta, eta)
        np.testing.assert_array_equal(student.posterior[name].lam, lam)
    assert (student.batches, student.examples, student.failures) == (0, 0, 1)
    # The next batch is an ordinary one.
    assert student.update(np.concatenate([np.eye(3)] * 4), measured(12)[1]).accepted
    assert (student.batches, student.examples, student.failures) == (1, 12, 1)


def test_a_batch_that_taught_nothing_is_refused():
    """Uncentred features, too little damping, too few iterations: back at the first means, with grown precisions."""
    rng = np.random.default_rng(0)
    layers = gbp.Dense(1, sigma=0.3, weight_prior=1.0, bias_prior=1.0, prior=100.0, weight_init=0.0)
    net = gbp.Sequential(layers, gbp.GaussianObservation(sigma=0.3), input_shape=(20,))
    student, x = gbp.Learner(net, iterations=24, damping=0.3), rng.random((20, 20))
    report = student.update(x, 10 * x @ rng.standard_normal(20))
    assert not report.accepted
    assert report.residual < 100  # it may not look lost
    assert report.guard[-1].action is gbp.GuardAction.NOTHING_BETTER
    assert (student.posterior["dense/weight"].lam == student.prior["dense/weight"].lam).all()


def test_a_learner_is_cautious_after_the_guard_had_to_damp_more(monkeypatch):
    """A quarter of the step, given back in eight good batches; at most 1/64."""
    student, (x, y) = line(damping=None, iterations=5), measured(6)
    learn, told = student.net.learn, []

    def watched(*args, damping, **options):
        told.append(damping)
        result = learn(*args, damping=damping, **options)
        found = gbp.GuardAction.DIVERGING, gbp.GuardAction.DAMPING_RAISED
        events = tuple(gbp.GuardEvent(action, 9) for action in found) if len(told) <= trouble else ()
        return dataclasses.replace(result, guard=events)

    monkeypatch.setattr(student.net, "learn", watched)
    trouble = 4
    steps, cautions = [], []
    for _ in range(15):
        known_now = student.state.posterior
        known = student.filtering.examples_known(student.examples, 6, student.prior, known_now, known_now)
        plain = 1 - gbp.damping_for(6, known).parameters
        student.update(x, y)
        steps.append((1 - told[-1].parameters) / plain)
        cautions.append(student.caution)
    assert cautions == [8, 16, 24, 24, *range(23, 12, -1)]
    np.testing.assert_allclose(steps, [2 ** (-c / 4) for c in [0, *cautions[:-1]]], rtol=1e-6)


def test_beliefs_that_are_not_sound_are_never_taken_over(monkeypatch):
    x, y = points(6)
    student, careful = classifier(process_noise=0.1), classifier(process_noise=0.1)
    for s in (student, careful):
        s.update(x, y)
    before, learn = copies(student.posterior), student.net.learn
    for broken in (
        lambda b: gbp.Gaussian(b.eta.at[0].set(jnp.nan), b.lam),
        lambda b: gbp.Gaussian(b.eta, b.lam.at[0].set(-1.0)),
        lambda b: gbp.Gaussian(b.eta, b.lam.at[0].set(jnp.inf)),
    ):

        def bad(*args, broken=broken, **options):
            result = learn(*args, **options)
            return dataclasses.replace(result, beliefs={**result.beliefs, "dense/bias": broken(result["dense/bias"])})

        monkeypatch.setattr(student.net, "learn", bad)
        report = student.update(x + 1, y)
        assert not report.accepted
        assert "as it was before" in report.message
        for name, (eta, lam) in before.items():
            np.testing.assert_array_equal(student.posterior[name].eta, eta)
            np.testing.assert_array_equal(student.posterior[name].lam, lam)
    monkeypatch.undo()
    assert (student.batches, student.failures) == (1, 3)
    for s in (student, careful):
        assert s.update(x - 1, y).accepted
    assert_same(student.posterior, careful.posterior, 0)


NAN = float("nan")
X, Y = points(4)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda s: s.update(X[:, :1], Y), r"shape \(2,\), got \(1,\)"),
        (lambda s: s.update(X[0], Y), r"shape \(2,\)"),
        (lambda s: s.update(X[:0], Y[:0]), "batch of examples"),
        (lambda s: s.update(X), "update needs y"),
        (lambda s: s.update(X, Y[:3]), r"\(4,\)"),
        (lambda s: s.update(X, Y + 1), "0 ... 1"),
        (lambda s: s.update(X, Y - 1), "0 ... 1"),
        (lambda s: s.update(X, Y + 0.5), "whole numbers"),
        (lambda s: s.update(np.where(X[0] == X, NAN, X), Y), "x holds NaN"),
        (lambda s: s.update(np.where(X[0] == X, NAN, X), Y, x_observed=np.ones(4, bool)), "x_observed says observed"),
        (lambda s: s.update(X, Y, x_observed=np.ones(3, bool)), "x_observed has shape"),
        (lambda s: s.update(X, Y, x_observed=np.ones(X.shape)), "x_observed must hold True"),
        (lambda s: s.update(X, Y, y_observed=np.ones(4)), "y_observed must hold True"),
        (lambda s: s.update(X, Y, y_observed=np.ones(5, bool)), "y_observed has shape"),
        (lambda s: s.update(X, np.eye(2)[Y], y_observed=np.eye(2, dtype=bool)[Y]), "there is no half"),
        (lambda s: s.update(X, ["a"] * 4), "layer 'softmax'"),
        (lambda s: s.predict(X[:, :1]), r"shape \(2,\)"),
        (lambda s: s.predict(X, parameters="free"), "'fixed' or 'random'"),
        (lambda s: s.query("hidden", x=X), "want must be one of"),
        (lambda s: s.query(x=X, y_observed=np.ones(4, bool)), "y_observed needs y"),
        (lambda s: s.net.memory(0), "whole number >= 1"),
        (lambda s: line().predict_proba(np.zeros((1, 3))), "SoftmaxObservation"),
        (lambda s: line().update(np.zeros((4, 3)), np.full((4, 2), NAN)), "NaN"),
        (lambda s: line().update(np.zeros((4, 3)), np.zeros((4, 3))), r"\(4, 2\)"),
        (lambda s: classifier(iterations=0).update(X, Y), "iterations"),
        (lambda s: classifier(iterations=-3).update(X, Y), "iterations"),
        (lambda s: classifier(tolerance=-1.0).update(X, Y), "tolerance"),
        (lambda s: classifier(damping=1.0).update(X, Y), "damping"),
        (lambda s: classifier(damping=-0.1).update(X, Y), "damping"),
        (lambda s: classifier(dropout=1.0).update(X, Y), "dropout"),
        (lambda s: classifier(schedule=gbp.Order("dense")).update(X, Y), "never visits"),
        (lambda s: classifier(input_sigma=0.0), "input_sigma"),
        (lambda s: classifier(input_sigma=-1.0), "input_sigma"),
        (lambda s: classifier(parameters="learnt"), "parameters"),
        (lambda s: classifier(messages="few"), "messages"),
        (lambda s: gbp.Learner(gbp.Sequential(gbp.Dense(2))), "input_shape"),
        (lambda s: gbp.Learner(s.net, input_shape=(3,)), r"\(2,\)"),
    ],
)
def test_bad_input_is_refused(act, named):
    student = classifier()
    before = copies(student.posterior)
    with pytest.raises(ValueError, match=named):
        act(student)
    assert student.batches == student.failures == 0
    for name, (eta, _) in before.items():
        np.testing.assert_array_equal(student.posterior[name].eta, eta)


@pytest.mark.parametrize("iterations", [12, 60])  # while messages are lost, and while proximal steps are under way
def test_a_batch_that_runs_out_while_diverging_is_refused(iterations):
    """Uncentred features, no damping: the best means would come with the precisions of lost messages."""
    rng = np.random.default_rng(0)
    net = gbp.Sequential(
        gbp.Dense(1, sigma=0.1, weight_prior=1.0, bias_prior=1.0, prior=100.0, weight_init=0.0),
        gbp.GaussianObservation(sigma=0.1),
        input_shape=(20,),
    )
    student = gbp.Learner(net, damping=0.0, iterations=iterations, messages="per-edge")
    x = rng.random((30, 20))
    report = student.update(x, 10 * x @ rng.standard_normal(20))
    assert not report.accepted
    assert (gbp.GuardAction.PROXIMAL_FACTORS in actions(report)) == (iterations > 12)
    assert "as it was before" in report.message
    assert (student.posterior["dense/weight"].lam == student.prior["dense/weight"].lam).all()


def strained_classifier(sigma, iterations, **more):
    how = {"activation": "tanh", "sigma": sigma, "weight_prior": 0.8, "bias_prior": 0.5, "prior": 4.0}
    layers = gbp.Dense(8, **how), gbp.Dense(8, **how), gbp.Dense(2, **{**how, "activation": "linear"})
    return gbp.Learner(
        gbp.Sequential(*layers, gbp.SoftmaxObservation(0.05), input_shape=(2,)), iterations=iterations, **more
    )


def test_layers_that_do_not_hold_are_flagged():
    """Three iterations through layers of little noise: forward passes that nobody has brought together."""
    x, y = points(40)
    weight = np.where(np.arange(40) < 30, 1.0, 0.0)
    report = strained_classifier(0.01, 3).update(x, y, sample_weight=weight)
    assert (report.accepted, report.status) == (True, gbp.Status.STRAINED)
    assert report.energy_per_factor["dense_2"] == pytest.approx(2 * report.energies["dense_2"] / (30 * 2), rel=1e-5)
    assert report.strained == tuple(n for n in ("dense", "dense_1", "dense_2") if report.energy_per_factor[n] > 25)
    assert "dense_2" in report.strained
    assert "layers do not hold" in report.message
    assert "'dense_2' (" in report.message
    sound = strained_classifier(0.1, 50).update(x, y)
    assert (sound.accepted, sound.strained) == (True, ())
    assert sound.status is not gbp.Status.STRAINED
    assert max(sound.energy_per_factor.values()) < 1


def begun(**more):
    """A learner of deep layers that has learnt one batch whose layers hold, and a batch whose layers do not."""
    learner, (x, y) = strained_classifier(0.1, 50, **more), points(40)
    assert learner.update(x, y).strained == ()
    learner.options["iterations"] = 2  # stopped far from rest
    return learner, (1 - 3 * x, 1 - y)


def test_layers_that_do_not_hold_refuse_the_batch():
    """Once some batch has held; then nothing changes but the count of failures and the caution."""
    learner, (x, y) = begun(record=True)
    before, state, asked = copies(learner.posterior), learner.state, copy.copy(learner)
    report = learner.update(x, y, want="output")
    assert (report.accepted, report.status, report.batch, report.belief) == (False, gbp.Status.STRAINED, None, None)
    assert "dense_2" in report.strained
    assert report.energy_per_factor["dense_2"] > 25
    assert report.message.startswith("not learnt: layers do not hold")
    assert "as it was before" in report.message
    after = copies(learner.posterior)
    assert all(np.array_equal(a, b) for n in before for a, b in zip(before[n], after[n]))
    now = learner.state
    assert (now.batches, now.examples, now.history.count) == (state.batches, state.examples, state.history.count)
    assert (now.failures, now.caution) == (state.failures + 1, state.caution + 8)
    # The same batch, for those who want it.
    asked.strained = "learn"
    taken = asked.update(x, y)
    assert (taken.accepted, taken.status, taken.strained) == (True, gbp.Status.STRAINED, report.strained)
    assert taken.message.startswith("learnt: layers do not hold")
    assert asked.caution == max(0, state.caution - 1)
    learner.strained = "warn"
    with pytest.warns(UserWarning, match="layers do not hold in this batch: 'dense_2'"):
        assert learner.update(x, y).accepted
    for wrong in (lambda: gbp.Learner(learner.net, strained="no"), lambda: setattr(learner, "strained", "yes")):
        with pytest.raises(ValueError, match="strained must be one of 'refuse', 'warn', 'learn', got"):
            wrong()


def test_a_batch_that_does_not_hold_is_learnt_while_none_has_held():
    """There is nothing that it could spoil; forgotten batches do not count, merged ones do."""
    learner, (x, y) = begun(record=True)
    first = strained_classifier(0.01, 3)
    assert [first.update(*points(40)).accepted for _ in range(2)] == [True, True]
    merged = gbp.merge([learner, learner])
    merged.options["iterations"] = 2
    assert not merged.update(x, y).accepted
    learner.forget(0)
    assert learner.update(x, y).accepted


def test_a_batch_that_teaches_nothing_has_not_held():
    """Without labels there is nothing to hold: batches after it are learnt as if it had not been."""
    learner, (x, y) = strained_classifier(0.01, 3), points(40)
    assert learner.update(x, y, y_observed=np.zeros(40, bool)).strained == ()
    assert [learner.update(x, y).accepted for _ in range(2)] == [True, True]


def test_a_refused_batch_warns_once_in_a_stream():
    learner, batch = begun()
    with pytest.warns(UserWarning, match=r"not learnt: layers do not hold.*see Learner\(strained=\)") as caught:
        learner.fit([batch, batch])
    assert len(caught) == 1
    assert learner.failures == 2


def test_what_was_learnt_is_learnt_again_although_its_layers_do_not_hold():
    learner, batch = begun(record=True, strained="learn")
    assert learner.update(*batch).strained
    learner.strained = "refuse"
    learner.options["iterations"] = 50
    assert learner.update(*points(40)).accepted
    learner.options["iterations"] = 2
    learner.forget(0, again=[batch, points(40)])
    assert (learner.batches, learner.strained) == (2, "refuse")


@pytest.mark.parametrize("activations", ["scalar", "vector"])
def test_a_world_that_has_changed_is_learnt_although_layers_do_not_hold(activations):
    """Messages come to rest, and nothing fits: what was known contradicts the batch."""
    x = np.random.default_rng(0).standard_normal((40, 2))
    net = gbp.Sequential(
        gbp.Dense(1, sigma=0.01, weight_prior=1.0), gbp.GaussianObservation(sigma=0.01), input_shape=(2,)
    )
    learner = gbp.Learner(net, activations=activations, iterations=2000, unusual="learn")
    assert learner.update(x, x @ [1.0, -0.5]).strained == ()
    report = learner.update(x, x @ [1.0, 5.0])
    assert (report.accepted, report.status) == (True, gbp.Status.STRAINED)
    assert report.strained == ("dense" if activations == "scalar" else "gaussian",)


def test_targets_that_count_half_are_no_layers_that_do_not_hold():
    """Joint updates shorten steps of networks that are not linear so far: a remedy, which `report.strained` is not."""
    x = np.random.default_rng(0).standard_normal((10, 2))
    net = gbp.Sequential(
        gbp.Dense(6, activation="tanh", weight_prior=2.0, bias_prior=1.0),
        gbp.Dense(1, weight_prior=2.0, bias_prior=1.0, prior=100.0),
        gbp.GaussianObservation(sigma=0.3),
        input_shape=(2,),
    )
    reports = [gbp.Learner(net, activations="vector", seed=seed).update(x, x[:, 0]) for seed in range(20)]
    half = [r for r in reports if r.status is gbp.Status.STRAINED and not r.strained]
    assert half
    assert all(r.accepted for r in half)


@pytest.mark.parametrize("choice", ["refuse", "warn", "learn"])
def test_checkpoints_keep_what_is_done_with_layers_that_do_not_hold(choice, tmp_path):
    learner, batch = begun(strained=choice)
    learner.save(tmp_path / "learner")
    again = gbp.Learner.load(tmp_path / "learner")
    assert again.strained == choice
    with contextlib.nullcontext() if choice != "warn" else pytest.warns(UserWarning, match="do not hold"):
        assert again.update(*batch).accepted == (choice != "refuse")
    facts, header, body = parts(checkpoint.encode(learner, {}))
    del facts["settings"]["strained"]
    (tmp_path / "old").write_bytes(put_together(facts, header, body))
    assert gbp.Learner.load(tmp_path / "old").strained == "learn"  # as it was learnt


@pytest.mark.slow
def test_a_deep_network_does_not_unlearn_in_silence():
    """Five dense layers of scalars fall by more than ten points in one batch; a fall is never silent, and is refused.

    (With one convolution nothing strains.)
    """
    digits = load_images("digits")
    how = {"activation": "leaky_relu", "sigma": 0.01, "bias_prior": 0.15, "prior": 3.0}
    deep = [gbp.Dense(64, weight_prior=0.15, **how) for _ in range(5)]
    flat = [gbp.Conv2D(8, kernel=3, weight_prior=0.3, **how)]
    ends = {}
    for layers, strained in ((deep, "learn"), (deep, "refuse"), (flat, "refuse")):
        net = gbp.Sequential(
            *layers,
            gbp.Dense(10, sigma=0.01, weight_prior=0.15, bias_prior=0.15, prior=2.0, weight_init=0.0),
            gbp.SoftmaxObservation(sigma=0.01),
            input_shape=(8, 8, 1),
        )
        learner, right, fell, count = gbp.Learner(net, activations="scalar", strained=strained), 0.0, [], 0
        for i in range(0, 1400, 50):
            report = learner.update(digits.train_x[i : i + 50], digits.train_y[i : i + 50])
            now = (np.asarray(learner.forward(digits.test_x)).argmax(1) == digits.test_y).mean()
            count += bool(report.strained)
            if now < right - 0.1:
                fell.append(report)
            right = now
        assert all((r.accepted, r.status) == (True, gbp.Status.STRAINED) for r in fell)
        assert bool(fell) == (strained == "learn")
        assert bool(count) == (layers is deep)
        ends[len(layers), strained] = right
    assert ends[5, "refuse"] > ends[5, "learn"] + 0.1
