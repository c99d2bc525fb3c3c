"""Joint updates (`engine/chain.py`): derivatives against JAX's own, updates against dense solves, the rest at rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.core.sensitivity import FullSensitivity, RowSensitivity
from gbplearn.core.vector import VectorGaussian
from gbplearn.engine import chain
from gbplearn.native import Build
from gbplearn.network.vector_activations import VectorActivations, as_vectors, targets_of

SHAPE = (6, 6, 2)


def network(**more):
    """Every kind of link: a convolution, pooling by maximum and by mean, a hidden layer, outputs."""
    return gbp.Sequential(
        gbp.Conv2D(3, kernel=3, activation="leaky_relu", sigma=0.02, weight_prior=0.4, bias_prior=0.3, **more),
        gbp.MaxPool2D(2, sigma=0.03),
        gbp.Dense(5, activation="tanh", sigma=0.05, weight_prior=0.5, bias_prior=0.2, **more),
        gbp.Dense(3, sigma=0.04, weight_prior=0.6, bias_prior=0.2, prior=5.0, **more),
        gbp.GaussianObservation(sigma=0.3),
        input_shape=SHAPE,
    )


def images(n=4, seed=0):
    r = np.random.default_rng(seed)
    return r.standard_normal((n, *SHAPE)).astype(np.float32), r.standard_normal((n, 3)).astype(np.float32)


def prepared(net):
    links = VectorActivations(net, net.input_shape, np.float32).links
    return links, as_vectors(net.priors(), links, np.float32)


def forward(net, links, means, x):
    for link in links:
        x = link.outputs([x], means)
    return x


@pytest.mark.parametrize("posterior", ["diagonal", "block", "shared"])
def test_outputs_are_those_of_a_forward_pass(posterior):
    net, (x, _) = network(posterior=posterior), images()
    links, beliefs = prepared(net)
    found = chain.linearise(links, {n: b.mean for n, b in beliefs.items()}, jnp.asarray(x)).outputs
    expected = net.forward(x, {n: p.mean for n, p in net.priors().items()})[net.output]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("build", [Build.BEST, Build.NONE])
def test_sensitivities_are_derivatives(build):
    """Against JAX's own of the whole network; conv and dense keep them in different forms."""
    net, (x, _) = network(posterior="block"), images()
    links, beliefs = prepared(net)
    means = {n: b.mean for n, b in beliefs.items()}
    with gbp.native.using(build):
        found = chain.linearise(links, means, jnp.asarray(x)).sensitivities
    expected = jax.jacrev(lambda m: forward(net, links, m, jnp.asarray(x)))(means)
    assert isinstance(found["conv"], FullSensitivity)
    assert isinstance(found["dense"], RowSensitivity)
    for name, of in found.items():
        j = (
            of.each
            if isinstance(of, FullSensitivity)
            else np.einsum("bcu,bp->bcup", np.asarray(of.slopes), np.asarray(of.rows))
        )
        np.testing.assert_allclose(j, expected[name], atol=2e-5)


def test_noise_of_the_layers_comes_up():
    """`R = sum sigma² G G'`, with `G` by JAX's derivatives of the part of the network above each layer."""
    net, (x, _) = network(posterior="block"), images()
    links, beliefs = prepared(net)
    means = {n: b.mean for n, b in beliefs.items()}
    found, now = np.asarray(chain.linearise(links, means, jnp.asarray(x)).noise), jnp.asarray(x)
    expected = np.zeros_like(found)
    for i, link in enumerate(links):
        now = link.outputs([now], means)
        g = np.asarray(jax.vmap(jax.jacrev(lambda h, i=i: forward(net, links[i + 1 :], means, h[None])[0]))(now))
        g = g.reshape(*g.shape[:2], -1)
        expected += (0.02, 0.03, 0.05, 0.04)[i] ** 2 * np.einsum("bci,bdi->bcd", g, g)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


