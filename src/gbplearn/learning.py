"""How a learner infers from a batch: padded, with the damping that fits, without more memory than there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .batch import Batch, padded_size
from .compiling import release_memory
from .gaussian import Gaussian
from .inference import InferenceError, Result
from .lay_out import tied_parameters
from .memory import check_memory, network_memory
from .noise import LearnNoise
from .schedule import damping_for

if TYPE_CHECKING:
    from .learner import Learner

# Parameters that would move by less have settled: means in standard deviations, log precisions; root mean square.
SETTLED = 0.03
# If noise is learnt: between these, messages with the noise held.
_ROUNDS = 4


def learn_batch(
    learner: Learner,
    batch: Batch,
    before: Mapping[str, Gaussian],
    noise: Mapping[str, LearnNoise],
    carried: Mapping[str, Any] | None,
) -> tuple[Result, Batch]:
    """Infer the parameters, with what was known of them before; also the batch with its padding."""
    net, sizes = learner.net, learner._sizes
    # The user's factors know the batch by its size, so that it cannot be padded.
    size = batch.size if learner.factors is not None else padded_size(batch.size, sizes)
    inputs_fixed = batch.x_seen is None and learner.input_sigma is None and not net.observes_input
    needed = network_memory(net, learner.input_shape, size, inputs_fixed)
    check_memory(needed[learner.options["messages"]] * learner.dtype.itemsize // 4, f"a batch of {batch.size}")
    new = size not in sizes
    if new:
        sizes.append(size)
    padded = batch.padded(size)
    try:
        result = net.learn(
            padded,
            beliefs=before,
            noise=noise,
            inputs=learner.inputs,
            seed=learner.seed + learner.batches,
            dtype=learner.dtype,
            throw=False,
            carried=carried,
            **({"rounds": min(_noise_rounds(batch, noise), learner.options["iterations"])} if noise else {}),
            **options_for(learner, batch, before),
        )
    except InferenceError as error:  # of the noise
        result = error.result
    if new:
        release_memory()
    if learner._tied is not None and tied_parameters(result._graph, learner.prior) != learner._tied:
        raise ValueError("factors must tie the same parameters in every graph")
    return result, padded


def _noise_rounds(batch: Batch, noise: Mapping[str, LearnNoise]) -> int:
    """One is enough where more measurements than those of the batch have told about the noise already."""
    return 1 if all(n.weight > batch.size for n in noise.values()) else _ROUNDS


def options_for(learner: Learner, batch: Batch, prior: Mapping[str, Gaussian]) -> dict[str, Any]:
    """Options of `gbp.infer` for a batch, whose prior this is."""
    out = dict(learner.options)
    if out["tolerance"] is None:
        out |= {"tolerance": 1e-3, "settled": SETTLED}
    if out["damping"] is None:
        # Without a label an example has nothing to say to a feed-forward network.
        all_teach = learner.net.head is None or learner.net.generative or learner.factors is not None
        teaching = max(1, batch.size if all_teach else round(batch.teaching))
        known = learner.filtering.examples_known(learner.examples, teaching, learner.prior, learner.posterior, prior)
        out["damping"] = damping_for(teaching, known, learner.caution)
    return out
