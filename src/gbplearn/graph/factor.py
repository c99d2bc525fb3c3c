"""Factors: a measurement function, what it is measured on, and how noisy it is."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.gaussian import Gaussian, Numbers
from ..core.noise import LearnNoise
from ..core.robust import Kernel
from ..core.tracing import refuse_traced
from ..factors.likelihood import Likelihood
from ..factors.measurement import FactorKind, Function, Layout, Measurement
from .variable import Variable, View, check_once


@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """A group of factors with one measurement function: energy `rho(|y - h(x)|²_Sy)` each, `d² / 2` if not robust.

    ```python
    gbp.Factor(lambda a, b: b - a, (x[:-1], x[1:]), y=1.0, sigma=0.1, name="odometry")
    ```

    **Arguments:**

    - `h`: measurement function of one factor: takes one row of every argument, returns a scalar (M = 1) or an array,
        flattened to M. Must be a JAX function. Define it once and use it again: what is compiled is kept by function.
        Or a `gbp.FactorKind`, which takes whole variables and has its own layout of factors.
    - `args`: views of variables, or arrays (known constants), in the order of `h`'s arguments. The first axis
        runs over the factors; a first axis of length 1 is shared by all.
    - `y`: measurement, broadcast to `(F,) + h's shape`.
    - `sigma`: its standard deviation, broadcast like `y`; or `gbp.LearnNoise()` to infer one for all.
    - `covariance`: instead of `sigma`, `(M, M)` or `(F, M, M)`.
    - `robust`: `gbp.Tukey(N)`, `gbp.Huber(N)` or None.
    - `robust_over`: axes of `(F,) + h's shape` whose energies are summed before the robust switch. By default all axes
        of `h`: one switch a factor. `()` gives each output its own switch (independent noise only), `(0,)` adds the
        factor axis: one switch for all factors.
    - `jacobian`: a function of the same arguments that returns a tuple, for every argument (constants too) an array of
        shape `h's shape + argument's shape`. By default `h` is differentiated automatically.
    - `linear`: `h` is affine in its variables: it is linearised once.
    - `weight`: on the precision of each factor, broadcast to the factors; 0 for a factor that is not there (a missing
        label), 2 for one that was observed twice. New weights never recompile, None instead of numbers does.
    - `name`: how messages to the user call it; by default the name of `h`.
    - `capacity`: how many factors there is room for, if the group is to grow (`FactorGraph.extend`): until they are
        more nothing is compiled again. Such a group may begin without any factor.
    """

    h: Callable[..., Any] | FactorKind
    args: tuple[Any, ...]
    y: Numbers = 0.0
    sigma: Numbers | LearnNoise | None = None
    covariance: Numbers | None = None
    robust: Kernel | None = None
    robust_over: int | Sequence[int] | None = None
    jacobian: Callable[..., Any] | None = None
    linear: bool = False
    weight: Numbers | None = None
    name: str = ""
    capacity: int | None = None

    def __post_init__(self):
        def put(field: str, value: Any) -> None:  # the only way to set a field of a frozen dataclass
            object.__setattr__(self, field, value)

        if not self.name:
            name = getattr(self.h, "__name__", type(self.h).__name__)
            put("name", "factor" if name == "<lambda>" else name)
        if self.capacity is not None and not (isinstance(self.capacity, int) and self.capacity >= 1):
            raise ValueError(f"factor '{self.name}': capacity must be a whole number >= 1, got {self.capacity!r}")
        for field in ("h", "y", "sigma", "covariance", "weight"):
            refuse_traced(f"factor '{self.name}': {field}", getattr(self, field))
        if not isinstance(self.args, (tuple, list)):
            put("args", (self.args,))
        put("args", tuple(self._argument(i, a) for i, a in enumerate(self.args)))
        if not any(isinstance(a, View) for a in self.args):
            raise ValueError(f"factor '{self.name}': at least one argument must be a view of a variable")
        put("layout", self._layout() if isinstance(self.h, FactorKind) else None)
        put("grid", (self._count(),) if self.layout is None else self.layout.grid)
        self.check_once(self.views)
        if self.robust is not None and not isinstance(self.robust, Kernel):
            raise ValueError(
                f"factor '{self.name}': robust must be gbp.Tukey(...) or gbp.Huber(...), got {self.robust!r}"
            )
        if isinstance(self.h, FactorKind):
            assert self.layout is not None
            put("h_shape", self.layout.h_shape)
            put("measurement", self.h)
        else:
            put("h_shape", self._measure(self.h))
            self._check_jacobian_shapes()
            put("measurement", Function(self.h, self.jacobian, self.factors, self.outputs))
        put("y", self._observation())
        put("learn", self.sigma if isinstance(self.sigma, LearnNoise) else None)
        put("noise", self._noise())
        put("weights", None if self.weight is None else self._weights())
        put("switch_axes", self._switch_axes())

    layout: Layout | None = dataclasses.field(init=False)  # of a kind
    grid: tuple[int, ...] = dataclasses.field(init=False)  # the factors, as an array
    measurement: Measurement = dataclasses.field(init=False)
    h_shape: tuple[int, ...] = dataclasses.field(init=False)
    learn: LearnNoise | None = dataclasses.field(init=False)
    noise: np.ndarray = dataclasses.field(init=False)  # variances (F | 1, M), or covariances (F | 1, M, M)
    weights: np.ndarray | None = dataclasses.field(init=False)  # broadcast to the grid
    switch_axes: tuple[int, ...] = dataclasses.field(init=False)  # of grid + h_shape

    @property
    def factors(self) -> int:
        """F."""
        return math.prod(self.grid)

    @property
    def outputs(self) -> int:
        """M, the number of measurements of one factor."""
        return math.prod(self.h_shape)

    @property
    def views(self) -> list[View]:
        """The arguments that are variables."""
        return [a for a in self.args if isinstance(a, View)]

    @property
    def edge_counts(self) -> list[int]:
        """How many edges the group has to the variable of each view."""
        if self.layout is None:
            return [self.factors * v.units for v in self.views]
        edges = zip(self.layout.edges, self.args)
        return [self.factors * e.row for e, a in edges if isinstance(a, View)]

    def weighted(self, weight: Numbers) -> Factor:
        """The same factors with these weights."""
        new = object.__new__(Factor)  # nothing else is checked again
        new.__dict__.update(self.__dict__, weight=weight)
        new.__dict__.update(weights=new._weights())
        return new

    def more(self, args: Any, y: Any, sigma: Any, covariance: Any, weight: Any) -> Factor:
        """More factors of the same group: the same `h`, and arguments of the same variables and shapes.

        Without a noise of their own they have that of the group, if all of it have one.
        """
        new = object.__new__(Factor)
        new.__dict__.update(self.__dict__, capacity=None)

        def put(**fields: Any) -> None:
            new.__dict__.update(fields)

        args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        if len(args) != len(self.args):
            raise ValueError(f"factor '{self.name}' takes {len(self.args)} arguments, got {len(args)}")
        put(args=tuple(self._argument(i, a) for i, a in enumerate(args)))
        for i, (a, b) in enumerate(zip(new.args, self.args)):
            name, wanted = (x.variable.name if isinstance(x, View) else None for x in (a, b))
            if name != wanted:
                what = "an array" if wanted is None else f"a view of '{wanted}'"
                raise ValueError(f"factor '{self.name}': argument {i} must be {what}, as of all factors of the group")
            rows, right = (x.row_shape if isinstance(x, View) else x.shape[1:] for x in (a, b))
            if rows != right:
                raise ValueError(f"factor '{self.name}': argument {i} has rows of shape {rows}, must be {right}")
            if wanted is None and not np.can_cast(a.dtype, b.dtype, "same_kind"):
                raise ValueError(f"factor '{self.name}': argument {i} has numbers of type {a.dtype}, not {b.dtype}")
        put(grid=(new._count(),))
        new.check_once(new.views)
        given = sigma is not None or covariance is not None
        if given and self.learn is not None:
            raise ValueError(f"factor '{self.name}': its noise is learnt: give neither sigma nor covariance")
        if given and (covariance is None) != (self.covariance is None):
            way = "sigma" if self.covariance is None else "covariance"
            raise ValueError(f"factor '{self.name}': the noise of its group is given by {way}")
        if not given and len(self.noise) != 1:
            raise ValueError(f"factor '{self.name}': each of its factors has a noise of its own: give sigma= too")
        for what, value in (("y", y), ("sigma", sigma), ("covariance", covariance), ("weight", weight)):
            refuse_traced(f"factor '{self.name}': {what}", value)
        put(y=y, weight=weight)
        put(y=new._observation(), weights=None if weight is None else new._weights())
        if given:
            put(sigma=sigma, covariance=covariance)
            put(noise=new._noise())
        return new

    def check_once(self, views: list[View]) -> None:
        """Raise if a scalar or block occurs twice in one factor. `views` are those of its arguments, in any names."""
        for name in {v.variable.name for v in views}:
            same = [i for i, v in enumerate(views) if v.variable.name == name]
            if self.layout is None:
                check_once(self.name, self.factors, [views[i] for i in same])
            elif len(same) > 1:
                edges = [e for e, a in zip(self.layout.edges, self.args) if isinstance(a, View)]
                if not all(edges[i].apart(edges[j]) for i, j in itertools.combinations(same, 2)):
                    raise ValueError(f"factor '{self.name}': '{name}' occurs twice among its arguments")

    def _argument(self, i: int, a: Any) -> View | np.ndarray:
        if isinstance(a, Variable):
            a = a[:]
        if isinstance(a, View):
            if not a.shape:
                raise ValueError(f"factor '{self.name}': argument {i} ('{a.variable.name}') has no factor axis")
            return a
        refuse_traced(f"factor '{self.name}': argument {i}", a)
        try:
            array = np.asarray(a)
        except ValueError as error:
            raise ValueError(f"factor '{self.name}': argument {i}: {error}") from None
        if array.dtype == object or array.ndim == 0:
            raise ValueError(f"factor '{self.name}': argument {i} must be a view, or an array with a factor axis")
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"factor '{self.name}': the constant argument {i} holds NaN or infinity")
        return array

    def _layout(self) -> Layout:
        assert isinstance(self.h, FactorKind)
        if self.jacobian is not None:
            raise ValueError(f"factor '{self.name}': a kind of factor has its own jacobian")
        for v in self.views:
            if not v.whole or v.variable.block:
                raise ValueError(f"factor '{self.name}': '{v.variable.name}' must be a whole variable of scalars")
        try:
            return self.h.layout(*(a.variable.shape if isinstance(a, View) else a.shape for a in self.args))
        except (ValueError, TypeError) as error:
            raise ValueError(f"factor '{self.name}': {error}") from None

    def _count(self) -> int:
        lengths = {i: a.shape[0] for i, a in enumerate(self.args)}
        long = {n for n in lengths.values() if n != 1}
        if len(long) > 1:
            lengths_by_name = ", ".join(
                f"{a.variable.name if isinstance(a, View) else f'argument {i}'}: {lengths[i]}"
                for i, a in enumerate(self.args)
            )
            what = (
                f"the first axes of its arguments do not fit ({lengths_by_name}): each is the number of factors, or 1"
            )
            raise ValueError(f"factor '{self.name}': {what}")
        if 0 in long and self.capacity is None:
            raise ValueError(f"factor '{self.name}' has no factors: an argument has a first axis of length 0")
        return long.pop() if long else 1

    def _rows(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of the arguments of `h`."""
        floating = jnp.result_type(float)
        return [
            jax.ShapeDtypeStruct(a.row_shape, floating)
            if isinstance(a, View)
            else jax.ShapeDtypeStruct(a.shape[1:], jax.dtypes.canonicalize_dtype(a.dtype))
            for a in self.args
        ]

    def _check_jacobian_shapes(self) -> None:
        if self.jacobian is None:
            return
        rows = self._rows()
        try:
            given = jax.eval_shape(self.jacobian, *rows)
            shapes = [g.shape for g in given]
        except Exception as error:
            text = str(error).split("\n")[0]
            raise ValueError(f"factor '{self.name}': jacobian failed: {text}") from error
        right = [(*self.h_shape, *r.shape) for r in rows]
        wrong = len(shapes) != len(right) or any(
            s != r for s, r, a in zip(shapes, right, self.args) if isinstance(a, View)
        )
        if wrong:
            raise ValueError(f"factor '{self.name}': jacobian must return arrays of shapes {right}, returns {shapes}")

    def _measure(self, h: Callable[..., Any]) -> tuple[int, ...]:
        rows = self._rows()
        try:
            program, out = jax.make_jaxpr(h, return_shape=True)(*rows)
        except Exception as error:
            shapes = ", ".join(str(r.shape) for r in rows)
            text = _hint(h, error) or str(error).split("\n")[0]
            raise ValueError(f"factor '{self.name}': h failed on arguments of shape {shapes}: {text}") from error
        refuse_traced(f"factor '{self.name}': a value that h takes from around it", program.consts)
        if not hasattr(out, "shape") or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(f"factor '{self.name}': h must return one array of real numbers, it returns {out}")
        if math.prod(out.shape) == 0:
            raise ValueError(f"factor '{self.name}': h returns an empty array of shape {out.shape}")
        return tuple(out.shape)

    def _broadcast(self, value: Any, what: str) -> np.ndarray:
        """To `(F | 1, M)`: a value that is the same for all factors is stored once."""
        try:
            array = np.asarray(value, float)
        except (ValueError, TypeError):
            raise ValueError(f"factor '{self.name}': {what} must be an array of numbers") from None
        target = (*self.grid, *self.h_shape)
        try:
            np.broadcast_to(array, target)
        except ValueError:
            raise ValueError(
                f"factor '{self.name}': {what} of shape {array.shape} does not fit {self.factors} factors whose h has "
                f"shape {self.h_shape}: it must broadcast to {target}"
            ) from None
        if not np.isfinite(array).all():
            raise ValueError(f"factor '{self.name}': {what} holds NaN or infinity")
        padded = (1,) * (len(target) - array.ndim) + array.shape
        if all(n == 1 for n in padded[: len(self.grid)]):
            return np.broadcast_to(array, (1,) * len(self.grid) + self.h_shape).reshape(1, self.outputs)
        return np.broadcast_to(array, target).reshape(self.factors, self.outputs)

    def _observation(self) -> np.ndarray:
        return self._broadcast(self.y, "y")

    def _noise(self) -> np.ndarray:
        if isinstance(self.h, Likelihood):
            if not (self.sigma is None and self.covariance is None and self.robust is None):
                raise ValueError(f"factor '{self.name}': a likelihood has neither noise nor a robust energy")
            return np.ones((1, self.outputs))
        if (self.sigma is None) == (self.covariance is None):
            raise ValueError(f"factor '{self.name}': give one of sigma (standard deviation) and covariance")
        if self.learn is not None and self.robust is not None:
            raise ValueError(f"factor '{self.name}': the noise of a robust factor cannot be learnt")
        if self.sigma is not None:
            s = self._broadcast(self.learn.start if self.learn is not None else self.sigma, "sigma")
            if not (s > 0).all():
                raise ValueError(f"factor '{self.name}': every sigma must be > 0")
            return s * s
        m = self.outputs
        try:
            c = np.asarray(self.covariance, float)
        except (ValueError, TypeError):
            raise ValueError(f"factor '{self.name}': covariance must be an array of numbers") from None
        if c.shape not in ((m, m), (self.factors, m, m)):
            raise ValueError(
                f"factor '{self.name}': covariance has shape {c.shape}, must be {(m, m)} or {(self.factors, m, m)}"
            )
        c = c.reshape(-1, m, m)
        symmetric = np.isfinite(c).all() and np.allclose(c, np.swapaxes(c, -1, -2), rtol=1e-5, atol=0)
        try:
            if not symmetric:
                raise np.linalg.LinAlgError
            np.linalg.cholesky(c)
        except np.linalg.LinAlgError:
            raise ValueError(
                f"factor '{self.name}': every covariance must be symmetric and positive definite"
            ) from None
        return c

    def _weights(self) -> np.ndarray:
        try:
            weights = np.asarray(self.weight, float)
            np.broadcast_to(weights, self.grid)
        except (ValueError, TypeError):
            raise ValueError(f"factor '{self.name}': weight must be numbers that broadcast to {self.grid}") from None
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"factor '{self.name}': every weight must be finite and >= 0")
        return weights

    def _switch_axes(self) -> tuple[int, ...]:
        first, ndim = len(self.grid), len(self.grid) + len(self.h_shape)
        if self.robust_over is None:
            return tuple(range(first, ndim))
        if self.robust is None:
            raise ValueError(f"factor '{self.name}': robust_over needs a robust energy (robust=gbp.Tukey(...))")
        named = (self.robust_over,) if isinstance(self.robust_over, int) else tuple(self.robust_over)
        if any(not -ndim <= a < ndim for a in named):
            raise ValueError(f"factor '{self.name}': robust_over {named} names axes of {(*self.grid, *self.h_shape)}")
        axes = tuple(sorted({a % ndim for a in named}))
        if self.covariance is not None and not set(range(first, ndim)) <= set(axes):
            raise ValueError(f"factor '{self.name}': with a full covariance the outputs share one robust switch")
        return axes


