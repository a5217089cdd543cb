r"""Gates of decay: how much of a recurrent state each row leaves, as a function of the row."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import wider_dtype

SHORTEST_MEMORY, LONGEST_MEMORY = 10.0, 1000.0  # rows, at initialisation


class DecayGate(eqx.Module):
    r"""$\log \alpha_t = -\mathrm{softplus}(W x_t + b)$, at most 0 for all weights.

    b starts where softplus(b) is one over a number of rows, from 10 to 1000 in equal ratios: along
    the heads, or for decays of channels along the channels of each head.
    """

    proj: eqx.nn.Linear | None
    bias: Float[Array, "heads channels"]

    def __init__(
        self,
        of: Literal["head", "row", "channel"],
        size: int,
        heads: int,
        channels: int,
        dtype: Any,
        key: PRNGKeyArray,
    ):
        channels = channels if of == "channel" else 1
        count = channels if of == "channel" else heads
        share = (np.arange(count) + 0.5) / count
        memory = SHORTEST_MEMORY * (LONGEST_MEMORY / SHORTEST_MEMORY) ** share
        bias = jnp.asarray(np.log(np.expm1(1.0 / memory)), dtype)
        rows = bias[None] if of == "channel" else bias[:, None]
        self.bias = jnp.broadcast_to(rows, (heads, channels))
        self.proj = None
        if of != "head":
            outputs = heads * channels
            self.proj = eqx.nn.Linear(size, outputs, use_bias=False, dtype=dtype, key=key)

    def __call__(self, x: Float[Array, "rows size"]) -> Float[Array, "heads _rows channels"]:
        """Returns log α in at least float32; one row stands for all where rows do not differ."""
        dtype = wider_dtype(x.dtype)
        logits = self.bias[:, None].astype(dtype)
        if self.proj is not None:
            of_rows = jax.vmap(self.proj)(x).reshape(len(x), *self.bias.shape)
            logits = logits + of_rows.swapaxes(0, 1).astype(dtype)
        return -jax.nn.softplus(logits)
