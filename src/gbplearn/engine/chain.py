"""Joint updates: the activations of an example as one variable a layer, so that each example is a chain.

With one scalar variable for each activation, the units of a layer are tied together by every factor above them: loops,
in which a label is counted more than once. With *vector activations* an example is a chain

    input - layer 1 - ... - layer L - target

whose messages are exact for the linearised layers. What comes down to a layer has the rank of what is observed, the `C`
outputs (of several heads those of all, side by side):

    down    G_l = d z / d (outputs of layer l)                  one vector-Jacobian product an output and layer
    up      z ~ N(z_0, S_bb + R_b) ,   R_b = sum_l sigma_l² G_l G_l'

(inputs that are not known exactly, `N(x, V)`, are one more noise, `G_0 V G_0'`), and the layer's `Operator`s are all
that it takes. Examples meet in the parameters: `S` is the covariance of all outputs of the batch (`n = B C` numbers) by
the beliefs of the parameters, `S = sum J P J'`. In these dimensions the targets are absorbed (`condition`): a Gaussian
target at once; the class likelihood by messages between each example's likelihood, expanded under its belief
(`factors/likelihood.py`), and the outputs, until they rest. What the parameters hear is

    m = m_0 + P J' alpha ,    P' = P - P J' M J P ,    M = (D^-1 + S)^-1

with the precision `D` of the targets; each family of beliefs keeps of `P'` what it keeps.

Layers are linearised once a batch, at the means before it, where one pass over a stream measured best
(`docs/decisions.md`). Hidden activations have no prior of their own; outputs have that of their layer.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float
from scipy.linalg import get_lapack_funcs

from ..core.blas import one_blas_thread
from ..core.sensitivity import FullSensitivity, RowSensitivity, Sensitivity, added, steps
from ..factors.measurement import FactorKind
from ..factors.operators import Operator, UnitRows
from ..kernels.registry import kernels

# Of a target that says nothing along some direction, the precision there, as a part of its largest: its root must be
# invertible.
_LEAST = 1e-10
_potrf, _trtri = get_lapack_funcs(("potrf", "trtri"), dtype=np.float64)
_TINY, _REFINEMENTS = 1e-30, 2
# Numbers of the outputs are found again in double precision where rounding would be more than this of a target's noise.
_ROUNDING = 1e-5
# Pairs of draws that the evidence of a likelihood which is not Gaussian takes.
_DRAWS = 128
# Share of the last expansion that is kept in the next. That of a likelihood under its own belief may swing: where the
# outputs turn back, and move by more than this part of the least that they have moved, half as much of a new one is
# taken.
_KEPT, _SWINGS = 0.2, 0.9


INPUT = "input"


class Link(eqx.Module):
    """A layer between activations: factors `h = y - f(x)` or `y - f(x, w)`, measured to be 0.

    Or a linear function without parameters of several, `y - f(x, z, ...)`, given as the function.
    """

    kind: FactorKind | None
    variance: float = eqx.field(static=True)  # of its noise
    parameters: str | None = eqx.field(static=True)  # name of its vectors; None: it has none
    shape: tuple[int, ...] = eqx.field(static=True)  # of an example's outputs
    name: str = eqx.field(static=True)  # of its outputs
    inputs: tuple[str, ...] = eqx.field(static=True, default=(INPUT,))
    joined: Callable[..., Array] | None = eqx.field(static=True, default=None)  # in the place of a kind
    predicted: bool = eqx.field(static=True, default=False)  # whether heads observe its outputs
    mask: Array | None = None  # of a batch: what the outputs of `joined` are multiplied by
    transposed: bool = eqx.field(static=True, default=False)  # its weights are those of vectors, without their biases
    passes_few: bool = eqx.field(static=True, default=False)  # whether most of what comes down from it is 0

    def arguments(self, x: Array, means: Mapping[str, Array], y: Array) -> list[Array]:
        """Of its factors."""
        if self.parameters is None:
            return [x, y]
        of = means[self.parameters]
        return [x, of[:, :-1].T if self.transposed else of, y]

    def outputs(self, taken: Sequence[Array], means: Mapping[str, Array]) -> Array:
        """`f`."""
        if self.joined is not None:
            return self.masked(self.joined(*taken))
        assert self.kind is not None
        nothing = jnp.zeros((taken[0].shape[0], *self.shape), taken[0].dtype)
        return -self.kind.value(*self.arguments(taken[0], means, nothing)).reshape(nothing.shape)

    def masked(self, values: Array) -> Array:
        """Times the mask, if there is one."""
        return values if self.mask is None else values * self.mask

    def with_mask(self, mask: np.ndarray | None) -> Link:
        """The same link with the mask of a batch, which is data: no program is compiled for it."""
        return self if mask is None else dataclasses.replace(self, mask=jnp.asarray(mask))


def side_by_side(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, slice]:
    """Where the numbers of an example of each of these variables stand among all of theirs."""
    ends = np.cumsum([0, *map(math.prod, shapes.values())]).tolist()
    return {name: slice(*ends[i : i + 2]) for i, name in enumerate(shapes)}


def blocks_of(links: Sequence[Link]) -> dict[str, slice]:
    """Where the outputs of each link that heads observe stand among all outputs of an example."""
    return side_by_side({link.name: link.shape for link in links if link.predicted})


def _joined(links: Sequence[Link], values: Mapping[str, Array]) -> Float[Array, "b c"]:
    parts = [values[name] for name in blocks_of(links)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, 1)


class Linearised(NamedTuple):
    """The outputs of a batch as a linear function of the parameters."""

    outputs: Float[Array, "b c"]
    noise: Float[np.ndarray, "b c c"]  # R: of the layers
    sensitivities: dict[str, Sensitivity]


def linearise(
    links: Sequence[Link], means: Mapping[str, Array], x: Array, spread: Array | None = None, known: bool = False
) -> Linearised:
    """Up with values, down with the derivatives of the outputs: those of the links that heads observe, side by side.

    What several layers take has the sum of what comes down from them; parameters in several places have the sum of
    their derivatives there. Each step is a compiled program of its own: in one program XLA computes its parts several
    times over, which takes more than twice as long.

    **Arguments:**

    - `spread`: variances of inputs that are not known exactly, about `x`: one more noise, `G_0 V G_0'`.
    - `known`: the parameters are, so that there are no derivatives with respect to them.
    """
    values = _values(links, means, x)
    outputs = _joined(links, values)
    batch, classes = outputs.shape
    eye = np.broadcast_to(np.eye(classes, dtype=x.dtype)[:, None], (classes, batch, classes))
    down = {name: jnp.asarray(eye[:, :, block]) for name, block in blocks_of(links).items()}
    noise = np.zeros((batch, classes, classes), x.dtype)
    found: dict[str, Sensitivity] = {}
    few: dict[str, bool] = {}
    for link in reversed(links):
        g, taken = down.pop(link.name), [values[name] for name in link.inputs]
        mostly_zero = few.pop(link.name, False)
        for name in link.inputs:  # a sum, or a mask, passes on what comes down to it
            few[name] = few.get(name, True) and (link.passes_few or (link.joined is not None and mostly_zero))
        wanted = spread is not None or set(link.inputs) != {INPUT}
        if link.joined is not None:
            squares, back = _squares(g), _back_joined(link, taken, g) if wanted else []
        else:
            operators = _operators(link, taken[0], _of(link, means), values[link.name])
            if link.parameters is None or known:
                squares = _squares(g)
            else:
                if link.transposed:
                    of, squares = _transposed_sensitivity(operators[1], g), _squares(g)
                else:
                    of, squares = _sensitivity(operators[1], g, batch, mostly_zero)
                found[link.parameters] = added(found[link.parameters], of) if link.parameters in found else of
            back = [_back(operators[0], g)] if wanted else []
        noise += link.variance * np.asarray(squares)
        for name, one in zip(link.inputs, back):
            down[name] = down[name] + one if name in down else one
    if spread is not None:
        noise += np.asarray(_squares(down[INPUT] * jnp.sqrt(spread)))
    return Linearised(outputs, noise, found)


def _values(links: Sequence[Link], means: Mapping[str, Array], x: Array) -> dict[str, Array]:
    """Activations by name, of a forward pass."""
    values = {INPUT: x}
    for link in links:
        values[link.name] = _up(link, [values[name] for name in link.inputs], _of(link, means))
    return values


def _of(link: Link, means: Mapping[str, Array]) -> dict[str, Array]:
    return {} if link.parameters is None else {link.parameters: means[link.parameters]}


@jax.jit
def _up(link: Link, taken: list[Array], means: Mapping[str, Array]) -> Array:
    return link.outputs(taken, means)


@jax.jit
def _operators(link: Link, x: Array, means: Mapping[str, Array], y: Array) -> tuple[Operator, ...]:
    assert link.kind is not None
    return link.kind.jacobian(*link.arguments(x, means, y))


@jax.jit
def _back_joined(link: Link, taken: list[Array], down: Array) -> list[Array]:
    """Of a linear function of several inputs, its transpose."""
    assert link.joined is not None
    transposed = jax.linear_transpose(link.joined, *taken)
    return list(jax.vmap(transposed)(link.masked(down)))


@jax.jit
def _back(operator: Operator, down: Array) -> Array:
    """The factors say y - f: their Jacobian with respect to x is that of f with the other sign."""
    return -jax.vmap(lambda r: operator.back(r.reshape(-1, 1)))(down)


def _squares(down: Any) -> Float[np.ndarray, "b c c"]:
    """`G G'` of each example. (By BLAS, which takes them as they lie.)"""
    flat = np.asarray(down).reshape(*down.shape[:2], -1)
    return np.matmul(flat.transpose(1, 0, 2), flat.transpose(1, 2, 0))


def _sensitivity(operator: Any, down: Array, batch: int, mostly_zero: bool) -> tuple[Sensitivity, Any]:
    """With respect to the parameters of a layer, and `_squares(down)`.

    **Arguments:** `mostly_zero`: most of `down` is, as a pooling leaves it: then the kernel that passes over it is
    quicker than products.
    """
    if not isinstance(operator, UnitRows):
        raise TypeError("vector activations: the Jacobian of a layer must be that of vectors (UnitRows)")
    (n, p), units, classes = operator.rows.shape, operator.slope.shape[1], down.shape[0]
    places = n // batch
    down = down.reshape(classes, batch, places, units)
    if places == 1:
        return RowSensitivity(operator.rows, _slopes(operator.slope, down)), _squares(down)
    summed = _summed(operator.rows, operator.slope, down) if mostly_zero else None
    if summed is not None:
        return FullSensitivity(summed[0]), summed[1]
    rows, slope, g = (np.asarray(a) for a in (operator.rows, operator.slope, down))
    each: Any = np.empty((batch, classes, units, p), rows.dtype)
    for b, (x, s) in enumerate(zip(rows.reshape(batch, places, p), slope.reshape(batch, places, units))):
        np.matmul(np.swapaxes(g[:, b] * -s, 1, 2), x, out=each[b])
    return FullSensitivity(each), _squares(down)


@jax.jit
def _slopes(slope: Array, down: Float[Array, "c b 1 u"]) -> Float[Array, "b c u"]:
    return jnp.swapaxes(-down[:, :, 0] * slope, 0, 1)


@jax.jit
def _summed(rows: Array, slope: Array, down: Array) -> tuple[Array, Array] | None:
    """By the kernel, which passes over what is 0; None where there is none."""
    return kernels().sensitivities(rows, slope, down)


@jax.jit
def _transposed_sensitivity(operator: Any, down: Array) -> FullSensitivity:
    """With respect to weights that are turned round.

    Unit `u` has a share in each output `j` of the layer, by its `j`-th number: `G_bcj slope_bj x_bu`. Its last number,
    the bias, has none.
    """
    inputs = operator.coefficient.reshape(operator.coefficient.shape[0], -1)
    slopes = -down * operator.slope  # (c, b, j)
    each = jnp.swapaxes(slopes, 0, 1)[:, :, None, :] * inputs[:, None, :, None]
    return FullSensitivity(jnp.pad(each, ((0, 0), (0, 0), (0, 0), (0, 1))))


class Predicted(NamedTuple):
    """A batch before its targets are known."""

    linear: Linearised
    covariance: Float[np.ndarray, "n n"]  # of the outputs: S with the noise of the layers
    kept: dict[str, Any]  # of each parameter, what its belief has computed on the way


def _by_blocks(matrix: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """`(n, n) x blockdiag (B, C, C)`."""
    batch, classes, _ = blocks.shape
    n = batch * classes
    wide = np.matmul(matrix.reshape(n, batch, classes).transpose(1, 0, 2), blocks)
    return wide.transpose(1, 0, 2).reshape(n, n)


def predict_jointly(
    links: Sequence[Link],
    beliefs: Mapping[str, Any],
    x: Array,
    spread: Array | None = None,
    at: Mapping[str, Array] | None = None,
) -> Predicted:
    """What is known of the outputs of a batch together, by the beliefs of the parameters; linearised `at` these."""
    linear = linearise(links, {name: b.mean for name, b in beliefs.items()} if at is None else at, x, spread)
    if at is not None:
        moved = sum(steps(of, beliefs[name].mean - at[name]) for name, of in linear.sensitivities.items())
        linear = linear._replace(outputs=linear.outputs + moved)
    return _jointly(linear, beliefs, False)


def _jointly(linear: Linearised, beliefs: Mapping[str, Any], double: bool) -> Predicted:
    batch, classes = linear.outputs.shape
    total, kept = np.zeros((batch * classes, batch * classes), float), {}
    for name, of in linear.sensitivities.items():
        covariance, kept[name] = beliefs[name].output_covariance(of, double)
        total += covariance
    return Predicted(linear, _with_noise(0.5 * (total + total.T), linear.noise, np.ones(batch)), kept)


def predict(
    links: Sequence[Link], beliefs: Mapping[str, Any], x: Array, spread: Array | None = None, known: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means of the outputs `(B, C)`, and what layers (and inputs) and parameters leave uncertain of each: variances.

    **Arguments:** `known`: take the parameters for known: these leave nothing uncertain.
    """
    linear = linearise(links, {name: b.mean for name, b in beliefs.items()}, x, spread, known)
    parameters = np.zeros(linear.outputs.shape, x.dtype)
    for name, of in linear.sensitivities.items():
        parameters += np.asarray(_output_variance(beliefs[name], of))
    return np.asarray(linear.outputs), np.diagonal(linear.noise, axis1=1, axis2=2), parameters


