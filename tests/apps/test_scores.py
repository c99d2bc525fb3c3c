"""Scores of class probabilities, against hand-written sums and closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbplearn.apps import scores

P = np.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.05, 0.05, 0.9], [0.5, 0.3, 0.2]])
Y = np.array([0, 2, 2, 0])


def test_scores_are_what_the_definitions_say():
    assert scores.accuracy(P, Y) == 0.75
    assert scores.negative_log_likelihood(P, Y) == pytest.approx(-np.log([0.7, 0.3, 0.9, 0.5]).mean())
    brier = [0.3**2 + 0.2**2 + 0.1**2, 0.3**2 + 0.4**2 + 0.7**2, 0.05**2 * 2 + 0.1**2, 0.5**2 + 0.3**2 + 0.2**2]
    assert scores.brier_score(P, Y) == pytest.approx(np.mean(brier))
    # Two bins: 0.4 (wrong) is below a half; 0.7, 0.9 and 0.5 (all right) are not.
    assert scores.expected_calibration_error(P, Y, bins=2) == pytest.approx(0.4 / 4 + 3 / 4 * (1 - 2.1 / 3))
    found = scores.calibration(P, Y, bins=2)
    np.testing.assert_allclose(found.confidence, [0.4, 0.7])
    np.testing.assert_allclose(found.accuracy, [0, 1])
    assert found.examples.tolist() == [1, 3]


def test_certain_and_wrong_costs_much_but_is_finite():
    p = np.array([[1.0, 0.0]])
    assert 20 < scores.negative_log_likelihood(p, np.array([1])) < np.inf
    assert scores.brier_score(p, np.array([1])) == 2
    assert scores.entropy(p)[0] == 0
    assert scores.entropy(np.full((1, 10), 0.1))[0] == pytest.approx(np.log(10))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_auroc_counts_pairs(unknown, known):
    pairs = [(u > k) + 0.5 * (u == k) for u in unknown for k in known]
    assert scores.auroc(np.array(unknown, float), np.array(known, float)) == pytest.approx(np.mean(pairs))


def test_forecasts_that_are_true_are_calibrated():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 200_000)
    y = (p.cumsum(1) < rng.random((len(p), 1))).sum(1)
    assert scores.expected_calibration_error(p, y) < 0.005
    # Of true forecasts no temperature makes better ones; sharpened by two, the best temperature takes that back.
    assert scores.best_temperature(np.log(p), y) == pytest.approx(1, abs=0.02)
    assert scores.best_temperature(2 * np.log(p), y) == pytest.approx(2, abs=0.04)


def test_softmax_of_large_logits():
    np.testing.assert_allclose(scores.softmax(np.array([[1e4, 0.0], [0.0, np.log(3)]])), [[1, 0], [0.25, 0.75]])
