"""Checkpoints: a learner as one safetensors file.

Tensors are `eta` and `lam` (of vector variables `mean` and `root`) of every parameter's `posterior/...` and original
`prior/...`, and of `input_prior`; `features/...` are the numbers that features were fitted to have. The facts under
`gbplearn` are network, settings and position in the stream. (How the file is built: `container`; how it holds the
history of batches: `checkpoint_history`.)

Everything is checked before it is used, and shapes against what the network needs before anything is allocated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.linalg import get_lapack_funcs

from ..core.files import write_whole
from ..core.forked import check_not_forked
from ..core.gaussian import Gaussian
from ..core.noise import LearnNoise
from ..core.rotated import RotatedGaussian
from ..core.vector import Belief, VectorGaussian
from ..core.version import __version__
from ..engine.damping import Damping
from ..engine.guard.guard import Guard
from ..engine.schedules import Schedule
from ..factors.operators import Shape
from ..graph.graph import FactorGraph
from ..layers.features import Features
from ..layers.layer import of_vectors
from ..learner.learner import ACTIVATIONS, MOST_CAUTION, Learner, LearnerState
from ..learner.unusual import CHOICES
from ..network.layer_graph import LayerGraph
from ..network.memory import available_memory
from ..network.network import Network
from ..network.places import Tied
from ..network.sequential import Sequential
from . import checkpoint_history
from .container import Expected, as_dict, as_list, as_shape, check_names, read_tensors, sealed, unsealed
from .limits import Limits, check_whole
from .values import FEATURES, LAYERS, VALUES, from_json, is_number, is_whole, to_json

FORMAT = 3
# Tensors of a belief: the first two of them are of one family only.
_PARTS: dict[type, tuple[str, ...]] = {
    Gaussian: ("eta", "lam"),
    VectorGaussian: ("root", "mean"),
    RotatedGaussian: ("spread", "mean", "unit_axes", "axes", "prior_root", "slopes", "rows", "batches"),
}
(_getrf,) = get_lapack_funcs(("getrf",), dtype=np.float64)
_SINGULAR = 1e-14  # pivots of a root that are smaller, as a part of the largest, are rounding
_UPRIGHT = 1e-3  # axes that are further from being orthogonal are none
_DTYPES = {"float32": "F32", "float64": "F64"}
_OPTIONS = ("iterations", "tolerance", "damping", "dropout", "schedule", "messages", "guard")
_FILTERING = ("alpha", "process_noise", "forgetting")
SETTINGS = (*_OPTIONS, *_FILTERING, "activations", "input_sigma", "parameters", "unusual", "strained", "dtype", "seed")
_LONGEST = 40  # characters of a note that are shown: a learning curve may be in it
_INPUT_PRIOR = "input_prior"
_MOST_LAYERS = 1000  # to name them takes time that grows with their square
_LARGEST_BATCH = 10**8  # examples
_MOST_FEATURES = 10**7  # of an example
# Of what is counted; a float holds 2^53.
_MOST = {"batches": 2**53, "examples": 2**53, "failures": 2**53, "caution": MOST_CAUTION}
_COUNTS = tuple(_MOST)


class CheckpointError(ValueError):
    """A file is no checkpoint, or a damaged one; the text, one line, names the file and what is wrong."""


@dataclasses.dataclass(frozen=True)
class Content:
    """What a checkpoint holds, checked."""

    version: str  # of gbplearn that wrote it
    net: LayerGraph
    features: Features | None  # in front of it
    fitted: bool  # whether they have been fitted
    input_shape: Shape
    settings: dict[str, Any]  # of `Learner`, by name
    factors: bool  # whether the user gave factors of their own
    tied: list[list[str]] | None  # parameters that these tie; None: not known yet
    counts: dict[str, int]  # of _COUNTS
    sizes: list[int]  # of batches that had been compiled
    noise: dict[str, LearnNoise]
    note: dict[str, Any]
    history: dict[str, Any]  # as `checkpoint_history.checked` has it
    tensors: dict[str, np.ndarray]
    fitted_priors: bool = False  # whether prior means that follow from the first inputs have been found

    def belief(self, name: str) -> Belief:
        """A belief by the name of its tensors, with the same bits."""
        kind = next(k for k, parts in _PARTS.items() if f"{name}/{parts[0]}" in self.tensors)
        held = {part: self.tensors[f"{name}/{part}"] for part in _PARTS[kind]}
        out = kind(**{part: jnp.array(a) for part, a in held.items()})
        if out.dtype != next(iter(held.values())).dtype:
            raise ValueError("it holds float64 numbers, which need JAX's 64-bit mode (jax_enable_x64)")
        return out

    def beliefs(self, which: str) -> dict[str, Belief]:
        """Of all parameters: "posterior" or "prior"."""
        return {name: self.belief(f"{which}/{name}") for name in self.net.parameters(self.net_shape)}

    @property
    def net_shape(self) -> Shape:
        """Of what the network takes."""
        return _net_shape(self.features, self.input_shape)

    def feature_numbers(self) -> dict[str, np.ndarray] | None:
        """Of the features; None if they have not been fitted."""
        if self.features is None or not self.fitted:
            return None
        return {n: np.array(self.tensors[f"features/{n}"]) for n in self.features.fitted_shapes(self.input_shape)}


def save(learner: Learner, path: Path, note: Mapping[str, Any] | None = None) -> None:
    """Write a learner to a file, which appears whole or not at all.

    **Arguments:**

    - `note`: numbers and strings by name that go along; by default `learner.note`.
    """
    data = encode(learner, learner.note if note is None else note)
    with _naming(path):
        decode(data)  # what is written can be read
    write_whole(path, lambda file: file.write(data))


def load(path: Path, factors: Callable[[FactorGraph], Any] | None = None) -> Learner:
    """The learner that a file holds; a `CheckpointError` if anything is wrong with it."""
    check_not_forked()
    with _naming(path):
        held = decode(_contents(path))
        if held.factors and factors is None:
            raise ValueError("it was learnt with factors of your own, which a file cannot hold: give factors=")
        if factors is not None and not held.factors:
            raise ValueError("it was learnt without factors of your own: leave factors= away")
        input_prior = held.belief(_INPUT_PRIOR) if held.features is None else None
        more = {"input_prior": input_prior, "factors": factors, "record": held.history["record"]}
        learner = Learner(held.net, held.input_shape, features=held.features, **held.settings, **more)
        prior = held.beliefs("prior")
        history = checkpoint_history.history_of(held.history, prior, held.belief)
        known = prior, held.beliefs("posterior"), held.noise, history, held.tied, held.sizes
        fitted = {"features": held.feature_numbers(), "fitted": held.fitted_priors}
        counts: dict[str, Any] = held.counts
        learner.restore(LearnerState(*known, note=held.note, **fitted, **counts))
        return learner


def describe(path: Path) -> str:
    """What a file holds, to be read by a person; a `CheckpointError` if anything is wrong with it."""
    with _naming(path), np.errstate(all="ignore"):
        data = _contents(path)
        held = decode(data)
        lines = [
            f"{path}: a learner, written by gbplearn {held.version} ({len(data):,} bytes, format {FORMAT})",
            f"learnt: {', '.join(f'{n:,} {name}' for name, n in held.counts.items())}",
            f"settings: {_listed(held.settings)}" + (", factors of the user's own" if held.factors else ""),
            *([f"note: {_listed(held.note, _LONGEST)}"] if held.note else []),
            f"input: {'x'.join(map(str, held.input_shape))}",
            *([f"features: {held.features!r}" + ("" if held.fitted else ", not fitted yet")] if held.features else []),
        ]
        lines += [f"layer {place.name}: {place.layer!r}" for place in held.net.places]
        lines += [f"noise of {name}: {n.start:.4g} ({n.weight:.4g} measurements)" for name, n in held.noise.items()]
        for name in held.net.parameters(held.net_shape):
            mean, std = _moments(held.tensors, f"posterior/{name}")
            before = _moments(held.tensors, f"prior/{name}")[1]
            moments = f"means {mean.min():.3g} ... {mean.max():.3g}, std {std.mean():.3g} (prior {before.mean():.3g})"
            lines.append(f"parameter {name} {'x'.join(map(str, mean.shape))}: {moments}")
        return "\n".join(map(_printable, lines))


def _moments(tensors: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations."""
    if f"{name}/eta" in tensors:
        eta, lam = (tensors[f"{name}/{part}"] for part in ("eta", "lam"))
        return eta / lam, lam**-0.5
    mean = tensors[f"{name}/mean"]
    if f"{name}/spread" in tensors:
        spread, unit_axes, axes = (tensors[f"{name}/{part}"] for part in ("spread", "unit_axes", "axes"))
        return mean, np.sqrt(unit_axes**2 @ spread @ (axes**2).T)
    root = tensors[f"{name}/root"].astype(np.float64)
    return mean, np.broadcast_to(np.sqrt((root**2).sum(-1)), mean.shape)