def dense_update(net, links, beliefs, x, y):
    """A Kalman filter with all parameters in one vector, in NumPy: means, and the covariance of all."""
    means = {n: b.mean for n, b in beliefs.items()}
    names = list(means)
    jacobians = jax.jacrev(lambda m: forward(net, links, m, jnp.asarray(x)))(means)
    j = np.concatenate([np.asarray(jacobians[n], float).reshape(y.size, -1) for n in names], 1)
    m = np.concatenate([np.asarray(means[n], float).ravel() for n in names])
    p = np.diag(np.concatenate([np.asarray(beliefs[n].variance, float).ravel() for n in names]))
    linear = chain.linearise(links, means, jnp.asarray(x))
    z, classes = np.asarray(linear.outputs, float).ravel(), y.shape[1]
    s = j @ p @ j.T
    for b, r in enumerate(np.asarray(linear.noise, float)):
        s[b * classes : (b + 1) * classes, b * classes : (b + 1) * classes] += r
    # The prior of the outputs is one more measurement of each, of 0.
    precision = 1 / 0.3**2 + 1 / 5.0**2
    target = (y.ravel() / 0.3**2) / precision
    gain = p @ j.T @ np.linalg.inv(s + np.eye(len(z)) / precision)
    sizes = np.cumsum([means[n].size for n in names])[:-1]
    return dict(zip(names, np.split(m + gain @ (target - z), sizes))), p - gain @ j @ p, names, sizes


@pytest.mark.parametrize("posterior", ["diagonal", "block", "shared"])
def test_an_update_is_a_dense_solve(posterior):
    """Means of all parameters; of covariances what the family keeps."""
    net, (x, y) = network(posterior=posterior), images()
    links, beliefs = prepared(net)
    batch = net.batch(x, y)
    targets, ones = targets_of(net, batch, np.float32), np.ones(len(x))
    held = np.full(len(x), 5.0**-2)
    found = chain.update(links, beliefs, jnp.asarray(x), targets, held, ones, 10, 1e-3)
    assert found.beliefs is not None
    assert found.shortened == 0
    means, covariance, names, sizes = dense_update(net, links, beliefs, x, y)
    starts = dict(zip(names, [0, *sizes]))
    for name, now in found.beliefs.items():
        np.testing.assert_allclose(np.asarray(now.mean).ravel(), means[name], atol=2e-4)
        units, p = now.mean.shape
        places = [slice(first, first + p) for first in range(starts[name], starts[name] + units * p, p)]
        blocks = np.stack([covariance[of, of] for of in places])
        if posterior == "diagonal":
            np.testing.assert_allclose(now.variance, np.diagonal(blocks, axis1=1, axis2=2), rtol=2e-3)
        elif posterior == "block":
            np.testing.assert_allclose(now.covariance, blocks, atol=2e-4 * blocks.max())
        else:
            np.testing.assert_allclose(now.covariance[0], blocks.mean(0), atol=2e-4 * blocks.max())


