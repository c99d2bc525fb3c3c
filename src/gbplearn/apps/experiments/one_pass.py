"""Ways to learn a classifier from a stream of images, and how sure of what it is after so many of them.

One interface to all that sample efficiency compares: GBP, gradients with and without a buffer, and what one would do
with all images at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.progress import progress
from ...learner.learner import Learner
from ...network.zoo import paper_classifier, vector_classifier
from ..baselines.cnn import GradientClassifier, train_in_rounds
from ..scores import softmax
from .image_settings import BATCH
from .image_stream import finite

TRAINING_SET = 60000
# Buffers that are compared, as shares of the training set.
BUFFERS = (0.003, 0.01, 0.03, 0.06, 0.1)
REPLAY = {f"replay {100 * share:g} %": round(share * TRAINING_SET) for share in BUFFERS}

GBP, ADAM, COSINE, CONVERGED, LINEAR = "gbp", "adam", "adam cosine", "cnn converged", "linear converged"
# GBP with vector beliefs and activations, up to 800 images: settings of their own, or those of the experiment mnist.
VECTORS, ONE_SETTING = "vectors", "vectors, one setting"
STREAMS = (GBP, ADAM, *REPLAY, VECTORS, ONE_SETTING)  # learn on, whatever the number of images will be
METHODS = (GBP, ADAM, *REPLAY, COSINE, LINEAR, CONVERGED)
ALL_METHODS = (*METHODS, VECTORS, ONE_SETTING)
READ_OUT = {
    GBP: "by messages, parameters fixed at their means",
    VECTORS: "by messages, parameters fixed at their means",
    ONE_SETTING: "the same with the settings of the experiment mnist",
    ADAM: "no GBP: the same architecture, one pass of Adam",
    **{name: f"the same with a buffer of the last {size:,} images" for name, size in REPLAY.items()},
    COSINE: "one pass of Adam without a buffer, its step size falls like a cosine over the images of this size",
    LINEAR: "logistic regression on all images of this size at once",
    CONVERGED: "the CNN on all images of this size at once, again and again, with weight decay",
}
_NETWORK = ("sigma", "class_sigma", "conv_prior", "dense_prior", "logit_prior")

# Probabilities of the images that are to be predicted, by a function that reads a model out.
Ask = Callable[[Callable[[np.ndarray], Any]], np.ndarray]


def check_method(method: str) -> None:
    """Refuse a name that is none."""
    if method not in ALL_METHODS:
        raise ValueError(f"a method must be one of {', '.join(ALL_METHODS)}, got {method!r}")


def learn(
    method: str,
    chosen: Mapping[str, Any],
    x: np.ndarray,
    y: np.ndarray,
    sizes: Sequence[int],
    ask: Ask,
    seed: int = 0,
) -> Iterator[tuple[int, np.ndarray]]:
    """Probabilities after so many images.

    **Arguments:**

    - `method`: one of `ALL_METHODS`.
    - `chosen`: its settings.
    - `x`, `y`: images and classes in the order of the stream.
    - `sizes`: after how many of them to ask; rising, and whole batches but for the last.
    - `ask`: `ask(read)` gives the probabilities of the images to predict, by `read(images)`.
    - `seed`: of prior means or first weights.

    **Returns:** pairs of a size and probabilities.
    """
    check_method(method)
    if any(size % BATCH for size in sizes[:-1]) or list(sizes) != sorted(sizes) or max(sizes) > len(y):
        raise ValueError(f"sizes must rise in batches of {BATCH} up to the {len(y)} images given, got {list(sizes)}")
    if method in STREAMS:
        model = _stream_learner(method, chosen, x.shape[1:], seed)
        yield from _one_stream(model, x, y, sizes, ask, method)
        return
    for size in sizes:
        yield size, ask(_AT_ONCE[method](chosen, x, y, size, seed))


def _stream_learner(method: str, chosen: Mapping[str, Any], shape: tuple[int, ...], seed: int) -> Any:
    if method in (VECTORS, ONE_SETTING):
        return Learner(vector_classifier(**chosen), shape, seed=seed)
    if method == GBP:
        net = paper_classifier(**{k: chosen[k] for k in _NETWORK if k in chosen})
        how = {k: v for k, v in chosen.items() if k not in _NETWORK}
        return Learner(net, shape, strained="learn", seed=seed, **how)
    buffer = {"replay": REPLAY[method]} if method in REPLAY else {}
    return GradientClassifier(paper_classifier(), shape, seed=seed, **buffer, **chosen)


def _one_stream(
    model: Any, x: np.ndarray, y: np.ndarray, sizes: Sequence[int], ask: Ask, label: str
) -> Iterator[tuple[int, np.ndarray]]:
    read = model.predict_proba if isinstance(model, Learner) else _probabilities(model)
    wanted = set(sizes)
    for start in progress(range(0, max(sizes), BATCH), label):
        end = min(start + BATCH, max(sizes))
        model.update(x[start:end], y[start:end])
        if end in wanted:
            yield end, ask(read)


def _probabilities(model: GradientClassifier) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: softmax(finite(model.predict(x), "Adam"))


def _cosine(chosen: Mapping[str, Any], x: np.ndarray, y: np.ndarray, size: int, seed: int):
    batches = -(-size // BATCH)
    model = GradientClassifier(paper_classifier(), x.shape[1:], falls_over=batches, seed=seed, **chosen)
    for start in progress(range(0, size, BATCH), f"{COSINE}, {size:,}"):
        model.update(x[start : min(start + BATCH, size)], y[start : min(start + BATCH, size)])
    return _probabilities(model)


def _converged(chosen: Mapping[str, Any], x: np.ndarray, y: np.ndarray, size: int, seed: int):
    """A fixed number of rounds, but at least so many steps, while the step size falls to zero."""
    how = dict(chosen)
    batches = max(how.pop("least_steps"), how.pop("rounds") * max(1, size // BATCH))
    model = GradientClassifier(paper_classifier(), x.shape[1:], falls_over=batches, seed=seed, **how)
    train_in_rounds(model, x[:size], y[:size], batches=batches, batch=BATCH, seed=seed)
    return _probabilities(model)


def _linear(chosen: Mapping[str, Any], x: np.ndarray, y: np.ndarray, size: int, seed: int):
    """Scikit-learn's; classes without an example have probability zero."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / chosen["penalty"], max_iter=2000, tol=1e-3)
    model.fit(x[:size].reshape(size, -1), y[:size])

    def read(images: np.ndarray) -> np.ndarray:
        p = np.zeros((len(images), 10))
        p[:, model.classes_] = model.predict_proba(images.reshape(len(images), -1))
        return p

    return read


_AT_ONCE = {COSINE: _cosine, CONVERGED: _converged, LINEAR: _linear}
