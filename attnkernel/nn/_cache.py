"""Caches: what a layer keeps of the rows so far, to compute the rows that follow."""

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import (
    as_float_dtype,
    as_integer_array,
    as_real_array,
    is_concrete,
    require_finite,
    value_text,
)
from .._core.validation import MAX_INTEGER, as_integer, require_bool, require_integer
from ..priors import AtPositions, Causal, MaskArray, Prior, Window
from ._inputs import as_positions, multiply_priors

EMPTY = MAX_INTEGER  # row number where no row is stored, above any query's: none sees it


class Cache(eqx.Module):
    r"""What a layer keeps of the first n rows of a sequence, to compute those that follow.

    A layer makes an empty cache, and its `step` returns the cache with the new rows. Caches are
    trees of arrays and never change: an earlier one stays as it was. For a batch use `jax.vmap`.

    | cache | keeps | memory | goes back by |
    |---|---|---|---|
    | `KVCache` | keys and values, or latents, of all rows | O(rows) | `rollback`, `keep` |
    | `KVCache`, a ring | those of the first and the last rows | O(1) | the same, a few rows |
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
        """Returns `length`, `length` + 1, ...: the numbers in the sequence of the next rows.

        `rows`: how many rows follow.
        """
        return self.length + jnp.arange(rows)

    def rollback(self, length: ArrayLike) -> "Cache":
        """The cache of the first `length` rows.

        **Raises:** `ValueError` if it has fewer rows, or no longer holds what the next row would
        see (inside `jit`, at run time). A `RecurrentCache` always raises.
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


class CachedRows(eqx.Module):
    """Keys and values of rows, the number of each row in the sequence, and its position."""

    keys: Float[Array, "rows heads qk_size"]
    values: Float[Array, "rows heads vo_size"]
    numbers: Int[Array, " rows"]
    positions: Int[Array, " rows"]


