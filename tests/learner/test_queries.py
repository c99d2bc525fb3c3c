"""What a trained network can be asked: against dense solves, exact densities and moments in closed form."""

import dataclasses

import numpy as np
import pytest

import gbplearn as gbp
from learners import SEEN, SIGMA, WIDE, classifier, line, measured, points

# Two linear layers: two causes paint three pixels, and two measured values are a function of the causes.
PAINT, PIXEL = 2.0, 1.5  # standard deviations of the priors of causes and of hidden pixels


def painter(head=True, width=2, **options):
    layers = [
        gbp.Dense(width, direction="generative", sigma=0.4, weight_prior=0.5, bias_init=0.3, prior=PAINT),
        gbp.Dense(width, sigma=SIGMA, weight_prior=0.5, prior=WIDE),
        gbp.GaussianObservation(sigma=SEEN),
    ]
    net = gbp.Sequential(*(layers if head else layers[:1]), input_shape=(3,))
    how = {"iterations": 400, "damping": 0.3, "input_prior": gbp.Gaussian.from_moments(0.2, PIXEL), **options}
    return gbp.Learner(net, **how)


def numbers(learner, layer):
    return (np.asarray(learner.posterior[f"{layer}/{n}"].mean, float) for n in ("weight", "bias"))


def dense_posterior(learner, y, x):
    """Of pixels, causes and outputs `(3 + 2 + 2)` of one example, all factors multiplied: precision, information.

    Pixels that are None are hidden, with their prior; others are observed.
    """
    (w, d), (v, e) = numbers(learner, "dense"), numbers(learner, "dense_1")
    lam, eta = np.zeros((7, 7)), np.zeros(7)

    def add(rows, at, sigma):
        nonlocal lam, eta
        rows = np.atleast_2d(rows)
        lam, eta = lam + rows.T @ rows / sigma**2, eta + rows.T @ np.atleast_1d(at) / sigma**2

    identity = np.eye(7)
    add(np.hstack([np.eye(3), -w.T, np.zeros((3, 2))]), d, 0.4)
    add(np.hstack([np.zeros((2, 3)), -v.T, np.eye(2)]), e, SIGMA)
    add(identity[3:5], np.zeros(2), PAINT)
    add(identity[5:], np.zeros(2), WIDE)
    add(identity[5:], y, SEEN)
    for i, value in enumerate(x):
        add(identity[i], *((0.2, PIXEL) if value is None else (value, 1e-6)))
    return lam, eta


def test_inputs_given_outputs_and_other_inputs():
    """By messages through both layers, with no pixel seen or one: means are those of the dense solve."""
    student = painter()
    y, x = np.array([[0.5, -1.0], [2.0, 0.3]]), np.array([[0.7, np.nan, np.nan]] * 2)
    for pixels, given in (([None] * 3, {}), ([0.7, None, None], {"x": x, "x_observed": np.isfinite(x)})):
        beliefs = {want: student.query(want, y=y, **given) for want in ("input", "dense", "output")}
        for i, target in enumerate(y):
            mean = np.linalg.solve(*dense_posterior(student, target, pixels))
            for want, rows in (("input", slice(3)), ("dense", slice(3, 5)), ("output", slice(5, 7))):
                np.testing.assert_allclose(beliefs[want].mean[i], mean[rows], atol=2e-3)


def test_what_a_query_needs():
    with pytest.raises(ValueError, match="query needs x or y"):
        painter().query("input")
    with pytest.raises(ValueError, match="x_observed needs x"):
        painter().query("input", y=[[0.0, 1.0]], x_observed=[True])
    with pytest.warns(UserWarning, match="only the prior of the pixels"):
        line().query("input", y=[[0.0, 1.0]])
    with pytest.raises(ValueError, match="'fixed' or 'random'"):
        line().predict([[0.0, 1.0, 2.0]], parameters="learnt")


# Evidence.


def log_normal(x, mean, cov):
    d = np.asarray(x) - mean
    return -0.5 * (d @ np.linalg.solve(cov, d) + np.linalg.slogdet(2 * np.pi * cov)[1])


