"""The scikit-learn face."""

import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import gbplearn as gbp
from gbplearn import GBPClassifier, GBPDenoiser, GBPRegressor
from gbplearn.estimators.validation import distinct, moments, robust_moments, roomy

# Small: what is tested does not depend on how well they learn, so that they may stop early.
SMALL = {"hidden_layers": [gbp.Dense(3, "leaky_relu", sigma=0.1)], "iterations": 30, "batch_size": 100}
LINEAR = {"hidden_layers": [gbp.Dense(2, sigma=0.02, weight_prior=1.0)], "iterations": 200, "batch_size": 100}
pytestmark = pytest.mark.filterwarnings("ignore:.* batches ended at the limit:sklearn.exceptions.ConvergenceWarning")


def blobs(n=60, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return rng.standard_normal((n, 2)) + 4 * np.array([[0, 0], [1, 0], [0, 1]])[y], np.array(["a", "b", "c"])[y]


def plane(n=80, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    x = 3 + 2 * rng.standard_normal((n, 3))
    return x, 10 + x @ [2.0, -1.0, 0.0] + noise * rng.standard_normal(n)


QUICK = [
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimators_unfitted",
    "check_supervised_y_no_nan",
    "check_requires_y_none",
    "check_fit1d",
    "check_estimators_empty_data_messages",
    "check_all_zero_sample_weights_error",
    "check_sample_weight_equivalence_on_dense_data",
]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in (GBPClassifier, GBPRegressor) for name in QUICK),
        (GBPClassifier, "check_methods_subset_invariance"),
    ],
)
def test_conventions_of_scikit_learn(kind, name):
    """Some of those that `check_estimator` runs; all of them, with the defaults, take minutes: below."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(estimator_checks, name)(kind.__name__, kind(**SMALL))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GBPClassifier, GBPRegressor])
def test_check_estimator_passes(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = estimator_checks.check_estimator(kind(iterations=300), on_fail=None)
    assert len(told) > 50
    assert [t["check_name"] for t in told if t["status"] not in ("passed", "skipped")] == []


def test_classes_their_probabilities_and_more_of_them():
    x, y = blobs()
    clf = GBPClassifier(**{**SMALL, "iterations": 200}).fit(x, y)
    assert list(clf.classes_) == ["a", "b", "c"]
    p = clf.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
    assert (clf.predict(x) == clf.classes_[p.argmax(1)]).all()
    assert clf.score(x, y) > 0.9
    before = clf.learner_.posterior
    clf.partial_fit(x[:30], y[:30])  # the posterior is the prior: precisions only grow
    assert clf.learner_.examples == 90
    assert all((np.asarray(clf.learner_.posterior[n].lam) >= 0.999 * before[n].lam).all() for n in before)
    with pytest.raises(ValueError, match="not among"):
        clf.partial_fit(x[:2], ["a", "d"])
    started = GBPClassifier(**SMALL).partial_fit(x[:3], ["a", "a", "a"], classes=["a", "b", "c"])
    assert started.predict_proba(x[:1]).shape == (1, 3)


@pytest.mark.slow
def test_a_line_with_its_noise(optimised):
    """Ordinary least squares has the same mean; 95 % intervals hold what they say."""
    x, y = plane(200)
    reg = GBPRegressor(**LINEAR).fit(x, y)
    assert reg.noise_ == pytest.approx(0.5, rel=0.12)
    xq, yq = plane(400, seed=1)
    mean, std = reg.predict(xq, return_std=True)
    design = np.column_stack([x, np.ones(len(x))])
    exact = np.column_stack([xq, np.ones(len(xq))]) @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert np.sqrt(np.mean((mean - exact) ** 2)) < 0.1  # of a noise of 0.5
    assert 0.9 < np.mean(np.abs(mean - yq) < 1.96 * std) < 0.99
    assert (std > reg.noise_).all()


def test_several_targets():
    x, y = plane()
    both = np.column_stack([y, -3 * y])
    both[:10, 1] = np.nan
    reg = GBPRegressor(**LINEAR).fit(x, both)
    mean, std = reg.predict(x, return_std=True)
    assert mean.shape == std.shape == (80, 2)
    np.testing.assert_allclose(reg.noise_[1], 3 * reg.noise_[0], rtol=0.05)
    assert reg.score(x[10:], both[10:]) > 0.9
    with pytest.raises(ValueError, match="targets"):
        reg.partial_fit(x, y)


def test_missing_inputs_are_inferred_from_the_others():
    """The second input is the first one: where it is missing nothing is lost, where both are almost everything is."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(200)
    x = np.column_stack([a, a + 0.05 * rng.standard_normal(200)])
    y = 2 * a + 0.1 * rng.standard_normal(200)
    holes = x.copy()
    holes[rng.random(200) < 0.3, 0] = np.nan
    reg = GBPRegressor(**LINEAR).fit(holes, y)
    query = np.array([[1.0, 1.0], [np.nan, 1.0], [np.nan, np.nan]])
    mean, std = reg.predict(query, return_std=True)
    assert mean[1] == pytest.approx(mean[0], abs=0.15)
    assert mean[0] == pytest.approx(2.0, abs=0.2)
    assert mean[2] == pytest.approx(y.mean(), abs=0.2)
    # Missing together they are taken for independent, so that of (w + w)² v there is left w² v + w² v.
    assert 0.95 * y.std() / np.sqrt(2) < std[2] < 1.05 * y.std()
    assert std[0] <= std[1] < 0.5 * std[2]


