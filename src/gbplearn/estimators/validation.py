"""Checks of the tables that users of scikit-learn give: weights, labels, values; equal examples are put together."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

_DEVIATIONS = 1.4826  # of a Gaussian: median absolute deviations that are a standard deviation


def roomy(n: int) -> int:
    """A number of rows that is not much larger, of which there are few."""
    step = 2 ** max(0, n.bit_length() - 4)
    return -(-n // step) * step


def moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column, without NaN; 1 where nothing varies."""
    observed = ~np.isnan(values)
    total = np.maximum((weight[:, None] * observed).sum(0), np.finfo(float).tiny)
    wide = weight[:, None] * np.where(observed, values, 0)
    mean = wide.sum(0) / total
    off = np.where(observed, values - mean, 0)
    std = np.sqrt((weight[:, None] * off**2).sum(0) / total)
    rounding = 10 * np.finfo(float).eps * np.abs(np.where(observed, values, 0)).max(0)
    return mean, np.where(std > rounding, std, 1.0)


def robust_moments(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median of each column, and the standard deviation that its median deviation stands for, without NaN.

    Both as a few wild values leave them. Where more than half of the values are equal it is the mean, and the standard
    deviation.
    """
    middle, scale = moments(values, weight)
    for i, column in enumerate(values.T):
        known = ~np.isnan(column)
        if not (weight[known] > 0).any():
            continue
        median = _weighted_median(column[known], weight[known])
        spread = _DEVIATIONS * _weighted_median(np.abs(column[known] - median), weight[known])
        if spread > 10 * np.finfo(float).eps * abs(median):
            middle[i], scale[i] = median, spread
    return middle, scale


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(total, total[-1] / 2)]])


def text_column(x: Any) -> tuple[Any, str] | None:
    """The first column of a table that holds text which is no number: its name or number, and the text."""
    try:
        table = np.asarray(x, dtype=object)
    except (ValueError, TypeError):
        return None
    if table.ndim != 2:
        return None
    names = list(getattr(x, "columns", range(table.shape[1])))
    for name, column in zip(names, table.T):
        text = next((v for v in column if isinstance(v, str) and not _is_number(v)), None)
        if text is not None:
            return name, text
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def example_weights(sample_weight: Any, x: np.ndarray) -> np.ndarray:
    """One for each example, 1 if none are given."""
    weight = np.asarray(_check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True))
    if not weight.any():
        raise ValueError("sample_weight is zero for all examples: at least one must count")
    return weight


def distinct(x: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """Examples that are different; the weights (last column) of equal ones are added up: twice is a weight of 2."""
    counts = columns[-1] > 0
    parts = [a[counts].reshape(int(counts.sum()), -1).astype(float) for a in (x, *columns[:-1])]
    table = np.concatenate(parts, 1)
    # NaN is equal to NaN here: what is missing is missing.
    keys = np.concatenate([np.nan_to_num(table, nan=0.0), np.isnan(table)], 1)
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    weight = np.bincount(which.ravel(), weights=columns[-1][counts])
    return [a[counts][first] for a in (x, *columns[:-1])] + [weight]


def _required(y: Any, name: str) -> None:
    if y is None:
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")


def labels_of(y: Any, count: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels as an array, and which of them are known: those that are not None, NaN or pandas' NA."""
    _required(y, name)
    if isinstance(y, (list, tuple)):  # else NumPy would make strings of numbers, and of NaN
        y = np.array(y, dtype=object)
    labels = column_or_1d(y, warn=True)
    _check_length(labels, count)
    if labels.dtype == object:
        unknown = np.array([_is_missing(v) for v in labels], bool)
    else:
        unknown = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(count, bool)
    known = labels[~unknown]
    if known.dtype == object:
        kinds = {isinstance(v, str) for v in known}
        try:
            known = np.array(known.tolist())
        except ValueError:
            kinds = {True, False}
        if len(kinds) > 1 or known.ndim != 1:
            raise ValueError("y must be one class for each example, all of them names or all of them numbers")
        labels = np.zeros(count, known.dtype)
        labels[~unknown] = known
    if known.dtype.kind == "f" and not np.isfinite(known).all():
        raise ValueError("Input y contains infinity or a value too large.")
    if len(known):
        check_classification_targets(known)
    return labels, ~unknown


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, numbers.Real) and value != value)


def values_of(y: Any, count: int, name: str) -> np.ndarray:
    """Targets as numbers, NaN where they are not known."""
    _required(y, name)
    try:
        values = np.asarray(y, float)  # None is NaN
    except (TypeError, ValueError):
        raise ValueError("y must be numbers, NaN or None where they are not known") from None
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values, warn=True)
    if values.ndim not in (1, 2):
        raise ValueError(f"y must be (examples,) or (examples, targets), got shape {values.shape}")
    _check_length(values, count)
    if np.isinf(values).any():
        raise ValueError("Input y contains infinity or a value too large.")
    return values


def _check_length(y: np.ndarray, count: int) -> None:
    if len(y) != count:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: {[count, len(y)]}")


def check_some(known: np.ndarray, weight: np.ndarray) -> None:
    """A `ValueError` if there is no label to learn from."""
    if not (known & (weight > 0)).any():
        raise ValueError("y has no label at all: at least some examples, of a weight that is not 0, must have one")
