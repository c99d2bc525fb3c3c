"""Sums that leave one term out, and solves with positive (semi)definite matrices.

Everything here is written so that float32 keeps its digits: nothing is ever found by
adding all terms and subtracting one again.

Factorisations are written out instead of taken from LAPACK. XLA:CPU gives the matrices of a batch to the threads of its
own pool and lets one of them wait: two such calls side by side have waited for each other for ever (jaxlib 0.10). The
matrices here are many and small, for which arithmetic on all of them at once is quicker anyway.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float

# Rows of this many terms are summed by one matrix product; longer ones are cut into such rows.
_ROW = 16
# Rows of this many are written out.
_FEW = 4
# Factorisations of matrices up to this size are written out step by step; those of larger ones are loops.
_SMALL = 3


def add_all(terms: list[Array]) -> Array:
    """The sum of a non-empty list of arrays."""
    return reduce(add, terms)


def exact_sum(terms: list[Array]) -> Array:
    """The sum of a list, rounded about once: what each addition rounds off is added up beside it (Knuth, Kahan)."""
    total, lost = terms[0], None
    for term in terms[1:]:
        new = total + term
        shadow = new - total
        off = (total - (new - shadow)) + (term - shadow)
        total, lost = new, off if lost is None else lost + off
    return total if lost is None else total + lost


def others_in_list(terms: list[Array]) -> list[Array | None]:
    """For each array of a list the sum of the *other* arrays; None if there is no other.

    Prefix and suffix sums: `2 n` additions, no subtraction.
    """
    n = len(terms)
    before: list[Array | None] = [None] * n
    after: list[Array | None] = [None] * n
    for i in range(1, n):
        previous, last = before[i - 1], terms[i - 1]
        before[i] = last if previous is None else previous + last
    for i in range(n - 2, -1, -1):
        following, first = after[i + 1], terms[i + 1]
        after[i] = first if following is None else following + first
    return [b if a is None else a if b is None else a + b for a, b in zip(after, before)]


def sum_of_others(x: Array, axis: int) -> Array:
    """`out[i] = sum_{j != i} x[j]` along `axis`, without cancellation.

    Rows of up to 16 terms are multiplied by a matrix of ones with a zero diagonal. Longer rows are cut into rows of 16:
    the others of a term are the others in its row and the sums of the other rows, so the depth of the computation
    grows with the logarithm of the length, its cost with the length.
    """
    axis = axis % x.ndim
    n = x.shape[axis]
    if n == 1:
        return jnp.zeros_like(x)
    if n == 2:
        return jnp.flip(x, axis)
    if n <= _FEW:
        slabs = [lax.slice_in_dim(x, i, i + 1, axis=axis) for i in range(n)]
        return jnp.concatenate([s for s in others_in_list(slabs) if s is not None], axis)
    if n <= _ROW:
        return _row_times_others(x.reshape(math.prod(x.shape[:axis]), n, -1)).reshape(x.shape)
    rows = -(-n // _ROW)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, rows * _ROW - n)
    cut = jnp.pad(x, padding) if rows * _ROW > n else x
    cut = cut.reshape(*x.shape[:axis], rows, _ROW, *x.shape[axis + 1 :])
    inside = sum_of_others(cut, axis + 1)
    first = [lax.index_in_dim(part, 0, axis + 1, keepdims=False) for part in (inside, cut)]
    out = inside + jnp.expand_dims(sum_of_others(add_all(first), axis), axis + 1)
    return lax.slice_in_dim(out.reshape(*x.shape[:axis], rows * _ROW, *x.shape[axis + 1 :]), 0, n, axis=axis)


def sum_along(x: Array, axis: int) -> Array:
    """The sum along an axis, kept with length 1.

    XLA:CPU sums large arrays slowly, or through copies of them: few slabs are added up one by one, long rows are
    multiplied by ones.
    """
    axis = axis % x.ndim
    n = x.shape[axis]
    a, b = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if n <= _FEW and b == 1:
        return add_all([lax.slice_in_dim(x, i, i + 1, axis=axis) for i in range(n)])
    if n <= _ROW:
        return (add_all(list(x.reshape(n, b))) if a == 1 else jnp.sum(x, axis)).reshape(shape)
    exact = lax.Precision.HIGHEST
    if b == 1:
        out = jnp.matmul(x.reshape(a, n), jnp.ones((n, 1), x.dtype), precision=exact)
    elif a == 1:
        out = jnp.matmul(jnp.ones((1, n), x.dtype), x.reshape(n, b), precision=exact)
    else:
        out = jnp.matmul(jnp.ones((a, 1, n), x.dtype), x.reshape(a, n, b), precision=exact)
    return out.reshape(shape)


def _row_times_others(x: Float[Array, "a n b"]) -> Float[Array, "a n b"]:
    """The product with ones off the diagonal, in the form that needs no transposes."""
    a, n, b = x.shape
    ones = 1 - jnp.eye(n, dtype=x.dtype)
    exact = lax.Precision.HIGHEST  # products with 0 and 1 are, if no device rounds its inputs
    if b == 1:
        return jnp.matmul(x[..., 0], ones, precision=exact)[..., None]
    if a == 1:
        return jnp.matmul(ones, x[0], precision=exact)[None]
    return jnp.matmul(jnp.broadcast_to(ones, (a, n, n)), x, precision=exact)


def safe_sqrt(x: Array) -> Array:
    """The square root of numbers >= 0, with derivative 0 at 0: there it would be infinite, and infinity times 0 NaN."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def transpose(a: Array) -> Array:
    """Matrix transpose of the last two axes."""
    return jnp.swapaxes(a, -1, -2)


