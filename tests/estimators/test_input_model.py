"""The Gaussian model of inputs: sums over a stream, and what is missing given the rest."""

import numpy as np
import pytest

from gbplearn.estimators.input_model import PRIOR_COUNT as PRIOR
from gbplearn.estimators.input_model import InputModel


def draws(n, seed=0):
    """Correlated, and a linear map whose covariance is known."""
    rng = np.random.default_rng(seed)
    root = np.array([[1.0, 0, 0], [0.8, 0.6, 0], [-0.5, 0.5, 0.7]])
    return rng.standard_normal((n, 3)) @ root.T + [0.2, 0.0, -0.1], root @ root.T


def learnt(x, seen=None, weight=None, model=None):
    model = InputModel(np.zeros(x.shape[1]), np.ones(x.shape[1])) if model is None else model
    return model.learnt(
        x, np.ones(x.shape, bool) if seen is None else seen, np.ones(len(x)) if weight is None else weight
    )


def test_of_whole_examples_it_is_mean_and_covariance_with_pseudo_examples():
    x, _ = draws(40)
    weight = np.random.default_rng(1).uniform(0.5, 2, 40)
    model = learnt(x, weight=weight)
    total = PRIOR + weight.sum()
    mean = weight @ x / total
    off = x - mean
    np.testing.assert_allclose(model.mean, mean, atol=1e-12)
    expected = (PRIOR * np.eye(3) + PRIOR * np.outer(mean, mean) + (weight[:, None] * off).T @ off) / total
    np.testing.assert_allclose(model.covariance, expected, atol=1e-12)


def test_a_stream_is_as_good_as_all_at_once():
    x, _ = draws(60)
    first = learnt(x[:25])
    before = first.covariance
    model = learnt(x[25:], model=first)
    np.testing.assert_array_equal(first.covariance, before)  # a model does not change
    np.testing.assert_allclose(model.covariance, learnt(x).covariance, atol=1e-12)


def test_missing_inputs_follow_from_the_others():
    """`E[u | o] = m_u + C_uo C_oo^-1 (o - m_o)`, here with the covariance, there with the precision."""
    x, _ = draws(500)
    model = learnt(x)
    c, m = model.covariance, model.mean
    seen = np.array([[True, False, True], [False, False, True], [True, True, True], [False, False, False]])
    mean, std = model.fill(np.where(seen, x[:4], np.nan), seen)
    for row, (o, value) in enumerate(zip(seen, x)):
        u = ~o
        gain = c[np.ix_(u, o)] @ np.linalg.inv(c[np.ix_(o, o)])
        np.testing.assert_allclose(mean[row, o], value[o])
        np.testing.assert_allclose(mean[row, u], m[u] + gain @ (value - m)[o], atol=1e-10)
        variance = np.diagonal(c[np.ix_(u, u)] - gain @ c[np.ix_(u, o)].T)
        np.testing.assert_allclose(std[row, u], np.sqrt(variance), atol=1e-10)
        assert not std[row, o].any()


def test_inputs_of_any_scale_are_the_same_to_it():
    x, _ = draws(100)
    shift, scale = np.array([1e6, 0.0, -5.0]), np.array([1.0, 1e-8, 30.0])
    seen = np.random.default_rng(2).random(x.shape) > 0.3
    scaled = learnt(shift + scale * x, seen, model=InputModel(shift, scale))
    mean, std = scaled.fill(shift + scale * x, seen)
    expected = learnt(x, seen).fill(x, seen)
    np.testing.assert_allclose((mean - shift) / scale, expected[0], atol=1e-8)
    np.testing.assert_allclose(std / scale, expected[1], atol=1e-8)


def test_em_finds_the_covariance_although_a_third_is_missing():
    x, truth = draws(3000)
    seen = np.random.default_rng(2).random(x.shape) > 0.3
    model = learnt(np.where(seen, x, 0), seen)
    np.testing.assert_allclose(model.covariance, truth, atol=0.08)
    # A mean put in the place of what is missing loses covariance: 0.8 becomes 0.56.
    filled = np.where(seen, x, x.mean(0))
    assert abs(np.cov(filled.T)[0, 1] - truth[0, 1]) > 0.15


def test_too_many_inputs_are_taken_for_independent():
    x, _ = draws(200)
    seen = np.random.default_rng(2).random(x.shape) > 0.3
    model = learnt(np.where(seen, x, 0), seen, model=InputModel(np.zeros(3), np.ones(3), most_joint=2))
    assert model.covariance.shape == (3,)
    mean, std = model.fill(x, seen)
    np.testing.assert_allclose(mean[~seen], np.broadcast_to(model.mean, x.shape)[~seen])
    np.testing.assert_allclose(std[~seen], np.sqrt(np.broadcast_to(model.covariance, x.shape))[~seen])
    for i in range(3):  # the fixed point of EM is what was seen, with the pseudo-examples
        column = x[seen[:, i], i]
        assert model.mean[i] == pytest.approx(column.sum() / (PRIOR + len(column)), abs=0.01)
