r"""Iterated bias reduction of self-attention: residuals of the values are attended to and added.

$$ (I - (I - A)^k)\, V $$
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import require_finite
from .._core.validation import as_integer, require_instance
from ..attention import PerHead
from ..priors import Prior
from ._cache import KVCache
from ._cached_layer import CachedLayer, NewRows
from ._inputs import Heads, as_sequence, multiply_priors, split_heads
from ._multihead import MultiheadAttention


class BiasReducedAttention(CachedLayer):
    r"""Self-attention whose residuals are attended to again: `ak.models.BiasReduced` for attention.

    $$ \mathrm{out} = \sum_h W_o^h \big( I - (I - A_h)^k \big) V_h, \qquad
       k = 2: \quad 2 A_h - A_h^2 $$

    $A_h \in \mathbb{R}^{n \times n}$ are the weights of head h and $V_h$ its values. Queries and
    keys are those of the same rows, so that A maps values at rows to values at rows. As a kernel
    regression A has a bias of order ℓ², and k iterations one of order ℓ²ᵏ; the powers of A flatten
    values less with depth. Computed as k sums $A z$; A is never formed.

    `step` decodes where A is causal: the cache holds the keys, and as values the k residuals
    $z_0 = V, \; z_{l+1} = z_l - A z_l$ of each row, of which the output is $A \sum_l z_l$.

    **Arguments:**

    - `attention`: a `MultiheadAttention`, whose kernel, prior, rule, method and order hold.
    - `iterations`: k, from 2: two is twicing. One is the module itself.

    **Raises:** `ValueError` for another module, dropout, fewer iterations, or a module whose
    queries, keys and values differ in size.

    **Source:** Tukey, *Exploratory data analysis* (1977); Abdullaev and Nguyen, *Transformer meets
    twicing: harnessing unattended residual information* (2025).

    ```python
    attention = ak.MultiheadAttention(2, 8, prior=ak.Causal(), key=jax.random.PRNGKey(0))
    twicing = ak.nn.BiasReducedAttention(attention, iterations=2)
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 8))
    assert twicing(x).shape == (5, 8)
    ```
    """

    attention: MultiheadAttention
    iterations: int = eqx.field(static=True)
    query_size: int = eqx.field(static=True)

    def __init__(self, attention: MultiheadAttention, iterations: int = 2):
        example = "ak.MultiheadAttention(2, 8, key=jax.random.PRNGKey(0))"
        require_instance("attention", attention, MultiheadAttention, example)
        sizes = {attention.query_size, attention.key_size, attention.value_size}
        if len(sizes) > 1 or attention.dropout.p:
            raise ValueError(
                "attention must take queries, keys and values of one size, those of one sequence, "
                "and have no dropout."
            )
        self.attention, self.query_size = attention, attention.query_size
        hint = "One iteration is the module itself."
        self.iterations = as_integer("iterations", iterations, 2, hint)

    def __call__(
        self,
        x: Float[Array, "rows size"],
        mask: ArrayLike | None = None,
        *,
        prior: Prior | PerHead | None = None,
    ) -> Float[Array, "rows output_size"]:
        """The output of one sequence. `mask`, `prior`: as for `MultiheadAttention`."""
        x = as_sequence("x", x, self.query_size)
        require_finite("x", x)
        q, k, v, prior = self.attention._read(x, x, x, mask, prior)
        k, v = self._repeat_shared(k, v)

        def iterate(carried: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            total, residual = carried
            residual = residual - self._smooth(q, k, residual, prior)
            return (total + residual, residual), None

        (total, _), _ = jax.lax.scan(iterate, (v, v), None, length=self.iterations - 1)
        return self.attention._output(self._smooth(q, k, total, prior))

    def cache(self, capacity: int, **options: Any) -> KVCache:
        """An empty cache for `step`; `options` as in `KVCache`."""
        module = self.attention
        values = self.iterations * module.vo_size
        return KVCache(capacity, module.num_heads, module.qk_size, values, **options)

    def _decode_rows(self, new: NewRows, cache: Any) -> tuple[Array, KVCache]:
        require_instance("cache", cache, KVCache, "layer.cache(100)")
        module = self.attention
        (q, k, v), positions = module._project_rows(new, cache)
        k, v = self._repeat_shared(k, v)
        own = multiply_priors(module.prior, new.prior)
        residuals = [v, *[jnp.zeros_like(v)] * (self.iterations - 1)]

        def append() -> tuple[Heads, list[Heads], Any, KVCache]:
            values = jnp.concatenate(residuals, axis=-1)
            seen, after = cache.append(k, values, count=new.rows, positions=positions)
            prior = cache.visible_prior(seen, positions, new.mask, own)
            return seen.keys, jnp.split(seen.values, self.iterations, axis=-1), prior, after

        for i in range(1, self.iterations):
            keys, held, prior, _ = append()
            residuals[i] = residuals[i - 1] - self._smooth(q, keys, held[i - 1], prior)
        keys, held, prior, after = append()
        return module._output(self._smooth(q, keys, sum(held[1:], held[0]), prior)), after

    def _repeat_shared(self, k: Heads, v: Heads) -> tuple[Heads, Heads]:
        """Returns keys and values, repeated so that each query head has its own: query heads that
        share keys have different residuals."""
        group = self.attention.num_heads // self.attention.num_kv_heads
        return jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)

    def _smooth(self, q: Heads, k: Heads, values: Heads, prior: Any) -> Heads:
        """Returns A z of each head: A are its attention weights, z the rows of `values`."""
        smoothed, _ = self.attention._attend(q, k, values, prior)
        return split_heads(smoothed, q.shape[1]).astype(values.dtype)
