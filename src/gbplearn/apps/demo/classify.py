"""Learn to read digits: one pass with a convolutional factor graph, the same with half of the labels, and with Adam."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...learner.learner import Learner
from ...network.sequential import Sequential
from ..baselines.cnn import GradientClassifier
from ..experiments.digits import Stream, learn, learn_with_adam

LABELLED = 0.5  # share of the labels that the second pass may see
STEPS = (10, 50)  # of Adam, a batch; the experiment tries 200 too, which takes longer


@dataclasses.dataclass(frozen=True)
class Classified:
    """What came out; curves are test accuracies after each batch."""

    stream: Stream
    learner: Learner  # after all labels
    curve: np.ndarray  # forward pass of the posterior means
    half_curve: np.ndarray  # the same with half of the labels
    adam_curve: np.ndarray
    adam_half_curve: np.ndarray
    chosen: dict[str, float | int]  # Adam's step size and steps a batch, and their accuracy on the images held back
    probabilities: np.ndarray  # of the classes of the test images, by messages
    half_logits: np.ndarray  # by messages
    labelled: int  # images whose label the second pass saw

    def metrics(self) -> dict[str, float]:
        """The numbers of results.json: `labels/read-out`."""
        return {
            "all labels/messages": self.stream.accuracy(self.probabilities),
            "all labels/forward": float(self.curve[-1]),
            "all labels/adam": float(self.adam_curve[-1]),
            "half of the labels/messages": self.stream.accuracy(self.half_logits),
            "half of the labels/forward": float(self.half_curve[-1]),
            "half of the labels/adam": float(self.adam_half_curve[-1]),
        }


def classify(stream: Stream, net: Sequential, seed: int) -> Classified:
    """All four passes over the stream."""
    learner, half = (Learner(net, stream.x.shape[1:], strained="learn", seed=seed) for _ in range(2))
    curve = learn(stream, "All labels", learner)
    probabilities = np.asarray(learner.predict_proba(stream.test_x))

    count = len(stream.y)
    known = np.random.default_rng([seed, 1]).permutation(count) < round(LABELLED * count)
    half_curve = learn(stream, "Half of the labels", half, known)
    half_logits = np.asarray(half.predict(stream.test_x).mean)

    # Step size and number of steps are those chosen with all labels.
    adam_curve, chosen = learn_with_adam(stream, net, seed, STEPS)
    adam = GradientClassifier(
        net, stream.x.shape[1:], rate=float(chosen["rate"]), steps=int(chosen["steps"]), seed=seed
    )
    adam_half_curve = learn(stream, "Adam, half of the labels", adam, known)
    return Classified(
        stream,
        learner,
        curve,
        half_curve,
        adam_curve,
        adam_half_curve,
        chosen,
        probabilities,
        half_logits,
        int(known.sum()),
    )
