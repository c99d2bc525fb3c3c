"""Learner: batches of any size, what is missing, what goes wrong. Networks are tiny and share their programs."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn import propagate

SIGMA, SEEN, WIDE = 0.1, 0.2, 4.0
HOW = {"sigma": SIGMA, "weight_prior": 0.8, "bias_prior": 0.5, "prior": WIDE}


def classifier(**options):
    net = gbp.Sequential(
        gbp.Dense(3, activation="tanh", **HOW), gbp.Dense(2, **HOW), gbp.SoftmaxObservation(sigma=0.2), input_shape=(2,)
    )
    order = gbp.Order("dense", "dense_1", "softmax")  # less to compile than forth and back
    return gbp.Learner(net, **{"iterations": 20, "tolerance": 0.0, "schedule": order, "guard": False, **options})


def images():
    net = gbp.Sequential(
        gbp.Conv2D(2, kernel=2, activation="leaky_relu", sigma=0.1, weight_prior=0.5),
        gbp.MaxPool2D(2, sigma=0.1),
        gbp.Dense(2, sigma=0.1, weight_prior=0.5),
        gbp.SoftmaxObservation(sigma=0.2),
        input_shape=(3, 3, 1),
    )
    return gbp.Learner(net, iterations=20)


def line(**options):
    """Two outputs of three features."""
    layers = gbp.Dense(2, **HOW, weight_init=0.0), gbp.GaussianObservation(sigma=SEEN)
    how = {"iterations": 300, "tolerance": 1e-6, "damping": 0.3, **options}
    return gbp.Learner(gbp.Sequential(*layers, input_shape=(3,)), **how)


def points(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2))
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def measured(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3))
    return x, x @ rng.standard_normal((3, 2)) + SEEN * rng.standard_normal((n, 2))


def assert_same(a, b, tolerance):
    """Beliefs by name: means and standard deviations."""
    for name in a:
        np.testing.assert_allclose(a[name].mean, b[name].mean, rtol=0, atol=tolerance)
        np.testing.assert_allclose(a[name].std, b[name].std, rtol=0, atol=tolerance)


def copies(beliefs):
    return {n: (np.array(b.eta), np.array(b.lam)) for n, b in beliefs.items()}


# Batches.


@pytest.mark.parametrize(("build", "shape", "sizes"), [(classifier, (2,), (7,)), (images, (3, 3, 1), (10,))])
def test_no_prediction_depends_on_the_others(build, shape, sizes, monkeypatch):
    """In another order, in parts, with padding: every example gets the same answer."""
    student = build()
    x = np.random.default_rng(0).standard_normal((7, *shape))
    monkeypatch.setattr("gbplearn.learner.PREDICT_SIZES", sizes)
    whole = student.predict(x)
    monkeypatch.setattr("gbplearn.learner.PREDICT_SIZES", (10,))
    order = np.random.default_rng(1).permutation(7)
    for rows in (order, np.arange(2, 5), np.arange(1), np.tile(order, 2)):  # padded, and in two parts of ten
        answer = student.predict(x[rows])
        np.testing.assert_allclose(answer.mean, whole.mean[rows], rtol=0, atol=1e-5)
        np.testing.assert_allclose(answer.std, whole.std[rows], rtol=0, atol=1e-5)
    p = np.asarray(student.predict_proba(x))
    assert p.shape == (7, 2)
    assert (p > 0).all()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(p.argmax(1), np.argmax(whole.mean, 1))


def test_batches_of_changing_size_share_few_programs():
    student, programs = classifier(), propagate.run_in_place._cache_size
    x, y = points(8)
    student.update(x[:6], y[:6])
    start = programs()
    for n in (5, 2, 4, 6, 3):
        assert student.update(x[:n], y[:n]).examples == n
    assert programs() == start
    student.update(x[:7], y[:7])  # a new one, with room for a quarter more than six
    assert programs() == start + 1
    student.update(x, y)
    assert programs() == start + 1
    assert (student.batches, student.examples) == (8, 6 + 20 + 7 + 8)


def test_padding_has_no_weight():
    x, y = points(8)
    padded, alone = classifier(), classifier()
    padded._sizes = [8]  # as if eight had been compiled
    padded.update(x[:6], y[:6])
    alone.update(x[:6], y[:6])
    assert (padded._sizes, alone._sizes) == ([8], [6])
    assert_same(padded.posterior, alone.posterior, 1e-5)
    assert np.abs(alone.posterior["dense/weight"].mean - alone.prior["dense/weight"].mean).max() > 0.01


# What is missing.


def unlabelled(build, x, y, more):
    """The posteriors with and without more examples that have no label."""
    few, many = build(), build()
    few.update(x, y)
    labels = np.concatenate([y, np.full(len(more), -1)])
    report = many.update(np.concatenate([x, more]), labels, y_observed=labels >= 0)
    assert (report.accepted, report.examples) == (True, len(x) + len(more))
    return few, many


def test_examples_without_a_label_teach_a_feed_forward_network_nothing():
    few, many = unlabelled(classifier, *points(6), 5 * np.random.default_rng(9).standard_normal((20, 2)))
    assert_same(few.posterior, many.posterior, 1e-6)


@pytest.mark.slow
def test_a_thousand_images_without_a_label_teach_nothing():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 3, 3, 1)), rng.integers(0, 2, 8)
    few, many = unlabelled(images, x, y, 3 * rng.standard_normal((1000, 3, 3, 1)))
    assert_same(few.posterior, many.posterior, 1e-6)


PRIOR = np.zeros((4, 2)), np.array([[0.8, 0.8]] * 3 + [[0.5, 0.5]])


def regression(x, y, seen, prior=PRIOR):
    """Weights and bias by dense solves, each output for itself: means and standard deviations `(4, 2)`.

    Of what is not seen, the output's prior N(0, WIDE²) is all there is. Rows of which nothing is seen are left out:
    their priors are not evidence.
    """
    there, lam = seen.any(1), WIDE**-2 + seen * SEEN**-2
    rows, variance = np.concatenate([x, np.ones((len(x), 1))], 1)[there], (SIGMA**2 + 1 / lam)[there]
    at, found = (np.where(seen, y, 0) / SEEN**2 / lam)[there], []
    for o in range(2):
        m, s = prior[0][:, o], prior[1][:, o]
        cov = np.linalg.inv(np.diag(s**-2.0) + rows.T @ (rows / variance[:, [o]]))
        found.append((cov @ (m / s**2 + rows.T @ (at[:, o] / variance[:, o])), np.sqrt(np.diag(cov))))
    return np.stack([m for m, _ in found], 1), np.stack([s for _, s in found], 1)


def means(student):
    return np.concatenate([student.posterior["dense/weight"].mean, student.posterior["dense/bias"].mean[None]])


def test_values_that_are_not_observed_are_left_out():
    """Element by element, and whole rows: against the dense solve without their factors; NaN may stand there."""
    x, y = measured(12)
    seen = np.random.default_rng(1).random(y.shape) < 0.6
    seen[3] = seen[7] = False
    student = line()
    assert student.update(x, np.where(seen, y, np.nan), y_observed=seen).status is gbp.Status.CONVERGED
    mean, std = regression(x, y, seen)
    found = means(student)
    assert np.abs((found - mean) / std).max() < 1e-3
    assert np.abs((found - regression(x, y, np.ones_like(seen))[0]) / std).max() > 0.3


def outputs(w, b, mean, variance):
    """Beliefs of the outputs of uncertain inputs and known parameters: exact, all outputs of an example together."""
    means, stds = [], []
    for m, v in zip(mean, variance):
        cov = w.T @ np.diag(v) @ w + SIGMA**2 * np.eye(2)
        both = np.linalg.inv(np.linalg.inv(cov) + np.eye(2) / WIDE**2)
        means.append(both @ np.linalg.solve(cov, m @ w + b))
        stds.append(np.sqrt(np.diag(both)))
    return np.stack(means), np.stack(stds)


def test_missing_and_noisy_inputs_at_prediction_in_closed_form():
    """Outputs say (by their priors) a little about a missing pixel. With one of them an example is a tree."""
    student = line()
    student.update(*measured(12))
    w, b = (np.asarray(student.posterior[f"dense/{n}"].mean, float) for n in ("weight", "bias"))
    x = np.array([[1.0, np.nan, -0.5], [np.nan, 0.7, 2.0], [0.3, 0.2, 0.1]])
    seen = np.isfinite(x)
    answer = student.predict(x, x_observed=seen)  # a pixel that is not seen is N(0, 1)
    mean, std = outputs(w, b, np.where(seen, x, 0), ~seen * 1.0)
    np.testing.assert_allclose(answer.mean, mean, atol=1e-5)
    np.testing.assert_allclose(answer.std, std, rtol=1e-5)

    noisy = line(input_sigma=0.5, input_prior=gbp.Gaussian.from_moments(0.4, 2.0))
    noisy._posterior = student._posterior
    answer = noisy.predict(x, x_observed=seen)
    mean, std = outputs(w, b, np.where(seen, x, 0.4), np.where(seen, 0.25, 4.0))
    np.testing.assert_allclose(answer.mean, mean, atol=1e-3)
    np.testing.assert_allclose(answer.std, std, rtol=0.05)  # of a loopy graph


def test_what_stands_in_missing_pixels_does_not_matter():
    x, y = measured(12)
    seen = np.random.default_rng(2).random(x.shape) < 0.7
    posteriors = []
    for filling in (np.nan, 100.0):
        student = line(iterations=30, tolerance=0.0)
        assert student.update(np.where(seen, x, filling), y, x_observed=seen).accepted
        posteriors.append(student.posterior)
    for name, belief in posteriors[0].items():
        np.testing.assert_array_equal(belief.eta, posteriors[1][name].eta)
        np.testing.assert_array_equal(belief.lam, posteriors[1][name].lam)


def itself(a):
    return a


def test_factors_of_the_user_s_own():
    """On activations: they are as good as labels. On a weight: another prior. Against the dense solve."""
    x, y = measured(12)

    def say(graph):
        weight = graph.variables["dense/weight"]
        graph.add(gbp.Factor(itself, (graph.variables["dense"],), y=y, sigma=SEEN, linear=True, name="said"))
        graph.add(gbp.Factor(itself, (weight[1:2, 0],), y=-0.7, sigma=0.05, linear=True, name="known"))

    student = line(factors=say)
    student.update(x, np.full(y.shape, np.nan), y_observed=np.zeros(y.shape, bool))
    lam, mean, std = 0.8**-2 + 0.05**-2, *(p.copy() for p in PRIOR)
    mean[1, 0], std[1, 0] = -0.7 / 0.05**2 / lam, lam**-0.5
    everything = np.ones(y.shape, bool)
    expected, spread = regression(x, y, everything, (mean, std))
    assert np.abs((means(student) - expected) / spread).max() < 1e-3
    assert np.abs((expected - regression(x, y, everything)[0]) / spread).max() > 1


# What goes wrong.


def test_messages_that_diverge_leave_the_posterior_alone():
    """Features that hardly differ, hardly any noise or damping, no guard: see docs/divergence.md."""
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
    assert "none better than those at the start" in report.guard[-1]
    assert (student.posterior["dense/weight"].lam == student.prior["dense/weight"].lam).all()


def test_a_learner_is_cautious_after_the_guard_had_to_damp_more(monkeypatch):
    """A quarter of the step, given back in eight good batches; at most 1/64."""
    student, (x, y) = line(damping=None, iterations=5), measured(6)
    learn, told = student.net.learn, []

    def watched(*args, damping, **options):
        told.append(damping)
        result = learn(*args, damping=damping, **options)
        lines = ("iteration 9: diverging", "damping raised to 0.9") if len(told) <= trouble else ()
        return dataclasses.replace(result, guard=lines)

    monkeypatch.setattr(student.net, "learn", watched)
    trouble = 4
    steps, cautions = [], []
    for _ in range(15):
        known = student.filtering.examples_known(
            student.examples, 6, student.prior, student._posterior, student._posterior
        )
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


# Queries.


def test_query_of_a_generative_layer_fills_in_what_is_missing():
    """Two pixels painted by one number, one of them seen: a tree, conditioned in closed form."""
    layer = gbp.Dense(1, direction="generative", sigma=0.3, weight_prior=1.0, bias_prior=1.0, prior=2.0)
    student = gbp.Learner(gbp.Sequential(layer, input_shape=(2,)), iterations=20, damping=0.0)
    w = np.asarray(student.posterior["dense/weight"].mean[0], float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        belief = student.query("input", x=[[1.2, np.nan]], x_observed=[[True, False]])
        z = student.query("output", x=[[1.2, np.nan]], x_observed=[[True, False]])
    # Of z: its prior, and what the first pixel says; the second (prior N(0, 1)) says something too.
    lam_z = 1 / 4 + w[0] ** 2 / 0.09
    mean_z = w[0] * 1.2 / 0.09 / lam_z
    v = w[1] ** 2 / lam_z + 0.09
    lam = 1 / v + 1
    np.testing.assert_allclose(belief.mean, [[1.2, w[1] * mean_z / v / lam]], rtol=1e-4)
    np.testing.assert_allclose(belief.std[0, 1], lam**-0.5, rtol=1e-4)
    full = lam_z + w[1] ** 2 / (0.09 + 1)
    np.testing.assert_allclose(z.mean, [[lam_z * mean_z / full]], rtol=1e-4)


def test_query_of_a_feed_forward_network():
    student = line()
    x, y = measured(3)
    predicted, asked, layer = student.predict(x), student.query(x=x), student.query("dense", x=x)
    np.testing.assert_array_equal(predicted.mean, asked.mean)
    np.testing.assert_array_equal(predicted.mean, layer.mean)
    # With the targets: what the layer says, the prior of the outputs, and what was observed.
    given = student.query(x=x, y=y)
    lam = SIGMA**-2 + WIDE**-2 + SEEN**-2
    mean = np.asarray(student.forward(x), float) / SIGMA**2 + y / SEEN**2
    np.testing.assert_allclose(given.mean, mean / lam, atol=1e-5)
    np.testing.assert_allclose(given.std, lam**-0.5, rtol=1e-5)
    with pytest.warns(UserWarning, match="only the prior of the pixels"):
        student.query("input", x=x)


# What a review found.


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
    assert ("proximal factors" in report.guard) == (iterations > 12)
    assert "as it was before" in report.message
    assert (student.posterior["dense/weight"].lam == student.prior["dense/weight"].lam).all()


def test_a_forward_layer_above_a_generative_one_learns_nothing_without_a_target():
    net = gbp.Sequential(gbp.Dense(2, direction="generative", sigma=0.1), gbp.Dense(2, sigma=0.1), input_shape=(3,))
    student = gbp.Learner(net, iterations=20)
    assert student.update(np.random.default_rng(0).standard_normal((8, 3))).accepted
    for name in ("weight", "bias"):
        assert (student.posterior[f"dense_1/{name}"].lam == student.prior[f"dense_1/{name}"].lam).all()
    assert (student.posterior["dense/weight"].lam > student.prior["dense/weight"].lam).any()


def test_relinearising_every_second_visit_converges_where_a_group_is_visited_twice():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3,), prior=gbp.Gaussian.from_moments(0.5, 1.0))
    for i in range(3):
        graph.add(gbp.Factor(jnp.sin, (x[i : i + 1],), y=0.3, sigma=0.1, name=f"sine_{i}"))
    result = gbp.infer(graph, iterations=100, relinearise=2)
    assert result.status is gbp.Status.CONVERGED
