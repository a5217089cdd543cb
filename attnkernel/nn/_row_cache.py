"""Caches that keep arrays of each row: all rows, or the first and the last ones in a ring."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from .._core.arrays import as_float_dtype, as_integer_array, as_real_array, require_finite
from .._core.host_arrays import is_concrete
from .._core.validation import MAX_INTEGER, as_integer, require_bool, require_integer
from ..priors import AtPositions, Causal, MaskArray, Window
from ._cache import Cache, as_count
from ._heads import as_positions, multiply_priors

EMPTY = MAX_INTEGER  # the number of a row that is not there: no query is behind it


class Rows(NamedTuple):
    """Rows to attend to: their arrays, the number of each in the sequence, and its position."""

    parts: tuple[Array, ...]
    numbers: Int[Array, " rows"]
    positions: Int[Array, " rows"]


class RowCache(Cache):
    """Arrays of each row, at a place of its own or in a ring that keeps its first rows."""

    parts: tuple[Array, ...]
    numbers: Int[Array, " capacity"]
    positions: Int[Array, " capacity"]
    length: Int[Array, ""]
    ring: bool = eqx.field(static=True)
    sinks: int = eqx.field(static=True)
    spare: int = eqx.field(static=True)

    def __init__(
        self,
        capacity: int,
        shapes: tuple[tuple[int, ...], ...],
        ring: bool,
        sinks: int,
        spare: int,
        dtype: Any,
    ):
        capacity = as_integer("capacity", capacity, 1)
        require_bool("ring", ring)
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
        self.parts = tuple(jnp.zeros((capacity, *shape), dtype) for shape in shapes)
        self.numbers = jnp.full(capacity, EMPTY)
        self.positions = jnp.full(capacity, 0)
        self.length = jnp.array(0)
        self.ring = bool(ring)

    @property
    def capacity(self) -> int:
        """The number of rows that fit."""
        return self.numbers.shape[0]

    @property
    def window(self) -> int:
        """The number of last rows that a query sees in a ring, its own included."""
        return self.capacity - self.sinks - self.spare

    def keep(self, length: ArrayLike, rows: ArrayLike, count: ArrayLike | None = None) -> Any:
        require_integer("length", length, 0)
        rows = as_integer_array("rows", rows)
        if rows.ndim != 1:
            raise ValueError(f"rows must be numbers of rows, shape (rows,); got {rows.shape}.")
        count = as_count("count", len(rows) if count is None else count, len(rows))
        start: Any = jnp.asarray(length, self.length.dtype)
        read = jnp.arange(len(rows)) < count
        source, target = start + rows, start + jnp.arange(len(rows))
        held = self.numbers < start
        lowest = jnp.clip(start + count - self.window + 1, 0, start) if self.ring else 0
        missing = (
            (start > self.length)
            | (jnp.sum(held & (self.numbers >= lowest)) < start - lowest)
            | jnp.any(read & ((rows < 0) | (self.numbers[self._places(source)] != source)))
            | jnp.any(read[1:] & (jnp.diff(rows) <= 0))
        )
        message = (
            "length and rows must name rows that the cache holds, rows increasing, and all that "
            "the next query sees. A ring overwrites its oldest rows: make it with spare=, the most "
            "rows of a draft, or keep the earlier cache"
        )
        if is_concrete(missing):
            if bool(missing):
                raise ValueError(
                    f"{message}. The cache of {int(self.length)} rows cannot go back to "
                    f"{int(start)} and keep {rows[: int(count)].tolist()}."
                )
        else:
            start = eqx.error_if(start, missing, f"{message}.")
        at = self._places(source)
        kept = Rows(tuple(part[at] for part in self.parts), target, self.positions[at])
        before = Rows(self.parts, jnp.where(held, self.numbers, EMPTY), self.positions)
        return self._write(before, kept, read, start + count)

    def _append(
        self, parts: tuple[Array, ...], count: Any = None, positions: Any = None
    ) -> tuple[Rows, Any]:
        """Returns the rows that new rows may attend to, themselves included, and the new cache."""
        new = parts[0].shape[0]
        count = as_count("count", new if count is None else count, new)
        numbers = self.next_positions(new)
        if positions is not None:
            positions = as_positions("positions", positions, new)
        if not self.ring:
            advice = "Make it larger, or a ring, which overwrites the oldest rows."
            left = f"A cache of {self.capacity} rows cannot take {new} more"
            if is_concrete(self.length, count):
                if int(self.length) + int(count) > self.capacity:
                    raise ValueError(f"{left}: it holds {int(self.length)}. {advice}")
            else:
                over = self.length + count > self.capacity
                numbers = eqx.error_if(numbers, over, f"{left} than it holds. {advice}")
        there = jnp.arange(new) < count
        parts = tuple(part.astype(held.dtype) for part, held in zip(parts, self.parts, strict=True))
        positions = numbers if positions is None else positions
        rows = Rows(parts, jnp.where(there, numbers, EMPTY), positions)
        held = Rows(self.parts, self.numbers, self.positions)
        written = there
        if self.ring:  # where new rows exceed the ring, the last ones are kept
            last = numbers >= self.length + count - (self.capacity - self.sinks)
            written = there & (last | (numbers < self.sinks))
        cache = self._write(held, rows, written, self.length + count)
        if self.ring and new > 1:  # the first of them may see rows that the last overwrite
            return jax.tree.map(lambda *both: jnp.concatenate(both), held, rows), cache
        return Rows(cache.parts, cache.numbers, cache.positions), cache

    def _prior(self, seen: Rows, new: Any, positions: Int[Array, " new"], own: Any) -> Any:
        """Returns the prior of new rows over the rows that `_append` returned; `self` is the cache
        before them.

        `positions`: of the new rows. `own`: the prior of the layer.
        """
        rows = len(positions)
        if new.mask is None:
            visible = AtPositions(Causal(), self.next_positions(rows), seen.numbers)
        else:
            which = seen.numbers - self.length  # of the new rows; negative for those before
            among_new = new.mask[:, jnp.clip(which, 0, rows - 1)] & (which < rows)[None]
            visible = MaskArray(jnp.where((which < 0)[None], True, among_new))
        window = given = None
        if self.ring:
            # a window without an end on the right, in which the first rows always are
            places = jnp.where(seen.numbers < self.sinks, EMPTY, seen.positions)
            window = AtPositions(Window(self.window - 1, EMPTY), positions, places)
        if (prior := multiply_priors(own, new.prior)) is not None:
            given = AtPositions(prior, positions, seen.positions)
        return multiply_priors(given, visible, window)

    def _places(self, numbers: Int[Array, " rows"]) -> Int[Array, " rows"]:
        """Returns the place of each row of the sequence."""
        if not self.ring:
            return numbers
        around = (numbers - self.sinks) % (self.capacity - self.sinks)
        return jnp.where(numbers < self.sinks, numbers, self.sinks + around)

    def _write(
        self, held: Rows, rows: Rows, written: Bool[Array, " rows"], length: Int[Array, ""]
    ) -> Any:
        """Returns the cache with `held` at its places, and those of `rows` that are `written`."""
        places = jnp.where(written, self._places(rows.numbers), self.capacity)
        after = jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), held, rows)
        return eqx.tree_at(
            lambda cache: (*cache.parts, cache.numbers, cache.positions, cache.length),
            self,
            (*after.parts, after.numbers, after.positions, length),
        )


def checked_parts(**parts: tuple[Any, Array]) -> tuple[Array, ...]:
    """Returns the arrays of new rows, each given with that of the cache; `ValueError` unless they
    are finite, have the sizes of the cache and as many rows."""
    arrays = [as_real_array(name, array) for name, (array, _) in parts.items()]
    new = arrays[0].shape[0] if arrays[0].ndim else 0
    for array, (name, (_, held)) in zip(arrays, parts.items(), strict=True):
        if array.shape != (new, *held.shape[1:]):
            raise ValueError(
                f"{' and '.join(parts)} must have as many rows, in the sizes of the cache: {name} "
                f"of shape {(new, *held.shape[1:])}; got {array.shape}."
            )
        require_finite(name, array)
    return tuple(arrays)
