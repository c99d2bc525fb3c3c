"""No NaN, whatever the noise, the damping and the data; and where these are sensible, inference does its work.

Noise, damping, masks and data are numbers: each structure is compiled once.
"""

import dataclasses
import warnings

import jax
import numpy as np
import pytest

import gbplearn as gbp

BATCH, FAST_DRAWS, DRAWS = 4, 6, 40
SEEN, CONV, UP = gbp.GaussianObservation, gbp.Conv2D, gbp.ConvTranspose2D
WEIGHTS = {"weight_prior": 0.5, "bias_prior": 0.5}


def dense(units, sigma, activation="linear", **options):
    return gbp.Dense(units, activation=activation, sigma=sigma, **WEIGHTS, **options)


def conv(filters, sigma, activation="leaky_relu", kernel=2, **options):
    return CONV(filters, kernel=kernel, activation=activation, sigma=sigma, **WEIGHTS, **options)


def paint(filters, sigma, activation="linear", kernel=2, **options):
    return UP(filters, kernel=kernel, activation=activation, sigma=sigma, **WEIGHTS, **options)


# Each: shape of an example, whether pixels are missing, and the layers for some sigmas.
STRUCTURES = {
    "tanh": ((3,), False, lambda a, b, c, *_: (dense(3, a, "tanh"), dense(2, b), gbp.SoftmaxObservation(c))),
    "leaky": ((2,), False, lambda a, b, c, *_: (dense(3, a, "leaky_relu"), dense(2, b), gbp.SoftmaxObservation(c))),
    "relu": ((2,), False, lambda a, b, c, *_: (dense(4, a, "relu"), dense(1, b), SEEN(c))),
    "deep": (
        (2,),
        False,
        lambda a, b, c, d, *_: (dense(2, a, "sigmoid"), dense(2, b, "tanh"), dense(1, c), SEEN(d)),
    ),
    "elu": ((3,), True, lambda a, b, c, *_: (dense(2, a, "elu"), dense(3, b), gbp.SoftmaxObservation(c))),
    "softplus": ((3,), False, lambda a, b, *_: (dense(2, a, "softplus"), SEEN(b))),
    "linear": ((3,), False, lambda a, b, *_: (dense(2, a), SEEN(b))),
    "tukey head": ((3,), False, lambda a, b, *_: (dense(2, a, "tanh"), SEEN(b, robust=gbp.Tukey(2.0)))),
    "huber head": ((3,), False, lambda a, b, *_: (dense(2, a), SEEN(b, robust=gbp.Huber(1.0)))),
    "noisy input": ((2,), False, lambda a, b, c, d, *_: (SEEN(a), dense(2, b, "tanh"), dense(1, c), SEEN(d))),
    "generative": ((3,), True, lambda a, b, *_: (SEEN(a), dense(2, b, "tanh", direction="generative"))),
    "generative twice": (
        (3,),
        False,
        lambda a, b, c, *_: (SEEN(a), dense(2, b, direction="generative"), dense(1, c, direction="generative")),
    ),
    "prior": ((2,), False, lambda a, b, c, *_: (dense(2, a, "tanh"), gbp.Prior(0.5, 0.3), dense(1, b), SEEN(c))),
    "filters": (
        (5, 5, 1),
        False,
        lambda a, b, c, d, *_: (conv(2, a), gbp.MaxPool2D(2, b), dense(2, c), gbp.SoftmaxObservation(d)),
    ),
    "average": (
        (5, 5, 1),
        False,
        lambda a, b, c, d, *_: (conv(2, a, "tanh"), gbp.AvgPool2D(2, b), dense(2, c), gbp.SoftmaxObservation(d)),
    ),
    "filters twice": (
        (4, 4, 1),
        False,
        lambda a, b, c, d, *_: (conv(2, a), conv(1, b), dense(2, c), gbp.SoftmaxObservation(d)),
    ),
    "stride": ((5, 5, 1), False, lambda a, b, c, *_: (conv(2, a, kernel=3, stride=2), dense(1, b), SEEN(c))),
    "missing pixels": ((4, 4, 1), True, lambda a, b, c, *_: (conv(1, a), dense(2, b), gbp.SoftmaxObservation(c))),
    "images out": ((4, 4, 1), False, lambda a, b, *_: (conv(2, a, "linear"), SEEN(b))),
    "pooled out": ((5, 5, 1), False, lambda a, b, c, *_: (conv(1, a), gbp.AvgPool2D(2, b), SEEN(c))),
    "max first": ((4, 4, 1), False, lambda a, b, c, *_: (gbp.MaxPool2D(2, a), dense(2, b), gbp.SoftmaxObservation(c))),
    "average first": ((4, 4, 2), True, lambda a, b, c, *_: (gbp.AvgPool2D(2, a), dense(1, b, "tanh"), SEEN(c))),
    "smooth filters": (
        (5, 5, 1),
        False,
        lambda a, b, c, d, e: (
            conv(1, a),
            gbp.PairwiseSmoothing(b),
            gbp.MaxPool2D(2, c),
            dense(2, d),
            gbp.SoftmaxObservation(e),
        ),
    ),
    "paint": ((4, 4, 1), True, lambda a, b, *_: (SEEN(a), paint(2, b))),
    "paint robustly": (
        (4, 4, 2),
        False,
        lambda a, b, *_: (SEEN(a), paint(1, b, robust=gbp.Tukey(1.0), robust_over=-1)),
    ),
    "paint twice": ((4, 4, 1), False, lambda a, b, c, *_: (SEEN(a), paint(2, b, "leaky_relu"), paint(1, c))),
    "paint and enlarge": (
        (5, 5, 1),
        False,
        lambda a, b, c, *_: (SEEN(a), paint(1, b), gbp.Upsample2D(2, c)),
    ),
    "outliers": (
        (4, 4, 1),
        True,
        lambda a, b, c, *_: (SEEN(a, robust=gbp.Tukey(1.0)), gbp.Upsample2D(2, b), gbp.PairwiseSmoothing(c)),
    ),
    "smooth": ((4, 4, 1), True, lambda a, b, *_: (SEEN(a), gbp.PairwiseSmoothing(b, robust=gbp.Huber(1.0)))),
    "paint smoothly": ((4, 4, 1), False, lambda a, b, c, *_: (SEEN(a), paint(1, b), gbp.PairwiseSmoothing(c))),
}
FAST = ("linear", "smooth")


