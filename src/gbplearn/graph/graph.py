"""FactorGraph: variables, factors and evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.compiling import lean_jit
from ..core.forked import check_not_forked
from ..core.gaussian import Gaussian, Numbers
from ..core.tracing import refuse_jit, refuse_traced
from ..factors.measurement import FactorKind, Linear
from .evidence import Evidence, as_numbers, check_belief, check_held, check_observed
from .factor import Factor
from .group import Group, check_mode, linearise, make_group
from .problem import Problem
from .variable import Variable, View

if TYPE_CHECKING:
    from ..show.drawing import Drawing

Kind = Literal["activation", "parameter"]


@dataclasses.dataclass(frozen=True)
class _Entry:
    variable: Variable
    prior: Gaussian
    start: Array
    started: bool  # by the user
    kind: Kind
    one: Gaussian | None  # the prior, if it is one for all units


class FactorGraph:
    """Variables and the factors between them; what is observed of it is data.

    ```python
    graph = gbp.FactorGraph()
    x = graph.variable("x", shape=(4,), prior=gbp.Gaussian.from_moments(mean=0.0, std=10.0))
    graph.add(gbp.Factor(lambda a, b: b - a, (x[:-1], x[1:]), y=[1.0, 1.1, 0.9], sigma=0.1, name="odometry"))
    ```

    **Arguments:**

    - `dtype`: floating-point type of all messages; by default JAX's (float32 unless 64 bits are enabled).
    """

    def __init__(self, *, dtype: Any = None):
        check_not_forked()
        refuse_jit("gbp.FactorGraph")
        self.dtype = jnp.dtype(jnp.result_type(float) if dtype is None else dtype)
        if self.dtype not in (jnp.float32, jnp.float64):
            raise ValueError(f"FactorGraph: dtype must be float32 or float64, got {self.dtype}")
        if self.dtype == jnp.float64 and not jax.config.read("jax_enable_x64"):
            raise ValueError("FactorGraph: float64 needs JAX's 64-bit mode: jax.config.update('jax_enable_x64', True)")
        self._entries: dict[str, _Entry] = {}
        self._factors: dict[str, Factor] = {}
        self._evidence = Evidence()
        self._tied: dict[str, str] = {}  # name -> the variable it is the same as
        # Laid out as arrays, by what is fixed and what is held; with the variables whose prior is proper everywhere.
        self._laid_out: dict[tuple[frozenset[str], frozenset[str], str], tuple[tuple[Group, ...], frozenset[str]]] = {}

    def __repr__(self) -> str:
        lines = [f"FactorGraph ({self.dtype})"]
        for name, e in self._entries.items():
            same = f" = {self._tied[name]}" if name in self._tied else ""
            known = " observed" if name in self._evidence.values else " held" if name in self._evidence.held else ""
            lines.append(f"  variable {name}{same}: {e.variable.shape}{' block' if e.variable.block else ''}{known}")
        for name, f in self._factors.items():
            among = ", ".join(dict.fromkeys(v.variable.name for v in f.views))
            lines.append(f"  factor {name}: {f.factors} x {_measurements(f.outputs)} on {among}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from ..show.notebook import graph_html

        return graph_html(self)

    def draw(self, path: str | Path | None = None) -> Drawing:
        """A picture of all variables and factor groups, with its evidence; saved as SVG if a path is given."""
        from ..show.graph_drawing import draw_graph

        return draw_graph(self, path)

    @property
    def variables(self) -> dict[str, Variable]:
        """All variables by name."""
        return {name: e.variable for name, e in self._entries.items()}

    @property
    def factors(self) -> dict[str, Factor]:
        """All factor groups by name, in the order in which they were added."""
        return dict(self._factors)

    @property
    def tied(self) -> dict[str, str]:
        """Variables that were tied to another one, by name: whose name the two of them have in `priors`."""
        return {name: self.canonical(name) for name in self._tied}

    @property
    def evidence(self) -> Evidence:
        """What is observed, and what is held at a belief: a copy, by canonical names."""
        return self._evidence.copy()

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each variable."""
        return {name: e.kind for name, e in self._entries.items()}

    @property
    def starts(self) -> dict[str, Array]:
        """Where each variable is linearised first."""
        return {name: e.start for name, e in self._entries.items()}

    def variable(
        self,
        name: str,
        shape: tuple[int, ...] | int = (),
        *,
        prior: Gaussian | None = None,
        block: bool = False,
        start: Numbers | None = None,
        kind: Kind = "activation",
    ) -> Variable:
        """Add a named array of variables.

        **Arguments:**

        - `shape`: at least one axis.
        - `prior`: broadcast to `shape`; None for none at all (nothing known).
        - `block`: the last axis is one vector variable with a full covariance.
        - `start`: where nonlinear and robust factors are linearised at first, and as long as nothing is known of a
            variable; by default the prior mean, or 0.
        - `kind`: "parameter" or "activation", for `gbp.Damping`.

        **Returns:** the variable; index it to connect factors to it.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        if name in self._entries:
            raise ValueError(f"there is already a variable '{name}'")
        if len(shape) < 1 + block or min(shape) < 1:
            axes = "two axes (blocks along the last)" if block else "one axis"
            raise ValueError(f"variable '{name}': shape {shape} must have at least {axes}, none of length 0")
        if kind not in ("activation", "parameter"):
            raise ValueError(f"variable '{name}': kind must be 'activation' or 'parameter', got {kind!r}")
        variable = Variable(name, shape, block)
        if prior is None:
            prior = Gaussian.flat(shape, block=block, dtype=self.dtype)
        one = prior if isinstance(prior, Gaussian) and prior.shape == () else None
        prior = check_belief(variable, prior, "prior", self.dtype)
        if start is None:
            point = prior.mean
        else:
            point = as_numbers(name, start, shape, "start")
            if not np.isfinite(point).all():
                raise ValueError(f"variable '{name}': start holds NaN or infinity")
        point = jnp.asarray(np.asarray(point, self.dtype))
        self._entries[name] = _Entry(variable, prior, point, start is not None, kind, one)
        self._laid_out.clear()
        return variable

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            known = ", ".join(self._entries) or "none"
            raise KeyError(f"there is no variable '{name}' (there are: {known})")
        return self._entries[name]

    def add(self, factor: Factor) -> Factor:
        """Add a group of factors. A name that is taken gets a number: `odometry_1`."""
        if not isinstance(factor, Factor):
            raise TypeError(f"FactorGraph.add takes a gbp.Factor, got {type(factor).__name__}")
        for view in factor.views:
            entry = self._entries.get(view.variable.name)
            if entry is None or entry.variable != view.variable:
                raise ValueError(
                    f"factor '{factor.name}': '{view.variable.name}' of shape {view.variable.shape} "
                    "is not a variable of this graph"
                )
        name, number = factor.name, 0
        while name in self._factors:
            number += 1
            name = f"{factor.name}_{number}"
        if name != factor.name:
            factor = _renamed(factor, name, {})
        self._resolved(factor)
        self._factors[name] = factor
        self._laid_out.clear()
        return factor

    def observe(self, name: str, value: Numbers, mask: Numbers | None = None) -> None:
        """Fix a variable, or where `mask` is True a part of it, at a value.

        **Arguments:**

        - `value`: broadcast to the variable's shape; NaN is allowed where `mask` is False.
        - `mask`: True = observed; blocks are observed whole (no last axis).
        """
        checked = check_observed(self._entry(name).variable, value, mask)
        self._evidence.observe(self.canonical(name), *checked)

    def hold(self, name: str, belief: Gaussian | None = None) -> None:
        """Hold a variable at a belief: factors take it, with its uncertainty, but send no messages to it.

        So a network predicts with uncertain parameters that must not learn from the queries, and no query depends on
        another.

        **Arguments:**

        - `belief`: broadcast to the variable's shape; by default its prior.
        """
        keep, variable = self.canonical(name), self._entry(name).variable
        checked = check_held(variable, self.priors()[keep] if belief is None else belief, self.dtype)
        self._evidence.hold(keep, None if belief is None else checked)  # the prior may still change, by ties

    def release(self, name: str) -> None:
        """Forget what was observed of a variable, or that it was held."""
        if not self._evidence.forget(self.canonical(name)):
            raise KeyError(f"variable '{name}' is neither observed nor held")

    def include(self, other: FactorGraph, prefix: str = "") -> dict[str, Variable]:
        """Take in all variables, factors and evidence of another graph, their names prefixed.

        **Returns:** the variables, by their names in `other`.
        """
        clash = [prefix + n for n in other._entries if prefix + n in self._entries]
        clash += [prefix + n for n in other._factors if prefix + n in self._factors]
        if clash:
            raise ValueError(f"include: the name '{clash[0]}' is taken; give another prefix")
        renamed = {}
        for name, e in list(other._entries.items()):
            variable = dataclasses.replace(e.variable, name=prefix + name)
            self._entries[prefix + name] = dataclasses.replace(
                e, variable=variable, prior=e.prior.astype(self.dtype), start=e.start.astype(self.dtype)
            )
            renamed[name] = variable
        for name, f in list(other._factors.items()):
            self._factors[prefix + name] = _renamed(f, prefix + name, renamed)
        self._tied.update({prefix + a: prefix + b for a, b in other._tied.items()})
        self._evidence.values.update({prefix + a: e for a, e in other._evidence.values.items()})
        self._evidence.held.update({prefix + a: b and b.astype(self.dtype) for a, b in other._evidence.held.items()})
        self._laid_out.clear()
        return renamed

    def tie(self, first: str, second: str) -> None:
        """Make two variables one. Their priors multiply, as those of all factors do; the result has both names."""
        a, b = self._entry(first).variable, self._entry(second).variable
        if (a.shape, a.block) != (b.shape, b.block):
            raise ValueError(f"tie: '{first}' has shape {a.shape} and '{second}' {b.shape}")
        keep, drop = self.canonical(first), self.canonical(second)
        if keep == drop:
            return
        if drop in self._evidence and keep in self._evidence:
            raise ValueError(f"tie: '{first}' and '{second}' are both observed or held; release one")
        self._tied[drop] = keep
        try:
            for factor in self._factors.values():
                self._resolved(factor)
        except ValueError:
            del self._tied[drop]
            raise
        self._evidence.rename(drop, keep)
        kept, dropped = self._entries[keep], self._entries[drop]
        if dropped.started and not kept.started:
            self._entries[keep] = dataclasses.replace(kept, start=dropped.start, started=True)
        self._laid_out.clear()

    def drop_prior(self, name: str) -> None:
        """Leave out the prior of a variable that is tied to another, whose prior holds all that is known."""
        entry = self._entries[name]
        flat = Gaussian.flat(entry.variable.shape, block=entry.variable.block, dtype=self.dtype)
        self._entries[name] = dataclasses.replace(entry, prior=flat, one=None)
        self._laid_out.clear()

    def canonical(self, name: str) -> str:
        """The name under which a variable is inferred: its own, or that of the one it is tied to."""
        self._entry(name)
        while name in self._tied:
            name = self._tied[name]
        return name

    def _resolved(self, factor: Factor) -> list[View | None]:
        """The views of a factor with ties resolved, checked to hold no unit twice."""
        out: list[View | None] = []
        for a in factor.args:
            if isinstance(a, View):
                out.append(dataclasses.replace(a, variable=self._entries[self.canonical(a.variable.name)].variable))
            else:
                out.append(None)
        views = [v for v in out if v is not None]
        if {v.variable.name for v in views} != {v.variable.name for v in factor.views}:
            factor.check_once(views)
        return out

    def priors(self) -> dict[str, Gaussian]:
        """Prior of every variable, those of tied ones multiplied, without evidence."""
        out: dict[str, Gaussian] = {}
        for name, e in self._entries.items():
            keep = self.canonical(name)
            out[keep] = out[keep] * e.prior if keep in out else e.prior
        return out

    def problem(self, evidence: Mapping[str, Any] | None = None, messages: str = "auto") -> Problem:
        """The graph with its evidence as arrays: what the engine works on.

        **Arguments:**

        - `evidence`: on top of `observe` and `hold`: `{name: value}`, `{name: (value, mask)}` or `{name: belief}`.
        - `messages`: kept "per-edge", "pooled", or "auto"; see `gbp.infer`.
        """
        check_not_forked()
        check_mode(messages)
        known = self._evidence.copy()
        for name, value in (evidence or {}).items():
            keep, variable = self.canonical(name), self._entry(name).variable
            if isinstance(value, Gaussian):
                known.hold(keep, check_held(variable, value, self.dtype))
                continue
            refuse_traced(f"evidence of '{name}'", value)
            masked = isinstance(value, tuple) and len(value) == 2 and np.asarray(value[1]).dtype == bool
            known.observe(keep, *check_observed(variable, *(value if masked else (value, None))))
        priors = self.priors()
        fixed, held = known.fixed, {n: priors[n] if belief is None else belief for n, belief in known.held.items()}
        used, start = {}, {}
        for name, prior in priors.items():
            if name in fixed or name in held:
                continue
            if name in known.values:
                value, mask = known.values[name]
                prior = Gaussian.point(jnp.asarray(value, self.dtype), block=prior.block).where(
                    jnp.asarray(mask), prior
                )
            used[name], start[name] = prior, self._entries[name].start
        key = fixed, frozenset(held), messages
        if key not in self._laid_out:
            proper = frozenset(n for n, p in priors.items() if n in used and all_proper(p))
            made = tuple(
                make_group(f, self._resolved(f), *key[:2], proper, self.kinds, messages, self.dtype)
                for f in self._factors.values()
            )
            self._laid_out[key] = made, proper
        groups, proper = self._laid_out[key]
        values = {name: jnp.asarray(np.asarray(known.values[name][0], self.dtype)) for name in fixed}
        values |= {name: belief.mean for name, belief in held.items()}
        frozen = tuple(_freeze(g, used, values) if g.linear and g.slots else None for g in groups)
        started = frozenset(name for name in used if self._entries[name].started)
        uniform = self._uniform(name for name in used if name not in known.values)
        parameters = frozenset(name for name in used if self._entries[name].kind == "parameter")
        return Problem(groups, frozen, used, start, values, held, uniform, proper, started, parameters)

    def _uniform(self, names: Iterable[str]) -> dict[str, Gaussian]:
        """Of these variables, those whose prior is one for all units."""
        tied = {self.canonical(n) for n in self._entries if self.canonical(n) != n}
        one = {n: self._entries[n].one for n in names if n not in tied}
        return {n: prior.astype(self.dtype) for n, prior in one.items() if prior is not None}

    def energy(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Energy of each factor group (Eq. 3 of the paper, with its 1/2), and of each prior as `"prior of x"`.

        **Arguments:**

        - `values`: a value for every variable that is not wholly observed. A `Result` will do: its means are taken, and
            the noise that it learnt; else noise that is learnt counts with its start.
        """
        problem = self.problem()
        state = getattr(values, "state", None)
        starts = [None if g.noise_prior is None else g.noise_prior.variance for g in problem.groups]
        problem = problem.with_learnt_noise(starts if state is None else state.noise)
        full = {}
        for name, prior in problem.prior.items():
            names = [n for n in self._entries if self.canonical(n) == name and n in values]
            if not names:
                raise KeyError(f"energy: no value for variable '{name}'")
            given = values[names[0]]
            given = given.mean if isinstance(given, Gaussian) else given
            full[name] = jnp.asarray(as_numbers(name, given, prior.shape, "value"), self.dtype)
        groups, priors = _energies(problem, full)
        out = {g.name: float(e) for g, e in zip(problem.groups, groups)}
        proper = [name for name, p in self.priors().items() if name in priors and bool(jnp.any(p.lam != 0))]
        return {**out, **{f"prior of {name}": float(priors[name]) for name in proper}}


