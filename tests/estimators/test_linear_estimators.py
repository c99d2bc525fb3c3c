"""Estimators without hidden layers: joint updates of vectors, exact; against scikit-learn's own linear models."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import BayesianRidge
from sklearn.metrics import log_loss
from sklearn.utils import estimator_checks

from gbplearn import GBPClassifier, GBPRegressor
from gbplearn.estimators.estimators import _WEIGHTS
from gbplearn.estimators.validation import moments


def ridge(x, y, new):
    """`BayesianRidge` with the same prior of the weights and of the noise, in the same units."""
    mean, scale = moments(x, np.ones(len(x)))
    start = {"alpha_1": 0.5, "alpha_2": 0.5 * 0.5**2, "lambda_1": 1e12, "lambda_2": 1e12 * _WEIGHTS**2}
    fitted = BayesianRidge(**start, tol=1e-10, max_iter=5000).fit((x - mean) / scale, (y - y.mean()) / y.std())
    found, std = fitted.predict((new - mean) / scale, return_std=True)
    return found * y.std() + y.mean(), std * y.std(), fitted.alpha_**-0.5 * y.std()


def table(kind, n=700, seed=0):
    """Columns that are equal, or whose correlation is 0.999 and more; what matters may be their differences."""
    r = np.random.default_rng(seed)
    if kind == "equal":
        latent = r.standard_normal((n, 4))
        x = np.c_[latent, latent, latent + 1e-4 * r.standard_normal((n, 4)), np.full(n, 3.0)]
        return x, latent @ [1.0, -1.0, 0.5, 0.2] + 0.3 * r.standard_normal(n)
    if kind == "differences":
        base, off = r.standard_normal(n), r.standard_normal((n, 8))
        return base[:, None] + 0.03 * off, 5 + 0.03 * (base + off @ r.standard_normal(8)) + 0.02 * r.standard_normal(n)
    x = np.repeat(r.standard_normal((n, 3)), 10, 1) + 0.01 * r.standard_normal((n, 30))
    return 1e3 * x, x @ r.standard_normal(30) + 0.5 * r.standard_normal(n)


def rmse(a, b):
    return np.sqrt(np.mean((a - b) ** 2))


@pytest.mark.parametrize("kind", ["equal", "differences", "thirty"])
def test_collinear_tables_are_those_of_bayesian_ridge(kind):
    x, y = table(kind)
    reg = GBPRegressor(hidden_layers=[]).fit(x[:500], y[:500])
    (mean, std), (expected, spread, noise) = reg.predict(x[500:], return_std=True), ridge(x[:500], y[:500], x[500:])
    assert rmse(mean, y[500:]) == pytest.approx(rmse(expected, y[500:]), rel=0.01)
    assert rmse(mean, expected) < 0.05 * noise
    np.testing.assert_allclose(std, spread, rtol=0.03)
    assert reg.noise_ == pytest.approx(noise, rel=0.03)


def test_one_batch_is_exact():
    """But for the mean of the targets, which is one more parameter here."""
    x, y = table("thirty", 150)
    reg = GBPRegressor(hidden_layers=[]).fit(x[:100], y[:100])
    mean, std = reg.predict(x[100:], return_std=True)
    expected, spread, noise = ridge(x[:100], y[:100], x[100:])
    assert len(reg.reports_) == 1
    assert rmse(mean, expected) < 0.01 * noise
    np.testing.assert_allclose(std, spread, rtol=0.02)


def test_a_stream_is_one_table():
    """`partial_fit` in parts, and a pickle that goes on; noise is known to as many values as there were."""
    x, y = table("equal")
    reg = GBPRegressor(hidden_layers=()).fit(x[:300], y[:300])
    reg.partial_fit(x[300:400], y[300:400])
    reg = pickle.loads(pickle.dumps(reg)).partial_fit(x[400:500], y[400:500])
    whole = GBPRegressor(hidden_layers=()).fit(x[:500], y[:500])
    assert rmse(reg.predict(x[500:]), whole.predict(x[500:])) < 0.02 * whole.noise_
    assert reg.noise_ == pytest.approx(whole.noise_, rel=0.03)
    for each in (reg, whole):
        (noise,) = each.learner_.noise.values()
        assert noise.weight == pytest.approx(1 + 500)
        assert each.learner_.examples == 500


def test_passes_find_the_noise_where_a_batch_has_fewer_rows_than_weights():
    """A first batch alone can be explained without noise; the passes after it know better."""
    r = np.random.default_rng(0)
    x = r.standard_normal((600, 60))
    y = x @ r.standard_normal(60) + 2 * r.standard_normal(600)
    reg = GBPRegressor(hidden_layers=[], batch_size=40).fit(x[:400], y[:400])
    expected, _, noise = ridge(x[:400], y[:400], x[400:])
    assert len(reg.reports_) > 10
    assert reg.noise_ == pytest.approx(noise, rel=0.1)
    assert rmse(reg.predict(x[400:]), y[400:]) == pytest.approx(rmse(expected, y[400:]), rel=0.01)


def test_filtering_once_before_each_partial_fit():
    """In however many batches and passes: examples of no weight leave the filtered posterior."""
    x, y = table("differences", 300)
    reg = GBPRegressor([], forgetting=0.8, batch_size=100).fit(x, y)
    (name,) = reg.learner_.posterior
    before, (noise,) = reg.learner_.posterior[name], reg.learner_.noise.values()
    reg.partial_fit(x, y, sample_weight=np.full(300, 1e-9))
    after, (now,) = reg.learner_.posterior[name], reg.learner_.noise.values()
    np.testing.assert_allclose(after.covariance, before.covariance / 0.8, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(after.mean, before.mean, atol=1e-3)
    assert now.weight == pytest.approx(0.8 * noise.weight, rel=1e-3)


def test_missing_values_and_several_targets():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(300)
    x = np.column_stack([a, a + 0.05 * rng.standard_normal(300)])
    y = np.column_stack([2 * a + 0.1 * rng.standard_normal(300), rng.standard_normal(300)])
    holes, some = x.copy(), y.copy()
    holes[rng.random(300) < 0.3, 0] = np.nan
    some[rng.random(300) < 0.3, 0] = np.nan
    reg = GBPRegressor([]).fit(holes, some)
    mean, std = reg.predict([[1.0, 1.0], [np.nan, 1.0], [np.nan, np.nan]], return_std=True)
    np.testing.assert_allclose(mean[:2, 0], 2, atol=0.1)
    np.testing.assert_allclose(mean[2, 0], np.nanmean(some[:, 0]), atol=0.1)
    assert (std[0] <= std[1]).all()
    assert std[1, 0] < 0.8 * std[2, 0]


def test_wild_values_hardly_count():
    x, y = table("equal", 200)
    wild = y.copy()
    wild[7] = 1e4
    reg = GBPRegressor([], robust=True).fit(x, wild)
    assert reg.learner_.activations == "scalar"
    assert rmse(reg.predict(x), y) < 1.2 * rmse(GBPRegressor([]).fit(x, y).predict(x), y)


def test_classes_have_their_own_likelihood():
    """Held-out rows: as likely as by logistic regression, or nearly."""
    x, y = load_breast_cancer(return_X_y=True)
    clf = GBPClassifier([]).fit(x[:400], y[:400])
    assert clf.score(x[400:], y[400:]) > 0.95
    assert log_loss(y[400:], clf.predict_proba(x[400:])) < 0.12
    clf.partial_fit(x[400:], y[400:])
    assert clf.learner_.examples == 569


@pytest.mark.parametrize("kind", [GBPClassifier, GBPRegressor])
def test_conventions_of_scikit_learn(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = estimator_checks.check_estimator(kind(hidden_layers=[]), on_fail=None)
    assert len(told) > 50
    assert [t["check_name"] for t in told if t["status"] not in ("passed", "skipped")] == []
