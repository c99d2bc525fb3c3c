"""The face of scikit-learn."""

from .estimators import GBPClassifier, GBPRegressor

__all__ = ["GBPClassifier", "GBPRegressor"]
