"""What heads that observe classes share."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..edges.axes import AxesEdges
from ..factors.measurement import Layout
from ..factors.operators import Shape
from .layer import Observation


class ClassObservation(Observation):
    """A head that observes classes, given as whole numbers `(batch,)`, or as probabilities `(batch, classes)`."""

    whole_rows: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        """One axis of at least two classes."""
        if len(shape) != 1 or shape[0] < 2:
            name = type(self).__name__
            raise ValueError(f"{name} needs logits (classes,) of at least 2 classes, got {shape}")
        return shape

    def target(self, y: Any, shape: Shape) -> np.ndarray:
        """As probabilities `(batch, classes)`."""
        y, (batch, classes) = np.asarray(y), shape
        if y.shape == (batch, classes):
            y = y.astype(float)
            if not np.isfinite(y).all() or (y < 0).any() or not np.allclose(y.sum(1), 1, atol=1e-4):
                raise ValueError("class probabilities must be >= 0 and sum to 1")
            return y
        if y.shape != (batch,):
            raise ValueError(f"classes must have shape ({batch},) or {shape}, got {y.shape}")
        if not (np.isfinite(y.astype(float)).all() and (y == np.round(y)).all()):
            raise ValueError("classes must be whole numbers")
        if batch and not (y.min() >= 0 and y.max() < classes):
            raise ValueError(f"classes must lie in 0 ... {classes - 1}, got {y.min():g} ... {y.max():g}")
        return np.eye(classes)[y.astype(int)]


def logit_edges(shape: Shape) -> AxesEdges:
    """Of logits `(batch, classes)`: a factor for each example, with all of its logits."""
    return AxesEdges(shape, (0, 1), shape)


def class_layout(f: Shape) -> Layout:
    """One factor an example, with as many measurements as there are classes."""
    if len(f) != 2:
        raise ValueError(f"a softmax needs logits (batch, classes), got {f}")
    return Layout(f[:1], f[1:], (logit_edges(f),))
