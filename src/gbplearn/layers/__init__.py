"""Layers: one kind of factor a file."""
