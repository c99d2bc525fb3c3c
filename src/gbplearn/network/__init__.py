"""Networks: layers in sequence or as named nodes, laid out as a factor graph for each batch."""

from .network import Network
from .sequential import Sequential

__all__ = ["Network", "Sequential"]
