"""What works on a posterior works on every family of beliefs: one network, one hidden layer of each family."""

import jax
import numpy as np
import pytest

import gbplearn as gbp

FAMILIES = ("diagonal", "block", "shared", "rotated")


def rings(n=120, seed=0):
    r = np.random.default_rng(seed)
    y, turn = r.integers(0, 3, n), r.uniform(0, 2 * np.pi, n)
    radius = 0.5 + y + 0.1 * r.standard_normal(n)
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], 1).astype(np.float32), y


X, Y = rings()


def learner(family, batches=0, **more):
    """One that has learnt from some batches of 20."""
    net = gbp.Sequential(
        gbp.Dense(8, activation="leaky_relu", weight_prior=0.5, bias_prior=0.5, posterior=family),
        gbp.Dense(3, weight_prior=1.0, bias_prior=1.0, prior=30.0, weight_init=0.0, posterior=family),
        gbp.CategoricalObservation(),
        input_shape=(2,),
    )
    out = gbp.Learner(net, activations="vector", **more)
    for i in range(batches):
        out.update(X[20 * i : 20 * i + 20], Y[20 * i : 20 * i + 20])
    assert out.batches == batches
    return out


def divergence(a, b):
    """Nats, of all parameters together."""
    return sum(gbp.Posterior(a.posterior).diff(gbp.Posterior(b.posterior)).values())


@pytest.fixture(params=FAMILIES, scope="module")
def family(request):
    return request.param


@pytest.fixture(scope="module")
def learnt(family):
    return learner(family, 4)


def test_moments_and_samples(family, learnt):
    for belief in learnt.posterior.values():
        np.testing.assert_allclose(np.asarray(belief.std) ** 2, belief.variance, rtol=1e-5)
        drawn = np.asarray(belief.sample(jax.random.key(0), (20_000,)), float)
        # A mean of 20,000 draws is off by 0.007 standard deviations, their variance by 1 %.
        np.testing.assert_allclose((drawn.mean(0) - belief.mean) / belief.std, 0, atol=0.035)
        np.testing.assert_allclose(drawn.var(0) / belief.variance, 1, atol=0.06)


def test_divergence_is_zero_from_itself_and_positive_from_the_prior(family, learnt):
    assert divergence(learnt, learnt) < 1e-3
    assert divergence(learnt, learner(family)) > 1


def test_a_batch_reports_what_it_has_gained(family):
    one = learner(family, 1)
    # A wide layer may have taken new axes since, along which it keeps its variances: then some of it is lost.
    rel = 0.35 if family == "rotated" else 2e-3
    assert one.history()[0].gained == pytest.approx(divergence(one, learner(family)), rel=rel)


def test_forgetting_divides_precisions(family, learnt):
    prior = gbp.Filtering(forgetting=0.8).next_prior(dict(learnt.posterior), learnt.prior)
    for name, belief in prior.items():
        np.testing.assert_allclose(belief.variance, learnt.posterior[name].variance / 0.8, rtol=1e-5)
        np.testing.assert_allclose(belief.mean, learnt.posterior[name].mean, rtol=1e-5, atol=1e-6)


def test_process_noise_adds_variance(family, learnt):
    prior = gbp.Filtering(process_noise=0.3).next_prior(dict(learnt.posterior), learnt.prior)
    for name, belief in prior.items():
        np.testing.assert_allclose(belief.variance, learnt.posterior[name].variance + 0.09, rtol=1e-5)


def test_alpha_leads_back_to_the_prior(family, learnt):
    back = gbp.Filtering(alpha=1.0).next_prior(dict(learnt.posterior), learnt.prior)
    half = gbp.Filtering(alpha=0.5).next_prior(dict(learnt.posterior), learnt.prior)
    for name, first in learnt.prior.items():
        np.testing.assert_allclose(back[name].variance, first.variance, rtol=1e-4)
        np.testing.assert_allclose(back[name].mean, first.mean, rtol=1e-4, atol=1e-6)
        middle = 0.5 * (np.asarray(first.mean) + np.asarray(learnt.posterior[name].mean))
        np.testing.assert_allclose(half[name].mean, middle, rtol=1e-4, atol=1e-6)


