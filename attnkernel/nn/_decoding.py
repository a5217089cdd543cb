"""Decoding: self-attention of the next rows of a sequence, with a cache of those before."""

from typing import Any

import jax
from jaxtyping import Array, Int

from .._core.validation import require_instance
from ._cached_layer import NewRows
from ._heads import OfHeads, as_positions
from ._kv_cache import KVCache
from ._linear_decoding import add_rows_to_sums
from ._projections import project_heads
from ._recurrent_cache import RecurrentCache


def attend_next_rows(
    attention: Any, new: NewRows, cache: KVCache | RecurrentCache
) -> tuple[Array, KVCache | RecurrentCache]:
    """Returns the output of new rows of a `MultiheadAttention`, and the cache with them."""
    require_instance("cache", cache, (KVCache, RecurrentCache), "attention.cache(100)")
    (q, k, v), positions = project_next_rows(attention, new, cache)
    if isinstance(cache, RecurrentCache):
        out, cache = add_rows_to_sums(attention, q, k, v, new, cache)
        return jax.vmap(attention.output_proj)(out.reshape(len(out), -1)), cache
    seen, after = cache.append(k, v, count=new.count, positions=positions)
    prior = cache._prior(seen, new, positions, attention.prior)
    return attention.output_of_heads(q, *seen.parts, prior)[0], after


def project_next_rows(
    attention: Any, new: NewRows, cache: KVCache | RecurrentCache
) -> tuple[tuple[OfHeads, OfHeads, OfHeads], Int[Array, " new"]]:
    """Returns queries, keys and values of new rows, and the positions of the rows for priors."""
    x, axes = new.x, attention.rotary.axes if attention.rotary else 1
    angles = numbers = cache.next_positions(x.shape[0])
    if new.positions is not None or axes > 1:
        angles = as_positions("positions", new.positions, x.shape[0], axes)
    heads = project_heads(attention, x, x, x, None, angles, angles)
    return heads, angles if axes == 1 else numbers
