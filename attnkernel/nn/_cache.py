"""The protocol of caches: what a layer keeps of the rows so far, to go on with the next ones."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from .._core.host_arrays import is_concrete
from .._core.validation import require_integer


class Cache(eqx.Module):
    r"""What a layer keeps of the first n rows of a sequence, to compute those that follow.

    A layer makes an empty cache, and its `step` returns the cache with the new rows. Caches are
    trees of arrays and never change: an earlier one stays as it was. For a batch use `jax.vmap`.

    | cache | keeps | memory | goes back by |
    |---|---|---|---|
    | `KVCache` | keys and values of all rows | O(rows) | `rollback`, `keep` |
    | `KVCache`, a ring | those of the first and the last rows | O(1) | the same, a few rows |
    | `LatentCache` | one latent for each row, or in a ring | as above, smaller | the same |
    | `RecurrentCache` | a state of fixed size | O(1) | the earlier cache |

    ```python
    layer = ak.MultiheadAttention(2, 8, key=jax.random.PRNGKey(0))
    x = jax.random.normal(jax.random.PRNGKey(1), (6, 8))
    _, cache = layer.step(x[:4], layer.cache(100))
    _, drafted = layer.step(x[4:], cache)
    assert drafted.rollback(cache.length).length == 4  # none of the two drafts is accepted
    ```
    """

    length: Int[Array, ""]

    def next_positions(self, rows: int) -> Int[Array, " rows"]:
        """The numbers of the next rows in the sequence, from 0."""
        return self.length + jnp.arange(rows)

    def rollback(self, length: ArrayLike) -> "Cache":
        """The cache of the first `length` rows.

        **Raises:** `ValueError` if it no longer holds what the next row would see (inside `jit`, at
        run time).
        """
        return self.keep(length, jnp.zeros(0, int))

    @abc.abstractmethod
    def keep(self, length: ArrayLike, rows: ArrayLike, count: ArrayLike | None = None) -> "Cache":
        """The cache of the first `length` rows, and of some of the rows since.

        After speculative decoding these are the accepted drafts, such as a path of a tree.

        **Arguments:** `length`: of the cache before the drafts. `rows`: the numbers of the accepted
        drafts, 0 for the first draft, increasing. `count`: how many of `rows` to read, for a shape
        that does not depend on it. Default: all.

        **Raises:** `ValueError` if it does not hold them, or no longer holds what the next row
        would see (inside `jit`, at run time).
        """


def as_count(name: str, count: Any, most: int) -> Int[Array, ""] | int:
    """Returns a number of rows from 0 to `most`; `ValueError` for another, in `jit` at run time."""
    require_integer(name, count, 0)
    message = f"{name} must be an integer from 0 to {most}, the number of rows given"
    if is_concrete(count):
        if int(count) > most:
            raise ValueError(f"{message}; got {int(count)}.")
        return int(count)
    count = jnp.asarray(count, jnp.result_type(int))
    return eqx.error_if(count, (count < 0) | (count > most), f"{message}.")
