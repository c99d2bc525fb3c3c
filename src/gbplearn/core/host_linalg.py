"""Inverses of precision matrices by NumPy, in double precision: for beliefs that are read outside of compiled code.

JAX would compile every operation for each new shape, which takes longer than all of them together. What the functions
return is what those of `linalg` of the same names do, up to rounding.
"""

from __future__ import annotations

import numpy as np

from .linalg import pivot_tolerance


def _scaled(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`D a D` with ones on the diagonal, and the scale `D` (1 where the diagonal is 0)."""
    diagonal = np.diagonal(a, axis1=-2, axis2=-1)
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1)), 1)
    return a * scale[..., :, None] * scale[..., None, :], scale


def _definite(unit: np.ndarray, tolerance: float) -> np.ndarray:
    """Which matrices of unit diagonal have no pivot below the tolerance."""
    rest, good = unit.copy(), np.ones(unit.shape[:-2], bool)
    for j in range(unit.shape[-1]):
        pivot = rest[..., j, j]
        good &= pivot > tolerance
        column = rest[..., j:, j] / np.sqrt(np.where(good, pivot, 1))[..., None]
        rest[..., j:, j:] -= column[..., :, None] * column[..., None, :]
    return good


def definite(a: np.ndarray) -> np.ndarray:
    """Which matrices are safely positive definite: one truth value each."""
    if a.shape[-1] == 1:
        return a[..., 0, 0] > 0
    return _definite(_scaled(a.astype(float))[0], pivot_tolerance(a.dtype, a.shape[-1]))


def pseudo_inverse(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pseudo-inverse of semidefinite matrices, and a `k` with `k k'` spanning the null space: 0 where definite."""
    unit, scale = _scaled(a.astype(float))
    tolerance = pivot_tolerance(a.dtype, a.shape[-1])
    good = _definite(unit, tolerance)
    inverse, null = np.zeros_like(unit), np.zeros_like(unit)
    inverse[good] = np.linalg.inv(unit[good])
    if not good.all():
        values, vectors = np.linalg.eigh(unit[~good])
        present = values > tolerance
        weights = np.where(present, 1 / np.where(present, values, 1), 0)
        inverse[~good] = (vectors * weights[..., None, :]) @ np.swapaxes(vectors, -1, -2)
        null[~good] = scale[~good][..., :, None] * vectors * ~present[..., None, :]
    return inverse * scale[..., :, None] * scale[..., None, :], null
