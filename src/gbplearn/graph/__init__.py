"""What a user declares: variables, factors, evidence; and the same as arrays."""

from .graph import FactorGraph

__all__ = ["FactorGraph"]
