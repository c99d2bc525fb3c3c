"""Messages by elimination: what a factor says about one variable when all its others are eliminated.

The measurements of a linearised factor are weighted rows `q x = r + noise`, `noise ~ N(0, 1 / w)`. So is a cavity
`(eta, lam)` of one of its variables: a row a direction, from `lam = U' D U`. Rotations without square roots (Gentleman
1973) between the two lead to measurements that do not contain the variable any more. With a row `x_j + p x = s` of
weight `d`, and measurement after measurement,

    d' = d + w q_j²       q <- q - q_j p       p <- p + (w q_j / d') q       w <- w d / d'

Their squares are the message, `lam = sum w q' q`, `eta = sum w q' r`. It is that of `update.py`, with `S_-i^-1` as a
product of the rotations:

- Digits are kept where a factor is far more precise than a cavity (tight chains), and where a cavity is vague in one
  direction and precise in another: there `S_-i` would lose those of the precise direction beside the vague one.
- An improper cavity needs no case of its own: a direction of which nothing is known has `d = 0`. The first measurement
  that contains it is used up (`w <- 0`), the rest no longer contains it.
- All is arithmetic on single numbers, side by side for many factors: XLA makes a few kernels of it, and a loop over ten
  thousand factors takes as many microseconds.

Factors lie along the last axes of all arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from ..core.linalg import add_all, pivot_tolerance, sum_along, sum_of_others

# What is left of a difference that cancelled: this much, in units of the rounding, is nothing.
_NOISE = 16.0
# Sums of so many rows are written out.
_FEW = 3


class Side(NamedTuple):
    """One variable of a factor: the Jacobian with respect to it, and its cavity."""

    jacobian: Float[Array, "m d *f"]
    eta: Float[Array, "d *f"]
    lam: Float[Array, "d d *f"]


def message_to(
    jacobian: Float[Array, "m d *f"],
    residual: Float[Array, "m *f"],
    weight: Float[Array, "m *f"],
    others: Sequence[Side],
) -> tuple[Float[Array, "d *f"], Float[Array, "d d *f"]]:
    """The message `(eta, lam)` to a variable.

    **Arguments:**

    - `jacobian`: with respect to this variable.
    - `residual`, `weight`: of each measurement, `y - h` at the linearisation point and the precision of the noise.
    - `others`: all other variables of the factor.
    """
    rows = jnp.concatenate([*(o.jacobian for o in others), jacobian, residual[:, None]], 1)
    for other in others:
        weight, rows = _eliminate(other, weight, rows)
    d = jacobian.shape[1]
    weighted = weight[:, None] * rows[:, :d]
    lam = add_all(list(weighted[:, :, None] * rows[:, None, :d]))
    return add_all(list(weighted * rows[:, d:])), lam


def _eliminate(
    side: Side, weight: Float[Array, "m *f"], rows: Float[Array, "m c *f"]
) -> tuple[Float[Array, "m *f"], Float[Array, "m k *f"]]:
    """The rows without their first columns, which are those of the variable of `side`."""
    noise = _NOISE * jnp.finfo(rows.dtype).eps
    for pivot, own in _known_rows(side):
        first, rest = rows[:, 0], rows[:, 1:]
        between = jnp.zeros((rest.shape[1] - own.shape[0], *own.shape[1:]), own.dtype)  # columns of other variables
        gain = weight * first
        totals = _partial_sums(pivot, gain * first)
        moments = _partial_sums(jnp.concatenate([own[:-1], between, own[-1:]]), gain[:, None] * rest)
        before, after = totals[:-1], totals[1:]
        p = jnp.where(before > 0, 1 / jnp.where(before > 0, before, 1), 0)[:, None] * moments[:-1]
        rows = rest - first[:, None] * p
        # Rounding of what cancels must not pass for a measurement of a direction that is unknown otherwise.
        rows = jnp.where(jnp.abs(rows) <= noise * jnp.abs(rest), 0, rows)
        weight = weight * jnp.where(after > 0, before / jnp.where(after > 0, after, 1), 1)
    return weight, rows


def _partial_sums(start: Array, terms: Array) -> Array:
    """`start`, and the same with one term more after the other along the first axis."""
    out = [start]
    for term in terms:
        out.append(out[-1] + term)
    return jnp.stack(out)


def _known_rows(side: Side) -> Iterator[tuple[Array, Array]]:
    """The cavity as rows, one for each direction: its weight `d`, and `d p` from the next direction on, the last number
    being the right-hand side. Both are 0 where nothing is known.
    """
    d = side.eta.shape[0]
    tolerance = pivot_tolerance(side.lam.dtype, d) if d > 1 else 0.0
    left = jnp.concatenate([side.lam, side.eta[:, None]], 1)
    for j in range(d):
        pivot = left[0, 0]
        known = pivot > tolerance * side.lam[j, j]
        row = jnp.where(known, left[0, 1:], 0)
        yield jnp.where(known, pivot, 0), row
        left = left[1:, 1:] - (left[1:, :1] / jnp.where(known, pivot, 1)) * row


def message_by_loop(
    jacobian: Float[Array, "m d *f"], residual: Float[Array, "m *f"], weight: Float[Array, "m *f"], others: Side
) -> tuple[Float[Array, "d *f"], Float[Array, "d d *f"]]:
    """As `message_to`, for many factors: a loop over the directions of all other variables, which are joined in one.

    What is known best of the cavity is eliminated first. Small pivots are then those of directions of which nothing is
    known, and no others.
    """
    d, k = jacobian.shape[1], others.eta.shape[0]
    rows = jnp.concatenate([others.jacobian, jacobian, residual[:, None]], 1)
    if k:
        weight, rows = _eliminate_all(others, weight, rows)
    rows = rows[:, k:]
    weighted = weight[:, None] * rows[:, :d]
    lam = add_all(list(weighted[:, :, None] * rows[:, None, :d]))
    return add_all(list(weighted * rows[:, d:])), lam


def _eliminate_all(side: Side, weight: Array, rows: Array) -> tuple[Array, Array]:
    """The weights and rows when the variable of `side` is eliminated; their first columns are 0 then."""
    k, eps = side.eta.shape[0], jnp.finfo(rows.dtype).eps
    own = _diagonal(side.lam)
    unit = jnp.where(own > 0, 1 / jnp.where(own > 0, own, 1), 0)
    between = jnp.zeros((rows.shape[1] - k - 1, *own.shape[1:]), own.dtype)

    def step(_, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        cavity, left, weight, rows = carry
        size = jnp.where(left, _diagonal(cavity[:, :k]) * unit, -jnp.inf)
        here = lax.broadcasted_iota(jnp.int32, size.shape, 0) == jnp.argmax(size, 0)
        known, left = jnp.max(size, 0) > pivot_tolerance(rows.dtype, k), left & ~here
        row = jnp.where(known, jnp.sum(jnp.where(here[:, None], cavity, 0), 0), 0)
        pivot = jnp.sum(jnp.where(here, row[:k], 0), 0)
        cavity = cavity - (row[:k] / jnp.where(known, pivot, 1))[:, None] * row
        row = jnp.concatenate([jnp.where(left, row[:k], 0), between, row[k:]])
        first = jnp.sum(jnp.where(here, rows[:, :k], 0), 1)
        rest = jnp.concatenate([jnp.where(here, 0, rows[:, :k]), rows[:, k:]], 1)
        # Beside a measurement that contains far more of this direction, what others do is rounding.
        strength = weight * first * first
        first = jnp.where(strength > eps * eps * jnp.max(strength, 0), first, 0)
        gain = weight * first
        before = pivot + _sums_before(gain * first)
        after = before + gain * first
        moments = row + _sums_before(gain[:, None] * rest)
        rows = rest - first[:, None] * (
            jnp.where(before > 0, 1 / jnp.where(before > 0, before, 1), 0)[:, None] * moments
        )
        # Rounding of what cancels must not pass for a measurement of a direction that is unknown otherwise.
        rows = jnp.where(jnp.abs(rows) <= _NOISE * eps * jnp.abs(rest), 0, rows)
        return cavity, left, weight * jnp.where(after > 0, before / jnp.where(after > 0, after, 1), 1), rows

    start = jnp.concatenate([side.lam, side.eta[:, None]], 1), jnp.ones(side.eta.shape, bool), weight, rows
    return lax.fori_loop(0, k, step, start)[2:]


def _diagonal(a: Float[Array, "k k *f"]) -> Float[Array, "k *f"]:
    return jnp.stack([a[i, i] for i in range(a.shape[0])])


def _sums_before(x: Array) -> Array:
    """Of each row along the first axis the sum of those before it."""
    m = x.shape[0]
    if m > _FEW:  # one product, where XLA would compute each sum from its beginning
        below = jnp.tril(jnp.ones((m, m), x.dtype), -1)
        return jnp.matmul(below, x.reshape(m, -1), precision=lax.Precision.HIGHEST).reshape(x.shape)
    return jnp.stack([jnp.zeros_like(x[0]), *(add_all(list(x[:i])) for i in range(1, m))])


def scalar_messages_to_all(
    jacobian: Float[Array, "n *f"], residual: Float[Array, " *f"], weight: Float[Array, " *f"],
    eta: Float[Array, "n *f"], lam: Float[Array, "n *f"],
) -> tuple[Float[Array, "n *f"], Float[Array, "n *f"]]:  # fmt: skip
    """The messages of factors with one measurement to all of their variables, which are scalars."""
    move, wide, unknown = _scalar_terms(jacobian, eta, lam)
    return _scalar_messages(jacobian, residual, weight, *(sum_of_others(x, 0) for x in (move, wide, unknown)))


def scalar_message_to_first(
    jacobian: Float[Array, "n *f"], residual: Float[Array, " *f"], weight: Float[Array, " *f"],
    eta: Float[Array, "k *f"], lam: Float[Array, "k *f"],
) -> tuple[Float[Array, " *f"], Float[Array, " *f"]]:  # fmt: skip
    """Only the message to the first variable, from the cavities of all others."""
    terms = _scalar_terms(jacobian[1:], eta, lam)
    return _scalar_messages(jacobian[0], residual, weight, *(sum_along(x, 0)[0] for x in terms))


def _scalar_terms(jacobian: Array, eta: Array, lam: Array) -> tuple[Array, Array, Array]:
    """What each variable adds to the measurement, to its variance, and whether nothing is known of it."""
    known = lam > 0
    part = jnp.where(known, jacobian / jnp.where(known, lam, 1), 0)
    return part * eta, part * jacobian, (~known & (jacobian != 0)).astype(lam.dtype)


def _scalar_messages(
    jacobian: Array, residual: Array, weight: Array, move: Array, wide: Array, unknown: Array
) -> tuple[Array, Array]:
    gain = jnp.where(unknown > 0.5, 0, jacobian * (weight / (1 + weight * wide)))
    return gain * (residual - move), gain * jacobian
