"""Learner: batches of any size, what is missing, what is asked. Networks are tiny and share their programs."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine.loop import compiled_programs
from learners import SEEN, SIGMA, WIDE, assert_same, classifier, images, line, measured, points


@pytest.mark.parametrize(("build", "shape", "sizes"), [(classifier, (2,), (7,)), (images, (3, 3, 1), (10,))])
def test_no_prediction_depends_on_the_others(build, shape, sizes):
    """In another order, in parts, with padding: every example gets the same answer."""
    student = build()
    x = np.random.default_rng(0).standard_normal((7, *shape))
    student.predict_sizes = sizes
    whole = student.predict(x)
    student.predict_sizes = (10,)
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
    student, programs = classifier(), compiled_programs
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
    padded.expect_size(8)  # as if eight had been compiled
    padded.update(x[:6], y[:6])
    alone.update(x[:6], y[:6])
    assert (padded.state.sizes, alone.state.sizes) == ([8], [6])
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
    noisy.restore(dataclasses.replace(noisy.state, posterior=student.state.posterior))
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