@jax.jit
def _output_variance(belief: Any, of: Sensitivity) -> Array:
    return belief.output_variance(of)


def outputs_at(links: Sequence[Link], means: Mapping[str, Array], x: Array) -> Array:
    """Of a forward pass with these parameters."""
    return _joined(links, _values(links, means, x))


class Targets(NamedTuple):
    """What is observed of the outputs.

    - `expand`: `(mean, variance)` of the outputs to precisions `D (B, C, C)` and gradients `(B, C)` of the log
        likelihood there.
    - `energies`: of each example, `-log p(y | outputs)` without what does not depend on the outputs.
    - `normaliser`: what was left out, of each example.
    - `largest`: no precision is larger.
    - `exact`: whether the likelihood is Gaussian, so that one expansion is enough.
    - `blocks`: where outputs that are observed together stand; precisions between them and others are 0.
    - `classes`: those of the blocks of which a shift of all outputs says nothing.
    """

    expand: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    energies: Callable[[np.ndarray], np.ndarray]
    normaliser: np.ndarray
    largest: float
    exact: bool
    blocks: tuple[slice, ...] = (slice(None),)
    classes: tuple[slice, ...] = ()


class Joint(NamedTuple):
    """All outputs of a batch with precisions `D` and information `e`: `N(z_0, S) exp(e z - z' D z / 2)`."""

    start: Float[np.ndarray, "b c"]
    covariance: Float[np.ndarray, "n n"]
    precision: Float[np.ndarray, "b c c"]
    information: Float[np.ndarray, "b c"]
    root: Float[np.ndarray, "b c c"]  # D = E E'; a row is 0 where nothing is observed
    root_inverse: Float[np.ndarray, "b c c"]  # E^-1, or 0
    half: Float[np.ndarray, "n n"]  # W with A^-1 = W' W , A = I + E' S E
    alpha: Float[np.ndarray, "b c"]  # z - z_0 = S alpha

    @classmethod
    def of(
        cls,
        start: np.ndarray,
        covariance: np.ndarray,
        d: np.ndarray,
        e: np.ndarray,
        blocks: Sequence[slice] = (slice(None),),
    ) -> Joint:
        """Solve for them. **Arguments:** `blocks`: as `Targets`."""
        root, root_inverse = _roots(d, blocks)
        pull = e - np.einsum("bcd,bd->bc", d, start)
        joint = cls(start, covariance, d, e, root, root_inverse, _half_of_inverse(covariance, root), pull)
        return joint._replace(alpha=joint._solved(pull))._refined()

    def _solved(self, of: Float[np.ndarray, "b c"]) -> Float[np.ndarray, "b c"]:
        """`(I + D S)^-1 r = E A^-1 E^-1 r`. (Not `r - E A^-1 E' S r`, which has no digits where `D S` is large.)"""
        inner = (self.half @ np.einsum("bxc,bc->bx", self.root_inverse, of).reshape(-1)) @ self.half
        return np.einsum("bcx,bx->bc", self.root, inner.reshape(of.shape))

    def _left_over(self) -> Float[np.ndarray, "b c"]:
        """`e - D z - alpha`, which is 0: what the targets say at the mean is what moves it there."""
        return self.information - np.einsum("bcd,bd->bc", self.precision, self.mean) - self.alpha

    def _refined(self) -> Joint:
        """By two steps of refinement, for the digits that the inverse has lost."""
        joint = self
        for _ in range(_REFINEMENTS):
            joint = joint._replace(alpha=joint.alpha + joint._solved(joint._left_over()))
        return joint

    @property
    def mean(self) -> Float[np.ndarray, "b c"]:
        """Of the outputs."""
        return self.start + (self.covariance @ self.alpha.reshape(-1)).reshape(self.start.shape)

    @property
    def observed(self) -> Bool[np.ndarray, "b c"]:
        """The outputs of which anything is observed."""
        return np.any(self.root != 0, 2)

    def _left(self) -> Float[np.ndarray, "b c c"]:
        """The blocks of `I - A^-1` of each example."""
        batch, classes = self.start.shape
        columns = self.half.reshape(-1, batch, classes).transpose(1, 2, 0)
        return np.eye(classes) - columns @ np.swapaxes(columns, 1, 2)

    def covariances(self) -> Float[np.ndarray, "b c c"]:
        """Of the outputs of each example that are observed: the blocks of `E^-T (I - A^-1) E^-1`."""
        return np.einsum("bxc,bxy,byd->bcd", self.root_inverse, self._left(), self.root_inverse)

    def variance(self) -> Float[np.ndarray, "b c"]:
        """Of each output: the diagonal of that, and of outputs that are not observed."""
        batch, classes = self.start.shape
        observed, before = self.observed, _alone(self.covariance, classes)
        found = np.einsum("bxc,bxy,byc->bc", self.root_inverse, self._left(), self.root_inverse)
        if not observed.all():  # what others say of these: `S - S M S`
            some = ~observed.all(1)
            rows = self.covariance.reshape(batch, classes, -1)[some]
            others = before[some] - np.sum((rows @ self.gain()) * rows, -1)
            found[some] = np.where(observed[some], found[some], others)
        # What is left of an output is no more than there was; where a target says next to nothing it is rounding.
        return np.clip(found, 0, before)

    def gain(self) -> Float[np.ndarray, "n n"]:
        """`M = (D^-1 + S)^-1 = E A^-1 E'`."""
        wide = _by_blocks(self.half, np.swapaxes(self.root, 1, 2))
        return wide.T @ wide

    def gain_without(self, covariance: np.ndarray) -> Float[np.ndarray, "n n"]:
        """The same with a part of `S` taken out: what all else says of the outputs, as a precision."""
        half = _half_of_inverse(self.covariance - covariance, self.root)
        wide = _by_blocks(half, np.swapaxes(self.root, 1, 2))
        return wide.T @ wide

    @property
    def energy(self) -> float:
        """`alpha' S alpha / 2`: of the beliefs before, at the new means."""
        return 0.5 * float(self.alpha.reshape(-1) @ self.covariance @ self.alpha.reshape(-1))

    def log_integral(self) -> float:
        """Of that product."""
        d, e, start = self.precision, self.information, self.start
        pull = e - np.einsum("bcd,bd->bc", d, start)
        at_start = (e * start).sum() - 0.5 * np.einsum("bc,bcd,bd->", start, d, start)
        step = 0.5 * pull.reshape(-1) @ self.covariance @ self.alpha.reshape(-1)
        return float(at_start + step + np.log(np.diagonal(self.half)).sum())


