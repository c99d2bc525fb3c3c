"""The loop: schedules, damping, dropout, relinearisation, robust energies, traces and status."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gbplearn as gbp
from gbplearn.core import compiling
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.schedules import Forest, Groups
from small_graphs import chain, minus, same


class Shuffled(gbp.Schedule):
    """A user's own: each round in a new random order. Its state is a key, the order, and the turn."""

    def init(self, groups, key):
        return key, jnp.asarray(groups.active), 0

    def next(self, groups, state, diagnostics):
        key, order, turn = state
        key, draw = jax.random.split(key)
        order = jnp.where(turn == 0, jax.random.permutation(draw, order), order)
        return order[turn], (key, order, (turn + 1) % len(groups.active))


class BackAndForth(gbp.FixedOrder):
    """A user's own order, in NumPy's numbers; up to the last group, or `beyond` it."""

    def __init__(self, beyond=1):
        self.beyond = beyond

    def order(self, names):
        last = len(names) - self.beyond
        return (*np.arange(last, -1, -1), *np.arange(1, last + 1))


SCHEDULES = [
    gbp.Sweep(), gbp.RandomLayers(), gbp.Residual(), gbp.Order("seen", "odd", "even", "odd"), gbp.TreeOrder(),
    Shuffled(), BackAndForth(),
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_every_schedule_reaches_the_posterior(schedule):
    graph, mean, std = chain()
    result = gbp.infer(graph, schedule=schedule, tolerance=1e-6, iterations=300)
    assert result.status is gbp.Status.CONVERGED
    np.testing.assert_allclose(result["x"].mean, mean, atol=2e-5)
    np.testing.assert_allclose(result["x"].std, std, rtol=1e-5)


def test_a_schedule_goes_on_where_it_was():
    """In rounds, whatever the calls: after any number of steps, no group was visited more often than another."""
    graph, _, _ = chain()
    state, orders = gbp.init(graph, seed=4), set()
    for count in range(1, 6):
        state = gbp.step(graph, state, schedule=Shuffled())
        np.testing.assert_array_equal(state.visits, count)
        orders.add(tuple(np.asarray(state.schedule.state[1]).tolist()))
    assert len(orders) > 2  # drawn anew in each of them
    many = gbp.infer(graph, schedule=Shuffled(), seed=4, iterations=5, tolerance=0.0)
    np.testing.assert_array_equal(many.state.visits, 5)
    np.testing.assert_allclose(many["x"].mean, gbp.beliefs(graph, state)["x"].mean, rtol=1e-6)


def test_one_move_after_the_other_is_the_order():
    """`next` of a fixed order, from the beginning of an iteration to its end; groups with nothing to infer are left."""
    groups, unused = Groups(("a", "b", "c", "d"), (0, 1, 3)), no_diagnostics(chain()[0].problem())
    for schedule, wanted in ((gbp.Sweep(), [0, 1, 3, 1]), (gbp.Order("d", "c", "b", "a"), [3, 1, 0])):
        state, moves = schedule.init(groups, jax.random.PRNGKey(0)), []
        while not moves or state is not None:
            move, state = schedule.next(groups, state, unused)
            moves.append(move)
        assert moves == wanted
        assert schedule.count(groups) == len(wanted)


def test_a_schedule_goes_on_over_chunks_and_warm_starts():
    """300 iterations are several compiled calls; then a warm start, in which there is a group more."""
    graph, _, _ = chain()
    result = gbp.infer(graph, schedule=Shuffled(), iterations=150, tolerance=-0.0, guard=False, throw=False)
    count = int(result.state.visits[0])
    np.testing.assert_array_equal(result.state.visits, count)
    x = graph.variables["x"]
    graph.add(gbp.Factor(same, (x[:1],), y=0.3, sigma=1.0, name="more"))
    more = gbp.infer(graph, schedule=Shuffled(), init=result, iterations=7, tolerance=0.0, guard=False, throw=False)
    np.testing.assert_array_equal(more.state.visits, [*[count + more.iterations] * 3, more.iterations])
    # Of another schedule nothing is taken over.
    assert gbp.infer(graph, schedule=gbp.RandomLayers(), init=more).status is gbp.Status.CONVERGED
    fewer = gbp.infer(graph, schedule=Shuffled(), evidence={"x": np.asarray(more["x"].mean)}, iterations=3)
    assert fewer.status is gbp.Status.CONVERGED


class Picks(gbp.Schedule):
    """Always the same; without a decorator."""

    def __init__(self, move):
        self.move = move

    def init(self, groups, key):
        return jax.random.wrap_key_data(key)  # a typed key, which NumPy does not take

    def next(self, groups, state, diagnostics):
        return self.move, state


def test_schedules_of_one_class_differ_by_their_attributes():
    """What was compiled for one is not used for the other."""
    graph, _, _ = chain()
    assert Picks(0) == Picks(0) != Picks(1) != gbp.Sweep()
    assert hash(Picks(0)) == hash(Picks(0))
    for g in range(2):
        result = gbp.infer(graph, schedule=Picks(g), iterations=5, tolerance=0.0, throw=False)
        np.testing.assert_array_equal(result.state.visits, 15 * (np.arange(3) == g))


@pytest.mark.parametrize(
    ("schedule", "error", "match"),
    [
        (Picks(Forest.SWEEP), TypeError, "Picks must pick a factor group"),
        (Picks(0.5), TypeError, "by its number, got 0.5"),
        (Picks(3), ValueError, r"picks group 3, which is none of groups\.active: \(0, 1, 2\)"),
        (BackAndForth(0), ValueError, "BackAndForth orders group 3 of 3"),
    ],
)
def test_a_move_that_is_no_group_is_refused(schedule, error, match):
    with pytest.raises(error, match=match):
        gbp.infer(chain()[0], schedule=schedule)


def test_a_pick_of_nothing_visits_nothing():
    class Round(Shuffled):
        def init(self, groups, key):
            return jnp.zeros((), jnp.int32)

        def next(self, groups, state, diagnostics):
            return state, (state + 1) % len(groups.names)

    graph, _, _ = chain()
    graph.add(gbp.Factor(same, (graph.variable("z", (1,)),), y=0.3, sigma=1.0, name="known"))
    how = {"iterations": 4, "tolerance": 0.0, "throw": False, "guard": False}
    result = gbp.infer(graph, schedule=Round(), evidence={"z": 0.0}, **how)
    np.testing.assert_array_equal(result.state.visits, [3, 3, 3, 0])  # of 4 x 3 moves one in four is none


@pytest.mark.parametrize("options", [
    {"damping": 0.6}, {"damping": gbp.Damping(x=0.7)}, {"damping": 0.5, "dropout": 0.3},
    {"damping": 0.4, "schedule": gbp.Residual()},
    pytest.param({"dropout": 0.5}, marks=pytest.mark.slow),
    pytest.param({"damping": 0.4, "schedule": gbp.RandomLayers()}, marks=pytest.mark.slow),
], ids=str)  # fmt: skip
def test_damping_and_dropout_do_not_move_the_fixed_point(options):
    graph, mean, std = chain()
    result = gbp.infer(graph, tolerance=1e-6, iterations=900, **options)
    assert result.status is gbp.Status.CONVERGED
    np.testing.assert_allclose(result["x"].mean, mean, atol=2e-5)
    np.testing.assert_allclose(result["x"].std, std, rtol=1e-5)


def test_damping_is_the_weight_of_the_old_message():
    """By hand: one unary factor; the first message is taken whole, then d old + (1 - d) new in natural parameters."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,), prior=gbp.Gaussian.from_moments(1.0, 1.0), start=[1.0])
    graph.add(gbp.Factor(lambda a: a**2, (x[:],), y=4.0, sigma=1.0, name="square"))
    m, eta, lam = 1.0, 0.0, 0.0
    state = gbp.init(graph)
    for i in range(5):
        j = 2 * m
        new_eta, new_lam = j * (4.0 - m**2 + j * m), j * j
        d = 0.0 if i == 0 else 0.7
        eta, lam = d * eta + (1 - d) * new_eta, d * lam + (1 - d) * new_lam
        m = (1.0 + eta) / (1.0 + lam)
        state = gbp.step(graph, state, damping=0.7)
        belief = gbp.beliefs(graph, state)["x"]
        assert float(belief.mean[0]) == pytest.approx(m, rel=1e-5)
        assert float(belief.lam[0]) == pytest.approx(1.0 + lam, rel=1e-5)


def test_damping_by_kind_and_name():
    damping = gbp.Damping(parameters=0.9, activations=0.2, w=0.5)
    assert damping.of("w", "parameter") == 0.5
    assert damping.of("v", "parameter") == 0.9
    assert damping.of("x", "activation") == 0.2
    slashes = gbp.Damping(by_name={"conv/weight": 0.3})
    assert slashes.of("conv/weight", "parameter") == 0.3


def test_dropout_keeps_both_parameters_of_an_edge_or_neither():
    n = 400
    graph = gbp.FactorGraph()
    x = graph.variable("x", (n,), prior=gbp.Gaussian.from_moments(1.0, 1.0))
    graph.add(gbp.Factor(lambda a: jnp.exp(a), (x[:],), y=5.0, sigma=1.0))
    first = gbp.step(graph, gbp.init(graph))
    b0 = gbp.beliefs(graph, first)["x"]
    b1 = gbp.beliefs(graph, gbp.step(graph, first, dropout=0.5))["x"]
    kept_eta, kept_lam = np.asarray(b0.eta == b1.eta), np.asarray(b0.lam == b1.lam)
    assert (kept_eta == kept_lam).all()
    assert abs(kept_eta.mean() - 0.5) < 4 * 0.5 / np.sqrt(n)


def test_step_leaves_its_state_alone_and_equals_infer():
    graph, _, _ = chain()
    state = gbp.init(graph)
    for _ in range(3):
        after = gbp.step(graph, state)
        again = gbp.step(graph, state)
        assert all(bool(jnp.all(a == b)) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(again)))
        state = after
    three = gbp.infer(graph, iterations=3, tolerance=0.0)
    np.testing.assert_allclose(gbp.beliefs(graph, state)["x"].mean, three["x"].mean, rtol=1e-6)


def test_going_on_from_a_result():
    graph, mean, _ = chain()
    half = gbp.infer(graph, iterations=2)
    rest = gbp.infer(graph, init=half, tolerance=1e-6)
    whole = gbp.infer(graph, tolerance=1e-6)
    np.testing.assert_allclose(rest["x"].mean, mean, atol=2e-5)
    assert rest.iterations < whole.iterations
    again = gbp.infer(graph, init=half, tolerance=1e-6)  # the first result is still there
    assert again.iterations == rest.iterations
    other, _, _ = chain(8)
    with pytest.raises(ValueError, match="another graph"):
        gbp.infer(other, init=half)


def banana(seed=0):
    """Mildly nonlinear: ranges from landmarks to a point."""
    rng = np.random.default_rng(seed)
    marks = rng.uniform(-3, 3, (6, 2))
    truth = np.array([0.7, -0.4])
    ranges = np.linalg.norm(marks - truth, axis=1) + 0.01 * rng.standard_normal(6)
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1, 2), prior=gbp.Gaussian.from_moments(0.0, 1.0), block=True)

    def distance(m, p):
        return jnp.sqrt(jnp.sum((m - p) ** 2))

    graph.add(gbp.Factor(distance, (marks, x[np.zeros(6, int)]), y=ranges, sigma=0.05, name="range"))
    return graph, marks, ranges


@pytest.mark.parametrize("relinearise", [1, 3, gbp.OnMovement(0.01)], ids=str)
def test_relinearisation_reaches_the_gauss_newton_solution(relinearise):
    graph, marks, ranges = banana()
    result = gbp.infer(graph, relinearise=relinearise, tolerance=1e-4, iterations=200)
    p = np.zeros(2)
    for _ in range(50):  # Gauss-Newton by hand
        d = p - marks
        r = np.linalg.norm(d, axis=1)
        j = d / r[:, None]
        p = np.linalg.solve(j.T @ j / 0.0025 + np.eye(2), j.T @ (ranges - r + j @ p) / 0.0025)
    std = np.asarray(result["x"].std[0])
    assert result.status is gbp.Status.CONVERGED
    assert (np.abs(np.asarray(result["x"].mean[0]) - p) / std).max() < 0.02
    cov = np.linalg.inv(j.T @ j / 0.0025 + np.eye(2))
    np.testing.assert_allclose(result["x"].covariance[0], cov, rtol=2e-2, atol=1e-6)


def test_after_a_visit_is_one_visit_late():
    """A hand-written loop: `square` is linearised where its own last visit ended, not where `pull` has led since."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", shape=(1,), prior=gbp.Gaussian.from_moments(mean=1.0, std=1.0))
    graph.add(gbp.Factor(lambda a: a**2, (x,), y=[4.0], sigma=0.5, name="square"))
    graph.add(gbp.Factor(lambda a: a, (x,), y=[3.0], sigma=0.5, name="pull", linear=True))
    pull, square, x0, wanted = np.zeros(2), np.zeros(2), 1.0, []
    for _ in range(4):  # natural parameters: information, precision
        slope = 2 * x0
        square = np.array([slope * (4 - x0**2 + slope * x0), slope**2]) / 0.5**2
        eta, lam = np.array([1.0, 1.0]) + square + pull
        x0 = eta / lam
        pull = np.array([3.0, 1.0]) / 0.5**2
        eta, lam = np.array([1.0, 1.0]) + square + pull
        wanted.append(eta / lam)
    state, found = gbp.init(graph, relinearise=gbp.AfterVisit()), []
    for _ in range(4):
        state = gbp.step(graph, state, relinearise=gbp.AfterVisit())
        found.append(float(gbp.beliefs(graph, state)["x"].mean[0]))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    now = gbp.init(graph)
    for _ in range(2):
        now = gbp.step(graph, now)
    assert abs(float(gbp.beliefs(graph, now)["x"].mean[0]) - wanted[1]) > 1e-2  # the default is another


