"""The message update in NumPy, float64, edge by edge, from the formulas in `engine/update.py` alone.

Factors are plain functions; their Jacobians are found by automatic differentiation. Nothing of the engine is used but
the numbers of the graph.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

import gbplearn as gbp
from helpers import QUICK


def robust_scale(robust, d2):
    """The factor on the precision: `2 rho(d) / d²` (value), or `rho'(d) / d` (gradient)."""
    if robust is None:
        return np.ones_like(d2)
    n, d = robust.threshold, np.sqrt(d2)
    far = np.maximum(d, n)
    outside = {
        (gbp.Tukey, "value"): n**2 / far**2,
        (gbp.Tukey, "gradient"): 0 * far,
        (gbp.Huber, "value"): (2 * n * far - n**2) / far**2,
        (gbp.Huber, "gradient"): n / far,
    }[type(robust), robust.match]
    return np.where(d > n, outside, 1.0)


@dataclasses.dataclass
class Slot:
    """One argument that is a variable: which units each factor has, and the messages to them."""

    name: str
    ids: np.ndarray  # (F, n)
    pooled: bool
    eta: np.ndarray  # (F, n), or of all units if it is pooled
    lam: np.ndarray


class WrittenOut:
    """A graph of plain functions, and its messages.

    **Arguments:**

    - `pooled`: names of the variables whose messages are pooled.
    - `damping`: by the name of the variable.
    """

    def __init__(self, graph, pooled=(), damping=None):
        problem = graph.problem(None, "per-edge")
        self.factors, self.kinds, self.damping = list(graph.factors.values()), graph.kinds, damping
        self.prior = {
            n: [np.asarray(a, float).ravel().copy() for a in (p.eta, p.lam)] for n, p in problem.prior.items()
        }
        self.start = {n: np.asarray(a, float).ravel() for n, a in problem.start.items()}
        self.fixed = {n: np.asarray(a, float).ravel() for n, a in problem.fixed.items()}
        self.derivatives = {}
        self.started, self.visits = problem.started, [0] * len(self.factors)
        self.slots = [
            [self._slot(f, v, pooled) for v in f.views if v.variable.name in self.prior] for f in self.factors
        ]
        # A pooled factor has one reaction for the variables of each kind, damped as the first of them.
        self.reactions = [{self.kinds[s.name]: np.zeros(f.factors) for s in slots if s.pooled}
                          for f, slots in zip(self.factors, self.slots)]  # fmt: skip

    def _slot(self, factor, view, pooled):
        ids = np.broadcast_to(view.unit_ids(), (factor.factors, view.units))
        size = len(self.prior[view.variable.name][0]) if view.variable.name in pooled else ids.shape
        return Slot(view.variable.name, ids, view.variable.name in pooled, np.zeros(size), np.zeros(size))

    def belief(self, name):
        """Natural parameters of a variable, flat: the prior and all messages."""
        eta, lam = (a.copy() for a in self.prior[name])
        for slot in (s for slots in self.slots for s in slots if s.name == name):
            for total, message in ((eta, slot.eta), (lam, slot.lam)):
                np.add.at(total, slice(None) if slot.pooled else slot.ids, message)
        return eta, lam

    def mean(self, name):
        """Of the belief; the start where nothing is known."""
        eta, lam = self.belief(name)
        return np.where(lam > 0, eta / np.where(lam > 0, lam, 1), self.start[name])

    def _reaction(self, g, slot):
        """At every edge; 0 of what is not pooled."""
        of_factor = self.reactions[g][self.kinds[slot.name]][:, None] if slot.pooled else 0.0
        return np.broadcast_to(of_factor, slot.ids.shape)

    def _linearise(self, factor, values):
        """`h` of every factor `(F, M)`, and its Jacobian for each slot `(F, n, M)`."""
        wanted, rows = [], []
        for place, a in enumerate(factor.args):
            if isinstance(a, gbp.View):
                if a.variable.name in self.prior:
                    wanted.append(place)
                a = values[a.variable.name][a.unit_ids()].reshape(-1, *a.row_shape)
            rows.append(np.broadcast_to(a, (factor.factors, *a.shape[1:])))
        m = factor.outputs
        key = id(factor)
        if key not in self.derivatives:

            def both(*row):
                return factor.h(*row), jax.jacrev(factor.h, argnums=tuple(wanted))(*row)

            self.derivatives[key] = jax.jit(jax.vmap(both), compiler_options=QUICK)
        value, jacobians = self.derivatives[key](*rows)
        value = np.asarray(value).reshape(-1, m)
        return value, [np.asarray(j).reshape(len(value), m, -1).swapaxes(1, 2) for j in jacobians]

    def visit(self, g):
        """Send the messages of one group."""
        factor, slots, first = self.factors[g], self.slots[g], self.visits[g] == 0
        means = {s.name: self.mean(s.name) for s in slots}
        points = {n: self.start[n] if first and n in self.started else x for n, x in means.items()}
        value, jacobians = self._linearise(factor, {**points, **self.fixed})
        f, m = value.shape
        noise = np.broadcast_to(np.asarray(factor.noise, float), (f, m))
        residual = np.broadcast_to(np.asarray(factor.y, float), (f, m)) - value
        k = robust_scale(factor.robust, np.sum(residual**2 / noise, 1))
        if factor.weights is not None:
            k = k * np.broadcast_to(factor.weights, factor.grid).ravel()
        # All edges of a factor side by side: cavities, or beliefs of what is pooled.
        mean, variance, unknown = [], [], []
        for slot, j in zip(slots, jacobians):
            eta, lam = (a[slot.ids] - (0 if slot.pooled else own)
                        for a, own in zip(self.belief(slot.name), (slot.eta, slot.lam)))  # fmt: skip
            mean.append(np.where(lam > 0, eta / np.where(lam > 0, lam, 1), points[slot.name][slot.ids]))
            variance.append(np.where(lam > 0, 1 / np.where(lam > 0, lam, 1), 0))
            unknown.append((lam <= 0) & (j != 0).any(2))
        point = np.concatenate([points[s.name][s.ids] for s in slots], 1)
        j, mean, variance, unknown = (np.concatenate(x, 1) for x in (jacobians, mean, variance, unknown))
        pooled = np.concatenate([np.full(s.ids.shape[1], s.pooled) for s in slots])
        reaction = np.concatenate([self._reaction(g, s) for s in slots], 1)
        moved = j * (mean - point - reaction * variance * j[:, :, 0])[..., None]

        def gain_and_left(others):
            """`S^-1` and `R`, of these edges."""
            spread = np.einsum("fn,fna,fnb->fab", variance[:, others], j[:, others], j[:, others])
            gain = k[:, None, None] * np.linalg.inv(noise[:, :, None] * np.eye(m) + k[:, None, None] * spread)
            informed = ~unknown[:, others].any(1)  # an infinite variance: no precision is left
            return gain * informed[:, None, None], residual - moved[:, others].sum(1)

        new_eta, new_lam = np.zeros(mean.shape), np.zeros(mean.shape)
        whole, everywhere = gain_and_left(np.full(mean.shape[1], True)) if pooled.any() else (None, None)
        for i in range(mean.shape[1]):
            if pooled[i]:
                lam = np.einsum("fa,fab,fb->f", j[:, i], whole, j[:, i])
                eta = np.einsum("fa,fab,fb->f", j[:, i], whole, everywhere) + lam * mean[:, i]
            else:
                gain, left = gain_and_left(np.arange(mean.shape[1]) != i)
                lam = np.einsum("fa,fab,fb->f", j[:, i], gain, j[:, i])
                eta = np.einsum("fa,fab,fb->f", j[:, i], gain, left + j[:, i] * point[:, i, None])
            new_eta[:, i], new_lam[:, i] = eta, lam
        damped = set()
        ends = np.cumsum([s.ids.shape[1] for s in slots])[:-1]
        for slot, eta, lam in zip(slots, np.split(new_eta, ends, 1), np.split(new_lam, ends, 1)):
            d = self.damping[slot.name]
            if slot.pooled:
                eta, lam = (np.bincount(slot.ids.ravel(), a.ravel(), len(slot.eta)) for a in (eta, lam))
                kind = self.kinds[slot.name]
                if kind not in damped:
                    share = whole[:, 0, 0] * everywhere[:, 0]
                    self.reactions[g][kind] = d * self.reactions[g][kind] + (1 - d) * share
                    damped.add(kind)
            elif first:
                d = 0.0
            slot.eta, slot.lam = d * slot.eta + (1 - d) * eta, d * slot.lam + (1 - d) * lam
        self.visits[g] += 1

    def run(self, iterations):
        """So many visits of every group, in order. **Returns:** beliefs by name, flat: `eta, lam`."""
        for _ in range(iterations):
            for g in range(len(self.factors)):
                self.visit(g)
        return {n: self.belief(n) for n in self.prior}
