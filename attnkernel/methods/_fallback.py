r"""Exact sums of the queries that another method could not certify.

Moments of u = (k - q) / s about each query, for queries and keys of one coordinate, are folds over
blocks of keys. Each u is formed from its own pair, so that nothing cancels.
"""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import precise_matmul
from .._core.tracing import any_in_batch, vary_alike
from ..priors import Mask, PositionBlock, pair_mask_of
from ._base import MAX_BLOCK_ROWS, Keys, Parts, Queries, Values
from ._blocks import (
    Block,
    block_log_weights,
    even_block_size,
    fold_blocks,
    is_block_needed,
    negligible_gap,
    split_blocks,
    split_numbers,
)
from ._blockwise import Blockwise
from ._softmax_state import SoftmaxState

CHUNK_QUERIES = 256  # recomputed at a time

Arrays = tuple[Array, ...]  # each with a row for every query


class _ReorderedMask(Mask):
    """A mask of keys, for queries and keys in another order; queries from `number` on see none.

    `allowed`: whether each reordered key is visible. `rows`, `columns`: the original rows of the
    reordered queries and keys.
    """

    allowed: Bool[Array, " keys"]
    excludes_self: bool = eqx.field(static=True)
    rows: Int[Array, " rows"]
    columns: Int[Array, " keys"]
    number: Int[Array, ""]

    def allows(self, i: Int[Array, ""], j: Int[Array, ""]) -> Bool[Array, ""]:
        allowed = (i < self.number) & self.allowed[j]
        return allowed & (self.rows[i] != self.columns[j]) if self.excludes_self else allowed

    def any_allowed(self, block: PositionBlock) -> Bool[Array, ""]:
        return block.i_low < self.number


def recompute_exactly(
    wanted: Bool[Array, " queries"], q: Queries, k: Keys, v: Values, parts: Parts
) -> SoftmaxState:
    """Returns the softmax state of the queries where `wanted` is true, summed by `Blockwise`.

    It includes the rule's sink. The states of the other queries have no meaning: they are zeros, or
    the sink alone. `parts`: the kernel, prior and rule, with priors as in `map_selected_queries`.
    """

    def of_rows(q: Array, k: Array, v: Array, parts: Parts) -> Arrays:
        part = Blockwise(block_q=128).softmax_state(q, k, v, *parts)
        return part.maximum, part.mass, part.total

    shapes = ((), (), (v.shape[1],))
    return SoftmaxState(*map_selected_queries(of_rows, shapes, wanted, (q,), k, v, parts))


def map_selected_queries(
    function: Callable[..., Arrays],
    shapes: tuple[tuple[int, ...], ...],
    wanted: Bool[Array, " queries"],
    of_queries: tuple[Array, ...],
    k: Keys,
    v: Values,
    parts: Parts,
) -> Arrays:
    """Applies `function(*of_queries, k, v, parts)` to the queries where `wanted` is true.

    Returns its arrays with a row for every query. The rows of other queries have no meaning: they
    are zeros, or the result for a query that sees no key. The function gets `CHUNK_QUERIES` queries
    at a time, and all keys. Both are sorted by their first coordinate, so that most blocks can be
    skipped; the prior is reordered likewise.

    **Arguments:** `function`: returns arrays with a row for each query that it gets. `shapes`: the
    shape of a row of each array. `of_queries`: arrays with a row for each query, the queries first.
    `parts`: the kernel, the prior, and the rule. The `PairMask` of the prior has no factors but
    `allowed` and `excludes_self`.
    """
    (kernel, prior, rule), q = parts, of_queries[0]
    mask = pair_mask_of(prior)
    allowed = jnp.ones(len(k), bool) if mask.allowed is None else mask.allowed
    queries, steps = len(q), math.isqrt(-(-len(q) // CHUNK_QUERIES) - 1) + 1

    def zeros(shape: tuple[int, ...]) -> Arrays:
        nothing = tuple(jnp.zeros((*shape, *rest), v.dtype) for rest in shapes)
        return vary_alike(nothing, wanted, of_queries, k, v, parts)

    def of_wanted() -> Arrays:
        columns, order = (jnp.argsort(jax.lax.stop_gradient(points[:, 0])) for points in (k, q))
        order = order[jnp.argsort(~wanted[order], stable=True)]
        order = jnp.pad(order, (0, steps**2 * CHUNK_QUERIES - queries), constant_values=queries)
        keys, values = k[columns], v[columns]

        def of_rows(left: Array, chosen: Array) -> Arrays:
            seen = _ReorderedMask(allowed[columns], mask.excludes_self, chosen, columns, left)
            rows = (array[chosen] for array in of_queries)
            return function(*rows, keys, values, (kernel, seen, rule))

        # two nested loops of √n steps: passing over a step costs as much as reading all keys.
        # Gradient of 50 of 200 000 queries: 224 ms, in one loop 519 ms
        of_parts = functools.partial(_map_while_remaining, of_rows, zeros)
        found = _map_while_remaining(
            of_parts, zeros, jnp.sum(wanted), order.reshape(steps, steps, CHUNK_QUERIES)
        )
        return tuple(
            whole.at[order].set(part.reshape(len(order), *whole.shape[1:]), mode="drop")
            for whole, part in zip(zeros((queries,)), found, strict=True)
        )

    return jax.lax.cond(any_in_batch(jnp.any(wanted)), of_wanted, lambda: zeros((queries,)))


def _map_while_remaining(
    body: Callable[[Array, Array], Arrays],
    none: Callable[[tuple[int, ...]], Arrays],
    left: Int[Array, ""],
    parts: Int[Array, "parts ..."],
) -> Arrays:
    """Applies `body(left, part)` to each part while `left` is positive, and stacks the results.

    Later parts give `none(part.shape)`, zeros. `left`: how many of the leading elements of `parts`
    to process; it falls by the size of each part. `parts`: indices, split along the first axis.
    """

    # recomputed by derivatives: `cond` would save all that it reads, for every step
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(left: Array, part: Array) -> tuple[Array, Arrays]:
        found = jax.lax.cond(
            any_in_batch(left > 0), lambda: body(left, part), lambda: none(part.shape)
        )
        return left - part.size, found

    return jax.lax.scan(step, left, parts)[1]


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

    Here u = (k − q) / `scale`. `degree`: the highest a. The last axis holds the mean for the value
    1, then those for v. A query that sees no key has log-mass −∞ and means 0.
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

    Here s is the log-weight, and u = (k − q) / `scale`. `coefficients`: c; `log_mass`: L;
    `power`: p.
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
    """Returns, for each query, the sum of `of_block(weights, u, values, numbers)` over blocks of
    keys.

    `of_block` gets the weights e^(s − shift) and u = (k − q) / `scale` of all pairs of a block,
    shape (queries, keys). Blocks whose weights are negligible beside e^shift are skipped: `shift`
    is near the log-mass of each query. `shape`: the shape of the sum of one query. `numbers`:
    further numbers of each query, for `of_block`.
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
