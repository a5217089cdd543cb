"""Multi-head latent attention: keys and values of all heads are products of one latent a row."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray

from .._core.arrays import as_float_dtype, require_finite
from .._core.parameters import fixed
from .._core.validation import as_integer, require_instance, require_key
from ..attention import Auto, PerHead, attend, require_parts
from ..kernels import DotProduct
from ..methods import Method
from ..priors import AtPositions, Prior
from ..rules import Rule, Softmax
from ._cache import KVCache
from ._cached_layer import HeadsLayer, NewRows
from ._inputs import (
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


class LatentAttention(HeadsLayer):
    r"""Multi-head latent attention (MLA): keys and values are products of one latent for each row.

    $$ c_j = \mathrm{norm}(W_c x_j) \in \mathbb{R}^r, \quad
       k^h_j = (W_k^h c_j,\ R_j W_r x_j), \quad v^h_j = W_v^h c_j, \quad
       q^h_i = W_q^h u_i, \text{ its last } d_r \text{ numbers rotated by } R_i $$

    $$ \mathrm{out}_i = \sum_h W_o^h \sum_j a^h_{ij} v^h_j, \qquad
       a^h_{ij} \propto \exp\big(q^h_i \cdot k^h_j / \sqrt{d + d_r}\big)\, \pi(i, j) $$

    $R_i$ are rotary positions; the rotated part of a key is shared by all heads. $u_i = x_i$, or
    with latents of queries $\mathrm{norm}(W_u x_i)$, which takes fewer parameters. Decoding needs
    no keys and values: $q \cdot W_k c = (W_k^\top q) \cdot c$, and $\sum a_j W_v c_j = W_v \sum a_j
    c_j$. The cache of `step` holds $r + d_r$ numbers for each row, and heads share them.

    **Arguments:** `num_heads`, `query_size`, `output_size`, `vo_size`, `use_output_bias` and
    `dtype` as in `ak.MultiheadAttention`, and

    - `latent_size`: r. `qk_size`: d, of the part of queries and keys without positions. Default:
      `query_size // num_heads`.
    - `rotary_size`: $d_r$, even. Default: 0, no positions.
    - `rotary`: R, along one axis. Default: `ak.Rotary()`.
    - `latent_norm`: whether latents have an RMS norm with a learned scale. Default: yes.
    - `query_latent_size`: of u. Default None: u is x, as in DeepSeek-V2-Lite.
    - `prior`, `rule`, `method`: as in `ak.attend`; prior and rule may be `ak.PerHead`.

    **Raises:** `ValueError` if sizes are not positive integers, or $d_r$ is odd.

    **Source:** DeepSeek-AI, *DeepSeek-V2* (2024), section 2.1.

    ```python
    layer = ak.nn.LatentAttention(2, 8, 3, rotary_size=2, key=jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 8))
    out, cache = layer.step(x, layer.cache(100))
    assert jnp.allclose(out, layer(x, prior=ak.Causal()), atol=1e-5)
    assert cache.keys.shape == (100, 1, 5) and cache.values.size == 0
    ```
    """

    query_proj: eqx.nn.Linear
    latent_proj: eqx.nn.Linear
    rotary_proj: eqx.nn.Linear | None
    key_proj: eqx.nn.Linear
    value_proj: eqx.nn.Linear
    output_proj: eqx.nn.Linear
    latent_norm: eqx.nn.RMSNorm | None
    query_latent_proj: eqx.nn.Linear | None
    query_latent_norm: eqx.nn.RMSNorm | None
    prior: Prior | PerHead | None
    rule: Rule | PerHead
    method: Method
    rotary: Rotary

    latent_size: int = eqx.field(static=True)
    rotary_size: int = eqx.field(static=True)

    def __init__(
        self,
        num_heads: int,
        query_size: int,
        latent_size: int,
        output_size: int | None = None,
        qk_size: int | None = None,
        vo_size: int | None = None,
        rotary_size: int = 0,
        use_output_bias: bool = False,
        dtype=None,
        *,
        rotary: Rotary = Rotary(),
        latent_norm: bool = True,
        query_latent_size: int | None = None,
        prior: Prior | PerHead | None = None,
        rule: Rule | PerHead = Softmax(),
        method: Method = Auto(),
        key: PRNGKeyArray,
    ):
        self._set_sizes(num_heads, query_size, output_size, qk_size, vo_size)
        heads, size = self.num_heads, self.query_size
        self.latent_size = as_integer("latent_size", latent_size, 1)
        self.rotary_size = as_integer("rotary_size", rotary_size, 0)
        require_instance("rotary", rotary, Rotary, "ak.Rotary()")
        if self.rotary_size:
            require_rotary(rotary, self.rotary_size, "rotary_size")
        if rotary.axes > 1:
            raise ValueError(
                f"rotary must have frequencies of one axis here, shape (pairs,); got {rotary.axes} "
                f"axes. For several use ak.MultiheadAttention."
            )
        require_parts(DotProduct(), prior, rule, method)
        require_bools(use_output_bias=use_output_bias, latent_norm=latent_norm)
        require_key("key", key)
        dtype = as_float_dtype("dtype", dtype)
        keys = jax.random.split(key, 7)

        linear = functools.partial(eqx.nn.Linear, use_bias=False, dtype=dtype)
        norm = functools.partial(eqx.nn.RMSNorm, use_bias=False, dtype=dtype)
        latent = self.latent_size
        query_input = size_or("query_latent_size", query_latent_size, size)
        self.query_proj = linear(
            query_input, heads * (self.qk_size + self.rotary_size), key=keys[0]
        )
        self.latent_proj = linear(size, latent, key=keys[1])
        self.key_proj = linear(latent, heads * self.qk_size, key=keys[2])
        self.value_proj = linear(latent, heads * self.vo_size, key=keys[3])
        out = self.output_size
        self.output_proj = linear(heads * self.vo_size, out, use_bias=use_output_bias, key=keys[4])
        self.rotary_proj = self.query_latent_proj = self.query_latent_norm = None
        self.latent_norm = norm(latent) if latent_norm else None
        if self.rotary_size:
            self.rotary_proj = linear(size, self.rotary_size, key=keys[5])
        if query_latent_size is not None:
            self.query_latent_proj = linear(size, query_input, key=keys[6])
            self.query_latent_norm = norm(query_input) if latent_norm else None
        self.prior, self.rule, self.method, self.rotary = prior, rule, method, rotary

    def __call__(
        self,
        x: Float[Array, "rows query_size"],
        mask: ArrayLike | None = None,
        *,
        prior: Prior | PerHead | None = None,
        positions: ArrayLike | None = None,
    ) -> Float[Array, "rows output_size"]:
        """The output of each row of one sequence; causal only if a prior or the mask is.

        **Arguments:** `x`: one sequence. `mask`: True = attend, shape (rows, rows) or (heads, rows,
        rows). `prior`: multiplied by the module's own. `positions`: of rows, for rotary angles and
        the module's own prior. Default: 0, 1, 2, ...

        **Raises:** `ValueError` if the sizes of arrays are not those of the module.
        """
        x = as_sequence("x", x, self.query_size)
        require_finite("x", x)
        rows, own = len(x), self.prior
        at = as_positions("positions", positions, rows)
        if own is not None and positions is not None:
            own = AtPositions(own, at)
        prior = multiply_priors(own, prior, mask_as_prior(mask, self.num_heads, rows, rows))
        latents, rotated = self._latents(x, at)

        def project(linear: eqx.nn.Linear) -> Array:
            return split_heads(jax.vmap(linear)(latents), self.num_heads).swapaxes(0, 1)

        shared = jnp.broadcast_to(rotated, (self.num_heads, *rotated.shape))
        k = jnp.concatenate([project(self.key_proj), shared], axis=-1)
        parts = {"rule": self.rule, "prior": prior, "method": self.method}
        q, v = self._queries(x, at), project(self.value_proj)
        return self._output(attend(q, k, v, kernel=DotProduct(), **parts))

    def cache(self, capacity: int, **options: Any) -> KVCache:
        """An empty cache for `step`, of one head, whose keys are the latents and the rotated parts
        of keys; `options` as in `KVCache`."""
        return KVCache(capacity, 1, self.latent_size + self.rotary_size, 0, **options)

    def _decode_rows(self, new: NewRows, cache: Any) -> tuple[Array, KVCache]:
        """Returns the output of all new rows, padding included, and the cache with the valid rows.

        Heads attend to the latents: keys and values of heads are not formed.
        """
        require_instance("cache", cache, KVCache, "layer.cache(100)")
        rows, at = len(new.x), new.positions
        at = cache.next_positions(rows) if at is None else as_positions("positions", at, rows)
        latents = jnp.concatenate(self._latents(new.x, at), axis=1)[:, None]
        seen, after = cache.append(latents, latents[..., :0], count=new.rows, positions=at)
        q = self._queries(new.x, at)
        key_weights, value_weights = (
            linear.weight.reshape(self.num_heads, -1, self.latent_size)
            for linear in (self.key_proj, self.value_proj)
        )
        kernel = DotProduct(fixed(q.shape[-1] ** -0.5))
        absorbed = _product("hnd,hdr->hnr", q[..., : self.qk_size], key_weights)
        q = jnp.concatenate([absorbed, q[..., self.qk_size :]], axis=-1)
        shared = seen.keys.swapaxes(0, 1)  # keys, and values in their first columns
        prior = cache.visible_prior(seen, at, new.mask, multiply_priors(self.prior, new.prior))
        parts = {"rule": self.rule, "prior": prior, "method": self.method}
        mean = attend(q, shared, shared, kernel=kernel, **parts)[..., : self.latent_size]
        return self._output(_product("hnr,hdr->hnd", mean, value_weights)), after

    def _latents(self, x: Array, positions: Array) -> tuple[Array, Array]:
        """Returns the latent of each row, and the rotated part of its key: `rotary_size` columns,
        which may be 0."""
        latents = _project_and_norm(x, self.latent_proj, self.latent_norm)
        if self.rotary_proj is None:
            return latents, latents[:, :0]
        return latents, self.rotary(jax.vmap(self.rotary_proj)(x), positions)

    def _queries(self, x: Array, positions: Array) -> Float[Array, "heads _rows _size"]:
        """Returns the queries of all heads, with their last `rotary_size` coordinates rotated."""
        latents = _project_and_norm(x, self.query_latent_proj, self.query_latent_norm)
        q = split_heads(jax.vmap(self.query_proj)(latents), self.num_heads).swapaxes(0, 1)
        if not self.rotary_size:
            return q
        plain, turned = q[..., : self.qk_size], q[..., self.qk_size :]
        return jnp.concatenate([plain, self.rotary(turned, positions)], axis=-1)

    def _output(self, heads: Float[Array, "heads rows vo_size"]) -> Array:
        """Returns the output projection of the heads' weighted means of values."""
        return jax.vmap(self.output_proj)(join_heads(heads.swapaxes(0, 1)))


def _project_and_norm(
    x: Float[Array, "rows size"], proj: eqx.nn.Linear | None, norm: eqx.nn.RMSNorm | None
) -> Float[Array, "rows _latent_size"]:
    """Returns norm(W x) of each row; W (`proj`) or the norm is skipped if it is None."""
    for layer in (proj, norm):
        x = x if layer is None else jax.vmap(layer)(x)
    return x


def _product(subscripts: str, a: Array, b: Array) -> Array:
    """Returns the einsum of `a` and `b` at full precision, in the dtype of `a`."""
    return jnp.einsum(subscripts, a, b.astype(a.dtype), precision=jax.lax.Precision.HIGHEST)
