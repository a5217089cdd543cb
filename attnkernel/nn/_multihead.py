"""Multi-head attention: between sequences or within one, all rows at once or with a cache."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import as_float_dtype
from .._core.validation import as_integer, require_key
from ..attention import Auto, PerHead, as_order
from ..kernels import DotProduct, Kernel
from ..methods import Method
from ..priors import AtPositions, Prior
from ..rules import Rule, Softmax
from ._cached_layer import CachedLayer, NewRows
from ._decoding import attend_next_rows
from ._head_sums import HeadSums
from ._heads import (
    OfHeads,
    as_sequence,
    head_size,
    mask_as_prior,
    multiply_priors,
    read_positions,
    require_attention_parts,
    require_bools,
    require_divisible,
    require_dropout_and_ridge,
    require_rotary,
)
from ._kv_cache import KVCache
from ._linear_decoding import empty_sums
from ._projections import project_heads
from ._recurrent_cache import RecurrentCache
from ._rotary import Rotary

ProcessHeads = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


class MultiheadAttention(CachedLayer):
    r"""Multi-head attention with learned projections of queries, keys, values and outputs.

    $$ \mathrm{out}_i = \sum_{h=1}^{H} W_o^h \sum_j a^h_{ij}\, W_v^h v_j, \qquad
       a^h_{ij} \propto K(W_q^h q_i, W_k^h k_j)\, \pi(i, j) $$

    Constructor, parameters, call and results are those of `equinox.nn.MultiheadAttention`: replace
    the class, and copy the weights or take the same `key`. One thing differs: where a mask hides
    all keys from a query, heads are 0 here, and the mean of all values in Equinox.

    **Arguments:** those of `equinox.nn.MultiheadAttention`, and by keyword

    - `num_kv_heads`: the number of heads of keys and values; consecutive query heads share one.
      Default: `num_heads`.
    - `kernel`: K, of a query and a key of one head. Default: `ak.DotProduct()`, at $1/\sqrt{d}$.
      A soft cap on scores is `ak.kernels.SoftCapped(ak.DotProduct(), ak.fixed(50.0))`.
    - `prior`, `rule`: as in `attend`. They and `kernel` may be `ak.PerHead`, of `num_heads` heads.
    - `method`: how sums are evaluated. Default: `Auto()`. Dropout alone forms all weights.
    - `order`: 1 for local linear attention: a head returns the value at the query of the line in
      k − q with the least weighted squared error. Default 0: the weighted mean of values.
    - `ridge`: λ of its slopes: $\sum_j a_{ij} (k_j - q)(k_j - q)^\top + \lambda I$ is inverted.
      Zuo et al. (2025) add theirs to sums of weights that are not normalised.
    - `rotary`: rotates queries and keys by their positions: `ak.Rotary()`. Default: none.
    - `qk_norm`: whether queries and keys of heads have an RMS norm with a learned scale.

    `step` decodes: its rows equal those of `self(x, x, x, prior=ak.Causal())`; with a ring, of
    `ak.Window(cache.window - 1, 0)`, joined by `|` with the sinks.

    **Raises:** `ValueError` if sizes are not positive integers, or heads do not divide.

    **Source:** Vaswani et al., *Attention is all you need* (2017); Ainslie et al., *GQA* (2023);
    Henry et al., *Query-key normalization for transformers* (2020).

    ```python
    attention = ak.MultiheadAttention(2, 8, prior=ak.Causal(), key=jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 8))
    assert attention(x, x, x).shape == (5, 8)
    ```
    """

    query_proj: eqx.nn.Linear
    key_proj: eqx.nn.Linear
    value_proj: eqx.nn.Linear
    output_proj: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    query_norm: eqx.nn.RMSNorm | None
    key_norm: eqx.nn.RMSNorm | None
    kernel: Kernel | PerHead
    prior: Prior | PerHead | None
    rule: Rule | PerHead
    method: Method
    rotary: Rotary | None

    num_heads: int = eqx.field(static=True)
    num_kv_heads: int = eqx.field(static=True)
    query_size: int = eqx.field(static=True)
    key_size: int = eqx.field(static=True)
    value_size: int = eqx.field(static=True)
    output_size: int = eqx.field(static=True)
    qk_size: int = eqx.field(static=True)
    vo_size: int = eqx.field(static=True)
    use_query_bias: bool = eqx.field(static=True)
    use_key_bias: bool = eqx.field(static=True)
    use_value_bias: bool = eqx.field(static=True)
    use_output_bias: bool = eqx.field(static=True)
    order: int = eqx.field(static=True)
    ridge: float = eqx.field(static=True)

    def __init__(
        self,
        num_heads: int,
        query_size: int,
        key_size: int | None = None,
        value_size: int | None = None,
        output_size: int | None = None,
        qk_size: int | None = None,
        vo_size: int | None = None,
        use_query_bias: bool = False,
        use_key_bias: bool = False,
        use_value_bias: bool = False,
        use_output_bias: bool = False,
        dropout_p: float = 0.0,
        inference: bool = False,
        dtype=None,
        *,
        num_kv_heads: int | None = None,
        kernel: Kernel | PerHead = DotProduct(),
        prior: Prior | PerHead | None = None,
        rule: Rule | PerHead = Softmax(),
        method: Method = Auto(),
        order: int = 0,
        ridge: float = 0.0,
        rotary: Rotary | None = None,
        qk_norm: bool = False,
        key: PRNGKeyArray,
    ):
        def size_of(name: str, size: int | None) -> int:
            return self.query_size if size is None else as_integer(name, size, 1)

        self.num_heads = num_heads = as_integer("num_heads", num_heads, 1)
        self.num_kv_heads = num_heads
        if num_kv_heads is not None:
            self.num_kv_heads = as_integer("num_kv_heads", num_kv_heads, 1)
        self.query_size = query_size = as_integer("query_size", query_size, 1)
        self.key_size = size_of("key_size", key_size)
        self.value_size = size_of("value_size", value_size)
        self.output_size = size_of("output_size", output_size)
        self.qk_size = head_size("qk_size", qk_size, query_size, num_heads)
        self.vo_size = head_size("vo_size", vo_size, query_size, num_heads)
        require_divisible(num_heads, self.num_kv_heads)
        require_attention_parts(kernel, prior, rule, method)
        require_bools(
            use_query_bias=use_query_bias,
            use_key_bias=use_key_bias,
            use_value_bias=use_value_bias,
            use_output_bias=use_output_bias,
            inference=inference,
            qk_norm=qk_norm,
        )
        require_key("key", key)
        dtype = as_float_dtype("dtype", dtype)
        order = as_order(order)
        require_dropout_and_ridge(dropout_p, ridge, order)
        require_rotary(rotary, self.qk_size)
        self.use_query_bias, self.use_key_bias = use_query_bias, use_key_bias
        self.use_value_bias, self.use_output_bias = use_value_bias, use_output_bias
        of_queries, of_keys, of_values, of_output = jax.random.split(key, 4)

        def linear(size: int, out: int, use_bias: bool, key: PRNGKeyArray) -> eqx.nn.Linear:
            return eqx.nn.Linear(size, out, use_bias=use_bias, dtype=dtype, key=key)

        kv_heads, qk, vo = self.num_kv_heads, self.qk_size, self.vo_size
        self.query_proj = linear(self.query_size, num_heads * qk, use_query_bias, of_queries)
        self.key_proj = linear(self.key_size, kv_heads * qk, use_key_bias, of_keys)
        self.value_proj = linear(self.value_size, kv_heads * vo, use_value_bias, of_values)
        self.output_proj = linear(num_heads * vo, self.output_size, use_output_bias, of_output)
        self.dropout = eqx.nn.Dropout(dropout_p, inference=inference)
        norm = functools.partial(eqx.nn.RMSNorm, qk, use_bias=False, dtype=dtype)
        self.query_norm, self.key_norm = (norm(), norm()) if qk_norm else (None, None)
        self.kernel, self.prior, self.rule, self.method = kernel, prior, rule, method
        self.rotary = rotary
        self.order, self.ridge = order, ridge

    def __call__(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        value: Float[Array, "values value_size"],
        mask: ArrayLike | None = None,
        *,
        key: PRNGKeyArray | None = None,
        inference: bool | None = None,
        deterministic: bool | None = None,
        process_heads: ProcessHeads | None = None,
        prior: Prior | PerHead | None = None,
        positions: Int[Array, "queries *axes"] | None = None,
        key_positions: Int[Array, "keys *axes"] | None = None,
    ) -> Float[Array, "queries output_size"]:
        """**Arguments:**

        - `query`, `key_`, `value`: one sequence each, the last two of the same length.
        - `mask`: True = attend, shape (queries, keys) or (heads, queries, keys); integers other
          than 0 are True. A `prior` needs no array of all pairs.
        - `key`: a PRNG key for dropout. `inference`: whether to leave dropout out; `deterministic`
          is its older name, as in Equinox.
        - `process_heads`: a function of the heads of queries, keys and values, each of shape
          (rows, heads, size), to ones of the same shapes.
        - `prior`: multiplied by the module's own.
        - `positions`, `key_positions`: positions of queries and keys, for rotary angles and the
          module's own prior. Default: 0, 1, 2, ... Where `rotary` has several axes, shape
          (rows, axes); the module's own prior then counts rows.

        **Raises:** `ValueError` if the sizes of arrays are not those of the module.
        """
        if deterministic is not None:
            warnings.warn("deterministic= is the older name of inference=.", stacklevel=2)
            inference = deterministic
        heads = project_heads(self, query, key_, value, process_heads, positions, key_positions)
        own = self.prior
        has_positions = positions is not None or key_positions is not None
        if own is not None and has_positions and (self.rotary is None or self.rotary.axes == 1):
            own = AtPositions(own, *read_positions(heads, positions, key_positions))
        mask_prior = mask_as_prior(mask, self.num_heads, query.shape[0], key_.shape[0])
        prior = multiply_priors(own, prior, mask_prior)
        if not self.dropout.p or (self.dropout.inference if inference is None else inference):
            return self.output_of_heads(*heads, prior)[0]
        out = self._make_head_sums().values_with_dropout(*heads, prior, self.dropout, key)
        return jax.vmap(self.output_proj)(out.astype(query.dtype))

    def attended(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        value: Float[Array, "values value_size"],
        *,
        prior: Prior | PerHead | None = None,
    ) -> tuple[Float[Array, "queries output_size"], Bool[Array, " queries"]]:
        """The output without dropout, and the queries for which no head sees a key."""
        heads = project_heads(self, query, key_, value)
        return self.output_of_heads(*heads, multiply_priors(self.prior, prior))

    def weights(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        mask: ArrayLike | None = None,
        *,
        prior: Prior | PerHead | None = None,
    ) -> Float[Array, "heads queries keys"]:
        """The weights of each head: an array of all pairs."""
        key_ = as_sequence("key_", key_, self.key_size)
        values = jnp.zeros((key_.shape[0], self.value_size), key_.dtype)
        q, k, _ = project_heads(self, query, key_, values)
        mask_prior = mask_as_prior(mask, self.num_heads, query.shape[0], key_.shape[0])
        return self._make_head_sums().weights(q, k, multiply_priors(self.prior, prior, mask_prior))

    def cache(
        self, capacity: int, *, ring: bool = False, sinks: int = 0, spare: int = 0, dtype=None
    ) -> KVCache:
        """An empty cache for `step`; arguments as in `KVCache`."""
        sizes = (self.num_kv_heads, self.qk_size, self.vo_size)
        return KVCache(capacity, *sizes, ring=ring, sinks=sinks, spare=spare, dtype=dtype)

    def recurrent_cache(self, *, dtype=None) -> RecurrentCache:
        """An empty cache for `step` of linear attention: `method=ak.methods.Linear(...)`.

        Its sums have at least float32: in bfloat16 a sum of equal numbers stops growing after a few
        hundred of them.

        **Raises:** `ValueError` if the module has another method, a prior, or heads that differ.
        """
        return empty_sums(self, dtype)

    def _next_rows(self, new: NewRows, cache: Any) -> tuple[Array, KVCache | RecurrentCache]:
        return attend_next_rows(self, new, cache)

    def _make_head_sums(self) -> HeadSums:
        """Returns a `HeadSums` of the module's kernel, rule, method, order, ridge and heads."""
        parts = (self.kernel, self.rule, self.method, self.order, self.ridge)
        return HeadSums(*parts, self.num_heads, self.num_kv_heads)

    def output_of_heads(
        self, q: OfHeads, k: OfHeads, v: OfHeads, prior: Any
    ) -> tuple[Float[Array, "_rows output_size"], Bool[Array, " _rows"]]:
        """The output, and the queries for which no head sees a key."""
        rows, empty = self._make_head_sums().values(q, k, v, prior)
        return jax.vmap(self.output_proj)(rows), empty
