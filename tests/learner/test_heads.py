"""Networks with several heads, against networks of one head, dense solves and each other."""

import copy
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine import chain
from gbplearn.network.vector_activations import VectorActivations, as_vectors, joint_targets, targets_by_head

FLAT = {"sigma": 0.05, "weight_prior": 0.6, "weight_init": 0.0, "bias_prior": 0.4, "prior": 5.0}
# One order whatever stands first, in which there is less to compile than forth and back.
ORDER = "trunk", "logits", "values", "class", "measured"
BOTH = pytest.mark.parametrize("activations", ["scalar", "vector"])


def data(n=24, seed=0):
    """Inputs, classes and values; and which examples each head observes."""
    r = np.random.default_rng(seed)
    x = r.standard_normal((n, 3))
    y = {"class": (x @ r.standard_normal((3, 3))).argmax(1), "measured": x @ r.standard_normal((3, 2))}
    return x, y, {"class": r.random(n) < 0.7, "measured": r.random(n) < 0.6}


def apart(*heads, **more):
    """A layer of its own for each head."""
    nodes = {
        "class": {"logits": (gbp.Dense(3, **FLAT, **more), "input"), "class": gbp.CategoricalObservation()},
        "measured": {"values": (gbp.Dense(2, **FLAT, **more), "input"), "measured": gbp.GaussianObservation(sigma=0.2)},
    }
    return gbp.Network({n: node for head in heads for n, node in nodes[head].items()}, input_shape=(3,))


def trunk(*heads, width=4, **more):
    """One hidden layer for both; a head that stands alone has the same prior means."""
    nodes = {
        "trunk": gbp.Dense(width, "tanh", sigma=0.03, weight_prior=0.7, bias_prior=0.4, prior=5.0, **more),
        "logits": (gbp.Dense(3, **FLAT, **more), "trunk"),
        "values": (gbp.Dense(2, **FLAT, **more), "trunk"),
        "class": (gbp.CategoricalObservation(), "logits"),
        "measured": (gbp.GaussianObservation(sigma=0.2), "values"),
    }
    left_out = {"class": ("class", "logits"), "measured": ("measured", "values")}
    gone = {name for head, names in left_out.items() if head not in heads for name in names}
    return gbp.Network({n: node for n, node in nodes.items() if n not in gone}, input_shape=(3,))


def learner_of(net, activations="vector", **options):
    how = {"activations": activations, "iterations": 400, "tolerance": 1e-6}
    if activations == "scalar":
        nodes = [*(name for name in ORDER if name in net.nodes), *(name for name in net.nodes if name not in ORDER)]
        how |= {"damping": 0.3, "guard": False, "schedule": gbp.Order(*nodes)}
    return gbp.Learner(net, **{**how, **options})


def two_heads(activations="vector", **options):
    return learner_of(trunk("class", "measured"), activations, **options)


def assert_same(beliefs, expected, atol=2e-3):
    """Means in standard deviations, and standard deviations."""
    for name, belief in expected.items():
        mean, std = (np.asarray(a, float) for a in (belief.mean, belief.std))
        np.testing.assert_allclose((np.asarray(beliefs[name].mean) - mean) / std, 0, atol=atol, err_msg=name)
        np.testing.assert_allclose(np.asarray(beliefs[name].std) / std, 1, atol=atol, err_msg=name)


@BOTH
@pytest.mark.parametrize("masked", [False, True])
def test_heads_without_a_layer_in_common_are_two_networks(activations, masked):
    """With labels missing in other examples of each head, or in none."""
    x, y, seen = data()
    both = learner_of(apart("class", "measured"), activations)
    report = both.update(x, y, y_observed=seen if masked else None)
    found = both.predict(x, parameters="random")
    for head in ("class", "measured"):
        one = learner_of(apart(head), activations)
        of_one = one.update(x, y[head], y_observed=seen[head] if masked else None)
        assert_same(both.posterior, one.posterior)
        expected = one.predict(x, parameters="random")
        np.testing.assert_allclose(found[head].mean, expected.mean, atol=2e-3)
        np.testing.assert_allclose(found[head].std, expected.std, rtol=2e-3)
        np.testing.assert_allclose(report.energies[head], of_one.energies[head], rtol=1e-2)
        np.testing.assert_allclose(report.energy_per_factor[head], of_one.energy_per_factor[head], rtol=1e-2)


