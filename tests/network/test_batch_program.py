"""Programs of a network: the numbers of a batch, put straight into them, are those of the graph of that batch."""

import dataclasses

import jax
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine.program import program_of
from gbplearn.network.batch import Batch
from gbplearn.network.batch_program import BatchProgram, kind_of

RNG = np.random.default_rng(0)
HOW = {"sigma": 0.1, "weight_prior": 0.8, "bias_prior": 0.5, "prior": 4.0}


def classes():
    return gbp.Sequential(
        gbp.Dense(3, activation="tanh", **HOW), gbp.Dense(2, **HOW), gbp.SoftmaxObservation(sigma=0.2), input_shape=(2,)
    )


def values(head, *first):
    return gbp.Sequential(*first, gbp.Dense(2, **HOW), head, input_shape=(3,))


def filters():
    layers = gbp.Conv2D(2, kernel=2, weight_start=0.3, weight_init=0.0), gbp.MaxPool2D(2), gbp.Dense(2, **HOW)
    return gbp.Sequential(*layers, gbp.SoftmaxObservation(), input_shape=(3, 3, 1))


def smooth():
    layers = gbp.GaussianObservation(sigma=0.1), gbp.PairwiseSmoothing(sigma=0.2, robust=gbp.Tukey(2.0))
    return gbp.Sequential(*layers, input_shape=(4, 3, 1))


def generative():
    layers = gbp.GaussianObservation(sigma=0.3, robust=gbp.Tukey(3.0)), gbp.ConvTranspose2D(2, kernel=2, sigma=0.1)
    return gbp.Sequential(*layers, input_shape=(4, 4, 1))


def batches(net, size=4, **more):
    """Two of one kind, with different numbers."""
    shape = (size, *net.input_shape)
    for _ in range(2):
        x = RNG.standard_normal(shape)
        targets = {}
        if net.head is not None:
            last = isinstance(net.layers[-1], gbp.SoftmaxObservation)
            targets["y"] = RNG.integers(0, 2, size) if last else RNG.standard_normal((size, 2))
        yield net.batch(x, **targets, **{name: make(shape) for name, make in more.items()})


def some(shape):
    mask = RNG.random(shape) < 0.7
    mask.flat[:2] = True, False
    return mask


def rows(shape):
    return np.array([True, False, *(RNG.random(shape[0] - 2) < 0.5)])


def weights(shape):
    return RNG.uniform(0.5, 2.0, shape[0])


def beliefs_of(shape):
    return gbp.Gaussian.from_moments(RNG.standard_normal(shape), RNG.uniform(0.5, 1.0, shape))


HEAD = gbp.GaussianObservation(sigma=0.2)
LEARN = {"gaussian": gbp.LearnNoise(0.3, 5.0)}
# A network, what is given of a batch, how the graph is made, whether it is padded.
KINDS = {
    "classes": (classes(), {}, {}, False),
    "padded": (classes(), {}, {}, True),
    "labels missing": (classes(), {"y_observed": rows}, {}, False),
    "labels missing, padded": (classes(), {"y_observed": rows}, {"inputs": {"only_evidence": True}}, True),
    "weights": (classes(), {"sample_weight": weights}, {}, False),
    "weights, padded": (classes(), {"sample_weight": weights}, {}, True),
    "inputs missing": (classes(), {"x_observed": some}, {}, True),
    "inputs held": (classes(), {"x_observed": some, "x_prior": beliefs_of}, {}, True),
    "inputs with noise": (classes(), {}, {"inputs": {"input_sigma": 0.3}}, False),
    "inputs with noise, missing": (classes(), {"x_observed": some}, {"inputs": {"input_sigma": 0.3}}, False),
    "starts": (filters(), {}, {}, False),
    "fixed": (classes(), {}, {"parameters": "fixed"}, True),
    "random": (classes(), {}, {"parameters": "random"}, False),
    "values": (values(gbp.GaussianObservation(sigma=0.2)), {}, {}, False),
    "values missing": (
        values(gbp.GaussianObservation(sigma=0.2)),
        {"y_observed": lambda s: some((s[0], 2))},
        {},
        False,
    ),
    "robust": (values(gbp.GaussianObservation(sigma=0.2, robust=gbp.Huber(2.0))), {}, {}, False),
    "noise learnt": (values(gbp.GaussianObservation("learn")), {}, {"parameters": "fixed", "noise": LEARN}, True),
    "noise given": (values(gbp.GaussianObservation("learn")), {}, {"noise": {"gaussian": 0.25}}, False),
    "observed inputs": (
        values(gbp.GaussianObservation(), gbp.GaussianObservation(0.1, name="measured")),
        {},
        {},
        False,
    ),
    "relations": (smooth(), {}, {}, False),
    "relations, missing": (smooth(), {"x_observed": some}, {}, True),
    "generative": (generative(), {}, {}, False),
    "generative, missing": (generative(), {"x_observed": some}, {}, False),
}


