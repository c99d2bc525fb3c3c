"""Beliefs of wide layers: independent numbers along the principal axes of a layer.

The factors of a batch see the weights `W (units, p)` of a layer through products of two things: the inputs
`x_b` of an example, and what its outputs say to the units, `g_bcu`. Directions in which inputs vary much, or outputs
say much, soon are known well; a variance for each weight cannot say so. This family keeps a variance for each pair of
principal axes,

    W = mean + U_g V A' ,    A = R U_a ,    V_ij ~ N(0, v_ij)

with the root `R` of the prior covariance of a unit, `R R'`, and rotations `U_a (p, p)` and `U_g (units, units)`: the
eigenvectors of `sum R'x x'R` and `sum g g'` over the batches so far. In units of the prior all variances begin at 1,
along whatever axes, so that axes that are found anew change nothing of what is not yet known. (It is the
Kronecker-factored covariance with its eigenvalues corrected.) The numbers are as many as the weights, and a joint
update is that of independent numbers, of rows `A'x` and rotated slopes. The axes are found anew after 1, 2, 4, ...
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


class RotatedGaussian(UnitVectors):
    """The weights of all units of a layer, `(units, p)`: independent along the axes `U_g`, `A`.

    - `mean`: `(units, p)`.
    - `spread`: `v`, variances along the axes.
    - `unit_axes`, `axes`: `U_g`, `A`, in their columns.
    - `prior_root`: `R`, of the prior covariance of every unit.
    - `slopes`, `rows`: sums of `g g'` and `x x'` over the batches, of which the axes are made.
    - `batches`: that were absorbed.
    """

    mean: Float[Values, "u p"]
    spread: Float[Values, "u p"]
    unit_axes: Float[Values, "u u"]
    axes: Float[Values, "p p"]
    prior_root: Float[Values, "p p"]
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
        wide = np.broadcast_to(np.asarray(std, float), (units, p))
        if not (wide > 0).all():
            raise ValueError("RotatedGaussian.from_moments: every std must be > 0")
        if not (wide == wide[:1]).all():
            raise ValueError("RotatedGaussian.from_moments: units must have the same std")
        root = wide[0][:, None] * (np.eye(p) if correlation is None else correlation.root())
        slopes, rows = (jax.device_put(np.zeros((n, n), dtype)) for n in (units, p))
        return cls(
            mean=mean,
            spread=jax.device_put(np.ones((units, p), dtype)),
            unit_axes=jax.device_put(np.eye(units, dtype=dtype)),
            axes=jax.device_put(root.astype(dtype)),
            prior_root=jax.device_put(root.astype(dtype)),
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
        fields = ("mean", "spread", "unit_axes", "axes", "prior_root", "slopes", "rows", "batches")
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
        """`U_g' N A'^-1`: numbers along the axes."""
        across = np.linalg.solve(np.asarray(self.axes, float), np.asarray(numbers, float).T)
        return np.asarray(self.unit_axes, float).T @ across.T

    def along_axes_of(self, other: RotatedGaussian, values: np.ndarray) -> np.ndarray:
        """The diagonal, along the axes of another one, of a covariance that is diagonal along those of this one."""
        units = np.asarray(other.unit_axes, float).T @ np.asarray(self.unit_axes, float)
        inputs = np.linalg.solve(np.asarray(other.axes, float), np.asarray(self.axes, float))
        return units**2 @ values @ (inputs**2).T

    def _precisions_along_axes_of(self, other: RotatedGaussian) -> np.ndarray:
        """The diagonal, along the axes of another one, of the inverse of the covariance."""
        units = np.asarray(self.unit_axes, float).T @ np.asarray(other.unit_axes, float)
        inputs = np.linalg.solve(np.asarray(self.axes, float), np.asarray(other.axes, float))
        return (units**2).T @ (1 / np.asarray(self.spread, float)) @ inputs**2

    def kl(self, other: Any) -> np.ndarray:
        """`KL(self || other)`, exact, whatever the axes; as one number `(1,)`."""
        mine, theirs = np.asarray(self.spread, float), np.asarray(other.spread, float)
        far = other._turned(np.asarray(self.mean, float) - np.asarray(other.mean, float))
        trace = (self.along_axes_of(other, mine) / theirs).sum()
        sizes = [np.linalg.slogdet(np.asarray(of.axes, float))[1] for of in (other, self)]
        volume = np.log(theirs).sum() - np.log(mine).sum() + 2 * len(mine) * (sizes[0] - sizes[1])
        return 0.5 * np.array([trace - mine.size + volume + (far**2 / theirs).sum()])

    def drifted(self, original: Any, alpha: float, process_noise: float, forgetting: float) -> RotatedGaussian:
        """The prior of the next batch, see `gbp.Filtering`, along the axes of now.

        Process noise has the correlations of the prior: its standard deviation is that of each number.
        """
        spread = np.asarray(self.spread, float) / forgetting
        if process_noise:
            root, axes = (np.asarray(a, float) for a in (self.prior_root, self.axes))
            unit = root / np.sqrt((root**2).sum(1, keepdims=True))  # of the prior with every variance 1
            spread = spread + process_noise**2 * (np.linalg.solve(axes, unit) ** 2).sum(1)
        if alpha == 0:
            return self._with_spread(spread)
        if alpha == 1:
            return original
        first = original.along_axes_of(self, np.asarray(original.spread, float))
        mean = (1 - alpha) * np.asarray(self.mean, float) + alpha * np.asarray(original.mean, float)
        return self._with_spread((1 - alpha) * spread + alpha * first, mean)

    @classmethod
    def merged(cls, several: Sequence[Any], before: Any) -> RotatedGaussian:
        """As `UnitVectors`, with the precisions along the axes of the first.

        Where axes differ precisions along them are approximations; what is known of a number is then at least what the
        vaguest knows of it.
        """
        axes, extra = several[0], len(several) - 1
        shares = [1.0] * len(several) + [-float(extra)]
        every = [*several, before]
        precisions = [one._precisions_along_axes_of(axes) for one in every]
        lam = np.maximum(sum(share * p for share, p in zip(shares, precisions)), np.minimum.reduce(precisions))
        if not np.isfinite(lam).all():
            raise ValueError("a posterior is vaguer than the prior")
        # From the mean of the first on, so that what is not known better stays there.
        eta = np.zeros(axes.shape)
        for share, one, precision in zip(shares, every, precisions):
            eta += share * precision * axes._turned(np.asarray(one.mean, float) - np.asarray(axes.mean, float))
        step = np.asarray(axes.unit_axes, float) @ (eta / lam) @ np.asarray(axes.axes, float).T
        sums = {
            name: jnp.asarray(sum(share * np.asarray(getattr(one, name), float) for share, one in zip(shares, every)))
            for name in ("slopes", "rows", "batches")
        }
        out = axes._with_spread(1 / lam, np.asarray(axes.mean, float) + step)
        return dataclasses.replace(out, **{name: total.astype(axes.dtype) for name, total in sums.items()})

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
        left = np.clip(1 - spread * self._known(kept, gain), np.finfo(spread.dtype).eps, 1).astype(float)
        moved = float((spread * self._pull(kept, alpha).astype(float) ** 2).sum())
        gained = 0.5 * (float((left - 1 - np.log(left)).sum()) + moved)
        batch = np.diagonal(gain).reshape(alpha.shape)
        there = np.any(batch != 0, axis=1)  # of all others, nothing was observed
        of_slopes, of_rows = _second_moments(of, there)
        new = dataclasses.replace(
            self,
            mean=mean,
            spread=jnp.asarray(spread * left, self.dtype),
            slopes=jnp.asarray(np.asarray(self.slopes) + of_slopes, self.dtype),
            rows=jnp.asarray(np.asarray(self.rows) + of_rows, self.dtype),
            batches=self.batches + float(there.any()),
        )
        count = int(new.batches)
        turn = there.any() and count & (count - 1) == 0
        return dataclasses.replace(new.with_new_axes() if turn else new, gained=gained)

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
        root = np.asarray(self.prior_root, float)
        inputs = root.T @ np.asarray(self.rows, float) @ root
        unit_axes, turns = (np.linalg.eigh(0.5 * (a + a.T))[1] for a in (np.asarray(self.slopes, float), inputs))
        axes = (jnp.asarray(a, self.dtype) for a in (unit_axes, root @ turns))
        new = dataclasses.replace(self, **dict(zip(("unit_axes", "axes"), axes)))
        return new._with_spread(self.along_axes_of(new, np.asarray(self.spread, float)))


def _second_moments(of: Sensitivity, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`sum g g'` and `sum x x'` of some examples of a batch; where each output has rows of its own, of those."""
    if isinstance(of, FullSensitivity):
        each = np.asarray(of.each)[there]
        wide = each.reshape(-1, *each.shape[2:])
        return np.tensordot(wide, wide, ((0, 2), (0, 2))), np.tensordot(wide, wide, ((0, 1), (0, 1)))
    rows, slopes = np.asarray(of.rows)[there], np.asarray(of.slopes)[there]
    flat = slopes.reshape(-1, slopes.shape[-1])
    return flat.T @ flat, rows.T @ rows