def test_examples_without_a_label():
    x, y = blobs()
    some = y.astype(object)
    some[::2] = None
    few = GBPClassifier(**SMALL).fit(x, some)
    known = GBPClassifier(**SMALL).fit(x[1::2], y[1::2])
    assert few.learner_.examples == 60
    assert list(few.classes_) == ["a", "b", "c"]
    assert few.input_model_.count == 60
    assert known.input_model_.count == 30
    numbers = np.where(np.arange(60) % 2, np.arange(60) % 3, np.nan)
    assert list(GBPClassifier(**SMALL).fit(x, numbers).classes_) == [0, 1, 2]
    before = few.input_model_.count
    few.partial_fit(x[:20], [None] * 20)  # they tell what inputs look like
    assert few.input_model_.count == before + 20
    assert few.learner_.batches == 1
    names = [*y[:-2], np.nan, type("NAType", (), {})()]
    assert list(GBPClassifier(**SMALL).fit(x, names).classes_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="all of them names or all of them numbers"):
        few.fit(x, ["a", 1] * 30)
    with pytest.raises(ValueError, match="not what was given before"):
        few.partial_fit(x, y, classes=["a", "b"])
    for nothing in (np.full(60, np.nan), np.array([None] * 60)):
        for kind in (GBPClassifier, GBPRegressor):
            with pytest.raises(ValueError, match="at all"):
                kind(**SMALL).fit(x, nothing)


def test_weights():
    """0 is not there, bit for bit; equal examples are one of their number's weight."""
    x, y = plane(20)
    weight = np.r_[np.ones(15), np.zeros(5)]
    a = GBPRegressor(**SMALL).fit(x, y, sample_weight=weight).predict(x)
    b = GBPRegressor(**SMALL).fit(x[:15], y[:15]).predict(x)
    np.testing.assert_array_equal(a, b)
    rows = np.array([[1.0, np.nan], [2.0, 3.0], [1.0, np.nan], [2.0, 3.0], [2.0, 0.0]])
    found, weight = distinct(rows, np.array([1.0, 2.0, 0.5, 0.0, 4.0]))
    np.testing.assert_array_equal(found, [[1.0, np.nan], [2.0, 0.0], [2.0, 3.0]])
    np.testing.assert_array_equal(weight, [1.5, 4.0, 2.0])


