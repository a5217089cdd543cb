"""Key-value caches: the keys and values of earlier rows, for attention of the next ones."""

from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.validation import as_integer
from ._row_cache import RowCache, Rows, checked_parts


class KVCache(RowCache):
    r"""The keys and values of the rows so far, in arrays of a fixed size.

    - A full cache keeps every row, up to its capacity. To write past its end is an error.
    - A ring keeps the last rows in O(1) memory, with their positions, so that masks, biases and
      rotary angles stay right when it wraps. A query sees a window of rows, its own included.
    - A ring with sinks keeps the first rows for ever, too. Positions stay those of the sequence,
      and the first rows recede; StreamingLLM counts positions within the cache instead.

    **Arguments:**

    - `capacity`: the number of rows.
    - `heads`, `qk_size`, `vo_size`: of keys and values.
    - `ring`: whether new rows overwrite the oldest ones. Default: no.
    - `sinks`: the number of first rows that a ring never overwrites. Default: 0.
    - `spare`: rows of a ring beyond the window, so that after a draft of up to `spare + 1` rows it
      can go back to any of them. Default: 0. The window has capacity − sinks − spare rows.
    - `dtype`: of keys and values. Default: the default floating type. In bfloat16 they take half
      the memory; sums over them are still formed in at least float32.

    **Raises:** `ValueError` if sizes are not positive integers, or a ring has no window.

    **Source:** Xiao et al., *Efficient streaming language models with attention sinks* (2024).

    ```python
    attention = ak.MultiheadAttention(2, 8, key=jax.random.PRNGKey(0))
    cache = attention.cache(100, ring=True, sinks=4)
    for row in jax.random.normal(jax.random.PRNGKey(1), (3, 1, 8)):
        out, cache = attention.step(row, cache)
    ```
    """

    def __init__(
        self,
        capacity: int,
        heads: int,
        qk_size: int,
        vo_size: int,
        *,
        ring: bool = False,
        sinks: int = 0,
        spare: int = 0,
        dtype=None,
    ):
        heads = as_integer("heads", heads, 1)
        sizes = as_integer("qk_size", qk_size, 1), as_integer("vo_size", vo_size, 1)
        shapes = tuple((heads, size) for size in sizes)
        super().__init__(capacity, shapes, ring, sinks, spare, dtype)

    @property
    def keys(self) -> Float[Array, "capacity heads qk_size"]:
        """The keys, at the places of their rows."""
        return self.parts[0]

    @property
    def values(self) -> Float[Array, "capacity heads vo_size"]:
        """The values, at the places of their rows."""
        return self.parts[1]

    def append(
        self,
        keys: Float[Array, "new heads qk_size"],
        values: Float[Array, "new heads vo_size"],
        *,
        count: ArrayLike | None = None,
        positions: ArrayLike | None = None,
    ) -> tuple[Rows, "KVCache"]:
        """Returns the rows that new rows may attend to, themselves included, and the new cache.

        **Arguments:** `keys`, `values`: of the new rows. `count`: how many of them are there.
        Default: all. `positions`: of each. Default: its number in the sequence.

        **Raises:** `ValueError` if a full cache has no room for them; inside `jit` the error is
        one of run time.
        """
        parts = checked_parts(keys=(keys, self.keys), values=(values, self.values))
        return self._append(parts, count, positions)
