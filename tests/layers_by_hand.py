"""Image layers written out: as plain functions of rows of pixels, and where their windows lie."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import lax

import gbplearn as gbp

CONVOLUTIONS = (gbp.Conv2D, gbp.ConvTranspose2D)
ACTIVATIONS = {
    "linear": lambda a: a,
    "leaky_relu": lambda a: jnp.where(a > 0, a, 0.2 * a),
    "sigmoid": lambda a: 1 / (1 + jnp.exp(-a)),
    "tanh": jnp.tanh,
}


def pair(value):
    return (value, value) if isinstance(value, int) else value


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of the image under the windows: where its pixels lie among gaps and margins, by the definitions."""

    places: np.ndarray
    length: int
    windows: int
    stride: int

    @classmethod
    def of(cls, layer, n, k, s):
        """Of `n` pixels of the inputs."""
        if isinstance(layer, gbp.Conv2D):
            before, after = (0, 0) if layer.padding == "valid" else lax.padtype_to_pads((n,), (k,), (s,), "SAME")[0]
            length = n + before + after
            return cls(before + np.arange(n), length, 1 + (length - k) // s, s)
        if isinstance(layer, gbp.ConvTranspose2D):
            # Output p paints the pixels s p + m - (k - 1) ... s p + m. Full: the first patch begins at pixel 0, the
            # last ends at pixel n - 1. Valid: the first ends at pixel 0, the last begins at n - 1 or before.
            m, last = (k - 1, n - k) if layer.borders == "full" else (0, n + k - 2)
            return cls(m + np.arange(0, last + 1, s), n + k - 1, n, 1)
        return cls(np.arange(n), n, n // k, k)


def geometry(layer, shape):
    """Rows and columns of the image that lies under windows, and the size of these."""
    convolution = isinstance(layer, CONVOLUTIONS)
    kernel = pair(layer.kernel if convolution else layer.size)
    stride = pair(layer.stride) if convolution else kernel
    return [Axis.of(layer, n, k, s) for n, k, s in zip(shape[1:3], kernel, stride)], kernel


def shapes_of(layer, shape):
    """Of all variables; `shape` is that of the inputs, with the batch."""
    batch, height, width, channels = shape
    if isinstance(layer, gbp.PairwiseSmoothing):
        return {"x": shape}
    axes, kernel = geometry(layer, shape)
    if isinstance(layer, gbp.Upsample2D):
        return {"x": shape, "y": (batch, height // kernel[0], width // kernel[1], channels)}
    if not isinstance(layer, CONVOLUTIONS):
        return {"x": shape, "y": (batch, axes[0].windows, axes[1].windows, channels)}
    if isinstance(layer, gbp.Conv2D):
        out, ends = (axes[0].windows, axes[1].windows), (channels, layer.filters)
    else:
        out, ends = (len(axes[0].places), len(axes[1].places)), (layer.filters, channels)
    return {"x": shape, "weight": (*kernel, *ends), "bias": ends[1:], "y": (batch, *out, layer.filters)}


def draw(layer, shape, seed):
    """Of every variable: means and standard deviations of the prior, and the start."""
    rng = np.random.default_rng(seed)
    return {
        name: (0.5 * rng.standard_normal(s), rng.uniform(0.3, 1.0, s), 0.6 * rng.standard_normal(s))
        for name, s in shapes_of(layer, shape).items()
    }


def add_variable(graph, name, mean, std, start):
    lam = std**-2.0
    prior = gbp.Gaussian(*(jnp.asarray(a, jnp.float32) for a in (mean * lam, lam)))
    return graph.variable(name, mean.shape, prior=prior, start=start)


def as_layer(layer, drawn):
    graph = gbp.FactorGraph()
    v = {name: add_variable(graph, name, *values) for name, values in drawn.items()}
    if isinstance(layer, gbp.PairwiseSmoothing):
        factors = layer.factors("layer", v["x"])
    else:
        assert layer.output_shape(v["x"].shape[1:]) == v["y"].shape[1:]
        own = layer.parameters(v["x"].shape[1:])
        assert {name: p.shape for name, p in own.items()} == {n: v[n].shape for n in v if n not in "xy"}
        factors = [layer.factor("layer", v["x"], {name: v[name] for name in own}, v["y"])]
    for f in factors:
        graph.add(f)
    return graph


def framed(array, axes, fill):
    """An image with gaps and margins."""
    rows, columns = axes
    out = np.full((array.shape[0], rows.length, columns.length, array.shape[3]), fill)
    out[np.ix_(range(len(out)), rows.places, columns.places, range(out.shape[3]))] = array
    return out


def as_function(layer, drawn, weights=None):
    """The same with one plain function of one factor, and the mask of real units.

    Gaps and margins are units that are observed to be 0, so that every factor has a whole window.

    **Arguments:**

    - `weights`: of the factors, for each group.
    """
    shape = drawn["x"][0].shape
    graph, real = gbp.FactorGraph(), {}
    wide = {gbp.Conv2D: "x", gbp.ConvTranspose2D: "y"}.get(type(layer))
    axes = geometry(layer, shape)[0] if wide else None
    v = {}
    for name, (mean, std, start) in drawn.items():
        if name == wide:
            mask = framed(np.ones(mean.shape, bool), axes, False)
            mean, std, start = (framed(a, axes, fill) for a, fill in ((mean, 0.0), (std, 1.0), (start, 0.0)))
        v[name] = add_variable(graph, name, mean, std, start)
        if name == wide and not mask.all():
            real[name] = mask
            graph.observe(name, 0.0, ~mask)
    for i, (h, args) in enumerate(plain_factors(layer, v, shape)):
        weight = None if weights is None else np.ravel(weights[i])
        graph.add(gbp.Factor(h, args, sigma=layer.sigma, weight=weight, name=f"layer_{i}"))
    return graph, real


def plain_factors(layer, v, shape):
    """`h` of one factor, and its arguments for all: by the energies in the docstrings."""
    if isinstance(layer, gbp.PairwiseSmoothing):
        b, i, j, c = np.indices(shape)
        pairs = []
        for down, right in ((1, 0), (0, 1)):
            if shape[1] > down and shape[2] > right:
                first = (slice(None), slice(shape[1] - down), slice(shape[2] - right))
                one = tuple(a[first].ravel() for a in (b, i, j, c))
                other = one[0], one[1] + down, one[2] + right, one[3]
                pairs.append((lambda x, y: y - x, (v["x"][one], v["x"][other])))
        return pairs
    axes, kernel = geometry(layer, shape)
    if isinstance(layer, gbp.Upsample2D):
        b, i, j, c = (a.ravel() for a in np.indices(shape))
        return [(lambda x, y: x - y, (v["x"][b, i, j, c], v["y"][b, i // kernel[0], j // kernel[1], c]))]
    seen, out = (v["y"], v["x"]) if isinstance(layer, gbp.ConvTranspose2D) else (v["x"], v["y"])
    b, i, j, c = np.indices(out.shape).reshape(4, -1, 1)
    one = out[b[:, 0], i[:, 0], j[:, 0], c[:, 0]]
    if isinstance(layer, CONVOLUTIONS):
        g = ACTIVATIONS[layer.activation]
        t, u, f = np.indices((*kernel, seen.shape[3])).reshape(3, 1, -1)
        window = seen[b, i * axes[0].stride + t, j * axes[1].stride + u, f]
        args = (window, v["weight"][t, u, f, c], v["bias"][c[:, 0]], one)
        return [(lambda x, w, d, y: y - g(x @ w + d), args)]
    t, u = np.indices(kernel).reshape(2, 1, -1)
    reduce = jnp.max if isinstance(layer, gbp.MaxPool2D) else jnp.mean
    return [(lambda x, y: y - reduce(x), (seen[b, i * kernel[0] + t, j * kernel[1] + u, c], one))]
