"""How the messages of one group are sent: all that a visit knows of the options of inference."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from .linearisation import Relinearise


class GroupOptions(eqx.Module):
    """Damping, dropout and linearisation of one group: its own part of `Options`."""

    damping: tuple[Array | np.ndarray, ...]  # of each slot
    dropout: tuple[Array | np.ndarray, ...]
    damped: bool = eqx.field(static=True)
    dropping: bool = eqx.field(static=True)
    relinearise: Relinearise = eqx.field(static=True)

    @property
    def for_kernels(self) -> bool:
        """Whether kernels send messages so: they damp, but drop none, and linearise at the means of each visit."""
        return self.relinearise == 1 and not self.dropping

    def kept(self, s: int) -> Array:
        """How much of a pooled message stays as it was: of many edges, those that keep theirs keep their share."""
        return jnp.asarray(self.damping[s] + (1 - self.damping[s]) * self.dropout[s])

    def strongest(self) -> Array:
        """The largest damping of any slot: also that of a noise variance that is learnt."""
        return jnp.max(jnp.stack(self.damping))