def _listed(values: Mapping[str, Any], longest: int | None = None) -> str:
    """Values that are longer than that are cut."""
    texts = ((name, repr(value)) for name, value in values.items())
    return ", ".join(f"{n}={t if longest is None or len(t) <= longest else t[: longest - 3] + '...'}" for n, t in texts)


def _printable(text: str) -> str:
    """One line without anything that would steer a terminal: names come from the file."""
    return "".join(c if c.isprintable() else " " for c in text)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong into a `CheckpointError` with one line that names the file."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if isinstance(error, OSError):
            text = error.strerror or text
        elif isinstance(error, MemoryError):
            text = "there is not enough memory for it"
        elif not isinstance(error, ValueError):  # nothing that is known to happen
            text = f"it is damaged, or no checkpoint ({type(error).__name__}: {text})"
        raise CheckpointError(_printable(f"{path}: {text[:300]}")) from None


def encode(learner: Learner, note: Mapping[str, Any]) -> bytes:
    """A learner as the bytes of a file; a `ValueError` names what cannot be saved."""
    try:
        from safetensors.numpy import save as to_bytes
    except ImportError:
        raise ImportError('checkpoints need safetensors: pip install "gbplearn[checkpoints]"') from None
    state = learner.state
    settings = {
        **learner.options,
        **dataclasses.asdict(learner.filtering),
        "activations": learner.activations,
        "input_sigma": learner.input_sigma,
        "parameters": learner.parameters,
        "unusual": learner.unusual,
        "strained": learner.strained,
        "dtype": learner.dtype.name,
        "seed": learner.seed,
    }
    facts = {
        "format": FORMAT,
        "version": __version__,
        "network": [to_json(place.layer, f"layer '{place.name}'") for place in learner.net.places],
        "nodes": _nodes_of(learner.net),
        "network_input_shape": to_json(learner.net.input_shape, "input_shape"),
        "input_shape": to_json(learner.input_shape, "input_shape"),
        "features": to_json(learner.features, "features"),
        "features_fitted": state.features is not None,
        "priors_fitted": state.fitted,
        "settings": {name: to_json(value, name) for name, value in settings.items()},
        "factors": learner.factors is not None,
        "tied": state.tied,
        **{name: getattr(state, name) for name in _COUNTS},
        "sizes": state.sizes,
        "noise": {name: to_json(noise, name) for name, noise in state.noise.items()},
        "note": {name: to_json(value, f"note: {name}") for name, value in note.items()},
        "history": checkpoint_history.facts_of(state.history),
    }
    beliefs = {f"prior/{name}": g for name, g in state.prior.items()}
    beliefs |= {f"posterior/{name}": g for name, g in state.posterior.items()}
    beliefs |= checkpoint_history.tensors_of(state.history)
    beliefs[_INPUT_PRIOR] = learner.input_prior
    tensors = {
        f"{name}/{part}": np.asarray(getattr(g, part)) for name, g in beliefs.items() for part in _PARTS[type(g)]
    }
    tensors |= {f"features/{name}": np.array(value, order="C") for name, value in (state.features or {}).items()}
    return sealed(to_bytes(tensors, {"gbplearn": json.dumps(facts, allow_nan=False), "sha256": "0" * 64}))


