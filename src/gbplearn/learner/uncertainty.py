"""`gbp.Uncertainty`: a prediction, with its uncertainty split by where it comes from."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """A prediction with its standard deviation in two parts, a row an example: of values, or of the logits of classes.

    - `mean`: what is expected.
    - `parameters`: the part that comes from not knowing the parameters; more data make it smaller.
    - `observation`: what would remain if they were known: noise of the layers, and of observed values.
    - `entropy`: of the class, in nats; None if values are predicted.
    - `expected_entropy`: what would remain of it if the logits were known.
    """

    mean: np.ndarray
    parameters: np.ndarray
    observation: np.ndarray
    entropy: np.ndarray | None = None
    expected_entropy: np.ndarray | None = None

    @property
    def total(self) -> np.ndarray:
        """`sqrt(parameters² + observation²)`."""
        return np.hypot(self.parameters, self.observation)

    @property
    def mutual_information(self) -> np.ndarray | None:
        """Of class and logits: `entropy - expected_entropy`, None if values are predicted."""
        if self.entropy is None or self.expected_entropy is None:
            return None
        return self.entropy - self.expected_entropy
