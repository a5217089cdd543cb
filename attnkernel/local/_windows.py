"""The keys as queries see them: weights and monomials of a chunk of queries at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import wider_dtype
from .._core.tracing import is_symbolic
from ..attention import KernelPriorRule, attention_weights, jit_if_pure
from ..priors import AtPositions
from ._moments import MAX_CHUNK_NUMBERS
from ._monomials import Basis, Keys, Queries, Values, monomials, solve_normal_equations
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

    def coefficients(self, beta: Float[Array, "queries dim_v terms"], basis: Basis) -> Array:
        """Returns coefficients in units of k, terms before labels; 0 where a query sees no key."""
        beta = jnp.where(self.empty[:, None, None], 0.0, beta) / basis.units()[None, None, :]
        return beta.swapaxes(1, 2)

    def support(self, basis: Basis) -> tuple[Bool[Array, " queries"], Bool[Array, " queries"]]:
        """Returns where the design is rank-deficient, and where it extrapolates."""
        gram = jnp.sum(self.weights[..., None] * self.products, axis=1)[..., basis.pairs()]
        terms = gram.shape[-1]
        none = jnp.zeros((len(gram), terms, 0), gram.dtype)
        zeros = jnp.zeros((len(gram), terms), gram.dtype)
        found = solve_normal_equations(gram, none, zeros[0], zeros)
        influence, _, deficient = jax.lax.stop_gradient(found)
        return deficient & ~self.empty, (influence[:, 0, 0] > MAX_INVERSE_GRAM) & ~self.empty


def weights_of_rows(
    parts: KernelPriorRule, rows: Int[Array, " queries"], q: Queries, k: Keys
) -> Float[Array, "queries keys"]:
    """Returns the weights of the keys at queries that are these rows of all queries."""
    kernel, prior, rule = parts
    seen = None if prior is None else AtPositions(prior, rows, jnp.arange(len(k)))
    return attention_weights(q, k, kernel=kernel, prior=seen, rule=rule)


def fit_at_queries(
    function: Callable[..., Any], parts: tuple, q: Queries, k: Keys, v: Values
) -> Any:
    """Returns `function(*parts, q, k, v)`, with a row for each query, of at least float32."""
    q, k, v = (part.astype(wider_dtype(part.dtype)) for part in (q, k, v))
    empty = q.shape[0] == 0  # a gather of rows needs one row
    points = jnp.zeros((1, q.shape[1]), q.dtype) if empty else q
    local = jit_if_pure(function, parts, points, k, v)
    return jax.tree.map(lambda leaf: leaf[:0], local) if empty else local


def map_windows(
    function: Callable[[Windows], Any],
    parts: KernelPriorRule,
    q: Queries,
    k: Keys,
    basis: Basis,
    width: int,
    policy: Callable[..., bool] | None = None,
) -> Any:
    """Returns the function of the windows of all queries, whose results have one row per query.

    `width`: how many arrays of the shape of the terms the function holds at a time. Derivatives
    evaluate it again in place of storing what it holds, except what the `policy` of
    `jax.checkpoint` saves.
    """
    m, n = q.shape[0], k.shape[0]
    numbers = width * max(1, n) * len(basis.products)
    chunks = m if is_symbolic(m, n) else -(-m // max(1, MAX_CHUNK_NUMBERS // numbers))
    size = 1 if is_symbolic(m, n) else -(-m // chunks)
    columns = list(basis.columns)

    def apply_to_chunk(rows: Int[Array, " size"]) -> Any:
        weights = weights_of_rows(parts, rows, q[rows], k)
        total = jnp.sum(weights, axis=1, keepdims=True)  # less than 1 beside a sink
        weights = weights / jnp.where(total > 0, total, 1.0)
        u = (k[None, :, columns] - q[rows][:, None, columns]) / basis.scale[None, None, :]
        u = jnp.where((weights > 0)[..., None], u, 0.0)
        return function(Windows(rows, weights, monomials(u, basis.products)))

    rows = jnp.minimum(jnp.arange(chunks * size), m - 1).reshape(chunks, size)
    found = jax.lax.map(jax.checkpoint(apply_to_chunk, prevent_cse=False, policy=policy), rows)
    return jax.tree.map(lambda leaf: leaf.reshape(chunks * size, *leaf.shape[2:])[:m], found)
