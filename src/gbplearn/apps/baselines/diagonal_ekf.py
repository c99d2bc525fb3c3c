"""A diagonal extended Kalman filter on the weights of a network: they are learnt from a stream as Gaussians.

Example by example, with logits `l = f(x; w)` of classes `p = softmax(l)`, their Jacobian `G = dl/dw` at the mean `m`,
and independent weights `w ~ N(m, diag(v))`, the one-hot class is observed with the covariance of its own distribution,

    H = (diag(p) - p p') G ,   R = diag(p) - p p' + e 1 ,   S = H diag(v) H' + R
    m <- m + v H' S^-1 (onehot - p) ,   v <- v - diag(v H' S^-1 H v) + q

(Puskorius & Feldkamp 1991; Chang et al. 2023 call it the fully decoupled filter).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from ...factors.operators import Shape
from ...network.layer_graph import LayerGraph
from .cnn import first_parameters, logits_of

_RIDGE = 1e-3  # e: else R is singular, as probabilities sum to one
_LEAST_KEPT = 1e-6  # of a variance, by one example


class DiagonalEKF:
    """Learns a feed-forward classifier of gbplearn's layers from a stream, one example after the other.

    **Arguments:**

    - `net`, `input_shape`: as `GradientClassifier`, whose first weights are the prior means.
    - `prior_std`: of every weight and bias.
    - `process_noise`: standard deviation by which they wander from one example to the next, the square root of `q`.
    - `seed`: of the prior means.
    """

    def __init__(
        self,
        net: LayerGraph,
        input_shape: Shape | None = None,
        *,
        prior_std: float,
        process_noise: float = 0.0,
        seed: int = 0,
    ):
        if net.generative:
            raise ValueError("a network with generative layers has no forward pass to linearise")
        if not 0 < prior_std < float("inf"):
            raise ValueError(f"prior_std must be a number > 0, got {prior_std!r}")
        if not 0 <= process_noise < float("inf"):
            raise ValueError(f"process_noise must be a number >= 0, got {process_noise!r}")
        self.net, self.process_noise = net, process_noise
        # One vector of all weights: matrix products in place of many small ones.
        self.mean, self._unravel = ravel_pytree(first_parameters(net, input_shape, seed))
        self.variance = jnp.full_like(self.mean, prior_std**2)

    def update(self, x: np.ndarray, y: np.ndarray, y_observed: np.ndarray | None = None) -> None:
        """Learn from a batch, example after example; those whose label was not observed are left out."""
        observed = np.ones(len(y), bool) if y_observed is None else np.asarray(y_observed, bool)
        for image, label in zip(np.asarray(x)[observed], np.asarray(y)[observed]):
            self.mean, self.variance = _filter(
                self.net, self._unravel, self.mean, self.variance, image[None], label, self.process_noise**2
            )
        jax.block_until_ready(self.mean)  # whoever takes the time means the work

    def predict(self, x: np.ndarray) -> Float[np.ndarray, "batch classes"]:
        """The logits at the means."""
        return np.asarray(logits_of(self.net, self._unravel(self.mean), jnp.asarray(x)))


@partial(jax.jit, static_argnums=(0, 1))
def _filter(net: LayerGraph, unravel, mean: Array, variance: Array, x: Array, y: Array, q: float):
    logits, pull = jax.vjp(lambda m: logits_of(net, unravel(m), x)[0], mean)
    classes = jnp.eye(len(logits), dtype=logits.dtype)
    (jacobian,) = jax.vmap(pull)(classes)  # a row a class
    p = jax.nn.softmax(logits)
    spread = jnp.diag(p) - jnp.outer(p, p)
    # H = spread G is long and G is what there is: all that can be is done with the short sides.
    root = jnp.linalg.cholesky(spread @ ((jacobian * variance) @ jacobian.T) @ spread + spread + _RIDGE * classes)
    whiten = jax.scipy.linalg.solve_triangular(root, classes, lower=True)
    whitened = (whiten @ spread) @ jacobian
    mean = mean + variance * ((whiten @ (classes[y] - p)) @ whitened)
    # Rounding must not make a negative number of a small one.
    kept = jnp.maximum(1 - variance * jnp.sum(whitened**2, 0), _LEAST_KEPT)
    return mean, variance * kept + q
