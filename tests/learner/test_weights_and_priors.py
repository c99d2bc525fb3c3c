"""Examples with weights, and inputs with priors of their own."""

import dataclasses

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.network.rounds import joined_rounds
from learners import SEEN, SIGMA, WIDE, assert_same, classifier, line, measured, points


def by_dense_solve(x, y, weight):
    """Means of weights and bias for one output: all of `w`, `d` and the outputs `h` in one linear system."""
    n, k = x.shape
    rows = np.column_stack([x, np.ones(n), -np.eye(n)])  # x w + d - h
    lam = rows.T @ (weight[:, None] / SIGMA**2 * rows)
    lam += np.diag(np.r_[np.full(k, 0.8**-2), 0.5**-2, weight / SEEN**2 + weight / WIDE**2])
    return np.linalg.solve(lam, np.r_[np.zeros(k + 1), weight * y / SEEN**2])[: k + 1]


def test_a_weight_scales_all_that_an_example_says(x64):
    x, y = measured(12)
    weight = np.random.default_rng(1).uniform(0, 3, 12)
    student = line(dtype=np.float64, tolerance=1e-9)
    student.update(x, y, sample_weight=weight)
    for o in range(2):
        expected = by_dense_solve(x, y[:, o], weight)
        found = student.posterior
        np.testing.assert_allclose(found["dense/weight"].mean[:, o], expected[:3], atol=1e-6)
        np.testing.assert_allclose(found["dense/bias"].mean[o], expected[3], atol=1e-6)


@pytest.mark.parametrize("off", [2.0, 2.5, 4.0])
def test_a_robust_factor_of_weight_two_is_two_of_it(off):
    """Its switch looks at the distance of one."""
    found = []
    for weight, copies in ((2.0, 1), (1.0, 2)):
        graph = gbp.FactorGraph()
        v = graph.variable("v", (1,), prior=gbp.Gaussian.from_moments(mean=0.0, std=0.1))
        views = v[np.zeros(copies, int)]
        graph.add(
            gbp.Factor(lambda a: a, (views,), y=off, sigma=1.0, robust=gbp.Tukey(3.0), weight=weight, name="seen")
        )
        result = gbp.infer(graph, iterations=100)
        found.append([float(result["v"].mean[0]), float(result["v"].std[0]), graph.energy(result)["seen"]])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3)
    assert found[0][2] == pytest.approx(min(off - found[0][0], 3.0) ** 2, rel=1e-4)


def test_a_weight_of_zero_is_not_there():
    x, y = points(10)
    a, b = classifier(), classifier()
    b.expect_size(10)
    a.update(x, y, sample_weight=np.r_[np.ones(7), np.zeros(3)])
    b.update(x[:7], y[:7])
    assert_same(a.posterior, b.posterior, 1e-6)


@pytest.mark.parametrize("weight", [np.ones(3), -np.ones(4), np.zeros(4), [1, np.nan, 1, 1]])
def test_weights_that_are_none(weight):
    with pytest.raises(ValueError, match="sample_weight must be 4 numbers"):
        classifier().update(*points(4), sample_weight=weight)


def test_a_sure_prior_of_a_missing_input_is_as_good_as_seeing_it():
    x, y = points(20)
    seen = np.random.default_rng(0).random(x.shape) > 0.4
    prior = gbp.Gaussian.from_moments(mean=x, std=1e-3)
    holes, whole = classifier(iterations=300), classifier(iterations=300)  # near the fixed point
    holes.update(np.where(seen, x, np.nan), y, x_observed=seen, x_prior=prior)
    whole.update(x, y)
    assert_same(holes.posterior, whole.posterior, 2e-3)
    asked = holes.predict(np.where(seen, x, np.nan), x_observed=seen, x_prior=prior)
    np.testing.assert_allclose(asked.mean, holes.predict(x).mean, atol=2e-3)


