"""Projections of queries, keys and values to heads, with norms and rotary positions."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from .._core.validation import require_function
from ._heads import OfHeads, as_sequences, read_positions


def project_heads(
    attention: Any,
    query: Array,
    key_: Array,
    value: Array,
    process_heads: Any = None,
    positions: Array | None = None,
    key_positions: Array | None = None,
) -> tuple[OfHeads, OfHeads, OfHeads]:
    """Returns the heads of queries, keys and values, normalised, processed and rotated."""
    sizes = (attention.query_size, attention.key_size, attention.value_size)
    query, key_, value = as_sequences(query, key_, value, sizes)

    def project(linear: eqx.nn.Linear, rows: Array, heads: int) -> OfHeads:
        return jax.vmap(linear)(rows).reshape(rows.shape[0], heads, -1)

    q = project(attention.query_proj, query, attention.num_heads)
    k = project(attention.key_proj, key_, attention.num_kv_heads)
    v = project(attention.value_proj, value, attention.num_kv_heads)
    if attention.query_norm is not None and attention.key_norm is not None:
        q, k = (
            jax.vmap(jax.vmap(n))(x)
            for n, x in ((attention.query_norm, q), (attention.key_norm, k))
        )
    if process_heads is not None:
        q, k, v = process(process_heads, q, k, v)
    rotary = attention.rotary
    at = read_positions((q, k), positions, key_positions, rotary.axes if rotary else 1)
    if rotary is not None:
        q, k = (
            rotary(part.swapaxes(0, 1), where).swapaxes(0, 1)
            for part, where in zip((q, k), at, strict=True)
        )
    return q, k, v


def process(process_heads: Any, q: OfHeads, k: OfHeads, v: OfHeads) -> tuple[Array, Array, Array]:
    """Applies a function of the user to the heads; `ValueError` if it changes their shapes."""
    require_function("process_heads", process_heads)
    shapes = tuple(part.shape for part in (q, k, v))
    found = process_heads(q, k, v)
    if tuple(part.shape for part in found) != shapes:
        raise ValueError(
            f"process_heads must not change the shapes of the heads, {shapes}; it gave "
            f"{tuple(part.shape for part in found)}."
        )
    return found
