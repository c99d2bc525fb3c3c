"""Parameters that factors of the user tie are one variable: what is known of it counts once, under all its names."""

import dataclasses

import numpy as np
import pytest

import gbplearn as gbp
from checkpoint_files import bits, parts, put_together, refused, there_and_back
from gbplearn.io import checkpoint

SIGMA, SEEN, WIDE, KNOWN = 0.3, 0.2, 2.0, 0.7


def tie(graph):
    graph.tie("a/bias", "b/bias")


def net():
    """Weights are next to 0: what is left is `a = d`, `b = d`, with one bias `d`, and `b` is observed."""
    how = {"sigma": SIGMA, "weight_prior": 1e-5, "weight_init": 0.0, "bias_prior": KNOWN, "prior": WIDE}
    layers = gbp.Dense(1, **how, name="a"), gbp.Dense(1, **how, name="b"), gbp.GaussianObservation(sigma=SEEN)
    return gbp.Sequential(*layers, input_shape=(1,))


def learner(**options):
    how = {"iterations": 60, "tolerance": 1e-7, "damping": 0.0, "guard": False, "factors": tie, **options}
    return gbp.Learner(net(), **how)


def batches():
    rng = np.random.default_rng(0)
    return [(np.zeros((4, 1)), 0.5 + rng.standard_normal((4, 1))) for _ in range(3)]


def posterior_of(targets):
    """Mean and standard deviation of the bias: the priors of both layers, and of each example two messages."""
    # b: N(0, WIDE²) and the target meet at the output, whose noise lies between it and the bias; a: its prior alone.
    lam = 1 / WIDE**2 + 1 / SEEN**2
    told, quiet = 1 / (1 / lam + SIGMA**2), 1 / (WIDE**2 + SIGMA**2)
    precision = 2 / KNOWN**2 + len(targets) * (told + quiet)
    return np.sum(targets / SEEN**2 / lam) * told / precision, precision**-0.5


def check(one, targets):
    mean, std = posterior_of(targets)
    for name in ("a/bias", "b/bias"):
        np.testing.assert_allclose(one.posterior[name].mean, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one.posterior[name].std, std, rtol=1e-4)


def test_batches_that_say_nothing_leave_a_tied_weight_what_it_was():
    """It was squared every time: 0.71, 0.5, 0.35, 0.25, 0.18."""
    layers = (gbp.Dense(2, sigma=0.1, weight_prior=1.0, weight_init=0.0, name=name) for name in "ab")
    one = gbp.Sequential(*layers, gbp.GaussianObservation(sigma=0.1), input_shape=(2,))
    found = gbp.Learner(one, factors=lambda graph: graph.tie("a/weight", "b/weight"), iterations=50)
    for _ in range(5):
        assert found.update(np.zeros((3, 2)), np.zeros((3, 2))).accepted
        for name in ("a/weight", "b/weight"):
            np.testing.assert_allclose(found.posterior[name].std, 0.5**0.5, rtol=1e-3)


def test_a_tied_bias_is_learnt_as_by_hand():
    one, targets = learner(), []
    for x, y in batches():
        assert one.update(x, y).status is gbp.Status.CONVERGED
        targets.extend(y[:, 0])
        check(one, np.array(targets))
    mean, _ = posterior_of(np.array(targets))
    for how in ("fixed", "random"):  # and predicted with
        found = one.predict(np.zeros((4, 1)), parameters=how)
        np.testing.assert_allclose(found.mean, mean / (1 + (SIGMA / WIDE) ** 2), rtol=0.02)
    gained = sum(record.gained for record in one.history())
    assert 0 < gained < 2 * sum(one.posterior.diff(one.prior).values())


def test_what_is_known_before_the_first_batch():
    one = learner()
    one.predict(np.zeros((4, 1)))
    check(one, np.zeros(0))
    np.testing.assert_allclose(one.prior["a/bias"].std, KNOWN / 2**0.5, rtol=1e-6)