def test_the_uncertainty_of_a_missing_input_counts_as_noise():
    """With the weights known well, `x w` of a missing input adds `w² v` to the noise of what is learnt of others."""
    x, y = measured(400)
    gained = []
    for missing in (False, True):
        student = line(tolerance=1e-4)
        student.update(x[:200], y[:200])
        before = student.posterior["dense/weight"]
        seen = np.ones((200, 3), bool)
        seen[:, 0] = not missing
        given = {"x_observed": seen, "x_prior": gbp.Gaussian.from_moments(mean=0.0, std=1.0)}
        student.update(x[200:], y[200:], **given)
        gained.append(np.asarray(student.posterior["dense/weight"].lam - before.lam))
    noise = SIGMA**2 + SEEN**2
    share = noise / (noise + np.asarray(before.mean[0]) ** 2)
    np.testing.assert_allclose(gained[1][1:] / gained[0][1:], np.broadcast_to(share, (2, 2)), rtol=0.1)
    assert (np.abs(gained[1][0]) < 1e-3 * gained[0][0]).all()  # its mean is 0: it tells nothing about its own weight


@pytest.mark.parametrize(
    ("prior", "saying"),
    [
        (
            gbp.Gaussian.from_moments(mean=np.zeros(2), covariance=np.eye(2)),
            "x_prior must be a gbp.Gaussian of scalars",
        ),
        (gbp.Gaussian.from_moments(mean=np.zeros(5), std=1.0), "x_prior has shape"),
        (gbp.Gaussian.flat((2,)), "x_prior must be proper"),
    ],
)
def test_priors_that_are_none(prior, saying):
    x, y = points(4)
    with pytest.raises(ValueError, match=saying):
        classifier().update(x, y, x_observed=np.zeros(x.shape, bool), x_prior=prior)


# What many iterations look like to the guard.


def kinks(**guard):
    x = np.random.default_rng(0).standard_normal((60, 2))
    y = (np.abs(x[:, 0]) > x[:, 1] ** 2 / 2).astype(int)
    net = gbp.Sequential(
        gbp.Dense(12, activation="leaky_relu", sigma=0.05, weight_prior=1.0, bias_prior=0.5),
        gbp.Dense(2, sigma=0.05, weight_prior=0.3, prior=5.0, weight_init=0.0),
        gbp.SoftmaxObservation(sigma=0.1),
        input_shape=(2,),
    )
    damping = gbp.Damping(parameters=0.99, activations=0.8)
    return gbp.Learner(net, iterations=700, damping=damping, guard=gbp.Guard(**guard)).update(x, y)


def test_units_at_a_kink_are_no_divergence_while_others_learn():
    """Their residuals never come to rest; but the energy falls."""
    report = kinks()
    assert report.accepted
    assert not report.guard
    assert report.residual > 1
    restless = kinks(falls=1.0)  # as if a falling energy did not count
    assert gbp.GuardAction.NOT_CONVERGING in [event.action for event in restless.guard]


def test_the_last_round_that_ended_well_counts():
    graph = gbp.FactorGraph()
    v = graph.variable("v", (1,), prior=gbp.Gaussian.from_moments(mean=0.0, std=1.0))
    graph.add(gbp.Factor(lambda a: a, (v,), y=1.0, sigma=1.0, name="seen"))
    good = dataclasses.replace(gbp.infer(graph), noise={"seen": 1.0})
    limit = dataclasses.replace(good, status=gbp.Status.ITERATION_LIMIT, noise={"seen": 2.0})
    bad = dataclasses.replace(limit, guard=(gbp.GuardEvent(gbp.GuardAction.NOTHING_BETTER, 9),), noise={"seen": 3.0})
    assert not bad.usable
    joined = joined_rounds([bad, limit, bad])
    assert joined.noise == {"seen": 2.0}
    assert joined.usable
    assert [event.round for event in joined.guard] == [1, 3]
    assert joined.iterations == sum(r.iterations for r in (bad, limit, bad))
    assert not joined_rounds([bad, bad]).usable
    trace = dataclasses.replace(good.trace, residual=np.full_like(good.trace.residual, np.nan))
    lost = dataclasses.replace(bad, status=gbp.Status.DIVERGED, trace=trace)
    assert joined_rounds([limit, lost]).residual == limit.residual
