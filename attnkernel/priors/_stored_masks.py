"""Masks that are stored: one entry for each key, each row or each pair."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_boolean_array
from ._base import Mask
from ._key_mask import KeyMask


class HeldOut(Mask):
    r"""Keys that no query sees: $\pi(i, j) = 1\{j \notin \mathcal{H}\}$.

    **Arguments:** `held_out`: shape (keys,), True where the key is hidden.

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.HeldOut(np.array([False, True, False])).pairwise(i, i))
    array([[1., 0., 1.],
           [1., 0., 1.],
           [1., 0., 1.]], dtype=float32)

    ```
    """

    held_out: Bool[Array, " keys"]

    def __init__(self, held_out: ArrayLike):
        self.held_out = as_boolean_array(
            "held_out", held_out, 1, "(keys,), True where a key is hidden"
        )

    def check(self, queries: int, keys: int) -> None:
        if self.held_out.shape != (keys,):
            raise ValueError(
                f"held_out must have one entry per key, shape ({keys},); got {self.held_out.shape}."
            )

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return ~self.held_out[j]

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        # read once per key: XLA would gather an entry for each pair, 1.4 times the time of a fit
        allowed = jax.lax.optimization_barrier(~self.held_out[j])
        return jnp.where(allowed[None, :], scores, -jnp.inf)

    @property
    def needs_block_table(self) -> bool:
        """No: keys that are held out are scattered, and seldom fill a block."""
        return False

    def as_key_mask(self) -> KeyMask:
        return KeyMask(allowed=~self.held_out)


class MaskArray(Mask):
    """A mask that is stored: True = attend. It takes O(queries x keys) memory, as `BiasTable` does.

    **Arguments:** `allowed`: a Boolean array, shape (queries, keys).

    ```python
    >>> i = jnp.arange(3)
    >>> np.exp(ak.priors.MaskArray(np.tri(3, dtype=bool)).pairwise(i, i))
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]], dtype=float32)

    ```
    """

    allowed: Bool[Array, "queries keys"]

    def __init__(self, allowed: ArrayLike):
        expected = "(queries, keys), True where a query may attend to a key"
        self.allowed = as_boolean_array("allowed", allowed, 2, expected)

    def check(self, queries: int, keys: int) -> None:
        if self.allowed.shape != (queries, keys):
            raise ValueError(
                f"A mask must have shape (queries, keys) = ({queries}, {keys}); got "
                f"{self.allowed.shape}."
            )

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.allowed[i, j]
