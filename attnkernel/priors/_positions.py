"""Priors at positions that are not the numbers of rows: caches, packed or shifted sequences."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import (
    AnyArray,
    as_integer_array,
    as_numpy_if_concrete,
    is_concrete,
    namespace_of,
)
from .._core.validation import as_integer
from ._base import Mask, PositionBlock, Prior, require_prior
from ._pair_mask import PairMask


class _WithPositions(Prior):
    """A prior that holds an integer for each query and each key."""

    queries: Int[Array, " queries"]
    keys: Int[Array, " keys"]

    def __init__(self, queries: ArrayLike, keys: ArrayLike | None = None):
        self.queries = as_integer_array("queries", queries, axes=1)
        self.keys = self.queries if keys is None else as_integer_array("keys", keys, axes=1)

    def check(self, queries: int, keys: int) -> None:
        """Raises `ValueError` unless there is one number per query and per key. A prior within is
        not checked: it may be of other sizes."""
        got = (self.queries.shape[0], self.keys.shape[0])
        if got != (queries, keys):
            raise ValueError(
                f"{type(self).__name__} must have one number per query and per key, {queries} and "
                f"{keys}; got {got[0]} and {got[1]}."
            )

    def ranges(self, block: PositionBlock) -> PositionBlock:
        """Returns the least and greatest numbers of the queries and of the keys of a block of rows,
        as a block of these numbers."""
        return PositionBlock(
            *_range_of(self.queries, block.i_low, block.i_high),
            *_range_of(self.keys, block.j_low, block.j_high),
        )


class AtPositions(_WithPositions):
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

    def __init__(self, prior: Any, queries: ArrayLike, keys: ArrayLike | None = None):
        require_prior("prior", prior)
        self.prior = prior
        super().__init__(queries, keys)

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.prior.log_pair(self.queries[i], self.keys[j])

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        return self.prior.add_to_scores(scores, self.queries[i], self.keys[j])

    def may_allow(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.prior.may_allow(self.queries[i], self.keys[j])

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        return self.prior.score_upper_bound(self.ranges(block))

    def key_range(self, first: int, last: int, keys: int) -> None:
        return None


class Segments(_WithPositions, Mask):
    r"""Sequences packed into one: $\pi(i, j) = 1\{a_i = b_j\}$; none sees into another.

    **Arguments:** `queries`: a, the number of the sequence of each query, shape (queries,).
    `keys`: b, shape (keys,). Default: a.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.Segments(np.array([0, 0, 1])).pairwise(i, i))
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]], dtype=float32)

    ```
    """

    __init__ = _WithPositions.__init__

    @classmethod
    def from_lengths(
        cls,
        queries: ArrayLike | Sequence[int],
        keys: ArrayLike | Sequence[int] | None = None,
        *,
        num_queries: int | None = None,
        num_keys: int | None = None,
    ) -> "Segments":
        r"""Sequences of these lengths, one after the other: row i belongs to sequence s if

        $$ \textstyle\sum_{r < s} n_r \le i < \sum_{r \le s} n_r, \qquad n_s \ge 0 $$

        Rows from the sum of the lengths on are padding: they see nothing and are not seen. The
        `cu_seqlens` of other packages are cumulative lengths: n is `jnp.diff(cu_seqlens)`.

        **Arguments:**

        - `queries`: n, the number of queries of each sequence, shape (sequences,), integers.
        - `keys`: of keys, of as many sequences. Default: n.
        - `num_queries`, `num_keys`: the numbers of rows, padding included. Default: the sums, which
          must then be known outside `jit`. Without `keys`, `num_keys` is `num_queries` by default.

        **Raises:** `ValueError` if a length is negative, the sum exceeds the number of rows, or
        the two have different numbers of sequences. Lengths that are traced are not checked.

        ```python
        >>> ak.priors.Segments.from_lengths([2, 0, 1], num_queries=4).queries
        Array([ 0,  0,  2, -1], dtype=int32)

        ```
        """
        of_queries = _ends_of_lengths("queries", queries)
        of_keys = of_queries if keys is None else _ends_of_lengths("keys", keys)
        if of_keys.shape != of_queries.shape:
            raise ValueError(
                f"queries and keys must be of the same sequences; got {of_queries.shape[0]} of "
                f"queries and {of_keys.shape[0]} of keys."
            )
        if keys is None and num_keys is None:
            num_keys = num_queries
        return cls(
            _number_sequences("queries", of_queries, num_queries, padding=-1),
            _number_sequences("keys", of_keys, num_keys, padding=-2),
        )

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.queries[i] == self.keys[j]

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""] | bool:
        low_q, high_q, low_k, high_k = self.ranges(block)
        return (low_q <= high_k) & (low_k <= high_q)

    def pair_mask(self) -> PairMask:
        return PairMask(segments=(self.queries, self.keys))


def _ends_of_lengths(name: str, lengths: ArrayLike | Sequence[int]) -> Int[AnyArray, " sequences"]:
    """Returns the cumulative sums of the lengths: the index of the row after each sequence.

    Raises `ValueError` for a negative length, if the lengths are known.
    """
    array = as_numpy_if_concrete(as_integer_array(name, lengths, axes=1))
    if is_concrete(array) and np.any(array < 0):
        raise ValueError(f"{name} must be lengths, at least 0; got {array.tolist()}.")
    return namespace_of(array).cumsum(array)


def _number_sequences(
    name: str, ends: Int[AnyArray, " sequences"], rows: int | None, padding: int
) -> Int[AnyArray, " rows"]:
    """Returns the number of the sequence of each row, from 0; `padding` for rows after the last.

    `name`: "queries" or "keys", for errors. `ends`: as from `_ends_of_lengths`. `rows`: how many
    rows there are, padding included; None for no padding.

    Raises `ValueError` if there are fewer rows than sequences need, or if `rows` is None and `ends`
    are not known.
    """
    count, xp = f"num_{name}", namespace_of(ends)
    if rows is None and not is_concrete(ends):
        raise ValueError(f"{count} must be given where lengths are known at run time alone.")
    total = int(ends[-1]) if is_concrete(ends) and len(ends) else 0
    rows = total if rows is None else as_integer(count, rows, 0)
    if total > rows:
        raise ValueError(f"{count} must be at least {total}, the sum of all lengths; got {rows}.")
    number = xp.searchsorted(ends, xp.arange(rows), side="right")
    return xp.where(number < len(ends), number, padding)


def _range_of(
    numbers: Int[Array, " n"], low: ArrayLike, high: ArrayLike
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Returns the least and the greatest of `numbers[low]`, …, `numbers[high]`."""
    rows = jnp.arange(numbers.shape[0])
    inside = (low <= rows) & (rows <= high)
    limits = jnp.iinfo(numbers.dtype)
    return (
        jnp.min(numbers, where=inside, initial=limits.max),
        jnp.max(numbers, where=inside, initial=limits.min),
    )
