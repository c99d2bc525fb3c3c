"""A learnt network without the engine: its forward pass as a function, or as a file that JAX alone can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..core.files import write_whole
from ..core.gaussian import Numbers
from ..layers.class_observation import ClassObservation
from ..network.layer_graph import OfHeads
from .learner import Learner

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def forward_function(learner: Learner, *, probabilities: bool = False) -> Callable[[Numbers], OfHeads]:
    """`x -> outputs`: the forward pass with the posterior means as they are now, a pure function for `jax.jit`.

    Of several heads the outputs are a dictionary by head.

    **Arguments:**

    - `learner`: of a network of feed-forward layers.
    - `probabilities`: the softmax of the outputs, for heads that observe classes. (That of the means:
        `learner.predict_proba` averages over their uncertainty.)

    **Returns:** a function of inputs `(batch,) + input_shape`. What the learner learns later does not change it.
    """
    net, shape, dtype = learner.net, learner.input_shape, learner.dtype
    if net.generative:
        raise ValueError("a network with generative layers has no forward pass")
    classes = {name for name, place in net.heads.items() if isinstance(place.layer, ClassObservation)}
    if probabilities and not classes:
        raise ValueError("probabilities=True needs a network that observes classes, as by gbp.SoftmaxObservation")
    features, fitted = learner.features, learner.state.features
    if features is not None and fitted is None:
        raise ValueError("features are fitted to the first batch that is learnt from: there was none yet")
    means = {name: np.asarray(belief.mean) for name, belief in learner.posterior.items()}

    def forward(x: Numbers) -> OfHeads:
        x = jnp.asarray(x, dtype)
        if x.shape[1:] != shape:
            raise ValueError(f"the network takes a batch of examples of shape {shape}, got {x.shape}")
        if features is not None:
            x = features.of(x, {name: jnp.asarray(value, dtype) for name, value in (fitted or {}).items()})
        out = net.by_head(net.run_forward(x, {name: jnp.asarray(mean) for name, mean in means.items()}))
        if not probabilities:
            return out
        if len(net.heads) == 1:
            return jax.nn.softmax(out)
        return {name: jax.nn.softmax(of) if name in classes else of for name, of in out.items()}

    return forward


def export(
    learner: Learner,
    path: str | Path,
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    batch: int | None = None,
    probabilities: bool = False,
) -> None:
    """Write `forward_function(learner)` to a file that runs where gbplearn is not installed.

    ```python
    gbp.export(learner, "net.stablehlo")
    call = jax.export.deserialize(bytearray(open("net.stablehlo", "rb").read())).call  # JAX and flatbuffers are enough
    outputs = call(x)
    ```

    The file holds StableHLO and the posterior means, as `jax.export` writes them. It appears whole or not at all.

    **Arguments:**

    - `platforms`: where it shall run: of "cpu", "cuda", "rocm", "tpu". The machine that writes needs none of them.
    - `batch`: so many examples a call; None for any number of them.
    - `probabilities`: as `forward_function`.
    """
    from jax import export as jax_export  # not part of `import jax`

    wanted = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    unknown = [p for p in wanted if p not in PLATFORMS]
    if unknown or not wanted:
        raise ValueError(f"platforms must be some of {', '.join(PLATFORMS)}, got {platforms!r}")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1):
        raise ValueError(f"batch must be a whole number >= 1, or None for any, got {batch!r}")
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        wrong = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ValueError(f"cannot write the network: {wrong}")
    size = jax_export.symbolic_shape("batch")[0] if batch is None else int(batch)
    given = jax.ShapeDtypeStruct((size, *learner.input_shape), learner.dtype)
    forward = forward_function(learner, probabilities=probabilities)
    # Example by example for the layers, which so need not know that the size of the batch is no number.
    function = jax.jit(jax.vmap(lambda x: jax.tree.map(lambda of: of[0], forward(x[None]))))
    made = jax_export.export(function, platforms=wanted)(given)
    try:
        data = bytes(made.serialize())
    except ImportError:
        raise ValueError('JAX writes programs by flatbuffers: pip install "gbplearn[deploy]"') from None
    write_whole(path, lambda file: file.write(data))