def _roots(d: Float[np.ndarray, "b c c"], blocks: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """`E` and `E^-1` with `D = E E'`, block by block: a block of which nothing is observed has none."""
    if len(blocks) > 1:
        wide = np.zeros_like(d), np.zeros_like(d)
        for block in blocks:
            for out, part in zip(wide, _roots(d[:, block, block], (slice(None),))):
                out[:, block, block] = part
        return wide
    values, vectors = np.linalg.eigh(d)
    scale = np.sqrt(np.maximum(values, _LEAST * np.maximum(values[:, -1:], 0)))
    root, back = vectors * scale[:, None, :], np.swapaxes(vectors, 1, 2)
    return root, np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0)[..., None] * back


def _half_of_inverse(covariance: np.ndarray, root: np.ndarray) -> Float[np.ndarray, "n n"]:
    """The lower triangular `W` with `W' W = (I + E' S E)^-1`."""
    a = _by_blocks(_by_blocks(covariance, root).T, root) + np.eye(len(covariance))
    if not np.isfinite(a).all():
        raise np.linalg.LinAlgError("not finite")
    # Symmetric: what is the lower half of LAPACK's columns is the upper one of NumPy's rows.
    factor, failed = _potrf(0.5 * (a + a.T).T, lower=1, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError("not positive definite")
    return np.ascontiguousarray(_trtri(factor, lower=1, overwrite_c=1)[0])


def _alone(covariance: np.ndarray, classes: int) -> np.ndarray:
    return np.maximum(np.diagonal(covariance), 0).reshape(-1, classes)


def precision_of_prior(held: np.ndarray, weight: np.ndarray, classes: int) -> Float[np.ndarray, "b c c"]:
    """What the prior of the outputs says, as precisions; arguments as `condition`."""
    return (held.reshape(len(weight), -1) * weight[:, None])[..., None] * np.eye(classes)


class Conditioned(NamedTuple):
    """The outputs of a batch given its targets."""

    joint: Joint
    mean: Float[np.ndarray, "b c"]
    variance: Float[np.ndarray, "b c"]
    moves: list[float]  # of each iteration, how far any output moved, in standard deviations
    settled: bool
    log_evidence: Callable[[], float]  # log p(targets), of all examples together


def condition(
    start: np.ndarray,
    covariance: np.ndarray,
    targets: Targets,
    held: np.ndarray,
    weight: np.ndarray,
    iterations: int,
    tolerance: float,
    share: float = 1.0,
) -> Conditioned:
    """Absorb the targets in the dimensions of the outputs, in double precision.

    **Arguments:**

    - `start`, `covariance`: `z_0 (B, C)` and `S (n, n)`.
    - `held`: precision of the outputs' own prior about 0, `(B,)`, or `(B, C)` where it is not one for all.
    - `weight`: of each example; 0 where nothing is observed.
    - `share`: on the precision of all targets: less than 1 learns less from them.
    """
    classes, observed, moves = start.shape[1], weight > 0, []
    prior = precision_of_prior(held, weight, classes)

    def expanded(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        precision, gradient = targets.expand(mean, variance)
        precision = precision * (share * weight)[:, None, None]
        return precision, gradient * (share * weight)[:, None] + np.einsum("bcd,bd->bc", precision, mean)

    mean, variance, kept, step = start, _alone(covariance, classes), 0.0, np.zeros_like(start)
    d, e = expanded(mean, variance)
    while True:
        joint = Joint.of(start, covariance, d + prior, e, targets.blocks)
        before, mean, variance = mean, joint.mean, joint.variance()
        last, step = step, np.where(joint.observed, (mean - before) / np.sqrt(np.maximum(variance, _TINY)), 0)
        moves.append(float(np.abs(step).max(initial=0)))
        # Undamped it would have been this much.
        settled = targets.exact or moves[-1] < tolerance * (1 - kept)
        if settled or len(moves) >= iterations or not np.isfinite(moves[-1]):
            break
        kept = max(kept, _KEPT)
        if (last * step).sum() < 0 and moves[-1] > _SWINGS * min(moves[:-1]):
            kept = 0.5 * (1 + kept)
        own_d, own_e = expanded(mean, variance)
        d, e = kept * d + (1 - kept) * own_d, kept * e + (1 - kept) * own_e

    def left_out(at: np.ndarray) -> np.ndarray:
        """Of each example, the log likelihood less its expansion."""
        quadratic = (e * at).sum(1) - 0.5 * np.einsum("bc,bcd,bd->b", at, d, at)
        return np.where(observed, -weight * (targets.energies(at) + targets.normaliser), 0) - quadratic

    def log_evidence() -> float:
        if targets.exact:
            corrections = left_out(mean)
        else:
            # `E exp(left out)` under the belief of each example, by draws that all examples share.
            values, vectors = np.linalg.eigh(joint.covariances())
            root = vectors * np.sqrt(np.maximum(values, 0))[:, None]
            drawn = np.random.default_rng(0).standard_normal((_DRAWS, classes))
            each = np.stack([left_out(mean + root @ n) for n in (*drawn, *-drawn)])
            top = each.max(0)
            corrections = top + np.log(np.exp(each - top).mean(0))
        without = Joint.of(start, covariance, prior, np.zeros_like(e), targets.blocks)
        return float(corrections.sum()) + joint.log_integral() - without.log_integral()

    return Conditioned(joint, mean, variance, moves, settled, log_evidence)


class LearntTargets(ABC):
    """Targets whose noise is learnt with everything else (`engine/chain_noise.py`)."""

    @abstractmethod
    def at_rest(self, start: np.ndarray, covariance: np.ndarray, held: np.ndarray, weight: np.ndarray) -> Targets:
        """With the noise at which outputs and noise agree; arguments as `condition`."""

    @abstractmethod
    def posterior(self, outputs: np.ndarray, variance: np.ndarray, weight: np.ndarray) -> float:
        """The noise variance given beliefs of the outputs."""


class Updated(NamedTuple):
    """What a batch has taught."""

    beliefs: dict[str, Any] | None  # None: linear layers do not hold so far, or numbers were not finite
    conditioned: Conditioned | None  # None: they were not finite
    outputs: Float[np.ndarray, "b c"] | None  # at the new means
    targets: Targets | None  # with the noise that was learnt, if it was
    shortened: int  # how often their precision was halved
    noise: float | None = None  # the variance of the targets, if it was learnt


# A step after which an example's energy is larger by so many nats than before it, on average, is too long.
_WORSE = 1.0
_HALVINGS = 6


@one_blas_thread()
@np.errstate(over="ignore", invalid="ignore")  # numbers that are not finite refuse the batch
def update(
    links: Sequence[Link],
    beliefs: Mapping[str, Any],
    x: Array,
    targets: Targets | LearntTargets,
    held: np.ndarray,
    weight: np.ndarray,
    iterations: int,
    tolerance: float,
    spread: Array | None = None,
    at: Mapping[str, Array] | None = None,
) -> Updated:
    """Learn from a batch. Arguments as `condition` and `predict_jointly`; `beliefs` of all parameters by name.

    Where the outputs are no linear function so far, the targets count half, then a quarter, ...: means and covariances
    stay those of one update.
    """
    predicted, learnt = predict_jointly(links, beliefs, x, spread, at), None
    linear, outputs = predicted.linear, None
    start, covariance, kept = np.asarray(linear.outputs, float), predicted.covariance, predicted.kept
    if not np.isfinite(covariance).all():
        return Updated(None, None, None, None, 0)
    if not isinstance(targets, Targets):
        learnt = targets
        try:
            targets = learnt.at_rest(start, covariance, held, weight)
        except np.linalg.LinAlgError:
            return Updated(None, None, None, None, 0)
    risk = targets.largest * max(weight.max(), 1.0) * _alone(covariance, start.shape[1]).max()
    precise = risk * jnp.finfo(x.dtype).eps > _ROUNDING
    if precise:
        _, covariance, kept = _jointly(linear, beliefs, True)
    own = np.where(weight > 0, 1 / np.where(weight > 0, weight, 1), 1)
    if not np.isin(weight, (0, 1)).all():  # two like it would have noise of their own
        covariance = _with_noise(covariance, linear.noise, own - 1)
    if learnt is not None:
        try:
            targets = learnt.at_rest(start, covariance, held, weight)
        except np.linalg.LinAlgError:
            return Updated(None, None, None, None, 0)

    def energy(outputs: Any) -> float:
        return float((weight * targets.energies(np.asarray(outputs, float)))[weight > 0].sum())

    before, most, conditioned = energy(linear.outputs), _WORSE * weight.sum(), None
    for halved in range(_HALVINGS):
        try:
            found = condition(start, covariance, targets, held, weight, iterations, tolerance, 0.5**halved)
        except np.linalg.LinAlgError:
            return Updated(None, None, None, None, halved)
        joint, gain = found.joint, found.joint.gain()
        if not (np.isfinite(found.mean).all() and np.isfinite(gain).all() and np.isfinite(joint.alpha).all()):
            return Updated(None, None, None, None, halved)
        # Of the evidence, all of the targets count.
        conditioned = found if conditioned is None else found._replace(log_evidence=conditioned.log_evidence)
        parts = {n: (beliefs[n], of, kept[n]) for n, of in linear.sensitivities.items()}
        means = {n: jnp.asarray(b.moved(of, k, joint.alpha)) for n, (b, of, k) in parts.items()}
        outputs = np.asarray(outputs_at(links, means, x), float)
        after = energy(outputs)
        if after <= before + most:
            without = joint.gain_without if precise else None
            try:
                new = {
                    n: b.absorb(of, k, gain, joint.alpha, means[n], without, _are_outputs(of, targets.classes))
                    for n, (b, of, k) in parts.items()
                }
            except np.linalg.LinAlgError:
                return Updated(None, conditioned, outputs, targets, halved)
            noise = None
            if learnt is not None:
                # Where layers are not linear so far, outputs are off by as much as they are at the new parameters.
                of_layers = np.einsum("bcd,bd->bc", np.asarray(linear.noise, float), own[:, None] * joint.alpha)
                noise = learnt.posterior(outputs + of_layers, found.variance, weight)
            return Updated(new, conditioned, outputs, targets, halved, noise)
    return Updated(None, conditioned, outputs, targets, _HALVINGS)


def _are_outputs(of: Sensitivity, blocks: Sequence[slice]) -> bool:
    """Whether the units' numbers are the outputs of one of these blocks, and no others."""
    if not isinstance(of, RowSensitivity):
        return False
    slopes = np.abs(np.asarray(of.slopes))
    _, classes, units = slopes.shape
    for block in blocks:
        own = np.eye(classes)[:, block]
        if units > 1 and own.shape[1] == units and bool((slopes == own).all()):
            return True
    return False


def _with_noise(covariance: Any, noise: Any, share: np.ndarray) -> np.ndarray:
    """The covariance of all outputs with that of each example's layers added, so many times."""
    blocks = np.asarray(noise, float) * share[:, None, None]
    (batch, classes, _), each = blocks.shape, np.arange(len(blocks))
    wide = np.array(covariance, float).reshape(batch, classes, batch, classes)
    wide[each, :, each, :] += blocks
    return wide.reshape(batch * classes, -1)
