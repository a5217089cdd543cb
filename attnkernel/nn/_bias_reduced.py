r"""Iterated bias reduction of self-attention: residuals of the values are attended to and added.

$$ (I - (I - A)^k)\, V $$
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import require_finite
from .._core.validation import as_integer, require_instance
from ..attention import PerHead
from ..priors import Prior
from ._heads import as_sequence, mask_as_prior, multiply_priors
from ._multihead import MultiheadAttention
from ._projections import project_heads


class BiasReducedAttention(eqx.Module):
    r"""Self-attention whose residuals are attended to again: `ak.BiasReduced` for attention.

    $$ \mathrm{out} = \sum_h W_o^h \big( I - (I - A_h)^k \big) V_h, \qquad
       k = 2: \quad 2 A_h - A_h^2 $$

    $A_h \in \mathbb{R}^{n \times n}$ are the weights of head h and $V_h$ its values. Queries and
    keys are those of the same rows, so that A maps values at rows to values at rows. As a kernel
    regression A has a bias of order ℓ², and k iterations one of order ℓ²ᵏ; the powers of A flatten
    values less with depth. Computed as k sums $A z$; A is never formed.

    **Arguments:**

    - `attention`: a `MultiheadAttention`, whose kernel, prior, rule, method and order hold.
    - `iterations`: k, from 2: two is twicing. One is the module itself.

    **Raises:** `ValueError` for another module, dropout, or fewer iterations.

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

    def __init__(self, attention: MultiheadAttention, iterations: int = 2):
        example = "ak.MultiheadAttention(2, 8, key=jax.random.PRNGKey(0))"
        require_instance("attention", attention, MultiheadAttention, example)
        sizes = {attention.query_size, attention.key_size, attention.value_size}
        if len(sizes) > 1 or attention.dropout.p:
            raise ValueError(
                "attention must take queries, keys and values of one size, those of one sequence, "
                "and have no dropout."
            )
        self.attention = attention
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
        module = self.attention
        x = as_sequence("x", x, module.query_size)
        require_finite("x", x)
        q, k, v = project_heads(module, x, x, x)
        rows, heads = x.shape[0], module.num_heads
        prior = multiply_priors(module.prior, prior, mask_as_prior(mask, heads, rows, rows))
        # residuals differ between the queries that share a head of keys
        k, v = (jnp.repeat(part, heads // module.num_kv_heads, axis=1) for part in (k, v))
        sums = module._make_head_sums()._replace(num_kv_heads=heads)

        def smooth(values: Array) -> Array:
            return sums.values(q, k, values, prior)[0].reshape(values.shape).astype(values.dtype)

        def iterate(carried: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            total, residual = carried
            residual = residual - smooth(residual)
            return (total + residual, residual), None

        (total, _), _ = jax.lax.scan(iterate, (v, v), None, length=self.iterations - 1)
        return jax.vmap(module.output_proj)(smooth(total).reshape(rows, -1).astype(x.dtype))
