"""float32: means are right, or the status says that float32 is not enough; and no belief is ever improper."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine.rounding import find_beliefs


def seen_through(x, a):
    return a @ x.reshape(-1)


def unit(x):
    return x


def exact(mean, std, factors):
    """Posterior mean and standard deviation in rational numbers: there is no rounding at all."""
    n = len(mean)
    lam = [[Fraction(0)] * n for _ in range(n)]
    eta = [Fraction(0)] * n
    rows = [(np.eye(n)[i], mean[i], std[i]) for i in range(n)]
    rows += [(a[i], y[i], s[i]) for a, y, s in factors for i in range(len(y))]
    for a, y, s in rows:
        a, w = [Fraction(float(c)) for c in a], 1 / Fraction(float(s)) ** 2
        for i in range(n):
            eta[i] += w * a[i] * Fraction(float(y))
            for j in range(n):
                lam[i][j] += w * a[i] * a[j]
    # Gauss and Jordan; positive definite, so that no pivot is 0.
    table = [[*lam[i], *(Fraction(int(i == j)) for j in range(n)), eta[i]] for i in range(n)]
    for i in range(n):
        table[i] = [x / table[i][i] for x in table[i]]
        for k in range(n):
            if k != i:
                table[k] = [x - table[k][i] * y for x, y in zip(table[k], table[i])]
    return np.array([float(row[-1]) for row in table]), np.array([float(table[i][n + i]) ** 0.5 for i in range(n)])


def make(mean, std, factors, block, linear):
    graph, n = gbp.FactorGraph(), len(mean)
    prior = gbp.Gaussian.from_moments(np.float32(mean), np.float32(std))
    prior = gbp.Gaussian(prior.eta[None], prior.lam[None]).as_block() if block else prior
    x = graph.variable("x", (1, n) if block else (n,), prior=prior, block=block)
    for i, (a, y, s) in enumerate(factors):
        where = (x if block else x[None], np.float32(a)[None])
        graph.add(gbp.Factor(seen_through, where, y=y[None], sigma=s[None], linear=linear, name=f"f{i}"))
    return graph


def single(value):
    """A number as float32 has it."""
    return np.asarray(np.asarray(value, np.float32), float)


def random_case(seed, size, factors=1, outputs=1):
    """Priors and noises from 1e-6 to 1e6; means of the prior's size, or of any."""
    rng = np.random.default_rng(seed)
    std = single(10 ** rng.uniform(-6, 6, size))
    mean = single(rng.normal(size=size) * (10 ** rng.uniform(-6, 6, size) if rng.integers(2) else std))
    truth, out = mean + std * rng.normal(size=size), []
    for _ in range(factors):
        a, noise = single(rng.normal(size=(outputs, size))), single(10 ** rng.uniform(-6, 6, outputs))
        out.append((a, single(a @ truth + noise * rng.normal(size=outputs)), noise))
    return mean, std, out


def check(mean, std, factors, block, linear):
    """Proper, and right or known not to be; says which."""
    result = gbp.infer(make(mean, std, factors, block, linear), throw=False)
    belief = result["x"]
    found, spread = (np.asarray(a, float).reshape(-1) for a in (belief.mean, belief.std))
    assert np.isfinite(found).all()
    assert np.isfinite(spread).all()
    assert (spread > 0).all()
    if block:
        lam = np.asarray(belief.lam, float)[0]
        root = 1 / np.sqrt(np.diag(lam))
        assert np.linalg.eigvalsh(lam * root[:, None] * root).min() > 0
    if result.status is gbp.Status.ROUNDING:
        assert "float32 is not enough" in result.message
        assert "float64" in result.message
        return False
    assert result.status is gbp.Status.CONVERGED
    right, true = exact(mean, std, factors)
    assert (np.abs(found - right) / true).max() < 1e-3
    np.testing.assert_allclose(spread, true, rtol=1e-3)
    return True


def far_prior(block, linear):
    return make([71390.4], [46199.7], [(np.ones((1, 1)), np.array([1.75935972]), np.array([2.2767e-4]))], block, linear)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("block", [False, True])
def test_a_prior_far_away_leaves_no_rounding_behind(block, linear):
    """`y - h(x0) + J x0` cancelled at the prior mean: 6.8 standard deviations off, as a block 15.7, and CONVERGED."""
    result = gbp.infer(far_prior(block, linear))
    assert result.status is gbp.Status.CONVERGED
    assert abs(result["x"].mean.reshape(()) - 1.75935972) / 2.2767e-4 < 1e-3