@pytest.mark.parametrize("activations", [pytest.param("scalar", marks=pytest.mark.slow), "vector"])
def test_their_log_evidence_is_the_sum(activations):
    """Of the batch, and of each example given the parameters."""
    x, y, seen = data()
    how = {"schedule": None} if activations == "scalar" else {}
    both, likely, evidence = learner_of(apart("class", "measured"), activations, **how), 0, 0
    report = both.update(x, y, y_observed=seen, evidence=True)
    for head in ("class", "measured"):
        one = learner_of(apart(head), activations, **how)
        evidence += one.update(x, y[head], y_observed=seen[head], evidence=True).log_evidence
        likely = likely + one.log_evidence(x, y[head], y_observed=seen[head])
    assert report.log_evidence == pytest.approx(evidence, abs=0.1)
    np.testing.assert_allclose(both.log_evidence(x, y, y_observed=seen), likely, atol=0.02)


@BOTH
@pytest.mark.parametrize("head", ["class", "measured"])
def test_a_head_without_targets_is_one_that_is_not_there(activations, head):
    """The trunk and the other head learn what they learn alone; its own layer learns nothing."""
    x, y, seen = data()
    one = learner_of(trunk(head), activations)
    one.update(x, y[head], y_observed=seen[head])
    other = "measured" if head == "class" else "class"
    left_out = {"y": {head: y[head]}, "y_observed": {head: seen[head]}}
    nothing = np.zeros(len(x), bool)
    for given in (left_out, {"y": y, "y_observed": {head: seen[head], other: nothing}}):
        both = two_heads(activations)
        before = both.posterior
        report = both.update(x, **given)
        assert report.accepted
        assert other not in report.energy_per_factor
        assert_same(both.posterior, one.posterior, atol=5e-3)
        layer = "logits" if other == "class" else "values"
        own = {name: belief for name, belief in before.items() if name.startswith(layer)}
        assert own
        assert_same(both.posterior, own, atol=1e-5)


NOISE = {"first": 0.2, "again": 0.4, "rest": 0.3}


def linear(activations, **options):
    """A linear layer of three units: two heads observe the first one, and another head the other two."""
    part = {"sigma": 0.05, "prior": 1e4}
    how = {"sigma": 0.1, "weight_prior": 1.3, "bias_prior": 0.7, "weight_init": 0.0, "prior": 1e4}
    nodes = {
        "all": gbp.Dense(3, **how, posterior="block"),
        "left": (gbp.Part(0, 1, **part), "all"),
        "right": (gbp.Part(1, 3, **part), "all"),
        "rest": gbp.GaussianObservation(sigma=NOISE["rest"]),
        "first": (gbp.GaussianObservation(sigma=NOISE["first"]), "left"),
        "again": (gbp.GaussianObservation(sigma=NOISE["again"]), "left"),
    }
    more = {"damping": 0.0} if activations == "scalar" else {}
    return learner_of(gbp.Network(nodes, input_shape=(4,)), activations, **{"tolerance": 1e-9, **more, **options})


def measurements(n=15):
    r = np.random.default_rng(1)
    y = {"first": r.standard_normal(n), "again": r.standard_normal(n), "rest": r.standard_normal((n, 2))}
    return r.standard_normal((n, 4)), y, {name: r.random(values.shape) < 0.7 for name, values in y.items()}


