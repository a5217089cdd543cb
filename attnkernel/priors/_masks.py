"""Masks that regression needs: which labels a prediction may not see."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from ._base import Mask


class HeldOut(Mask):
    r"""Keys that no query sees: $\pi(i, j) = 1\{j \notin \mathcal{H}\}$.

    **Arguments:** `held_out`: shape (keys,), True where the key is hidden.
    """

    held_out: Bool[Array, " keys"]

    def __init__(self, held_out: ArrayLike):
        array = jnp.asarray(held_out)
        if array.dtype != bool or array.ndim != 1:
            raise ValueError(
                f"held_out must be a Boolean array of shape (keys,), True where a key is hidden; "
                f"got dtype {array.dtype} and shape {array.shape}."
            )
        self.held_out = array

    def check(self, queries: int, keys: int) -> None:
        if self.held_out.shape != (keys,):
            raise ValueError(
                f"held_out must have one entry per key, shape ({keys},); got {self.held_out.shape}."
            )

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return ~self.held_out[j]


class LeaveOneOut(Mask):
    r"""No query sees its own row: $\pi(i, j) = 1\{j \ne i\}$, for q and k the same rows."""

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return i != j


class Where(Mask):
    """Any mask that a function of two indices says: `Where(lambda i, j: j <= i)`.

    **Arguments:** `function`: from the indices (i, j) of one query and one key to a Boolean.
    """

    function: Callable[[Int[Array, ""], Int[Array, ""]], Bool[Array, ""]] = eqx.field(static=True)

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return self.function(i, j)
