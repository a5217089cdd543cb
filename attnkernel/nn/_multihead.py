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

from .._core.arrays import as_float_dtype, wider_dtype
from .._core.hints import explained
from .._core.validation import is_real_number, require_function, require_instance, require_key
from ..attention import Auto, PerHead, as_order, attention_weights, require_parts, task_of, votes
from ..kernels import DotProduct, Features, Kernel
from ..local import Polynomial, local_polynomial
from ..methods import Linear, LinearState, Method, Votes, advance
from ..priors import AtPositions, Causal, Prior, pair_mask_of
from ..rules import Rule, Softmax
from ._cache import KVCache, RecurrentCache
from ._cached_layer import HeadsLayer, NewRows
from ._inputs import (
    Heads,
    as_positions,
    as_sequence,
    join_heads,
    mask_as_prior,
    multiply_priors,
    require_bools,
    size_or,
    split_heads,
)
from ._rotary import Rotary, require_rotary

ProcessHeads = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


class MultiheadAttention(HeadsLayer):
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

    num_kv_heads: int = eqx.field(static=True)
    key_size: int = eqx.field(static=True)
    value_size: int = eqx.field(static=True)
    use_query_bias: bool = eqx.field(static=True)
    use_key_bias: bool = eqx.field(static=True)
    use_value_bias: bool = eqx.field(static=True)
    use_output_bias: bool = eqx.field(static=True)
    order: int = eqx.field(static=True)
    ridge: float = eqx.field(static=True)

    @explained
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
        self._set_sizes(num_heads, query_size, output_size, qk_size, vo_size)
        num_heads, query_size = self.num_heads, self.query_size
        self.num_kv_heads = size_or("num_kv_heads", num_kv_heads, num_heads)
        self.key_size = size_or("key_size", key_size, query_size)
        self.value_size = size_or("value_size", value_size, query_size)
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, so that each head of keys serves "
                f"the same number of query heads; got {num_heads} and {num_kv_heads}."
            )
        require_parts(kernel, prior, rule, method)
        require_bools(use_query_bias=use_query_bias, use_key_bias=use_key_bias, qk_norm=qk_norm)
        require_bools(
            use_value_bias=use_value_bias, use_output_bias=use_output_bias, inference=inference
        )
        require_key("key", key)
        order = as_order(order)
        if not is_real_number(dropout_p) or not 0 <= dropout_p < 1:
            raise ValueError(f"dropout_p must be a share from 0 to below 1; got {dropout_p!r}.")
        if not is_real_number(ridge) or ridge < 0:
            raise ValueError(f"ridge must be a finite number from 0; got {ridge!r}.")
        if order and dropout_p:
            raise ValueError(
                f"Dropout acts on weights, and needs order 0; got order={order!r}, "
                f"dropout_p={dropout_p!r}."
            )
        require_rotary(rotary, self.qk_size)
        self.use_query_bias, self.use_key_bias = use_query_bias, use_key_bias
        self.use_value_bias, self.use_output_bias = use_value_bias, use_output_bias
        dtype = as_float_dtype("dtype", dtype)
        keys = jax.random.split(key, 4)
        linear = functools.partial(eqx.nn.Linear, dtype=dtype)
        qk, vo, kv_heads = self.qk_size, self.vo_size, self.num_kv_heads
        self.query_proj = linear(query_size, num_heads * qk, use_query_bias, key=keys[0])
        self.key_proj = linear(self.key_size, kv_heads * qk, use_key_bias, key=keys[1])
        self.value_proj = linear(self.value_size, kv_heads * vo, use_value_bias, key=keys[2])
        self.output_proj = linear(num_heads * vo, self.output_size, use_output_bias, key=keys[3])
        self.dropout = eqx.nn.Dropout(dropout_p, inference=inference)
        norm = functools.partial(eqx.nn.RMSNorm, qk, use_bias=False, dtype=dtype)
        self.query_norm, self.key_norm = (norm(), norm()) if qk_norm else (None, None)
        self.kernel, self.prior, self.rule, self.method = kernel, prior, rule, method
        self.rotary, self.order, self.ridge = rotary, order, ridge

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
        """Returns the output of each query; warns if `deterministic` is given.

        **Arguments:**

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
          (rows, axes), without a default; the module's own prior then counts rows.

        **Raises:** `ValueError` if the sizes of arrays are not those of the module, or dropout
        acts and `key` is None.
        """
        if deterministic is not None:
            warnings.warn("deterministic= is the older name of inference=.", stacklevel=2)
            inference = deterministic
        at = positions, key_positions
        heads = self._read(query, key_, value, mask, prior, *at, process_heads)
        if not self.dropout.p or (self.dropout.inference if inference is None else inference):
            return self._output(self._attend(*heads)[0])
        return self._output(self._attend_with_dropout(*heads, key).astype(heads[0].dtype))

    def attended(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        value: Float[Array, "values value_size"],
        *,
        prior: Prior | PerHead | None = None,
    ) -> tuple[Float[Array, "queries output_size"], Bool[Array, " queries"]]:
        """The output without dropout, and a mask of queries: True where no head sees a key."""
        out, empty = self._attend(*self._read(query, key_, value, prior=prior))
        return self._output(out), empty

    def weights(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        mask: ArrayLike | None = None,
        *,
        prior: Prior | PerHead | None = None,
    ) -> Float[Array, "heads queries keys"]:
        """The weights of each head: an array of all pairs."""
        return self._weights(*self._read_keys(query, key_, mask, prior))

    def votes(
        self,
        query: Float[Array, "queries query_size"],
        key_: Float[Array, "keys key_size"],
        mask: ArrayLike | None = None,
        *,
        prior: Prior | PerHead | None = None,
        k_largest: int = 10,
    ) -> Votes:
        """The largest weights of each head, (heads, queries, k), and their keys: see `ak.votes`."""
        q, k, prior = self._read_keys(query, key_, mask, prior)
        heads, parts = self._grouped((q, k), prior)
        found = votes(*heads, **parts, k_largest=k_largest)
        return jax.tree.map(lambda of: of.reshape(self.num_heads, *of.shape[2:]), found)

    def cache(self, capacity: int, **options: Any) -> KVCache:
        """An empty cache for `step`; `options` as in `KVCache`.

        **Raises:** `ValueError` for a kernel that looks at all keys, such as `NearestNeighbours`.
        """
        kernel: Any = getattr(self.kernel, "stack", self.kernel)
        if not kernel.is_pairwise:  # it would count the places without a key
            raise ValueError(f"{type(kernel).__name__} looks at all keys: it takes no cache.")
        return KVCache(capacity, self.num_kv_heads, self.qk_size, self.vo_size, **options)

    def recurrent_cache(self, *, dtype=None) -> RecurrentCache:
        """An empty cache for `step` of linear attention: `method=ak.methods.Linear(...)`.

        Its sums have at least float32: in bfloat16 a sum of equal numbers stops growing after a few
        hundred of them.

        **Raises:** `ValueError` if the module has another method, a prior other than `ak.Causal()`,
        parts that differ by head, or a kernel or rule that `Linear` cannot evaluate.
        """
        method, kernel, rule, prior = self._linear_parts()
        one = jax.ShapeDtypeStruct((1, self.qk_size), jnp.result_type(float))
        reason = method.unsupported_reason(task_of(one, one, one, kernel, prior, rule))
        if reason is not None:
            raise ValueError(f"Linear cannot evaluate this: {reason}")
        mask = pair_mask_of(prior)
        if not mask.is_causal or mask.allowed is not None:
            raise ValueError(f"A recurrent cache takes no prior but ak.Causal(); got {prior!r}.")
        _, of_key = eqx.filter_eval_shape(method.apply_features, one, one, kernel, rule)
        dtype = wider_dtype(as_float_dtype("dtype", dtype))
        empty = LinearState.empty(of_key.log.shape[1], self.vo_size, dtype)
        return RecurrentCache(jax.tree.map(lambda leaf: jnp.stack([leaf] * self.num_heads), empty))

    def _read(
        self,
        query: Array,
        key_: Array,
        value: Array,
        mask: ArrayLike | None = None,
        prior: Prior | PerHead | None = None,
        positions: Any = None,
        key_positions: Any = None,
        process_heads: ProcessHeads | None = None,
    ) -> tuple[Heads, Heads, Heads, Prior | PerHead | None]:
        """Returns the heads of queries, keys and values, and the product of mask and priors.

        Heads are projected, then processed by `process_heads`. Queries and keys are normalised
        before this, and rotated after it. The prior is None if none is given. `ValueError` for
        other shapes.
        """
        query = as_sequence("query", query, self.query_size)
        key_ = as_sequence("key_", key_, self.key_size)
        value = as_sequence("value", value, self.value_size)
        if key_.shape[0] != value.shape[0]:
            raise ValueError(
                f"key_ and value must have the same number of rows; got {key_.shape[0]} keys and "
                f"{value.shape[0]} values."
            )

        def project(
            linear: eqx.nn.Linear, rows: Array, heads: int, norm: eqx.nn.RMSNorm | None = None
        ) -> Heads:
            out = split_heads(jax.vmap(linear)(rows), heads)
            return out if norm is None else jax.vmap(jax.vmap(norm))(out)

        q = project(self.query_proj, query, self.num_heads, self.query_norm)
        k = project(self.key_proj, key_, self.num_kv_heads, self.key_norm)
        v = project(self.value_proj, value, self.num_kv_heads)
        if process_heads is not None:
            require_function("process_heads", process_heads)
            shapes = (q.shape, k.shape, v.shape)
            q, k, v = process_heads(q, k, v)
            if (found := (q.shape, k.shape, v.shape)) != shapes:
                raise ValueError(
                    f"process_heads must not change the shapes of the heads, {shapes}; it gave "
                    f"{found}."
                )
        axes, own = self.rotary.axes if self.rotary else 1, self.prior
        at = as_positions("positions", positions, q.shape[0], axes)
        key_at = as_positions("key_positions", key_positions, k.shape[0], axes)
        if self.rotary is not None:
            q = self.rotary(q.swapaxes(0, 1), at).swapaxes(0, 1)
            k = self.rotary(k.swapaxes(0, 1), key_at).swapaxes(0, 1)
        if own is not None and axes == 1 and not (positions is None and key_positions is None):
            own = AtPositions(own, at, key_at)
        mask_prior = mask_as_prior(mask, self.num_heads, q.shape[0], k.shape[0])
        return q, k, v, multiply_priors(own, prior, mask_prior)

    def _read_keys(
        self, query: Array, key_: Array, mask: Any, prior: Any
    ) -> tuple[Heads, Heads, Any]:
        """Returns the heads of queries and keys, and the prior, of a call without values."""
        key_ = as_sequence("key_", key_, self.key_size)
        values = jnp.zeros((key_.shape[0], self.value_size), key_.dtype)
        q, k, _, prior = self._read(query, key_, values, mask, prior)
        return q, k, prior

    def _attend(
        self, q: Heads, k: Heads, v: Heads, prior: Any
    ) -> tuple[Float[Array, "_rows _width"], Bool[Array, " _rows"]]:
        """Returns the results of all heads side by side, before the output projection, and a mask
        of queries: True where no head sees a key."""
        heads, parts = self._grouped((q, k, v), prior)
        polynomial = Polynomial(tuple(parts.values()), self.order, method=self.method)
        local = local_polynomial(*heads, polynomial=polynomial, ridge=self.ridge)
        rows = join_heads(jnp.moveaxis(local.coefficients[..., 0, :], 2, 0))
        return rows, jnp.all(local.empty, axis=(0, 1))

    def _attend_with_dropout(
        self, q: Heads, k: Heads, v: Heads, prior: Any, key: PRNGKeyArray | None
    ) -> Float[Array, "_rows _width"]:
        """Returns the results of all heads side by side, of order 0, with dropout on their weights.

        `ValueError` without a key.
        """
        if key is None:
            raise ValueError(
                "Dropout draws random numbers: pass key=, a PRNG key; or inference=True."
            )
        keys = jax.random.split(key, self.num_heads)
        drop = functools.partial(self.dropout, inference=False)
        weights = jax.vmap(lambda of, key: drop(of, key=key))(self._weights(q, k, prior), keys)
        v = jnp.repeat(v, self.num_heads // self.num_kv_heads, axis=1)
        out = jnp.einsum("hqk,khd->qhd", weights, v, precision=jax.lax.Precision.HIGHEST)
        return join_heads(out)

    def _weights(self, q: Heads, k: Heads, prior: Any) -> Float[Array, "heads queries keys"]:
        """Returns the weights of each head: an array of all pairs."""
        heads, parts = self._grouped((q, k), prior)
        weights = attention_weights(*heads, **parts)
        return weights.reshape(self.num_heads, *weights.shape[2:])

    def _grouped(self, heads: tuple[Heads, ...], prior: Any) -> tuple[list[Array], dict[str, Any]]:
        """Returns the arrays `heads`, and a dict of `kernel`, `prior` and `rule`, for `attend`.

        Heads become two leading axes: heads of keys, and the query heads that share each of them.
        Keys and values have size 1 along the second. `ValueError` for a `PerHead` of another number
        of heads.
        """
        kv_heads = heads[1].shape[1]
        groups = (kv_heads, self.num_heads // kv_heads)

        def regroup(node: Any) -> Any:
            if not isinstance(node, PerHead):
                return node
            if node.shape != (self.num_heads,):
                raise ValueError(
                    f"A PerHead of this module must have {self.num_heads} heads; got {node.shape}."
                )
            split = lambda leaf: leaf.reshape(*groups, *leaf.shape[1:])  # noqa: E731
            arrays, rest = eqx.partition(node.stack, eqx.is_array)
            return PerHead(eqx.combine(jax.tree.map(split, arrays), rest), axes=2)

        parts = {"kernel": self.kernel, "prior": prior, "rule": self.rule}
        parts = jax.tree.map(regroup, parts, is_leaf=lambda node: isinstance(node, PerHead))
        return [
            x.swapaxes(0, 1).reshape(kv_heads, x.shape[1] // kv_heads, x.shape[0], x.shape[2])
            for x in heads
        ], parts

    def _output(self, heads: Float[Array, "_rows *_heads"]) -> Float[Array, "_rows output_size"]:
        """Returns the output projection of the results of heads."""
        return jax.vmap(self.output_proj)(join_heads(heads))

    def _decode_rows(self, new: NewRows, cache: Any) -> tuple[Array, KVCache | RecurrentCache]:
        require_instance("cache", cache, (KVCache, RecurrentCache), "attention.cache(100)")
        if isinstance(cache, RecurrentCache):
            return self._decode_linear(new, cache)
        heads, after = self._project_and_append(new, cache)
        return self._output(self._attend(*heads)[0]), after

    def _project_and_append(
        self, new: NewRows, cache: KVCache
    ) -> tuple[tuple[Heads, Heads, Heads, Prior], KVCache]:
        """Returns (queries of new rows, keys, values, prior), and the new cache.

        Keys and values are all of `KVCache.append`; the prior hides those that a row does not see.
        """
        (q, k, v), positions = self._project_rows(new, cache)
        seen, after = cache.append(k, v, count=new.rows, positions=positions)
        own = multiply_priors(self.prior, new.prior)
        prior = cache.visible_prior(seen, positions, new.mask, own)
        return (q, seen.keys, seen.values, prior), after

    def _project_rows(
        self, new: NewRows, cache: KVCache | RecurrentCache
    ) -> tuple[tuple[Heads, Heads, Heads], Int[Array, " new"]]:
        """Returns queries, keys and values of new rows, and their positions for priors.

        With several axes of `rotary` these are the numbers of the rows in the sequence.
        """
        x, at = new.x, cache.next_positions(new.x.shape[0])
        axes, numbers = self.rotary.axes if self.rotary else 1, at
        if new.positions is not None or axes > 1:
            at = as_positions("positions", new.positions, x.shape[0], axes)
        q, k, v, _ = self._read(x, x, x, positions=at, key_positions=at)
        return (q, k, v), at if axes == 1 else numbers

    def _decode_linear(self, new: NewRows, cache: RecurrentCache) -> tuple[Array, RecurrentCache]:
        """Returns the output of new rows by linear attention, and the cache with the valid ones.

        Each row attends to itself and to all rows before. `ValueError` for a mask or a prior in
        `new`, and for a cache that `recurrent_cache` did not make.
        """
        new.refuse("sums of linear attention hold all rows before, in their order", "mask", "prior")
        require_instance("cache.state", cache.state, LinearState, "attention.recurrent_cache()")
        method, kernel, rule, _ = self._linear_parts()
        valid = new.valid
        (q, k, v), _ = self._project_rows(new, cache)
        dtype = wider_dtype(jnp.result_type(q, k, v), cache.dtype)

        def in_dtype(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

        def head(state: LinearState, q: Array, k: Array, v: Array) -> tuple[Array, LinearState]:
            values = jnp.concatenate([v, jnp.ones_like(v[:, :1])], axis=1)
            query_features, key_features = method.apply_features(q, k, kernel, rule)
            if valid is not None:
                log = jnp.where(valid[:, None], key_features.log, -jnp.inf)
                key_features = Features(log, jnp.where(valid[:, None], key_features.factor, 0.0))
            # parts of the kernel may be wider than its points
            softmax, state = advance(*in_dtype((state, query_features, key_features, values)))
            return softmax.with_sink(rule.log_sink()).value, state

        group = self.num_heads // self.num_kv_heads
        heads = in_dtype((q, jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)))
        out, state = jax.vmap(head)(cache.state, *(part.swapaxes(0, 1) for part in heads))
        return self._output(out.swapaxes(0, 1).astype(q.dtype)), cache.advanced(state, new.rows)

    def _linear_parts(self) -> tuple[Linear, Kernel, Rule, Prior]:
        """Returns method, kernel, rule and prior, `Causal()` if the module has none.

        Raises `ValueError` unless the method is `Linear`, the order is 0, and all heads have the
        same parts.
        """
        parts: Any = (self.method, self.kernel, self.rule, self.prior or Causal())
        if self.order or not all(map(isinstance, parts, (Linear, Kernel, Rule, Prior))):
            raise ValueError(
                "A recurrent cache needs linear attention of order 0, equal parts for all heads: "
                "make the module with method=ak.methods.Linear(...), or use cache(capacity)."
            )
        return parts
