"""A visit is local: groups that know nothing but their inbox and what is their own find the beliefs of `gbp.infer`."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gbplearn as gbp
from gbplearn.engine.group_options import GroupOptions
from gbplearn.engine.inbox import Inbox
from gbplearn.engine.options import make_options
from gbplearn.engine.state import Own, empty_state
from gbplearn.engine.visit import visit
from gbplearn.graph.local import LocalGroup


def posted(gaussian):
    """A Gaussian as it would go through the post: numbers, and no array of the sender's."""
    eta, lam = np.array(gaussian.eta), np.array(gaussian.lam)
    return gbp.Gaussian(jnp.asarray(eta), jnp.asarray(lam))


@dataclasses.dataclass
class Actor:
    """A group by itself: what it was given at the start, and a mailbox with the newest message of each neighbour."""

    local: LocalGroup
    own: Own
    options: GroupOptions
    priors: dict[str, gbp.Gaussian]
    mailbox: dict[str, dict[tuple[int, int], gbp.Gaussian]]  # of each variable, by sender and its slot

    def __post_init__(self):
        self.local, self.own = jax.tree.map(lambda a: jnp.asarray(np.array(a)), (self.local, self.own))
        self.step = jax.jit(lambda local, inbox, own, options: visit(local, inbox, own, options, diagnosed=True))

    def receive(self, variable: str, sender: tuple[int, int], message: gbp.Gaussian):
        if variable in self.priors:
            self.mailbox[variable][sender] = posted(message)

    def act(self):
        inbox = Inbox({n: [p, *self.mailbox[n].values()] for n, p in self.priors.items()}, {})
        visited = self.step(self.local, inbox, self.own, self.options)
        self.own = visited.own
        return visited

    def belief(self, name: str) -> gbp.Gaussian:
        parts = [self.priors[name], *self.mailbox[name].values()]
        outbox = self.own.outbox(self.local.group)
        parts += [m for m, slot in zip(outbox, self.local.group.slots) if slot.variable == name]
        return gbp.Gaussian(sum(p.eta for p in parts), sum(p.lam for p in parts))


def by_actors(graph, iterations, damping, relinearise=1, messages="auto"):
    """Sweeps over actors that exchange outboxes and nothing else: beliefs, and of each group its residuals."""
    problem = graph.problem(None, messages)
    options = make_options(graph, problem, damping, 0.0, None, relinearise)
    state = empty_state(problem, jax.random.PRNGKey(0), relinearise != 1)
    actors = []
    for g, group in enumerate(problem.groups):
        priors = {n: posted(problem.prior[n]) for n in group.variables}
        flat = {n: gbp.Gaussian.flat(p.shape, block=p.block, dtype=p.dtype) for n, p in priors.items()}
        mailbox = {n: {edge: flat[n] for edge in problem.touching(n) if edge[0] != g} for n in priors}
        actors.append(Actor(problem.local(g), state.own(g), options.of(g), priors, mailbox))
    residuals = np.zeros((iterations, len(actors)))
    for i in range(iterations):
        count = len(actors)
        for g in (*range(count), *range(count - 2, 0, -1)):
            visited = actors[g].act()
            residuals[i, g] = visited.diagnostics.residual(jnp.asarray(residuals[i, g]))
            for s, message in enumerate(visited.outbox):
                for other, actor in enumerate(actors):
                    if other != g:
                        actor.receive(problem.groups[g].slots[s].variable, (g, s), message)
    owner = {n: problem.touching(n)[0][0] for n in problem.prior}
    return {n: actors[g].belief(n) for n, g in owner.items()}, residuals, actors


