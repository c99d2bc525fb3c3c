"""The class likelihood: against derivatives of log softmax, and equations solved in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.engine.guard import proximal
from gbplearn.layers.categorical import _LEAST, CategoricalKind, _draws

KIND = CategoricalKind()


def expanded(y, mean, variance):
    """`D` and `y - E[p]` of an expansion, in float64."""
    found = KIND.expand(*(jnp.asarray(a, jnp.float32) for a in (y, mean, variance)))
    root = np.asarray(found.jacobian.each(), float)[..., 0]  # J', by edge and measurement
    return root @ root.transpose(0, 2, 1), np.einsum("bnm,bm->bn", root, np.asarray(found.residual, float))


def softmax(f):
    e = np.exp(f - f.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_draws(y, mean, std):
    """The same averages, one example after the other."""
    curvature, pull = [], []
    for target, m, s in zip(y, mean, std):
        p = softmax(m + s * _draws(len(m)))
        curvature.append(np.mean([np.diag(q) - np.outer(q, q) for q in p], 0) + _LEAST * np.eye(len(m)))
        pull.append(target - p.mean(0))
    return np.array(curvature), np.array(pull)


def targets(batch, classes):
    """One-hot, but for the last, which is a row of probabilities."""
    y = np.eye(classes)[np.arange(batch) % classes]
    y[-1] = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
    return y


def logits_graph(y, mean, std, weight=None, copies=1):
    """Logits with a Gaussian prior, observed."""
    graph = gbp.FactorGraph()
    f = graph.variable("f", mean.shape, prior=gbp.Gaussian.from_moments(mean=mean, std=std))
    for k in range(copies):
        factor = gbp.CategoricalObservation().factor(f"classes {k}", f, y)
        graph.add(factor if weight is None else factor.weighted(weight))
    return graph


def solved(y, mean, std, weight=1.0):
    """Fixed point of scalar beliefs: of logits whose prior is independent, the factor's messages leave marginals."""
    x, v = mean.copy(), np.broadcast_to(np.square(std), mean.shape).copy()
    for _ in range(500):
        curvature, pull = by_draws(y, x, np.sqrt(v))
        precision = weight * curvature + np.eye(mean.shape[1]) / np.square(std)
        covariance = np.linalg.inv(precision)
        right = weight * (np.einsum("bij,bj->bi", curvature, x) + pull) + mean / np.square(std)
        x = 0.5 * x + 0.5 * np.einsum("bij,bj->bi", covariance, right)
        v = np.einsum("bii->bi", covariance)
    return x, v


@pytest.mark.parametrize("classes", [2, 5])
def test_at_a_point_it_is_gradient_and_hessian(classes):
    rng = np.random.default_rng(classes)
    y, x = targets(4, classes), 2 * rng.standard_normal((4, classes))

    def log_likelihood(f, target):
        return jnp.sum(target * jax.nn.log_softmax(f))

    at = jnp.asarray(x), jnp.asarray(y)
    gradient, hessian = (np.asarray(jax.vmap(d(log_likelihood))(*at)) for d in (jax.grad, jax.hessian))
    curvature, pull = expanded(y, x, np.zeros_like(x))
    np.testing.assert_allclose(pull, gradient, atol=1e-6)
    np.testing.assert_allclose(curvature, -hessian + _LEAST * np.eye(classes), atol=1e-6)


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_under_a_belief_both_are_expected_values(classes):
    rng = np.random.default_rng(1)
    y, mean, std = targets(3, classes), rng.standard_normal((3, classes)), rng.uniform(0.2, 1.5, (3, classes))
    curvature, pull = expanded(y, mean, std**2)
    for found, right in zip((curvature, pull), by_draws(y, mean, std)):
        np.testing.assert_allclose(found, right, atol=2e-6)
    p = softmax(mean + std * rng.standard_normal((20_000, *std.shape)))
    np.testing.assert_allclose(pull, y - p.mean(0), atol=0.03)
    exact = np.eye(classes) * p.mean(0)[:, None] - np.einsum("sbi,sbj->bij", p, p) / len(p)
    np.testing.assert_allclose(curvature, exact, atol=0.02)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_classes_of_which_the_same_is_known_are_as_likely(classes):
    _, pull = expanded(np.zeros((1, classes)), np.ones((1, classes)), np.full((1, classes), 4.0))
    np.testing.assert_allclose(-pull, 1 / classes, rtol=1e-5)


