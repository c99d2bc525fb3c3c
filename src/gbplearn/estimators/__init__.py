"""Estimators with the interface of scikit-learn."""

from .estimators import GBPClassifier, GBPRegressor

__all__ = ["GBPClassifier", "GBPRegressor"]