@BOTH
def test_heads_that_observe_the_same_numbers_are_a_dense_solve(activations, x64):
    """Means and covariances in float64; what is missing of each head is missing in other examples."""
    (x, y, seen), learner = measurements(), linear(activations, dtype="float64")
    learner.update(x, y, y_observed=seen)
    belief, rows, prior = learner.posterior["all/parameters"], np.c_[x, np.ones(15)], np.diag([1.3**2] * 4 + [0.7**2])
    for unit in range(3):
        heads = ("first", "again") if unit == 0 else ("rest",)
        column = max(0, unit - 1)
        masks = [seen[n].reshape(15, -1)[:, column] for n in heads]
        values = np.concatenate([y[n].reshape(15, -1)[mask, column] for n, mask in zip(heads, masks)])
        h = np.concatenate([np.eye(15)[mask] for mask in masks])
        s = h @ (rows @ prior @ rows.T + (0.1**2 + 0.05**2) * np.eye(15)) @ h.T
        s += np.diag(np.concatenate([np.full(mask.sum(), NOISE[n] ** 2) for n, mask in zip(heads, masks)]))
        gain = prior @ rows.T @ h.T @ np.linalg.inv(s)
        np.testing.assert_allclose(belief.mean[unit], gain @ values, atol=1e-6)
        np.testing.assert_allclose(belief.covariance[unit], prior - gain @ h @ rows @ prior, atol=1e-6)


@BOTH
def test_evidence_of_two_heads_of_one_number_is_that_of_a_dense_solve(activations):
    """Each observes some of the examples, one observes an example twice."""
    x, y = np.array([[0.5], [-1.0], [2.0]]), {"first": np.array([1.0, 0.5, -0.5]), "again": np.array([1.1, -0.3, 0.0])}
    seen = {"first": np.array([True, True, False]), "again": np.array([True, False, True])}
    nodes = {
        "all": gbp.Dense(1, sigma=0.1, weight_prior=1.3, bias_prior=0.7, weight_init=0.0, prior=1e3, posterior="block"),
        "first": gbp.GaussianObservation(sigma=NOISE["first"]),
        "again": (gbp.GaussianObservation(sigma=NOISE["again"]), "all"),
    }
    how = {"schedule": None, "damping": 0.0, "iterations": 30} if activations == "scalar" else {}
    learner = learner_of(gbp.Network(nodes, input_shape=(1,)), activations, **how)
    found = learner.update(x, y, y_observed=seen, evidence=True).log_evidence
    h = np.concatenate([np.eye(3)[mask] for mask in seen.values()])
    s = h @ (1.3**2 * x @ x.T + 0.7**2 + 0.1**2 * np.eye(3)) @ h.T + np.diag([NOISE["first"] ** 2] * 2 + [0.4**2] * 2)
    values = np.concatenate([y[name][mask] for name, mask in seen.items()])
    expected = -0.5 * (values @ np.linalg.solve(s, values) + np.linalg.slogdet(2 * np.pi * s)[1])
    assert found == pytest.approx(expected, abs=2e-3)


@BOTH
def test_an_example_of_weight_two_is_two(activations):
    (x, y, seen), twice, double = measurements(12), linear(activations), linear(activations)

    def two(of):
        return {name: np.r_[a, a] for name, a in of.items()}

    twice.update(np.r_[x, x], two(y), y_observed=two(seen))
    double.update(x, y, y_observed=seen, sample_weight=np.full(12, 2.0))
    assert_same(twice.posterior, double.posterior, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["class", "measured"])