def test_linear_and_relinearised_agree():
    results = []
    for linear in (False, True):
        graph = gbp.FactorGraph()
        x = graph.variable("x", (5,), prior=gbp.Gaussian.from_moments(1.0, 2.0))
        graph.add(gbp.Factor(lambda a, b: 2 * b - a + 1, (x[:-1], x[1:]), y=0.5, sigma=0.3, linear=linear))
        graph.add(gbp.Factor(lambda a: 3 * a - 2, (x[::2],), y=0.1, sigma=0.3, linear=linear, robust=gbp.Huber(1.0)))
        results.append(gbp.infer(graph, tolerance=1e-6)["x"])
    np.testing.assert_allclose(results[0].mean, results[1].mean, atol=1e-5)
    np.testing.assert_allclose(results[0].lam, results[1].lam, rtol=1e-5)


KERNELS = [gbp.Tukey(1.5), gbp.Tukey(1.5, match="gradient"), gbp.Huber(1.5), gbp.Huber(1.5, match="gradient")]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@given(d=st.floats(0.0078125, 100, width=32))
def test_robust_scales_match_value_or_gradient(kernel, d):
    n = kernel.threshold
    if isinstance(kernel, gbp.Tukey):
        rho, slope = 0.5 * min(d, n) ** 2, d if d <= n else 0.0
    else:
        rho, slope = (0.5 * d * d, d) if d <= n else (n * d - 0.5 * n * n, n)
    k = float(kernel.scale(jnp.asarray(d * d)))
    assert float(kernel.energy(jnp.asarray(d * d))) == pytest.approx(rho, rel=1e-5)
    assert k == pytest.approx(2 * rho / d**2 if kernel.match == "value" else slope / d, rel=1e-4, abs=1e-7)


