"""Masks: who may see whom."""

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


class Causal(Mask):
    r"""Keys up to the query's own position: $\pi(i, j) = 1\{j \le i + o\}$.

    **Arguments:** `offset`: o, the position of the first query among the keys: 0 (default) for
    queries and keys that begin together; keys − queries for queries that end with the keys.
    """

    offset: int | Int[Array, ""] = 0

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return j <= i + self.offset

    def any_allowed(
        self,
        i_low: Int[Array, ""],
        i_high: Int[Array, ""],
        j_low: Int[Array, ""],
        j_high: Int[Array, ""],
    ) -> Bool[Array, ""]:
        return j_low <= i_high + self.offset


class Window(Mask):
    r"""Keys near the query: $\pi(i, j) = 1\{i - l \le j \le i + r\}$, both ends and self included.

    **Arguments:** `left`, `right`: l and r, numbers of keys before and after the query, from 0.
    """

    left: int
    right: int

    def __check_init__(self):
        for name in ("left", "right"):
            if isinstance(getattr(self, name), int) and getattr(self, name) < 0:
                raise ValueError(
                    f"{name} must be a number of keys from 0; got {getattr(self, name)}."
                )

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        return (i - self.left <= j) & (j <= i + self.right)

    def any_allowed(
        self,
        i_low: Int[Array, ""],
        i_high: Int[Array, ""],
        j_low: Int[Array, ""],
        j_high: Int[Array, ""],
    ) -> Bool[Array, ""]:
        return (j_high >= i_low - self.left) & (j_low <= i_high + self.right)
