"""Filtering: k batches against the batch posterior, dense solves, one joined graph, and closed forms.

All learners here have three features and see eight rows a batch, so that they share one compiled program.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp

FEATURES, ROWS = 3, 8
LAYER, SEEN, WIDE = 0.1, 0.2, 4.0  # noise of the layer and of the observation, prior of the outputs


def line(weight=1.5, bias=0.7):
    """Linear regression as a network."""
    return gbp.Sequential(
        gbp.Dense(1, sigma=LAYER, weight_prior=weight, bias_prior=bias, weight_init=0.0, prior=WIDE),
        gbp.GaussianObservation(sigma=SEEN),
        input_shape=(FEATURES,),
    )


def learner(net=None, **options):
    how = {"iterations": 500, "tolerance": 1e-6, "damping": 0.3, "schedule": gbp.Order("dense", "gaussian"), **options}
    return gbp.Learner(line() if net is None else net, **how)


def as_regression(x, y):
    """Rows, measurements and noise variance of the network as a plain regression on weights and bias.

    Observation and prior of an output together are one measurement, seen through the noise of the layer.
    """
    lam = WIDE**-2 + SEEN**-2
    return np.concatenate([x, np.ones((len(x), 1))], 1), y / SEEN**2 / lam, LAYER**2 + 1 / lam


def posterior(x, y, mean, std):
    """Dense solve under a prior that is independent in each parameter: mean and covariance."""
    rows, y, variance = as_regression(x, y)
    cov = np.linalg.inv(np.diag(std**-2.0) + rows.T @ rows / variance)
    return cov @ (mean / std**2 + rows.T @ y / variance), cov


def prior_of(weight=1.5, bias=0.7):
    return np.zeros(FEATURES + 1), np.array([weight] * FEATURES + [bias])


def found(beliefs):
    """Means and standard deviations of weights and bias."""
    w, b = beliefs["dense/weight"], beliefs["dense/bias"]
    return np.concatenate([w.mean[:, 0], b.mean]), np.concatenate([w.std[:, 0], b.std])


def data(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, FEATURES))
    return x, x @ [1.0, -0.5, 0.2] + 0.3 + 0.2 * rng.standard_normal(ROWS)


@pytest.mark.parametrize("weights", [1, 3])
def test_k_batches_are_one_batch_where_parameters_stay_independent(weights):
    """One weight; or orthogonal features, each row telling of one weight alone (the bias is known to be 0).

    Orthogonal features that share rows (a Hadamard matrix) would not do: there messages still marginalise over the
    other weights of a row, and the precisions, which the next batch goes by, are those of loopy beliefs.
    """
    rng = np.random.default_rng(weights)
    parts = []
    for _ in range(4):
        x = np.zeros((ROWS, FEATURES))
        x[np.arange(ROWS), np.arange(ROWS) % weights] = rng.uniform(0.5, 2.0, ROWS)
        parts.append((x, rng.standard_normal(ROWS)))
    student = learner(line(bias=1e-6))
    for x, y in parts:
        report = student.update(x, y)
        assert report.accepted
        assert report.status is gbp.Status.CONVERGED
    whole = (np.concatenate(a) for a in zip(*parts))
    mean, cov = posterior(*whole, *prior_of(bias=1e-6))
    ours = found(student.posterior)
    np.testing.assert_allclose(ours[0], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours[1] ** 2, np.diag(cov), rtol=1e-4)
    assert (student.batches, student.examples, student.failures) == (4, 4 * ROWS, 0)


def loopy(x, y, std):
    """Standard deviations that belief propagation ends with, edge by edge in float64 (as benchmarks/filtering.py)."""
    rows, _, variance = as_regression(x, y)
    told = np.zeros(rows.shape)
    for _ in range(1000):
        cavity = std**-2.0 + told.sum(0) - told
        others = rows**2 / cavity
        told = rows**2 / (variance + others.sum(1, keepdims=True) - others)
    return (std**-2.0 + told.sum(0)) ** -0.5


def test_each_batch_is_the_dense_solve_under_the_same_prior():
    """In general: means are exact given the independent prior that was handed on; spreads those of messages."""
    student, (mean, std) = learner(), prior_of()
    for seed in range(4):
        x, y = data(seed)
        assert student.update(x, y).status is gbp.Status.CONVERGED
        (exact, cov), spread = posterior(x, y, mean, std), loopy(x, y, std)
        mean, std = found(student.posterior)
        assert np.abs((mean - exact) / np.sqrt(np.diag(cov))).max() < 1e-4
        np.testing.assert_allclose(std, spread, rtol=1e-4)


def times(row, w):
    return row @ w


def difference(a, b):
    return a - b


def test_k_batches_are_one_joined_graph_with_messages_sent_forward_only():
    """The paper's claim (Section 3.4).

    The joined graph has all rows of three batches and a copy of the parameters for each batch, `w[t]`. Only `w[0]` has
    a prior; `w[t]` is linked to `w[t - 1]` by `N(w[t] - w[t - 1]; 0, 1e-5²)`, the same parameters but for rounding. All
    batches pass messages at the same time. Forward only means: the link hears `w[t - 1]` and tells it nothing. To a
    factor that is a variable *held* at a belief, so the link's end in the past is `before`, held; what `w[t - 1]` sends
    to the link is then its whole belief, and after every five iterations `before` is given the present one.
    """
    parts = [data(seed) for seed in range(3)]
    student, states = learner(), []
    for x, y in parts:
        student.update(x, y)
        states.append(found(student.posterior))

    rows, y, variance = as_regression(*(np.concatenate(a) for a in zip(*parts)))
    of_batch = np.repeat(np.arange(3), ROWS)
    mean, std = prior_of()
    lam = np.zeros((3, FEATURES + 1), np.float32)
    lam[0] = std**-2.0
    graph = gbp.FactorGraph()
    w = graph.variable("w", lam.shape, prior=gbp.Gaussian(jnp.zeros(lam.shape), jnp.asarray(lam)))
    before = graph.variable("before", (2, FEATURES + 1), prior=gbp.Gaussian.from_moments(0.0, std))
    link = difference, (w[1:].reshape(-1), before[:].reshape(-1))
    graph.add(gbp.Factor(*link, sigma=1e-5, linear=True, name="link"))
    graph.add(gbp.Factor(times, (rows, w[of_batch]), y=y, sigma=variance**0.5, linear=True, name="rows"))
    graph.hold("before")
    options = {"iterations": 5, "tolerance": 0.0, "damping": gbp.Damping(w=0.3), "guard": False}
    result, early = gbp.infer(graph, **options), None
    for _ in range(40):
        told = gbp.Gaussian(result["w"].eta[:-1], result["w"].lam[:-1])
        result = gbp.infer(graph, evidence={"before": told}, init=result, **options)
        early = result["w"].mean if early is None else early
    for t, (m, s) in enumerate(states):
        np.testing.assert_allclose(result["w"].mean[t], m, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(result["w"].std[t], s, rtol=2e-5)
    # It did need the messages, and only those forward: the first copy never hears of later batches.
    assert np.abs(early[2] - result["w"].mean[2]).max() > 1e-3
    everything, cov = posterior(*(np.concatenate(a) for a in zip(*parts)), mean, std)
    assert (np.abs(states[0][0] - everything) / np.sqrt(np.diag(cov))).max() > 0.5


# Between two batches.


def one_row(student, t):
    """Learn from one row: of eight, seven have no label."""
    x, y = data(10 + t)
    seen = np.arange(ROWS) == 0
    report = student.update(x, np.where(seen, y, np.nan), y_observed=seen)
    assert report.accepted
    return as_regression(x[:1], y[:1])


def kalman(mean, std, row, y, variance):
    """One measurement `y = row . w + noise`, parameters independent before: their marginals in closed form."""
    gain = std**2 * row / (variance + row**2 @ std**2)
    return mean + gain * (y - row @ mean), np.sqrt(std**2 - gain * row * std**2)


@pytest.mark.parametrize(
    ("alpha", "noise", "forgetting"),
    [(0.0, 0.0, 1.0), (0.3, 0.0, 1.0), (0.0, 0.5, 1.0), (0.0, 0.0, 0.6), (0.2, 0.3, 0.8), (1.0, 0.3, 0.5)],
)
def test_what_happens_between_batches_in_closed_form(alpha, noise, forgetting):
    """One row a batch is a tree: marginals are exact, and four scalars follow the formulas of `gbp.Filtering`."""
    student = learner(alpha=alpha, process_noise=noise, forgetting=forgetting)
    first = prior_of()
    mean, std = first
    for t in range(3):
        rows, y, variance = one_row(student, t)
        if t > 0:
            std = np.sqrt(std**2 / forgetting + noise**2)
            mean, std = (1 - alpha) * mean + alpha * first[0], (1 - alpha) * std + alpha * first[1]
        mean, std = kalman(mean, std, rows[0], y[0], variance)
        np.testing.assert_allclose(found(student.posterior), (mean, std), rtol=1e-4, atol=1e-5)


def test_alpha_of_one_forgets_everything():
    forgetful, fresh = learner(alpha=1.0), learner()
    for t in range(3):
        one_row(forgetful, t)
    one_row(fresh, 2)
    np.testing.assert_allclose(found(forgetful.posterior), found(fresh.posterior), rtol=1e-5, atol=1e-6)


def test_process_noise_may_be_a_large_whole_number():
    known = {"w": gbp.Gaussian.from_moments(jnp.zeros(2), std=jnp.ones(2))}
    how = gbp.Filtering(process_noise=1.0)
    object.__setattr__(
        how, "process_noise", 10**6
    )  # the tests' type checks allow no whole number here; users have none
    later = how.next_prior(known, known)
    np.testing.assert_allclose(later["w"].std, 1e6, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.1}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"process_noise": -1.0}, "process_noise"),
        ({"process_noise": float("inf")}, "process_noise"),
        ({"forgetting": 0.0}, "forgetting"),
        ({"forgetting": 1.5}, "forgetting"),
    ],
)
def test_impossible_settings_are_refused_by_name(options, named):
    with pytest.raises(ValueError, match=named):
        gbp.Filtering(**options)
    with pytest.raises(ValueError, match=named):
        learner(**options)


def test_learnt_noise_carries_its_count():
    """Outputs known to be 0: the noise variance is the mean of all squares, with the prior's share, batch by batch.

    `forgetting` discounts the count of earlier batches like the precisions of the parameters.
    """
    net = gbp.Sequential(
        gbp.Dense(1, sigma=1e-3, weight_prior=1e-4, bias_prior=1e-4, weight_init=0.0, prior=1.0),
        gbp.GaussianObservation(sigma=gbp.LearnNoise(start=0.5, weight=2.0), name="seen"),
        input_shape=(FEATURES,),
    )
    for forgetting in (1.0, 0.5):
        student = learner(net, iterations=20, schedule=None, damping=0.0, forgetting=forgetting)
        count, squares = 2.0, 2.0 * 0.5**2
        for t in range(3):
            y = np.random.default_rng(t).normal(0, 0.8, ROWS)
            seen = np.arange(ROWS) < 6
            assert student.update(np.zeros((ROWS, FEATURES)), np.where(seen, y, np.nan), y_observed=seen).accepted
            kept = forgetting if t > 0 else 1.0
            count, squares = kept * count + 6, kept * squares + (y[seen] ** 2).sum()
            assert student.noise["seen"].weight == pytest.approx(count)
            assert student.noise["seen"].start == pytest.approx((squares / count) ** 0.5, rel=1e-3)
