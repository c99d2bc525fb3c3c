"""Graphs that grow: the same as those built at once, and nothing is compiled on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gbplearn as gbp
from helpers import Linear
from pose_graphs import PoseGraph, relative_pose

N01 = gbp.Gaussian.from_moments(0.0, 1.0)


def minus(a, b):
    return b - a


def same(a):
    return a


def chain(capacity=16):
    """One unit, and a group of differences without any yet."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,), prior=N01, capacity=capacity)
    graph.add(gbp.Factor(minus, (x[:0], x[:0]), sigma=0.5, linear=True, name="steps", capacity=capacity))
    return graph, x


class Dense:
    """The same graph as one system: units have N(0, 1) as prior."""

    def __init__(self):
        self.units, self.rows = 1, {}

    def solve(self):
        model = Linear(self.units)
        for i in range(self.units):
            model.prior(i, 0.0, 1.0)
        for i, j, y, sigma in self.rows.values():
            row = np.zeros(self.units)
            row[i], row[j] = -1.0, 1.0
            model.measure(row[None], y, sigma**2)
        mean, covariance = model.solve()
        return mean, np.sqrt(np.diag(covariance))

    def check(self, result, tolerance=1e-5):
        mean, std = self.solve()
        assert result.status is gbp.Status.CONVERGED
        assert result["x"].shape == (self.units,)
        np.testing.assert_allclose((result["x"].mean - mean) / std, 0, atol=tolerance)


def one(x, i):
    return x[i : i + 1]


def grow(graph, x, dense, i, y, sigma=0.5):
    """A unit more, and its difference from unit `i`."""
    graph.grow("x", prior=N01)
    dense.units += 1
    (number,) = graph.extend("steps", (one(x, i), x[-1:]), y=y, sigma=sigma)
    dense.rows[int(number)] = i, dense.units - 1, y, sigma


@pytest.fixture
def compilations():
    """A function that says how many programs XLA has compiled since it was called last."""
    count = [0]

    def listen(name, _, **__):
        count[0] += name.endswith("backend_compile_duration")

    jax.monitoring.register_event_duration_secs_listener(listen)

    def since():
        new, count[0] = count[0], 0
        return new

    yield since
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_tree_grows_without_compiling_and_stays_exact(compilations):
    """On trees belief propagation is exact: means and standard deviations, after every step."""
    graph, x = chain()
    dense, result, rng = Dense(), None, np.random.default_rng(0)
    for k in range(15):
        grow(graph, x, dense, int(rng.integers(0, dense.units)), rng.standard_normal())
        compilations()
        result = gbp.infer(graph, init=result, tolerance=1e-6)
        dense.check(result)
        np.testing.assert_allclose(result["x"].std, dense.solve()[1], rtol=1e-5)
        assert result["x"].mean[-1] == np.asarray(result["x"].mean)[-1]
        assert result.measurements == {"steps": k + 1}
        # At first without a warm start, then with one.
        assert (compilations() == 0) == (k > 1), k


def test_a_graph_that_grew_is_the_graph_built_at_once():
    """Poses as blocks, nonlinear, with loops: the same fixed point, though the room was doubled on the way."""
    poses = PoseGraph.random(3, poses=25, closures=3)
    whole = gbp.infer(poses.graph(), tolerance=1e-4, iterations=3000, damping=0.3)
    graph = gbp.FactorGraph()
    lam = np.diag(poses.anchor_sigma**-2.0)
    anchor = gbp.Gaussian(jnp.asarray(lam @ poses.anchor, jnp.float32)[None], jnp.asarray(lam, jnp.float32)[None])
    pose = graph.variable("pose", (1, 3), block=True, start=poses.start[:1], prior=anchor, capacity=16)
    none = (np.zeros((0, 3)), pose[:0], pose[:0])
    graph.add(gbp.Factor(relative_pose, none, sigma=poses.sigma, name="pairs", capacity=20))
    result = None
    for k in range(1, 25):
        graph.grow("pose", start=poses.start[k])
        for i, j in poses.pairs[poses.pairs.max(1) == k]:
            z = poses.z[(poses.pairs == (i, j)).all(1)]
            graph.extend("pairs", (z, one(pose, i), one(pose, j)))
        last = k == 24
        if k == 12 or last:
            tolerance = 1e-4 if last else 1e-3
            result = gbp.infer(graph, init=result, tolerance=tolerance, iterations=3000, damping=0.3)
    assert result.status is whole.status is gbp.Status.CONVERGED
    std = np.asarray(whole["pose"].std)
    np.testing.assert_allclose((result["pose"].mean - whole["pose"].mean) / std, 0, atol=5e-3)
    np.testing.assert_allclose(result["pose"].std, std, rtol=1e-3)
    energy = graph.energy(result)
    assert energy == pytest.approx(poses.graph().energy(whole), rel=1e-3, abs=1e-6)