def test_evidence_of_a_generative_network_does_not_count_a_head_without_targets(head):
    """Of inputs and targets together: what it is in the network without that head."""

    def network(*heads):
        nodes = {"code": (gbp.Dense(2, direction="generative", sigma=0.3, weight_prior=0.7), "input")}
        if "class" in heads:
            nodes |= {"logits": (gbp.Dense(3, **FLAT), "code"), "class": gbp.CategoricalObservation()}
        if "measured" in heads:
            nodes |= {"values": (gbp.Dense(2, **FLAT), "code"), "measured": gbp.GaussianObservation(sigma=0.3)}
        return gbp.Learner(gbp.Network(nodes, input_shape=(3,)), activations="scalar", tolerance=1e-5)

    x, y, _ = data(8)
    found = network("class", "measured").update(x, {head: y[head]}, evidence=True).log_evidence
    assert found == pytest.approx(network(head).update(x, y[head], evidence=True).log_evidence, abs=0.05)


def plain(means, x):
    """The outputs of both heads side by side, and the hidden layer, for one example."""
    hidden = jnp.tanh(means["trunk"] @ jnp.append(x, 1.0))
    return jnp.concatenate([means[name] @ jnp.append(hidden, 1.0) for name in ("logits", "values")]), hidden


@pytest.mark.parametrize("posterior", ["block", "diagonal"])
def test_a_joint_update_of_classes_and_values_is_a_dense_solve(posterior):
    """With the class likelihood expanded where both have led: one Gaussian over all parameters, in NumPy.

    A third of the labels of each head is missing, in other examples.
    """
    net, (x, y, seen) = trunk("class", "measured", posterior=posterior), data(12)
    vectors, batch = VectorActivations(net, (3,), np.float32), net.batch(x, y, y_observed=seen)
    priors = net.priors(seed=3)
    result = vectors.learn(batch, priors, 200, 1e-6)
    before, after = (as_vectors(b, vectors.links, np.float32) for b in (priors, result))
    means = {n: jnp.asarray(b.mean, jnp.float32) for n, b in before.items()}

    outputs = jax.vmap(lambda i: plain(means, i)[0])(x).astype(float)
    jacobians = jax.jacrev(lambda m: jax.vmap(lambda i: plain(m, i)[0])(x))(means)
    j = np.concatenate([np.asarray(jacobians[n], float).reshape(12 * 5, -1) for n in means], 1)
    p = np.diag(np.concatenate([np.asarray(before[n].variance, float).ravel() for n in means]))
    above = np.concatenate([np.asarray(means[n])[:, :-1] for n in ("logits", "values")]).astype(float)
    s = j @ p @ j.T + np.kron(np.eye(12), 0.03**2 * above @ above.T + 0.05**2 * np.eye(5))

    found_mean, found_variance = (
        np.concatenate([np.asarray(getattr(result[n], of), float) for n in ("logits", "values")], 1)
        for of in ("mean", "variance")
    )
    expanded, gradient = joint_targets(targets_by_head(net, batch, np.float32)).expand(found_mean, found_variance)
    there = np.concatenate([np.repeat(seen[n][:, None], k, 1) for n, k in (("class", 3), ("measured", 2))], 1)
    d, e = np.zeros((60, 60)), (gradient + np.einsum("bcd,bd->bc", expanded, found_mean)).ravel()
    for b in range(12):  # of what is observed, the prior of the outputs is one more measurement of each
        d[5 * b : 5 * b + 5, 5 * b : 5 * b + 5] = expanded[b] + np.diag(there[b] / 5.0**2)
    assert not expanded[~there].any()

    z, eye = np.asarray(outputs, float).ravel(), np.eye(60)
    moved = p @ j.T @ np.linalg.solve(eye + d @ s, e - d @ z)
    covariance = p - p @ j.T @ np.linalg.solve(eye + d @ s, d) @ j @ p
    np.testing.assert_allclose(found_mean.ravel(), z + s @ np.linalg.solve(eye + d @ s, e - d @ z), atol=2e-4)
    of_outputs = np.diag(s - s @ np.linalg.solve(eye + d @ s, d) @ s)
    np.testing.assert_allclose(found_variance.ravel(), of_outputs, rtol=2e-3)
    start = 0
    for name, prior in before.items():
        units, k = prior.mean.shape
        mean = np.asarray(prior.mean, float).ravel() + moved[start : start + units * k]
        np.testing.assert_allclose(np.asarray(after[name].mean).ravel(), mean, atol=3e-4)
        for unit in range(units):
            of = slice(start + unit * k, start + (unit + 1) * k)
            if posterior == "block":
                np.testing.assert_allclose(after[name].covariance[unit], covariance[of, of], atol=2e-4)
            else:
                np.testing.assert_allclose(after[name].variance[unit], np.diag(covariance)[of], rtol=3e-3)
        start += units * k


