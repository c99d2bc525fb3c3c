"""Edge sets: which factors are connected with which units of a variable. All operations are sums and copies."""

from .axes import AxesEdges
from .base import Edges
from .indexed import IndexEdges, RepeatedEdges, SharedEdges, SliceEdges

__all__ = ["AxesEdges", "Edges", "IndexEdges", "RepeatedEdges", "SharedEdges", "SliceEdges"]