def program_and_data(net, first: Batch, second: Batch, how):
    """Of the program that was made of the first batch, with the numbers of the second."""
    how = {"parameters": "learnt", "noise": None, "inputs": None, **how}
    made = net.graph(first, **how, seed=1, beliefs=net.priors(seed=3))
    order = [how["parameters"], net.priors(seed=5), None, how["noise"], how["inputs"], 2]
    kinds = [kind_of(net._plan(b, *order)[0], b, how["parameters"], "per-edge", None) for b in (first, second)]
    assert kinds[0] == kinds[1]
    known = BatchProgram(made, net._plan(first, *order)[0], "per-edge")
    plan, starts = net._plan(second, *order)
    if known.holds_input:
        starts = {**net.forward(second.x, {n: p.mean for n, p in plan.priors.items()}), **starts}
    expected = net.graph(second, **how, seed=2, beliefs=net.priors(seed=5))
    return known.program, known.data(plan, second, starts), expected


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_batch_are_those_of_its_graph(kind):
    net, given, how, padded = KINDS[kind]
    first, second = (b.padded(6) if padded else b for b in batches(net, **given))
    program, data, graph = program_and_data(net, first, second, how)
    found, expected = jax.tree.map(np.asarray, program.problem(data)), graph.problem(None, "per-edge")
    assert program == program_of(graph, expected, program.derive)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert a.shape == np.shape(b)
        assert a.dtype == np.asarray(b).dtype or np.ndim(b) == 0
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_a_second_batch_lays_nothing_out(monkeypatch):
    net = classes()
    first, second = batches(net)
    prior = net.priors()
    one = net.infer(first, beliefs=prior, iterations=2, guard=False)
    made = []
    monkeypatch.setattr(net, "graph", lambda *args, **how: made.append(how) or gbp.Sequential.graph(net, *args, **how))
    two = net.infer(second, beliefs=prior, iterations=2, guard=False)
    assert not made
    again = gbp.infer(gbp.Sequential.graph(net, second, beliefs=prior), iterations=2, guard=False)
    assert one.iterations == two.iterations == again.iterations
    for name in again:
        np.testing.assert_allclose(two[name].mean, again[name].mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(two[name].lam, again[name].lam, rtol=1e-5)
    assert two.log_evidence == pytest.approx(again.log_evidence, rel=1e-5)  # it asks for the graph
    assert len(made) == 1


def test_equal_networks_share_their_programs():
    one, other = classes(), classes()
    batch, _ = batches(one)
    first = [net.infer(batch, beliefs=one.priors(), iterations=1, guard=False) for net in (one, other)]
    programs = [next(iter(net._programs.values())).program for net in (one, other)]
    assert programs[0] == programs[1]
    assert hash(programs[0]) == hash(programs[1])
    np.testing.assert_array_equal(first[0]["dense"].mean, first[1]["dense"].mean)
    wider = dataclasses.replace(one.layers[0], sigma=0.2)
    changed = gbp.Sequential(wider, *one.layers[1:], input_shape=(2,))
    changed.infer(batch, beliefs=one.priors(), iterations=1, guard=False)
    assert next(iter(changed._programs.values())).program.derive != programs[0].derive