def test_one_covariance_for_the_units_of_classes_is_that_of_their_contrasts():
    """Of the dense posterior of all parameters, the mean over directions in which the units' weights add up to 0."""
    first, (x, _) = network(posterior="shared"), images(6)
    layers = *first.layers[:-2], gbp.Dense(3, posterior="shared", name="last"), gbp.CategoricalObservation()
    net = gbp.Sequential(*layers, input_shape=first.input_shape)
    links, beliefs = prepared(net)
    targets, ones = targets_of(net, net.batch(x, np.arange(6) % 3), np.float32), np.ones(6)
    found = chain.update(links, beliefs, jnp.asarray(x), targets, 0.01 * ones, ones, 50, 1e-3)
    assert found.beliefs is not None
    assert found.conditioned is not None
    gain, belief = found.conditioned.joint.gain(), beliefs["last"]
    of = chain.linearise(links, {n: b.mean for n, b in beliefs.items()}, jnp.asarray(x)).sensitivities["last"]
    units, p = belief.mean.shape
    j = np.einsum("bcu,bp->bcup", np.asarray(of.slopes, float), np.asarray(of.rows, float)).reshape(-1, units * p)
    wide = np.kron(np.eye(units), np.asarray(belief.covariance[0], float))
    posterior = (wide - wide @ j.T @ gain @ j @ wide).reshape(units, p, units, p)
    contrasts = np.linalg.eigh(np.eye(units) - 1 / units)[1][:, 1:]
    expected = np.einsum("uk,upvq,vk->pq", contrasts, posterior, contrasts) / (units - 1)
    np.testing.assert_allclose(found.beliefs["last"].covariance[0], expected, atol=1e-5 * expected.max())


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 4), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_outputs_given_gaussian_targets(seed, batch, classes, rank):
    """Against the Gaussian conditional written out, with any weights; and the log evidence."""
    r = np.random.default_rng(seed)
    start, wide = r.standard_normal((batch, classes)), r.standard_normal((batch * classes, rank))
    covariance = wide @ wide.T + 0.1 * np.eye(batch * classes)
    y, weight = r.standard_normal((batch, classes)), r.integers(0, 3, batch).astype(float)
    precision = np.exp(r.uniform(-2, 4))

    eye = np.eye(classes)
    targets = chain.Targets(
        lambda m, v: (np.broadcast_to(precision * eye, (batch, classes, classes)), precision * (y - m)),
        lambda z: 0.5 * (precision * (y - z) ** 2).sum(1),
        np.full(batch, 0.5 * classes * (np.log(2 * np.pi) - np.log(precision))),
        precision,
        True,
    )
    found = chain.condition(start, covariance, targets, np.zeros(batch), weight, 5, 1e-3)
    d = np.repeat(weight, classes) * precision
    known = np.linalg.inv(np.linalg.inv(covariance) + np.diag(d))
    mean = known @ (np.linalg.inv(covariance) @ start.ravel() + d * y.ravel())
    np.testing.assert_allclose(found.mean.ravel(), mean, atol=1e-6)
    np.testing.assert_allclose(found.variance.ravel(), np.diag(known), rtol=1e-5)
    assert len(found.moves) == 1
    if set(weight) <= {0.0, 1.0}:
        there = np.flatnonzero(d)
        s = (covariance + np.diag(1 / np.where(d > 0, d, 1)))[np.ix_(there, there)]
        off = (y.ravel() - start.ravel())[there]
        expected = -0.5 * (off @ np.linalg.solve(s, off) + np.linalg.slogdet(2 * np.pi * s)[1]) if len(there) else 0
        np.testing.assert_allclose(found.log_evidence(), expected, atol=1e-6)


@pytest.mark.parametrize("precise", [1e2, 1e10])
def test_outputs_beside_precise_targets_of_another_head(precise):
    """Some examples have targets of one head alone, or of none: the exact conditional, however precise the targets."""
    r, blocks = np.random.default_rng(0), (slice(0, 2), slice(2, 5))
    start, wide = r.standard_normal((4, 5)), 10 * r.standard_normal((20, 20))
    d, e, covariance = np.zeros((4, 5, 5)), np.zeros((4, 5)), wide @ wide.T
    for example, seen in enumerate([(0, 1), (0,), (1,), ()]):
        for block in (blocks[i] for i in seen):
            root = r.standard_normal((3, block.stop - block.start))
            scale = precise if block is blocks[0] else 1.0
            d[example, block, block], e[example, block] = scale * root.T @ root, scale * r.standard_normal(3) @ root
    found = chain.Joint.of(start, covariance, d, e, blocks)
    wide_d = np.zeros((20, 20))
    for example in range(4):
        wide_d[5 * example : 5 * example + 5, 5 * example : 5 * example + 5] = d[example]
    there = np.flatnonzero(np.diag(wide_d))
    of = covariance[:, there]
    gain = of @ np.linalg.inv(np.linalg.inv(wide_d[np.ix_(there, there)]) + covariance[np.ix_(there, there)])
    target = np.linalg.solve(wide_d[np.ix_(there, there)], e.ravel()[there])
    mean = start.ravel() + gain @ (target - start.ravel()[there])
    variance = np.diag(covariance - gain @ of.T)
    unseen = np.setdiff1d(np.arange(20), there)
    np.testing.assert_allclose(found.mean.ravel(), mean, atol=1e-6 * np.abs(mean).max())
    np.testing.assert_allclose(found.variance().ravel()[unseen], variance[unseen], rtol=1e-4)
    assert (found.observed.ravel()[there]).all()
    assert not found.observed.ravel()[unseen].any()


