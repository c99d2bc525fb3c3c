"""gbplearn: learn deep factor graphs with Gaussian belief propagation. Your posterior is the next prior."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from . import native
from .checkpoint import CheckpointError
from .compiling import cache_programs
from .data.g2o import read_g2o, write_g2o
from .deploy import export, forward_function
from .drawing import Drawing
from .edges import AxesEdges
from .factor import Factor, check_jacobian
from .filtering import Filtering
from .gaussian import Gaussian
from .graph import FactorGraph
from .history import BatchRecord
from .inference import InferenceError, Result, Status, Trace, beliefs, infer, init, step
from .layers.activation import LeakyRelu, SmoothLeakyRelu
from .layers.avg_pool2d import AvgPool2D
from .layers.conv2d import Conv2D
from .layers.conv_transpose2d import ConvTranspose2D
from .layers.dense import Dense
from .layers.gaussian_observation import GaussianObservation
from .layers.layer import Layer, Observation, Parameter, Relation, Transform
from .layers.max_pool2d import MaxPool2D
from .layers.pairwise_smoothing import PairwiseSmoothing
from .layers.prior import Prior
from .layers.softmax import SoftmaxObservation
from .layers.stencil import StencilKind
from .layers.upsample2d import Upsample2D
from .learner import Learner, Report
from .measurement import Entries, FactorKind, Layout, Operator
from .merging import merge
from .network import Sequential
from .noise import LearnNoise
from .poses import PoseGraph
from .posterior import Posterior
from .problem import State
from .robust import Huber, Kernel, Tukey
from .schedule import AfterVisit, Damping, OnMovement, Order, RandomLayers, Residual, Schedule, Sweep, damping_for
from .stream import DriftAlarm
from .uncertainty import Uncertainty
from .unusual import Oddity, Unusual
from .view import Variable, View

if TYPE_CHECKING:
    from .denoising.denoiser import GBPDenoiser
    from .estimators import GBPClassifier, GBPRegressor

__version__ = "0.1.0"

__all__ = [
    "AfterVisit",
    "AvgPool2D",
    "AxesEdges",
    "BatchRecord",
    "CheckpointError",
    "Conv2D",
    "ConvTranspose2D",
    "Damping",
    "Dense",
    "Drawing",
    "DriftAlarm",
    "Entries",
    "Factor",
    "FactorGraph",
    "FactorKind",
    "Filtering",
    "GBPClassifier",
    "GBPDenoiser",
    "GBPRegressor",
    "Gaussian",
    "GaussianObservation",
    "Huber",
    "InferenceError",
    "Kernel",
    "Layer",
    "Layout",
    "LeakyRelu",
    "LearnNoise",
    "Learner",
    "MaxPool2D",
    "Observation",
    "Oddity",
    "OnMovement",
    "Operator",
    "Order",
    "PairwiseSmoothing",
    "Parameter",
    "PoseGraph",
    "Posterior",
    "Prior",
    "RandomLayers",
    "Relation",
    "Report",
    "Residual",
    "Result",
    "Schedule",
    "Sequential",
    "SmoothLeakyRelu",
    "SoftmaxObservation",
    "State",
    "Status",
    "StencilKind",
    "Sweep",
    "Trace",
    "Transform",
    "Tukey",
    "Uncertainty",
    "Unusual",
    "Upsample2D",
    "Variable",
    "View",
    "beliefs",
    "cache_programs",
    "check_jacobian",
    "damping_for",
    "export",
    "forward_function",
    "infer",
    "init",
    "merge",
    "native",
    "read_g2o",
    "step",
    "write_g2o",
]

# Imported when one of them is asked for: they take scikit-learn, the first two cannot do without.
_ESTIMATORS = {"GBPClassifier": "estimators", "GBPRegressor": "estimators", "GBPDenoiser": "denoising.denoiser"}


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