def test_room_doubles_when_it_is_used_up_and_messages_stay():
    (graph, x), (roomy, z) = chain(capacity=2), chain(capacity=16)
    dense, also, result, other = Dense(), Dense(), None, None
    for k in range(9):
        grow(graph, x, dense, k, 1.0)
        grow(roomy, z, also, k, 1.0)
        result, other = (gbp.infer(g, init=r, tolerance=1e-6) for g, r in ((graph, result), (roomy, other)))
        dense.check(result)
        assert result.iterations == other.iterations
    assert graph._entries["x"].growing.room == graph._growing["steps"].room == 16
    rooms = [p.shape[0] for p in (graph.problem().prior["x"], result.problem.prior["x"])]
    assert rooms == [16, 16]


def test_removed_factors_were_never_there():
    graph, x = chain()
    dense = Dense()
    for k in range(5):
        grow(graph, x, dense, k, 0.3 * k)
    (extra,) = graph.extend("steps", (x[:1], x[4:5]), y=7.0, sigma=0.01)
    first = gbp.infer(graph, tolerance=1e-6, iterations=5000)
    assert abs(float(first["x"].mean[4] - first["x"].mean[0]) - 7.0) < 0.1
    graph.remove("steps", extra)
    dense.check(gbp.infer(graph, tolerance=1e-6))
    dense.check(gbp.infer(graph, init=first, tolerance=1e-6))
    # Its place is used again, by a factor that must not begin with its messages.
    (again,) = graph.extend("steps", (x[1:2], x[3:4]), y=0.0, sigma=2.0)
    assert again == extra + 1
    assert graph._growing["steps"].padded_numbers().tolist()[:6] == [0, 1, 2, 3, 4, again]
    dense.rows[int(again)] = 1, 3, 0.0, 2.0
    dense.check(gbp.infer(graph, init=first, tolerance=1e-7, iterations=5000), 1e-4)


def test_all_factors_may_go_and_others_come():
    graph, x = chain()
    dense = Dense()
    for k in range(3):
        grow(graph, x, dense, k, 1.0)
    before = gbp.infer(graph)
    graph.remove("steps", [0, 1, 2])
    nothing = gbp.infer(graph, init=before)
    np.testing.assert_array_equal(nothing["x"].mean, 0)
    assert nothing.measurements == {"steps": 0.0}
    assert "0 x 1 measurement" in repr(graph)
    dense.rows.clear()
    grow(graph, x, dense, 1, 2.0)
    dense.check(gbp.infer(graph, init=nothing, tolerance=1e-6))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(["grow", "join", "remove", "infer"]), max_size=25))
def test_any_sequence_ends_where_a_dense_solve_does(seed, what):
    rng, dense, result = np.random.default_rng(seed), Dense(), None
    graph, x = chain()
    grow(graph, x, dense, 0, 1.0)
    for step in what:
        if step == "grow" and dense.units < 16:
            grow(graph, x, dense, int(rng.integers(0, dense.units)), rng.standard_normal(), rng.uniform(0.3, 2.0))
        elif step == "join" and dense.units > 2 and len(dense.rows) < 16:
            i, j = rng.choice(dense.units, 2, replace=False)
            y = rng.standard_normal()
            (number,) = graph.extend("steps", (one(x, i), one(x, j)), y=y, sigma=1.5)
            dense.rows[int(number)] = i, j, y, 1.5
        elif step == "remove" and dense.rows:
            number = int(rng.choice(list(dense.rows)))
            graph.remove("steps", number)
            del dense.rows[number]
        elif step == "infer":
            result = gbp.infer(graph, init=result, iterations=5)
    result = gbp.infer(graph, init=result, tolerance=1e-6, iterations=5000)
    # Where loops are strong, messages rest only as well as float32 resolves them.
    dense.check(result, 1e-3)