def test_a_tied_parameter_through_a_checkpoint(tmp_path):
    one = learner(record=True)
    one.update(*batches()[0])
    again = there_and_back(one, tmp_path, factors=tie)
    for batch in batches()[1:]:
        one.update(*batch)
        again.update(*batch)
    assert bits(*again.posterior.values()) == bits(*one.posterior.values())
    check(again, np.concatenate([y[:, 0] for _, y in batches()]))
    facts, header, body = parts(checkpoint.encode(one, {}))
    for wrong in ([["a/bias"]], [["a/bias", "c"]], [["a/bias", "b/bias"], ["a/bias", "b/bias"]]):
        assert "tied must be lists" in refused(put_together({**facts, "tied": wrong}, header, body), tmp_path)


def test_an_older_checkpoint_does_not_know_of_ties(tmp_path):
    one = learner()
    one.update(*batches()[0])
    facts, header, body = parts(checkpoint.encode(one, {}))
    del facts["tied"]
    (tmp_path / "old.safetensors").write_bytes(put_together(facts, header, body))
    old = gbp.Learner.load(tmp_path / "old.safetensors", factors=tie)
    old.prior = {name: g.astype(old.dtype) for name, g in old.net.priors(old.input_shape).items()}  # as it was saved
    for batch in batches()[1:]:
        old.update(*batch)
    check(old, np.concatenate([y[:, 0] for _, y in batches()]))


def test_a_tied_parameter_is_forgotten_and_merged():
    one = learner(record=True)
    for batch in batches():
        one.update(*batch)
    one.forget(1)
    several = [y[:, 0] for _, y in batches()]
    check(one, np.concatenate([several[0], several[2]]))
    apart = [learner(), learner()]
    for part, batch in zip(apart, batches()):
        part.update(*batch)
    merged = gbp.merge(apart)
    check(merged, np.concatenate(several[:2]))
    merged.update(*batches()[2])
    check(merged, np.concatenate(several))


def test_forgetting_draws_a_tied_parameter_to_the_prior_of_both():
    one = learner(alpha=1.0)
    for batch in batches()[:2]:
        one.update(*batch)
    check(one, batches()[1][1][:, 0])


def test_ties_that_come_and_go_are_refused():
    now = [True]
    one = learner(factors=lambda graph: tie(graph) if now[0] else None)
    one.update(*batches()[0])
    before = bits(*one.posterior.values())
    now[0] = False
    with pytest.raises(ValueError, match="must tie the same parameters"):
        one.update(*batches()[1])
    assert bits(*one.posterior.values()) == before


def test_beliefs_given_to_a_graph_count_once():
    known = gbp.Gaussian.from_moments(mean=np.array([0.4]), std=np.array([0.1]))
    one, batch = net(), net().batch(*batches()[0])
    how = {"inputs": {"factors": tie}}
    for beliefs in ({"a/bias": known, "b/bias": known}, {"b/bias": known}):
        prior = one.graph(batch, beliefs=beliefs, **how).priors()["a/bias"]
        np.testing.assert_allclose([prior.mean, prior.std], [[0.4], [0.1]], rtol=1e-5)
    graph = one.graph(batch, **how)
    assert graph.tied == {"b/bias": "a/bias"}
    np.testing.assert_allclose(graph.priors()["a/bias"].std, KNOWN / 2**0.5, rtol=1e-6)
    other = dataclasses.replace(known, lam=2 * known.lam)
    with pytest.raises(ValueError, match="'a/bias' and 'b/bias' are tied, one variable: two different beliefs"):
        one.graph(batch, beliefs={"a/bias": known, "b/bias": other}, **how)


def test_predictions_before_the_first_batch():
    """The product of both priors is shared by all, whoever asks first."""
    first, second = learner(), learner()
    x = np.zeros((2, 1))
    np.testing.assert_array_equal(first.predict(x).std, second.predict(x).std)
    np.testing.assert_array_equal(learner().uncertainty(x).total, first.uncertainty(x).total)
    assert learner().sample(x).shape == (1, 2, 1)
    np.testing.assert_allclose(first.posterior["a/bias"].std, KNOWN / np.sqrt(2), rtol=1e-6)