def test_classes_at_rest():
    """There the outputs have moved by the covariance times the expected gradients of all log likelihoods."""
    r = np.random.default_rng(0)
    wide = r.standard_normal((15, 15))
    start, covariance = r.standard_normal((5, 3)), wide @ wide.T / 4
    y = np.eye(3)[r.integers(0, 3, 5)]
    net = gbp.Sequential(gbp.Dense(3), gbp.CategoricalObservation(), input_shape=(2,))
    targets = targets_of(net, net.batch(np.zeros((5, 2)), y), np.float32)
    held, weight = np.full(5, 0.01), np.array([1.0, 1.0, 2.0, 1.0, 0.0])
    found = chain.condition(start, covariance, targets, held, weight, 200, 1e-6)
    assert found.settled
    _, gradient = targets.expand(found.mean, found.variance)
    there = (weight > 0)[:, None]
    pull = gradient * weight[:, None] - there * (held * weight)[:, None] * found.mean
    np.testing.assert_allclose(found.mean.ravel(), start.ravel() + covariance @ pull.ravel(), atol=1e-4)
    assert (found.variance <= np.diag(covariance).reshape(5, 3) + 1e-9).all()


@pytest.mark.parametrize("posterior", ["block", "shared"])
def test_what_a_batch_has_taught_is_the_divergence(posterior):
    """`gained` is found on the way, from the eigenvalues of what was taken."""
    net, (x, y) = network(posterior=posterior), images(8)
    links, beliefs = prepared(net)
    targets, ones = targets_of(net, net.batch(x, y), np.float32), np.ones(8)
    found = chain.update(links, beliefs, jnp.asarray(x), targets, 0.04 * ones, ones, 10, 1e-3)
    assert found.beliefs is not None
    for name, now in found.beliefs.items():
        assert isinstance(now, VectorGaussian)
        np.testing.assert_allclose(now.gained, now.kl(beliefs[name]).sum(), rtol=1e-3)


def test_a_step_that_makes_things_worse_is_shortened():
    """Targets then count less; means and covariances are those of one update, and the status says so."""
    r = np.random.default_rng(0)
    x, y = r.standard_normal((10, 2)).astype(np.float32), r.standard_normal(10).astype(np.float32)
    shortened = 0
    for seed in range(30):
        net = gbp.Sequential(
            gbp.Dense(6, activation="tanh", weight_prior=2.0, bias_prior=1.0, posterior="block"),
            gbp.Dense(1, weight_prior=2.0, bias_prior=1.0, prior=100.0, posterior="block"),
            gbp.GaussianObservation(sigma=0.05),
            input_shape=(2,),
        )
        vectors, batch, prior = VectorActivations(net, (2,), np.float32), net.batch(x, y), net.priors(seed=seed)
        result = vectors.learn(batch, prior, 10, 1e-3)
        if not result.shortened or result.status is gbp.Status.DIVERGED:
            continue
        assert result.status is gbp.Status.STRAINED
        shortened += 1
        halved, links = 2**result.shortened, vectors.links
        beliefs = as_vectors(prior, links, np.float32)
        targets = targets_of(net, batch, np.float32)
        less = targets._replace(
            expand=lambda m, v, t=targets, h=halved: tuple(part / h for part in t.expand(m, v)),
            energies=lambda z, t=targets, h=halved: t.energies(z) / h,
        )
        found = chain.update(links, beliefs, jnp.asarray(x), less, np.full(10, 1e-4), np.ones(10), 10, 1e-3)
        for name, now in found.beliefs.items():
            then = result[f"{name}/parameters"]
            np.testing.assert_allclose(then.mean, now.mean, atol=1e-4)
            np.testing.assert_allclose(then.covariance, now.covariance, atol=1e-4)
    assert shortened


