"""Drawings, plots, notebooks and pages: what people would rather see than read."""