def robust_fit(grown):
    """Values of which some are wild, a robust group and one whose noise is learnt; grown, or at once."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(2.0, 0.1, 9), [30.0, -40.0, 50.0]])
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=gbp.Gaussian.from_moments(0.0, 5.0), kind="parameter", **grown)
    a, b = (x[np.full(12, i)] for i in range(2))
    if grown:
        graph.add(gbp.Factor(same, (x[:0],), sigma=0.1, robust=gbp.Tukey(3.0), name="robust", **grown))
        graph.add(gbp.Factor(same, (x[:0],), sigma=gbp.LearnNoise(1.0), name="learnt", **grown))
        for k in range(0, 12, 3):
            graph.extend("robust", x[np.full(3, 0)], y=y[k : k + 3])
        graph.extend("learnt", b, y=y[:9].tolist() + [2.0] * 3)
    else:
        graph.add(gbp.Factor(same, (a,), y=y, sigma=0.1, robust=gbp.Tukey(3.0), name="robust"))
        graph.add(gbp.Factor(same, (b,), y=y[:9].tolist() + [2.0] * 3, sigma=gbp.LearnNoise(1.0), name="learnt"))
    return graph


@pytest.mark.parametrize("options", [{}, {"damping": 0.5}, {"relinearise": 3}, {"settled": 1e-4}], ids=str)
def test_rows_that_are_not_in_use_have_no_influence(options):
    """Energies, switches, learnt noise, counts and evidence are those of the graph without room."""
    graph, other = robust_fit({"capacity": 64}), robust_fit({})
    one, two = (gbp.infer(g, tolerance=1e-6, **options) for g in (graph, other))
    np.testing.assert_allclose(one["x"].mean, two["x"].mean, rtol=1e-5)
    np.testing.assert_allclose(one["x"].std, two["x"].std, rtol=1e-5)
    assert abs(one.iterations - two.iterations) <= 1  # sums are rounded in another order
    least = min(one.iterations, two.iterations)
    assert one.message == two.message
    assert one.noise == pytest.approx(two.noise, rel=1e-5)
    assert one.measurements == two.measurements == {"robust": 12.0, "learnt": 12.0}
    for name in ("robust", "learnt"):
        for what, of in (("energy", 1e-4), ("switched", 1e-6), ("residuals", 1e-4)):
            a, b = (getattr(r.trace, what)[name][1:least] for r in (one, two))
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=of)
    assert one.log_evidence == pytest.approx(two.log_evidence, rel=1e-4)
    assert graph.energy(one) == pytest.approx(other.energy(two), rel=1e-4)


def test_evidence_of_a_tree_that_grew_is_that_of_its_dense_system():
    graph, x = chain()
    dense, rng = Dense(), np.random.default_rng(1)
    for k in range(6):
        grow(graph, x, dense, k // 2, rng.standard_normal())
    model = Linear(7)
    for i in range(7):
        model.prior(i, 0.0, 1.0)
    for i, j, y, sigma in dense.rows.values():
        model.measure((np.eye(7)[j] - np.eye(7)[i])[None], y, sigma**2)
    result = gbp.infer(graph, tolerance=1e-6)
    before = result.log_evidence
    assert before == pytest.approx(model.log_evidence(), abs=1e-4)
    grow(graph, x, dense, 0, 1.0)  # what is added later does not change it
    assert result.log_evidence == before
    assert result["x"].shape == (7,)


def test_flat_units_and_observed_ones():
    """Units without a prior; some are observed, before and after the variable has grown."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2, 2), block=True, capacity=8)
    graph.observe("x", [[1.0, 2.0], [3.0, 4.0]])
    graph.add(gbp.Factor(minus, (x[:1], x[1:2]), sigma=1.0, name="steps", capacity=8))
    graph.grow("x", 2)
    graph.extend("steps", (x[1:3], x[2:4]), y=[[1.0], [0.0]], sigma=1.0)
    result = gbp.infer(graph)
    assert result.message == "converged"
    np.testing.assert_allclose(result["x"].mean, [[1, 2], [3, 4], [4, 5], [4, 5]], atol=1e-5)
    np.testing.assert_allclose(result["x"].variance[2:], [[1, 1], [2, 2]], rtol=1e-5)
    graph.grow("x")
    assert "not everything is known of x" in gbp.infer(graph, init=result).message
    held = gbp.infer(graph, init=result, evidence={"x": (np.zeros((5, 2)), [True, True, False, False, True])})
    np.testing.assert_allclose(held["x"].mean, [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0]], atol=1e-5)
    graph.hold("x", gbp.Gaussian.from_moments(np.ones((5, 2)), 1.0))
    assert gbp.infer(graph)["x"].shape == (5, 2)
    graph.grow("x")
    with pytest.raises(ValueError, match="'x' has grown since it was held"):
        gbp.infer(graph)


