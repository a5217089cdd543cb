"""A block of positions: consecutive queries and consecutive keys, by their first and last."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Int


class PositionBlock(NamedTuple):
    """All pairs with i_low ≤ i ≤ i_high and j_low ≤ j ≤ j_high.

    ```python
    >>> block = ak.priors.PositionBlock(i_low=0, i_high=3, j_low=8, j_high=11)
    >>> [int(distance) for distance in block.distance_range()]
    [5, 11]

    ```
    """

    i_low: Int[Array, ""]
    i_high: Int[Array, ""]
    j_low: Int[Array, ""]
    j_high: Int[Array, ""]

    def shifted(self, queries: ArrayLike, keys: ArrayLike) -> "PositionBlock":
        """The block with all i plus one number, and all j plus another."""
        i_low, i_high, j_low, j_high = self
        return PositionBlock(i_low + queries, i_high + queries, j_low + keys, j_high + keys)

    def distance_range(self) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The least and the greatest |i − j|."""
        i_low, i_high, j_low, j_high = self
        least = jnp.maximum(jnp.maximum(j_low - i_high, i_low - j_high), 0)
        return least, jnp.maximum(j_high - i_low, i_high - j_low)
