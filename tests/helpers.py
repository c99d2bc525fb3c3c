"""Oracles written in plain NumPy, float64, from the mathematics alone; and problems with known answers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.engine.diagnostics import no_diagnostics
from gbplearn.engine.loop import iterate
from gbplearn.engine.options import make_options
from gbplearn.engine.state import belief, empty_state
from gbplearn.factors.operators import Entries


def random_spd(rng, n, scale=1.0):
    a = rng.standard_normal((n, n + 2))
    return scale * (a @ a.T) / n


def schur_messages(jacobians, etas, lams, x0s, y, h0, noise):
    """The paper's update: factor precision and information, cavities added, all but one block marginalised.

    One factor. `jacobians[i]` is (M, d_i), `etas[i]` (d_i,), `lams[i]` (d_i, d_i).
    """
    j = np.concatenate(jacobians, axis=1)
    x0 = np.concatenate(x0s)
    w = np.linalg.inv(noise)
    lam = j.T @ w @ j
    eta = j.T @ w @ (j @ x0 + y - h0)
    ends = np.cumsum([k.shape[1] for k in jacobians])
    spans = [np.arange(e - k.shape[1], e) for e, k in zip(ends, jacobians)]
    full_lam, full_eta = lam.copy(), eta.copy()
    for s, a, b in zip(spans, etas, lams):
        full_eta[s] += a
        full_lam[np.ix_(s, s)] += b
    out = []
    for s in spans:
        rest = np.setdiff1d(np.arange(len(x0)), s)
        if len(rest) == 0:
            out.append((eta[s], lam[np.ix_(s, s)]))
            continue
        cross = lam[np.ix_(s, rest)]
        gain = cross @ np.linalg.inv(full_lam[np.ix_(rest, rest)])
        out.append((eta[s] - gain @ full_eta[rest], lam[np.ix_(s, s)] - gain @ cross.T))
    return out


@dataclasses.dataclass
class Linear:
    """A linear Gaussian model as one dense system, built up beside the graph that the engine sees."""

    n: int
    rows: list = dataclasses.field(default_factory=list)  # whitened: the model is |rows x - y|^2 / 2
    y: list = dataclasses.field(default_factory=list)
    log_z: float = 0.0  # log of the constant factors

    def prior(self, index, mean, cov):
        index, mean, cov = np.atleast_1d(index), np.atleast_1d(mean), np.atleast_2d(cov)
        self.measure(np.eye(self.n)[index], mean, cov)

    def measure(self, rows, y, cov):
        """A factor N(y; rows x, cov)."""
        white = np.linalg.inv(np.linalg.cholesky(np.atleast_2d(cov)))
        self.rows.append(white @ rows)
        self.y.append(white @ np.atleast_1d(y))
        self.log_z -= 0.5 * np.linalg.slogdet(2 * np.pi * np.atleast_2d(cov))[1]

    def solve(self):
        """Mean and covariance, by QR: squaring the rows would lose half of the digits."""
        q, r = np.linalg.qr(np.concatenate(self.rows))
        root = np.linalg.inv(r)
        return root @ (q.T @ np.concatenate(self.y)), root @ root.T

    def log_evidence(self):
        a, y = np.concatenate(self.rows), np.concatenate(self.y)
        q, r = np.linalg.qr(a)
        off = y - q @ (q.T @ y)
        return self.log_z - 0.5 * off @ off + 0.5 * self.n * np.log(2 * np.pi) - np.log(np.abs(np.diag(r))).sum()


def times(a, x):
    """h of a linear factor whose matrix is a constant argument."""
    return a @ x


def pair(a, x, b, z):
    return a @ x + b @ z


def pair_scalar(a, x, b, z):
    return a * x + b * z


@dataclasses.dataclass
class Forest:
    """Random trees over scalars and blocks of two, and the same trees as dense systems."""

    graph: gbp.FactorGraph
    dense: list[Linear]
    members: list[list[tuple[str, int]]]  # of each tree: which variable, which unit

    def compare(self, result):
        """Largest errors over all trees: of means and stds, in posterior standard deviations."""
        mean = {n: np.asarray(result[n].mean, float) for n in ("s", "b")}
        std = {n: np.asarray(result[n].std, float) for n in ("s", "b")}
        worst_mean = worst_std = 0.0
        for model, members in zip(self.dense, self.members):
            m, cov = model.solve()
            sd = np.sqrt(np.diag(cov))
            got_m = np.concatenate([np.atleast_1d(mean[n][i]) for n, i in members])
            got_s = np.concatenate([np.atleast_1d(std[n][i]) for n, i in members])
            worst_mean = max(worst_mean, np.abs((got_m - m) / sd).max())
            worst_std = max(worst_std, np.abs(got_s / sd - 1).max())
        return worst_mean, worst_std


def random_forest(seed, trees=200, most=100, ratio=1e-4, across=0.2, shape=0):
    """Trees of up to `most` variables; noise / prior ratios log-uniform in [ratio, 1], one for each tree.

    `shape` is the seed of the trees themselves, `seed` that of the numbers on them: forests of one shape share their
    compiled code. Two blocks are linked by two measurements, all other pairs by one, whichever is the parent. They
    are of the size of the noise, so that means are of the size of the standard deviations and float32 can tell them.
    `across` is the least ratio of links between a scalar and a block: these make a block precise along one direction
    only, which natural parameters in float32 cannot hold (see docs/decisions.md).
    """
    grow, rng = np.random.default_rng(shape), np.random.default_rng([shape, seed])
    kinds, parents, tree_of = [], [], []
    for t in range(trees):
        n = int(grow.integers(2, most + 1))
        for i in range(n):
            kinds.append("s" if grow.random() < 0.7 else "b")
            parents.append(-1 if i == 0 else int(grow.integers(0, i)) + len(kinds) - 1 - i)
            tree_of.append(t)
    unit, counts = [], {"s": 0, "b": 0}
    for k in kinds:
        unit.append(counts[k])
        counts[k] += 1
    noise = 10 ** rng.uniform(np.log10(ratio), 0, trees)
    members = [[(kinds[v], unit[v]) for v in range(len(kinds)) if tree_of[v] == t] for t in range(trees)]
    at, dense = {}, []
    for group in members:
        position = 0
        for n, i in group:
            at[n, i] = np.arange(position, position + (1 if n == "s" else 2))
            position += 1 if n == "s" else 2
        dense.append(Linear(position))

    graph = gbp.FactorGraph()
    s_mean = rng.standard_normal(counts["s"]) * np.array([noise[t] for t, k in zip(tree_of, kinds) if k == "s"])
    b_mean = (
        rng.standard_normal((counts["b"], 2))
        * np.array([noise[t] for t, k in zip(tree_of, kinds) if k == "b"])[:, None]
    )
    b_cov = np.stack([random_spd(rng, 2) + 0.3 * np.eye(2) for _ in range(counts["b"])])
    s = graph.variable("s", (counts["s"],), prior=gbp.Gaussian.from_moments(s_mean, 1.0))
    b = graph.variable("b", (counts["b"], 2), prior=gbp.Gaussian.from_moments(b_mean, covariance=b_cov), block=True)
    for v, k in enumerate(kinds):
        model = dense[tree_of[v]]
        if k == "s":
            model.prior(at[k, unit[v]], s_mean[unit[v]], 1.0)
        else:
            model.prior(at[k, unit[v]], b_mean[unit[v]], b_cov[unit[v]])

    links = {}
    for child, parent in enumerate(parents):
        if parent >= 0:
            ends = (parent, child) if (kinds[child], kinds[parent]) == ("b", "s") else (child, parent)
            links.setdefault((kinds[ends[0]], kinds[ends[1]]), []).append(ends)
    views = {"s": s, "b": b}
    for (kc, kp), pairs in links.items():
        child, parent = np.array(pairs).T
        m = 2 if (kc, kp) == ("b", "b") else 1
        dims = {"s": 1, "b": 2}
        one, two = (
            np.sign(rng.standard_normal(shape)) * rng.uniform(0.8, 1.25, shape)
            for shape in ((len(pairs), m, dims[kc]), (len(pairs), m, dims[kp]))
        )
        if m == 2:  # well-conditioned maps: rotations with scales
            one = np.stack([np.linalg.qr(a)[0] for a in one])
            two = np.stack([np.linalg.qr(a)[0] * rng.uniform(0.8, 1.25) for a in two])
        sigma = np.array([noise[tree_of[c]] for c in child])
        if kc != kp:
            sigma = np.maximum(sigma, across)
        y = sigma[:, None] * rng.standard_normal((len(pairs), m))
        args = []
        for a, kind, who in ((one, kc, child), (two, kp, parent)):
            args += [a[:, 0, 0] if kind == "s" and m == 1 else a, views[kind][np.array([unit[v] for v in who])]]
        if kc == kp == "s":
            h, y_given = pair_scalar, y[:, 0]
        elif m == 2:
            h, y_given = pair, y
        else:
            h, y_given = mixed, y[:, 0]
        graph.add(
            gbp.Factor(h, tuple(args), y=y_given, sigma=sigma.reshape(-1, *([1] * (m - 1))), linear=True, name=kc + kp)
        )
        for i, (c, p) in enumerate(pairs):
            rows = np.zeros((m, dense[tree_of[c]].n))
            rows[:, at[kc, unit[c]]] = one[i]
            rows[:, at[kp, unit[p]]] = two[i]
            dense[tree_of[c]].measure(rows, y[i], sigma[i] ** 2 * np.eye(m))
    return Forest(graph, dense, members)


def mixed(a, x, b, z):
    """One measurement of a scalar and a block, or of two blocks."""
    return jnp.sum(a * x) + jnp.sum(b * z)


# The compiler need not try hard where a program runs once.
QUICK = {"xla_backend_optimization_level": 0}


def as_rows(e):
    """Edges as `(F, n)`; tiles stay on their image otherwise."""
    if e.ndim != 6:
        return e
    return e.transpose(0, 1, 3, 5, 2, 4).reshape(-1, e.shape[2] * e.shape[4])


def _one_iteration(problem, state, options, real):
    """State after one iteration, messages `(F, n)` of each edge set, which go to real units (None: all), beliefs."""
    state, _ = iterate(problem, state, options, no_diagnostics(problem))
    each = []
    for group, row in zip(problem.groups, state.messages):
        for slot, m in zip(group.slots, row):
            there = as_rows(slot.edges.spread(real[slot.variable])) if slot.variable in real else None
            each.append((None if slot.pooled else jax.tree.map(as_rows, m.on_edges(slot.edges)), there))
    return state, each, {name: belief(problem, state, name) for name in problem.prior}


# As `gbp.step`, which also looks at residuals and energies.
one_iteration = jax.jit(_one_iteration, compiler_options=QUICK)


def run_iterations(graph, iterations, real=None, messages="auto"):
    """The messages after the first iteration and the beliefs after the last, as `one_iteration` returns them."""
    problem = graph.problem(None, messages)
    options = make_options(graph, problem, 0.4, 0.0, None, 1)
    empty = jax.eval_shape(lambda: empty_state(problem, jax.random.PRNGKey(0), False))
    state, first = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), empty), None  # as `gbp.init`, nothing to compile
    for _ in range(iterations):
        state, each, beliefs = one_iteration(problem, state, options, real or {})
        first = first or each
    return first, beliefs


def assert_same(graphs, iterations=3, real=None, messages="auto"):
    """The same messages after one iteration and the same beliefs after some, to 1e-5 of the largest.

    **Arguments:**

    - `graphs`: two, with the same groups; factors and rows in the same order.
    - `real`: where the second graph has units that the first has not, a mask of those that both have, by variable. No
        message of the first graph may go elsewhere.
    - `messages`: as `gbp.infer`; of those that are pooled only the beliefs are compared.
    """
    real = real or {}
    (first, ours), (second, theirs) = (
        run_iterations(g, iterations, r, messages) for g, r in zip(graphs, ({}, real), strict=True)
    )
    for (a, _), (b, there) in zip(first, second, strict=True):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert a.shape == b.shape
        there = np.ones(a.shape[:2], bool) if there is None else np.asarray(there)
        for p, q in ((np.asarray(a.eta), np.asarray(b.eta)), (np.asarray(a.lam), np.asarray(b.lam))):
            np.testing.assert_allclose(p[there], q[there], rtol=1e-5, atol=1e-5 * np.abs(q[there]).max())
            np.testing.assert_array_equal(p[~there], 0)
    assert ours.keys() == theirs.keys()
    for name in ours:
        mine, other = ([np.asarray(a) for a in (g.eta / g.lam, g.lam**-0.5)] for g in (ours[name], theirs[name]))
        if name in real:
            other = [a[real[name]].reshape(ours[name].shape) for a in other]
        np.testing.assert_allclose(mine[0], other[0], rtol=0, atol=1e-5 * other[1].max())
        np.testing.assert_allclose(mine[1], other[1], rtol=1e-5)


def check_operators(kind, shapes, seed=0):
    """`J m`, `J² v`, `J' r`, `(J²)' s`, and `J` edge by edge, against the whole matrix by automatic differentiation."""
    rng = np.random.default_rng(seed)
    layout = kind.layout(*shapes)
    f, m = int(np.prod(layout.grid)), int(np.prod(layout.h_shape))
    assert len(layout.edges) == len(shapes)

    def draw(shape):
        return rng.standard_normal(shape).astype(np.float32)

    args, vectors, r = [draw(s) for s in shapes], [draw(s) for s in shapes], draw((f, m))

    def everything(args, vectors, r):
        def flat(*a):
            return kind.value(*a).reshape(f * m)

        out = []
        for operator, edges, v in zip(kind.jacobian(*args), layout.edges, vectors, strict=True):
            each = operator.each()
            row = edges.rows.shape(f, edges.row)
            each = jnp.broadcast_to(each, row if m == 1 else (f, *each.shape[1:]))
            found = [(o.times(v), o.back(r)) for o in (operator, operator.squared(), Entries(edges, each))]
            unit = edges.spread(jnp.arange(1, 1 + v.size).reshape(v.shape))  # from 1; 0 where there is no edge
            out.append((found, as_rows(each) if m == 1 else each, as_rows(jnp.broadcast_to(unit, row))))
        return jax.jacobian(flat, argnums=tuple(range(len(args))))(*args), out

    matrices, out = jax.jit(everything, compiler_options=QUICK)(args, vectors, r)
    for matrix, (found, each, unit), v in zip(matrices, out, vectors, strict=True):
        matrix = np.asarray(matrix, float).reshape(f * m, -1)
        for (times, back), full in zip(found, (matrix, matrix**2, matrix), strict=True):
            assert times.shape == (f, m)
            assert back.shape == v.shape
            np.testing.assert_allclose(np.ravel(times), full @ v.ravel(), atol=2e-5)
            np.testing.assert_allclose(np.ravel(back), full.T @ r.ravel(), atol=2e-5)
        if m == 1:
            expected = np.concatenate([np.zeros((f, 1)), matrix], 1)[np.arange(f)[:, None], np.asarray(unit)]
            np.testing.assert_allclose(each, expected, atol=2e-5)


def actions(found: gbp.Result | gbp.Report) -> list[gbp.GuardAction]:
    """What the guard found and did, in order."""
    return [event.action for event in found.guard]