def _nodes_of(net: LayerGraph) -> list[Any] | None:
    """As `_nodes` reads them; None of a `gbp.Sequential`."""
    return [[p.name, list(p.inputs), p.tied] for p in net.places] if isinstance(net, Network) else None


def _contents(path: Path) -> bytes:
    if not path.exists():
        raise ValueError("there is no such file")
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    have = available_memory()
    if have is not None and path.stat().st_size > have:
        raise MemoryError
    return path.read_bytes()


def decode(data: bytes) -> Content:
    """What the bytes of a file hold; a `ValueError` (or whatever) if anything is wrong."""
    facts, entries, body = unsealed(data)
    # Which older files do not have.
    none = {"tied": None, "nodes": None, "features": None, "features_fitted": False, "priors_fitted": False}
    facts = {**none, **facts}
    if not is_whole(facts.get("format")) or facts["format"] != FORMAT:
        raise ValueError(f"its format is {facts.get('format')!r}, this gbplearn reads {FORMAT}: use the one it is of")
    known = ("format", "version", "network", "network_input_shape", "input_shape", "settings", "factors", *_COUNTS)
    more = ("features", "features_fitted", "priors_fitted", "tied", "nodes", "sizes", "noise", "note", "history")
    check_names(facts, (*known, *more), "header")
    if not isinstance(facts["version"], str) or not isinstance(facts["factors"], bool):
        raise ValueError("version must be a string, and factors true or false")

    settings = _settings(facts["settings"])
    limits = Limits(settings["dtype"])
    # Thresholds of a guard are compared with, not computed with, but for the weight of its proximal factors.
    guard = settings["guard"]
    weight = {"guard": guard.first_weight} if isinstance(guard, Guard) else {}
    limits.check({name: value for name, value in settings.items() if name != "guard"} | weight, "settings")
    net, shape, features = _network(facts, limits)
    net_shape, fitted = _net_shape(features, shape), facts["features_fitted"]
    if not isinstance(fitted, bool) or (fitted and features is None):
        raise ValueError("features_fitted must be true or false, and false without features")
    found = facts["priors_fitted"]
    if not isinstance(found, bool) or (found and not net.fits_priors):
        raise ValueError("priors_fitted must be true or false, and false where no prior follows from the inputs")
    tied = _tied(facts["tied"], net.parameters(net_shape))
    counts = {name: facts[name] for name in _COUNTS}
    for name, n in counts.items():
        check_whole(n, name, most=_MOST[name])
    check_whole(settings["seed"] + counts["batches"], "seed")
    for n in as_list(facts["sizes"], "sizes"):
        check_whole(n, "sizes", least=1, most=_LARGEST_BATCH)
    noise = {name: from_json(v, f"noise of {name}") for name, v in as_dict(facts["noise"], "noise").items()}
    if noise.keys() != net.start_noise(None).keys() or not all(isinstance(n, LearnNoise) for n in noise.values()):
        raise ValueError("the noise it holds is not what the network learns")
    limits.check(noise, "noise")
    note = {name: from_json(v, f"note: {name}", {}, lists=True) for name, v in as_dict(facts["note"], "note").items()}

    history = checkpoint_history.checked(facts["history"], noise, limits, _MOST)
    expected = _expected(net, net_shape, limits, entries, history)
    if features is not None and fitted:
        bounds = -limits.largest, limits.largest
        expected |= {
            f"features/{name}": Expected(tuple(_DTYPES.values()), of, *bounds)
            for name, of in features.fitted_shapes(shape).items()
        }
    tensors, more = read_tensors(entries, body, expected), (facts["sizes"], noise, note, history)
    _check_means(tensors, limits)
    return Content(
        facts["version"], net, features, fitted, shape, settings, facts["factors"], tied, counts, *more, tensors, found
    )


