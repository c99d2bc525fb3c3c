"""Beliefs of wide layers: independent numbers along the principal axes of a layer.

The factors of a batch see the weights `W (units, p)` of a layer through products of two things: the inputs
`x_b` of an example, and what its outputs say to the units, `g_bcu`. Directions in which inputs vary much, or outputs
say much, soon are known well; a variance for each weight cannot say so. This family keeps a variance for each pair of
principal axes,

    W = mean + U_g V U_a' ,    V_ij ~ N(0, v_ij)

with `U_a (p, p)` and `U_g (units, units)`, the eigenvectors of `sum x x'` and `sum g g'` over the batches so far. (It
is the Kronecker-factored covariance with its eigenvalues corrected.) The numbers are as many as the weights, and a
joint update is that of independent numbers, of rotated rows and slopes. The axes are found anew after 1, 2, 4, ...
batches; variances are then those along the new axes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from .family import Values
from .image_correlation import ImageCorrelation
from .sensitivity import FullSensitivity, RowSensitivity, Sensitivity
from .unit_vectors import UnitVectors

# Of a variance, at least this part is left by one batch: float32 has no digits beyond.
_LEAST = float(np.finfo(np.float32).eps)


class RotatedGaussian(UnitVectors):
    """The weights of all units of a layer, `(units, p)`: independent along the axes `U_g`, `U_a`.

    - `mean`: `(units, p)`.
    - `spread`: `v`, variances along the axes.
    - `unit_axes`, `axes`: `U_g`, `U_a`, in their columns.
    - `slopes`, `rows`: sums of `g g'` and `x x'` over the batches, of which the axes are made.
    - `batches`: that were absorbed.
    """

    mean: Float[Values, "u p"]
    spread: Float[Values, "u p"]
    unit_axes: Float[Values, "u u"]
    axes: Float[Values, "p p"]
    slopes: Float[Values, "u u"]
    rows: Float[Values, "p p"]
    batches: Any
    gained: float | None = eqx.field(static=True, default=None)  # pyright: ignore[reportIncompatibleMethodOverride]

    @classmethod
    def from_moments(cls, mean: Any, std: Any, correlation: ImageCorrelation | None = None) -> RotatedGaussian:
        """Numbers with these standard deviations.

        **Arguments:** `correlation`: of the numbers of a unit; None: they are independent.
        """
        mean = jnp.asarray(mean, jnp.result_type(float))
        (units, p), dtype = mean.shape, mean.dtype
        wide = np.broadcast_to(np.asarray(std, dtype), (units, p))
        if not (wide > 0).all():
            raise ValueError("RotatedGaussian.from_moments: every std must be > 0")
        unit_axes, axes = (jax.device_put(np.eye(n, dtype=dtype)) for n in (units, p))
        slopes, rows = (jax.device_put(np.zeros((n, n), dtype)) for n in (units, p))
        if correlation is not None:
            # What is independent along the axes of the correlations if the numbers that these join vary alike.
            turned = correlation.axes()
            wide = np.sqrt(np.asarray(wide, float) ** 2 @ turned**2 * correlation.variances).astype(dtype)
            axes = jax.device_put(turned.astype(dtype))
        return cls(
            mean=mean,
            spread=jax.device_put(wide**2),
            unit_axes=unit_axes,
            axes=axes,
            slopes=slopes,
            rows=rows,
            batches=jnp.zeros((), dtype),
        )

    @property
    def variance(self) -> Float[Values, "u p"]:
        """Of each number."""
        return jnp.asarray(self.unit_axes) ** 2 @ self.spread @ (jnp.asarray(self.axes) ** 2).T

    def astype(self, dtype: Any) -> RotatedGaussian:
        """In another floating-point type, as a belief to begin with: without `gained`, which would be compiled in."""
        if dtype == self.dtype and self.gained is None:
            return self
        fields = ("mean", "spread", "unit_axes", "axes", "slopes", "rows", "batches")
        return dataclasses.replace(self, gained=None, **{f: jnp.asarray(getattr(self, f), dtype) for f in fields})

    def with_mean(self, mean: Array) -> RotatedGaussian:
        """The same covariance about another mean."""
        return dataclasses.replace(self, mean=jnp.asarray(mean, self.dtype), gained=None)

    def _with_spread(self, spread: Any, mean: Any = None) -> RotatedGaussian:
        new = dataclasses.replace(self, spread=jnp.asarray(spread, self.dtype), gained=None)
        return new if mean is None else new.with_mean(jnp.asarray(mean, self.dtype))

    def all_proper(self) -> bool:
        """Whether every number has a finite mean, and a finite variance above 0. Outside of compiled code."""
        spread = np.asarray(self.spread)
        return bool(np.isfinite(np.asarray(self.mean)).all() and np.isfinite(spread).all() and (spread > 0).all())

    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Independent draws `shape + (units, p)`."""
        noise = jax.random.normal(key, (*shape, *self.shape), self.dtype) * jnp.sqrt(jnp.asarray(self.spread))
        return self.mean + self.unit_axes @ noise @ jnp.asarray(self.axes).T

    def scaled(self, factor: float) -> RotatedGaussian:
        """The same means with standard deviations that are larger by a factor."""
        return self._with_spread(jnp.asarray(self.spread) * jnp.asarray(factor**2, self.dtype))

    # Outside of compiled code, in double precision.

    def _turned(self, numbers: Any) -> np.ndarray:
        """`U_g' A U_a`: along the axes."""
        return np.asarray(self.unit_axes, float).T @ np.asarray(numbers, float) @ np.asarray(self.axes, float)

    def along_axes_of(self, other: RotatedGaussian, values: np.ndarray) -> np.ndarray:
        """The diagonal, along the axes of another one, of a matrix that is diagonal along those of this one."""
        units = np.asarray(other.unit_axes, float).T @ np.asarray(self.unit_axes, float)
        inputs = np.asarray(other.axes, float).T @ np.asarray(self.axes, float)
        return units**2 @ values @ (inputs**2).T

    def kl(self, other: Any) -> np.ndarray:
        """`KL(self || other)`, exact, whatever the axes; as one number `(1,)`."""
        mine, theirs = np.asarray(self.spread, float), np.asarray(other.spread, float)
        far = other._turned(np.asarray(self.mean, float) - np.asarray(other.mean, float))
        trace = (self.along_axes_of(other, mine) / theirs).sum()
        volume = np.log(theirs).sum() - np.log(mine).sum()
        return 0.5 * np.array([trace - mine.size + volume + (far**2 / theirs).sum()])

    def drifted(self, original: Any, alpha: float, process_noise: float, forgetting: float) -> RotatedGaussian:
        """The prior of the next batch, see `gbp.Filtering`, along the axes of now."""
        spread = np.asarray(self.spread, float) / forgetting + process_noise**2
        if alpha == 0:
            return self._with_spread(spread)
        first = original.along_axes_of(self, np.asarray(original.spread, float))
        mean = (1 - alpha) * np.asarray(self.mean, float) + alpha * np.asarray(original.mean, float)
        return self._with_spread((1 - alpha) * spread + alpha * first, mean)

    @classmethod
    def merged(cls, several: Sequence[Any], before: Any) -> RotatedGaussian:
        """As `UnitVectors`, with the precisions along the axes of the first."""
        axes, extra = several[0], len(several) - 1
        shares = [1.0] * len(several) + [-float(extra)]
        lam, eta = np.zeros(axes.shape), np.zeros(axes.shape)
        for share, one in zip(shares, [*several, before]):
            precision = one.along_axes_of(axes, 1 / np.asarray(one.spread, float))
            lam += share * precision
            eta += share * precision * axes._turned(one.mean)
        if not (np.isfinite(lam) & (lam > 0)).all():
            raise ValueError("a posterior is vaguer than the prior")
        mean = np.asarray(axes.unit_axes, float) @ (eta / lam) @ np.asarray(axes.axes, float).T
        return axes._with_spread(1 / lam, mean)

    # A joint update of all outputs of a batch: `engine/chain.py`. Sums over pairs of examples, each pair once.

    def _along(self, of: Sensitivity, kind: Any) -> tuple[np.ndarray, np.ndarray] | np.ndarray:
        """Rows and slopes along the axes; or `j (n, units, p)`, where rows are of each output."""
        axes, unit_axes = np.asarray(self.axes, kind), np.asarray(self.unit_axes, kind)
        if isinstance(of, RowSensitivity):
            return np.asarray(of.rows, kind) @ axes, np.asarray(of.slopes, kind) @ unit_axes
        return unit_axes.T @ (np.asarray(of.each, kind).reshape(-1, *self.shape) @ axes)

    def output_covariance(self, of: Sensitivity, double: bool = False) -> tuple[np.ndarray, Any]:
        """`J S J'` of the outputs, and what is needed again. Outside of compiled code.

        **Arguments:** `double`: in double precision.
        """
        kind = float if double else self.dtype
        found, spread = self._along(of, kind), np.asarray(self.spread, kind)
        if not isinstance(found, tuple):
            wide = (found * np.sqrt(spread)).reshape(len(found), -1)
            return wide @ wide.T, found
        x, g = found
        (b, c, _), (one, other) = g.shape, np.triu_indices(len(x))
        by_pair = (x[one] * x[other]) @ spread.T  # (pairs, u)
        blocks = np.matmul(g[one] * by_pair[:, None], np.swapaxes(g[other], 1, 2))  # (pairs, c, c)
        out = np.empty((b, b, c, c), blocks.dtype)
        out[other, one] = np.swapaxes(blocks, 1, 2)
        out[one, other] = blocks
        return out.transpose(0, 2, 1, 3).reshape(b * c, b * c), found

    def output_variance(self, of: Sensitivity) -> Float[Array, "b c"]:
        """The diagonal of that, in compiled code."""
        axes, unit_axes, spread = (jnp.asarray(a) for a in (self.axes, self.unit_axes, self.spread))
        if isinstance(of, RowSensitivity):
            return jnp.einsum("bcu,bu->bc", (of.slopes @ unit_axes) ** 2, (of.rows @ axes) ** 2 @ spread.T)
        return jnp.einsum("bcup,up->bc", (unit_axes.T @ (of.each @ axes)) ** 2, spread)

    def moved(self, of: Sensitivity, kept: Any, alpha: Float[np.ndarray, "b c"]) -> np.ndarray:
        """The mean that `alpha` leads to: `m + S J' alpha`."""
        pull = self._pull(kept, alpha)
        step = np.asarray(self.unit_axes) @ (np.asarray(self.spread) * pull) @ np.asarray(self.axes).T
        return np.asarray(np.asarray(self.mean) + step, self.dtype)

    @staticmethod
    def _pull(kept: Any, alpha: Float[np.ndarray, "b c"]) -> Float[np.ndarray, "u p"]:
        """`J' alpha` along the axes."""
        if not isinstance(kept, tuple):
            return np.einsum("nup,n->up", kept, alpha.reshape(-1).astype(kept.dtype))
        x, g = kept
        return np.einsum("bcu,bc->ub", g, alpha.astype(g.dtype)) @ x

    def absorb(
        self,
        of: Sensitivity,
        kept: Any,
        gain: np.ndarray,
        alpha: np.ndarray,
        mean: Array,
        without: Callable[[np.ndarray], np.ndarray] | None = None,
        contrasts: bool = False,
    ) -> RotatedGaussian:
        """The belief after a joint update: of `S - S J' M J S` it keeps the diagonal along the axes.

        **Arguments:** `gain`: `M (n, n)`; `alpha (B, C)`: what moves the mean, to `mean` (`moved`).
        """
        spread = np.asarray(self.spread)
        left = np.clip(1 - spread * self._known(kept, gain.astype(spread.dtype)), _LEAST, 1).astype(float)
        moved = float((spread * self._pull(kept, alpha).astype(float) ** 2).sum())
        gained = 0.5 * (float((left - 1 - np.log(left)).sum()) + moved)
        of_slopes, of_rows = _second_moments(of)
        new = dataclasses.replace(
            self,
            mean=mean,
            spread=jnp.asarray(spread * left, self.dtype),
            slopes=jnp.asarray(np.asarray(self.slopes) + of_slopes, self.dtype),
            rows=jnp.asarray(np.asarray(self.rows) + of_rows, self.dtype),
            batches=self.batches + 1,
        )
        count = int(new.batches)
        return dataclasses.replace(new.with_new_axes() if count & (count - 1) == 0 else new, gained=gained)

    @staticmethod
    def _known(kept: Any, gain: np.ndarray) -> Float[np.ndarray, "u p"]:
        """The diagonal of `J' M J` along the axes."""
        if not isinstance(kept, tuple):
            j = kept.reshape(len(kept), -1)
            return ((gain.astype(j.dtype) @ j) * j).sum(0).reshape(kept.shape[1:])
        x, g = kept
        b, c, u = g.shape
        scaled = np.matmul(gain.astype(g.dtype).reshape(b * c, b, c).transpose(1, 0, 2), g).reshape(b, b, c, u)
        shares = np.einsum("bcu,ebcu->beu", g, scaled)
        one, other = np.triu_indices(b)
        twice = np.where(one == other, 1, 2).astype(x.dtype)[:, None]
        return (shares[one, other] * twice).T @ (x[one] * x[other])

    def with_new_axes(self) -> RotatedGaussian:
        """With the principal axes of all batches so far. Outside of compiled code."""
        parts = (np.asarray(a, float) for a in (self.slopes, self.rows))
        unit_axes, axes = (jnp.asarray(np.linalg.eigh(0.5 * (a + a.T))[1], self.dtype) for a in parts)
        new = dataclasses.replace(self, unit_axes=unit_axes, axes=axes)
        return new._with_spread(self.along_axes_of(new, np.asarray(self.spread, float)))


def _second_moments(of: Sensitivity) -> tuple[np.ndarray, np.ndarray]:
    """`sum g g'` and `sum x x'` of a batch; where each output has rows of its own, of those."""
    if isinstance(of, FullSensitivity):
        each = np.asarray(of.each)
        wide = each.reshape(-1, *each.shape[2:])
        return np.tensordot(wide, wide, ((0, 2), (0, 2))), np.tensordot(wide, wide, ((0, 1), (0, 1)))
    rows, slopes = np.asarray(of.rows), np.asarray(of.slopes)
    flat = slopes.reshape(-1, slopes.shape[-1])
    return flat.T @ flat, rows.T @ rows
