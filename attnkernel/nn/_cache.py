"""Key-value caches: the keys and values of earlier rows, for attention of the next ones."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core.arrays import as_float_dtype, as_real_array, require_finite
from .._core.host_arrays import is_concrete
from .._core.validation import as_integer, require_bool


class Rows(NamedTuple):
    """Keys and values to attend to, and the position of each; −1 marks an empty place."""

    keys: Float[Array, "rows heads qk_size"]
    values: Float[Array, "rows heads vo_size"]
    positions: Int[Array, " rows"]


class KVCache(eqx.Module):
    r"""The keys and values of the rows so far, in arrays of a fixed size.

    - A full cache keeps every row, up to its capacity. To write past its end is an error.
    - A ring keeps the last rows, up to its capacity, in O(1) memory: row t at place t mod capacity,
      with its position t, so that masks, biases and rotary angles stay right when it wraps.
      Attention sees a window of that many rows, the query's own included.

    **Arguments:**

    - `capacity`: the number of rows.
    - `heads`, `qk_size`, `vo_size`: of keys and values.
    - `ring`: whether new rows overwrite the oldest ones. Default: no.
    - `dtype`: of keys and values. Default: the default floating type. In bfloat16 they take half
      the memory; sums over them are still formed in at least float32.

    ```python
    attention = ak.MultiheadAttention(2, 8, key=jax.random.PRNGKey(0))
    cache = attention.cache(100)
    for row in jax.random.normal(jax.random.PRNGKey(1), (3, 1, 8)):
        out, cache = attention.step(row, cache)
    ```
    """

    keys: Float[Array, "capacity heads qk_size"]
    values: Float[Array, "capacity heads vo_size"]
    positions: Int[Array, " capacity"]
    length: Int[Array, ""]
    ring: bool = eqx.field(static=True)

    def __init__(
        self,
        capacity: int,
        heads: int,
        qk_size: int,
        vo_size: int,
        *,
        ring: bool = False,
        dtype=None,
    ):
        capacity = as_integer("capacity", capacity, 1)
        heads = as_integer("heads", heads, 1)
        qk_size = as_integer("qk_size", qk_size, 1)
        vo_size = as_integer("vo_size", vo_size, 1)
        require_bool("ring", ring)
        dtype = as_float_dtype("dtype", dtype)
        self.keys = jnp.zeros((capacity, heads, qk_size), dtype)
        self.values = jnp.zeros((capacity, heads, vo_size), dtype)
        self.positions = jnp.full(capacity, -1)
        self.length = jnp.array(0)
        self.ring = ring

    @property
    def capacity(self) -> int:
        """The number of rows that fit."""
        return self.positions.shape[0]

    def next_positions(self, rows: int) -> Int[Array, " rows"]:
        """The positions of the next rows."""
        return self.length + jnp.arange(rows)

    def append(
        self,
        keys: Float[Array, "new heads qk_size"],
        values: Float[Array, "new heads vo_size"],
    ) -> tuple[Rows, "KVCache"]:
        """Returns the rows that new rows may attend to, themselves included, and the new cache.

        **Raises:** `ValueError` if a full cache has no room for them; inside `jit` the error is
        one of run time.
        """
        keys, values = as_real_array("keys", keys), as_real_array("values", values)
        new = len(keys) if keys.ndim else 0
        for name, array, held in (("keys", keys, self.keys), ("values", values, self.values)):
            if array.shape != (new, *held.shape[1:]):
                raise ValueError(
                    f"{name} must have shape (new, heads, size) = ({new}, {held.shape[1]}, "
                    f"{held.shape[2]}), as many keys as values; got {array.shape}."
                )
            require_finite(name, array)
        if not self.ring:
            left = f"A cache of {self.capacity} rows cannot take {new} more"
            advice = "Make it larger, or a ring, which overwrites the oldest rows."
            if is_concrete(self.length):
                if int(self.length) + new > self.capacity:
                    raise ValueError(f"{left}: it holds {int(self.length)}. {advice}")
            else:
                over = self.length + new > self.capacity
                keys = eqx.error_if(keys, over, f"{left} than it holds. {advice}")
        positions = self.next_positions(new)
        rows = Rows(keys.astype(self.keys.dtype), values.astype(self.values.dtype), positions)
        # where new rows exceed the capacity, the last ones are kept
        kept = Rows(*(part[-self.capacity :] for part in rows))
        place = kept.positions % self.capacity
        held = Rows(self.keys, self.values, self.positions)
        after = Rows(*(old.at[place].set(part) for old, part in zip(held, kept, strict=True)))
        cache = eqx.tree_at(
            lambda cache: (cache.keys, cache.values, cache.positions, cache.length),
            self,
            (*after, self.length + new),
        )
        if self.ring and new > 1:  # the first of them may see rows that the last overwrite
            both = (jnp.concatenate(pair) for pair in zip(held, rows, strict=True))
            return Rows(*both), cache
        return after, cache
