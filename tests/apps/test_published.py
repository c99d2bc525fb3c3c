"""The authors' runs: each quirk does what it is said to do, on images that are small."""

import dataclasses
import functools
from typing import ClassVar

import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.apps.data.images import load_images
from gbplearn.apps.experiments import published
from gbplearn.apps.experiments.published import Published
from gbplearn.network.zoo import paper_classifier

QUICK = Published(images=20, iterations=12)


@dataclasses.dataclass(frozen=True)
class InTens(Published):
    batch: ClassVar[int] = 10


@pytest.fixture(scope="module")
def learn():
    digits, net = load_images("digits"), paper_classifier(3)
    prior = net.priors((8, 8, 1), seed=0)
    rng = np.random.default_rng(0)
    random = {n: 0.2 * rng.standard_normal(p.shape).astype(np.float32) for n, p in prior.items() if "weight" in n}
    zero = {n: type(p).from_moments(mean=0 * p.mean, std=p.std) for n, p in prior.items()}

    @functools.cache
    def run(experiment):
        known = zero if experiment.zero_means else prior
        return experiment.learn_batch(net, digits.train_x[:20], digits.train_y[:20], known, random, 0, first=True)

    return run


def test_a_tie_makes_one_of_all_biases():
    """The fast cousin: three scalars that are one, their mean that of all that is known of them."""
    graph = gbp.FactorGraph()
    prior = gbp.Gaussian.from_moments(mean=np.array([0.0, 0.3, 0.9], np.float32), std=0.1)
    graph.variable("conv/bias", shape=(3,), prior=prior)
    published.tie_biases(graph)
    found = gbp.infer(graph)["conv/bias"]
    np.testing.assert_allclose(found.mean, 0.4, atol=1e-3)
    np.testing.assert_allclose(found.lam, 300, rtol=1e-2)


@pytest.mark.slow
def test_biases_are_one_and_weights_are_not(learn):
    """All quirks together."""
    found = learn(QUICK)
    assert np.ptp(found["conv/bias"].mean) < 0.02  # free ones: 0.05
    weights = np.asarray(found["conv/weight"].mean)
    assert np.abs(weights[..., 0] - weights[..., 1]).max() > 1e-5
    for belief in found.values():
        assert np.isfinite(belief.eta).all()
        assert np.asarray(belief.lam).min() > 0


@pytest.mark.slow
def test_biases_that_are_tied_are_one(learn):
    # After 12 iterations (damping 0.9, dropout 0.5) over half of every message is the start's: 0.95 ** 12. And with
    # zero prior means the first messages to the pooling are rounding, which then decides which unit is the largest.
    arrived = dataclasses.replace(QUICK, iterations=100, zero_means=False)
    tied, free = (learn(dataclasses.replace(arrived, tied_bias=t))["conv/bias"] for t in (True, False))
    assert np.ptp(tied.mean) < 0.3 * np.ptp(free.mean)
    # One variable with the evidence of all: its precision is above that of any of them alone.
    assert np.asarray(tied.lam).min() > np.asarray(free.lam).max()


@pytest.mark.slow
def test_random_weights_break_the_symmetry_and_are_taken_back(learn):
    """With zero prior means and nothing random all filters would be the same, for ever."""
    weights = np.asarray(learn(QUICK)["conv/weight"].mean)
    assert np.abs(weights).max() > 1e-4
    assert np.abs(weights[..., 0] - weights[..., 1]).max() > 1e-5
    kept = np.asarray(learn(dataclasses.replace(QUICK, zero_means=False))["conv/weight"].mean)
    assert np.abs(weights).mean() < np.abs(kept).mean()  # those have random prior means


@pytest.mark.slow
def test_linearisation_that_is_late_is_another(learn):
    late, now = (learn(dataclasses.replace(QUICK, stale=s))["dense/weight"] for s in (True, False))
    for g in (late, now):
        assert np.isfinite(g.eta).all()
        assert np.asarray(g.lam).min() > 0
    assert np.abs(np.asarray(late.mean) - np.asarray(now.mean)).max() > 1e-4


@pytest.mark.slow
def test_both_ways_are_read_out(monkeypatch):
    monkeypatch.setattr(published, "load_images", lambda *_: load_images("digits"))
    run = InTens(**dataclasses.asdict(QUICK)).run_seed(0)
    assert set(run.metrics) == {f"test accuracy after {n} images/{how}" for n in (10, 20) for how in run.kept}
    assert run.metrics["test accuracy after 20 images/default"] > 0.2  # of ten classes
    assert len(QUICK.draw([run, run]).axes[0].lines) == 4
    assert "data_dir" not in QUICK.settings()