@pytest.mark.parametrize(("classes", "std"), [(2, 1.0), (2, 6.0), (4, 2.0)])
def test_beliefs_are_the_fixed_point(classes, std):
    y, mean = targets(3, classes), np.random.default_rng(2).standard_normal((3, classes))
    result = gbp.infer(logits_graph(y, mean, std), tolerance=1e-5, iterations=500, damping=0.3)
    assert result.status is gbp.Status.CONVERGED
    x, v = solved(y, mean, std)
    np.testing.assert_allclose(result["f"].mean, x, atol=2e-3 * std)
    np.testing.assert_allclose(result["f"].variance, v, rtol=2e-3)


def test_two_classes_against_the_integral():
    """Means and evidence of a logistic regression of one number, by quadrature over the difference of the logits."""
    result = gbp.infer(logits_graph(np.array([[1.0, 0.0]]), np.zeros((1, 2)), 1.0), tolerance=1e-5, damping=0.3)
    d = np.linspace(-12, 12, 20_001)
    density = np.exp(-(d**2) / 4) / np.sqrt(4 * np.pi) / (1 + np.exp(-d))
    mean = np.trapezoid(d * density, d) / np.trapezoid(density, d)
    difference = float(result["f"].mean[0, 0] - result["f"].mean[0, 1])
    assert difference == pytest.approx(mean, abs=0.02)
    assert result.log_evidence == pytest.approx(np.log(0.5), abs=0.02)


def test_logits_that_are_known_have_the_likelihood_as_evidence():
    y, mean = targets(3, 4), np.random.default_rng(3).standard_normal((3, 4))
    right = np.sum(y * np.log(softmax(mean)))
    graph = logits_graph(y, mean, 1e-3)
    assert gbp.infer(graph).log_evidence == pytest.approx(right, abs=1e-4)
    assert graph.energy({"f": mean})["classes 0"] == pytest.approx(-right, rel=1e-5)


def test_the_trace_has_the_energy():
    y, mean = targets(3, 4), np.random.default_rng(4).standard_normal((3, 4))
    result = gbp.infer(logits_graph(y, mean, 1.0), tolerance=1e-6, iterations=200, damping=0.3)
    energy = -np.sum(y * np.log(softmax(np.asarray(result["f"].mean, float))))
    assert result.trace.energy["classes 0"][-1] == pytest.approx(energy, rel=1e-4)


def test_weights_multiply_precision_and_gradient():
    y, mean = targets(3, 3), np.random.default_rng(5).standard_normal((3, 3))
    weight = np.array([2.0, 0.5, 0.0])
    result = gbp.infer(logits_graph(y, mean, 1.5, weight), tolerance=1e-5, iterations=500, damping=0.3)
    for b, w in enumerate(weight):
        x, v = solved(y[[b]], mean[[b]], 1.5, w)
        np.testing.assert_allclose(result["f"].mean[b], x[0], atol=3e-3)
        np.testing.assert_allclose(result["f"].variance[b], v[0], rtol=2e-3)
    np.testing.assert_array_equal(result["f"].mean[2], np.float32(mean[2]))  # of no weight