def test_one_covariance_for_the_units_of_classes_is_that_of_their_contrasts():
    """Beside a head of values too: the mean over directions in which the units' weights add up to 0; else over all."""
    net, (x, y, _) = trunk("class", "measured", posterior="shared"), data(12)
    vectors, batch = VectorActivations(net, (3,), np.float32), net.batch(x, y)
    beliefs = as_vectors(net.priors(seed=3), vectors.links, np.float32)
    targets = joint_targets(targets_by_head(net, batch, np.float32))
    held, ones = np.full((12, 5), 5.0**-2), np.ones(12)
    found = chain.update(vectors.links, beliefs, jnp.asarray(x, jnp.float32), targets, held, ones, 200, 1e-6)
    gain = found.conditioned.joint.gain()
    linear = chain.linearise(vectors.links, {n: b.mean for n, b in beliefs.items()}, jnp.asarray(x, jnp.float32))
    for name in ("logits", "values"):
        belief, of = beliefs[name], linear.sensitivities[name]
        units, p = belief.mean.shape
        j = np.einsum("bcu,bp->bcup", np.asarray(of.slopes, float), np.asarray(of.rows, float)).reshape(60, -1)
        wide = np.kron(np.eye(units), np.asarray(belief.covariance[0], float))
        posterior = (wide - wide @ j.T @ gain @ j @ wide).reshape(units, p, units, p)
        directions = np.linalg.eigh(np.eye(units) - 1 / units)[1][:, 1:] if name == "logits" else np.eye(units)
        expected = np.einsum("uk,upvq,vk->pq", directions, posterior, directions) / directions.shape[1]
        np.testing.assert_allclose(found.beliefs[name].covariance[0], expected, atol=1e-5 * expected.max())


@BOTH
def test_the_order_of_heads_does_not_matter(activations):
    x, y, seen = data()
    learnt = []
    for order in itertools.islice(itertools.permutations(["logits", "values", "class", "measured"]), 0, 24, 11):
        nodes, given = trunk("class", "measured").nodes, {}
        for name in ("trunk", *order):
            layers = {"class": "logits", "measured": "values"}
            if layers.get(name) not in (None, *given):  # its layer stands before it
                given[layers[name]] = nodes[layers[name]]
            given[name] = nodes[name]
        learner = learner_of(gbp.Network(given, input_shape=(3,)), activations)
        learner.update(x, dict(reversed(y.items())), y_observed=seen)
        learnt.append((dict(learner.posterior), learner.predict(x)))
    for posterior, predicted in learnt[1:]:
        assert_same(posterior, learnt[0][0])
        for head, belief in predicted.items():
            np.testing.assert_allclose(belief.mean, learnt[0][1][head].mean, atol=2e-3)