def test_any_graph_can_begin_to_grow():
    """A group of slices, inferred, then extended: its messages stay, and so do the numbers of its factors."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (4,), prior=N01)
    graph.add(gbp.Factor(minus, (x[:-1], x[1:]), y=[1.0, 2.0, 3.0], sigma=0.5, linear=True, name="steps"))
    result, dense = gbp.infer(graph, tolerance=1e-6), Dense()
    dense.units, dense.rows = 4, {k: (k, k + 1, k + 1.0, 0.5) for k in range(3)}
    grow(graph, x, dense, 3, 4.0)
    assert list(dense.rows) == [0, 1, 2, 3]
    resumed = gbp.infer(graph, init=result, tolerance=1e-6)
    dense.check(resumed)
    assert resumed.iterations <= 7  # the newest message goes back along the chain
    graph.remove("steps", 1)
    del dense.rows[1]
    dense.check(gbp.infer(graph, init=resumed, tolerance=1e-6))
    assert [f.factors for f in graph.factors.values()] == [3]


def test_a_group_more_starts_without_messages():
    graph, x = chain()
    dense = Dense()
    for k in range(3):
        grow(graph, x, dense, k, 1.0)
    result = gbp.infer(graph, tolerance=1e-6)
    graph.add(gbp.Factor(minus, (x[:1], x[3:4]), y=0.0, sigma=1.0, linear=True, name="closure"))
    dense.rows["closure"] = 0, 3, 0.0, 1.0
    dense.check(gbp.infer(graph, init=result, tolerance=1e-7), 1e-4)


def test_options_that_keep_more_than_messages():
    """Stored linearisation points, damping and pooled messages go on through growth."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,), prior=N01, start=0.5, capacity=8)
    graph.add(gbp.Factor(lambda a, b: jnp.sinh(b - a), (x[:0], x[:0]), sigma=0.5, name="steps", capacity=8))
    results = {}
    for k in range(4):
        graph.grow("x", prior=N01, start=0.1 * k)
        graph.extend("steps", (x[-2:-1], x[-1:]), y=0.4)
        for name, options in (
            ("plain", {}),
            ("points", {"relinearise": gbp.OnMovement(1e-3)}),
            ("damped", {"damping": 0.3}),
        ):
            results[name] = gbp.infer(graph, init=results.get(name), tolerance=1e-5, iterations=2000, **options)
    for name in ("points", "damped"):
        np.testing.assert_allclose(results[name]["x"].mean, results["plain"]["x"].mean, atol=2e-3)
    linear, y = chain()
    dense, pooled = Dense(), None
    for k in range(4):
        grow(linear, y, dense, k, 1.0)
        pooled = gbp.infer(linear, init=pooled, messages="pooled", damping=0.5, tolerance=1e-6, iterations=3000)
    dense.check(pooled, 1e-3)


