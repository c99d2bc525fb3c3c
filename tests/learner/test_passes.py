"""Batches that are visited several times, each counted once."""

import copy
import dataclasses

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.learner.passes import learn_in_passes

SIGMA, NOISE, PRIOR = 0.05, 0.4, 1.0


def line(n=60, seed=0):
    """Inputs that go together, so that what one batch says of a weight depends on what others say of its neighbours."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3)) @ np.array([[1.0, 0.9, 0.8], [0.0, 0.5, 0.1], [0.0, 0.0, 0.5]])
    return x, x @ [1.0, -2.0, 1.0] + NOISE * rng.standard_normal(n)


def learner(**how):
    net = gbp.Sequential(
        gbp.Dense(1, sigma=SIGMA, weight_prior=PRIOR, bias_prior=PRIOR, weight_init=0.0, prior=100.0),
        gbp.GaussianObservation(sigma=NOISE),
        input_shape=(3,),
    )
    return gbp.Learner(net, iterations=500, tolerance=1e-4, damping=gbp.Damping(parameters=0.8, activations=0.5), **how)


def learn(who, x, y, passes, batches=6, update=None):
    rows = np.array_split(np.arange(len(x)), batches)
    return learn_in_passes(who, rows, update or (lambda r: who.update(x[r], y[r])), passes)


def means(who):
    return np.r_[np.asarray(who.posterior["dense/weight"].mean)[:, 0], np.asarray(who.posterior["dense/bias"].mean)]


def exact(x, y):
    """The dense solve: mean, and the precision of each parameter with the others known."""
    design = np.column_stack([x, np.ones(len(x))])
    precision = np.eye(4) / PRIOR**2 + design.T @ design / (SIGMA**2 + NOISE**2)
    return np.linalg.solve(precision, design.T @ y / (SIGMA**2 + NOISE**2)), np.diag(precision)


def test_passes_come_to_rest_where_all_examples_at_once_do():
    """One pass keeps no correlations between batches and ends elsewhere; passes end at the dense solve."""
    x, y = line()
    once, often = learner(), learner()
    learn(once, x, y, 1)
    parts, reports = learn(often, x, y, 60)
    mean, most = exact(x, y)
    assert 12 < len(reports) < 360  # until nothing moved, which was before the last pass
    assert len(parts) == 6
    assert np.abs(means(once) - mean).max() > 0.1
    np.testing.assert_allclose(means(often), mean, atol=0.02)
    # However often a batch is visited, it counts once: no precision is above that with all else known.
    lam = np.r_[np.asarray(often.posterior["dense/weight"].lam)[:, 0], np.asarray(often.posterior["dense/bias"].lam)]
    assert (lam <= 1.001 * most).all()
    assert (often.batches, often.examples) == (6, 60)
    assert not any(e.recorded for e in often.history())
    assert often.state.history.contributions == {}


def test_a_visit_that_ends_badly_changes_nothing():
    """The last visit of all fails: what is known is what was known before it, bit for bit."""
    x, y = line()
    who, known = learner(), []

    def update(rows):
        # No numbers in float32: such a batch is refused.
        far = 1e30 if len(known) == 5 else 1.0
        report = who.update(1e-5 * far * x[rows] if far > 1 else x[rows], far * y[rows])
        known.append({name: np.asarray(g.eta) for name, g in who.posterior.items()})
        return report

    parts, reports = learn(who, x, y, 2, batches=3, update=update)
    assert [r.accepted for r in reports] == [True] * 5 + [False]
    assert all(p.learnt for p in parts)
    assert (who.batches, who.examples, who.failures) == (3, 60, 1)
    for name, eta in known[4].items():
        np.testing.assert_array_equal(who.posterior[name].eta, eta)
    assert np.abs(known[5]["dense/weight"] - known[4]["dense/weight"]).max() > 1  # while it was visited


def test_an_interruption_between_two_visits_leaves_no_record():
    x, y = line()
    who, calls = learner(forgetting=0.9), []

    def update(rows):
        calls.append(rows)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return who.update(x[rows], y[rows])

    with pytest.raises(KeyboardInterrupt):
        learn(who, x, y, 2, update=update)
    assert who.filtering.forgetting == 0.9
    assert who.state.history.contributions == {}
    assert not who.state.history.record


def test_what_was_forgotten_before_the_first_part_stays_forgotten():
    """Also if that part is the only one that can be learnt, and so the last one: it is visited again from there."""
    x, y = line()
    found = []
    for count in (1, 3):
        who = learner(forgetting=0.5)
        learn(who, x, y, 1)

        def refused(rows, who=who):
            return dataclasses.replace(copy.copy(who).update(x[rows], y[rows]), accepted=False, batch=None)

        def update(rows, who=who, refused=refused):
            return who.update(x[rows], y[rows]) if rows[0] == 0 else refused(rows)

        learn(who, x, y, count, batches=2, update=update)
        found.append(np.asarray(who.posterior["dense/weight"].lam))
    np.testing.assert_allclose(found[1], found[0], rtol=0.05)


def test_more_batches_than_are_recorded_are_a_stream():
    x, y = line()
    assert len(learn(learner(record=5), x, y, 3)[1]) == 6
