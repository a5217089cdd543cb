"""Priors at positions that are not the numbers of rows: caches, packed or shifted sequences."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_integer_array
from ._base import Prior, require_prior
from ._block import PositionBlock


class AtPositions(Prior):
    r"""Any prior at given positions: $\log \pi(p_i, r_j)$ in place of $\log \pi(i, j)$.

    Queries and keys then need not be numbered as rows: a cache that wraps keeps the position of
    each key beside it, and masks, windows and biases stay right. A prior that holds an array by
    position, such as `HeldOut`, must have an entry for each: beyond its end the last is read.

    **Arguments:**

    - `prior`: π; also an `ak.PerHead` of priors.
    - `queries`: p, the position of each query, shape (queries,), integers in any order.
    - `keys`: r, of each key, shape (keys,). Default: p.

    **Raises:** `ValueError` if positions are not integers, or not one per row.

    ```python
    >>> i = jnp.arange(2)
    >>> prior = ak.priors.AtPositions(ak.Causal(), jnp.array([2, 5]), jnp.array([5, 3]))
    >>> np.exp(prior.pairwise(i, i))
    array([[0., 0.],
           [1., 1.]], dtype=float32)

    ```
    """

    prior: Any
    queries: Int[Array, " queries"]
    keys: Int[Array, " keys"]

    def __init__(self, prior: Any, queries: ArrayLike, keys: ArrayLike | None = None):
        require_prior("prior", prior)
        self.prior = prior
        self.queries = row_of_whole_numbers("queries", queries)
        self.keys = self.queries if keys is None else row_of_whole_numbers("keys", keys)

    def check(self, queries: int, keys: int) -> None:
        require_lengths("AtPositions", (self.queries, self.keys), (queries, keys))

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.prior.log_pair(self.queries[i], self.keys[j])

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        return self.prior.add_to_scores(scores, self.queries[i], self.keys[j])

    def may_allow(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.prior.may_allow(self.queries[i], self.keys[j])

    @property
    def is_additive(self) -> bool:
        return getattr(self.prior, "stack", self.prior).is_additive

    @property
    def needs_block_table(self) -> bool:
        return getattr(self.prior, "needs_block_table", False)

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        queries = range_of(self.queries, block.i_low, block.i_high)
        keys = range_of(self.keys, block.j_low, block.j_high)
        return self.prior.score_upper_bound(PositionBlock(*queries, *keys))


def row_of_whole_numbers(name: str, numbers: ArrayLike | Sequence[int]) -> Int[Array, " n"]:
    """An array of shape (n,) of integers, or a sentence."""
    array = as_integer_array(name, numbers)
    if array.ndim != 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"{name} must be integers, one per row, shape (rows,); got dtype {array.dtype} "
            f"and shape {array.shape}."
        )
    return array


def require_lengths(who: str, held: tuple[Array, Array], wanted: tuple[int, int]) -> None:
    """Raise `ValueError` unless a prior holds one number per query and per key."""
    got = (held[0].shape[0], held[1].shape[0])
    if got != wanted:
        raise ValueError(
            f"{who} must have one number per query and per key, {wanted[0]} and {wanted[1]}; got "
            f"{got[0]} and {got[1]}."
        )


def range_of(
    numbers: Int[Array, " n"], low: Int[Array, ""], high: Int[Array, ""]
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The least and greatest of the numbers of rows low to high."""
    rows = jnp.arange(numbers.shape[0])
    inside = (low <= rows) & (rows <= high)
    limits = jnp.iinfo(numbers.dtype)
    return (
        jnp.min(numbers, where=inside, initial=limits.max),
        jnp.max(numbers, where=inside, initial=limits.min),
    )