def test_tukey_ignores_an_outlier_and_says_so():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,), prior=gbp.Gaussian.from_moments(0.0, 10.0))
    y = np.array([1.0, 1.1, 0.9, 50.0])
    robust = gbp.Tukey(3.0, match="gradient")
    graph.add(gbp.Factor(same, (x[np.zeros(4, int)],), y=y, sigma=0.1, robust=robust, name="seen"))
    start = gbp.infer(graph, iterations=200)
    assert float(start["x"].mean[0]) == pytest.approx(
        0.0, abs=1e-3
    )  # switched off from far away: an honest local optimum
    near = gbp.FactorGraph()
    x = near.variable("x", (1,), prior=gbp.Gaussian.from_moments(1.05, 10.0))
    near.add(gbp.Factor(same, (x[np.zeros(4, int)],), y=y, sigma=0.1, robust=robust, name="seen"))
    result = gbp.infer(near, iterations=200)
    assert float(result["x"].mean[0]) == pytest.approx(1.0, abs=1e-3)
    assert result.trace.switched["seen"][-1] == pytest.approx(0.25)


def test_robust_over_shares_the_switch():
    """Three channels: one bad channel switches off the whole pixel, or only itself."""
    y = np.array([[0.0, 0.0, 9.0], [0.1, 0.1, 0.1]])
    means = {}
    for over in (None, (), (0, 1)):
        graph = gbp.FactorGraph()
        x = graph.variable("x", (2, 3), prior=gbp.Gaussian.from_moments(1.0, 1.0))
        robust = gbp.Tukey(3.0, match="gradient")
        graph.add(gbp.Factor(same, (x[:],), y=y, sigma=1.0, robust=robust, robust_over=over))
        means[over] = np.asarray(gbp.infer(graph)["x"].mean)
    seen, unseen = (1.0 + y) / 2, np.ones((2, 3))
    np.testing.assert_allclose(means[None], np.where([[False], [True]], seen, unseen), rtol=1e-5)
    np.testing.assert_allclose(means[()], np.where(y == 9.0, unseen, seen), rtol=1e-5)
    np.testing.assert_allclose(means[0, 1], unseen, rtol=1e-5)


