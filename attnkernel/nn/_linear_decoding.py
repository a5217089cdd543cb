"""Decoding of linear attention: a cache of its sums, and the next rows from them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._core.arrays import as_float_dtype, wider_dtype
from ..attention import PerHead, task_of
from ..kernels import Features, Kernel
from ..methods import Linear, LinearState, advance
from ..priors import Causal, Prior, key_mask_of
from ..rules import Rule
from ._cached_layer import NewRows
from ._heads import OfHeads
from ._recurrent_cache import RecurrentCache

NO_LINEAR_ATTENTION = (
    "A recurrent cache needs linear attention with the same parts for all heads: make the module "
    "with method=ak.methods.Linear(...), or use cache(capacity)."
)


def empty_sums(attention: Any, dtype: Any) -> RecurrentCache:
    """Returns the cache of no rows, its sums in at least float32.

    **Raises:** `ValueError` if the method is not `Linear`, there is a prior, or heads differ.
    """
    method, kernel, rule = attention.method, attention.kernel, attention.rule
    prior = attention.prior or Causal()
    heads_differ = any(isinstance(part, PerHead) for part in (kernel, prior, rule))
    if not isinstance(method, Linear) or heads_differ:
        raise ValueError(NO_LINEAR_ATTENTION)
    assert isinstance(kernel, Kernel)
    assert isinstance(prior, Prior)
    assert isinstance(rule, Rule)
    one = jax.ShapeDtypeStruct((1, attention.qk_size), jnp.result_type(float))
    if (
        reason := method.unsupported_reason(task_of(one, one, one, kernel, prior, rule))
    ) is not None:
        raise ValueError(f"Linear cannot evaluate this: {reason}")
    mask = key_mask_of(prior)
    if not mask.is_causal or mask.allowed is not None:
        raise ValueError(f"A recurrent cache takes no prior but ak.Causal(); got {prior!r}.")
    features = eqx.filter_eval_shape(method.both, one, one, kernel, rule)[1].log.shape[1]
    dtype = wider_dtype(as_float_dtype("dtype", dtype))
    empty = LinearState.empty(features, attention.vo_size, dtype)
    return RecurrentCache(jax.tree.map(lambda leaf: jnp.stack([leaf] * attention.num_heads), empty))


def add_rows_to_sums(
    attention: Any, q: OfHeads, k: OfHeads, v: OfHeads, new: NewRows, cache: RecurrentCache
) -> tuple[OfHeads, RecurrentCache]:
    """Returns the values of new rows, from themselves and all before, and the new cache."""
    new.refuse("sums of linear attention hold all rows before, in their order", "mask", "prior")
    method, there = attention.method, new.are_there
    if not isinstance(method, Linear) or not isinstance(cache.state, LinearState):
        raise ValueError(NO_LINEAR_ATTENTION)
    dtype = wider_dtype(jnp.result_type(q, k, v), cache.dtype)

    def in_dtype(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

    def head(state: LinearState, q: Array, k: Array, v: Array) -> tuple[Array, LinearState]:
        values = jnp.concatenate([v, jnp.ones_like(v[:, :1])], axis=1)
        of_queries, of_keys = method.both(q, k, attention.kernel, attention.rule)
        if there is not None:
            log = jnp.where(there[:, None], of_keys.log, -jnp.inf)
            of_keys = Features(log, jnp.where(there[:, None], of_keys.factor, 0.0))
        # parts of the kernel may be wider than its points
        softmax, state = advance(*in_dtype((state, of_queries, of_keys, values)))
        return softmax.with_sink(attention.rule.log_sink()).value, state

    group = q.shape[1] // k.shape[1]
    heads = in_dtype((q, jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)))
    out, state = jax.vmap(head)(cache.state, *(part.swapaxes(0, 1) for part in heads))
    rows = q.shape[0] if new.count is None else new.count
    return out.swapaxes(0, 1).astype(q.dtype), cache._advanced(state, rows)
