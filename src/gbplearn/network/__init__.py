"""Networks: layers in sequence, laid out as a factor graph for each batch."""

from .sequential import Sequential

__all__ = ["Sequential"]