def symmetric(a: Array) -> Array:
    """The symmetric part: rounding must not let a precision matrix drift away from symmetry."""
    return 0.5 * (a + transpose(a))


def diagonal(a: Float[Array, "*b n n"]) -> Float[Array, "*b n"]:
    """The diagonal, as sums: XLA would gather it, apart from all that comes before and after."""
    return jnp.sum(jnp.where(np.eye(a.shape[-1], dtype=bool), a, 0), -1)


def cholesky(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """The lower `l` with `l l' = a`; NaN from the first pivot on that is not positive."""
    n = a.shape[-1]
    if n > _SMALL:

        def step(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            rest, out = carry
            column = lax.dynamic_index_in_dim(rest, j, -1, keepdims=False)
            pivot = lax.dynamic_index_in_dim(column, j, -1)
            column = jnp.where(jnp.arange(n) >= j, column / jnp.sqrt(pivot), 0)
            return rest - column[..., :, None] * column[..., None, :], jnp.where(
                jnp.arange(n) == j, column[..., None], out
            )

        return lax.fori_loop(0, n, step, (a, jnp.zeros_like(a)))[1]
    columns = []
    for j in range(n):
        below = a[..., j:, j]
        for k, column in enumerate(columns):
            below = below - column[..., j - k :] * column[..., j - k, None]
        columns.append(below / jnp.sqrt(below[..., :1]))
    pads = [[(0, 0)] * (a.ndim - 2) + [(j, 0)] for j in range(n)]
    return jnp.stack([jnp.pad(c, pad) for c, pad in zip(columns, pads)], -1)


def triangular_solve(factor: Float[Array, "... n n"], b: Float[Array, "... n k"], transposed: bool = False) -> Array:
    """`factor^-1 b` for a lower triangular factor, or `factor'^-1 b`; broadcast against each other."""
    n = factor.shape[-1]
    if n > _SMALL:

        def step(i: Array, x: Array) -> Array:
            i = n - 1 - i if transposed else i
            row = lax.dynamic_index_in_dim(factor, i, -1 if transposed else -2, keepdims=False)
            pivot = lax.dynamic_index_in_dim(row, i, -1)
            # Of `x` what comes later is still 0, as is what the factor has there.
            found = lax.dynamic_index_in_dim(b, i, -2, keepdims=False) - jnp.einsum("...n,...nk->...k", row, x)
            return jnp.where((jnp.arange(n) == i)[:, None], (found / pivot)[..., None, :], x)

        shape = jnp.broadcast_shapes(factor.shape[:-2], b.shape[:-2])
        return lax.fori_loop(0, n, step, jnp.zeros((*shape, *b.shape[-2:]), b.dtype))
    rows: dict[int, Array] = {}
    for i in reversed(range(n)) if transposed else range(n):
        row = b[..., i, :]
        for j, x in rows.items():
            row = row - (factor[..., j, i] if transposed else factor[..., i, j])[..., None] * x
        rows[i] = row / factor[..., i, i, None]
    return jnp.stack([rows[i] for i in range(n)], -2)


def _next_partners(n: int) -> np.ndarray:
    """Which axis stands where in the next round: the first stays, all others move on by one place around a table."""
    one, other = list(range(0, n, 2)), list(range(1, n, 2))
    if n > 2:
        one, other = [one[0], other[0], *one[1:-1]], [*other[1:], one[-1]]
    return np.asarray([axis for pair in zip(one, other) for axis in pair])


def _turn_columns(m: Array, cos: Array, sin: Array) -> Array:
    """Columns `2 i` and `2 i + 1` turned by one angle."""
    one, other, cos, sin = m[..., 0::2], m[..., 1::2], cos[..., None, :], sin[..., None, :]
    return jnp.stack([cos * one - sin * other, sin * one + cos * other], -1).reshape(m.shape)


def eigenvectors(a: Float[Array, "*b n n"]) -> tuple[Float[Array, "*b n"], Float[Array, "*b n n"]]:
    """Eigenvalues of symmetric matrices, in no order, and eigenvectors as columns: Jacobi's rotations.

    A round turns `n / 2` planes at once, which meet no other; between two rounds the axes change partners (Brent and
    Luk 1985), so that after `n - 1` rounds each has met every other, and all stand in their old order again.
    """
    n = a.shape[-1]
    if n == 1:
        return a[..., 0], jnp.ones_like(a)
    if n % 2:  # an axis more, that nothing turns
        a = jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, 1), (0, 1)])
    even = a.shape[-1]
    order = _next_partners(even)
    # Convergence is quadratic. The number of rounds is fixed, so that JAX can differentiate through them.
    sweeps = 1 if even == 2 else 6 + math.ceil(math.log2(even))

    def turn(_, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        m, v = carry
        p, q, off = (diagonal(m[..., i::2, j::2]) for i, j in ((0, 0), (1, 1), (0, 1)))
        # tan of the smaller angle that makes `off` zero.
        there = off != 0
        half = (q - p) / jnp.where(there, 2 * off, 1)
        t = jnp.where(there, jnp.where(half < 0, -1, 1) / (jnp.abs(half) + jnp.hypot(half, 1.0)), 0)
        cos = 1 / jnp.sqrt(1 + t * t)
        m = _turn_columns(transpose(_turn_columns(m, cos, t * cos)), cos, t * cos)
        return m[..., order, :][..., :, order], _turn_columns(v, cos, t * cos)[..., :, order]

    start = a, jnp.broadcast_to(jnp.eye(even, dtype=a.dtype), a.shape)
    m, v = lax.fori_loop(0, sweeps * (even - 1), turn, start)
    return diagonal(m)[..., :n], v[..., :n, :n]


def pivot_tolerance(dtype: jnp.dtype, size: int) -> float:
    """Below this share of its diagonal, a pivot of a Cholesky factorisation is rounding noise."""
    return 8.0 * size * float(jnp.finfo(dtype).eps)


def scaled_cholesky(
    a: Float[Array, "*b n n"],
) -> tuple[Float[Array, "*b n n"], Float[Array, "*b n"], Bool[Array, "*b"]]:
    """Cholesky factor of `D a D` with unit diagonal, the scale `D`, and whether `a` is safely positive definite.

    Scaling first makes the factorisation blind to units (metres beside radians). Where `a` is not
    positive definite the factor is that of the identity, so that nothing downstream is NaN.
    """
    n = a.shape[-1]
    own = diagonal(a)
    scale = jnp.where(own > 0, lax.rsqrt(jnp.where(own > 0, own, 1)), 0)
    if n == 1:
        return jnp.ones_like(a), scale, (own > 0)[..., 0]
    factor, good = _unit_cholesky(a * scale[..., :, None] * scale[..., None, :])
    return factor, scale, good


@jax.custom_jvp
def _unit_cholesky(unit: Float[Array, "*b n n"]) -> tuple[Float[Array, "*b n n"], Bool[Array, "*b"]]:
    """Cholesky factor of matrices of unit diagonal, that of the identity where they are not positive definite."""
    n = unit.shape[-1]
    factor = cholesky(unit)
    pivots = diagonal(factor) ** 2
    good = jnp.all(jnp.isfinite(factor), (-2, -1)) & jnp.all(pivots > pivot_tolerance(unit.dtype, n), -1)
    return jnp.where(good[..., None, None], factor, jnp.eye(n, dtype=unit.dtype)), good


@_unit_cholesky.defjvp
def _unit_cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Any, Any]:
    """`dL = L phi(L^-1 dA L^-T)`, where `phi` takes the lower triangle and half of the diagonal.

    0 where the matrix is not definite: step by step through the factorisation it would be NaN there.
    """
    factor, good = _unit_cholesky(*primals)
    half = triangular_solve(factor, symmetric(tangents[0]))
    inner = jnp.tril(triangular_solve(factor, transpose(half)))
    inner = inner - 0.5 * inner * jnp.eye(inner.shape[-1], dtype=inner.dtype)
    tangent = jnp.where(good[..., None, None], factor @ inner, 0)
    return (factor, good), (tangent, np.zeros(good.shape, jax.dtypes.float0))


