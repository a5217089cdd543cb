"""Blocks of queries and of keys: split, bounded, and scored, a pair of blocks at a time."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.tracing import any_in_batch, is_symbolic, stop_gradients, vary_alike
from ..kernels import PointBoxes
from ..priors import PositionBlock, Prior
from ._base import Parts, apply_prior
from ._softmax_state import materialise_before_shift


class Block(NamedTuple):
    """Consecutive queries or keys, rows `low` to `high`, both included, and their bounding box.

    Points after row `high` are padding. `least`, `greatest`: the ends of the box.
    """

    low: Int[Array, ""]
    high: Int[Array, ""]
    points: Float[Array, "dim rows"]  # transposed: a loop over rows reads them in order
    least: Float[Array, " dim"]
    greatest: Float[Array, " dim"]
    values: Float[Array, "width rows"]  # those of keys; for queries, thresholds


def pad_rows(array: Array, size: int) -> Array:
    """Returns the array with its last row repeated until `size` divides the number of rows."""
    rows, *rest = array.shape
    short = -(-rows // size) * size - rows
    return jnp.concatenate([array, jnp.broadcast_to(array[-1:], (short, *rest))])


def even_block_size(count: int, limit: int) -> int:
    """Returns the size of the fewest equal blocks of at most `limit` rows.

    `count`: the number of all rows; if it is symbolic, the size is `limit`.
    """
    return limit if is_symbolic(count) else math.ceil(count / math.ceil(count / limit))


def split_blocks(points: Array, values: Array, size: int) -> Block:
    """Returns the points and their values in blocks of `size` rows, along a leading axis.

    `values`: shape (rows, width): the values of keys, or the thresholds of queries.
    """
    low = jnp.arange(-(-points.shape[0] // size)) * size

    def cut(array: Array) -> Array:
        return pad_rows(array, size).reshape(low.shape[0], size, array.shape[1]).swapaxes(1, 2)

    high = jnp.minimum(low + size, points.shape[0]) - 1
    box = jax.lax.stop_gradient(cut(points))
    least, greatest = jnp.min(box, axis=2), jnp.max(box, axis=2)
    # keeps XLA from hoisting all blocks of a mask, which depend on row numbers alone, out of a
    # scan over heads
    low, high, least = jax.lax.optimization_barrier((low, high, least))
    return Block(low, high, cut(points), least, greatest, cut(values))


def split_numbers(
    numbers: Float[Array, " queries"], size: int, padding: ArrayLike
) -> Float[Array, "blocks rows"]:
    """Returns `numbers` in blocks of `size` entries; the last block is filled up by `padding`."""
    blocks = -(-numbers.shape[0] // size)
    short = blocks * size - numbers.shape[0]
    return jnp.pad(numbers, (0, short), constant_values=padding).reshape(blocks, size)


def fold_blocks(
    rows: Block,
    columns: Block,
    numbers: Float[Array, "blocks rows *of_query"],
    start: Array,
    parts: Parts,
    needs: Callable[[Array, Array, Array], Bool[Array, ""]],
    add: Callable[[Block, Block, Array, Array], Array],
) -> Array:
    """Adds up all blocks of keys for each block of queries, and returns the final accumulators.

    Returns one row per query, padding included. Derivatives recompute the steps of its scans.

    **Arguments:** `rows`, `columns`: blocks of queries and of keys. `numbers`: an entry per query,
    such as its shift, or several. `start`: the accumulator before any key, shape (rows, ...).
    `parts`: kernel, prior and rule, which bound the log-weights of a pair of blocks.
    `add`: from (query block, key block, numbers, accumulator) to the next accumulator. `needs`:
    from (upper bound of the log-weights, numbers, accumulator) to whether the pair of blocks must
    be added.
    """
    checkpointed = functools.partial(jax.checkpoint, prevent_cse=False)

    @checkpointed
    def of_row(row: Block, number: Array) -> Array:
        @checkpointed
        def step(state: Array, column: Block) -> tuple[Array, None]:
            needed = any_in_batch(needs(log_weight_upper_bound(row, column, parts), number, state))
            # checkpointed again: a branch of `cond` saves its blocks of weights for the derivative
            operands = row, column, number, state
            return jax.lax.cond(needed, checkpointed(add), lambda *of: of[-1], *operands), None

        return jax.lax.scan(step, start, columns)[0]

    start = vary_alike(start, rows, columns, numbers, parts)
    found = jax.lax.map(lambda pair: of_row(*pair), (rows, numbers))
    return found.reshape(-1, *found.shape[2:])


def log_weight_upper_bound(row: Block, column: Block, parts: Parts) -> Float[Array, ""]:
    """Returns an upper bound of the log-weights of all pairs of a block of queries and of keys.

    `row`, `column`: the block of queries and of keys. The bound has no derivative. For `Entmax`
    without thresholds in `row.values` it bounds the scaled scores, log π included.
    """
    (kernel, prior, rule), thresholds = stop_gradients((parts, row.values))
    bound = kernel.score_upper_bound(
        PointBoxes(row.least, row.greatest, column.least, column.greatest)
    )
    bound = rule.scaled_scores(bound)
    if prior is not None:
        of_prior = prior.score_upper_bound(
            PositionBlock(row.low, row.high, column.low, column.high)
        )
        # the kernel's bound may be +inf for pairs that the prior forbids
        bound = jnp.where(jnp.isneginf(of_prior), -jnp.inf, bound + of_prior)
    lowest = None if not len(thresholds) else jnp.min(thresholds, axis=1)
    return rule.log_weights(bound.reshape(1, 1), lowest)[0, 0]


def block_log_weights(
    row: Block, column: Block, parts: Parts, keys: int
) -> Float[Array, "rows columns"]:
    """Returns the log-weights of all pairs of a block of queries and a block of keys.

    `row`, `column`: the block of queries and of keys. `keys`: the number of all keys; the
    positions from there on are padding, whose log-weight is -inf. For `Entmax` without thresholds
    in `row.values` the scaled scores are returned, log π included.
    """
    kernel, prior, rule = parts
    rows, columns = row.points.shape[1], column.points.shape[1]
    i, j = row.low + jnp.arange(rows), column.low + jnp.arange(columns)
    scores = rule.scaled_scores(kernel.pairwise(row.points.T, column.points.T))
    # a prior may be finite at the rows alone
    scores = apply_prior(scores, prior, jnp.minimum(i, row.high), jnp.minimum(j, column.high))
    scores = materialise_before_shift(scores)
    scores = rule.log_weights(scores, row.values[0] if len(row.values) else None)
    if is_symbolic(keys) or keys % columns:
        scores = jnp.where((j < keys)[None, :], scores, -jnp.inf)
    return scores


def negligible_gap(keys: int, dtype: Any) -> float:
    """Returns how far below the shift log-weights must lie for `keys` keys to be below rounding.

    The margin is e¹². A symbolic number of keys counts as 2³², the most that positions
    of 32 bits can number.
    """
    count = 2**32 if is_symbolic(keys) else keys
    return -math.log(float(jnp.finfo(dtype).eps)) + math.log(count) + 12.0


def is_block_needed(bound: Array, shift: Array, negligible: float) -> Bool[Array, ""]:
    """Whether weights up to exp(bound) can change the sum of any query.

    `shift`: the running shift of each query. `negligible`: the gap that `negligible_gap` returns.
    """
    return ~jnp.isneginf(bound) & ~(bound < jnp.min(shift) - negligible)


class TabulatedPrior(Prior):
    """A prior, and a table of its blocks: its bound on a block without an allowed pair is -inf.

    `any_allowed`: whether each block allows a pair. `sizes`: the number of queries and of keys of a
    block. Only block sums of `Blockwise` use it.
    """

    prior: Prior
    any_allowed: Bool[Array, "rows columns"]
    sizes: tuple[int, int] = eqx.field(static=True)

    def log_pair(self, i: Int[Array, ""], j: Int[Array, ""]) -> Float[Array, ""]:
        return self.prior.log_pair(i, j)

    def add_to_scores(self, scores: Array, i: Array, j: Array) -> Float[Array, "queries keys"]:
        return self.prior.add_to_scores(scores, i, j)

    def score_upper_bound(self, block: PositionBlock) -> Float[Array, ""]:
        """The bound of the prior; -inf if the table says that the block allows no pair.

        `block`: must lie within one block of the table.
        """
        row, column = block.i_low // self.sizes[0], block.j_low // self.sizes[1]
        bound = self.prior.score_upper_bound(block)
        return jnp.where(self.any_allowed[row, column], bound, -jnp.inf)

    def key_range(self, first: int, last: int, keys: int) -> range | None:
        return self.prior.key_range(first, last, keys)


def tabulate_blocks(
    prior: Prior | None, queries: int, keys: int, sizes: tuple[int, int]
) -> Prior | None:
    """Returns the prior with a table of which blocks allow any pair, if it needs one.

    Any other prior is returned as it is; a table of blocks of other sizes is replaced. `sizes`: the
    number of queries and of keys of a block. Every pair is read once, a block at a time, so that
    the memory is that of one block.
    """
    if prior is None or not prior.needs_block_table:
        return prior
    if isinstance(prior, TabulatedPrior):
        return prior if prior.sizes == sizes else tabulate_blocks(prior.prior, queries, keys, sizes)
    rows, columns = (
        jnp.arange(-(-count // size)) * size
        for count, size in zip((queries, keys), sizes, strict=True)
    )

    def is_any_allowed(i_low: Array, j_low: Array) -> Bool[Array, ""]:
        # rows of padding repeat the last row
        i = jnp.minimum(i_low + jnp.arange(sizes[0]), queries - 1)
        j = jnp.minimum(j_low + jnp.arange(sizes[1]), keys - 1)
        of_key = jax.vmap(prior.may_allow, in_axes=(0, None))
        allowed = jax.vmap(of_key, in_axes=(None, 0))(i, j)
        # T = 4096: a mask of tiles in 6 ms, `any` in 10; in 14 along keys
        return jnp.max(allowed.astype(jnp.int32)) > 0

    table = jax.lax.map(lambda i: jax.lax.map(lambda j: is_any_allowed(i, j), columns), rows)
    return TabulatedPrior(prior, table, sizes)
