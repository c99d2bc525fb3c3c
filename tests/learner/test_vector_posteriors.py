"""Layers whose units are vector variables, in graphs and in learners, against dense solves."""

import numpy as np
import pytest

import gbplearn as gbp

NOISE = 0.3


def regression(n=40, p=6, seed=0):
    """Inputs that are strongly correlated, and values."""
    r = np.random.default_rng(seed)
    x = (r.standard_normal((n, p)) @ (0.2 * np.eye(p) + r.standard_normal((p, p)))).astype(np.float32)
    return x, (x @ r.standard_normal((p, 2)) + NOISE * r.standard_normal((n, 2))).astype(np.float32)


def learner(posterior, inputs=6, units=2, **more):
    net = gbp.Sequential(
        gbp.Dense(units, sigma=1e-3, weight_prior=1.0, bias_prior=1.0, prior=1e3, weight_init=0.0, posterior=posterior),
        gbp.GaussianObservation(sigma=NOISE),
    )
    options = {"damping": 0.0, "tolerance": 1e-5, "iterations": 50, "unusual": "learn", **more}
    return gbp.Learner(net, (inputs,), **options)


def dense_posterior(x, y, weight=None):
    rows = np.c_[x, np.ones(len(x))].astype(float)
    precision = (np.ones(len(x)) if weight is None else weight) / (NOISE**2 + 1e-6)
    covariance = np.linalg.inv(np.eye(rows.shape[1]) + rows.T @ (precision[:, None] * rows))
    return covariance @ rows.T @ (precision[:, None] * y), covariance


@pytest.mark.parametrize("posterior", ["block", "shared"])
@pytest.mark.parametrize("batch", [40, 10, 4])
def test_batches_one_after_the_other_are_one_batch(posterior, batch):
    """Both ways of computing: more rows than numbers, and fewer."""
    (x, y), learnt = regression(), learner(posterior)
    for i in range(0, 40, batch):
        assert learnt.update(x[i : i + batch], y[i : i + batch]).accepted
    found, (mean, covariance) = learnt.posterior["dense/parameters"], dense_posterior(x, y)
    std = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((np.asarray(found.mean).T - mean) / std[:, None], 0, atol=1e-3)
    for one in np.asarray(found.covariance):
        np.testing.assert_allclose(one / np.outer(std, std), covariance / np.outer(std, std), atol=1e-4)


def test_known_inputs_are_exact_without_damping_and_at_once():
    x, y = regression()
    report = learner("block").update(x, y)
    assert report.status is gbp.Status.CONVERGED
    assert report.iterations <= 6


def test_vectors_are_scalars_where_posteriors_factorise():
    """Each example has one input, and no bias counts: nothing correlates the weights."""
    x, y = np.eye(6, dtype=np.float32), regression()[1][:6]
    nets = [
        gbp.Sequential(
            gbp.Dense(2, sigma=0.1, weight_prior=1.0, bias_prior=1e-4, prior=1e3, weight_init=0.0, posterior=how),
            gbp.GaussianObservation(sigma=NOISE),
        )
        for how in ("diagonal", "block")
    ]
    scalar, vector = (gbp.Learner(n, (6,), damping=0.0, tolerance=1e-5, unusual="learn") for n in nets)
    for one in (scalar, vector):
        one.update(x, y)
    expected, found = scalar.posterior["dense/weight"], vector.posterior["dense/parameters"]
    np.testing.assert_allclose(np.asarray(found.mean)[:, :-1].T, expected.mean, atol=1e-4)
    np.testing.assert_allclose(np.asarray(found.std)[:, :-1].T, expected.std, rtol=1e-4)


def test_log_evidence_is_the_density_of_the_values():
    x, y = regression(12)
    report = learner("block").update(x, y, evidence=True)
    rows = np.c_[x, np.ones(len(x))].astype(float)
    spread = rows @ rows.T + (NOISE**2 + 1e-6) * np.eye(len(x))
    squares = np.einsum("nu,nm,mu->", y.astype(float), np.linalg.inv(spread), y.astype(float))
    expected = -0.5 * squares - np.linalg.slogdet(2 * np.pi * spread)[1]
    np.testing.assert_allclose(report.log_evidence, expected, rtol=2e-3)


