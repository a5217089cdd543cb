"""Blocks of queries, each summed at once over all keys that it may see: a product with its keys, a
maximum, an exponential, a product with the values.

For this the range of keys must be known before a call (`Prior.key_range`), of at most 4096 keys; no
block is skipped and no shift is raised. Blocks that see about as many keys are one loop; those of a
causal mask are up to 8 loops, each over as many keys as its last block sees.

Milliseconds of 8 heads of 64, float32, 2 cores, streamed → at once, forward; with gradients. Of
1024 rows, no mask 27 → 22, 77 → 75, causal 27 → 15, 75 → 51, `Window(256, 0)` 14 → 10, 44 → 33; of
4096, no mask 357 → 325, 1176 → 1121, causal 273 → 200, 815 → 740, window 84 → 39, 279 → 159.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._core.tracing import is_symbolic
from ..priors import key_range_of
from ._base import Keys, Parts, Queries, Task, Values
from ._blocks import even_block_size, pad_rows
from ._dense import Dense
from ._softmax_state import SoftmaxState

# As many members of a batch as have so many pairs in a block are one step. With gradients, no mask,
# T = 1024: blocks of 256 queries 84 ms, 512 75, 1024 71; T = 256: 8 heads one by one 9 ms, all 4.
# Causal, T = 1024: 2 heads in a step 56, 4 heads 72.
STEP_PAIRS = 2**19


class Loop(NamedTuple):
    """Consecutive blocks of `size` queries, from query `first` on; block b is summed over `width`
    keys, from key `starts[b]` on."""

    first: int
    size: int
    starts: tuple[int, ...]
    width: int


def loops_over_blocks(task: Task, size: int | None, max_keys: int = 4096) -> list[Loop] | None:
    """Returns loops over blocks of all queries, with the range of keys that each block may see.

    Returns None if the prior does not know these ranges before a call, a range is longer than
    `max_keys`, or a number of rows is symbolic. There is one loop if all blocks see about as many
    keys, else up to 8. A loop takes for each block the number of keys of its largest range.

    `size`: the number of queries of a block. Default: that of equal blocks of at most
    `STEP_PAIRS` pairs with all keys, or of 256 queries if that is more. If the first and the last
    query see different keys, the limit is half of the larger number of keys that they see, from 128
    to 256. `max_keys`: beyond the default streaming is faster. T = 16384, causal, in blocks of 256
    queries takes 3390 ms, streamed 2940.
    """
    # a causal mask then reads 9/16 of all pairs; the gradient compiles 1 s for each loop
    max_loops = 8
    if is_symbolic(task.queries, task.keys):
        return None
    last = task.queries - 1
    if (ends := _seen_keys(task, [(0, 0), (last, last)])) is None:
        return None
    if size is None:
        limit = max(256, STEP_PAIRS // task.keys)
        if ends[0] != ends[1]:
            limit = max(128, min(256, max(map(len, ends)) // 2))
        size = even_block_size(task.queries, limit)
    firsts = range(0, task.queries, size)
    seen = _seen_keys(task, [(first, min(first + size - 1, last)) for first in firsts])
    if seen is None or max(map(len, seen)) > max_keys:
        return None
    widths = [len(keys) for keys in seen]
    is_even = 0.8 * max(widths) * len(widths) <= sum(widths)
    blocks = len(seen) if is_even else -(-len(seen) // max_loops)

    def loop(at: int) -> Loop:
        width = max(widths[at : at + blocks])
        starts = [min(keys.start, task.keys - width) for keys in seen[at : at + blocks]]
        return Loop(firsts[at], size, tuple(starts), width)

    return [loop(at) for at in range(0, len(seen), blocks)]


def _seen_keys(task: Task, blocks: list[tuple[int, int]]) -> list[range] | None:
    """Returns the range of keys that the queries of each block may see, at least one key; None if
    the prior does not know a range.

    `blocks`: the first and the last query of each block.
    """
    ranges = [key_range_of(task.prior, *block, task.keys) for block in blocks]
    known = [
        range(task.keys)[max(keys.start, 0) : max(keys.stop, 0)]
        for keys in ranges
        if keys is not None
    ]
    return [keys or range(1) for keys in known] if len(known) == len(ranges) else None


def sum_loops(
    q: Queries, k: Keys, v: Values, parts: Parts, loops: list[Loop], precision: str | None
) -> SoftmaxState:
    """Returns the `SoftmaxState` of every query over the keys that it may see, without the sink.

    Blocks are not stored for the backward pass, but recomputed. `parts`: the kernel, prior and
    rule. `loops`: the blocks of queries and their ranges of keys, from `loops_over_blocks`.
    `precision`: of the matrix products, as in `Dense`.
    """

    def state(q: Array, columns: list[Array], i: Array, j: Array) -> SoftmaxState:
        k, v = columns
        return Dense(precision=precision).state_of_block(q, k, v, parts, i, j)

    return map_loops(state, q, [k, v], loops)


def map_loops(
    function: Callable[[Queries, list[Array], Array, Array], Any],
    q: Queries,
    columns: list[Array],
    loops: list[Loop],
) -> Any:
    """Applies `function(q, columns, i, j)` to each block of queries with the keys that it may see.

    Returns the results of all blocks concatenated, a row per query. Derivatives recompute the
    blocks. `columns`: arrays with a row per key. `i`, `j`: the positions of queries and of keys.
    """
    last = q.shape[0] - 1  # a prior may be finite at the rows alone

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def of_block(q: Array, columns: list[Array], i: Array, j: Array) -> Any:
        # twice transposed, so that their cotangents are wide: XLA on CPU is slow with tall ones
        # (gradient of 8 heads x 2048 x 32: 413 ms instead of 244)
        wide = jax.lax.optimization_barrier([array.T for array in columns])
        i, j = jnp.minimum(i + jnp.arange(q.shape[0]), last), j + jnp.arange(len(columns[0]))
        return function(q, [array.T for array in wide], i, j)

    # again, so that for a derivative a scan over heads stores no slices of its keys
    @functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
    def of_loop(q: Array, columns: list[Array], loop: Loop) -> Any:
        first, size, starts, width = loop
        rows = pad_rows(q[first : first + size * len(starts)], size)
        rows = rows.reshape(len(starts), size, q.shape[1])
        shared = [array[starts[0] : starts[0] + width] for array in columns]

        def of_rows(block: tuple[Array, Array, Array]) -> Any:
            rows, i, j = block
            if len(set(starts)) == 1:
                return of_block(rows, shared, i, j)
            own = [jax.lax.dynamic_slice_in_dim(array, j, width) for array in columns]
            return of_block(rows, own, i, j)

        i, j = first + size * jnp.arange(len(starts)), jnp.array(starts)
        found = jax.lax.map(of_rows, (rows, i, j))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

    found = [of_loop(q, columns, loop) for loop in loops]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: q.shape[0]], *found)
