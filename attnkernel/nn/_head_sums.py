"""The sums of all heads: values, weights, and values with dropout on the weights."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..attention import PerHead, attention_weights
from ..kernels import Kernel
from ..local import local_polynomial
from ..methods import Method
from ..rules import Rule
from ._heads import OfHeads, group_heads, group_per_head


class HeadSums(NamedTuple):
    """The parts of attention that heads share, and the numbers of heads."""

    kernel: Kernel | PerHead
    rule: Rule | PerHead
    method: Method
    order: int
    ridge: float
    num_heads: int
    num_kv_heads: int

    def values(
        self, q: OfHeads, k: OfHeads, v: OfHeads, prior: Any
    ) -> tuple[Float[Array, "_rows _width"], Bool[Array, " _rows"]]:
        """The values of all heads side by side, and the queries for which no head sees a key."""
        heads = (group_heads(part, self.num_kv_heads) for part in (q, k, v))
        named = {"method": self.method, "order": self.order, "ridge": self.ridge}
        local = local_polynomial(*heads, **self._attend_kwargs(prior), **named)
        rows = jnp.moveaxis(local.coefficients[..., 0, :], 2, 0).reshape(q.shape[0], -1)
        return rows, jnp.all(local.empty, axis=(0, 1))

    def weights(self, q: OfHeads, k: OfHeads, prior: Any) -> Float[Array, "heads queries keys"]:
        """The weights of each head: an array of all pairs."""
        q, k = (group_heads(part, self.num_kv_heads) for part in (q, k))
        weights = attention_weights(q, k, **self._attend_kwargs(prior))
        return weights.reshape(self.num_heads, *weights.shape[2:])

    def values_with_dropout(
        self,
        q: OfHeads,
        k: OfHeads,
        v: OfHeads,
        prior: Any,
        dropout: eqx.nn.Dropout,
        key: PRNGKeyArray | None,
    ) -> Float[Array, "_rows _width"]:
        """The values of all heads side by side, with dropout on their weights."""
        if key is None:
            raise ValueError(
                "Dropout draws random numbers: pass key=, a PRNG key; or inference=True."
            )
        keys = jax.random.split(key, self.num_heads)
        drop = functools.partial(dropout, inference=False)
        weights = self.weights(q, k, prior)
        weights = jax.vmap(lambda weights, key: drop(weights, key=key))(weights, keys)
        v = jnp.repeat(v, self.num_heads // self.num_kv_heads, axis=1)
        out = jnp.einsum("hqk,khd->qhd", weights, v, precision=jax.lax.Precision.HIGHEST)
        return out.reshape(q.shape[0], -1)

    def _attend_kwargs(self, prior: Any) -> dict[str, Any]:
        """Returns `kernel`, `prior` and `rule`, the keyword arguments of `attend`, with the heads
        of each `PerHead` in two axes: key heads, and the query heads that share each of them.
        """
        parts = {"kernel": self.kernel, "prior": prior, "rule": self.rule}
        heads = (self.num_heads, self.num_kv_heads)
        return {name: group_per_head(part, *heads) for name, part in parts.items()}