def test_streams_of_batches_and_what_ends_badly(monkeypatch):
    """Batches are learnt one after the other; one that ends badly in halves, and what is left out is said."""
    x, y = plane(200)
    sizes, most, bad = [], 80, np.nan

    def fussy(self, x, **how):
        sizes.append(len(x))
        accepted = len(x) <= most and not np.isclose(x[:, 0], bad).any()
        return SimpleNamespace(accepted=accepted, iterations=1, status=gbp.Status.SETTLED, batch=0)

    monkeypatch.setattr(gbp.Learner, "update", fussy)
    once = {**SMALL, "passes": 1}
    GBPRegressor(**once | {"batch_size": 80}).fit(x, y)
    assert sizes == [67, 67, 66]
    sizes.clear()
    GBPRegressor(**once | {"batch_size": 200}).fit(x, y)
    assert sizes == [200, 100, 50, 50, 100, 50, 50]
    bad = ((x - x.mean(0)) / x.std(0))[0, 0]
    with pytest.warns(ConvergenceWarning, match="50 of 200 examples"):
        GBPRegressor(**once).fit(x, y)


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [GBPClassifier, pytest.param(GBPRegressor, marks=pytest.mark.slow)])
def test_the_defaults_settle(kind):
    """Nobody is warned, because there is nothing to warn of."""
    x, y = blobs() if kind is GBPClassifier else plane(60)
    fitted = kind().fit(x, y)
    visits = fitted.learner_.history()
    last = [v for v in visits if not v.forgotten]
    assert len(visits) == fitted.passes * len(last) == len(fitted.reports_)
    assert sum(v.examples for v in last) == fitted.learner_.examples == 60
    assert {v.status for v in last} <= {"SETTLED", "CONVERGED"}
    assert fitted.n_iter_ == max(r.iterations for r in fitted.reports_)
    assert fitted.score(x, y) > 0.9


def test_what_ends_at_the_limit_is_reported():
    x, y = plane(60)
    reg = GBPRegressor((2,), iterations=3, passes=2, batch_size=30)
    with pytest.warns(ConvergenceWarning, match="2 of 2 batches ended at the limit of 3 iterations"):
        reg.fit(x, y)
    assert reg.n_iter_ == 3
    with pytest.warns(ConvergenceWarning, match="1 of 1 batches"):
        reg.partial_fit(x[:25], y[:25])
    assert len(reg.reports_) == 5


def test_pipelines_searches_clones_and_copies():
    x, y = blobs(30)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GBPClassifier(**SMALL)), {"gbpclassifier__iterations": [5, 30]}, cv=2, n_jobs=1
    ).fit(x, y)
    assert search.best_params_["gbpclassifier__iterations"] in (5, 30)
    fitted = search.best_estimator_[-1]
    assert not hasattr(clone(fitted), "learner_")
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict_proba(x), fitted.predict_proba(x))
    assert copy.partial_fit(x, y).learner_.batches == fitted.learner_.batches + 1
    assert clone(GBPDenoiser(model="pairwise")).get_params()["model"] == "pairwise"


def test_images():
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = rng.standard_normal((40, 4, 4, 1)) * 0.2 + 7
    x[y == 1, :, :2] += 1
    conv = [gbp.Conv2D(2, kernel=2, sigma=0.05, weight_prior=0.5), gbp.MaxPool2D(3, sigma=0.05)]
    clf = GBPClassifier(conv, image_shape=(4, 4, 1), iterations=100).fit(x.reshape(40, 16), y)
    assert clf.score(x.reshape(40, 16), y) == 1
    assert np.ptp(clf.mean_) == np.ptp(clf.scale_) == 0  # one scale for all pixels
    assert clf.learner_.input_shape == (4, 4, 1)


@pytest.mark.parametrize(
    ("how", "x", "y", "saying"),
    [
        ({"image_shape": (2, 2, 1)}, np.zeros((4, 3)), [0, 1, 0, 1], "image_shape"),
        ({"batch_size": 0}, np.zeros((4, 3)), [0, 1, 0, 1], "batch_size"),
        ({"iterations": 1.5}, np.zeros((4, 3)), [0, 1, 0, 1], "iterations"),
        ({"hidden_layers": [-3]}, np.zeros((4, 3)), [0, 1, 0, 1], "hidden_layers"),
        ({"hidden_layers": [gbp.SoftmaxObservation()]}, np.zeros((4, 3)), [0, 1, 0, 1], "hidden_layers"),
        ({}, np.full((4, 3), np.inf), [0, 1, 0, 1], "infinity"),
        ({}, np.zeros((4, 3)), [0, 1, 0], "inconsistent"),
        ({}, np.zeros((4, 3)), [1, 1, 1, 1], "2 classes"),
        ({}, np.zeros((4, 3)), [[0], ["b"], None, [1]], "y"),
        ({"random_state": -1}, np.zeros((4, 3)), [0, 1, 0, 1], "random_state"),
    ],
)
def test_bad_input_is_refused(how, x, y, saying):
    with pytest.raises((ValueError, TypeError), match=saying):
        GBPClassifier(**how).fit(x, y)