_energies = lean_jit(lambda problem, values: problem.energies(values))


def all_proper(prior: Gaussian) -> bool:
    """Whether every unit of it can be normalised."""
    return prior.all_proper()


def _freeze(group: Group, priors: dict[str, Gaussian], values: dict[str, Array]) -> Linear:
    """Linearise a linear group once, at 0. What is the same for all factors is kept once.

    Not where observed variables enter: their next values would change the shapes, and compile everything again.
    """
    zeros = {name: jnp.zeros(priors[name].shape, priors[name].dtype) for name in group.variables}
    linear = linearise(group, {**values, **zeros})
    if not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(linear)):
        raise ValueError(f"factor '{group.name}': h or its Jacobian is not finite at 0, so it cannot be linear=True")
    if group.fixed or group.held or isinstance(group.measurement, FactorKind):
        return linear
    return jax.tree.map(lambda x: x[:1] if bool(jnp.all(x == x[:1])) else x, linear)


def _renamed(factor: Factor, name: str, variables: dict[str, Variable]) -> Factor:
    """The same factor under another name, on renamed variables. Nothing is checked again."""
    new = object.__new__(Factor)
    new.__dict__.update(factor.__dict__)
    args = tuple(
        dataclasses.replace(a, variable=variables.get(a.variable.name, a.variable)) if isinstance(a, View) else a
        for a in factor.args
    )
    new.__dict__.update(name=name, args=args)
    return new


def _measurements(count: int) -> str:
    return "1 measurement" if count == 1 else f"{count} measurements"
