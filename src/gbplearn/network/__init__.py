"""Layers put together to a network, and laid out as a factor graph for a batch."""

from .sequential import Sequential

__all__ = ["Sequential"]