def test_a_step_that_makes_things_worse_however_short_is_refused():
    """Outputs that are no linear function at all: what the linear one promises does not come true."""
    net = gbp.Sequential(
        gbp.Dense(
            1,
            activation=jnp.square,
            sigma=0.01,
            weight_prior=30.0,
            bias_prior=1.0,
            weight_init=0.1,
            posterior="diagonal",
        ),
        gbp.GaussianObservation(sigma=0.01),
        input_shape=(1,),
    )
    learner = gbp.Learner(net, activations="vector", unusual="learn")
    before = {n: (np.asarray(g.eta), np.asarray(g.lam)) for n, g in learner.posterior.items()}
    report = learner.update(np.array([[1.0]], np.float32), np.array([50.0]))
    assert not report.accepted
    assert report.status is gbp.Status.DIVERGED
    for name, g in learner.posterior.items():
        np.testing.assert_array_equal(g.eta, before[name][0])
        np.testing.assert_array_equal(g.lam, before[name][1])


def evidence_by_draws(outputs, y, draws=400_000, parts=8):
    """`log E p(y | outputs)`, by as many draws; `outputs(n)` draws `(n, B, C)`."""
    found = []
    for _ in range(parts):
        z = outputs(draws // parts)
        top = z.max(2, keepdims=True)
        log_p = (z - top)[:, np.arange(len(y)), y] - np.log(np.exp(z - top).sum(2))
        found.append(log_p.sum(1))
    total = np.concatenate(found)
    return total.max() + np.log(np.exp(total - total.max()).mean())


def condition_on(x, y, covariance, mean, classes):
    net = gbp.Sequential(gbp.Dense(classes), gbp.CategoricalObservation(), input_shape=x.shape[1:])
    targets = targets_of(net, net.batch(x.astype(np.float32), y), np.float32)
    held = np.full(len(y), 1e-8)
    return chain.condition(mean, covariance, targets, held, np.ones(len(y)), 300, 1e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("classes", "std", "off"), [(2, 1.0, 0.01), (2, 5.0, 0.03), (10, 2.0, 0.05), (10, 5.0, 0.15)])
def test_evidence_of_one_label_is_the_integral(classes, std, off, seed):
    """Of vague logits the likelihood is no Gaussian: what its expansion leaves out is averaged."""
    r = np.random.default_rng(seed)
    mean = std * r.standard_normal((1, classes))
    y = np.array([int((mean[0] + std * r.standard_normal(classes)).argmax())])
    found = condition_on(np.zeros((1, 3)), y, std**2 * np.eye(classes), mean, classes)
    truth = evidence_by_draws(lambda n: mean + std * r.standard_normal((n, 1, classes)), y)
    assert found.log_evidence() == pytest.approx(truth, abs=off)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("std", "off"), [(1.0, 0.01), (3.0, 0.06)])
def test_evidence_of_a_batch_is_the_integral(std, off, seed):
    """Five labels of one linear model; `off` for each."""
    r = np.random.default_rng(seed)
    x, weights = r.standard_normal((5, 3)), std * r.standard_normal((3, 4))
    y = (x @ weights + r.gumbel(size=(5, 4))).argmax(1)
    covariance = np.kron(std**2 * x @ x.T, np.eye(4)) + 1e-6 * np.eye(20)
    found = condition_on(x, y, covariance, np.zeros((5, 4)), 4)
    truth = evidence_by_draws(lambda n: np.einsum("bi,nic->nbc", x, std * r.standard_normal((n, 3, 4))), y)
    assert found.log_evidence() == pytest.approx(truth, abs=5 * off)


@pytest.mark.parametrize(("pool", "by_kernel"), [(gbp.MaxPool2D(2), True), (gbp.AvgPool2D(2), False)])
def test_the_layers_say_where_most_derivatives_are_0(monkeypatch, pool, by_kernel):
    """Not numbers: another example in the batch must not change how derivatives are summed."""
    asked = []
    monkeypatch.setattr(chain, "_summed", lambda *_: asked.append(True))
    net = gbp.Network(
        {
            "conv": gbp.Conv2D(2, kernel=2, posterior="block"),
            "mask": gbp.Dropout(0.5),
            "pool": pool,
            "logits": gbp.Dense(2),
            "class": gbp.CategoricalObservation(),
        },
        input_shape=(5, 5, 1),
    )
    learner = gbp.Learner(net)
    assert learner.update(np.random.default_rng(0).standard_normal((4, 5, 5, 1)), [0, 1, 0, 1]).accepted
    assert bool(asked) == by_kernel
