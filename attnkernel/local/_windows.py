"""The keys as queries see them: weights and monomials of a chunk of queries at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.tracing import is_symbolic
from ..attention import KernelPriorRule, attention_weights
from ..priors import AtPositions
from ._moments import MAX_CHUNK_NUMBERS
from ._monomials import Basis, monomials, solve_normal_equations
from ._polynomial import MAX_INVERSE_GRAM


class Windows(NamedTuple):
    """The weights of the keys at each query of a chunk, and the monomials of the keys.

    `weights` sum to 1, or are 0 where a query sees no key. `products` are the monomials
    $((k - q) / \\mathrm{scale})^a$, |a| ≤ 2p, with k = q where the weight is 0. The first of them
    are the terms of the polynomial.
    """

    rows: Int[Array, " queries"]
    weights: Float[Array, "queries keys"]
    products: Float[Array, "queries keys products"]

    @property
    def empty(self) -> Bool[Array, " queries"]:
        """Whether a query sees no key."""
        return ~jnp.any(self.weights > 0, axis=1)

    def support(self, basis: Basis) -> tuple[Bool[Array, " queries"], Bool[Array, " queries"]]:
        """Returns where the design is rank-deficient, and where it extrapolates."""
        gram = jnp.sum(self.weights[..., None] * self.products, axis=1)[..., basis.pairs()]
        terms = gram.shape[-1]
        none = jnp.zeros((len(gram), terms, 0), gram.dtype)
        zeros = jnp.zeros((len(gram), terms), gram.dtype)
        found = solve_normal_equations(gram, none, zeros[0], zeros)
        influence, _, deficient = jax.lax.stop_gradient(found)
        return deficient & ~self.empty, (influence[:, 0, 0] > MAX_INVERSE_GRAM) & ~self.empty


def map_windows(
    function: Callable[[Windows], Any],
    parts: KernelPriorRule,
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    basis: Basis,
    width: int,
    policy: Callable[..., bool] | None = None,
) -> Any:
    """Returns the function of the windows of all queries, whose results have one row per query.

    `width`: how many arrays of the shape of the terms the function holds at a time. Derivatives
    evaluate it again in place of storing what it holds, except what the `policy` of
    `jax.checkpoint` saves.
    """
    (kernel, prior, rule), m, n = parts, q.shape[0], k.shape[0]
    numbers = width * max(1, n) * len(basis.products)
    chunks = m if is_symbolic(m, n) else -(-m // max(1, MAX_CHUNK_NUMBERS // numbers))
    size = 1 if is_symbolic(m, n) else -(-m // chunks)
    columns = list(basis.columns)

    def apply_to_chunk(rows: Int[Array, " size"]) -> Any:
        seen = None if prior is None else AtPositions(prior, rows, jnp.arange(n))
        weights = attention_weights(q[rows], k, kernel=kernel, prior=seen, rule=rule)
        total = jnp.sum(weights, axis=1, keepdims=True)  # less than 1 beside a sink
        weights = weights / jnp.where(total > 0, total, 1.0)
        u = (k[None, :, columns] - q[rows][:, None, columns]) / basis.scale[None, None, :]
        u = jnp.where((weights > 0)[..., None], u, 0.0)
        return function(Windows(rows, weights, monomials(u, basis.products)))

    rows = jnp.minimum(jnp.arange(chunks * size), m - 1).reshape(chunks, size)
    found = jax.lax.map(jax.checkpoint(apply_to_chunk, prevent_cse=False, policy=policy), rows)
    return jax.tree.map(lambda leaf: leaf.reshape(chunks * size, *leaf.shape[2:])[:m], found)