def test_what_is_asked_before_fit():
    with pytest.raises(NotFittedError):
        GBPClassifier().predict(np.zeros((1, 2)))
    with pytest.raises(NotFittedError):
        _ = GBPRegressor().noise_


def test_sizes_are_few_and_not_much_larger():
    rooms = [roomy(n) for n in range(1, 3000)]
    assert all(n <= r <= 1.15 * n + 1 for n, r in enumerate(rooms, 1))
    assert len(set(rooms)) < 100
    assert roomy(1437) == roomy(1438)


def test_what_was_learnt_stays_if_another_fit_fails(monkeypatch):
    x, y = plane(20)
    reg = GBPRegressor(**SMALL).fit(x, np.column_stack([y, y]))
    expected = reg.predict(x)
    bad = [(x[:, :2], None, None), (x, y, -np.ones(20)), (x[:, :2], np.full(20, np.inf), None)]
    for inputs, values, weight in bad:
        with pytest.raises(ValueError, match=r"y|weight"):
            reg.fit(inputs, values, sample_weight=weight)
        np.testing.assert_array_equal(reg.predict(x), expected)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(gbp.Learner, "update", stop)
    count = reg.input_model_.count
    for learn in (reg.fit, reg.partial_fit):
        with pytest.raises(KeyboardInterrupt):
            learn(x, np.column_stack([y, y]))
    monkeypatch.undo()
    assert reg.input_model_.count == count
    np.testing.assert_array_equal(reg.predict(x), expected)
    with pytest.raises(ValueError, match="3 features"):
        reg.predict(x[:, :2])
    with pytest.raises(ValueError, match="feature 1 of X lies more than"):
        reg.predict([[0, 1e30, 0]])


def test_layers_by_their_numbers_of_units():
    x, y = plane(20)
    for given, units in ((np.array([4, 3]), [4, 3]), (7, [7]), ((), [])):
        reg = GBPRegressor(given, iterations=5, passes=1).fit(x, y)
        assert [layer.units for layer in reg.learner_.net.layers[:-1]] == [*units, 1]
    for wrong in ((0,), (True,), "4", 2.5, (3, "tanh")):
        with pytest.raises(ValueError, match="hidden_layers must be numbers of units"):
            GBPRegressor(wrong).fit(x, y)


@pytest.mark.parametrize("batch_size", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_what_is_known_is_forgotten_once_before_each_partial_fit(batch_size):
    """Examples of no weight teach nothing: all that happens is `gbp.Filtering`, in however many batches."""
    x, y = plane(40)
    how = {"forgetting": 0.8, "process_noise": 0.01, "batch_size": batch_size}
    reg = GBPRegressor((2,), iterations=20, passes=3, **how).fit(x, y)
    before, told = reg.learner_.posterior, next(iter(reg.learner_.noise.values()))
    reg.partial_fit(x, y, sample_weight=np.full(40, 1e-9))
    after = reg.learner_.posterior
    for name in before:
        np.testing.assert_allclose(after[name].std, np.hypot(before[name].std / 0.8**0.5, 0.01), rtol=1e-3)
        np.testing.assert_allclose(after[name].mean, before[name].mean, atol=1e-3)
    assert next(iter(reg.learner_.noise.values())).weight == pytest.approx(0.8 * told.weight, rel=1e-3)
    with pytest.raises(ValueError, match="forgetting"):
        GBPRegressor(forgetting=2.0).fit(x, y)


def test_logarithms_of_probabilities():
    x, y = blobs(30)
    clf = GBPClassifier(**SMALL).fit(x, y)
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(x)), clf.predict_proba(x), rtol=1e-12)


