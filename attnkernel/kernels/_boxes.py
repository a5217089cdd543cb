"""Two boxes of points, and how far they are apart: what a bound on a block of scores is made of."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class PointBoxes(NamedTuple):
    """All queries with q_low ≤ q ≤ q_high and all keys with k_low ≤ k ≤ k_high, per coordinate.

    ```python
    >>> low, high = jnp.array([0.0]), jnp.array([1.0])
    >>> ak.kernels.PointBoxes(low, high, low + 3.0, high + 3.0).gap()
    Array([2.], dtype=float32)

    ```
    """

    q_low: Float[Array, " dim"]
    q_high: Float[Array, " dim"]
    k_low: Float[Array, " dim"]
    k_high: Float[Array, " dim"]

    def gap(self) -> Float[Array, " dim"]:
        """The least |q − k| of each coordinate; 0 where the two boxes overlap."""
        return jnp.maximum(jnp.maximum(self.k_low - self.q_high, self.q_low - self.k_high), 0.0)
