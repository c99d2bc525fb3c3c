"""Data sets in their published formats."""
