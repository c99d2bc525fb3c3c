"""Drawings of graphs, plots of results, tables for notebooks, and report pages."""