def test_trace_and_residual():
    """The last row of the trace is what the result says; its energies are those of `graph.energy` at the means."""
    graph, _, _ = chain()
    result = gbp.infer(graph, tolerance=1e-6)
    assert len(result.trace.residual) == result.iterations
    assert result.residual <= 1e-6
    energy = graph.energy(result)
    for name in ("even", "odd", "seen"):
        assert result.trace.energy[name][-1] == pytest.approx(energy[name], rel=1e-3)
    assert result.trace.prior_energy[-1] == pytest.approx(energy["prior of x"], rel=1e-3)
    assert result.trace.total_energy[-1] == pytest.approx(sum(energy.values()), rel=1e-3)


def test_the_residual_is_the_undamped_change_of_the_beliefs():
    """By hand: a prior N(0, 1) and two measurements of 3 with variance 1, visited in turn, each first message whole."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,), prior=gbp.Gaussian.from_moments(0.0, 1.0))
    for name in ("first", "second"):
        graph.add(gbp.Factor(same, (x[:],), y=3.0, sigma=1.0, linear=True, name=name))
    result = gbp.infer(graph, iterations=2, tolerance=0.0, damping=0.6, schedule=gbp.Order("first", "second"))
    np.testing.assert_allclose(result["x"].mean, 2.0, rtol=1e-6)
    # The first: N(0, 1) to N(1.5, 1/2). The second: to N(2, 1/3), by 0.5 of sqrt(1/2). Then all is said.
    np.testing.assert_allclose(result.trace.residual, [1.5, 0.0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("order", [("f", "w"), ("f", "w", "f")])
def test_newtons_cycle_is_not_taken_for_rest(order, large):
    """`x³ - 2 x + 2` from 0: 1, 0, 1, ... A group that is visited twice is then where it was."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,), prior=gbp.Gaussian.from_moments(0.0, 1e3), start=0.0)
    graph.add(gbp.Factor(lambda a: a**3 - 2 * a + 2, (x[:],), sigma=0.01, name="f"))
    graph.add(gbp.Factor(same, (x[:],), sigma=1e3, name="w"))
    guard = gbp.Guard(enabled=False, large=0 if large else 500_000)
    result = gbp.infer(graph, iterations=30, guard=guard, schedule=gbp.Order(*order))
    assert result.status is gbp.Status.ITERATION_LIMIT
    assert result.residual > 1