@pytest.mark.parametrize("parameters", [pytest.param("fixed", marks=pytest.mark.slow), "random"])
def test_evidence_of_targets_is_the_density_of_the_prediction(parameters):
    """One layer: each output is predicted for itself, `y ~ N(m, v + SEEN²)`; random parameters add to the variance."""
    student = line()
    student.update(*measured(12))
    x, y = measured(5, seed=3)
    found = student.log_evidence(x, y, parameters=parameters)
    belief = student.predict(x, parameters=parameters)
    variance = np.asarray(belief.variance) + SEEN**2
    each = -0.5 * ((y - np.asarray(belief.mean)) ** 2 / variance + np.log(2 * np.pi * variance))
    np.testing.assert_allclose(found, each.sum(1), rtol=1e-4)
    # The belief itself: forward, with the spread of the parameters, times the prior of the outputs.
    parts = student.posterior["dense/weight"], student.posterior["dense/bias"]
    (w, b), (vw, vb) = ([np.asarray(getattr(p, of), float) for p in parts] for of in ("mean", "variance"))
    spread = SIGMA**2 + (x**2 @ vw + vb if parameters == "random" else 0 * y)
    lam = 1 / spread + 1 / WIDE**2
    np.testing.assert_allclose(belief.mean, (x @ w + b) / spread / lam, atol=1e-4)
    np.testing.assert_allclose(belief.variance, 1 / lam, rtol=1e-4)


@pytest.mark.parametrize("seen", [pytest.param((True, True, True), marks=pytest.mark.slow), (True, False, True)])
def test_evidence_of_what_is_observed_of_an_input(seen):
    """One cause: a tree, so that messages give the marginal density of the pixels that are seen exactly."""
    layer = gbp.Dense(1, direction="generative", sigma=0.4, weight_prior=0.2, weight_init=0.8, bias_init=0.5, prior=2.0)
    student = gbp.Learner(gbp.Sequential(layer, input_shape=(3,)), iterations=50, damping=0.0)
    (w, b), rows = numbers(student, "dense"), np.array(seen)
    x = np.random.default_rng(0).standard_normal((4, 3))
    found = student.log_evidence(np.where(rows, x, np.nan), x_observed=np.tile(rows, (4, 1)))
    cov = 4.0 * w.T @ w + 0.4**2 * np.eye(3)
    expected = [log_normal(row[rows], b[rows], cov[np.ix_(rows, rows)]) for row in x]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_evidence_of_inputs_and_targets_together():
    """A chain of two layers, one of them forward: the priors of its outputs count, and `p(x, y)` is a density."""
    student = painter(width=1, damping=0.0)
    x, y = np.array([[0.3, -0.2, 0.9]]), np.array([[0.5]])
    (w, d), (v, e) = numbers(student, "dense"), numbers(student, "dense_1")
    # Cause and output before anything is seen: the prior, the layer, the prior of the output.
    layer = np.hstack([-v.T, np.eye(1)])
    cov = np.linalg.inv(np.diag([PAINT**-2.0, WIDE**-2.0]) + layer.T @ layer / SIGMA**2)
    look = np.block([[w.T, np.zeros((3, 1))], [np.zeros((1, 1)), np.eye(1)]])
    mean = look @ cov @ layer.T @ e / SIGMA**2 + np.append(d, 0)
    noise = np.diag([0.4**2] * 3 + [SEEN**2])
    expected = log_normal(np.append(x, y), mean, look @ cov @ look.T + noise)
    np.testing.assert_allclose(student.log_evidence(x, y), [expected], rtol=1e-3)
    inputs = slice(3), slice(3)
    expected = log_normal(x[0], mean[:3], (look @ cov @ look.T + noise)[inputs])
    np.testing.assert_allclose(student.log_evidence(x), [expected], rtol=1e-3)


def test_evidence_of_an_example_is_its_own():
    """In another order, in parts, with padding; it adds up to that of one graph, and an outlier stands out."""
    student = painter(head=False, parameters="random")
    x = np.random.default_rng(0).standard_normal((7, 3))
    x[4] = [8.0, -8.0, 8.0]
    student.predict_sizes = (7,)
    whole = student.log_evidence(x)
    assert whole.argmin() == 4
    student.predict_sizes = (3,)
    order = np.random.default_rng(1).permutation(7)
    np.testing.assert_allclose(student.log_evidence(x[order]), whole[order], rtol=1e-4)
    graph = student.net.graph(x, parameters="random", beliefs=student.posterior)
    together = gbp.infer(graph, iterations=400, damping=0.3).log_evidence
    assert whole.sum() == pytest.approx(together, rel=5e-4)  # each stops where it is at rest up to the tolerance


def test_robust_and_weighted_factors_by_example():
    """A robust head and examples of no weight: by example as in all."""
    layers = gbp.Dense(2, sigma=SIGMA), gbp.GaussianObservation(sigma=SEEN, robust=gbp.Tukey(2.0), robust_over=-1)
    net = gbp.Sequential(*layers, input_shape=(3,))
    x, y = measured(6)
    batch = dataclasses.replace(net.batch(x, y), weight=np.array([1.0, 1, 0, 1, 2, 1]))
    result = gbp.infer(net.graph(batch, parameters="random"), iterations=20)
    each = result.log_evidence_by_example
    assert each.sum() == pytest.approx(result.log_evidence, rel=1e-4)
    # No factor of the third counts, only the prior of its outputs, which nothing has changed.
    assert each[2] == pytest.approx(0.0, abs=1e-4)


