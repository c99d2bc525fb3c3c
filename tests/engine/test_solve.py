"""`gbp.solve` under JAX's transformations: against `gbp.infer`, dense solves, closed forms and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import gbplearn as gbp
from gbplearn.kernels.registry import NoKernels, kernels

N = gbp.Gaussian.from_moments
RING = np.arange(5)
NEXT = (RING + 1) % 5


def same(a):
    return a


def bent(a, b):
    return jnp.sin(a) + a * b


def weighed(c, a, b):
    return c[0] * a + c[1] * b


def product_of_all(a, h, f, b):
    return jnp.sin(a) * h + f * b


def rows(c, x):
    return jnp.tanh(c @ x)


def folded(a, b):
    return jnp.stack([a[0] * a[1], a[0] - a[1]]) - b


def odometry(a, b):
    c, s, d = jnp.cos(a[2]), jnp.sin(a[2]), b - a
    return jnp.stack([c * d[0] + s * d[1], c * d[1] - s * d[0], d[2]])


def distance(pose, landmark):
    return jnp.hypot(pose[0] - landmark[0], pose[1] - landmark[1])


# Each adds variables and factors of its own to a graph. All have loops, and all but one are nonlinear.


def ring(graph, rng, name, prior=True, **kwargs):
    known = {"prior": N(0.3, 0.6)} if prior else {"start": np.full(5, 0.3)}
    x = graph.variable(name, (5,), **known)
    sigma = kwargs.pop("sigma", 0.5)
    y = 0.4 + 0.3 * rng.standard_normal(5)
    graph.add(gbp.Factor(bent, (x[RING], x[NEXT]), y=y, sigma=sigma, name=name, **kwargs))
    if not prior:
        y = 0.3 * rng.standard_normal(5)
        graph.add(gbp.Factor(same, (x[:],), y=y, sigma=np.full(5, 0.7), linear=True, name=f"{name} measured"))


def linear_ring(graph, rng, name):
    x = graph.variable(name, (5,), prior=N(0.3, np.ones(5)))
    c = rng.uniform(0.5, 1.0, (5, 2))
    graph.add(gbp.Factor(weighed, (c, x[RING], x[NEXT]), y=rng.standard_normal(5), sigma=0.8, linear=True, name=name))


def known_in_part(graph, rng, name):
    x = graph.variable(name, (5,), prior=N(0.0, 1.0))
    held, fixed = (graph.variable(f"{name} {what}", (5,), prior=N(0.0, 1.0)) for what in ("held", "fixed"))
    y = rng.standard_normal(5)
    graph.add(gbp.Factor(product_of_all, (x[RING], held[RING], fixed[RING], x[NEXT]), y=y, sigma=0.6, name=name))
    graph.hold(f"{name} held", N(np.full(5, 0.5), 0.3))
    graph.observe(f"{name} fixed", rng.standard_normal(5))
    graph.observe(name, [0.0, 0.0, 0.7, 0.0, 0.0], mask=[0, 0, 1, 0, 0])


def tied(graph, rng, name):
    x, z = (graph.variable(f"{name} {i}", (5,), prior=N(0.2, 1.5)) for i in range(2))
    graph.add(gbp.Factor(bent, (x[RING], z[NEXT]), y=rng.standard_normal(5), sigma=0.8, name=name))
    graph.tie(f"{name} 0", f"{name} 1")


def several_outputs(graph, rng, name):
    x = graph.variable(name, (3, 7), prior=N(0.0, 1.0))
    y = 0.3 * rng.standard_normal((3, 2))
    graph.add(gbp.Factor(rows, (rng.standard_normal((3, 2, 7)), x[:]), y=y, sigma=0.4, name=name))
    across = rng.standard_normal((1, 2, 3)), x[:, 0].reshape(1, 3)
    graph.add(gbp.Factor(rows, across, y=[[0.1, -0.2]], sigma=0.4, name=f"{name} across"))


def blocks(graph, rng, name):
    prior = N(np.ones((4, 2)), covariance=[[1.0, 0.3], [0.3, 0.5]])
    x, ring = graph.variable(name, (4, 2), block=True, prior=prior), np.arange(4)
    noise = {"covariance": [[0.5, 0.1], [0.1, 0.4]], "robust": gbp.Huber(0.7), "weight": [1.0, 0.0, 0.5, 1.0]}
    y = 0.3 * rng.standard_normal((4, 2))
    graph.add(gbp.Factor(folded, (x[ring], x[(ring + 1) % 4]), y=y, name=name, **noise))


def positions(graph, rng, name):
    """No priors: cavities are improper in some directions, or in all, at rest too."""
    true = np.array([[0.0, 0.0], [1.0, 0.5], [2.0, 0.0]])
    x = graph.variable(name, (3, 2), block=True, start=true + 0.1)
    marks, y = np.array([[0.0, 2.0], [2.0, 3.0]]), np.diff(true, axis=0) + 0.1 * rng.standard_normal((2, 2))
    graph.add(gbp.Factor(jnp.subtract, (x[1:], x[:-1]), y=y, sigma=0.2, linear=True, name=f"{name} links"))
    i, j = np.repeat(np.arange(3), 2), np.tile([0, 1], 3)
    ranges = np.linalg.norm(true[i] - marks[j], axis=1) + 0.1 * rng.standard_normal(6)
    graph.add(gbp.Factor(distance, (x[i], marks[j]), y=ranges, sigma=0.1, name=name))


def poses(graph, rng, name):
    """The same with angles, and landmarks that are unknown."""
    turn = 0.5 * np.arange(4)
    true = np.stack([3 * np.cos(turn), 3 * np.sin(turn), turn + np.pi / 2], 1)
    marks = np.array([[0.0, 0.5], [4.0, 4.0]])
    x = graph.variable(name, (4, 3), block=True, start=true)
    marked = graph.variable(f"{name} marks", (2, 2), block=True, start=marks + 0.1)
    y = jax.vmap(odometry)(true[:-1], true[1:]) + 0.05 * rng.standard_normal((3, 3))
    graph.add(gbp.Factor(same, (x[0:1],), y=true[0:1], sigma=0.1, linear=True, name=f"{name} anchor"))
    graph.add(gbp.Factor(odometry, (x[:-1], x[1:]), y=y, sigma=[0.1, 0.1, 0.05], name=name))
    i, j = np.repeat(np.arange(4), 2), np.tile([0, 1], 4)
    ranges = np.linalg.norm(true[i, :2] - marks[j], axis=1) + 0.1 * rng.standard_normal(8)
    graph.add(gbp.Factor(distance, (x[i], marked[j]), y=ranges, sigma=0.2, name=f"{name} range"))


SCALARS = {
    "ring": ring,
    "without priors": lambda *args: ring(*args, prior=False),
    "huber": lambda *args: ring(*args, robust=gbp.Huber(0.2)),
    "tukey": lambda *args: ring(*args, robust=gbp.Tukey(0.1)),
    "switched off": lambda *args: ring(*args, robust=gbp.Tukey(0.6, match="gradient")),
    "weights": lambda *args: ring(*args, weight=np.array([1.0, 0.0, 0.5, 1.0, 2.0])),
    "learnt noise": lambda *args: ring(*args, sigma=gbp.LearnNoise(0.5, 2.0)),
    "linear": linear_ring,
    "known in part": known_in_part,
    "tied": tied,
    "outputs": several_outputs,
}
BLOCKS = {"blocks": blocks, "poses": poses}
FEW_BLOCKS = {"positions": positions}


def graph_of(parts, seed=1):
    graph = gbp.FactorGraph(dtype="float64")
    for i, (name, add) in enumerate(parts.items()):
        add(graph, np.random.default_rng([seed, i]), name)
    return graph


def numbers_of(data):
    """All that derivatives can be taken with respect to, and the data as a function of it."""
    leaves, kind = jax.tree.flatten(data)
    floats = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating)]

    def with_numbers(numbers):
        new = list(leaves)
        for i, x in zip(floats, numbers):
            new[i] = x
        return jax.tree.unflatten(kind, new)

    return [leaves[i] for i in floats], with_numbers


def summary(solution, names):
    """A number that depends on all means, precisions and noises."""
    out = sum(jnp.sum(s) for s in solution.noise.values())
    for name in names:
        b = solution.beliefs[name]
        w = jnp.cos(1 + jnp.arange(b.mean.size)).reshape(b.shape)
        out = out + jnp.sum(w * jnp.sin(b.mean)) + jnp.sum(w * jnp.log(b.variance))
    return out


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(SCALARS, id="scalars"),
        pytest.param(FEW_BLOCKS, id="few blocks"),
        pytest.param(BLOCKS, id="blocks", marks=pytest.mark.slow),
    ],
)
def test_as_infer_and_its_derivatives_as_finite_differences(parts, x64):
    graph = graph_of(parts)
    options = {"tolerance": 1e-12, "schedule": gbp.Order(*graph.factors)}
    program, data = gbp.compile(graph), graph.data()
    numbers, with_numbers = numbers_of(data)
    unknown = [name for name, keep in program.names if keep in data.prior]
    solved = jax.jit(lambda x: gbp.solve(program, with_numbers(x), full=True, **options))

    found, result = solved(numbers), gbp.infer(graph, **options)
    assert bool(found.converged), float(found.residual)
    assert result.status is gbp.Status.CONVERGED
    assert set(found.beliefs) == set(result)
    for name in {"huber", "tukey", "switched off"} & parts.keys():
        assert 0 < result.trace.switched[name][-1] < 1  # some factors are outside of the threshold
    for name in result:
        off = (found.beliefs[name].mean - result[name].mean) / result[name].std
        assert np.abs(off).max() < 1e-6, name
        np.testing.assert_allclose(found.beliefs[name].std, result[name].std, rtol=1e-6, err_msg=name)
    assert found.noise.keys() == result.noise.keys()
    for name, value in result.noise.items():
        assert float(found.noise[name]) == pytest.approx(value, rel=1e-6)

    gradient = jax.jit(jax.grad(lambda x: summary(gbp.solve(program, with_numbers(x), full=True, **options), unknown)))
    slopes, rng, h = gradient(numbers), np.random.default_rng(2), 1e-5
    values = jax.jit(lambda x: summary(solved(x), unknown))
    for i, (x, slope) in enumerate(zip(numbers, slopes)):
        assert np.isfinite(slope).all(), i
        # Along a random direction that leaves zeros (flat priors, weights of nothing) and observed values as they are.
        step = np.where((x == 0) | (np.abs(x) > 1e20), 0, rng.standard_normal(x.shape))
        if x.ndim > 2 and x.shape[-1] == x.shape[-2]:
            step = step + np.swapaxes(step, -1, -2)
        ahead, back = ([*numbers[:i], x + sign * step, *numbers[i + 1 :]] for sign in (h, -h))
        expected = float(values(ahead) - values(back)) / (2 * h)
        assert float(np.sum(slope * step)) == pytest.approx(expected, rel=1e-5, abs=1e-6), i


def energy(x, y, z, sigma, mean, std, slope):
    """Of the loopy graph below."""
    links = jnp.sum((y - slope * (x[1:] - x[:-1])) ** 2) / 0.09
    ranges = jnp.sum((z - jnp.sqrt(1 + (x[:-3] - x[3:]) ** 2)) ** 2) / sigma**2
    return 0.5 * (links + ranges + jnp.sum(((x - mean) / std) ** 2))


def scaled_difference(slope, a, b):
    return slope * (b - a)


def range_of(a, b):
    return jnp.sqrt(1 + (a - b) ** 2)


@pytest.fixture
def loopy(x64):
    """A nonlinear graph with loops, its numbers, and its belief as a function of them."""
    n, rng = 8, np.random.default_rng(0)
    graph = gbp.FactorGraph(dtype="float64")
    mean, std, slope = np.arange(n) * 1.0, np.full(n, 1.0), np.ones(n - 1)
    x = graph.variable("x", (n,), prior=N(mean, std))
    y, z = 1 + 0.2 * rng.standard_normal(n - 1), np.sqrt(10) + 0.2 * rng.standard_normal(n - 3)
    links = (slope, x[:-1], x[1:])
    graph.add(gbp.Factor(scaled_difference, links, y=y, sigma=0.3, linear=True, name="links"))
    graph.add(gbp.Factor(range_of, (x[:-3], x[3:]), y=z, sigma=0.2, name="ranges"))
    program, data = gbp.compile(graph), graph.data()

    def belief(y, z, sigma, mean, std, slope):
        new = data.replace(
            y={"links": y, "ranges": z},
            sigma={"ranges": sigma},
            prior={"x": N(mean, std)},
            constants={"links": (slope,)},
        )
        return gbp.solve(program, new, tolerance=1e-12)["x"]

    return tuple(map(jnp.asarray, (y, z, 0.2, mean, std, slope))), belief


def test_derivatives_of_the_map_by_the_implicit_function_theorem(loopy):
    """At the minimum `dE/dx = 0`, so `dx/dp = -(d²E/dx²)^-1 d²E/dx dp`, with all second derivatives of `h`."""
    numbers, belief = loopy
    found = jax.jit(lambda *p: belief(*p).mean)(*numbers)
    np.testing.assert_allclose(jax.grad(energy)(found, *numbers), 0, atol=1e-8)
    whole = jax.hessian(energy)(found, *numbers)
    mixed = jax.jacobian(jax.grad(energy), argnums=tuple(range(1, 7)))(found, *numbers)
    jacobians = jax.jit(jax.jacrev(lambda *p: belief(*p).mean, argnums=tuple(range(6))))(*numbers)
    for jacobian, right in zip(jacobians, mixed):
        expected = -np.linalg.solve(whole, np.asarray(right).reshape(8, -1)).reshape(right.shape)
        np.testing.assert_allclose(jacobian, expected, rtol=1e-6, atol=1e-8)


def test_derivatives_of_precisions_as_finite_differences(loopy):
    numbers, belief = loopy
    flat, unflat = ravel_pytree(numbers)
    w = np.random.default_rng(3).standard_normal(8)

    def value(v):
        return jnp.sum(w * jnp.log(belief(*unflat(v)).lam))

    found, h = jax.jit(jax.grad(value))(flat), 1e-5
    compiled = jax.jit(value)
    expected = [float(compiled(flat + e) - compiled(flat - e)) / (2 * h) for e in h * np.eye(flat.size)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


N_LINEAR = 6
PAIRS = np.array([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (1, 4)])


def linear_graph():
    """Eight pairs of six variables: three loops and more."""
    graph = gbp.FactorGraph(dtype="float64")
    x = graph.variable("x", (N_LINEAR,), prior=N(np.zeros(N_LINEAR), np.ones(N_LINEAR)))
    args = np.ones((len(PAIRS), 2)), x[PAIRS[:, 0]], x[PAIRS[:, 1]]
    noise = np.ones(len(PAIRS))
    graph.add(gbp.Factor(weighed, args, y=0 * noise, sigma=noise, linear=True, name="pairs"))
    return graph


def dense(c, y, sigma, mean, std):
    """The matrix of the measurements, the covariance and the mean."""
    j = np.zeros((len(PAIRS), N_LINEAR))
    j[np.arange(len(PAIRS))[:, None], PAIRS] = c
    cov = np.linalg.inv(np.diag(std**-2) + (j.T / sigma**2) @ j)
    return j, cov, cov @ (mean / std**2 + j.T @ (y / sigma**2))


def test_random_linear_graphs_against_dense_solves(x64):
    """Means on graphs with loops are exact: so are their derivatives, `cov J' R^-1` and the like."""
    graph = linear_graph()
    program, data = gbp.compile(graph), graph.data()

    def means(y, sigma, mean, std, c):
        new = data.replace(y={"pairs": y}, sigma={"pairs": sigma}, constants={"pairs": (c,)}, prior={"x": N(mean, std)})
        found = gbp.solve(program, new, tolerance=1e-12, full=True)
        return found.beliefs["x"].mean, found.converged

    derivatives = jax.jit(jax.jacrev(means, argnums=(0, 1, 2), has_aux=True))
    compiled = jax.jit(means)

    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        rng = np.random.default_rng(seed)
        y, mean = rng.standard_normal(len(PAIRS)), rng.standard_normal(N_LINEAR)
        # Information is less than three times the prior's in each variable: messages converge.
        sigma, std = rng.uniform(1.0, 2.0, len(PAIRS)), rng.uniform(0.5, 1.0, N_LINEAR)
        c = rng.uniform(-1, 1, (len(PAIRS), 2))
        j, cov, expected = dense(c, y, sigma, mean, std)
        found, converged = compiled(y, sigma, mean, std, c)
        assert bool(converged)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
        (by_y, by_sigma, by_mean), _ = derivatives(y, sigma, mean, std, c)
        gain = cov @ j.T / sigma**2
        np.testing.assert_allclose(by_y, gain, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(by_mean, cov / std**2, rtol=1e-6, atol=1e-8)
        # d/d sigma of cov (J' R^-1 y + ...): -2 / sigma^3 of `cov J' (y - J x)`, column by column.
        np.testing.assert_allclose(by_sigma, -2 / sigma * gain * (y - j @ expected), rtol=1e-6, atol=1e-8)

    check()


def test_precisions_of_a_tree_in_closed_form(x64):
    """Exact on trees: `d cov / d sigma = 2 / sigma^3 cov J' J cov` of each measurement."""
    n = 5
    graph = gbp.FactorGraph(dtype="float64")
    x = graph.variable("x", (n,), prior=N(0.0, 2.0))
    sigma = np.linspace(0.5, 1.5, n - 1)
    links = np.tile([-1.0, 1.0], (n - 1, 1)), x[:-1], x[1:]
    graph.add(gbp.Factor(weighed, links, y=0.0, sigma=sigma, linear=True, name="links"))
    program, data = gbp.compile(graph), graph.data()

    def variances(s):
        return gbp.solve(program, data.replace(sigma={"links": s}))["x"].variance

    j = np.diff(np.eye(n), axis=0)
    cov = np.linalg.inv(np.eye(n) / 4 + (j.T / sigma**2) @ j)
    np.testing.assert_allclose(variances(sigma), np.diag(cov), rtol=1e-10)
    np.testing.assert_allclose(jax.jacrev(variances)(sigma), (cov @ j.T) ** 2 * 2 / sigma**3, rtol=1e-8)


def test_a_batch_of_problems_as_one_by_one():
    """Each problem comes to rest by itself."""
    graph = gbp.FactorGraph()
    ring(graph, np.random.default_rng(1), "x")
    program, data = gbp.compile(graph), graph.data()
    rng = np.random.default_rng(4)
    many = (0.4 + rng.standard_normal((100, 5))).astype(np.float32)

    def solved(y):
        return gbp.solve(program, data.replace(y={"x": y}), full=True)

    one, together = jax.jit(solved), jax.jit(jax.vmap(solved))(many)
    each = [one(y) for y in many]
    steps = np.array([int(s.iterations) for s in each])
    assert steps.min() < steps.max()
    np.testing.assert_array_equal(together.iterations, steps)
    for name in ("mean", "std"):
        a, b = getattr(together.beliefs["x"], name), np.stack([getattr(s.beliefs["x"], name) for s in each])
        np.testing.assert_allclose(a, b, atol=1e-6)
    slope = jax.jit(jax.grad(lambda y: solved(y).beliefs["x"].mean.sum()))
    slopes = jax.jit(jax.grad(lambda ys: jax.vmap(solved)(ys).beliefs["x"].mean.sum()))(many[:7])
    np.testing.assert_allclose(slopes, np.stack([slope(y) for y in many[:7]]), rtol=1e-4, atol=1e-5)


def test_new_numbers_are_not_traced_again():
    calls = []

    def counted(a, b):
        calls.append(1)
        return bent(a, b)

    graph = gbp.FactorGraph()
    x = graph.variable("x", (5,), prior=N(0.3, 1.0))
    graph.add(gbp.Factor(counted, (x[RING], x[NEXT]), y=np.zeros(5), sigma=0.5, name="ring"))
    program, data = gbp.compile(graph), graph.data()
    compiled = jax.jit(lambda y: gbp.solve(program, data.replace(y={"ring": y}))["x"].mean)
    first = compiled(np.zeros(5))
    traced = len(calls)
    second = compiled(np.ones(5))
    third = gbp.solve(program, data.replace(y={"ring": np.ones(5)}))["x"].mean
    gbp.solve(program, data, tolerance=1e-4, iterations=50)
    gbp.solve(gbp.compile(graph), graph.data())
    assert len(calls) == traced
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_allclose(second, third, atol=1e-6)


def curved(a):
    return a * a


def test_forward_mode_and_second_derivatives(x64):
    """One variable: its MAP `x` solves `(x - m) + 2 x (x² - y) / s² = 0`."""
    graph = gbp.FactorGraph(dtype="float64")
    x = graph.variable("x", (1,), prior=N(1.0, 1.0))
    graph.add(gbp.Factor(curved, (x[:],), y=np.array([2.0]), sigma=0.8, name="square"))
    program, data = gbp.compile(graph), graph.data()

    def mode(y):
        return gbp.solve(program, data.replace(y={"square": y}), tolerance=1e-13)["x"].mean[0]

    s2 = 0.8**2
    x = max(r.real for r in np.roots([2, 0, s2 - 4.0, -s2]) if abs(r.imag) < 1e-12)  # 2 x³ + (s² - 2 y) x - s² m
    # F(x, y) = 2 x³ + (s² - 2 y) x - s²: x' = -F_y / F_x, x'' = -(F_xx x'² + 2 F_xy x') / F_x.
    by_x, by_y = 6 * x * x + s2 - 4, -2 * x
    first = -by_y / by_x
    second = -(12 * x * first**2 - 4 * first) / by_x
    assert float(mode(2.0)) == pytest.approx(x, rel=1e-10)
    assert float(jax.grad(mode)(2.0)) == pytest.approx(first, rel=1e-8)
    assert float(jax.jvp(mode, (2.0,), (1.0,))[1]) == pytest.approx(first, rel=1e-8)
    assert float(jax.grad(jax.grad(mode))(2.0)) == pytest.approx(second, rel=1e-7)
    assert float(jax.jacfwd(jax.grad(mode))(2.0)) == pytest.approx(second, rel=1e-7)


def all_primitives(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from all_primitives(inner)


@pytest.mark.parametrize("messages", [pytest.param("per-edge", marks=pytest.mark.slow), "pooled"])
def test_networks_have_derivatives_too(messages, x64):
    net = gbp.Sequential(
        gbp.Dense(3, activation="sigmoid", sigma=0.3, name="hidden"),
        gbp.Dense(1, sigma=0.3, name="out"),
        gbp.GaussianObservation(sigma=0.2, name="head"),
        input_shape=(2,),
    )
    x = np.random.default_rng(5).standard_normal((4, 2))
    graph = net.graph(x, np.sin(x[:, :1]))
    program, data = gbp.compile(graph, messages=messages), graph.data()
    weights = [name for name, kind in graph.kinds.items() if kind == "parameter"]

    def value(sigma):
        new = data.replace(sigma={"hidden": sigma})
        found = gbp.solve(program, new, damping=0.7, tolerance=1e-11, full=True)
        return sum(jnp.sum(jnp.sin(found.beliefs[n].mean)) for n in weights), found.converged

    compiled, h = jax.jit(value), 1e-5
    slope, converged = jax.jit(jax.grad(value, has_aux=True))(0.3)
    assert bool(converged)
    expected = float(compiled(0.3 + h)[0] - compiled(0.3 - h)[0]) / (2 * h)
    assert abs(expected) > 1e-4
    assert float(slope) == pytest.approx(expected, rel=1e-5)


def test_no_kernel_is_called():
    """JAX could not differentiate it: a large image, whose factors are slices, has one."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (20, 20), prior=N(0.0, 1.0))
    pairs = x[:, :-1].reshape(-1), x[:, 1:].reshape(-1)
    graph.add(gbp.Factor(jnp.subtract, pairs, y=0.0, sigma=0.1, linear=True, name="pairs"))
    program, data = gbp.compile(graph), graph.data()
    found = set(all_primitives(jax.make_jaxpr(lambda d: gbp.solve(program, d))(data).jaxpr))
    assert "while" in found
    assert not any("ffi" in name or "custom_call" in name for name in found)
    assert isinstance(kernels(), NoKernels) is not gbp.native.available()  # outside they are as before


