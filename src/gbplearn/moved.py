"""Old names of modules that have moved, so that documented imports and pickles go on working.

`import gbplearn.models` gives `gbplearn.network.zoo` itself, not a copy of it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED: dict[str, str | tuple[str, ...]] = {
    "acceptance": "engine.result",
    "answers": "learner.prediction",
    "baselines": "apps.baselines",
    "baselines.adam_steps": "apps.baselines.adam_steps",
    "baselines.classical_denoisers": "apps.baselines.classical_denoisers",
    "baselines.cnn": "apps.baselines.cnn",
    "baselines.diagonal_ekf": "apps.baselines.diagonal_ekf",
    "batch": "network.batch",
    "batch_evidence": "learner.batch_evidence",
    "bench": "apps.bench",
    "bench.command": "apps.bench.command",
    "bench.measure": "apps.bench.measure",
    "bench.report": "apps.bench.report",
    "bench.workloads": "apps.bench.workloads",
    "bethe": "engine.log_evidence",
    "carried": "network.warm_start",
    "checkpoint": "io.checkpoint",
    "checkpoint_history": "io.checkpoint_history",
    "classes": "network.class_probabilities",
    "cli": "apps.cli",
    "compiling": "core.compiling",
    "data": "apps.data",
    "data.cifar": "apps.data.cifar",
    "data.download": "apps.data.download",
    "data.g2o": "io.g2o",
    "data.idx": "apps.data.idx",
    "data.images": "apps.data.images",
    "data.known_files": "apps.data.known_files",
    "data.video": "apps.data.video",
    "demo": "apps.demo",
    "demo.classify": "apps.demo.classify",
    "demo.figures": "apps.demo.figures",
    "demo.fill_in": "apps.demo.fill_in",
    "denoising": "apps.denoising",
    "denoising.best": "apps.denoising.best",
    "denoising.cleaned": "apps.denoising.cleaned",
    "denoising.command": "apps.denoising.command",
    "denoising.denoiser": "apps.denoising.denoiser",
    "denoising.flow": "apps.denoising.flow",
    "denoising.layered": "apps.denoising.layered",
    "denoising.pictures": "apps.denoising.pictures",
    "denoising.report": "apps.denoising.report",
    "denoising.smooth_graph": "apps.denoising.smooth_graph",
    "denoising.switches": "apps.denoising.switches",
    "deploy": "learner.deploy",
    "drawing": ("show.drawing", "show.graph_drawing"),
    "drawing_layout": "show.placement",
    "estimator": "estimators.base",
    "evidence": "graph.evidence",
    "experiments": "apps.experiments",
    "experiments.async_layers": "apps.experiments.async_layers",
    "experiments.catalogue": "apps.experiments.catalogue",
    "experiments.cifar10": "apps.experiments.cifar10",
    "experiments.denoisers": "apps.experiments.denoisers",
    "experiments.digits": "apps.experiments.digits",
    "experiments.estimators": "apps.experiments.estimators",
    "experiments.experiment": "apps.experiments.experiment",
    "experiments.fashion_mnist": "apps.experiments.fashion_mnist",
    "experiments.fill_in": "apps.experiments.fill_in",
    "experiments.image_figure": "apps.experiments.image_figure",
    "experiments.image_settings": "apps.experiments.image_settings",
    "experiments.image_stream": "apps.experiments.image_stream",
    "experiments.iterations": "apps.experiments.iterations",
    "experiments.mnist": "apps.experiments.mnist",
    "experiments.one_pass": "apps.experiments.one_pass",
    "experiments.parts": "apps.experiments.parts",
    "experiments.published": "apps.experiments.published",
    "experiments.regression": "apps.experiments.regression",
    "experiments.sample_efficiency": "apps.experiments.sample_efficiency",
    "experiments.sample_figure": "apps.experiments.sample_figure",
    "experiments.sample_settings": "apps.experiments.sample_settings",
    "experiments.stability": "apps.experiments.stability",
    "experiments.variance_graphs": "apps.experiments.variance_graphs",
    "experiments.variances": "apps.experiments.variances",
    "experiments.video": "apps.experiments.video",
    "experiments.video_figure": "apps.experiments.video_figure",
    "experiments.xor": "apps.experiments.xor",
    "factor": "graph.factor",
    "files": "core.files",
    "filtering": "learner.filtering",
    "forgetting": "learner.learner",
    "forked": "core.forked",
    "gaussian": "core.gaussian",
    "group": "graph.group",
    "guard": "engine.guard.guard",
    "history": ("learner.history",),
    "image_scores": "apps.image_scores",
    "inference": ("engine.infer", "engine.result"),
    "input_model": "estimators.input_model",
    "lay_out": "network.layout",
    "layers.operators": "factors.operators",
    "learning": "learner.learner",
    "limits": "io.limits",
    "linalg": "core.linalg",
    "locks": "learner.locks",
    "look": "engine.diagnostics",
    "measurement": ("factors.measurement", "factors.operators", "kernels.forms"),
    "memory": "network.memory",
    "merging": "learner.merging",
    "messages": "engine.update",
    "models": "network.zoo",
    "native.calls": "kernels.cpu.calls",
    "native.chain": "kernels.cpu.chain",
    "native.library": "kernels.cpu.library",
    "native.visits": "kernels.cpu.visits",
    "network_table": "network.summary",
    "noise": "core.noise",
    "noise_update": "engine.noise_update",
    "notebook": "show.notebook",
    "options": "engine.options",
    "passes": "learner.passes",
    "plain": "io.values",
    "plotting": "show.plots",
    "poses": "graph.poses",
    "posterior": "learner.posterior",
    "problem": ("graph.problem", "engine.state"),
    "propagate": "engine.loop",
    "proximal": "engine.guard.proximal",
    "report": "apps.report",
    "report.classifier": "apps.report.classifier",
    "report.figures": "show.figures",
    "report.inside": "apps.report.inside",
    "report.layer_cost": "apps.report.layer_cost",
    "report.page": "show.page",
    "report.progress": "core.progress",
    "report.record": "apps.report.record",
    "robust": "core.robust",
    "rounding": "engine.rounding",
    "rows": "edges.base",
    "schedule": ("engine.schedules", "engine.damping", "engine.linearisation"),
    "scores": "apps.scores",
    "sealed_file": "io.container",
    "seen": "engine.inbox",
    "sites": ("network.places",),
    "starting": "network.initial",
    "stream": "learner.stream",
    "sweep": "engine.undiagnosed",
    "tables": "estimators.validation",
    "tile_edges": "edges.tiles",
    "tracing": "core.tracing",
    "train": "apps.train",
    "train_report": "apps.train_report",
    "uncertainty": "learner.uncertainty",
    "unusual": "learner.unusual",
    "update_report": "learner.report",
    "view": "graph.variable",
    "visit": "engine.visit",
    "watching": "apps.learning_curve",
    "window_edges": ("edges.windows", "edges.stencil"),
}
_ROOT = __name__.rpartition(".")[0]


# Classes that have another name now, by the name that older pickles hold.
RENAMED = {"sites.Site": "Place", "history.Taught": "Contribution"}


class _MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module under its old name; of one that was divided, a module that finds names in all of its parts."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Of a module that has moved."""
        return importlib.util.spec_from_loader(fullname, self) if _old_name(fullname) in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module itself, where it is now; None for a new one."""
        new = MOVED[_old_name(spec.name)]
        if not isinstance(new, str):
            return None
        module = importlib.import_module(f"{_ROOT}.{new}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the own `__spec__` of a module that was there; let a new one find its names in its parts."""
        found = module.__spec__
        assert found is not None
        if found.loader_state is not None:
            module.__spec__ = found.loader_state
            return
        old = _old_name(found.name)
        parts = [importlib.import_module(f"{_ROOT}.{new}") for new in MOVED[old]]

        def find(name: str) -> Any:
            wanted = RENAMED.get(f"{old}.{name}", name)
            for part in parts:
                if hasattr(part, wanted):
                    return getattr(part, wanted)
            raise AttributeError(f"module '{found.name}' has no attribute '{name}'")

        module.__dict__["__getattr__"] = find


def _old_name(fullname: str) -> str:
    return fullname.removeprefix(f"{_ROOT}.") if fullname.startswith(f"{_ROOT}.") else ""


def install() -> None:
    """Before all other finders: some old names lie below packages that others would search."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedModules())
