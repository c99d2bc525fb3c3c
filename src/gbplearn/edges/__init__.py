"""Edge sets: who is connected with whom. Nothing here knows what a message means."""

from .axes import AxesEdges
from .base import Edges
from .indexed import IndexEdges, RepeatedEdges, SharedEdges, SliceEdges

__all__ = ["AxesEdges", "Edges", "IndexEdges", "RepeatedEdges", "SharedEdges", "SliceEdges"]
