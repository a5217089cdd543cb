"""The thresholds of an entmax by Newton's method, with one pass over the blocks per step."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..rules import MassAndSlope, find_threshold, threshold_sums, threshold_tangent
from ._base import Keys, Queries
from ._blocks import (
    Block,
    Parts,
    block_log_weights,
    fold_blocks,
    jvp_with_constants,
    split_blocks,
    split_numbers,
)


@eqx.filter_custom_jvp
def thresholds(
    q: Queries, k: Keys, parts: Parts, sizes: tuple[int, int]
) -> Float[Array, " queries"]:
    """Returns the threshold λ of each query, which makes its entmax weights sum to 1.

    `parts`: the kernel, prior and rule. `sizes`: the number of queries and of keys of a block.
    """
    highest = row_maxima(q, k, parts, sizes)
    assert parts[2].entmax_exponent is not None
    return find_threshold(
        lambda threshold: _sums(q, k, threshold, parts, sizes), highest, parts[2].entmax_exponent
    )


@thresholds.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Returns the thresholds, and their tangent by the implicit function theorem."""
    threshold = thresholds(*primals)

    def sums(q: Array, k: Array, parts: Parts, sizes: tuple[int, int]) -> MassAndSlope:
        return _sums(q, k, threshold, parts, sizes)

    slope = jvp_with_constants(lambda *primals: sums(*primals)[0], primals, tangents)
    return threshold, threshold_tangent(sums(*primals), slope)


def row_maxima(
    q: Queries, k: Keys, parts: Parts, sizes: tuple[int, int]
) -> Float[Array, " queries"]:
    """Returns the highest scaled score of each query, log π included; -inf if it sees no key."""
    rows, columns = split_blocks(q, q[:, :0], sizes[0]), split_blocks(k, k[:, :0], sizes[1])

    def needs(bound: Array, _: Array, highest: Array) -> Bool[Array, ""]:
        return ~(bound <= jnp.min(highest))

    def add(row: Block, column: Block, _: Array, highest: Array) -> Array:
        scores = block_log_weights(row, column, parts, k.shape[0])
        return jnp.maximum(highest, jnp.max(scores, axis=1))

    lowest = jnp.full(sizes[0], -jnp.inf, q.dtype)
    unused = jnp.zeros((rows.low.shape[0], sizes[0]), q.dtype)
    return fold_blocks(rows, columns, unused, lowest, parts, needs, add)[: q.shape[0]]


def _sums(
    q: Queries, k: Keys, threshold: Float[Array, " queries"], parts: Parts, sizes: tuple[int, int]
) -> MassAndSlope:
    """Returns S(λ) and −dS/dλ of each query, where S is the sum of its entmax weights.

    `threshold`: λ. `parts`: the kernel, prior and rule. `sizes`: queries and keys of a block.
    """
    rows, columns = split_blocks(q, q[:, :0], sizes[0]), split_blocks(k, k[:, :0], sizes[1])
    exponent = parts[2].entmax_exponent
    assert exponent is not None

    def needs(bound: Array, threshold: Array, _: Array) -> Bool[Array, ""]:
        return ~(bound <= jnp.min(threshold) - exponent)

    def add(row: Block, column: Block, threshold: Array, sums: Array) -> Array:
        scores = block_log_weights(row, column, parts, k.shape[0])
        return sums + jnp.stack(threshold_sums(scores - threshold[:, None], exponent), axis=1)

    start = jnp.zeros((sizes[0], 2), q.dtype)
    # rows of padding weigh nothing
    thresholds = split_numbers(threshold, sizes[0], jnp.finfo(threshold.dtype).max)
    sums = fold_blocks(rows, columns, thresholds, start, parts, needs, add)[: q.shape[0]]
    return sums[:, 0], sums[:, 1]
