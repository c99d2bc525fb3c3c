"""gbplearn: learn deep factor graphs with Gaussian belief propagation. Your posterior is the next prior."""

from .factor import Factor, check_jacobian
from .gaussian import Gaussian
from .graph import FactorGraph
from .inference import InferenceError, Result, Status, Trace, beliefs, infer, init, step
from .problem import State
from .robust import Huber, Kernel, Tukey
from .schedule import Damping, OnMovement, Order, RandomLayers, Residual, Schedule, Sweep
from .view import Variable, View

__version__ = "0.1.0"

__all__ = [
    "Damping",
    "Factor",
    "FactorGraph",
    "Gaussian",
    "Huber",
    "InferenceError",
    "Kernel",
    "OnMovement",
    "Order",
    "RandomLayers",
    "Residual",
    "Result",
    "Schedule",
    "State",
    "Status",
    "Sweep",
    "Trace",
    "Tukey",
    "Variable",
    "View",
    "beliefs",
    "check_jacobian",
    "infer",
    "init",
    "step",
]
