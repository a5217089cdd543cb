"""The levels of an entmax, streamed: Newton's method with one pass over the blocks at each step."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..rules._entmax_threshold import Sums, find_level, follow, level_sums
from ._blocks import Block, Parts, cut_blocks, cut_rows, derivative, fold, scores_of


@eqx.filter_custom_jvp
def levels(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    parts: Parts,
    sizes: tuple[int, int],
) -> Float[Array, " queries"]:
    """λ of each query, of a rule with a power, in O(n + m) memory."""
    rows, columns = cut_blocks(q, q[:, :0], sizes[0]), cut_blocks(k, k[:, :0], sizes[1])

    def needs(bound: Array, _: Array, highest: Array) -> Bool[Array, ""]:
        return ~(bound <= jnp.min(highest))

    def add(row: Block, column: Block, _: Array, highest: Array) -> Array:
        scores = scores_of(row, column, parts, k.shape[0])
        return jnp.maximum(highest, jnp.max(scores, axis=1))

    lowest = jnp.full(sizes[0], -jnp.inf, q.dtype)
    unused = jnp.zeros((rows.low.shape[0], sizes[0]), q.dtype)
    highest = fold(rows, columns, unused, lowest, parts, needs, add)[: q.shape[0]]
    assert parts[2].power is not None
    return find_level(lambda level: _sums(q, k, level, parts, sizes), highest, parts[2].power)


@levels.def_jvp
def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    level = levels(*primals)

    def sums(q: Array, k: Array, parts: Parts, sizes: tuple[int, int]) -> Sums:
        return _sums(q, k, level, parts, sizes)

    slope = derivative(lambda *primals: sums(*primals)[0], primals, tangents)
    return level, follow(sums(*primals), slope)


def _sums(
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    level: Float[Array, " queries"],
    parts: Parts,
    sizes: tuple[int, int],
) -> Sums:
    """S and minus its slope, at these levels."""
    rows, columns = cut_blocks(q, q[:, :0], sizes[0]), cut_blocks(k, k[:, :0], sizes[1])
    power = parts[2].power
    assert power is not None

    def needs(bound: Array, level: Array, _: Array) -> Bool[Array, ""]:
        return ~(bound <= jnp.min(level) - power)

    def add(row: Block, column: Block, level: Array, sums: Array) -> Array:
        scores = scores_of(row, column, parts, k.shape[0])
        return sums + jnp.stack(level_sums(scores - level[:, None], power), axis=1)

    start = jnp.zeros((sizes[0], 2), q.dtype)
    # rows of padding weigh nothing
    levels = cut_rows(level, sizes[0], jnp.finfo(level.dtype).max)
    sums = fold(rows, columns, levels, start, parts, needs, add)[: q.shape[0]]
    return sums[:, 0], sums[:, 1]