def test_two_copies_are_one_of_weight_two_where_they_cannot_differ():
    """To first order in the prior's variance: what one copy says then does not depend on the other."""
    y, mean, std = targets(3, 3), np.random.default_rng(6).standard_normal((3, 3)), 0.01
    twice, copies = (
        gbp.infer(logits_graph(y, mean, std, **how), tolerance=1e-6, iterations=100)
        for how in ({"weight": np.full(3, 2.0)}, {"copies": 2})
    )
    np.testing.assert_allclose(twice["f"].mean - mean, copies["f"].mean - mean, atol=1e-6)
    assert twice.log_evidence == pytest.approx(copies.log_evidence, abs=1e-4)


def test_kernels_and_xla_agree():
    y, mean = targets(6, 10), np.random.default_rng(7).standard_normal((6, 10))
    found = []
    for build in (gbp.native.Build.NONE, gbp.native.Build.BASIC):
        with gbp.native.using(build):
            found.append(gbp.infer(logits_graph(y, mean, 2.0, np.linspace(0, 2, 6)), iterations=5, damping=0.3)["f"])
    np.testing.assert_allclose(found[0].mean, found[1].mean, atol=1e-4)
    np.testing.assert_allclose(found[0].variance, found[1].variance, rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=3),
    std=st.floats(1e-6, 1e10),
    label=st.integers(0, 2),
)
def test_huge_logits_give_finite_messages(logits, std, label):
    mean, y = np.array([logits]), np.eye(3)[[label]]
    for variance in (0.0, std**2):
        curvature, pull = expanded(y, mean, np.full((1, 3), variance))
        assert np.isfinite(curvature).all()
        assert (np.linalg.eigvalsh(curvature[0]) > 0).all()
        assert (np.abs(pull) <= 1 + 1e-5).all()


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_beliefs_of_huge_logits_stay_proper(scale):
    rng = np.random.default_rng(8)
    result = gbp.infer(
        logits_graph(targets(8, 3), scale * rng.standard_normal((8, 3)), 5.0), iterations=30, throw=False
    )
    assert np.isfinite(result["f"].mean).all()
    assert (np.asarray(result["f"].lam) >= 1 / 25 - 1e-6).all()


def test_logits_without_a_prior():
    """Nothing but the factor is known of them: the messages say nothing, and all stays finite."""
    graph = gbp.FactorGraph()
    f = graph.variable("f", (2, 3))
    graph.add(gbp.CategoricalObservation().factor("classes", f, targets(2, 3)))
    result = gbp.infer(graph, iterations=3, throw=False)
    assert np.isfinite(np.asarray(result["f"].eta)).all()
    assert (np.asarray(result["f"].lam) >= 0).all()


def test_it_has_no_noise():
    graph = gbp.FactorGraph()
    f = graph.variable("f", (2, 3), prior=gbp.Gaussian.from_moments(mean=0.0, std=1.0))
    for how in ({"sigma": 1.0}, {"robust": gbp.Huber(1.0)}):
        with pytest.raises(ValueError, match="neither noise nor a robust energy"):
            gbp.Factor(KIND, (f,), y=targets(2, 3), **how)
    graph.add(gbp.Factor(KIND, (f,), y=targets(2, 3)))
    with pytest.raises(ValueError, match="not Gaussian"):
        gbp.infer(graph, schedule=gbp.TreeOrder())