def scalars_and_blocks():
    """Blocks, scalars, a robust group, learnt noise, and a variable that is held."""
    rng = np.random.default_rng(0)
    graph = gbp.FactorGraph()
    p = graph.variable("p", (5, 2), prior=gbp.Gaussian.from_moments(np.zeros((5, 2)), covariance=np.eye(2)), block=True)
    s = graph.variable("s", (5,), prior=gbp.Gaussian.from_moments(1.0, 0.5), kind="parameter")
    k = graph.variable("k", (4,), prior=gbp.Gaussian.from_moments(1.0, 0.1))
    y = [rng.normal(size=shape) for shape in ((4, 2), (5, 2), 4, 5)]
    graph.add(gbp.Factor(lambda a, b: b - a, (p[:-1], p[1:]), y=y[0], sigma=0.3, linear=True, name="links"))
    graph.add(gbp.Factor(lambda a, c: a * c, (p[:], s[:]), y=y[1], sigma=0.5, name="scaled"))
    product = gbp.Factor(
        lambda a, b, c: jnp.sin(a) + b * c, (s[:-1], s[1:], k[:]), y=y[2], sigma=gbp.LearnNoise(0.4), name="noisy"
    )
    graph.add(product)
    graph.add(gbp.Factor(lambda a: a, (s[:],), y=y[3], sigma=0.5, robust=gbp.Huber(1.5), linear=True, name="robust"))
    graph.hold("k")
    return graph


def layers():
    """A convolution, a pooling and a dense layer, whose messages to parameters are pooled."""
    rng = np.random.default_rng(1)
    net = gbp.Sequential(
        gbp.Conv2D(3, kernel=3, sigma=0.1, weight_prior=0.4, bias_prior=0.3, prior=2.0),
        gbp.MaxPool2D(2, sigma=0.1, prior=2.0),
        gbp.Dense(3, sigma=0.1, weight_prior=0.3, bias_prior=0.2, prior=2.0),
        gbp.SoftmaxObservation(sigma=0.3),
    )
    return net.graph(net.batch(rng.uniform(size=(4, 6, 6, 1)).astype(np.float32), rng.integers(0, 3, 4)))


DAMPING = gbp.Damping(parameters=0.8, activations=0.3)


@pytest.mark.parametrize(
    ("make", "relinearise", "messages"),
    [(scalars_and_blocks, 1, "auto"), (scalars_and_blocks, gbp.AfterVisit(), "auto"), (layers, 1, "pooled")],
)
def test_groups_in_isolation_find_the_beliefs_of_the_loop(x64, make, relinearise, messages):
    graph = make()
    actors, residuals, isolated = by_actors(graph, 6, DAMPING, relinearise, messages)
    result = gbp.infer(
        graph,
        iterations=6,
        tolerance=0.0,
        damping=DAMPING,
        relinearise=relinearise,
        messages=messages,
        guard=False,
        throw=False,
    )
    for name, belief in actors.items():
        std = np.asarray(result[name].std)
        np.testing.assert_allclose((belief.mean - result[name].mean) / std, 0, atol=1e-10)
        np.testing.assert_allclose(belief.lam, result[name].lam, rtol=1e-10, atol=1e-10)
    for g, group in enumerate(result.problem.groups):
        np.testing.assert_allclose(residuals[:, g], result.trace.residuals[group.name], rtol=1e-6, atol=1e-10)
        learnt = isolated[g].own.noise
        if learnt is not None:
            np.testing.assert_allclose(np.sqrt(learnt), result.noise[group.name], rtol=1e-10)


def test_a_local_group_holds_its_own_variables_and_no_others():
    problem = scalars_and_blocks().problem(None, "auto")
    assert [(set(x.start), set(x.fixed), set(x.held)) for x in map(problem.local, range(4))] == [
        ({"p"}, set(), set()),
        ({"p", "s"}, set(), set()),
        ({"s"}, {"k"}, {"k"}),
        ({"s"}, set(), set()),
    ]
    # The energy of each prior is reported by one group.
    assert [set(problem.local(g).reports) for g in range(4)] == [{"p"}, {"s"}, set(), set()]


LOCAL = ["visit", "visit_diagnostics", "inbox", "linearisation", "noise_update", "update"]


@pytest.mark.parametrize("module", [*(f"engine.{name}" for name in LOCAL), "kernels.cpu.visits"])
def test_what_a_visit_is_made_of_knows_neither_problem_nor_state(module):
    path = Path(gbp.__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    imported = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported.isdisjoint({"Problem", "State", "Options"})