def test_what_has_no_evidence():
    with pytest.raises(ValueError, match="log_evidence needs y"):
        line().log_evidence(measured(3)[0])
    with pytest.raises(ValueError, match="factors of your own may join"):
        painter(factors=lambda graph: None).log_evidence([[0.0, 0.0, 0.0]])
    graph = gbp.FactorGraph()
    shared = graph.variable("shared", (1,), prior=gbp.Gaussian.from_moments(0.0, 1.0), kind="parameter")
    graph.add(gbp.Factor(lambda w: w, (shared[:],), y=1.0, sigma=1.0, name="seen"))
    result = gbp.infer(graph, iterations=1)
    with pytest.raises(ValueError, match="parameters that are learnt join the examples"):
        _ = result.log_evidence_by_example


# Uncertainty and samples.


def test_uncertainty_of_a_linear_regression_has_two_parts():
    """`x' S x` with the diagonal beliefs of the parameters, and the noise of layer and observation."""
    student = line()
    student.update(*measured(12))
    x = measured(6, seed=5)[0]
    parts = student.uncertainty(x)
    vw, vb = (np.asarray(student.posterior[f"dense/{n}"].variance, float) for n in ("weight", "bias"))
    known, believed = (1 / (1 / v + WIDE**-2) for v in (SIGMA**2, SIGMA**2 + x**2 @ vw + vb))
    np.testing.assert_allclose(parts.parameters, np.sqrt(believed - known), rtol=1e-3)
    np.testing.assert_allclose(parts.observation, np.sqrt(known + SEEN**2) * np.ones((6, 2)), rtol=1e-4)
    np.testing.assert_allclose(parts.total**2, believed + SEEN**2, rtol=1e-4)
    assert parts.mean.shape == (6, 2)
    assert parts.mutual_information is None
    student.update(*measured(12, seed=1))
    assert (student.uncertainty(x).parameters < parts.parameters).all()


def test_noise_that_was_learnt_counts():
    net = gbp.Sequential(gbp.Dense(1, sigma=SIGMA), gbp.GaussianObservation(sigma="learn"), input_shape=(3,))
    student = gbp.Learner(net)
    student.noise = {"gaussian": gbp.LearnNoise(0.7, 10.0)}
    parts = student.uncertainty(measured(2)[0])
    np.testing.assert_allclose(parts.observation**2, 0.49 + 1 / (SIGMA**-2 + 3.0**-2), rtol=1e-4)


def test_uncertainty_of_a_class():
    """Entropy is concave: what is expected of it if the logits were known is less."""
    student = classifier()
    parts = student.uncertainty(points(8, seed=2)[0])
    p = np.asarray(student.predict_proba(points(8, seed=2)[0], parameters="random"), float)
    np.testing.assert_allclose(parts.entropy, -(p * np.log(p)).sum(1), rtol=1e-3)
    assert parts.entropy is not None
    assert parts.expected_entropy is not None
    assert (parts.entropy <= np.log(2) + 1e-6).all()
    assert (parts.expected_entropy < parts.entropy).all()  # strictly concave
    np.testing.assert_allclose(parts.mutual_information, parts.entropy - parts.expected_entropy)


def test_samples_have_the_moments_of_the_prediction():
    student = line()
    student.update(*measured(12))
    x = measured(3, seed=5)[0]
    draws = student.sample(x, 4000, seed=1, parameters="random")
    assert draws.shape == (4000, 3, 2)
    parts = student.uncertainty(x)
    np.testing.assert_allclose(draws.mean(0), parts.mean, atol=5 * parts.total.max() / 4000**0.5)
    np.testing.assert_allclose(draws.std(0), parts.total, rtol=5 * (2 * 4000) ** -0.5)
    np.testing.assert_array_equal(student.sample(x, 4, seed=1), student.sample(x, 4, seed=1))
    assert (student.sample(x, 4, seed=1) != student.sample(x, 4, seed=2)).all()
    with pytest.raises(ValueError, match="count must be a whole number"):
        student.sample(x, 0)


def test_samples_of_classes():
    student = classifier()
    x = points(5)[0]
    draws = student.sample(x, 4000, seed=1)
    assert (draws.shape, draws.dtype.kind) == ((4000, 5), "i")
    np.testing.assert_allclose(draws.mean(0), student.predict_proba(x)[:, 1], atol=5 * 0.5 / 4000**0.5)