def _eliminated(
    unit: Float[Array, "*b n n"], b: Float[Array, "*b n k"], ordered: bool
) -> tuple[Array, Bool[Array, "*b n"]]:
    """Gauss and Jordan's elimination of semidefinite matrices of unit diagonal, beside a right-hand side.

    In the order of the axes pivots are those of Cholesky's factorisation, and so are the errors. Where `ordered`, the
    largest pivot comes first: then small ones are those of directions of which nothing is known, and no others. A row
    whose pivot is only rounding noise becomes 0: other axes leave nothing of this one.

    **Returns:** `(*b, n, n + k)`, and which axes have a pivot.
    """
    n, tolerance = unit.shape[-1], pivot_tolerance(unit.dtype, unit.shape[-1])

    def step(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        m, left, present = carry
        if ordered:
            size = jnp.where(left, diagonal(m[..., :n]), -jnp.inf)
            here = jnp.arange(n) == jnp.argmax(size, -1, keepdims=True)
            row = jnp.sum(jnp.where(here[..., None], m, 0), -2, keepdims=True)
            column = jnp.sum(jnp.where(here[..., None, :], m[..., :n], 0), -1, keepdims=True)
            pivot = jnp.max(size, -1)[..., None, None]
        else:
            here = jnp.arange(n) == j
            row, column = (lax.dynamic_slice_in_dim(m, j, 1, axis) for axis in (-2, -1))
            pivot = lax.dynamic_slice_in_dim(row, j, 1, -1)
        real = pivot > tolerance
        row = jnp.where(real, row / jnp.where(real, pivot, 1), 0)
        m = jnp.where(here[..., None], row, m - column * row)
        return m, left & ~here, present | (here & real[..., 0])

    # A loop also of the smallest: written out, XLA takes a quarter more time to compile it, and none less to run it.
    flags = jnp.ones(unit.shape[:-1], bool)
    m, _, present = lax.fori_loop(0, n, step, (jnp.concatenate([unit, b], -1), flags, ~flags))
    return m, present


def _unit_scale(a: Float[Array, "*b n n"]) -> Float[Array, "*b n"]:
    """What makes the diagonal 1; 0 where it is 0. Elimination is then blind to units (metres beside radians)."""
    own = diagonal(a)
    return jnp.where(own > 0, lax.rsqrt(jnp.where(own > 0, own, 1)), 0)


@jax.custom_jvp
def definite_solve(
    a: Float[Array, "*b n n"], b: Float[Array, "*b n k"]
) -> tuple[Float[Array, "*b n k"], Bool[Array, "*b"]]:
    """`a^-1 b`, and whether `a` is safely positive definite. Where it is only semidefinite, some `x` with `a x = b`.

    One elimination in the place of a factorisation and two triangular solves: XLA compiles it in half the time.
    """
    scale = _unit_scale(a)
    both, present = _eliminated(a * scale[..., :, None] * scale[..., None, :], b * scale[..., None], False)
    return both[..., a.shape[-1] :] * scale[..., None], jnp.all(present, -1)


@definite_solve.defjvp
def _definite_solve_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Any, Any]:
    """`dx = a^-1 (db - da x)`, much shorter than step by step through the elimination.

    By the inverse: an elimination of `a` beside a tangent is linear in the latter, but JAX could not transpose it.
    """
    a, (da, db) = primals[0], tangents
    x, good = definite_solve(*primals)
    inverse, _ = definite_solve(a, jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape))
    return (x, good), (inverse @ (db - da @ x), np.zeros(good.shape, jax.dtypes.float0))


