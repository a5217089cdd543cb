"""Attention of many heads: between sequences or within one, at once or row by row with a cache."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import as_float_dtype
from .._core.validation import (
    as_integer,
    is_real_number,
    require_bool,
    require_function,
    require_key,
)
from ..attention import Auto, PerHead, attention_weights
from ..attention._local_polynomial import as_order, local_polynomial
from ..kernels import DotProduct, Kernel
from ..methods import Method
from ..priors import At, Causal, HeldOut, Prior, Window
from ..rules import Rule, Softmax
from ._cache import KVCache
from ._heads import (
    OfHeads,
    as_sequence,
    as_sequences,
    grouped,
    masked,
    multiply_priors,
    positions_of,
    require_heads,
    share,
    split,
)
from ._recurrent import RecurrentCache, features_of
from ._rotary import rotate

ProcessHeads = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


class MultiheadAttention(eqx.Module):
    r"""Many heads of attention, each with projections of its own, and one projection of them all.

    $$ \mathrm{out}_i = \sum_{h=1}^{H} W_o^h \sum_j a^h_{ij}\, W_v^h v_j, \qquad
       a^h_{ij} \propto K(W_q^h q_i, W_k^h k_j)\, \pi(i, j) $$

    Constructor, parameters, call and results are those of `equinox.nn.MultiheadAttention`: replace
    the class, and copy the weights or take the same `key`. One thing differs: where a mask hides
    all keys from a query, its heads are 0 here, and the mean of all values there.

    **Arguments:** those of `equinox.nn.MultiheadAttention`, and by keyword

    - `num_kv_heads`: how many heads of keys and values; consecutive heads of queries share one.
      Default: `num_heads`.
    - `kernel`: K, of a query and a key of one head. Default: `ak.DotProduct()`, at $1/\sqrt{d}$.
      A soft cap on scores is `ak.SoftCapped(ak.DotProduct(), ak.fixed(50.0))`.
    - `prior`, `rule`: as in `attend`. They and `kernel` may be `ak.PerHead`, of `num_heads` heads.
    - `method`: how sums are evaluated. Default: `Auto()`. Dropout alone forms all weights.
    - `order`: 1 for local linear attention: of each head, in place of the weighted mean of values,
      the value at the query of the line in k − q that fits them best, by weight. Default 0.
    - `ridge`: λ of its slopes, see `local_polynomial`: $\sum_j a_{ij} (k_j - q)(k_j - q)^\top +
      \lambda I$ is what is inverted. Default 0.
    - `rotary_base`: turns queries and keys by their positions (see `rotate`). Default None: no.
    - `qk_norm`: whether to put an RMS norm with a learned scale on the queries and keys of heads.

    **Raises:** `ValueError` if sizes are not positive integers, or heads do not divide.

    **Source:** Vaswani et al., *Attention is all you need* (2017); Ainslie et al., *GQA* (2023);
    Henry et al., *Query-key normalization for transformers* (2020).
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
    rotary_base: float | None = eqx.field(static=True)
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
        rotary_base: float | None = None,
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
        self.qk_size = share("qk_size", qk_size, query_size, num_heads)
        self.vo_size = share("vo_size", vo_size, query_size, num_heads)
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, so that equally many heads of "
                f"queries share one of keys; got {num_heads} and {self.num_kv_heads}."
            )
        require_heads(kernel, prior, rule, method)
        for name, flag in (
            ("use_query_bias", use_query_bias),
            ("use_key_bias", use_key_bias),
            ("use_value_bias", use_value_bias),
            ("use_output_bias", use_output_bias),
            ("inference", inference),
            ("qk_norm", qk_norm),
        ):
            require_bool(name, flag)
        require_key("key", key)
        dtype = as_float_dtype("dtype", dtype)
        if not is_real_number(dropout_p) or not 0 <= dropout_p < 1:
            raise ValueError(f"dropout_p must be a share from 0 to below 1; got {dropout_p!r}.")
        if rotary_base is not None and not (is_real_number(rotary_base) and rotary_base > 0):
            raise ValueError(f"rotary_base must be above 0, such as 10000.0; got {rotary_base!r}.")
        if rotary_base is not None and self.qk_size % 2:
            raise ValueError(
                f"Rotary positions turn pairs of coordinates: qk_size must be even; got "
                f"{self.qk_size}."
            )
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
        self.rotary_base = rotary_base
        order = as_order(order)
        if not is_real_number(ridge) or ridge < 0:
            raise ValueError(f"ridge must be a finite number from 0; got {ridge!r}.")
        if order and dropout_p:
            raise ValueError(
                f"Dropout is of weights, and so of order 0 only; got order={order!r}, "
                f"dropout_p={dropout_p!r}."
            )
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
        positions: Int[Array, " queries"] | None = None,
        key_positions: Int[Array, " keys"] | None = None,
    ) -> Float[Array, "queries output_size"]:
        """**Arguments:**

        - `query`, `key_`, `value`: one sequence each, the last two of the same length.
        - `mask`: True = attend, shape (queries, keys) or (heads, queries, keys); of integers all
          but 0 are True. A `prior` says the same without an array of all pairs.
        - `key`: a PRNG key for dropout. `inference`: whether to leave dropout out; `deterministic`
          is its older name, as in Equinox.
        - `process_heads`: a function of the heads of queries, keys and values, each of shape
          (rows, heads, size), to ones of the same shapes.
        - `prior`: added to the module's own.
        - `positions`, `key_positions`: where queries and keys stand, for rotary angles and the
          module's own prior. Default: 0, 1, 2, ...

        **Raises:** `ValueError` if arrays are of other sizes than the module's.
        """
        if deterministic is not None:
            warnings.warn("deterministic= is the older name of inference=.", stacklevel=2)
            inference = deterministic
        heads = self._heads(query, key_, value, process_heads, positions, key_positions)
        own = self.prior
        if own is not None and (positions is not None or key_positions is not None):
            own = At(own, *positions_of(heads, positions, key_positions))
        prior = multiply_priors(
            own, prior, masked(mask, self.num_heads, query.shape[0], key_.shape[0])
        )
        if not self.dropout.p or (self.dropout.inference if inference is None else inference):
            return self._summed(*heads, prior)[0]
        weights = self._weights(*heads[:2], prior)
        if key is None:
            raise ValueError(
                "Dropout draws random numbers: pass key=, a PRNG key; or inference=True."
            )
        keys = jax.random.split(key, self.num_heads)
        dropout = functools.partial(self.dropout, inference=inference)
        weights = jax.vmap(lambda weights, key: dropout(weights, key=key))(weights, keys)
        v = jnp.repeat(heads[2], self.num_heads // self.num_kv_heads, axis=1)
        out = jnp.einsum("hqk,khd->qhd", weights, v, precision=jax.lax.Precision.HIGHEST)
        return jax.vmap(self.output_proj)(out.reshape(query.shape[0], -1).astype(query.dtype))

    def attended(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        value: Float[Array, "values value_size"],
        *,
        prior: Prior | PerHead | None = None,
    ) -> tuple[Float[Array, "queries output_size"], Bool[Array, " queries"]]:
        """The output without dropout, and of which queries no head sees any key."""
        heads = self._heads(query, key_, value, None, None, None)
        return self._summed(*heads, multiply_priors(self.prior, prior))

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
        q, k, _ = self._heads(query, key_, values, None, None, None)
        mask_prior = masked(mask, self.num_heads, query.shape[0], key_.shape[0])
        return self._weights(q, k, multiply_priors(self.prior, prior, mask_prior))

    def cache(self, capacity: int, *, ring: bool = False, dtype=None) -> KVCache:
        """An empty cache for `step`."""
        sizes = (self.num_kv_heads, self.qk_size, self.vo_size)
        return KVCache(capacity, *sizes, ring=ring, dtype=dtype)

    def recurrent_cache(self, *, dtype=None) -> RecurrentCache:
        """An empty cache for `step` of linear attention: `method=ak.Linear(...)`.

        **Raises:** `ValueError` if the module has another method, a prior, or heads that differ.
        """
        parts = (self.method, self.kernel, self.prior, self.rule)
        features = features_of(*parts, self.qk_size)
        return RecurrentCache(self.num_heads, features, self.vo_size, dtype=dtype)

    @overload
    def step(self, x: Array, cache: KVCache) -> tuple[Array, KVCache]: ...

    @overload
    def step(self, x: Array, cache: RecurrentCache) -> tuple[Array, RecurrentCache]: ...

    def step(
        self, x: Float[Array, "new query_size"], cache: KVCache | RecurrentCache
    ) -> tuple[Float[Array, "new output_size"], KVCache | RecurrentCache]:
        """Causal self-attention of the next rows of a sequence: one, or many at once to begin with.

        Equal to the rows that `self(x, x, x, prior=ak.Causal())` of the whole sequence has in their
        place; with a ring, of `prior=ak.Window(capacity - 1, 0)`.

        **Returns:** the output, and the cache with the new rows in it.

        **Raises:** `ValueError` if a full cache has no room for them (inside `jit`, at run time).
        """
        positions = cache.next_positions(x.shape[0])
        q, k, v = self._heads(x, x, x, None, positions, positions)
        if isinstance(cache, RecurrentCache):
            out, cache = cache.append(q, k, v, self.method, self.kernel, self.rule)
            return jax.vmap(self.output_proj)(out.reshape(q.shape[0], -1)), cache
        rows, cache = cache.append(k, v)
        seen = Window(cache.capacity - 1, 0) if cache.ring else Causal()
        prior = At(multiply_priors(self.prior, seen), positions, rows.positions)
        prior = prior * HeldOut(rows.positions < 0)
        return self._summed(q, rows.keys, rows.values, prior)[0], cache

    def _heads(
        self,
        query: Array,
        key_: Array,
        value: Array,
        process_heads: ProcessHeads | None,
        positions: Array | None,
        key_positions: Array | None,
    ) -> tuple[OfHeads, OfHeads, OfHeads]:
        """Queries, keys and values of heads, normed, processed and turned."""
        sizes = (self.query_size, self.key_size, self.value_size)
        query, key_, value = as_sequences(query, key_, value, sizes)
        if process_heads is not None:
            require_function("process_heads", process_heads)

        def project(linear: eqx.nn.Linear, rows: Array, heads: int) -> OfHeads:
            return jax.vmap(linear)(rows).reshape(rows.shape[0], heads, -1)

        q = project(self.query_proj, query, self.num_heads)
        k = project(self.key_proj, key_, self.num_kv_heads)
        v = project(self.value_proj, value, self.num_kv_heads)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = (jax.vmap(jax.vmap(n))(x) for n, x in ((self.query_norm, q), (self.key_norm, k)))
        if process_heads is not None:
            shapes = tuple(part.shape for part in (q, k, v))
            q, k, v = process_heads(q, k, v)
            if tuple(part.shape for part in (q, k, v)) != shapes:
                raise ValueError(
                    f"process_heads must not change the shapes of the heads, {shapes}; it gave "
                    f"{tuple(part.shape for part in (q, k, v))}."
                )
        at = positions_of((q, k), positions, key_positions)
        if self.rotary_base is not None:
            q, k = (
                rotate(part.swapaxes(0, 1), where, self.rotary_base).swapaxes(0, 1)
                for part, where in zip((q, k), at, strict=True)
            )
        return q, k, v

    def _parts(self, prior: Any) -> dict[str, Any]:
        parts = {"kernel": self.kernel, "prior": prior, "rule": self.rule}
        heads = (self.num_heads, self.num_kv_heads)
        return {name: grouped(part, *heads) for name, part in parts.items()}

    def _summed(
        self, q: OfHeads, k: OfHeads, v: OfHeads, prior: Any
    ) -> tuple[Float[Array, "_rows output_size"], Bool[Array, " _rows"]]:
        """The output, and of which queries no head sees any key."""
        heads = (split(part, self.num_kv_heads) for part in (q, k, v))
        local = local_polynomial(
            *heads, **self._parts(prior), method=self.method, order=self.order, ridge=self.ridge
        )
        rows = jnp.moveaxis(local.coefficients[..., 0, :], 2, 0).reshape(q.shape[0], -1)
        empty = jnp.all(jnp.isneginf(local.log_mass), axis=(0, 1))
        return jax.vmap(self.output_proj)(rows), empty

    def _weights(self, q: OfHeads, k: OfHeads, prior: Any) -> Float[Array, "heads queries keys"]:
        q, k = (split(part, self.num_kv_heads) for part in (q, k))
        weights = attention_weights(q, k, **self._parts(prior))
        return weights.reshape(self.num_heads, *weights.shape[2:])