def _tied(data: Any, parameters: Collection[str]) -> list[list[str]] | None:
    if data is None:
        return None
    out = [as_list(names, "tied") for names in as_list(data, "tied")]
    every = [name for names in out for name in names]
    known = all(isinstance(name, str) and name in parameters for name in every)
    if not known or len(set(every)) < len(every) or any(len(names) < 2 for names in out):
        raise ValueError("tied must be lists of parameters, each in one of them")
    return out


def _net_shape(features: Features | None, shape: Shape) -> Shape:
    return shape if features is None else tuple(features.output_shape(shape))


def _network(facts: dict[str, Any], limits: Limits) -> tuple[LayerGraph, Shape, Features | None]:
    shape, own = as_shape(facts["input_shape"], "input_shape"), facts["network_input_shape"]
    features = from_json(facts["features"], "features", FEATURES)
    if features is not None and not isinstance(features, Features):
        raise ValueError("features must be an object")
    net_shape = _net_shape(features, shape)
    if features is not None and math.prod(net_shape) > _MOST_FEATURES:
        raise ValueError(f"more than {_MOST_FEATURES:,} features")
    if own is not None and as_shape(own, "network_input_shape") != net_shape:
        raise ValueError("the network takes other examples than the learner")
    if len(as_list(facts["network"], "network")) > _MOST_LAYERS:
        raise ValueError(f"a network of more than {_MOST_LAYERS} layers")
    layers = [from_json(v, f"layer {i}", LAYERS) for i, v in enumerate(facts["network"])]
    if not all(type(layer).__name__ in LAYERS for layer in layers):
        raise ValueError("network must be a list of layers")
    for i, layer in enumerate(layers):
        limits.check(layer, f"layer {i}")
    given = None if own is None else net_shape
    if facts["nodes"] is None:
        net: LayerGraph = Sequential(*layers, input_shape=given)
    else:
        net = Network(_nodes(facts["nodes"], layers), input_shape=given)
    net.parameters(net_shape)
    return net, shape, features