def test_messages_that_diverge_have_no_derivative():
    """Ten rows of positive features: what the rows say of a weight overshoots (`gbp.infer` has a guard)."""
    rng = np.random.default_rng(0)
    features = rng.random((10, 8)).astype(np.float32)
    graph = gbp.FactorGraph()
    w = graph.variable("w", (8,), prior=N(0.0, 10.0))
    graph.add(gbp.Factor(jnp.dot, (features, w[None]), y=np.ones(10), sigma=0.1, linear=True, name="rows"))
    program, data = gbp.compile(graph), graph.data()

    def weights(y):
        found = gbp.solve(program, data.replace(y={"rows": y}), iterations=300, full=True)
        return found.beliefs["w"].mean.sum(), found

    slope, found = jax.grad(weights, has_aux=True)(np.ones(10, np.float32))
    assert not bool(found.converged)
    assert not float(found.residual) < 1e-3
    assert np.isnan(slope).all()
    assert bool(gbp.solve(program, data, damping=0.8, iterations=3000, full=True).converged)


def test_how_it_ended():
    graph = gbp.FactorGraph()
    ring(graph, np.random.default_rng(1), "x")
    program, data = gbp.compile(graph), graph.data()
    short = gbp.solve(program, data, iterations=2, full=True)
    assert (bool(short.converged), int(short.iterations)) == (False, 2)
    full = gbp.solve(program, data, full=True)
    assert isinstance(full, gbp.Solution)
    assert bool(full.converged)
    assert float(full.residual) <= 1e-4
    assert set(gbp.solve(program, data)) == {"x"}