@BOTH
def test_all_that_is_asked_of_heads(activations):
    """Each answer by head is what one head, or the variable, gives."""
    x, y, _ = data()
    learner = two_heads(activations)
    assert list(learner.net.heads) == ["class", "measured"]
    report = learner.update(x, y, want="measured")
    assert report.belief.shape == (24, 2)
    found = learner.predict(x)
    assert list(found) == ["class", "measured"]
    for head, node in (("class", "logits"), ("measured", "values")):
        for want in (head, node):
            np.testing.assert_array_equal(learner.query(want, x=x).mean, found[head].mean)
    np.testing.assert_allclose(learner.predict_proba(x), learner.net.probabilities(found["class"]), atol=1e-6)
    np.testing.assert_array_equal(learner.predict_proba(x, head="class"), learner.predict_proba(x))
    means = {n: np.asarray(b.mean) for n, b in learner.posterior.items()}
    forward, straight = learner.forward(x), learner.net.forward(x, means)
    np.testing.assert_array_equal(forward["class"], straight["logits"])
    np.testing.assert_array_equal(forward["measured"], straight["values"])

    if activations == "scalar":
        how = {"iterations": 5, "tolerance": 0.0, "damping": 0.0, "guard": False}
        np.testing.assert_allclose(
            learner.net.predict(x, learner.posterior, **how)["measured"].mean, found["measured"].mean, atol=1e-4
        )
    parts, wide = learner.uncertainty(x), learner.predict(x, parameters="random")
    assert parts["class"].entropy is not None
    assert parts["measured"].entropy is None
    np.testing.assert_allclose(parts["measured"].total ** 2, wide["measured"].variance + 0.2**2, rtol=1e-4)
    np.testing.assert_allclose(parts["class"].total ** 2, wide["class"].variance, rtol=1e-4)
    drawn = learner.sample(x, 4000, parameters="random")
    np.testing.assert_allclose(drawn["measured"].std(0), parts["measured"].total, rtol=0.1)
    p = learner.predict_proba(x, parameters="random")
    np.testing.assert_allclose((drawn["class"] == 1).mean(0), p[:, 1], atol=0.04)


def test_evidence_of_an_example_adds_up():
    """With known parameters, of values the density and of classes the probability; of what is observed."""
    x, y, seen = data()
    learner = two_heads("vector")
    learner.update(x, y)
    found, p = learner.predict(x)["measured"], np.asarray(learner.predict_proba(x))
    total = np.asarray(found.variance) + 0.2**2
    density = -0.5 * ((y["measured"] - found.mean) ** 2 / total + np.log(2 * np.pi * total)).sum(1)
    expected = np.where(seen["measured"], density, 0) + np.where(seen["class"], np.log(p)[np.arange(24), y["class"]], 0)
    np.testing.assert_allclose(learner.log_evidence(x, y, y_observed=seen), expected, atol=1e-3)


@BOTH
def test_streams_files_and_copies(activations, tmp_path):
    """Batches with targets by head; forgetting, merging, saving and copying as with one head."""
    x, y, seen = data()
    learner = two_heads(activations, record=True, iterations=30, tolerance=1e-3)
    rows = [slice(0, 12), slice(12, 24)]
    batches = [
        {"x": x[r], "y": {n: a[r] for n, a in y.items()}, "y_observed": {n: a[r] for n, a in seen.items()}}
        for r in rows
    ]
    learner.fit(batches[:1])
    first = learner.posterior
    learner.fit([(batches[1]["x"], batches[1]["y"])])
    learner.save(tmp_path / "heads.safetensors")
    again = gbp.Learner.load(tmp_path / "heads.safetensors")
    assert again.net.nodes == learner.net.nodes
    for other in (again, copy.copy(learner), pickle.loads(pickle.dumps(learner))):
        for head, belief in learner.predict(x).items():
            np.testing.assert_array_equal(other.predict(x)[head].mean, belief.mean)
        other.forget(1)
        for name, belief in other.posterior.items():
            np.testing.assert_array_equal(belief.mean, first[name].mean)
    workers = [two_heads(activations, iterations=30, tolerance=1e-3) for _ in batches]
    for worker, batch in zip(workers, batches):
        worker.update(**batch)
    assert gbp.merge(workers).batches == 2
    assert set(gbp.merge(workers).predict(x)) == {"class", "measured"}


