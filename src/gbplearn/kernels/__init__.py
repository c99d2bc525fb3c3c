"""Visits in native code; the engine knows their `registry` alone."""