@pytest.mark.parametrize("linear", [False, True])
def test_many_units_with_priors_far_away(linear):
    """Enough of them for a kernel, where there is one."""
    rng = np.random.default_rng(0)
    mean, truth = 1e5 * rng.normal(size=64), rng.normal(size=64)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (64,), prior=gbp.Gaussian.from_moments(mean, 1e5))
    graph.add(gbp.Factor(unit, (x[:],), y=truth, sigma=1e-3, linear=linear, name="each"))
    result = gbp.infer(graph)
    assert result.status is gbp.Status.CONVERGED
    np.testing.assert_allclose(result["x"].mean, truth, atol=1e-6)


def test_a_vague_prior_of_one_beside_a_sharp_one_of_another():
    """`x - z = 1.5 +- 1e-3` with `z` known to 1e-3 and `x` from far away, in two groups of slots."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=gbp.Gaussian.from_moments(7e4, 5e4))
    z = graph.variable("z", (2,), prior=gbp.Gaussian.from_moments([0.25, -1.0], 1e-3))
    graph.add(gbp.Factor(lambda a, b: a - b, (x[:], z[:]), y=1.5, sigma=1e-3, name="difference"))
    result = gbp.infer(graph)
    assert result.status is gbp.Status.CONVERGED
    np.testing.assert_allclose(result["x"].mean, [1.75, 0.5], atol=2e-6)


def test_what_float32_cannot_hold_is_not_called_converged():
    """A mean of 1e6 with a standard deviation of 1e-3: neighbouring numbers in float32 are 0.06 apart."""
    result = gbp.infer(make([1e6], [1e3], [(np.ones((1, 1)), np.array([1e6]), np.array([1e-3]))], False, True))
    assert result.status is gbp.Status.ROUNDING
    assert "float32 is not enough" in result.message
    assert "'x'" in result.message


def test_float64_is_enough(x64):
    graph = gbp.FactorGraph(dtype=jnp.float64)
    x = graph.variable("x", (1,), prior=gbp.Gaussian.from_moments([1e6], 1e3))
    graph.add(gbp.Factor(unit, (x[:],), y=1e6 + 0.25, sigma=1e-3, linear=True))
    result = gbp.infer(graph)
    assert result.status is gbp.Status.CONVERGED
    assert abs(float(result["x"].mean[0]) - 1e6 - 0.25) < 1e-6


def test_a_block_that_loses_its_prior_stays_proper():
    """A precise measurement of one direction: float32 does not hold the prior of the other beside it."""
    factor = np.array([[-1.07436, 0.87304]]), np.array([0.0]), np.array([0.01346])
    result = gbp.infer(make([0.0, 0.0], [260.0427, 2444.788], [factor], True, False))
    assert result.status is gbp.Status.ROUNDING
    assert "its prior is lost" in result.message
    belief = result["x"]
    assert bool(belief.proper[0])
    np.testing.assert_allclose(belief.std[0], [257.8, 317.3], rtol=2e-3)  # weaker messages: never too sure
    assert abs(float((factor[0] @ np.asarray(belief.mean[0], float))[0])) < 1.0
    stepped = gbp.step(result.graph, gbp.init(result.graph))
    assert bool(gbp.beliefs(result.graph, stepped)["x"].proper[0])


def test_the_rounding_of_a_scalar_is_what_its_parts_say():
    """`eps sum |eta| / sqrt(lam)`, of the worst unit."""
    graph = make([3.0], [2.0], [(np.ones((1, 1)), np.array([5.0]), np.array([0.5]))], False, True)
    problem = graph.problem()
    found = find_beliefs(problem, gbp.infer(graph).state)
    expected = np.finfo(np.float32).eps * (3 / 4 + 5 / 0.25) / np.sqrt(1 / 4 + 1 / 0.25)
    np.testing.assert_allclose(float(found.rounding["x"]), expected, rtol=1e-5)


def sample(count, block, size, factors, outputs):
    right = 0
    for i in range(count):
        case = random_case([size, factors, outputs, i], size, factors, outputs)
        right += check(*case, block, linear=bool(i % 2))
    return right


def test_random_scalars_and_blocks():
    assert sample(40, False, 1, 1, 1) > 20
    assert sample(30, True, 2, 1, 1) > 10


@pytest.mark.slow
def test_300_random_scalars():
    assert sample(150, False, 1, 1, 1) > 75
    assert sample(150, False, 1, 3, 1) > 60


@pytest.mark.slow
def test_300_random_blocks():
    assert sample(150, True, 2, 1, 1) > 50
    assert sample(75, True, 3, 1, 2) > 10
    assert sample(75, True, 3, 2, 1) > 10