def test_the_guard_does_not_count_rows_that_are_not_in_use():
    """A loopy graph on which messages diverge: proximal steps end at the dense solution all the same."""
    rng = np.random.default_rng(0)
    rows = rng.random((30, 8))
    y = rows @ rng.standard_normal(8)

    def predict(row, w):
        return row @ w

    graph = gbp.FactorGraph()
    w = graph.variable("w", (8,), prior=gbp.Gaussian.from_moments(0.0, 10.0), capacity=12)
    graph.add(gbp.Factor(predict, (rows, w[None]), y=y, sigma=0.1, linear=True, name="rows", capacity=50))
    result = gbp.infer(graph, iterations=2000)
    assert any(e.action is gbp.GuardAction.PROXIMAL_FACTORS for e in result.guard)
    lam = rows.T @ rows / 0.01 + np.eye(8) / 100
    mean, std = np.linalg.solve(lam, rows.T @ y / 0.01), np.sqrt(np.diag(np.linalg.inv(lam)))
    np.testing.assert_allclose((result["w"].mean - mean) / std, 0, atol=1e-2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, x: g.grow("z"), KeyError, "no variable 'z'"),
        (lambda g, x: g.grow("x", 0), ValueError, "rows must be a whole number >= 1"),
        (lambda g, x: g.grow("x", -1), ValueError, "rows must be a whole number >= 1"),
        (lambda g, x: g.grow("x", start=[1.0, 2.0]), ValueError, "start of shape"),
        (lambda g, x: g.grow("x", start=np.nan), ValueError, "start holds NaN"),
        (lambda g, x: g.grow("x", prior=gbp.Gaussian.from_moments([0.0, 1.0], 1.0)), ValueError, "prior of shape"),
        (lambda g, x: g.extend("z", (x[:1], x[1:2])), KeyError, "no factor group 'z'"),
        (lambda g, x: g.extend("steps", (x[:1],)), ValueError, "takes 2 arguments, got 1"),
        (lambda g, x: g.extend("steps", (x[:1], np.ones(1))), ValueError, "argument 1 must be a view of 'x'"),
        (lambda g, x: g.extend("steps", (x[:1], x[1:2].reshape(1, 1))), ValueError, "rows of shape"),
        (lambda g, x: g.extend("steps", (x[:3], x[1:3])), ValueError, "first axes"),
        (lambda g, x: g.extend("steps", (x[:0], x[:0])), ValueError, "no factors"),
        (lambda g, x: g.extend("steps", (x[:1], x[:1])), ValueError, "occurs twice"),
        (lambda g, x: g.extend("steps", (x[:1], x[1:2]), y=[1.0, 2.0]), ValueError, "y of shape"),
        (lambda g, x: g.extend("steps", (x[:1], x[1:2]), y=np.nan), ValueError, "y holds NaN"),
        (lambda g, x: g.extend("steps", (x[:1], x[1:2]), sigma=-1.0), ValueError, "sigma must be > 0"),
        (lambda g, x: g.extend("steps", (x[:1], x[1:2]), sigma=1e-30), ValueError, "outside the range"),
        (lambda g, x: g.extend("steps", (x[:1], x[1:2]), covariance=[[1.0]]), ValueError, "given by sigma"),
        (lambda g, x: g.extend("steps", (x[:1], x[1:2]), weight=-1.0), ValueError, "weight must be finite"),
        (lambda g, x: g.extend("steps", (other()[:1], x[1:2])), ValueError, "not a variable of this graph"),
        (lambda g, x: g.remove("z", 0), KeyError, "no factor group 'z'"),
        (lambda g, x: g.remove("steps", 3), ValueError, "factor 3 never was there"),
        (lambda g, x: g.remove("steps", [0, 2]), ValueError, "factor 2 was removed already"),
        (lambda g, x: g.remove("steps", [0, 0]), ValueError, "twice"),
        (lambda g, x: g.remove("steps", 0.5), ValueError, "takes numbers of factors"),
        (lambda g, x: g.remove("steps", "first"), ValueError, "takes numbers of factors"),
        (lambda g, x: g.reserve("z", 5), KeyError, "no variable or factor group 'z'"),
        (lambda g, x: g.reserve("x", 0), ValueError, "capacity must be"),
        (lambda g, x: g.variable("y", (1,), capacity=-1), ValueError, "capacity must be"),
        (lambda g, x: g.variable("y", (0,)), ValueError, "none of length 0"),
        (lambda g, x: gbp.Factor(minus, (x[:1], x[1:2]), sigma=1.0, capacity=0), ValueError, "capacity must be"),
        (lambda g, x: g.tie("x", "other"), ValueError, "do not grow"),
        (lambda g, x: gbp.infer(g, schedule=gbp.TreeOrder()), ValueError, "'steps' grows"),
        (lambda g, x: gbp.FactorGraph().include(g), ValueError, "grow"),
    ],
)
def test_what_is_refused_leaves_the_graph_as_it_was(call, error, message):
    graph, x = chain(8)
    dense = Dense()
    for k in range(2):
        grow(graph, x, dense, k, 1.0)
    graph.remove("steps", graph.extend("steps", (x[:1], x[2:3])))
    graph.variable("other", (3,))
    before, numbers = repr(graph), graph.data()
    with pytest.raises(error, match=message) as caught:
        call(graph, x)
    assert "\n" not in str(caught.value)
    after = graph.data()
    assert repr(graph) == before
    assert jax.tree.structure(after) == jax.tree.structure(numbers)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(numbers)):
        np.testing.assert_array_equal(a, b)


