"""Faults of joint updates that a review found, each as its user would meet it."""

import numpy as np
import pytest
import safetensors.numpy as container

import gbplearn as gbp
from gbplearn.core.vector import VectorGaussian
from gbplearn.io.container import sealed


def regression(scale=1.0, outputs=1):
    r = np.random.default_rng(0)
    x = r.standard_normal((30, 3)).astype(np.float32)
    y = x @ r.standard_normal((3, outputs)) + 0.3 * r.standard_normal((30, outputs))
    return x, (scale * y).astype(np.float32)


def line(scale=1.0, sigma=0.3, **more):
    net = gbp.Sequential(
        gbp.Dense(
            1,
            sigma=1e-3 * scale,
            weight_prior=scale,
            bias_prior=scale,
            prior=1e3 * scale,
            weight_init=0.0,
            posterior="block",
        ),
        gbp.GaussianObservation(sigma=sigma if isinstance(sigma, str) else sigma * scale),
        input_shape=(3,),
    )
    return gbp.Learner(net, activations="vector", unusual="learn", **more)


@pytest.mark.parametrize("scale", [1e-4, 1e6])
def test_units_of_the_targets_do_not_matter(scale):
    """A floor of precisions that was not relative had made means eight times too small at 1e6."""
    one, other = line(), line(scale)
    one.update(*regression())
    other.update(*regression(scale))
    for part in ("mean", "std"):
        a, b = (np.asarray(getattr(learner.posterior["dense/parameters"], part), float) for learner in (one, other))
        np.testing.assert_allclose(b / scale, a, rtol=2e-3, atol=1e-4)


def test_targets_and_inputs_that_cannot_be_solved_refuse_the_batch():
    learner = line(sigma="learn")
    x, y = regression()
    learner.update(x, y)
    before = learner.posterior
    report = learner.update(x * np.float32(1e19), y)
    assert not report.accepted
    assert report.status is gbp.Status.DIVERGED
    assert learner.failures == 1
    np.testing.assert_array_equal(learner.posterior["dense/parameters"].mean, before["dense/parameters"].mean)


def test_record_does_not_choose_another_model():
    net = gbp.Sequential(gbp.Dense(4, "tanh"), gbp.Dense(3), gbp.CategoricalObservation(), input_shape=(2,))
    assert gbp.Learner(net).activations == gbp.Learner(net, record=True).activations == "vector"


def classifier(posterior, **more):
    net = gbp.Sequential(
        gbp.Dense(5, "leaky_relu", posterior=posterior, **more),
        gbp.Dense(3, weight_init=0.0, posterior=posterior),
        gbp.CategoricalObservation(),
        input_shape=(4, 4, 1),
    )
    return gbp.Learner(net)


def batches(count):
    r = np.random.default_rng(1)
    x = r.standard_normal((count, 20, 4, 4, 1)).astype(np.float32)
    return x, (x.mean((2, 3, 4)) > 0).astype(int) + (x[:, :, 0, 0, 0] > 1)


@pytest.mark.parametrize("more", [{"bias_prior": 0.1, "weight_prior": 0.6}, {"bias_prior": 0.1, "length_scale": 2.0}])
def test_along_axes_a_batch_without_labels_says_nothing(more):
    """New axes had forgotten thousands of nats of a prior whose numbers do not vary alike."""
    learner, (x, y) = classifier("rotated", **more), batches(3)
    prior = gbp.Posterior(learner.prior)
    learner.update(x[0], y[0], y_observed=False)
    assert sum(learner.posterior.diff(prior).values()) < 1e-3
    learner.update(x[1], y[1])
    learnt = learner.posterior
    gained = learner.history()[-1].gained
    assert gained == pytest.approx(sum(learnt.diff(prior).values()), rel=0.3)
    for name, belief in learnt.items():
        assert (np.asarray(belief.std) <= 1.001 * np.asarray(prior[name].std)).all()
    learner.update(x[2], y[2], y_observed=False)
    assert sum(learner.posterior.diff(learnt).values()) < 1e-3


@pytest.mark.parametrize("more", [{"bias_prior": 0.1, "weight_prior": 0.6}, {"bias_prior": 0.1, "length_scale": 2.0}])
def test_along_axes_models_merge_and_batches_are_forgotten(more):
    x, y = batches(6)
    one, other = (classifier("rotated", **more) for _ in range(2))
    for i in range(3):
        one.update(x[i], y[i])
        other.update(x[3 + i], y[3 + i])
    merged = gbp.merge([one, other])
    for name, belief in merged.posterior.items():
        for part in (one, other):
            assert np.asarray(belief.std).mean() < np.asarray(part.posterior[name].std).mean()
        np.testing.assert_allclose(
            belief.rows, np.asarray(one.posterior[name].rows) + np.asarray(other.posterior[name].rows), rtol=1e-5
        )
    recorded = gbp.Learner(one.net, record=True)
    for i in range(6):
        recorded.update(x[i], y[i])
    for i in (0, 3, 1):
        recorded.forget(i)
    assert recorded.batches == 3
    for name, belief in recorded.posterior.items():
        assert float(belief.batches) == 3
        assert (np.asarray(belief.std) <= 1.001 * np.asarray(recorded.prior[name].std)).all()


def tampered(learner, path, name, value):
    """Its checkpoint with other numbers in a tensor."""
    learner.save(path)
    tensors = {n: np.array(a) for n, a in container.load_file(path).items()}
    tensors[name] = np.broadcast_to(value, tensors[name].shape).astype(np.float32)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(size)
    import json

    facts = json.loads(header)["__metadata__"]
    path.write_bytes(sealed(container.save(tensors, {"gbplearn": facts["gbplearn"], "sha256": "0" * 64})))


@pytest.mark.parametrize(
    ("posterior", "part", "value", "why"),
    [
        ("block", "root", 1.8e19, "no proper belief"),
        ("shared", "root", 1.0, "its covariance is singular"),
        ("rotated", "spread", 1e38, "no proper belief"),
        ("rotated", "prior_root", 1.0, "Singular matrix"),
    ],
)
def test_vectors_that_are_no_beliefs_are_no_checkpoint(tmp_path, posterior, part, value, why):
    learner, (x, y) = classifier(posterior), batches(1)
    learner.update(x[0], y[0])
    path = tmp_path / "run.safetensors"
    tampered(learner, path, f"posterior/dense/parameters/{part}", value)
    with pytest.raises(gbp.CheckpointError, match=why):
        gbp.Learner.load(path)


def test_a_divergence_that_is_no_number_stays_so():
    sound = VectorGaussian.from_moments(np.zeros((2, 3)), 1.0, shared=True)
    broken = sound.with_mean(sound.mean * np.nan)
    assert np.isnan(gbp.Posterior({"a": broken}).diff(gbp.Posterior({"a": sound}))["a"])


def test_families_that_differ_are_named():
    block, shared = (VectorGaussian.from_moments(np.zeros((2, 3)), 1.0, shared=s) for s in (False, True))
    with pytest.raises(ValueError, match="one keeps a covariance for each unit, another one covariance for all units"):
        gbp.Posterior({"a": block}).diff(gbp.Posterior({"a": shared}))


def test_memory_counts_the_beliefs():
    """The one matrix of 1,000 weights a unit takes far more than a batch."""
    net = gbp.Sequential(gbp.Dense(20, posterior="block"), gbp.CategoricalObservation(), input_shape=(1000,))
    learner = gbp.Learner(net)
    assert learner._chain is not None
    assert learner._chain.memory(10) > 5 * 4 * 20 * 1001**2