def test_what_is_all_observed_has_the_derivatives_of_constants():
    graph = gbp.FactorGraph()
    x = graph.variable("x", (2,), prior=N(0.0, 1.0))
    graph.add(gbp.Factor(same, (x,), y=1.0, sigma=1.0))
    program, data = gbp.compile(graph, evidence={"x": [1.0, 2.0]}), graph.data({"x": [1.0, 2.0]})

    def mean(value, y):
        found = gbp.solve(program, data.replace(fixed={"x": value}, y={"same": y}), full=True)
        return found.beliefs["x"].mean, found.converged

    (by_value, by_y), converged = jax.jacobian(mean, argnums=(0, 1), has_aux=True)(jnp.asarray([1.0, 2.0]), 1.0)
    assert bool(converged)
    np.testing.assert_array_equal(by_value, np.eye(2))
    np.testing.assert_array_equal(by_y, np.zeros(2))


WRONG = {
    "no iterations": (lambda p, d: gbp.solve(p, d, iterations=0), "iterations must be"),
    "tolerance": (lambda p, d: gbp.solve(p, d, tolerance=-1.0), "tolerance must be >= 0"),
    "damping": (lambda p, d: gbp.solve(p, d, damping=1.0), r"damping must lie in \[0, 1\)"),
    "random": (lambda p, d: gbp.solve(p, d, schedule=gbp.RandomLayers()), r"RandomLayers\(\) picks"),
    "residual": (lambda p, d: gbp.solve(p, d, schedule=gbp.Residual()), r"gbp\.Residual\(\) picks"),
    "tree": (lambda p, d: gbp.solve(p, d, schedule=gbp.TreeOrder()), r"gbp\.TreeOrder\(\) sweeps over a tree"),
    "y": (lambda p, d: d.replace(y={"x": np.zeros(3)}), r"'x': \(3,\) does not fit the shape \(5, 1\)"),
    "constants": (lambda p, d: d.replace(constants={"x": (1.0,)}), "'x' has 0 constants, got 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case):
    graph = gbp.FactorGraph()
    ring(graph, np.random.default_rng(1), "x")
    call, match = WRONG[case]
    with pytest.raises(ValueError, match=match) as raised:
        call(gbp.compile(graph), graph.data())
    assert "\n" not in str(raised.value)


def test_arrays_over_factors_and_measurements_as_a_user_has_them():
    """Stored as `(F, M)`; an array of the same size whose axes are the wrong way round is no such thing."""
    graph = gbp.FactorGraph()
    x = graph.variable("x", (3, 4), prior=N(0.0, 1.0))
    graph.add(gbp.Factor(same, (x[:],), y=np.zeros((3, 4)), sigma=1.0, name="rows"))
    data = graph.data()
    y = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(data.replace(y={"rows": y}).factors["rows"].y, y)
    np.testing.assert_array_equal(data.replace(y={"rows": y[0]}).factors["rows"].y, np.tile(y[0], (3, 1)))
    with pytest.raises(ValueError, match=r"'rows': \(4, 3\) does not fit the shape \(3, 4\)"):
        data.replace(y={"rows": y.T})