def test_filtering_acts_between_batches(family):
    plain, fading = learner(family, 3), learner(family, 3, forgetting=0.5)
    for name, belief in plain.posterior.items():
        assert np.median(np.asarray(fading.posterior[name].std) / np.asarray(belief.std)) > 1.05


def test_merging_with_one_that_has_learnt_nothing_changes_nothing(family, learnt):
    merged = gbp.merge([learnt, learner(family)])
    assert divergence(merged, learnt) < 1e-2
    assert merged.batches == 4


def test_merging_adds_precisions(family):
    one, other = learner(family, 1), learner(family)
    other.update(X[60:80], Y[60:80])
    merged = gbp.merge([one, other])
    for name, belief in merged.posterior.items():
        # Knows no less than either (along the axes of the first, which for the other are not the principal ones).
        slack = 1.2 if family == "rotated" else 1.001
        for part in (one, other):
            assert (np.asarray(belief.variance) <= slack * np.asarray(part.posterior[name].variance)).all()


def test_the_last_batch_is_forgotten_to_the_bit(family):
    before, after = learner(family, 3, record=True), learner(family, 4, record=True)
    after.forget(3)
    for name, belief in before.posterior.items():
        for a, b in zip(jax.tree.leaves(belief), jax.tree.leaves(after.posterior[name]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_earlier_batch_is_forgotten_by_learning_the_later_ones_again(family):
    given = [{"x": X[20 * i : 20 * i + 20], "y": Y[20 * i : 20 * i + 20]} for i in range(4)]
    never, other = learner(family, record=True), learner(family, record=True)
    for i in (0, 2, 3):
        never.update(**given[i])
    for i in range(4):
        other.update(**given[i])
    other.forget(1, again=given[2:])
    # In float32, of precisions that were added and taken out again. The axes of a wide layer are chosen again.
    assert divergence(never, other) < (3.0 if family == "rotated" else 0.05)
    assert other.batches == 3


def test_what_is_recorded_is_in_the_file(family, tmp_path):
    one = learner(family, 3, record=True)
    one.save(tmp_path / "run.safetensors")
    again = gbp.Learner.load(tmp_path / "run.safetensors")
    for each in (one, again):
        each.forget(0)
    for name, belief in one.posterior.items():
        np.testing.assert_array_equal(belief.mean, again.posterior[name].mean)
        np.testing.assert_array_equal(belief.std, again.posterior[name].std)


def test_random_parameters_widen_predictions(family, learnt):
    fixed, random = learnt.predict(X[:10]), learnt.predict(X[:10], parameters="random")
    # Both are the same outputs, drawn towards 0 by their prior N(0, 30²): the vaguer they are, the more.
    outputs = [np.asarray(g.mean) / (1 - np.asarray(g.variance) / 30**2) for g in (fixed, random)]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    assert (np.asarray(random.std) > np.asarray(fixed.std)).all()
    np.testing.assert_allclose(learnt.uncertainty(X[:10]).total, random.std, rtol=1e-4)


def test_an_exported_network_is_its_forward_pass(family, learnt, tmp_path):
    gbp.export(learnt, tmp_path / "net.stablehlo")
    call = jax.export.deserialize(bytearray((tmp_path / "net.stablehlo").read_bytes())).call
    np.testing.assert_allclose(call(X[:7]), learnt.forward(X[:7]), rtol=1e-5, atol=1e-6)


def test_reports_and_pictures_know_it(family, learnt):
    report = learnt.update(X[80:100], Y[80:100], evidence=True)
    assert np.isfinite(report.log_evidence)
    assert report.log_evidence < 0
    text = repr(learnt.posterior)
    assert "dense" in text