class KVCache(Cache):
    r"""The keys and values of the rows so far, in arrays of a fixed size.

    - A full cache keeps every row, up to its capacity. To write past its end is an error.
    - A ring keeps the last rows in O(1) memory, with their positions, so that masks, biases and
      rotary angles stay right when it wraps. A query sees a window of rows, its own included.
    - A ring with sinks keeps the first rows for ever, too. Positions stay those of the sequence,
      and the first rows recede; StreamingLLM counts positions within the cache instead.

    **Arguments:**

    - `capacity`: the number of rows.
    - `heads`, `qk_size`: of keys. `vo_size`: of values; 0 where the keys hold them, as the latents
      of `LatentAttention` do.
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

    rows: CachedRows
    length: Int[Array, ""]
    ring: bool = eqx.field(static=True)
    sinks: int = eqx.field(static=True)
    spare: int = eqx.field(static=True)

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
        capacity, heads = as_integer("capacity", capacity, 1), as_integer("heads", heads, 1)
        sizes = as_integer("qk_size", qk_size, 1), as_integer("vo_size", vo_size, 0)
        require_bool("ring", ring)
        self.ring, self.length = bool(ring), jnp.array(0)
        self.sinks, self.spare = as_integer("sinks", sinks, 0), as_integer("spare", spare, 0)
        if not ring and (self.sinks or self.spare):
            raise ValueError(
                f"sinks and spare are rows of a ring: pass ring=True; a full cache keeps every "
                f"row. Got sinks={sinks}, spare={spare}."
            )
        if self.sinks + self.spare >= capacity:
            raise ValueError(
                f"sinks and spare must leave a row of the ring to attend to; got capacity "
                f"{capacity}, sinks={sinks}, spare={spare}."
            )
        dtype = as_float_dtype("dtype", dtype)
        keys, values = (jnp.zeros((capacity, heads, size), dtype) for size in sizes)
        self.rows = CachedRows(keys, values, jnp.full(capacity, EMPTY), jnp.full(capacity, 0))

    @property
    def capacity(self) -> int:
        """The number of rows that fit."""
        return len(self.rows.numbers)

    @property
    def window(self) -> int:
        """The number of last rows that a query sees in a ring, its own included.

        In a full cache it is the capacity.
        """
        return self.capacity - self.sinks - self.spare

    @property
    def keys(self) -> Float[Array, "capacity heads qk_size"]:
        """The stored keys. `rows.numbers` has the number in the sequence of each, or `EMPTY`."""
        return self.rows.keys

    @property
    def values(self) -> Float[Array, "capacity heads vo_size"]:
        """The stored values, in the order of `keys`; of size 0 if keys hold them."""
        return self.rows.values

    def keep(self, length: ArrayLike, rows: ArrayLike, count: ArrayLike | None = None) -> "KVCache":
        require_integer("length", length, 0)
        rows = as_integer_array("rows", rows, axes=1)
        count = as_count("count", count, len(rows))
        start: Any = jnp.asarray(length, self.length.dtype)
        read = jnp.arange(len(rows)) < count
        source, target = start + rows, start + jnp.arange(len(rows))
        at, numbers = self._places(source), self.rows.numbers
        held = numbers < start
        lowest = jnp.clip(start + count - self.window + 1, 0, start) if self.ring else 0
        missing = (
            (start > self.length)
            | (jnp.sum(held & (numbers >= lowest)) < start - lowest)
            | jnp.any(read & ((rows < 0) | (numbers[at] != source)))
            | jnp.any(read[1:] & (jnp.diff(rows) <= 0))
        )
        message = (
            "length and rows must name rows that the cache holds, rows increasing, and all that "
            "the next query sees. A ring overwrites its oldest rows: make it with spare=, the most "
            "rows of a draft, or keep the earlier cache"
        )
        start = error_if(
            start,
            missing,
            message,
            lambda: (
                f". The cache of {self.length} rows cannot go back to {start} and keep "
                f"{rows[:count].tolist()}"
            ),
        )
        kept = replace(jax.tree.map(lambda part: part[at], self.rows), numbers=target)
        before = replace(self.rows, numbers=jnp.where(held, numbers, EMPTY))
        return self._write(before, kept, read, start + count)

    def append(
        self,
        keys: Float[Array, "new heads qk_size"],
        values: Float[Array, "new heads vo_size"],
        *,
        count: ArrayLike | None = None,
        positions: ArrayLike | None = None,
    ) -> tuple[CachedRows, "KVCache"]:
        """Returns the rows that new rows may attend to, themselves included, and the new cache.

        The `CachedRows` include entries without a row, of number `EMPTY`, and rows that no new row
        sees. `visible_prior` hides both.

        **Arguments:** `keys`, `values`: of the new rows. `count`: how many of them are valid.
        Default: all. `positions`: of each. Default: its number in the sequence.

        **Raises:** `ValueError` for arrays of other shapes, numbers that are not finite, and rows
        for which a full cache has no room (inside `jit`, at run time).
        """
        keys, values = as_real_array("keys", keys), as_real_array("values", values)
        new = keys.shape[0] if keys.ndim else 0
        for name, given, held in (("keys", keys, self.keys), ("values", values, self.values)):
            if given.shape != (new, *held.shape[1:]):
                raise ValueError(
                    f"keys and values must have as many rows, in the sizes of the cache: {name} "
                    f"of shape {(new, *held.shape[1:])}; got {given.shape}."
                )
            require_finite(name, given)
        count = as_count("count", count, new)
        numbers = self.next_positions(new)
        positions = numbers if positions is None else as_positions("positions", positions, new)
        if not self.ring:
            message = (
                f"A cache of {self.capacity} rows cannot take {new} more: make it larger, or a "
                f"ring, which overwrites the oldest rows"
            )
            over = self.length + count > self.capacity
            numbers = error_if(numbers, over, message, lambda: f". It holds {self.length}")
        valid = jnp.arange(new) < count
        keys, values = keys.astype(self.keys.dtype), values.astype(self.values.dtype)
        rows = CachedRows(keys, values, jnp.where(valid, numbers, EMPTY), positions)
        if self.ring:  # where new rows exceed the ring, the last ones are kept
            last = numbers >= self.length + count - (self.capacity - self.sinks)
            valid = valid & (last | (numbers < self.sinks))
        cache = self._write(self.rows, rows, valid, self.length + count)
        if self.ring and new > 1:  # the first of them may see rows that the last overwrite
            return jax.tree.map(lambda *both: jnp.concatenate(both), self.rows, rows), cache
        return cache.rows, cache

    def visible_prior(
        self, seen: CachedRows, positions: Int[Array, " new"], mask: Array | None, prior: Any
    ) -> Prior:
        """Returns a prior with the new rows as queries, and the rows of `append` as keys.

        It is the product of `mask`, the window of a ring and `prior`. `self` is the cache before
        `append`.

        **Arguments:** `positions`: of the new rows. `mask`: which new row sees which new row.
        Default: each sees those before it and itself. `prior`: a further factor, evaluated at
        the positions of the rows.
        """
        rows = len(positions)
        if mask is None:
            visible = AtPositions(Causal(), self.next_positions(rows), seen.numbers)
        else:
            which = seen.numbers - self.length  # of the new rows; negative for those before
            among_new = mask[:, jnp.clip(which, 0, rows - 1)] & (which < rows)[None]
            visible = MaskArray(jnp.where((which < 0)[None], True, among_new))
        window = None
        if self.ring:
            # a window without an end on the right, in which the first rows always are
            places = jnp.where(seen.numbers < self.sinks, EMPTY, seen.positions)
            window = AtPositions(Window(self.window - 1, EMPTY), positions, places)
        given = None if prior is None else AtPositions(prior, positions, seen.positions)
        return multiply_priors(given, visible, window)

    def _places(self, numbers: Int[Array, " rows"]) -> Int[Array, " rows"]:
        """Returns the index in the arrays of each row, given by its number in the sequence."""
        if not self.ring:
            return numbers
        around = (numbers - self.sinks) % (self.capacity - self.sinks)
        return jnp.where(numbers < self.sinks, numbers, self.sinks + around)

    def _write(
        self, held: CachedRows, rows: CachedRows, valid: Bool[Array, " rows"], length: Array
    ) -> "KVCache":
        """Returns the cache that holds `held`, with the valid ones of `rows` written over it.

        `length`: the number of rows of the sequence then.
        """
        places = jnp.where(valid, self._places(rows.numbers), self.capacity)
        after = jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), held, rows)
        return eqx.tree_at(lambda cache: (cache.rows, cache.length), self, (after, length))


class RecurrentCache(Cache):
    """The state of a recurrent layer, of fixed size at any number of rows.

    It cannot go back: keep the earlier cache, and repeat the step with `count=`, the number of
    accepted rows.

    **Arguments:** `state`: a tree of arrays, as `ak.recurrent.regress` returns it. Layers
    make it by `cache()` or `recurrent_cache()`.

    **Raises:** `ValueError` if it is no such tree.

    ```python
    layer = ak.nn.RecurrentAttention(
        2, 8, estimator=ak.recurrent.LinearAttention(), key=jax.random.PRNGKey(0)
    )
    x = jax.random.normal(jax.random.PRNGKey(1), (5, 8))
    before = layer.cache()
    out, drafted = layer.step(x, before)
    _, cache = layer.step(x, before, count=3)  # three of the five drafts are accepted
    assert cache.length == 3 and cache.state.matrix.shape == (2, 4, 4)
    ```
    """

    state: Any
    length: Int[Array, ""]

    def __init__(self, state: Any):
        leaves = jax.tree.leaves(state)
        if not leaves or not all(map(eqx.is_array, leaves)):
            raise ValueError(
                f"state must be a tree of arrays, as ak.recurrent.regress returns it; got "
                f"{value_text(state)}."
            )
        self.state = state
        self.length = jnp.array(0)

    @property
    def dtype(self) -> Any:
        """The widest dtype of the state."""
        return jnp.result_type(*jax.tree.leaves(self.state))

    def keep(self, length: ArrayLike, rows: ArrayLike, count: ArrayLike | None = None) -> "Cache":
        """Always raises `ValueError`: a recurrent state cannot drop rows.

        Keep the earlier cache, and repeat the step with `count=`.
        """
        raise ValueError(
            "A recurrent state cannot give rows back: keep the earlier cache, and repeat the step "
            "with count=, the number of accepted rows."
        )

    def advanced(self, state: Any, rows: Int[Array, ""] | int) -> "RecurrentCache":
        """Returns the cache with `state` in place of its own, cast to the dtypes of that.

        `rows`: the number of rows that `length` grows by.
        """
        state = jax.tree.map(lambda new, old: new.astype(old.dtype), state, self.state)
        where = lambda cache: (cache.state, cache.length)  # noqa: E731
        return eqx.tree_at(where, self, (state, self.length + rows))


def as_count(name: str, count: Any, most: int) -> Int[Array, ""] | int:
    """Returns `count`, or `most` if it is None.

    Raises `ValueError` unless it is an integer from 0 to `most`; inside `jit`, an error at run
    time.
    """
    if count is None:
        return most
    require_integer(name, count, 0)
    count = int(count) if is_concrete(count) else jnp.asarray(count, jnp.result_type(int))
    message = f"{name} must be an integer from 0 to {most}, the number of rows given"
    return error_if(count, (count < 0) | (count > most), message, lambda: f"; got {count}")


def error_if(value: Any, wrong: Any, message: str, details: Callable[[], str] = lambda: "") -> Any:
    """Returns the value; raises `ValueError` if `wrong`, inside `jit` an error at run time, which
    has no details."""
    if not is_concrete(wrong):
        return eqx.error_if(value, wrong, f"{message}.")
    if wrong:
        raise ValueError(f"{message}{details()}.")
    return value