def definite_inverse(a: Float[Array, "*b n n"]) -> tuple[Float[Array, "*b n n"], Bool[Array, "*b"]]:
    """`a^-1`, exactly symmetric, and whether `a` is safely positive definite; where it is not, anything finite."""
    if a.shape[-1] == 1:
        return jnp.where(a > 0, 1 / jnp.where(a > 0, a, 1), 0), a[..., 0, 0] > 0
    inverse, good = definite_solve(a, jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape))
    return symmetric(inverse), good


def keeps_digits(a: Float[Array, "*b n n"]) -> Bool[Array, "*b"]:
    """Whether definite matrices can be inverted with half of the digits, whatever the units of their axes.

    That is, whether no axis is nearly a combination of those before it: the pivots of an elimination. Number by number,
    so that XLA makes one loop of it.
    """
    n, least, good = a.shape[-1], 3 * jnp.finfo(a.dtype).eps ** 0.5, jnp.ones(a.shape[:-2], bool)
    left = {(i, j): a[..., i, j] for i in range(n) for j in range(i + 1)}
    for k in range(n):
        good &= left[k, k] >= least * a[..., k, k]
        pivot = jnp.where(left[k, k] > 0, left[k, k], 1)
        for i in range(k + 1, n):
            share = left[i, k] / pivot
            left |= {(i, j): left[i, j] - share * left[j, k] for j in range(k + 1, i + 1)}
    return good


