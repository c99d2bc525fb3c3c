"""Every kind of factors: how a layer lays them out, the same as plain functions, and which kernels visit them.

A new layer, or a new kernel, is a new line of `CASES`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gbplearn as gbp
from gbplearn.layers.activation import find_activation
from gbplearn.layers.stencil import StencilKind
from gbplearn.layers.transposed_dense import TransposedDenseKind
from layers_by_hand import ACTIVATIONS, framed, geometry, plain_factors, shapes_of

# By variable, all different: a kernel that takes that of another one is found out.
DAMPING = {"x": 0.3, "weight": 0.6, "bias": 0.5, "y": 0.2, "z": 0.4}
PARAMETERS = ("weight", "bias")
Variables = Mapping[str, gbp.Variable]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Factors between variables, two times.

    **Arguments:**

    - `shapes`: of the variables.
    - `layer`: the factor groups under test.
    - `plain`: of each group `h` of one factor, and its arguments.
    - `wide`: the variable that lies under windows with gaps and margins, and its axes: by hand these are units too.
    """

    shapes: dict[str, tuple[int, ...]]
    layer: Callable[[Variables], list[gbp.Factor]]
    plain: Callable[[Variables], list[tuple[Callable[..., Any], tuple[Any, ...]]]]
    wide: tuple[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table.

    **Arguments:**

    - `each`, `together`: the kernels that visit it with messages per edge, and pooled; none: XLA alone.
    - `pools`: the variables whose messages "pooled" pools; none: nothing, it is the same as per edge.
    - `known`: variables that are wholly observed.
    - `observed`: the share of the units of `x` that are observed.
    - `unknown`: the share of the units of `x` that have no prior.
    - `started`: variables that are linearised elsewhere than at their mean at first.
    - `uniform`: variables with one prior for all units.
    - `weight`: None, "rows" (one for each row of the batch; two of them, or one of two, are 0), "each", or a number.
    - `numbers`: "each" factor has its own measurement and noise, or all have those of the "layer".
    - `float32`: the tolerance in standard deviations.
    - `slow`: not part of the default run.
    - `chained`: visits are made in one call, where a kernel can.
    """

    kind: Kind
    each: str = ""
    together: str = ""
    pools: str = ""
    known: str = ""
    observed: float = 0.0
    unknown: float = 0.0
    started: str = ""
    uniform: str = ""
    weight: str | float | None = None
    numbers: str = "layer"
    float32: float = 1e-5
    slow: bool = False
    chained: bool = False

    @property
    def modes(self) -> list[str]:
        """How its messages can be kept."""
        return ["per-edge", "pooled"] if self.pools else ["per-edge"]

    def kernels(self, mode: str) -> set[str]:
        """Their names."""
        return set((self.each if mode == "per-edge" else self.together).split())

    def priors(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of every variable `eta`, `lam` and a start, exact in float32."""
        rng, out = np.random.default_rng(1), {}
        for name, shape in self.kind.shapes.items():
            drawn = () if name in self.uniform.split() else shape
            mean, std = 0.5 * rng.standard_normal(drawn), rng.uniform(0.3, 1.0, drawn)
            lam = std**-2.0 * (rng.random(drawn) >= (self.unknown if name == "x" else 0.0))
            out[name] = tuple(np.float32(a) for a in (mean * lam, lam, 0.6 * rng.standard_normal(shape)))
        return out

    def evidence(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Values that are observed, and where."""
        rng, out = np.random.default_rng(2), {}
        for name, shape in self.kind.shapes.items():
            share = 1.0 if name in self.known.split() else self.observed if name == "x" else 0.0
            if share:
                out[name] = np.float32(0.7 * rng.standard_normal(shape)), rng.random(shape) < share
        return out

    def _with_numbers(self, g: int, factor: gbp.Factor) -> gbp.Factor:
        """A group of the layer with measurements, noise and weights."""
        rng, shape = np.random.default_rng([3, g]), (*factor.grid, *factor.h_shape)
        if self.numbers == "each":
            y, sigma = np.float32(0.5 * rng.standard_normal(shape)), rng.uniform(0.3, 0.8, shape)
            factor = dataclasses.replace(factor, y=y, sigma=sigma)
        if self.weight is None:
            return factor
        weight = self.weight
        if weight == "rows":
            weight = rng.uniform(0.5, 2.0, (shape[0], *[1] * (len(factor.grid) - 1)))
            weight[-2 if shape[0] > 2 else -1 :] = 0.0
        elif weight == "each":
            weight = 0.7 * rng.integers(0, 4, factor.grid)
        return factor.weighted(np.float32(weight))

    def graph(self) -> gbp.FactorGraph:
        """As the layer has it."""
        graph = gbp.FactorGraph()
        v = {name: self._declare(graph, name, *numbers) for name, numbers in self.priors().items()}
        for name, (value, there) in self.evidence().items():
            graph.observe(name, value, None if there.all() else there)
        for g, factor in enumerate(self.kind.layer(v)):
            graph.add(self._with_numbers(g, factor))
        return graph

    def by_hand(self) -> tuple[gbp.FactorGraph, dict[str, np.ndarray]]:
        """The same with plain functions; and which units are those of the layer, where there are more."""
        ours, graph, real, v = self.graph(), gbp.FactorGraph(), {}, {}
        evidence, numbers = self.evidence(), self.priors()
        for name, (eta, lam, start) in numbers.items():
            value, there = evidence.get(name, (None, None))
            if self.kind.wide and self.kind.wide[0] == name:
                axes = self.kind.wide[1]
                eta, lam = (np.broadcast_to(a, start.shape) for a in (eta, lam))
                real[name] = framed(np.ones(start.shape, bool), axes, False)
                eta, lam, start = (
                    np.float32(framed(a, axes, fill)) for a, fill in ((eta, 0.0), (lam, 1.0), (start, 0.0))
                )
                value = np.zeros(start.shape) if value is None else framed(value, axes, 0.0)
                there = ~real[name] if there is None else framed(there, axes, True)
            v[name] = self._declare(graph, name, eta, lam, start)
            if there is not None and there.any():
                graph.observe(name, value, None if there.all() else there)
        for factor, (h, args) in zip(ours.factors.values(), self.kind.plain(v), strict=True):
            many = (factor.factors, *factor.h_shape)
            y, sigma = (np.broadcast_to(a, (factor.factors, factor.outputs)).reshape(many)
                        for a in (factor.y, np.sqrt(factor.noise)))  # fmt: skip
            weight = None if factor.weights is None else np.broadcast_to(factor.weights, factor.grid).ravel()
            graph.add(gbp.Factor(h, args, y=y, sigma=sigma, weight=weight, robust=factor.robust, name=factor.name))
        return graph, real

    def _declare(self, graph, name, eta, lam, start) -> gbp.Variable:
        prior = gbp.Gaussian(*(jnp.asarray(a, graph.dtype) for a in (eta, lam)))
        kind = "parameter" if name in PARAMETERS else "activation"
        point = start if name in self.started.split() else None
        return graph.variable(name, start.shape, prior=prior, start=point, kind=kind)


# The kinds.


def dense(batch=4, inputs=3, outputs=2, activation="linear", **options) -> Kind:
    shapes = {"x": (batch, inputs), "weight": (inputs, outputs), "bias": (outputs,), "y": (batch, outputs)}
    generative = options.get("direction") == "generative"
    if generative:  # x: the outputs of the layer, which explain its inputs y
        layer = gbp.Dense(inputs, activation=activation, sigma=0.4, **options)
    else:
        layer = gbp.Dense(outputs, activation=activation, sigma=0.4, **options)
    g = ACTIVATIONS[activation]

    def as_layer(v):
        ends = (v["y"], v["x"]) if generative else (v["x"], v["y"])
        return [layer.factor("dense", ends[0], {n: v[n] for n in PARAMETERS}, ends[1])]

    def plain(v):
        b, o = (i.ravel() for i in np.indices((batch, outputs)))
        row = np.arange(inputs)[None]
        args = v["x"][b[:, None], row], v["weight"][row, o[:, None]], v["bias"][o], v["y"][b, o]
        return [(lambda x, w, d, y: y - g(x @ w + d), args)]

    return Kind(shapes, as_layer, plain)


def transposed(batch=4, inputs=3, units=2, activation="linear") -> Kind:
    """The weights of a dense layer turned round; `x` has its units."""
    shapes = {"x": (batch, units), "weight": (inputs, units), "y": (batch, inputs)}
    kind, g = TransposedDenseKind(find_activation(activation)), ACTIVATIONS[activation]

    def as_layer(v):
        return [gbp.Factor(kind, (v["x"], v["weight"], v["y"]), y=0.0, sigma=0.4, name="dense")]

    def plain(v):
        b, o = (i.ravel() for i in np.indices((batch, inputs)))
        row = np.arange(units)[None]
        return [(lambda x, w, y: y - g(x @ w), (v["x"][b[:, None], row], v["weight"][o[:, None], row], v["y"][b, o]))]

    return Kind(shapes, as_layer, plain)


def masked(batch=4, numbers=3) -> Kind:
    """Dropout: the mask is a variable that is known."""
    shapes = dict.fromkeys(("x", "z", "y"), (batch, numbers))
    layer = gbp.Dropout(0.5, sigma=0.4)

    def as_layer(v):
        return layer.join("drop", [v["x"], v["z"]], v["y"])

    def plain(v):
        b, o = (i.ravel() for i in np.indices((batch, numbers)))
        return [(lambda x, m, y: y - m * x, tuple(v[n][b, o] for n in ("x", "z", "y")))]

    return Kind(shapes, as_layer, plain)


def image(layer, shape) -> Kind:
    """A layer of images, by the definitions of `layers_by_hand`; `shape` is that of the inputs."""
    wide = {gbp.Conv2D: "x", gbp.ConvTranspose2D: "y"}.get(type(layer))
    shapes = shapes_of(layer, shape)

    def as_layer(v):
        if isinstance(layer, gbp.PairwiseSmoothing):
            return layer.factors("layer", v["x"])
        return [layer.factor("layer", v["x"], {n: v[n] for n in PARAMETERS if n in v}, v["y"])]

    return Kind(
        shapes, as_layer, lambda v: plain_factors(layer, v, shape), (wide, geometry(layer, shape)[0]) if wide else None
    )


def joined(layer, *inputs) -> Kind:
    """Several variables as one, or a part of one; by hand every number picks what it is made of."""
    outputs = (inputs[0][0], *layer.joined_shape(*(s[1:] for s in inputs)))
    taken = dict(zip("xz", inputs))

    def as_layer(v):
        return layer.join("join", [v[n] for n in taken], v["y"])

    def whole(name, v):
        return v[name][np.unravel_index(np.arange(math.prod(v[name].shape)), v[name].shape)]

    def plain(v):
        if isinstance(layer, gbp.Add):
            return [(lambda *a: a[-1] - sum(a[:-1]), (*(whole(n, v) for n in taken), whole("y", v)))]
        places, begin = np.indices(outputs), getattr(layer, "begin", 0)
        axis = layer.axis + 1 if layer.axis >= 0 else layer.axis
        groups = []
        for name, shape in taken.items():  # of the outputs, the part that is this input; or the other way round
            if isinstance(layer, gbp.Part):
                at = [i + begin * (a == axis % len(shape)) for a, i in enumerate(places)]
                groups.append((lambda a, b: b - a, (v[name][tuple(i.ravel() for i in at)], whole("y", v))))
                continue
            at = [i + begin * (a == axis % len(shape)) for a, i in enumerate(np.indices(shape))]
            groups.append((lambda a, b: b - a, (v["y"][tuple(i.ravel() for i in at)], whole(name, v))))
            begin += shape[axis]
        return groups

    return Kind({**taken, "y": outputs}, as_layer, plain)


def channel_means(shape) -> Kind:
    """The mean of each channel of an image."""
    layer = gbp.GlobalAvgPool2D(sigma=0.4)

    def plain(v):
        b, c = (i.ravel()[:, None, None] for i in np.indices((shape[0], shape[3])))
        i, j = np.indices(shape[1:3])
        y = v["y"][b.ravel(), c.ravel()]
        return [(lambda a, y: y - jnp.mean(a), (v["x"][b, i[None], j[None], c], y))]

    shapes = {"x": shape, "y": (shape[0], shape[3])}
    return Kind(shapes, lambda v: [layer.factor("mean", v["x"], {}, v["y"])], plain)


def unary(layer, shape) -> Kind:
    """Every element of a variable is measured."""
    soft = isinstance(layer, gbp.SoftmaxObservation)
    rng = np.random.default_rng(4)
    targets = np.eye(shape[-1])[np.arange(shape[0]) % shape[-1]] if soft else np.float32(rng.standard_normal(shape))

    def as_layer(v):
        if isinstance(layer, gbp.Prior):
            return layer.factors("prior", v["x"])
        return [layer.factor("observation", v["x"], targets)]

    def plain(v):
        if soft:
            return [(jax.nn.softmax, (v["x"][:],))]
        return [(lambda a: a, (v["x"][np.unravel_index(np.arange(math.prod(shape)), shape)],))]

    return Kind({"x": shape}, as_layer, plain)


def stencil(shape, offsets, coefficients, once=False, robust=None) -> Kind:
    """`sum_k c_k x_{p + o_k}` at every place; its elements in one edge set, or in one for each offset."""
    grid = tuple(n - max(o[a] for o in offsets) for a, n in enumerate(shape))

    def as_layer(v):
        args = (v["x"],) * (1 if once else len(offsets))
        kind = StencilKind(offsets, coefficients)
        return [gbp.Factor(kind, args, y=0.3, sigma=0.5, robust=robust, linear=True, name="stencil")]

    return Kind({"x": shape}, as_layer, lambda v: [at_places(v["x"], grid, offsets, coefficients)])


def at_places(x, grid, offsets, coefficients):
    """Units one by one, not as slices."""
    place = np.indices(grid).reshape(len(grid), -1)
    args = [x[tuple(p + o for p, o in zip(place, offset))] for offset in offsets]
    return (lambda *parts: sum(c * a for c, a in zip(coefficients, parts))), tuple(args)


def slices(shape, offsets, coefficients, robust=None) -> Kind:
    """The same as a user writes it: a linear function of slices of a variable."""
    grid = tuple(n - max(o[a] for o in offsets) for a, n in enumerate(shape))

    def as_layer(v):
        views = [v["x"][tuple(slice(b, b + n) for b, n in zip(o, grid))].reshape(-1) for o in offsets]

        def h(*parts):
            return sum(c * a for c, a in zip(coefficients, parts))

        return [gbp.Factor(h, tuple(views), y=0.3, sigma=0.5, robust=robust, linear=True, name="slices")]

    return Kind({"x": shape}, as_layer, lambda v: [at_places(v["x"], grid, offsets, coefficients)])


def conv_and_max(batch, filters, size, channels) -> Kind:
    """A convolution and a max-pooling layer: kernels make both visits in one call."""
    conv = gbp.Conv2D(filters, kernel=3, activation="leaky_relu", sigma=0.4)
    pool = gbp.MaxPool2D(2, sigma=0.5)
    shape = (batch, size, size, channels)
    shapes = shapes_of(conv, shape)
    shapes["z"] = shapes_of(pool, shapes["y"])["y"]

    def as_layer(v):
        own = {n: v[n] for n in PARAMETERS}
        return [conv.factor("conv", v["x"], own, v["y"]), pool.factor("pool", v["y"], {}, v["z"])]

    def plain(v):
        return [*plain_factors(conv, v, shape), *plain_factors(pool, {"x": v["y"], "y": v["z"]}, v["y"].shape)]

    return Kind(shapes, as_layer, plain)


def conv(*args, **options):
    return gbp.Conv2D(*args, sigma=0.4, **options)


def paint(*args, **options):
    return gbp.ConvTranspose2D(*args, sigma=0.4, **options)


ALL = "x weight bias"
LEAKY = {"activation": "leaky_relu"}
TUKEY, HUBER = gbp.Tukey(1.5), gbp.Huber(0.8)
BY_GRADIENT = gbp.Tukey(1.5, match="gradient"), gbp.Huber(0.8, match="gradient")
DOWN, CORNER = ((0, 0), (1, 0)), ((0, 0), (1, 0), (0, 1))
IMAGE = (2, 5, 4, 2)
BOTH = {"each": "matrix_edges", "together": "matrix_pooled"}
DENSE = {"each": "matrix_edges", "together": "matrix_pooled_inputs", "pools": ALL}

CASES = {
    # Dense layers: everything is inferred; then with some of it known.
    "dense, linear": Case(dense(), **DENSE, started="x y", weight="rows"),
    "dense, leaky_relu": Case(dense(5, 9, 3, **LEAKY), **DENSE, numbers="each", weight="each", uniform="weight y"),
    "dense, tanh": Case(dense(activation="tanh"), pools=ALL, started=f"{ALL} y", weight="rows"),
    "dense, inputs known": Case(dense(5, 4, 9, **LEAKY), **BOTH, pools="weight bias", known="x", weight="rows"),
    "dense, parameters known": Case(dense(5, 4, 3, **LEAKY), "matrix_edges", known="weight bias", pools="x"),
    "dense, outputs alone": Case(dense(4, 3, 4), "slices", known=ALL, numbers="each", weight="rows"),
    "dense, inputs in part": Case(dense(4, 3, 2, **LEAKY), **DENSE, observed=0.4, slow=True),
    "dense, starts of parameters": Case(dense(**LEAKY), pools=ALL, started="weight", slow=True),
    "dense, one output": Case(dense(5, 3, 1), pools="weight bias", slow=True),
    "dense, transposed": Case(transposed(), pools="x weight", started="x y", weight="rows"),
    "dense, transposed, tanh": Case(transposed(5, 4, 3, "tanh"), pools="x weight", numbers="each", uniform="weight y"),
    "dropout": Case(masked(), known="z", weight="rows", numbers="each"),
    "dropout, masks that are not known": Case(masked(), started="x z", weight="rows"),
    "dense, generative": Case(dense(4, 2, 3, direction="generative", **LEAKY), **DENSE, numbers="each", slow=True),
    # Convolutions: kernels need an image that is known.
    "conv, valid": Case(image(conv(2, kernel=(3, 2), activation="tanh"), IMAGE), pools=ALL, started=f"{ALL} y"),
    "conv, same": Case(image(conv(2, kernel=(2, 3), padding="same", **LEAKY), IMAGE), pools=ALL, weight="rows"),
    "conv, strided": Case(image(conv(2, kernel=3, stride=2, padding="same"), (2, 5, 4, 1)), pools=ALL, numbers="each"),
    "conv, robust": Case(image(conv(2, kernel=2, stride=2, robust=TUKEY), IMAGE), pools="weight bias x", slow=True),
    "conv, windows apart": Case(image(conv(1, kernel=2, stride=2), IMAGE), pools="weight bias", slow=True),
    "conv, valid, image known": Case(
        image(conv(9, kernel=(3, 2), **LEAKY), IMAGE), **BOTH, pools="weight bias", known="x", weight="rows"
    ),
    "conv, same and strided, image known": Case(
        image(conv(3, kernel=3, stride=2, padding="same"), (3, 5, 4, 2)),
        **BOTH, pools="weight bias", known="x", numbers="each", weight="each", uniform="weight",
    ),
    "conv transpose, full": Case(image(paint(2, kernel=(3, 2), stride=2, **LEAKY), IMAGE), pools="y weight bias"),
    "conv transpose, valid": Case(
        image(paint(2, kernel=(2, 3), stride=(1, 3), borders="valid"), IMAGE),
        pools="y weight bias", weight="rows", slow=True,
    ),
    "conv transpose, outputs known": Case(
        image(paint(2, kernel=2, **LEAKY), IMAGE), **BOTH, pools="weight bias", known="y", numbers="each", slow=True
    ),
    # Windows and patches.
    "max": Case(image(gbp.MaxPool2D(2, sigma=0.4), (3, 4, 6, 3)), "tile_max", started="x", weight="rows"),
    "max, with a rest": Case(
        image(gbp.MaxPool2D((3, 2), sigma=0.4), (2, 4, 5, 9)), "tile_max", numbers="each", weight="each", observed=0.3
    ),
    "max, most left out": Case(image(gbp.MaxPool2D(4, sigma=0.4), (1, 7, 7, 1))),
    "average": Case(image(gbp.AvgPool2D((3, 2), sigma=0.4), (2, 4, 5, 3)), weight="rows", numbers="each"),
    "mean of channels": Case(channel_means((2, 3, 4, 3)), weight="rows", numbers="each"),
    # Several variables as one.
    "add": Case(joined(gbp.Add(sigma=0.4), (3, 4), (3, 4)), weight="rows", numbers="each"),
    "concatenate": Case(joined(gbp.Concatenate(sigma=0.4), (3, 2, 4), (3, 2, 3)), numbers="each"),
    "concatenate, first axis": Case(joined(gbp.Concatenate(axis=0, sigma=0.4), (3, 2, 4), (3, 1, 4)), weight="rows"),
    "part": Case(joined(gbp.Part(1, 4, sigma=0.4), (3, 2, 5)), weight="rows", numbers="each"),
    "upsample": Case(image(gbp.Upsample2D((1, 3), sigma=0.4), (2, 2, 3, 3)), pools="y", weight="rows"),
    # Linear factors over slices, and over single elements.
    "smooth": Case(image(gbp.PairwiseSmoothing(sigma=0.4), (2, 5, 9, 1)), "slices", weight="rows"),
    "smooth, robust": Case(
        image(gbp.PairwiseSmoothing(sigma=0.4, robust=TUKEY), (2, 4, 5, 2)), "slices", started="x", numbers="each"
    ),
    "smooth, short rows": Case(image(gbp.PairwiseSmoothing(sigma=0.4), (2, 1, 4, 1)), slow=True),
    "gaussian": Case(unary(gbp.GaussianObservation(sigma=0.4), (3, 4)), "slices", weight="rows"),
    "gaussian, robust": Case(unary(gbp.GaussianObservation(sigma=0.4, robust=HUBER), (3, 5)), "slices", started="x"),
    "prior": Case(unary(gbp.Prior(mean=0.5, std=0.7), (3, 4)), "slices", unknown=0.4),
    "softmax": Case(unary(gbp.SoftmaxObservation(sigma=0.3), (4, 3)), "many_outputs", weight="rows", started="x"),
    "stencil": Case(stencil((9, 11), CORNER, (-2.0, 1.0, 0.5)), "slices", numbers="each", weight="each"),
    "stencil, one edge set": Case(stencil((4, 6), CORNER, (-2.0, 1.0, 0.5), once=True), pools="x", weight="rows"),
    "slices": Case(slices((5, 12), DOWN, (-1.0, 0.7)), "slices", numbers="each", weight="rows"),
    "slices, robust, in part unknown": Case(
        slices((6, 10), ((0, 0), (0, 1)), (-1.0, 1.0), BY_GRADIENT[0]), "slices", unknown=0.4, started="x"
    ),
    # Two layers.
    "conv and max in one call": Case(
        conv_and_max(8, 3, 6, 1),
        "matrix_edges tile_max", "chain", "weight bias", known="x", weight="rows", chained=True,
    ),
}  # fmt: skip


def _larger() -> dict[str, Case]:
    """More sizes (vectors of eight that are full, or not), and what may be combined."""
    out = {}
    weights = itertools.cycle((None, "rows", "each", 0.5))
    sizes, activations = ((2, 1, 2), (7, 8, 8), (9, 17, 11), (3, 40, 5)), ("linear", "leaky_relu")
    # Weights go round by one more each size, so that every activation meets all of them.
    for size in sizes:
        weight = next(weights)
        for activation, known in itertools.product(activations, ("", "x")):
            kernels = BOTH | {"pools": "weight bias"} if known else DENSE
            numbers = "each" if weight == "each" else "layer"
            name = f"dense {size}, {activation}, known: {known or 'nothing'}, weight {weight}"
            out[name] = Case(dense(*size, activation), **kernels, known=known, weight=weight, numbers=numbers)
            weight = next(weights)
    for activation in ("sigmoid", "tanh"):
        out[f"dense, {activation}, larger"] = Case(dense(7, 9, 11, activation), pools=ALL, weight="rows")
    for filters, (kernel, stride), padding in itertools.product((1, 8, 17), ((2, 1), (3, 2)), ("valid", "same")):
        kind = image(conv(filters, kernel=kernel, stride=stride, padding=padding, **LEAKY), (3, 7, 6, 3))
        name = f"conv {filters}, {kernel} every {stride}, {padding}"
        out[f"{name}, image known"] = Case(kind, **BOTH, pools="weight bias", known="x", weight="rows")
        if filters < 17:
            out[name] = Case(kind, pools=ALL)
    for size, channels in itertools.product((2, (3, 4)), (1, 8, 17)):
        out[f"max {size}, {channels}"] = Case(
            image(gbp.MaxPool2D(size, sigma=0.4), (3, 7, 8, channels)), "tile_max", weight="each", numbers="each"
        )
    for robust, unknown in itertools.product((None, TUKEY, HUBER, *BY_GRADIENT), (0.0, 0.5)):
        options = {"unknown": unknown, "numbers": "each", "weight": "each", "started": "x"}
        name = f"{robust}, unknown {unknown}"
        out[f"slices, {name}"] = Case(slices((7, 13), DOWN, (-1.0, 0.7), robust), "slices", **options)
        out[f"gaussian, {name}"] = Case(
            unary(gbp.GaussianObservation(sigma=0.4, robust=robust), (5, 7)), "slices", **options
        )
        three = "" if unknown else "slices"
        out[f"stencil, {name}"] = Case(stencil((9, 11), CORNER, (-2.0, 1.0, 0.5), robust=robust), three, **options)
    return {name: dataclasses.replace(case, slow=True) for name, case in out.items()}


LARGER = _larger()
