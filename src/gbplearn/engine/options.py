"""How messages are sent."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .schedules import AfterVisit, OnMovement, Schedule


class Options(eqx.Module):
    """How messages are sent. Numbers are data; what is static changes the compiled code."""

    damping: tuple[tuple[Array, ...], ...]  # of each group, of each slot
    dropout: tuple[tuple[Array, ...], ...]
    damped: bool = eqx.field(static=True)
    dropping: bool = eqx.field(static=True)
    relinearise: int | OnMovement | AfterVisit = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)

    def kept(self, g: int, s: int) -> Array:
        """How much of a pooled message stays as it was: of many edges, those that keep theirs keep their share."""
        return self.damping[g][s] + (1 - self.damping[g][s]) * self.dropout[g][s]

    def noise_damping(self, g: int) -> Array:
        """Of a noise that is learnt."""
        return jnp.max(jnp.stack(self.damping[g]))
