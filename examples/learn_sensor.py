"""A robot finds its way by a sensor that nobody has calibrated, and calibrates it on the way, in one factor graph.

Odometry says how each position follows from the last one; its errors add up. Three beacons stand at known places, and
the robot reads how strong the signal of each is. How strength falls with distance is unknown: a small network, whose
weights are variables of the same graph. Positions teach the network, the network corrects the positions.

    position --- odometry --- position ...
        |
     distance (to a beacon)
        |
     sensor/input --- dense --- dense_1 --- reading
                        |          |
                     weights    weights

    python examples/learn_sensor.py FOLDER
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure

import gbplearn as gbp
from gbplearn.core.files import make_folder
from gbplearn.show.figures import BLUE, GREEN, GREY, ORANGE, PALE, save_figure

Positions = Float[np.ndarray, "n 2"]  # in metres

_BEACONS = np.array([[-4.5, -3.0], [4.5, -2.5], [0.0, 3.5]])
_DISTANCE_SIGMA = 0.02  # metres
# What goes into the network: distances of about 0 to 10 metres as numbers of about -2 to 2.
_CENTRE, _SCALE = 5.0, 2.5


@dataclasses.dataclass(frozen=True)
class Settings:
    """Drive and model."""

    steps: int = 120
    odometry_sigma: float = 0.08  # metres a step
    slip: tuple[float, float] = (0.015, 0.01)  # metres a step, of which the model knows nothing
    reading_sigma: float = 0.03
    hidden: int = 8
    damping: float = 0.9
    iterations: int = 800


@dataclasses.dataclass(frozen=True)
class Drive:
    """A true path, and what was measured of it."""

    path: Positions
    odometry: Positions  # of each position but the first, from the one before it
    start: Positions  # the odometry added up
    at: Int[np.ndarray, " readings"]  # position of each reading
    beacon: Positions  # and which beacon it is of
    readings: Float[np.ndarray, " readings"]

    def distances(self, positions: Positions) -> Float[np.ndarray, " readings"]:
        """Of the readings, if this was the path."""
        return np.linalg.norm(positions[self.at] - self.beacon, axis=1)


@dataclasses.dataclass(frozen=True)
class Curve:
    """The response that was learnt."""

    distance: Float[np.ndarray, " points"]
    mean: Float[np.ndarray, " points"]
    std: Float[np.ndarray, " points"]


@dataclasses.dataclass(frozen=True)
class Found:
    """What went in and what came out."""

    drive: Drive
    positions: dict[str, Positions]  # by how they were found
    curve: Curve
    result: gbp.Result
    seconds: float

    def metrics(self) -> dict[str, float | int | str]:
        """The numbers that are printed."""
        off = self.curve.mean - response(self.curve.distance)
        return {
            **{f"rmse_{name}": position_rmse(found, self.drive.path) for name, found in self.positions.items()},
            "rmse_response": float(np.sqrt(np.mean(off**2))),
            "response_within_2_std": float(np.mean(np.abs(off) < 2 * self.curve.std)),
            "iterations": self.result.iterations,
            "residual": self.result.residual,
            "seconds": self.seconds,
        }


def position_rmse(estimate: Positions, path: Positions) -> float:
    """Root of the mean squared distance to the true positions, in metres."""
    return float(np.sqrt(np.mean(np.sum((estimate - path) ** 2, axis=1))))


def response(distance):
    """How strong a beacon's signal is: near it saturates, far away it is lost. The robot does not know."""
    return 2 / (1 + jnp.exp((distance - 4) / 1.2)) - 1


