"""How many iterations learning and prediction need: the paper's Appendix F.

Networks are trained with 50 to 1,600 iterations a batch, each batch used once, and asked with 50 to 1,600. The paper
asks with damping 0.9 and dropout 0.5 from random activations; here also from a forward pass, and by the learner's own
way (undamped, from a forward pass, a few sweeps).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...core.gaussian import Gaussian
from ...core.progress import progress
from ...engine.infer import infer
from ...learner.learner import Learner
from ...learner.prediction import SWEEPS
from .. import scores
from ..data.images import Images, load_images
from ..learning_curve import in_portions
from ..report.record import Clock
from .experiment import READ_OUT, SeedRun, total_cost
from .image_settings import BATCH, network
from .parts import InParts, Parts

COUNTS = (50, 100, 200, 400, 800, 1600)
ASKED = 200  # images at a time
# So many iterations, no fewer. Units at a kink never come to rest, which after 300 iterations the guard would take for
# trouble.
FIXED = {"tolerance": 0.0, "guard": False}
_RANDOM = 0.2  # standard deviation of activations that start at random, as the authors'
STARTS = ("forward", "random")
# Logits that move by no more from one number of iterations to the next (twice as many) stay there: no more are made.
AT_REST = 0.01


@dataclasses.dataclass(frozen=True)
class Iterations(InParts):
    """The network and settings of the experiment mnist, but so many iterations, no fewer.

    **Arguments:**

    - `examples`, `tested`: numbers of training and of test images.
    - `counts`: of iterations.
    - `damping`, `dropout`: when asking, as published.
    - `data_dir`: folder of the data sets, as `load_images`; no setting.
    """

    examples: int = 1600
    tested: int = 2000
    counts: tuple[int, ...] = COUNTS
    damping: float = 0.9
    dropout: float = 0.5
    data_dir: Path | None = None

    name: ClassVar[str] = "iterations"
    data: ClassVar[str] = "mnist"
    title: ClassVar[str] = "Iterations of learning and of prediction"
    seeds: ClassVar[int] = 1
    read_out: ClassVar[dict[str, str]] = {
        "forward": f"{READ_OUT['fixed']}; damped as published, started by a forward pass",
        "random": f"{READ_OUT['fixed']}; damped as published, activations started at random",
        "default": f"{READ_OUT['fixed']}; undamped, {SWEEPS} sweeps, started by a forward pass",
    }
    published: ClassVar[dict[str, str]] = {}
    caption: ClassVar[str] = (
        "Test accuracy by iterations a batch at training (upwards) and at prediction (to the right), with the damping "
        "and dropout of the paper. Above: activations start at random, as the paper's; below: at a forward pass. The "
        "red box is drawn again on the right, with colours of its own."
    )

    def settings(self) -> dict[str, Any]:
        """With the network."""
        return {**super().settings(), "network": repr(network("convolutional"))}

    def resume_seed(self, seed: int, folder: Path) -> SeedRun:
        """Every number of training iterations is a part of its own."""
        images = load_images(self.data, self.data_dir).centred()
        parts, before, metrics, costs = Parts(folder, self.settings()), True, {}, []
        for count in self.counts:
            name = f"seed-{seed}-{count}"
            before &= parts.has(name)
            held = parts.get(name, partial(self._measure, images, count, seed), "metrics", "cost")
            metrics |= held["metrics"]
            costs.append(held["cost"])
        return SeedRun(seed, metrics, metrics, before=before, cost=total_cost(costs))

    def _measure(self, images: Images, count: int, seed: int) -> dict[str, Any]:
        clock = Clock()
        order = np.random.default_rng(seed).permutation(len(images.train_y))[: self.examples]
        shape = images.train_x.shape[1:]
        learner = Learner(network("convolutional"), shape, strained="learn", seed=seed, **FIXED, iterations=count)
        for start in progress(range(0, len(order), BATCH), f"{count} iterations"):
            rows = order[start : start + BATCH]
            learner.update(images.train_x[rows], images.train_y[rows])
        x, y = images.test_x[: self.tested], images.test_y[: self.tested]
        right = scores.accuracy(in_portions(lambda part: learner.predict(part).mean, x), y)
        metrics = {
            f"test accuracy, trained with {count}/default": right,
            f"refused batches, trained with {count}/default": float(learner.failures),
        }
        for how in STARTS:
            logits = self.outputs_after(learner, x, how, seed)
            for asked, found in logits.items():
                name = f"test accuracy, trained with {count}, asked with {asked}/{how}"
                metrics[name] = scores.accuracy(found, y)
        return {"metrics": metrics, "cost": clock.cost()}

    def outputs_after(self, learner: Learner, x: np.ndarray, how: str, seed: int) -> dict[int, np.ndarray]:
        """The means of the outputs after each number of iterations, which go on from the last."""
        net, rng = learner.net, np.random.default_rng(seed)
        out: dict[int, list[np.ndarray]] = {count: [] for count in self.counts}
        for first in progress(range(0, len(x), ASKED), f"asking, {how}"):
            part = x[first : first + ASKED]
            shapes = {n: (len(part), *s) for n, s in net.shapes(part.shape[1:]).items() if n != "input"}
            start = {n: _RANDOM * rng.standard_normal(s) for n, s in shapes.items()} if how == "random" else {}
            graph = net.graph(part, parameters="fixed", beliefs=learner.posterior, start=start)
            result, done, found, moved = None, 0, None, np.inf
            for count in self.counts:
                options = {"damping": self.damping, "dropout": self.dropout, "tolerance": 0.0, "guard": False}
                if moved > AT_REST:  # else they are as they will be
                    result = infer(graph, iterations=count - done, init=result, seed=seed, throw=False, **options)
                    belief, last = result[net.output], found
                    assert isinstance(belief, Gaussian)
                    found, done = np.asarray(jnp.nan_to_num(belief.mean)), count
                    moved = np.inf if last is None else np.abs(found - last).max()
                assert found is not None
                out[count].append(found)
        return {count: np.concatenate(parts) for count, parts in out.items()}

    @staticmethod
    def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
        """A row for each number of training iterations: by the learner's own way, then by iterations and start."""
        metrics, counts = results["metrics"], results["settings"]["counts"]
        head = ("trained with", "default", *(f"{how}, {asked}" for how in STARTS for asked in counts))
        rows: list[tuple[str, ...]] = [head]
        for count in counts:
            names = [f"test accuracy, trained with {count}/default"]
            names += [f"test accuracy, trained with {count}, asked with {a}/{how}" for how in STARTS for a in counts]
            rows.append((f"{count:,}", *(f"{100 * metrics[n]['mean']:.1f}" for n in names)))
        return rows

    def draw(self, runs: Sequence[SeedRun]) -> Figure:
        """Two heat maps for each start: all numbers, and the larger ones (in the red box) with colours of their own."""
        figure = Figure(figsize=(10.2, 8.6), layout="constrained")
        few = len(self.counts) // 3
        for (whole, part), how in zip(figure.subplots(2, 2), reversed(STARTS)):
            names = [
                [f"test accuracy, trained with {t}, asked with {a}/{how}" for a in self.counts] for t in self.counts
            ]
            grid = np.array([[np.mean([r.metrics[n] for r in runs]) for n in row] for row in names])
            title = {"random": "from random activations", "forward": "from a forward pass"}[how]
            _map(whole, grid, self.counts, title)
            size = len(self.counts) - few
            whole.add_patch(Rectangle((few - 0.5, few - 0.5), size, size, fill=False, edgecolor="red", linewidth=2))
            _map(part, grid[few:, few:], self.counts[few:], f"{title}: the red box")
        return figure


def _map(ax: Axes, grid: np.ndarray, counts: Sequence[int], title: str) -> None:
    image = ax.imshow(grid, origin="lower", cmap="viridis")
    for (i, j), value in np.ndenumerate(grid):
        dark = value < (grid.min() + grid.max()) / 2
        ax.text(j, i, f"{100 * value:.1f}", ha="center", va="center", color="w" if dark else "k", fontsize=9)
    ax.set_xticks(range(len(counts)), [str(c) for c in counts])
    ax.set_yticks(range(len(counts)), [str(c) for c in counts])
    ax.set_xlabel("iterations at prediction")
    ax.set_ylabel("iterations a training batch")
    ax.set_title(title, fontsize=10)
    ax.figure.colorbar(image, ax=ax, format=lambda value, _: f"{value:.1%}")