@jax.custom_jvp
def semidefinite_solve(a: Float[Array, "*b n n"], b: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """`a^+ b`: the shortest `x` with `a x = b`, in units of the diagonal of `a`; for `b` in the range of `a`.

    Most of the time all matrices are definite, and one elimination in the order of the axes is enough.
    """
    x, good = definite_solve(a, b[..., None])
    return lax.cond(all_true(good), lambda: x[..., 0], lambda: _shortest_solution(a, b))


def _shortest_solution(a: Float[Array, "*b n n"], b: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """`a^+ b` of semidefinite matrices.

    Where elimination leaves nothing of an axis, its column is how the others would have to move with it: a direction of
    which nothing is known. What the solution has along these is taken out.
    """
    n, scale = a.shape[-1], _unit_scale(a)
    both, present = _eliminated(a * scale[..., :, None] * scale[..., None, :], (b * scale)[..., None], True)
    x = both[..., n]
    null = jnp.where(present[..., None, :], 0, jnp.eye(n, dtype=a.dtype) - both[..., :n])
    inner = transpose(null) @ null + present[..., None, :] * jnp.eye(n, dtype=a.dtype)
    along = definite_solve(inner, (transpose(null) @ x[..., None]))[0]
    return (x - (null @ along)[..., 0]) * scale


@semidefinite_solve.defjvp
def _semidefinite_solve_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """`dx = a^+ (db - da x)`, along changes that keep the rank."""
    x = semidefinite_solve(*primals)
    off = tangents[1][..., None] - symmetric(tangents[0]) @ x[..., None]
    return x, (pseudo_inverse(primals[0])[0] @ off)[..., 0]


def factor_solve(factor: Array, scale: Array, b: Float[Array, "*b n k"]) -> Float[Array, "*b n k"]:
    """`a^-1 b` from `scaled_cholesky(a)`."""
    half = triangular_solve(factor, b * scale[..., None])
    return triangular_solve(factor, half, transposed=True) * scale[..., None]


def spd_solve(a: Float[Array, "*b n n"], b: Float[Array, "*b n k"]) -> Float[Array, "*b n k"]:
    """`a^-1 b` for positive definite `a`."""
    if a.shape[-1] == 1:
        return b / a
    return definite_solve(a, jnp.broadcast_to(b, (*a.shape[:-1], b.shape[-1])))[0]


def spd_inverse(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """`a^-1` for positive definite `a`, exactly symmetric."""
    return 1 / a if a.shape[-1] == 1 else definite_inverse(a)[0]


def whitening(a: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """The lower triangular `w` with `w' w = a^-1` for positive definite `a`.

    Elimination below the diagonal makes `a` beside the identity to `d u` beside `u'^-1`, where `a = u' d u`.
    """
    n, scale = a.shape[-1], _unit_scale(a)
    unit = a * scale[..., :, None] * scale[..., None, :]

    def step(j: Array, m: Array) -> Array:
        row = lax.dynamic_slice_in_dim(m, j, 1, -2)
        share = lax.dynamic_slice_in_dim(m, j, 1, -1) / lax.dynamic_slice_in_dim(row, j, 1, -1)
        return m - jnp.where((jnp.arange(n) > j)[:, None], share, 0) * row

    m = lax.fori_loop(0, n, step, jnp.concatenate([unit, jnp.broadcast_to(jnp.eye(n, dtype=a.dtype), a.shape)], -1))
    return m[..., n:] * lax.rsqrt(diagonal(m[..., :n]))[..., None] * scale[..., None, :]


def log_determinant(a: Float[Array, "*b n n"]) -> Float[Array, "*b"]:
    """`log |a|` for positive definite `a`."""
    if a.shape[-1] == 1:
        return jnp.log(a[..., 0, 0])
    factor, scale, _ = scaled_cholesky(a)
    return 2 * jnp.sum(jnp.log(diagonal(factor)) - jnp.log(jnp.where(scale > 0, scale, 1)), -1)


@jax.custom_jvp
def split_semidefinite(a: Float[Array, "*b n n"]) -> tuple[Float[Array, "*b n n"], Float[Array, "*b n n"]]:
    """Pseudo-inverse of a semidefinite `a`, and a `k` with `k k'` spanning its null space.

    Eigenvalues are judged after scaling `a` to unit diagonal. `k` is zero where `a` is definite.
    """
    n = a.shape[-1]
    own = diagonal(a)
    scale = jnp.where(own > 0, lax.rsqrt(jnp.where(own > 0, own, 1)), 1)
    values, vectors = eigenvectors(a * scale[..., :, None] * scale[..., None, :])
    present = values > pivot_tolerance(a.dtype, n)
    inverse = jnp.where(present, 1 / jnp.where(present, values, 1), 0)
    vectors = scale[..., :, None] * vectors
    return (vectors * inverse[..., None, :]) @ transpose(vectors), vectors * ~present[..., None, :]


@split_semidefinite.defjvp
def _split_semidefinite_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Any, Any]:
    """Along changes that keep the rank: `dG = -G da G` of the generalised inverse `G`, `dk = -G da k`.

    That is one of several: eigenvectors of equal eigenvalues have no derivatives of their own. All span the same space.
    """
    inverse, null = split_semidefinite(*primals)
    moved = -inverse @ symmetric(tangents[0])
    return (inverse, null), (symmetric(moved @ inverse), moved @ null)


@jax.custom_batching.custom_vmap
def all_true(flags: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Whether all are true; inside of `jax.vmap`, all of the whole batch.

    As the condition of a `lax.cond` it stays one condition there. Else both branches would be computed, always.
    """
    return jnp.all(flags)


@all_true.def_vmap
def _all_true_of_batch(_size: int, _batched: list[bool], flags: Array) -> tuple[Array, bool]:
    return all_true(flags), False


@jax.jit  # at module level: an eager lax.cond would be compiled anew at each call
def pseudo_inverse(a: Float[Array, "*b n n"]) -> tuple[Float[Array, "*b n n"], Float[Array, "*b n n"]]:
    """As `split_semidefinite`, but the slow eigenvalues are computed only if a matrix needs them."""
    inverse, good = definite_inverse(a)
    return lax.cond(
        all_true(good),
        lambda: (inverse, jnp.zeros_like(a)),
        lambda: split_semidefinite(a),
    )


@jax.custom_jvp
def limit_inverse(finite: Float[Array, "*b n n"], infinite: Float[Array, "*b n n"]) -> Float[Array, "*b n n"]:
    """`lim_{t -> inf} (finite + t infinite)^-1` for `finite > 0`, `infinite >= 0`.

    Nothing is known along the range of `infinite`; with `P` the projection on its null space the
    limit is `P (P finite P + I - P)^-1 P`.
    """
    return _limit_inverse(finite, infinite)[0]


def _limit_inverse(finite: Array, infinite: Array) -> tuple[Array, Array]:
    """`limit_inverse`, and the pseudo-inverse of `infinite`."""
    size = jnp.trace(infinite, axis1=-2, axis2=-1)[..., None, None]
    size = jnp.where(size > 0, size, 1)
    values, vectors = eigenvectors(infinite / size)
    unknown = values > pivot_tolerance(finite.dtype, finite.shape[-1])
    null = vectors * ~unknown[..., None, :]
    projection = null @ transpose(null)
    identity = jnp.eye(finite.shape[-1], dtype=finite.dtype)
    inner = symmetric(projection @ finite @ projection) + identity - projection
    pseudo = vectors * jnp.where(unknown, 1 / jnp.where(unknown, values, 1), 0)[..., None, :] @ transpose(vectors)
    return projection @ spd_inverse(symmetric(inner)) @ projection, pseudo / size


@limit_inverse.defjvp
def _limit_inverse_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """With the limit `L`, along changes that keep the rank of `infinite`, `U`, and its pseudo-inverse `V`:

    `dL = -L dS L - (I - L S) V dU L - L dU V (I - S L)`, from `U L = 0` and `L S L = L`.
    """
    finite, infinite = primals
    limit, pseudo = _limit_inverse(finite, infinite)
    turned = (jnp.eye(finite.shape[-1], dtype=finite.dtype) - limit @ finite) @ pseudo @ tangents[1] @ limit
    return limit, -limit @ tangents[0] @ limit - turned - transpose(turned)


def information(lam: Array, x: Array) -> Array:
    """`lam x`: elementwise, or where `lam` has one axis more than `x` by matrices."""
    return lam * x if lam.ndim == x.ndim else jnp.einsum("...ij,...j->...i", lam, x)


def quadratic(a: Float[Array, "*b n n"], x: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """`x' a x`."""
    return jnp.einsum("...i,...ij,...j->...", x, a, x)