class Frame:
    """As much of a data frame as it takes."""

    columns = ("size", "city")

    def __init__(self, rows):
        self.rows, self.shape = rows, (len(rows), 2)

    def __len__(self):
        return len(self.rows)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.rows, dtype=object if dtype is None else dtype)


def test_a_column_of_names_is_refused_by_its_name():
    rows, y = [[1.0, "Rome"], [2.0, "Oslo"], [3.0, "Rome"]], [0, 1, 0]
    with pytest.raises(ValueError, match=r"column 'city' of X holds text \('Rome'\).*OneHotEncoder\(\), \['city'\]"):
        GBPClassifier(**SMALL).fit(Frame(rows), y)
    for table in (rows, np.array(rows, dtype=object), np.array(rows, dtype=str)):
        with pytest.raises(ValueError, match="column 1 of X holds text"):
            GBPRegressor(**SMALL).fit(table, y)
    fitted = GBPRegressor(**SMALL).fit([["1", "2"], ["3", "4"], ["2", "2"]], y)
    with pytest.raises(ValueError, match="column 0 of X holds text"):
        fitted.predict([["x", "2"]])


@pytest.mark.slow
def test_wild_values_hardly_count():
    """One of 60 is 1,000 times too large: with `robust` it is as if it were not there."""
    x, y = plane(60)
    wild = y.copy()
    wild[7] = 1e4
    xq, yq = plane(200, seed=1)
    how = {**LINEAR, "batch_size": 30, "passes": 2}
    clean = GBPRegressor(**how).fit(x, y)
    robust = GBPRegressor(**how, robust=True).fit(x, wild)
    assert clean.score(xq, yq) > 0.95
    assert robust.score(xq, yq) > clean.score(xq, yq) - 0.02
    assert robust.noise_ == pytest.approx(clean.noise_, rel=0.25)
    assert GBPRegressor(**how).fit(x, wild).score(xq, yq) < 0.5
    assert GBPRegressor(**how, robust=gbp.Huber(2.0)).fit(x, y).score(xq, yq) > 0.95
    with pytest.raises(ValueError, match="robust must be True, False"):
        GBPRegressor(**how, robust="yes").fit(x, y)


def test_scales_that_wild_values_leave_alone():
    rng = np.random.default_rng(0)
    a = 5 + 2 * rng.standard_normal(4001)
    a[:20], a[20:40] = 1e6, np.nan
    values, weight = np.column_stack([a, np.r_[np.ones(3000), np.zeros(1001)]]), np.ones(4001)
    middle, scale = robust_moments(values, weight)
    mean, std = moments(values, weight)
    np.testing.assert_allclose([middle[0], scale[0]], [5, 2], rtol=0.05)
    assert (middle[1], scale[1]) == (mean[1], std[1])  # more than half of it is one value
    np.testing.assert_allclose(robust_moments(values, 3 * weight), [middle, scale], rtol=1e-12)


def test_scales_may_be_tiny_and_far_away():
    _, y = plane(50)
    mean, scale = moments(np.column_stack([1e-12 * y, 2.4e6 + 1e-3 * y, np.full(50, 0.1)]), np.ones(50))
    np.testing.assert_allclose(scale, [1e-12 * y.std(), 1e-3 * y.std(), 1], rtol=1e-5)
    np.testing.assert_allclose(mean, [1e-12 * y.mean(), 2.4e6 + 1e-3 * y.mean(), 0.1])


@pytest.mark.slow
def test_the_defaults_are_good(optimised):
    """One table is enough to see that nothing has broken; `gbplearn experiment estimators` has all."""
    from gbplearn.apps.experiments.estimators import CLASSES

    x, y = CLASSES["wine"](return_X_y=True)
    assert cross_val_score(GBPClassifier(), x, y, cv=5).mean() > 0.95


def test_a_batch_that_is_wild_as_a_whole_is_no_error():
    """A kernel may give every example of it no trust at all."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2))
    y = X.sum(1)
    reg = GBPRegressor(hidden_layers=(), robust=gbp.Tukey(3.0, match="gradient")).fit(X[:25], y[:25])
    before = reg.predict(X)
    reg.partial_fit(X[25:], y[25:] + 100)
    np.testing.assert_allclose(reg.predict(X), before, atol=0.1)
