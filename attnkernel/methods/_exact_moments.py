r"""Sums over powers of u = (k - q) / s about each query, exact: folds over blocks of keys.

For queries and keys of one coordinate. Each u is formed from its own pair, so that nothing cancels.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.tuning import MAX_BLOCK_ROWS
from ._blocks import (
    Block,
    Parts,
    block_log_weights,
    even_block_size,
    fold_blocks,
    is_block_needed,
    negligible_gap,
    split_blocks,
    split_numbers,
)
from ._blockwise import Blockwise

BLOCK_QUERIES = 64  # neighbours, which share the blocks of keys in their reach


def exact_moments(
    q: Float[Array, "queries 1"],
    k: Float[Array, "keys 1"],
    v: Float[Array, "keys dim_v"],
    parts: Parts,
    degree: int,
    scale: Float[Array, ""],
) -> tuple[Float[Array, " queries"], Float[Array, "queries degrees width"]]:
    r"""Returns the log-mass of each query, and the weighted means of $u^a$ and of $u^a v$.

    `degree`: the highest a. The last axis holds the mean for the value 1, then those for v. A query
    that sees no key has log-mass −∞ and means 0.
    """
    log_mass = Blockwise(BLOCK_QUERIES).softmax_state(q, k, v[:, :0], *parts).log_mass
    # the results do not depend on the shift: derivatives are those of the sums alone
    shift = jax.lax.stop_gradient(jnp.where(jnp.isneginf(log_mass), 0.0, log_mass))
    values = jnp.concatenate([jnp.ones((len(k), 1), v.dtype), v], axis=1)

    def of_block(weights: Array, u: Array, values: Array, none: Array) -> Array:
        sums = [precise_matmul(weights, values)]
        for _ in range(degree):
            weights = weights * u
            sums.append(precise_matmul(weights, values))
        return jnp.stack(sums, axis=1)

    shape = (degree + 1, values.shape[1])
    sums = _sum_blocks(of_block, shape, q, k, values, parts, shift, q[:, :0], scale)
    mass = sums[:, 0, 0]
    some = mass > 0
    unit = jnp.where(some, mass, 1.0)
    return jnp.where(some, shift + jnp.log(unit), -jnp.inf), sums / unit[:, None, None]


def exact_polynomial_sums(
    q: Float[Array, "queries 1"],
    coefficients: Float[Array, "queries terms"],
    log_mass: Float[Array, " queries"],
    k: Float[Array, "keys 1"],
    v: Float[Array, "keys dim_v"],
    parts: Parts,
    power: int,
    scale: Float[Array, ""],
) -> Float[Array, "queries dim_v"]:
    r"""Returns $\sum_j (e^{s_{ij} - L_i} \sum_a c_{ia} u_{ij}^a)^p\, v_j$ of each query.

    `coefficients`: c; `log_mass`: L; `power`: p.
    """

    def of_block(weights: Array, u: Array, values: Array, c: Array) -> Array:
        polynomial = jnp.polyval(c.T[::-1, :, None], u)
        return precise_matmul((weights * polynomial) ** power, values)

    shift = jnp.where(jnp.isneginf(log_mass), 0.0, log_mass)
    return _sum_blocks(of_block, v.shape[1:], q, k, v, parts, shift, coefficients, scale)


def _sum_blocks(
    of_block: Callable[[Array, Array, Array, Array], Array],
    shape: tuple[int, ...],
    q: Float[Array, "queries 1"],
    k: Float[Array, "keys 1"],
    values: Float[Array, "keys width"],
    parts: Parts,
    shift: Float[Array, " queries"],
    numbers: Float[Array, "queries numbers"],
    scale: Float[Array, ""],
) -> Float[Array, "queries ..."]:
    """Returns the sum over blocks of keys of `of_block(weights, u, values, numbers)`, of which
    weights e^(s − shift) and u = (k − q) / `scale` have the shape (queries, keys) of a block.

    Blocks whose weights are negligible beside e^shift are skipped: `shift` is near the log-mass of
    each query. `shape`: of the sum of one query. `numbers`: further ones of each query, for
    `of_block`.
    """
    rows = split_blocks(q, q[:, :0], BLOCK_QUERIES)
    columns = split_blocks(k, values, even_block_size(len(k), MAX_BLOCK_ROWS))
    negligible = negligible_gap(len(k), values.dtype)
    # rows of padding weigh nothing
    shifts = split_numbers(shift, BLOCK_QUERIES, jnp.finfo(shift.dtype).max)
    others = [split_numbers(column, BLOCK_QUERIES, 0.0) for column in numbers.T]
    of_rows = jnp.stack([shifts, *others], axis=2)

    def needs(bound: Array, of_rows: Array, sums: Array) -> Array:
        return is_block_needed(bound, jax.lax.stop_gradient(of_rows[:, 0]), negligible)

    def add(row: Block, column: Block, of_rows: Array, sums: Array) -> Array:
        scores = block_log_weights(row, column, parts, len(k))
        u = (column.points[0][None, :] - row.points[0][:, None]) / scale
        weights = jnp.exp(scores - of_rows[:, :1])
        return sums + of_block(weights, u, column.values.T, of_rows[:, 1:])

    start = jnp.zeros((BLOCK_QUERIES, *shape), values.dtype)
    return fold_blocks(rows, columns, of_rows, start, parts, needs, add)[: len(q)]