def test_the_guard_descends_on_the_energy():
    """Gradient, curvature and the linearised graph of the guard, against derivatives of the total energy."""
    y, mean = targets(3, 3), np.random.default_rng(10).standard_normal((3, 3))
    weight = np.array([2.0, 0.5, 1.0])
    problem = logits_graph(y, mean, 1.5, weight).problem()
    x, d = ({"f": jnp.asarray(np.random.default_rng(k).standard_normal((3, 3)), jnp.float32)} for k in (11, 12))

    def energy(f):
        likelihood = -jnp.sum(weight[:, None] * y * jax.nn.log_softmax(f))
        return likelihood + 0.5 * jnp.sum((f - mean) ** 2) / 1.5**2

    assert proximal.total_energy(problem, x) == pytest.approx(float(energy(x["f"])), rel=1e-5)
    same = proximal.compare(problem, x, x)
    assert float(same[0]) == pytest.approx(float(energy(x["f"])), rel=1e-5)
    np.testing.assert_allclose(proximal.descent(problem, x)["f"], -jax.grad(energy)(x["f"]), atol=1e-5)
    _, along = jax.jvp(jax.grad(energy), (x["f"],), (d["f"],))
    assert float(proximal.curvature(problem, x, d)) == pytest.approx(float(jnp.vdot(d["f"], along)), rel=1e-4)
    (group,) = (stepped := proximal.step_problem(problem, x, jnp.asarray(0.0))).groups
    jacobian = np.asarray(stepped.frozen[0].jacobians[0].each(), float)[..., 0]
    pull = np.einsum("bnm,bm->bn", jacobian, np.asarray(group.y / group.noise, float))
    np.testing.assert_allclose(pull, weight[:, None] * (y - softmax(np.asarray(x["f"], float))), atol=1e-5)


# In a network.


def network(head=None):
    dense = gbp.Dense(3, sigma=0.05, weight_prior=2.0, weight_init=0.0, prior=10.0)
    return gbp.Sequential(dense, head or gbp.CategoricalObservation(), input_shape=(2,))


def examples(count=60):
    rng = np.random.default_rng(9)
    y = rng.integers(0, 3, count)
    centres = 2 * np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
    return np.float32(centres[y] + 0.5 * rng.standard_normal((count, 2))), y


def test_a_learner_learns_classes():
    x, y = examples(180)
    learner = gbp.Learner(network(), seed=0)
    reports = [learner.update(x[i : i + 30], y[i : i + 30], evidence=True) for i in range(0, 120, 30)]
    p = np.asarray(learner.predict_proba(x[120:]))
    assert (p.argmax(1) == y[120:]).mean() > 0.9
    assert reports[-1].log_evidence > reports[0].log_evidence
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    assert learner.sample(x[:4], count=5).shape == (5, 4)
    assert learner.uncertainty(x[:4]).entropy.shape == (4,)
    evidence = learner.log_evidence(x[120:], y[120:])
    predicted = np.log(np.asarray(learner.predict_proba(x[120:], parameters="fixed"))[np.arange(60), y[120:]])
    np.testing.assert_allclose(evidence, predicted, atol=0.05)


def test_missing_labels_change_nothing():
    x, y = examples()
    known = np.arange(len(x)) < 40
    one, other = gbp.Learner(network(), seed=0), gbp.Learner(network(), seed=0)
    one.update(x, y, y_observed=known)
    other.update(x, np.where(known, y, 0), sample_weight=known.astype(float))
    for name in one.posterior:
        np.testing.assert_allclose(one.posterior[name].mean, other.posterior[name].mean, atol=1e-3)


def test_probabilities_are_targets():
    x, y = examples()
    one, other = gbp.Learner(network(), seed=0), gbp.Learner(network(), seed=0)
    one.update(x, y)
    other.update(x, np.eye(3)[y])
    for name in one.posterior:
        for part in ("mean", "std"):
            np.testing.assert_array_equal(*(getattr(of.posterior[name], part) for of in (one, other)))


def test_it_is_saved(tmp_path):
    x, y = examples()
    learner = gbp.Learner(network(gbp.CategoricalObservation(name="digit")), seed=0)
    learner.update(x, y)
    learner.save(tmp_path / "learner.safetensors")
    again = gbp.Learner.load(tmp_path / "learner.safetensors")
    assert repr(again.net) == repr(learner.net)
    np.testing.assert_array_equal(again.predict_proba(x), learner.predict_proba(x))
    forward = gbp.forward_function(learner, probabilities=True)
    np.testing.assert_allclose(np.asarray(forward(x)).sum(1), 1, atol=1e-5)


def test_it_is_drawn_and_summarised():
    net = network()
    assert "CategoricalObservation" in str(net)
    assert net.draw() is not None