class Watched(gbp.Sequential):
    """Keeps what `gbp.infer` returned."""

    result: gbp.Result

    def learn(self, *args, **options):
        self.result = super().learn(*args, **options)
        return self.result


@dataclasses.dataclass(frozen=True)
class Run:
    structure: str
    sensible: bool  # and without Tukey's energy: matched in value, it need not fall on the way to the fixed point
    accepted: bool
    sound: bool
    before: float  # energy at the very start, and at the means in the end
    after: float
    guarded: bool

    @property
    def fell(self):
        return self.after < self.before


def draw(structure, number, sensible):
    """One update with random sigmas, damping, masks and data."""
    rng = np.random.default_rng([list(STRUCTURES).index(structure), number])
    shape, missing, layers = STRUCTURES[structure]
    sigmas = 10 ** (rng.uniform(-2, 0, 5) if sensible else rng.uniform(-3, 1, 5))
    # Without any damping the program would be another one: the least is 1e-6.
    low, high = (0.5, 0.9) if sensible else (1e-6, 0.95)
    damping = gbp.Damping(parameters=rng.uniform(low, high), activations=rng.uniform(low, high))
    net = Watched(*layers(*(float(s) for s in sigmas)), input_shape=shape)
    # The energy is that of activations too: by default a learner stops when its parameters alone have settled.
    student = gbp.Learner(net, iterations=50, tolerance=1e-3, damping=damping, seed=number)
    x = rng.standard_normal((BATCH, *shape))
    given: dict = {}
    if missing:
        given["x_observed"] = rng.random(x.shape) < 0.8
        x = np.where(given["x_observed"], x, np.nan)
    if net.head is not None:
        out = (BATCH, *net.shapes(shape)[net.output])
        classes = isinstance(net.layers[-1], gbp.SoftmaxObservation)
        given["y"] = rng.integers(0, out[-1], BATCH) if classes else rng.standard_normal(out)
        given["y_observed"] = rng.random(BATCH) < 0.8
    report = student.update(x, **given)
    result, graph = net.result, net.result.graph
    numbers = [np.asarray(a) for b in (*result.beliefs.values(), *student.posterior.values()) for a in (b.eta, b.lam)]
    sound = all(np.isfinite(a).all() for a in numbers) and np.isfinite([report.energy, report.residual]).all()
    sound = sound and all((np.asarray(b.lam) > 0).all() for b in student.posterior.values())
    before = graph.energy(graph.starts)
    after = graph.energy(result)
    energies = sum(before.values()), sum(after.values())
    descends = not any(isinstance(getattr(layer, "robust", None), gbp.Tukey) for layer in net.layers)
    return Run(structure, sensible and descends, report.accepted, bool(sound), *energies, bool(report.guard))


def run(structure, draws):
    """Every other draw is sensible."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [draw(structure, i, sensible=i % 2 == 1) for i in range(draws)]


def check(runs):
    broken = [r for r in runs if not r.sound]
    assert not broken
    sensible = [r for r in runs if r.sensible]
    assert np.mean([r.fell for r in sensible]) >= 0.95, [r for r in sensible if not r.fell]


def test_what_two_structures_make_of_random_settings():
    check([r for name in FAST for r in run(name, FAST_DRAWS)])


@pytest.mark.slow
def test_what_thirty_structures_make_of_random_settings():
    assert len(STRUCTURES) == 30
    jax.config.update("jax_disable_most_optimizations", True)  # each program runs for a moment only
    runs = []
    for name in STRUCTURES:
        some = run(name, DRAWS)
        runs += some
        good = [r for r in some if r.sensible]
        counts = [sum(not r.sound for r in some), sum(not r.accepted for r in some), sum(r.guarded for r in some)]
        fell = f"energy fell in {sum(r.fell for r in some)} of {len(some)}, {sum(r.fell for r in good)} of {len(good)}"
        print("{}: {} not sound, {} refused, {} guarded;".format(name, *counts), fell, "sensible", flush=True)
    share = np.mean([r.fell for r in runs if r.sensible])
    print(f"in all {len(runs)}; of the sensible ones energy fell in {share:.4f}")
    check(runs)