def test_random_parameters_give_the_predictive_variance():
    x, y = regression()
    learnt = learner("shared")
    learnt.update(x[:30], y[:30])
    _, covariance = dense_posterior(x[:30], y[:30])
    rows = np.c_[x[30:], np.ones(10)].astype(float)
    expected = np.sqrt(np.einsum("np,pq,nq->n", rows, covariance, rows))
    np.testing.assert_allclose(learnt.predict(x[30:], parameters="random").std[:, 0], expected, rtol=2e-3)
    assert (np.asarray(learnt.predict(x[30:]).std) < 0.01).all()


def test_weights_and_missing_values():
    x, y = regression()
    some, learnt = np.arange(40) % 3 > 0, learner("block")
    learnt.update(x, y, y_observed=np.repeat(some[:, None], 2, 1))
    np.testing.assert_allclose(
        learnt.posterior["dense/parameters"].mean.T, dense_posterior(x[some], y[some])[0], atol=1e-3
    )
    weight, learnt = np.where(some, 2.0, 1.0), learner("block")
    learnt.update(x, y, sample_weight=weight)
    np.testing.assert_allclose(learnt.posterior["dense/parameters"].mean.T, dense_posterior(x, y, weight)[0], atol=2e-3)


def test_merged_learners_are_one_that_had_all():
    x, y = regression()
    halves = [learner("block"), learner("block")]
    for one, part in zip(halves, (slice(0, 20), slice(20, 40))):
        one.update(x[part], y[part])
    found, (mean, covariance) = gbp.merge(halves).posterior["dense/parameters"], dense_posterior(x, y)
    np.testing.assert_allclose(np.asarray(found.mean).T, mean, atol=2e-3)
    np.testing.assert_allclose(found.covariance[0], covariance, atol=1e-4)


def test_forgetting_divides_the_precision():
    x, y = regression()
    learnt = learner("shared", forgetting=0.5)
    learnt.update(x[:20], y[:20])
    before = np.asarray(learnt.posterior["dense/parameters"].covariance[0], float)
    learnt.update(x[20:], y[20:])
    rows = np.c_[x[20:], np.ones(20)].astype(float)
    expected = np.linalg.inv(0.5 * np.linalg.inv(before) + rows.T @ rows / (NOISE**2 + 1e-6))
    np.testing.assert_allclose(learnt.posterior["dense/parameters"].covariance[0], expected, atol=1e-4)


@pytest.mark.parametrize("posterior", ["block", "shared"])
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path, posterior):
    x, y = regression()
    learnt = learner(posterior)
    learnt.update(x[:20], y[:20])
    learnt.save(tmp_path / "run.safetensors")
    loaded = gbp.Learner.load(tmp_path / "run.safetensors")
    for one in (learnt, loaded):
        one.update(x[20:], y[20:])
    a, b = (one.posterior["dense/parameters"] for one in (learnt, loaded))
    np.testing.assert_array_equal(a.mean, b.mean)
    np.testing.assert_array_equal(a.root, b.root)


def test_networks_with_hidden_units_learn_by_both_families():
    r = np.random.default_rng(0)
    x = r.uniform(-1, 1, (200, 1)).astype(np.float32)
    y = np.sin(3 * x)
    net = gbp.Sequential(
        gbp.Dense(12, activation="tanh", sigma=0.05, weight_prior=2.0, bias_prior=2.0, posterior="block"),
        gbp.Dense(1, sigma=0.05, weight_prior=0.7, prior=3.0, posterior="shared"),
        gbp.GaussianObservation(sigma=0.1),
    )
    learnt = gbp.Learner(net, (1,), unusual="learn")
    for i in range(0, 200, 20):
        assert learnt.update(x[i : i + 20], y[i : i + 20]).accepted
    assert np.sqrt(np.mean((np.asarray(learnt.predict(x).mean) - y) ** 2)) < 0.2  # the spread of y is 0.7