def test_it_is_printed_drawn_counted_and_exported(tmp_path):
    net = trunk("class", "measured")
    assert [line.split()[0] for line in str(net).splitlines()[2:-2]] == list(net.nodes)
    net.draw(tmp_path / "net.svg")
    assert all(f">{name}" in (tmp_path / "net.svg").read_text() for name in net.nodes)
    assert net.memory(10)["auto"] > trunk("class").memory(10)["auto"]
    learner, (x, y, _) = gbp.Learner(net), data()
    assert learner.activations == "vector"
    learner.update(x, y)
    call = gbp.forward_function(learner, probabilities=True)(x)
    np.testing.assert_allclose(call["class"], jax.nn.softmax(learner.forward(x)["class"]), atol=1e-6)
    np.testing.assert_allclose(call["measured"], learner.forward(x)["measured"], atol=1e-6)


def test_what_auto_stands_for():
    """Vectors where every head can have them and one observes classes; the last layer of each head is a last layer."""
    learner = gbp.Learner(
        gbp.Network(
            {
                "trunk": gbp.Dense(8, "leaky_relu"),
                "logits": gbp.Dense(3),
                "values": (gbp.Dense(2), "trunk"),
                "class": (gbp.CategoricalObservation(), "logits"),
                "measured": (gbp.GaussianObservation(), "values"),
                "of_trunk": (gbp.GaussianObservation(sigma=1.0), "trunk"),
            },
            input_shape=(3,),
        )
    )
    assert learner.activations == "vector"
    families = {n: node[0].posterior for n, node in learner.net.nodes.items() if hasattr(node[0], "posterior")}
    assert families == {"trunk": "rotated", "logits": "shared", "values": "shared"}
    assert not np.any(learner.posterior["values/parameters"].mean)
    assert np.any(learner.posterior["trunk/parameters"].mean)

    def chosen(**heads):
        nodes = {"trunk": gbp.Dense(4), "logits": gbp.Dense(3), "values": (gbp.Dense(2), "trunk")}
        net = gbp.Network({**nodes, **{n: (layer, node) for n, (layer, node) in heads.items()}}, input_shape=(3,))
        return gbp.Learner(net).activations

    values = gbp.GaussianObservation(sigma=0.1), "values"
    assert chosen(a=(gbp.CategoricalObservation(), "logits"), b=values) == "vector"
    assert chosen(a=(gbp.GaussianObservation(sigma=0.1), "logits"), b=values) == "scalar"
    assert chosen(a=(gbp.SoftmaxObservation(), "logits"), b=values) == "scalar"
    learnt = gbp.GaussianObservation(sigma="learn"), "values"
    assert chosen(a=(gbp.CategoricalObservation(), "logits"), b=learnt) == "scalar"


def test_noise_of_each_head_is_learnt():
    """Two measurements of one line, of different quality; one head learns its noise from fewer examples."""
    r = np.random.default_rng(0)
    x = r.uniform(-1, 1, (200, 1))
    y = {"fine": 2 * x + 0.1 * r.standard_normal((200, 1)), "coarse": 2 * x + 0.5 * r.standard_normal((200, 1))}
    net = gbp.Network(
        {
            "line": gbp.Dense(1, sigma=0.01, weight_prior=2.0, bias_prior=1.0, prior=10.0),
            "fine": (gbp.GaussianObservation(sigma="learn"), "line"),
            "coarse": (gbp.GaussianObservation(sigma="learn"), "line"),
        },
        input_shape=(1,),
    )
    learner = gbp.Learner(net, iterations=100)
    there = np.arange(200) < 150
    for rows in (slice(0, 100), slice(100, 200)):
        given = {n: a[rows] for n, a in y.items()}
        report = learner.update(x[rows], given, y_observed={"coarse": there[rows]})
        assert report.accepted
    fine, coarse = y["fine"] - 2 * x, (y["coarse"] - 2 * x)[there]
    assert learner.noise["fine"].start == pytest.approx(fine.std(), rel=0.1)
    assert learner.noise["coarse"].start == pytest.approx(coarse.std(), rel=0.1)
    assert learner.noise["fine"].weight - learner.noise["coarse"].weight == pytest.approx(50)
    before = learner.noise["coarse"].start
    assert learner.update(x, {"fine": y["fine"]}).accepted  # no measurement of the other one
    assert learner.noise["coarse"].start == pytest.approx(before, rel=0.02)