def check_noise_range(name: str, noise: np.ndarray, dtype: Any) -> None:
    """Raise if a variance is too small or too large for the numbers that messages are made of."""
    numbers = noise if noise.ndim == 2 else np.diagonal(noise, axis1=-2, axis2=-1)
    if not ((numbers > 1e3 * jnp.finfo(dtype).tiny) & np.isfinite(numbers)).all():
        raise ValueError(f"factor '{name}': a noise variance is outside the range of {dtype}")


def _hint(h: Callable[..., Any], error: Exception) -> str | None:
    """What to do about the two errors of JAX that most first functions run into."""
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return "it asks whether a value is true ('if', 'and', 'max'); use jnp.where, jnp.maximum or the like instead"
    conversions = jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError
    if isinstance(h, np.ufunc) or isinstance(error, conversions):
        return "it calls NumPy or math on its arguments; use jax.numpy instead"
    return None


def check_jacobian(
    factor: Factor, *, at: Mapping[str, Any] | None = None, seed: int = 0, tolerance: float = 1e-3
) -> float:
    """Compare `factor.jacobian` with automatic differentiation of `factor.h`, at one point of each factor.

    **Arguments:**

    - `at`: values of its variables by name, or a `Result`, whose means are taken; by default drawn from `N(0, 1)`. Give
        it where these are unusual values for `h`: entries that are small there are hardly checked.
    - `seed`: of what is drawn.
    - `tolerance`: of the largest difference, relative to the largest entry.

    **Returns:** the largest difference, relative to the largest entry. Above `tolerance` it raises a `ValueError` that
    names the argument.
    """
    if factor.jacobian is None or isinstance(factor.h, FactorKind):
        raise ValueError(f"factor '{factor.name}' has no jacobian= to check")
    rng = np.random.default_rng(seed)

    def row(a: View | np.ndarray) -> Array:
        if not isinstance(a, View):
            return jnp.broadcast_to(jnp.asarray(a), (factor.factors, *a.shape[1:]))
        shape = factor.factors, *a.row_shape
        point = rng.standard_normal(shape) if at is None else np.broadcast_to(_values(factor, a, at), shape)
        return jnp.asarray(point, jnp.result_type(float))

    rows = [row(a) for a in factor.args]
    given = jax.vmap(factor.jacobian)(*rows)
    if not isinstance(given, (tuple, list)) or len(given) != len(factor.args):
        raise ValueError(f"factor '{factor.name}': jacobian must return a tuple of {len(factor.args)} arrays")
    worst = 0.0
    for i, a in enumerate(factor.args):
        if not isinstance(a, View):
            continue
        right = np.asarray(jax.vmap(jax.jacfwd(factor.h, argnums=i))(*rows))
        if given[i].shape != right.shape:
            raise ValueError(
                f"factor '{factor.name}': jacobian of argument {i} has shape {given[i].shape[1:]}, "
                f"must be {right.shape[1:]}"
            )
        off = float(np.abs(np.asarray(given[i]) - right).max() / max(np.abs(right).max(), 1e-30))
        if not off <= tolerance:
            raise ValueError(f"factor '{factor.name}': jacobian of argument {i} is off by {off:.2g} (relative)")
        worst = max(worst, off)
    return worst


def _values(factor: Factor, view: View, at: Mapping[str, Any]) -> np.ndarray:
    """The values of a variable that the factors take, `(first axis of the view,) + row_shape`."""
    name, shape = view.variable.name, view.variable.shape
    if name not in at:
        raise ValueError(f"factor '{factor.name}': at has no value for variable '{name}'")
    value = at[name].mean if isinstance(at[name], Gaussian) else at[name]
    try:
        units = np.broadcast_to(np.asarray(value, float), shape).reshape(-1, view.variable.dim)
    except (ValueError, TypeError):
        raise ValueError(f"factor '{factor.name}': at['{name}'] must be numbers of shape {shape}") from None
    return units[view.unit_ids()].reshape(view.shape[0], *view.row_shape)
