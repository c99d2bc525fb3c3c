"""FactorGraph: variables, factors and evidence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.compiling import lean_jit
from ..core.forked import check_not_forked
from ..core.gaussian import POINT, Gaussian, Numbers
from ..core.tracing import refuse_jit, refuse_traced
from ..core.vector import Belief, VectorGaussian
from ..factors.measurement import FactorKind
from .data import Data, FactorData
from .evidence import Evidence, as_numbers, check_belief, check_held, check_observed
from .factor import Factor
from .group import Group, check_mode, linearise, make_group
from .growing import NEARLY_FULL, GrowingFactors, GrowingVariable, default_room, factor_data
from .problem import Problem, data_of_group, group_with
from .variable import Variable, View

if TYPE_CHECKING:
    from ..show.drawing import Drawing

Kind = Literal["activation", "parameter"]
Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class _Entry:
    variable: Variable
    prior: Belief  # where it does not grow
    start: Array
    started: bool  # by the user
    kind: Kind
    one: Gaussian | None  # the prior, if it is one for all units
    growing: GrowingVariable | None = None

    @property
    def padded(self) -> Variable:
        """The variable with all rows that there is room for."""
        return self.variable if self.growing is None else self.growing.padded

    def prior_now(self) -> Belief:
        """The prior of all units in use."""
        return self.prior if self.growing is None else self.growing.prior()

    def start_now(self) -> Array | np.ndarray:
        """Where all units in use are linearised first."""
        return self.start if self.growing is None else self.growing.start()


@dataclasses.dataclass(frozen=True)
class _LaidOut:
    """The factors of a graph as arrays, and what was made of them."""

    groups: tuple[Group, ...]
    proper: frozenset[str]  # variables whose prior is proper everywhere
    made: dict[Any, Any] = dataclasses.field(default_factory=dict)  # by what makes it
    factors: dict[str, FactorData] = dataclasses.field(default_factory=dict)


class _Knowns(NamedTuple):
    """What is known of the variables of a graph, as arrays."""

    prior: dict[str, Belief]
    start: dict[str, Any]
    fixed: dict[str, Array]
    held: dict[str, Belief]
    uniform: dict[str, Belief]
    used: dict[str, np.ndarray]  # of variables that grow, how many scalars are in use
    started: frozenset[str]
    parameters: frozenset[str]
    key: tuple[frozenset[str], frozenset[str], str]


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
        self._growing: dict[str, GrowingFactors] = {}  # factor groups that grow
        self._tied: dict[str, str] = {}  # name -> the variable it is the same as
        # Laid out as arrays, by what belongs to the structure: what is fixed, what is held, ...
        self._laid_out: dict[tuple, _LaidOut] = {}

    def __repr__(self) -> str:
        lines = [f"FactorGraph ({self.dtype})"]
        for name, e in self._entries.items():
            same = f" = {self._tied[name]}" if name in self._tied else ""
            known = " observed" if name in self._evidence.values else " held" if name in self._evidence.held else ""
            lines.append(f"  variable {name}{same}: {e.variable.shape}{' block' if e.variable.block else ''}{known}")
        for name, f in self.factors.items():
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
        return {n: self._growing[n].as_factor() if n in self._growing else f for n, f in self._factors.items()}

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
        return {name: jnp.asarray(e.start_now()) for name, e in self._entries.items()}

    def variable(
        self,
        name: str,
        shape: tuple[int, ...] | int = (),
        *,
        prior: Belief | None = None,
        block: bool = False,
        start: Numbers | None = None,
        kind: Kind = "activation",
        capacity: int | None = None,
    ) -> Variable:
        """Add a named array of variables.

        **Arguments:**

        - `shape`: at least one axis. Only a variable with a capacity may begin without any unit.
        - `prior`: broadcast to `shape`; None for none at all (nothing known).
        - `block`: the last axis is one vector variable with a full covariance.
        - `start`: where nonlinear and robust factors are linearised at first, and as long as nothing is known of a
            variable; by default the prior mean, or 0.
        - `kind`: "parameter" or "activation", for `gbp.Damping`.
        - `capacity`: how many rows (along the first axis) there is room for, if it is to grow (`grow`): until it has
            more nothing is compiled again.

        **Returns:** the variable; index it to connect factors to it.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        if name in self._entries:
            raise ValueError(f"there is already a variable '{name}'")
        _check_capacity(name, capacity)
        if len(shape) < 1 + block or min(shape[(capacity is not None) :], default=1) < 1 or shape[0] < 0:
            axes = "two axes (blocks along the last)" if block else "one axis"
            raise ValueError(f"variable '{name}': shape {shape} must have at least {axes}, none of length 0")
        if kind not in ("activation", "parameter"):
            raise ValueError(f"variable '{name}': kind must be 'activation' or 'parameter', got {kind!r}")
        vector = isinstance(prior, VectorGaussian)
        if vector and (block or capacity is not None or shape != prior.shape):
            raise ValueError(f"variable '{name}': its prior is of vectors {prior.shape}: no block, no capacity")
        variable = Variable(name, shape, block, vector)
        one = prior if isinstance(prior, Gaussian) and prior.shape == () else None
        prior, point = self._prior_and_start(variable, prior, start)
        point = jax.device_put(point)
        self._entries[name] = _Entry(variable, prior, point, start is not None, kind, one)
        self._laid_out.clear()
        if capacity is not None:
            self._let_grow(name, capacity)
        return variable

    def _prior_and_start(self, variable: Variable, prior: Any, start: Numbers | None) -> tuple[Belief, np.ndarray]:
        """What is known of a variable, checked, and broadcast to its shape."""
        if isinstance(prior, VectorGaussian):
            prior = prior.astype(self.dtype)
        elif prior is None:
            wide = variable.shape[-1:] if variable.block else ()
            zeros = (np.zeros(s, self.dtype) for s in (variable.shape, (*variable.shape, *wide)))
            prior = Gaussian(*map(jax.device_put, zeros))
        else:
            prior = check_belief(variable, prior, "prior", self.dtype)
        if start is None:
            point = prior.mean
        else:
            point = as_numbers(variable.name, start, variable.shape, "start")
            if not np.isfinite(point).all():
                raise ValueError(f"variable '{variable.name}': start holds NaN or infinity")
        return prior, np.asarray(point, self.dtype)

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            known = ", ".join(self._entries) or "none"
            raise KeyError(f"there is no variable '{name}' (there are: {known})")
        return self._entries[name]

    def add(self, factor: Factor) -> Factor:
        """Add a group of factors. A name that is taken gets a number: `odometry_1`."""
        if not isinstance(factor, Factor):
            raise TypeError(f"FactorGraph.add takes a gbp.Factor, got {type(factor).__name__}")
        self._check_views(factor.name, factor.views)
        for view in factor.views:
            other = next(iter(self._touching(view.variable.name)), None) if view.variable.vector else None
            if other is not None:
                raise ValueError(
                    f"factor '{factor.name}': '{view.variable.name}' is a vector variable of '{other.name}': "
                    "only one group of factors can have it"
                )
        name, number = factor.name, 0
        while name in self._factors:
            number += 1
            name = f"{factor.name}_{number}"
        if name != factor.name:
            factor = _renamed(factor, name, {})
        if isinstance(factor.h, FactorKind) and any(self._entries[v.variable.name].growing for v in factor.views):
            raise ValueError(f"factor '{factor.name}': layers take whole variables, which cannot grow")
        self._resolved(factor)
        if factor.capacity is not None:
            self._growing[name] = GrowingFactors(factor, factor.capacity)
        self._factors[name] = factor
        self._laid_out.clear()
        return factor

    def _check_views(self, name: str, views: Iterable[View]) -> None:
        for view in views:
            entry = self._entries.get(view.variable.name)
            if entry is None or entry.variable != view.variable:
                raise ValueError(
                    f"factor '{name}': '{view.variable.name}' of shape {view.variable.shape} "
                    "is not a variable of this graph"
                )

    def reserve(self, name: str, capacity: int) -> None:
        """Make room for so many rows of a variable, or so many factors of a group, in all.

        Up to there `grow` and `extend` compile nothing. Beyond it the room doubles.
        """
        _check_capacity(name, capacity)
        if name not in self._entries and name not in self._factors:
            raise KeyError(f"there is no variable or factor group '{name}'")
        if name in self._entries:
            self._let_grow(name, capacity)
        if name in self._factors:
            self._let_extend(name, capacity)

    def _let_grow(self, name: str, capacity: int | None = None) -> GrowingVariable:
        entry = self._entry(name)
        variable = entry.variable
        if entry.growing is None:
            if name in self._tied or name in self._tied.values():
                raise ValueError(f"variable '{name}' is tied to another: it cannot grow")
            if any(isinstance(f.h, FactorKind) for f in self._touching(name)):
                raise ValueError(f"variable '{name}' belongs to a layer, which takes it whole: it cannot grow")
            room = default_room(variable.shape[0], math.prod(variable.shape[1:])) if capacity is None else capacity
            growing = GrowingVariable(variable, entry.prior, entry.start, room, all_proper(entry.prior))
            self._entries[name] = dataclasses.replace(entry, growing=growing, one=None)
            self._forget_wholly_observed(name)
            self._laid_out.clear()
            return growing
        if capacity is not None and entry.growing.make_room(capacity):
            self._laid_out.clear()
        return entry.growing

    def _touching(self, name: str) -> list[Factor]:
        return [f for f in self._factors.values() if any(v.variable.name == name for v in f.views)]

    def _forget_wholly_observed(self, name: str) -> None:
        """Of a variable that grows single units are observed, those that it has now."""
        if name in self._evidence.fixed:
            value, _ = self._evidence.values[name]
            self._evidence.values[name] = value, np.ones(self._entries[name].variable.unit_shape, bool)

    def _let_extend(self, name: str, capacity: int | None = None) -> GrowingFactors:
        if name not in self._factors:
            known = ", ".join(self._factors) or "none"
            raise KeyError(f"there is no factor group '{name}' (there are: {known})")
        if name not in self._growing:
            factor = self._factors[name]
            room = default_room(factor.factors, factor.outputs) if capacity is None else capacity
            self._growing[name] = GrowingFactors(factor, room)
            self._laid_out.clear()
        elif capacity is not None and self._growing[name].make_room(capacity):
            self._laid_out.clear()
        return self._growing[name]

    def grow(self, name: str, rows: int = 1, *, prior: Gaussian | None = None, start: Numbers | None = None) -> View:
        """Add rows to a variable, along its first axis. What was made of it before, `x[3:4]`, stays what it is.

        Within its capacity nothing is compiled again; beyond it the capacity doubles.

        **Arguments:**

        - `rows`: how many.
        - `prior`: of the new rows, broadcast to them; None for none at all.
        - `start`: as of `variable`, of the new rows.

        **Returns:** the new rows, as a view. `x[-rows:]` is the same: the variable itself has grown.
        """
        entry = self._entry(name)
        if not (isinstance(rows, (int, np.integer)) and not isinstance(rows, bool) and rows >= 1):
            raise ValueError(f"variable '{name}': rows must be a whole number >= 1, got {rows!r}")
        new = Variable(name, (int(rows), *entry.variable.shape[1:]), entry.variable.block)
        known, point = self._prior_and_start(new, prior, start)
        proper = all_proper(known)
        growing = self._let_grow(name)
        before = growing.proper, self._entries[name].started
        old = growing.used
        growing.grow(known, point, proper)
        if start is not None and not before[1]:
            self._entries[name] = dataclasses.replace(self._entries[name], started=True)
        if (growing.proper, self._entries[name].started) != before:
            self._laid_out.clear()
        return entry.variable[old:]

    def extend(
        self,
        name: str,
        args: Any,
        *,
        y: Numbers = 0.0,
        sigma: Numbers | None = None,
        covariance: Numbers | None = None,
        weight: Numbers | None = None,
    ) -> np.ndarray:
        """Add factors to a group: the same measurement function, on other units.

        ```python
        pose = graph.variable("pose", (1, 3), block=True, prior=known, capacity=512)
        graph.add(gbp.Factor(between, (pose[:0], pose[:0]), sigma=0.1, name="odometry", capacity=512))
        ...
        graph.grow("pose", start=guess)
        graph.extend("odometry", (pose[-2:-1], pose[-1:]), y=measured)
        result = gbp.infer(graph, init=result)
        ```

        Within the capacity of the group nothing is compiled again; beyond it the capacity doubles.

        **Arguments:**

        - `args`: as those of the group: views of the same variables, arrays of the same shapes.
        - `y`, `sigma`, `covariance`, `weight`: as of `gbp.Factor`. By default the noise of the group, if it has one
            for all.

        **Returns:** the numbers of the new factors, for `remove`. Those of the group's first factors are 0, 1, 2, ...
        """
        new = name in self._factors and name not in self._growing
        growing = self._let_extend(name)
        try:
            args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
            views = [a[:] if isinstance(a, Variable) else a for a in args if isinstance(a, (Variable, View))]
            self._check_views(name, views)
            first = growing.empty
            numbers = growing.extend(args, y, sigma, covariance, weight, self.dtype)
        except Exception:
            if new:  # as it was
                del self._growing[name]
            raise
        if first and len(numbers):
            self._laid_out.clear()
        return numbers

    def remove(self, name: str, numbers: Numbers) -> None:
        """Take factors out of a group. Nothing is compiled again, and new factors get their places.

        **Arguments:** `numbers`: those that `extend` returned; the first factors of the group have 0, 1, 2, ...
        """
        new = name in self._factors and name not in self._growing
        try:
            self._let_extend(name).remove(numbers)
        except ValueError:
            if new:
                del self._growing[name]
            raise

    def observe(self, name: str, value: Numbers, mask: Numbers | None = None) -> None:
        """Fix a variable, or where `mask` is True a part of it, at a value.

        **Arguments:**

        - `value`: broadcast to the variable's shape; NaN is allowed where `mask` is False.
        - `mask`: True = observed; blocks are observed whole (no last axis).
        """
        self._evidence.observe(self.canonical(name), *self._observed(name, value, mask))

    def _observed(self, name: str, value: Any, mask: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """An observation, checked. Of a variable that grows, those of its units that it has now."""
        entry = self._entry(name)
        values, flags = check_observed(entry.variable, value, mask)
        if flags is None and entry.growing is not None:
            flags = np.ones(entry.variable.unit_shape, bool)
        return values, flags

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
        if other._growing or any(e.growing is not None for e in other._entries.values()):
            raise ValueError("include: the other graph has variables or factors that grow; let them grow in this one")
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
        if a.vector or b.vector:
            raise ValueError(f"tie: '{first}' and '{second}' must be no vector variables")
        if (a.shape, a.block) != (b.shape, b.block):
            raise ValueError(f"tie: '{first}' has shape {a.shape} and '{second}' {b.shape}")
        keep, drop = self.canonical(first), self.canonical(second)
        if keep == drop:
            return
        if any(self._entries[n].growing is not None for n in (first, second)):
            raise ValueError(f"tie: '{first}' and '{second}' must be variables that do not grow")
        if drop in self._evidence and keep in self._evidence:
            raise ValueError(f"tie: '{first}' and '{second}' are both observed or held; release one")
        self._tied[drop] = keep
        try:
            for factor in self.factors.values():
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
                out.append(dataclasses.replace(a, variable=self._entries[self.canonical(a.variable.name)].padded))
            else:
                out.append(None)
        views = [v for v in out if v is not None]
        if {v.variable.name for v in views} != {v.variable.name for v in factor.views}:
            factor.check_once(views)
        return out

    def priors(self) -> dict[str, Belief]:
        """Prior of every variable, those of tied ones multiplied, without evidence."""
        growing = {n: e.prior_now() for n, e in self._entries.items() if e.growing is not None}
        priors = self._fixed_priors()
        return {n: growing[n] if n in growing else priors[n] for n in self._entries if n in growing or n in priors}

    def _fixed_priors(self) -> dict[str, Belief]:
        """Priors of the variables that do not grow, those of tied ones multiplied."""
        out: dict[str, Belief] = {}
        for name, e in self._entries.items():
            if e.growing is None:
                keep = self.canonical(name)
                out[keep] = out[keep] * e.prior if keep in out else e.prior
        return out

    def problem(self, evidence: Mapping[str, Any] | None = None, messages: str = "auto") -> Problem:
        """The graph with its evidence as arrays: what the engine works on.

        **Arguments:**

        - `evidence`: on top of `observe` and `hold`: `{name: value}`, `{name: (value, mask)}` or `{name: belief}`.
        - `messages`: kept "per-edge", "pooled", or "auto"; see `gbp.infer`.
        """
        known = self._knowns(evidence, messages)
        return self._problem(known, *self._lay_out(known))

    def _problem(self, known: _Knowns, laid: _LaidOut, new: bool) -> Problem:
        groups = tuple(self._with_rows(g) if g.name in self._growing else g for g in laid.groups)
        start = {n: jax.device_put(x) for n, x in known.start.items()}
        out = Problem(
            groups, (None,) * len(groups), known.prior, start, known.fixed, known.held, known.uniform,
            laid.proper, known.started, known.parameters, used=known.used,
        )  # fmt: skip
        if new:
            _check_linear(out)
        return out

    def data(self, evidence: Mapping[str, Any] | None = None, messages: str = "auto") -> Data:
        """The numbers of the graph, for `gbp.solve`; arguments as those of `gbp.compile`, which gives the structure."""
        return self.with_structure(_nothing, evidence, messages)[1]

    def with_structure(
        self,
        make: Callable[[FactorGraph, Problem], Made],
        evidence: Mapping[str, Any] | None = None,
        messages: str = "auto",
    ) -> tuple[Made, Data]:
        """What is made of the structure of the graph, and its numbers.

        **Arguments:**

        - `make`: makes it, of the graph and of a problem. It is called again only when the structure has changed.
        - `evidence`, `messages`: as of `problem`.
        """
        known = self._knowns(evidence, messages)
        laid, new = self._lay_out(known)
        if make not in laid.made:
            laid.made[make] = make(self, self._problem(known, laid, new))
        factors = {}
        for group in laid.groups:
            if group.name in self._growing:
                factors[group.name] = factor_data(group, self._growing[group.name], self.dtype)
                continue
            if group.name not in laid.factors:
                laid.factors[group.name] = data_of_group(group)
            factors[group.name] = laid.factors[group.name]
        data = Data(known.prior, known.start, known.fixed, known.held, known.uniform, factors, known.used)  # pyright: ignore[reportArgumentType]
        return laid.made[make], data

    def _with_rows(self, group: Group) -> Group:
        """A group that grows, with the rows that it has now."""
        now = group_with(group, factor_data(group, self._growing[group.name], self.dtype))
        return jax.tree.map(jax.device_put, now)

    def _knowns(self, evidence: Mapping[str, Any] | None, messages: str) -> _Knowns:
        """Priors, starts and evidence of all variables, with all rows that there is room for."""
        check_not_forked()
        check_mode(messages)
        self._make_room()
        known = self._evidence.copy()
        for name, value in (evidence or {}).items():
            keep, variable = self.canonical(name), self._entry(name).variable
            if isinstance(value, (Gaussian, VectorGaussian)):
                known.hold(keep, check_held(variable, value, self.dtype))
                continue
            refuse_traced(f"evidence of '{name}'", value)
            masked = isinstance(value, tuple) and len(value) == 2 and np.asarray(value[1]).dtype == bool
            known.observe(keep, *self._observed(name, *(value if masked else (value, None))))
        growing = {n: e.growing for n, e in self._entries.items() if e.growing is not None}
        priors = {**self._fixed_priors(), **{n: g.padded_prior() for n, g in growing.items()}}
        fixed, held = known.fixed, {n: priors[n] if belief is None else belief for n, belief in known.held.items()}
        for name in growing.keys() & held.keys():
            if known.held[name] is not None:
                held[name] = self._padded_belief(growing[name], held[name])
        used, start = {}, {}
        for name in self._entries:
            if name not in priors or name in fixed or name in held:
                continue
            prior = priors[name]
            if name in known.values:
                value, mask = known.values[name]
                if name in growing:
                    value, mask = growing[name].pad(value), growing[name].pad(np.asarray(mask))
                prior = _with_points(prior, np.asarray(value, self.dtype), np.asarray(mask))
            used[name] = prior
            start[name] = growing[name].padded_start() if name in growing else self._entries[name].start
        values = {name: jax.device_put(np.asarray(known.values[name][0], self.dtype)) for name in fixed}
        values |= {name: jax.device_put(belief.mean) for name, belief in held.items()}
        counts = {n: np.asarray(g.used * math.prod(g.variable.shape[1:]), np.int32) for n, g in growing.items()}
        return _Knowns(
            used, start, values, held,
            self._uniform(name for name in used if name not in known.values),
            counts,
            frozenset(name for name in used if self._entries[name].started),
            frozenset(name for name in used if self._entries[name].kind == "parameter"),
            (fixed, frozenset(held), messages),
        )  # fmt: skip

    def _make_room(self) -> None:
        """Double the room of what does not fit any more; and of what is nearly full, since all is compiled anew."""
        growing = [*(e.growing for e in self._entries.values() if e.growing is not None), *self._growing.values()]
        changed = [g.fit() for g in growing]
        if any(changed):
            for g in growing:
                if g.full > NEARLY_FULL:
                    g.make_room(2 * g.room)
            self._laid_out.clear()

    def _lay_out(self, known: _Knowns) -> tuple[_LaidOut, bool]:
        """The factors as arrays, once for all numbers; and whether this is the first time."""
        key = *known.key, known.started, frozenset(known.uniform)
        if key in self._laid_out:
            return self._laid_out[key], False
        fixed, held, messages = known.key
        proper = frozenset(n for n in known.prior if self._is_proper(n))
        made = []
        for name, f in self._factors.items():
            grown = self._growing.get(name)
            if grown is not None:
                if grown.empty:
                    continue
                f = grown.padded_factor()
            made.append(make_group(f, self._resolved(f), fixed, held, proper, self.kinds, messages, self.dtype))
        self._laid_out[key] = _LaidOut(tuple(made), proper)
        return self._laid_out[key], True

    def _is_proper(self, name: str) -> bool:
        growing = self._entries[name].growing
        return all_proper(self._fixed_priors()[name]) if growing is None else growing.proper

    def _padded_belief(self, growing: GrowingVariable, belief: Gaussian) -> Gaussian:
        if belief.shape[0] != growing.used:
            name = growing.variable.name
            raise ValueError(f"variable '{name}' has grown since it was held at a belief: hold it again, or release it")
        return growing.pad_belief(belief)

    def _uniform(self, names: Iterable[str]) -> dict[str, Belief]:
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
        for name in problem.prior:
            names = [n for n in self._entries if self.canonical(n) == name and n in values]
            if not names:
                raise KeyError(f"energy: no value for variable '{name}'")
            given = values[names[0]]
            given = given.mean if isinstance(given, (Gaussian, VectorGaussian)) else given
            entry = self._entry(name)
            numbers, growing = as_numbers(name, given, entry.variable.shape, "value"), entry.growing
            full[name] = jnp.asarray(numbers if growing is None else growing.pad(numbers), self.dtype)
        groups, priors = _energies(problem, full)
        out = {g.name: float(e) for g, e in zip(problem.groups, groups)}
        known = self.priors()
        proper = [
            n for n, p in known.items() if n in priors and (not isinstance(p, Gaussian) or np.asarray(p.lam).any())
        ]
        return {**out, **{f"prior of {name}": float(priors[name]) for name in proper}}


_energies = lean_jit(lambda problem, values: problem.energies(values))


def all_proper(prior: Belief) -> bool:
    """Whether every unit of it can be normalised."""
    return prior.all_proper()


def _check_capacity(name: str, capacity: Any) -> None:
    if capacity is not None and (isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1):
        raise ValueError(f"'{name}': capacity must be a whole number >= 1, got {capacity!r}")


def _with_points(prior: Gaussian, value: np.ndarray, mask: np.ndarray) -> Gaussian:
    """A prior with some units observed."""
    eta, lam, point = np.asarray(prior.eta), np.asarray(prior.lam), value.dtype.type(POINT)
    wide = mask[..., None] if prior.block else mask
    eta = np.where(wide, value * point, eta)
    if prior.block:
        lam = np.where(wide[..., None], np.eye(value.shape[-1], dtype=value.dtype) * point, lam)
    else:
        lam = np.where(wide, point, lam)
    return Gaussian(eta, lam) if isinstance(prior.eta, np.ndarray) else Gaussian(*map(jax.device_put, (eta, lam)))  # pyright: ignore[reportArgumentType]


def _nothing(graph: FactorGraph, problem: Problem) -> None:
    """Made of a structure by those who want its numbers alone."""


def _check_linear(problem: Problem) -> None:
    """Raise if a group that was declared linear cannot be linearised at 0."""
    for group in problem.groups:
        if not (group.linear and group.slots) or isinstance(group.measurement, FactorKind):
            continue
        zeros = {n: jnp.zeros(problem.prior[n].shape, problem.prior[n].dtype) for n in group.variables}
        linear = linearise(group, {**problem.fixed, **zeros})
        if not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(linear)):
            raise ValueError(
                f"factor '{group.name}': h or its Jacobian is not finite at 0, so it cannot be linear=True"
            )


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