def test_filters_of_known_images_are_a_regression():
    r = np.random.default_rng(1)
    images, kernel = r.standard_normal((3, 6, 6, 1)).astype(np.float32), 3
    net = gbp.Sequential(
        gbp.Conv2D(
            2,
            kernel=kernel,
            sigma=1e-3,
            weight_prior=1.0,
            bias_prior=1.0,
            prior=1e3,
            weight_init=0.0,
            posterior="block",
        ),
        gbp.GaussianObservation(sigma=NOISE),
    )
    y = r.standard_normal((3, 4, 4, 2)).astype(np.float32)
    learnt = gbp.Learner(net, (6, 6, 1), damping=0.0, tolerance=1e-5, unusual="learn")
    learnt.update(images, y)
    patches = np.lib.stride_tricks.sliding_window_view(images[..., 0], (kernel, kernel), (1, 2)).reshape(-1, 9)
    mean, covariance = dense_posterior(patches, y.reshape(-1, 2))
    found = learnt.posterior["conv/parameters"]
    np.testing.assert_allclose(np.asarray(found.mean).T, mean, atol=1e-3)
    np.testing.assert_allclose(found.covariance[1], covariance, atol=1e-5)
    forward = np.asarray(learnt.forward(images)).reshape(-1, 2)
    np.testing.assert_allclose(forward, np.c_[patches, np.ones(48)] @ np.asarray(found.mean).T, atol=1e-4)


def test_a_factor_of_the_users_over_two_vectors():
    """Each factor sees one of two vectors, through a function that is linear in it."""
    r = np.random.default_rng(2)
    rows, of, y = r.standard_normal((9, 4)), np.arange(9) % 2, r.standard_normal(9)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (2, 4), prior=gbp.VectorGaussian.from_moments(np.zeros((2, 4)), 1.5, shared=False))
    graph.add(gbp.Factor(lambda w, x: w @ x, (w[of], rows), y=y, sigma=NOISE, name="line"))
    result = gbp.infer(graph, iterations=20)
    assert result.status is gbp.Status.CONVERGED
    for unit in range(2):
        x = rows[of == unit]
        covariance = np.linalg.inv(np.eye(4) / 1.5**2 + x.T @ x / NOISE**2)
        np.testing.assert_allclose(result["w"].mean[unit], covariance @ x.T @ y[of == unit] / NOISE**2, atol=2e-4)
        np.testing.assert_allclose(result["w"].covariance[unit], covariance, atol=1e-5)
    spread = [1.5**2 * rows[of == u] @ rows[of == u].T + NOISE**2 * np.eye((of == u).sum()) for u in range(2)]
    expected = sum(
        -0.5 * y[of == u] @ np.linalg.solve(s, y[of == u]) - 0.5 * np.linalg.slogdet(2 * np.pi * s)[1]
        for u, s in enumerate(spread)
    )
    np.testing.assert_allclose(result.log_evidence, expected, atol=2e-3)


def test_pictures_and_pages_know_vectors():
    x, y = regression()
    learnt = learner("shared")
    learnt.update(x, y)
    assert "2 vectors of 7" in str(learnt.net.graph(x, y).draw()._repr_svg_())
    assert "dense/parameters" in learnt._repr_html_()
    assert len(learnt.posterior.plot().axes) == 2


def test_refusals():
    with pytest.raises(ValueError, match="posterior must be one of"):
        gbp.Dense(3, posterior="full")
    graph = gbp.FactorGraph()
    prior = gbp.VectorGaussian.from_moments(np.zeros((2, 4)), 1.0, shared=True)
    w = graph.variable("w", (2, 4), prior=prior)
    graph.add(gbp.Factor(lambda w: w.sum(), (w[:],), sigma=1.0, name="sum"))
    with pytest.raises(ValueError, match="only one group"):
        graph.add(gbp.Factor(lambda w: w.sum(), (w[:],), sigma=1.0, name="again"))
    with pytest.raises(ValueError, match="no vector variables"):
        graph.tie("w", "w")
    with pytest.raises(ValueError, match="no block, no capacity"):
        graph.variable("v", (2, 4), prior=prior, block=True)
    with pytest.raises(ValueError, match="solve: 'w' is a vector variable"):
        gbp.solve(gbp.compile(graph), graph.data())
    with pytest.raises(ValueError, match=r"which gbp\.OnMovement does not take"):
        gbp.infer(graph, relinearise=gbp.OnMovement(0.1))
    with pytest.raises(IndexError, match="one vector variable"):
        w[:, 1:]