def _nodes(data: Any, layers: list[Any]) -> dict[str, Any]:
    """The nodes of a `gbp.Network`: name, what it takes, and whose layer it is once more, if it is."""
    out: dict[str, Any] = {}
    if len(as_list(data, "nodes")) != len(layers):
        raise ValueError(f"it has {len(layers)} layers and {len(data)} nodes")
    for node, layer in zip(data, layers):
        if len(as_list(node, "node")) != 3:
            raise ValueError("a node must be a name, what it takes and what it is tied to")
        name, takes, tied = node
        strings = [name, *as_list(takes, "what a node takes"), *([] if tied is None else [tied])]
        if not all(isinstance(s, str) for s in strings) or not takes or name in out:
            raise ValueError("nodes must have names, each once, and take others by name")
        out[name] = (layer if tied is None else Tied.of(tied, layer), *takes)
    return out


def _settings(data: Any) -> dict[str, Any]:
    """The settings of a learner; what its constructor does not check is checked here."""
    data = {
        "unusual": CHOICES[0],
        "strained": "learn",  # as they were learnt
        "activations": ACTIVATIONS[0],
        **as_dict(data, "settings"),
    }  # which older files do not have
    check_names(data, SETTINGS, "settings")
    out = {name: from_json(value, name, VALUES) for name, value in data.items()}
    for name in ("damping", "dropout"):
        d = out[name]
        shares = [d.parameters, d.activations, *(v for _, v in d.by_name)] if isinstance(d, Damping) else [d]
        if d is None and name == "damping":
            continue
        if not all(is_number(v) and 0 <= v < 1 for v in shares):
            raise ValueError(f"{name} must lie in [0, 1), got {d!r}")
    for name, sound in (
        ("iterations", is_whole(out["iterations"]) and out["iterations"] >= 1),
        ("seed", is_whole(out["seed"]) and out["seed"] >= 0),
        ("tolerance", out["tolerance"] is None or (is_number(out["tolerance"]) and out["tolerance"] >= 0)),
        ("input_sigma", out["input_sigma"] is None or is_number(out["input_sigma"])),
        ("schedule", out["schedule"] is None or isinstance(out["schedule"], Schedule)),
        ("guard", isinstance(out["guard"], (bool, Guard))),
        ("dtype", isinstance(out["dtype"], str) and out["dtype"] in _DTYPES),
        *((name, is_number(out[name])) for name in _FILTERING),
    ):
        if not sound:
            raise ValueError(f"{name} cannot be {out[name]!r}")
    return out


