"""Decoding: causal self-attention of the next rows of a sequence, with a cache of those before."""

from typing import Any

import jax
from jaxtyping import Array

from ..priors import At, Causal, HeldOut, Window
from ._cache import KVCache
from ._heads import multiply_priors
from ._projections import project_heads
from ._recurrent import RecurrentCache


def attend_next_rows(
    attention: Any,
    x: Array,
    cache: KVCache | RecurrentCache,
    rotary_positions: Array | None = None,
) -> tuple[Array, KVCache | RecurrentCache]:
    """Returns the output of the next rows, and the cache with them.

    `rotary_positions`: where rotary positions have several axes, those of the new rows.
    """
    positions = cache.next_positions(x.shape[0])
    if attention.rotary is None or attention.rotary.axes == 1:
        if rotary_positions is not None:
            raise ValueError(
                "positions must be None: the cache counts rows, and only ak.Rotary with "
                "frequencies of several axes takes positions of new rows."
            )
        rotary_positions = positions
    q, k, v = project_heads(attention, x, x, x, None, rotary_positions, rotary_positions)
    if isinstance(cache, RecurrentCache):
        parts = (attention.method, attention.kernel, attention.rule)
        out, cache = cache.append(q, k, v, *parts)
        return jax.vmap(attention.output_proj)(out.reshape(q.shape[0], -1)), cache
    rows, cache = cache.append(k, v)
    seen = Window(cache.capacity - 1, 0) if cache.ring else Causal()
    prior = At(multiply_priors(attention.prior, seen), positions, rows.positions)
    prior = prior * HeldOut(rows.positions < 0)
    return attention.output_of_heads(q, rows.keys, rows.values, prior)[0], cache
