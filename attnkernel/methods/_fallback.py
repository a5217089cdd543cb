"""Exact sums of the queries that another method could not certify."""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._core.mesh_axes import vary_alike
from .._core.tracing import any_in_batch
from ..priors import Mask, PositionBlock, key_mask_of
from ._base import Keys, Parts, Queries, Values
from ._blockwise import Blockwise
from ._softmax_state import SoftmaxState

CHUNK_QUERIES = 256  # recomputed at a time

Arrays = tuple[Array, ...]  # each with a row for every query


class _ReorderedMask(Mask):
    """A mask of keys, for queries and keys in another order; queries from `number` on see none."""

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

    The state of the other queries is all zeros. `parts`: the kernel, prior and rule.
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
    """Returns `function(*of_queries, k, v, parts)` of the queries where `wanted` is true.

    The function gets `CHUNK_QUERIES` queries at a time, and returns arrays with a row for each, of
    `shapes`; the rows of other queries are zeros. Queries and keys are sorted by their first
    coordinate, so that most blocks can be skipped.

    **Arguments:** `of_queries`: arrays with a row for each query, the queries first. `parts`: the
    kernel, the prior, and the rule. The `KeyMask` of the prior has no factors but `allowed` and
    `excludes_self`.
    """
    (kernel, prior, rule), q = parts, of_queries[0]
    mask = key_mask_of(prior)
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
    """Returns `body(left, part)` of each part while `left` is positive, stacked.

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