@pytest.mark.parametrize("guard", [False, True])
def test_what_is_unknown_at_first_is_not_taken_for_divergence(guard):
    """A chain without priors, held at one end: knowledge travels one link an iteration, from zero precision."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (30,))
    graph.add(gbp.Factor(minus, (x[:-1:2], x[1::2]), y=1.0, sigma=0.1, linear=True, name="even"))
    graph.add(gbp.Factor(minus, (x[1:-1:2], x[2::2]), y=1.0, sigma=0.1, linear=True, name="odd"))
    graph.add(gbp.Factor(same, (x[:1],), y=0.0, sigma=0.1, linear=True, name="end"))
    result = gbp.infer(graph, guard=guard)
    assert result.status is gbp.Status.CONVERGED
    assert result.guard == ()
    np.testing.assert_allclose(result["x"].mean, np.arange(30), atol=1e-3)
    np.testing.assert_allclose(result["x"].std, 0.1 * np.sqrt(1 + np.arange(30)), rtol=1e-3)


def test_dropout_between_blocks():
    z = np.random.default_rng(0).standard_normal((3, 2))
    graph = gbp.FactorGraph()
    prior = gbp.Gaussian.from_moments(np.zeros((3, 2)), 1.0).as_block()
    x = graph.variable("x", (3, 2), prior=prior, block=True)
    graph.add(gbp.Factor(same, (x[:],), y=z, sigma=0.5, linear=True, name="seen"))
    result = gbp.infer(graph, dropout=0.5)
    np.testing.assert_allclose(result["x"].mean, z * 0.8, atol=1e-4)


def test_to_import_the_package_does_not_start_jax():
    """The user may still want to choose devices or precision. Only a private name of JAX tells that it has started."""
    code = "import gbplearn; from jax._src import xla_bridge; assert not xla_bridge._backends"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_iteration_limit_is_in_the_status():
    graph, _, _ = chain()
    result = gbp.infer(graph, iterations=2, tolerance=1e-6)
    assert result.status is gbp.Status.ITERATION_LIMIT
    assert result.iterations == 2
    assert "iteration limit" in str(result.status)
    assert "largest residual" in result.message
    with pytest.raises(KeyError, match="no variable 'q'"):
        result["q"]


def test_nothing_is_known_of_an_unconnected_variable():
    graph, _, _ = chain()
    graph.variable("alone", (2,))
    result = gbp.infer(graph)
    assert np.isinf(np.asarray(result["alone"].std)).all()
    assert np.isfinite(np.asarray(result["alone"].mean)).all()


def test_one_function_is_one_group_whatever_its_size():
    """Tracing does not depend on the number of factors: h is called equally often for 10 and 10,000 factors."""
    counts = []
    for n in (10, 10_000):
        calls = []

        def h(a, b, calls=calls):
            calls.append(1)
            return a * b

        graph = gbp.FactorGraph()
        x = graph.variable("x", (n,), prior=gbp.Gaussian.from_moments(1.0, 1.0))
        index = np.random.default_rng(0).permutation(n)
        graph.add(gbp.Factor(h, (x[:-1], x[1:]), y=1.0, sigma=0.5))
        graph.add(gbp.Factor(h, (x[index[:-1]], x[index[1:]]), y=1.0, sigma=0.5))
        jax.eval_shape(lambda state, graph=graph: gbp.step(graph, state), gbp.init(graph))  # traced, not compiled
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_a_compiler_without_the_lean_option_compiles_all_the_same():
    unknown = (("xla_no_such_option", True),)
    assert compiling.lean_options(unknown) is None
    double = compiling.lean_jit(lambda x: 2 * x, unknown)
    assert double(jnp.ones(3)).tolist() == [2, 2, 2]
    assert jax.jit(lambda x: double(x) + 1)(jnp.ones(3)).tolist() == [3, 3, 3]  # inside of another program
    compiling.release_memory()
