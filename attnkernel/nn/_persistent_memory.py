"""Persistent memory: learned keys and values of each head, which every query sees."""

from typing import Any

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array, require_finite
from .._core.validation import require_instance
from ..attention import PerHead, softmax_state
from ..methods import SoftmaxState
from ..priors import Prior
from ..rules import Softmax
from ._cache import KVCache
from ._cached_layer import CachedLayer, NewRows
from ._inputs import Heads
from ._multihead import MultiheadAttention


class PersistentMemory(CachedLayer):
    r"""Attention with further learned keys and values, which no mask and no prior hides.

    $$ \mathrm{out}_i = \sum_h W_o^h \,
       \frac{\sum_j w^h_{ij} v^h_j + \sum_m e^h_{im} u^h_m}{\sum_j w^h_{ij} + \sum_m e^h_{im}},
       \qquad e^h_{im} = K(q^h_i, p^h_m)^{1/\tau} $$

    $q^h_i, v^h_j$ are the projected heads of the module and $w^h_{ij}$ its weights before they are
    normalised; $p^h_m \in \mathbb{R}^{d_{qk}}$, $u^h_m \in \mathbb{R}^{d_{vo}}$ are the learned
    keys and values. One row is `add_bias_kv` of PyTorch. A query without other keys gets the mean
    of the memory. The two sums merge as those of disjoint sets of keys.

    `step` decodes as that of the module: the memory is no row, and in no cache.

    **Arguments:**

    - `attention`: a `MultiheadAttention` of order 0 and a softmax, without dropout or shared keys.
    - `keys`, `values`: p and u, shapes (memory, heads, qk_size) and (memory, heads, vo_size).

    **Raises:** `ValueError` for other modules and shapes.

    **Source:** Sukhbaatar, Grave, Lample, Jegou and Joulin, *Augmenting self-attention with
    persistent memory* (2019).

    ```python
    attention = ak.MultiheadAttention(2, 8, prior=ak.Causal(), key=jax.random.PRNGKey(0))
    memory = ak.nn.PersistentMemory(attention, *jnp.zeros((2, 1, 2, 4)))
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 8))
    assert memory(x, x, x).shape == (5, 8)
    ```
    """

    attention: MultiheadAttention
    keys: Float[Array, "memory heads qk_size"]
    values: Float[Array, "memory heads vo_size"]
    query_size: int = eqx.field(static=True)

    def __init__(self, attention: MultiheadAttention, keys: ArrayLike, values: ArrayLike):
        example = "ak.MultiheadAttention(2, 8, key=jax.random.PRNGKey(0))"
        require_instance("attention", attention, MultiheadAttention, example)
        rule = attention.rule.stack if isinstance(attention.rule, PerHead) else attention.rule
        is_plain = attention.order == 0 and isinstance(rule, Softmax) and not attention.dropout.p
        if not is_plain or attention.num_kv_heads != attention.num_heads:
            raise ValueError(
                "attention must have order 0, the rule ak.Softmax(), no dropout, and as many heads "
                "of keys as of queries, so that the sums over keys and memory merge."
            )
        self.attention, self.query_size = attention, attention.query_size
        self.keys, self.values = as_real_array("keys", keys), as_real_array("values", values)
        rows = self.keys.shape[:1]
        for name, array, size in (
            ("keys", self.keys, attention.qk_size),
            ("values", self.values, attention.vo_size),
        ):
            if not array.size or array.shape != (*rows, attention.num_heads, size):
                raise ValueError(
                    f"keys and values must have as many rows, from 1: {name} of shape (memory, "
                    f"{attention.num_heads}, {size}); got {array.shape}."
                )
            require_finite(name, array)

    def __call__(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        value: Float[Array, "values value_size"],
        mask: ArrayLike | None = None,
        *,
        prior: Prior | PerHead | None = None,
    ) -> Float[Array, "queries output_size"]:
        """The output; arguments as for `MultiheadAttention`. `mask` and `prior` hide no memory."""
        for name, rows in (("query", query), ("key_", key_), ("value", value)):
            require_finite(name, as_real_array(name, rows))
        return self._attend(*self.attention._read(query, key_, value, mask, prior))

    def cache(self, capacity: int, **options: Any) -> KVCache:
        """An empty cache for `step`; `options` as in `KVCache`."""
        return self.attention.cache(capacity, **options)

    def _decode_rows(self, new: NewRows, cache: Any) -> tuple[Array, KVCache]:
        require_instance("cache", cache, KVCache, "memory.cache(100)")
        heads, after = self.attention._project_and_append(new, cache)
        return self._attend(*heads), after

    def _attend(
        self, q: Heads, k: Heads, v: Heads, prior: Any
    ) -> Float[Array, "_rows output_size"]:
        """Returns the output of queries that attend to keys under the prior, and to all memory."""
        module = self.attention
        q, k, v = (part.swapaxes(0, 1) for part in (q, k, v))
        parts = {"kernel": module.kernel, "rule": module.rule, "method": module.method}
        p, u = (part.astype(q.dtype).swapaxes(0, 1) for part in (self.keys, self.values))
        states = softmax_state(q, k, v, prior=prior, **parts), softmax_state(q, p, u, **parts)
        one: Any = getattr(module.rule, "stack", module.rule)
        merged = _merged_value(*states, one.log_sink())
        return module._output(merged.swapaxes(0, 1).astype(q.dtype))


@eqx.filter_jit
def _merged_value(first: SoftmaxState, second: SoftmaxState, log_sink: Array | None) -> Array:
    """Returns the weighted means of values over two disjoint sets of keys and a sink, if any."""
    return first.merge(second).with_sink(log_sink).value