def other():
    return gbp.FactorGraph().variable("x", (7,))


def test_noise_that_is_learnt_or_differs():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3,), prior=N01)
    graph.add(gbp.Factor(same, (x[:],), sigma=gbp.LearnNoise(1.0), name="learnt"))
    graph.add(gbp.Factor(same, (x[:],), sigma=[1.0, 2.0, 3.0], name="each"))
    graph.add(gbp.Factor(same, (x[:],), covariance=[[2.0]], name="full"))
    with pytest.raises(ValueError, match="its noise is learnt"):
        graph.extend("learnt", (x[:1],), sigma=1.0)
    with pytest.raises(ValueError, match="noise of its own"):
        graph.extend("each", (x[:1],))
    with pytest.raises(ValueError, match="given by covariance"):
        graph.extend("full", (x[:1],), sigma=1.0)
    assert not graph._growing  # a group that was never extended does not grow
    for name, noise in (("learnt", {}), ("each", {"sigma": 4.0}), ("full", {}), ("full", {"covariance": [[3.0]]})):
        graph.extend(name, (x[:1],), **noise)
    factors = graph.factors
    np.testing.assert_array_equal(factors["each"].noise.ravel(), [1.0, 4.0, 9.0, 16.0])
    np.testing.assert_array_equal(factors["full"].noise.ravel(), [2.0, 2.0, 2.0, 2.0, 3.0])


def test_layers_do_not_grow():
    graph = gbp.Sequential(gbp.Dense(2), gbp.GaussianObservation(0.1)).graph(np.ones((3, 4)), np.ones((3, 2)))
    group = next(n for n, f in graph.factors.items() if isinstance(f.h, gbp.FactorKind))
    variable = graph.factors[group].views[0].variable.name
    with pytest.raises(ValueError, match="not layers"):
        graph.extend(group, ())
    with pytest.raises(ValueError, match="belongs to a layer"):
        graph.grow(variable)


def test_reserved_room_is_there():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (1,), prior=N01)
    graph.add(gbp.Factor(same, (x[:],), y=1.0, sigma=1.0, name="read"))
    graph.reserve("x", 5)
    graph.reserve("read", 7)
    groups = graph.problem().groups
    assert [g.factors for g in groups] == [7]
    assert graph.problem().prior["x"].shape == (5,)
    assert graph.variables["x"].shape == (1,)
    assert "variable x: (1,)" in repr(graph)
    assert "1 x 1 measurement" in repr(graph)
    graph.draw()