def test_an_unusual_target_of_any_head_is_found():
    x, y, _ = data(40)
    learner = two_heads(iterations=10)
    learner.update(x, y)
    report = learner.update(x, {**y, "measured": 1e6 * y["measured"]})
    assert report.status is gbp.Status.UNUSUAL
    assert "the largest target" in report.message


X, Y, SEEN = data(4)
REFUSED = {
    "no such head": (lambda s: s.update(X, {**Y, "size": Y["class"]}), "y: the network has no head 'size' .it has"),
    "no such mask": (lambda s: s.update(X, Y, y_observed={"size": SEEN["class"]}), "y_observed: the network has no"),
    "an array": (lambda s: s.update(X, Y["class"]), "y must be given by head, as a mapping: the network has 'class', "),
    "one mask": (lambda s: s.update(X, Y, y_observed=SEEN["class"]), "y_observed must be given by head"),
    "a mask alone": (
        lambda s: s.update(X, {"class": Y["class"]}, y_observed=SEEN),
        "y_observed needs y: that of 'measured' is missing",
    ),
    "no target at all": (lambda s: s.update(X), "update needs y"),
    "a wrong shape": (lambda s: s.update(X, {**Y, "measured": Y["measured"][:, :1]}), "layer 'measured': observed"),
    "the output": (lambda s: s.query(x=X), "want must be one of trunk, logits, values, class, measured, input"),
    "output": (lambda s: s.net.output, "the network has several outputs: name one of 'class', 'measured'"),
    "no probabilities": (lambda s: s.predict_proba(X, head="measured"), "predict_proba needs a network that observes"),
    "probabilities of none": (lambda s: s.predict_proba(X, head="size"), "the network has no head 'size'"),
    "nothing": (lambda s: s.query("class", y={}), "query needs x or y"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(name):
    call, text = REFUSED[name]
    learner = two_heads("scalar")
    before = learner.posterior
    with pytest.raises(ValueError, match=text):
        call(learner)
    assert sum(learner.posterior.diff(before).values()) == 0


def network(**nodes):
    return gbp.Network({"a": gbp.Dense(3), "b": (gbp.Dense(2), "input"), **nodes}, input_shape=(4,))


def test_networks_that_are_refused():
    classes, values = gbp.CategoricalObservation(), gbp.GaussianObservation(sigma=0.1)
    with pytest.raises(ValueError, match=r"no head \('one', 'two'\) depends on 'b': leave it out"):
        network(one=(classes, "a"), two=(values, "a"))
    with pytest.raises(ValueError, match="'two' observes the input: of several observations that one stands first"):
        network(one=(classes, "a"), other=(values, "b"), two=(values, "input"))
    learnt = network(one=(classes, "a"), two=(gbp.GaussianObservation(sigma="learn"), "b"))
    with pytest.raises(ValueError, match="of several heads the noise must be given, that of 'two' is not"):
        gbp.Learner(learnt, activations="vector")
    with pytest.raises(ValueError, match="several heads that observe classes"):
        gbp.Learner(network(one=(classes, "a"), two=(classes, "b"))).predict_proba(X)
    with pytest.raises(ValueError, match=r"an observation stands first \(of the input\) or last"):
        gbp.Sequential(gbp.Dense(3), values, gbp.Dense(2), classes)
    nodes = {"image": gbp.Conv2D(1, kernel=2), "logits": gbp.Dense(2), "one": classes, "two": (values, "image")}
    images = gbp.Network(nodes, input_shape=(4, 4, 1))
    with pytest.raises(ValueError, match="vector activations: what 'two' observes must have outputs"):
        gbp.Learner(images, activations="vector")