def drive(seed: int, settings: Settings) -> Drive:
    """Two rounds of a figure eight, the second a little beside the first."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4 * np.pi, settings.steps)
    path = np.stack([4 * np.sin(t) + 0.3 * np.cos(t / 2), 2.5 * np.sin(2 * t) + 0.4 * np.sin(t / 2)], axis=1)
    odometry = np.diff(path, axis=0)
    odometry = odometry + np.array(settings.slip) + settings.odometry_sigma * rng.standard_normal(odometry.shape)
    start = np.concatenate([path[:1], path[0] + np.cumsum(odometry, axis=0)])
    at, which = (i.ravel() for i in np.indices((settings.steps, len(_BEACONS))))
    beacon = _BEACONS[which]
    strength = np.asarray(response(np.linalg.norm(path[at] - beacon, axis=1)))
    return Drive(path, odometry, start, at, beacon, strength + settings.reading_sigma * rng.standard_normal(len(at)))


def world(driven: Drive, settings: Settings) -> gbp.FactorGraph:
    """What is written by hand: positions, held together by odometry."""
    graph = gbp.FactorGraph()
    x = graph.variable("position", driven.start.shape, start=driven.start)
    graph.observe("position", driven.start, mask=np.arange(len(driven.start))[:, None] == 0)  # where it begins
    ends, steps = (x[:-1].reshape(-1), x[1:].reshape(-1)), driven.odometry.ravel()
    graph.add(gbp.Factor(_step, ends, y=steps, sigma=settings.odometry_sigma, linear=True, name="odometry"))
    return graph


def with_known_sensor(driven: Drive, settings: Settings) -> gbp.FactorGraph:
    """The same with readings of a sensor whose response is known: what calibration could at best achieve."""
    graph = world(driven, settings)
    x, sigma = graph.variables["position"], settings.reading_sigma
    graph.add(gbp.Factor(_reading, (x[driven.at], driven.beacon), y=driven.readings, sigma=sigma, name="reading"))
    return graph


def with_learnt_sensor(driven: Drive, settings: Settings, net: gbp.Sequential) -> gbp.FactorGraph:
    """The same with readings of a sensor that is a network, to be learnt."""
    graph, inputs = world(driven, settings), ((driven.distances(driven.start) - _CENTRE) / _SCALE)[:, None]
    x, distance = graph.variables["position"], graph.variable("distance", inputs.shape, start=inputs)
    args = (x[driven.at], driven.beacon, distance[:])
    graph.add(gbp.Factor(_distance, args, sigma=_DISTANCE_SIGMA, name="distance"))
    sensor = net.graph(inputs, driven.readings)
    sensor.release("input")  # not known: only where to start
    graph.include(sensor, prefix="sensor/")
    graph.tie("distance", "sensor/input")
    return graph


def _step(a, b):
    return b - a


def _reading(position, beacon):
    return response(jnp.linalg.norm(position - beacon))


def _distance(position, beacon, scaled):
    return _SCALE * scaled[0] + _CENTRE - jnp.linalg.norm(position - beacon)


_LAST = gbp.Dense(1, sigma=0.01, weight_prior=1.0, weight_init=0.1, bias_prior=1.0, prior=3.0)


def network(settings: Settings) -> gbp.Sequential:
    """Distance to reading."""
    wide = {"weight_prior": 2.0, "weight_init": 1.0, "bias_prior": 2.0, "bias_init": 1.0, "prior": 3.0}
    first = gbp.Dense(settings.hidden, activation="tanh", sigma=0.01, **wide)
    return gbp.Sequential(first, _LAST, gbp.GaussianObservation(sigma=settings.reading_sigma))


def straight_line(driven: Drive) -> gbp.Sequential:
    """A linear response, learnt too; told how large the noise is that fits a line best."""
    distances = driven.distances(driven.path)
    off = driven.readings - np.polyval(np.polyfit(distances, driven.readings, 1), distances)
    return gbp.Sequential(_LAST, gbp.GaussianObservation(sigma=float(off.std())))


def find(seed: int, settings: Settings, baselines: bool = True) -> Found:
    """Drive, and find the path with the sensor learnt on the way; and with one taken for a line, and one known."""
    driven = drive(seed, settings)
    net = network(settings)
    how = {"iterations": settings.iterations, "throw": False}
    careful = gbp.Damping(parameters=settings.damping, activations=0.5)
    begin = time.perf_counter()
    result = gbp.infer(with_learnt_sensor(driven, settings, net), damping=careful, **how)
    seconds = time.perf_counter() - begin
    results = {"learnt": result}
    if baselines:
        line = with_learnt_sensor(driven, settings, straight_line(driven))
        results["line"] = gbp.infer(line, damping=careful, **how)
        results["known"] = gbp.infer(with_known_sensor(driven, settings), damping=0.5, **how)
    positions = {name: np.asarray(found["position"].mean, float) for name, found in results.items()}
    curve = learnt_curve(net, result, driven)
    return Found(driven, {"odometry": driven.start, **positions}, curve, result, seconds)


def learnt_curve(net: gbp.Sequential, result: gbp.Result, driven: Drive) -> Curve:
    """The network's output, with the uncertainty of its weights, over the distances that occurred."""
    distances = driven.distances(driven.path)
    distance = np.linspace(distances.min(), distances.max(), 100)
    weights = {name.removeprefix("sensor/"): belief for name, belief in result.items() if "/dense" in name}
    weights = {name: belief for name, belief in weights.items() if "/" in name}
    out = net.predict(((distance - _CENTRE) / _SCALE)[:, None], weights, parameters="random", iterations=50)
    return Curve(distance, np.asarray(out.mean, float)[:, 0], np.asarray(out.std, float)[:, 0])


def draw(f: Found) -> Figure:
    """Paths on the left, the response on the right."""
    figure = Figure(figsize=(10.4, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.45, 1])
    rmse = {name: position_rmse(found, f.drive.path) for name, found in f.positions.items()}
    left.plot(*f.drive.path.T, color=PALE, linewidth=6, label="true path")
    for name, style, colour, label in (
        ("odometry", ":", GREY, "odometry"),
        ("line", "--", ORANGE, "sensor taken for a line"),
        ("learnt", ".-", BLUE, "sensor learnt on the way"),
    ):
        if name not in rmse:
            continue
        text = f"{label}: {rmse[name]:.2f} m RMSE"
        left.plot(*f.positions[name].T, style, color=colour, linewidth=1.3, markersize=4, label=text)
    left.plot(*_BEACONS.T, "^", color=GREEN, markersize=9, linestyle="none", label="beacons")
    left.set(aspect="equal", xlabel="x in metres", ylabel="y in metres")
    curve = f.curve
    low, high = curve.mean - 2 * curve.std, curve.mean + 2 * curve.std
    right.fill_between(curve.distance, low, high, color=BLUE, alpha=0.2, linewidth=0, label="2 standard deviations")
    right.plot(f.drive.distances(f.drive.path), f.drive.readings, ".", color=GREY, markersize=3, label="readings")
    right.plot(curve.distance, response(curve.distance), color=GREEN, linewidth=2.5, label="true response")
    right.plot(curve.distance, curve.mean, "--", color=BLUE, linewidth=2.5, label="learnt response")
    right.set(xlabel="distance to the beacon in metres", ylabel="strength of its signal")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def main() -> None:
    gbp.cache_programs()  # the next run need not compile anew
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("."), help="folder for the pictures")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    asked = parser.parse_args()
    make_folder(asked.out)
    found = find(asked.seed, Settings())
    for name, value in found.metrics().items():
        print(f"{name:22}  {value:.4g}" if isinstance(value, float) else f"{name:22}  {value}")
    print(*save_figure(draw(found), asked.out, "learn_sensor"), sep="\n")


if __name__ == "__main__":
    main()
