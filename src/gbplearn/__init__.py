"""gbplearn: learn deep factor graphs with Gaussian belief propagation. Your posterior is the next prior."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from . import moved, native
from .core.compiling import cache_programs
from .core.gaussian import Gaussian
from .core.noise import LearnNoise
from .core.robust import Huber, Kernel, Tukey
from .core.vector import VectorGaussian
from .core.version import __version__ as __version__
from .edges.axes import AxesEdges
from .engine.damping import Damping, damping_for
from .engine.guard.events import GuardAction, GuardEvent
from .engine.guard.guard import Guard
from .engine.infer import beliefs, infer, init, step
from .engine.linearisation import AfterVisit, OnMovement
from .engine.program import Program, compile
from .engine.result import InferenceError, Result, Status, Trace
from .engine.schedules import FixedOrder, Order, RandomLayers, Residual, Schedule, Sweep, TreeOrder
from .engine.solve import Solution, solve
from .engine.state import State
from .factors.measurement import FactorKind, Layout
from .factors.operators import Entries, Operator
from .graph.data import Data, FactorData
from .graph.factor import Factor, check_jacobian
from .graph.graph import FactorGraph
from .graph.poses import PoseGraph
from .graph.variable import Variable, View
from .io.checkpoint import CheckpointError
from .io.g2o import read_g2o, write_g2o
from .layers.activation import LeakyRelu, SmoothLeakyRelu
from .layers.avg_pool2d import AvgPool2D
from .layers.categorical import CategoricalObservation
from .layers.conv2d import Conv2D
from .layers.conv_transpose2d import ConvTranspose2D
from .layers.dense import Dense
from .layers.dropout import Dropout
from .layers.features import Features
from .layers.gaussian_observation import GaussianObservation
from .layers.global_avg_pool2d import GlobalAvgPool2D
from .layers.join import Add, Concatenate, Part
from .layers.layer import Layer, Observation, Parameter, Relation, Transform
from .layers.max_pool2d import MaxPool2D
from .layers.pairwise_smoothing import PairwiseSmoothing
from .layers.prior import Prior
from .layers.softmax import SoftmaxObservation
from .layers.stencil import StencilKind
from .layers.upsample2d import Upsample2D
from .layers.whitened_patches import WhitenedPatches
from .learner.deploy import export, forward_function
from .learner.filtering import Filtering
from .learner.history import BatchRecord
from .learner.learner import Learner
from .learner.merging import merge
from .learner.posterior import Posterior
from .learner.report import Report
from .learner.stream import DriftAlarm
from .learner.uncertainty import Uncertainty
from .learner.unusual import Oddity, Unusual
from .network.network import Network
from .network.places import Tied
from .network.sequential import Sequential
from .show.drawing import Drawing

if TYPE_CHECKING:
    from .apps.denoising.denoiser import GBPDenoiser
    from .estimators.estimators import GBPClassifier, GBPRegressor

moved.install()

__all__ = [
    "Add",
    "AfterVisit",
    "AvgPool2D",
    "AxesEdges",
    "BatchRecord",
    "CategoricalObservation",
    "CheckpointError",
    "Concatenate",
    "Conv2D",
    "ConvTranspose2D",
    "Damping",
    "Data",
    "Dense",
    "Drawing",
    "DriftAlarm",
    "Dropout",
    "Entries",
    "Factor",
    "FactorData",
    "FactorGraph",
    "FactorKind",
    "Features",
    "Filtering",
    "FixedOrder",
    "GBPClassifier",
    "GBPDenoiser",
    "GBPRegressor",
    "Gaussian",
    "GaussianObservation",
    "GlobalAvgPool2D",
    "Guard",
    "GuardAction",
    "GuardEvent",
    "Huber",
    "InferenceError",
    "Kernel",
    "Layer",
    "Layout",
    "LeakyRelu",
    "LearnNoise",
    "Learner",
    "MaxPool2D",
    "Network",
    "Observation",
    "Oddity",
    "OnMovement",
    "Operator",
    "Order",
    "PairwiseSmoothing",
    "Parameter",
    "Part",
    "PoseGraph",
    "Posterior",
    "Prior",
    "Program",
    "RandomLayers",
    "Relation",
    "Report",
    "Residual",
    "Result",
    "Schedule",
    "Sequential",
    "SmoothLeakyRelu",
    "SoftmaxObservation",
    "Solution",
    "State",
    "Status",
    "StencilKind",
    "Sweep",
    "Tied",
    "Trace",
    "Transform",
    "TreeOrder",
    "Tukey",
    "Uncertainty",
    "Unusual",
    "Upsample2D",
    "Variable",
    "VectorGaussian",
    "View",
    "WhitenedPatches",
    "beliefs",
    "cache_programs",
    "check_jacobian",
    "compile",
    "damping_for",
    "export",
    "forward_function",
    "infer",
    "init",
    "merge",
    "native",
    "read_g2o",
    "solve",
    "step",
    "write_g2o",
]

# Imported on first use: all three use scikit-learn, and the first two cannot do without it.
_ESTIMATORS = {
    "GBPClassifier": "estimators.estimators",
    "GBPRegressor": "estimators.estimators",
    "GBPDenoiser": "apps.denoising.denoiser",
}


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'gbplearn' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f".{_ESTIMATORS[name]}", __name__), name)


if find_spec("sklearn") is None:
    __all__.remove("GBPClassifier")
    __all__.remove("GBPRegressor")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