def _expected(
    net: LayerGraph, shape: Shape, limits: Limits, entries: Mapping[str, Any], history: dict[str, Any]
) -> dict[str, Expected]:
    """The tensors that belong to a network."""
    given = as_dict(entries.get(f"{_INPUT_PRIOR}/eta"), _INPUT_PRIOR).get("shape")
    prior, inputs = as_shape(given, _INPUT_PRIOR), (1, *shape)
    if len(prior) > len(inputs) or any(n not in (1, m) for n, m in zip(prior[::-1], inputs[::-1])):
        raise ValueError(f"an input_prior of shape {prior} does not fit examples {shape}")
    either = tuple(_DTYPES.values())
    out = {
        f"{_INPUT_PRIOR}/eta": Expected(either, prior),
        f"{_INPUT_PRIOR}/lam": Expected(either, prior, 0.0, limits.precisions[1]),  # nothing need be known of an input
    }
    parameters = net.parameters(shape)
    known = {f"{which}/{name}": name for name in parameters for which in ("posterior", "prior")}
    known |= checkpoint_history.names_in(history, {name: of_vectors(p.posterior) for name, p in parameters.items()})
    for name, parameter in known.items():
        of = parameters[parameter]
        if of.posterior == "rotated":
            units, p = of.shape
            shapes = {"mean": (units, p), "unit_axes": (units, units), "axes": (p, p)}
            shapes |= {"prior_root": (p, p), "slopes": (units, units), "rows": (p, p)}
            for part, s in shapes.items():
                out[f"{name}/{part}"] = Expected((_DTYPES[limits.dtype],), s, -limits.largest, limits.largest)
            most = 1 / limits.precisions[0]
            out[f"{name}/spread"] = Expected((_DTYPES[limits.dtype],), (units, p), 1 / limits.precisions[1], most)
            out[f"{name}/batches"] = Expected((_DTYPES[limits.dtype],), (), 0.0, limits.largest)
            continue
        if of_vectors(of.posterior):
            units, p = of.shape
            root = (units if of.posterior == "block" else 1, p, p)
            out[f"{name}/mean"] = Expected((_DTYPES[limits.dtype],), of.shape, -limits.largest, limits.largest)
            out[f"{name}/root"] = Expected((_DTYPES[limits.dtype],), root, -limits.largest, limits.largest)
            continue
        out[f"{name}/eta"] = Expected((_DTYPES[limits.dtype],), of.shape)
        # The contribution of a batch need not be a density.
        bounds = () if name.startswith("taught/") else limits.precisions
        out[f"{name}/lam"] = Expected((_DTYPES[limits.dtype],), of.shape, *bounds)
    return out


def _check_means(tensors: Mapping[str, np.ndarray], limits: Limits) -> None:
    """Raise unless every density has a mean that can be squared, or nothing is known: `eta` and `lam` are 0."""
    for name in (n.removesuffix("/lam") for n in tensors if n.endswith("/lam") and not n.startswith("taught/")):
        eta, lam = (tensors[f"{name}/{part}"].astype(np.float64) for part in ("eta", "lam"))
        with np.errstate(over="ignore"):
            mean = np.divide(eta, lam, out=np.where(eta == 0, 0.0, np.inf), where=lam > 0)
        sound = (np.abs(mean) <= limits.largest) & ((lam == 0) | (lam >= limits.precisions[0]))
        if not sound.all():
            raise ValueError(f"{name} is no proper belief: its mean or its variance is too large")
    for name in (n.removesuffix("/root") for n in tensors if n.endswith("/root")):
        _check_variances(name, _moments(tensors, name)[1], limits)
        for root in tensors[f"{name}/root"]:
            sizes = np.abs(np.diagonal(_getrf(root.astype(np.float64))[0]))
            if not sizes.min() > _SINGULAR * sizes.max():
                raise ValueError(f"{name} is no proper belief: its covariance is singular")
    for name in (n.removesuffix("/unit_axes") for n in tensors if n.endswith("/unit_axes")):
        parts = (tensors[f"{name}/{part}"] for part in ("prior_root", "axes", "unit_axes"))
        root, inputs, units = (a.astype(np.float64) for a in parts)
        _check_variances(name, _moments(tensors, name)[1], limits)
        for axes in (units, np.linalg.solve(root, inputs)):
            if not np.abs(axes.T @ axes - np.eye(len(axes))).max() < _UPRIGHT:
                raise ValueError(f"{name} is no proper belief: its axes are not at right angles")


def _check_variances(name: str, std: np.ndarray, limits: Limits) -> None:
    """Raise unless each number has a variance that a density may have."""
    least, most = limits.precisions
    with np.errstate(over="ignore", divide="ignore"):
        precision = std.astype(np.float64) ** -2
    if not ((precision >= least) & (precision <= most)).all():
        raise ValueError(f"{name} is no proper belief: a number of it has no variance, or none that is finite")
