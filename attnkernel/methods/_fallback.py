"""Exact sums, by `Blockwise`, of the queries that another method could not certify."""

import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._core.batching import any_in_batch
from .._core.mesh_axes import vary_alike
from ..priors import Mask, PositionBlock
from ..priors._base import key_mask_of
from ._blocks import Parts
from ._blockwise import Blockwise
from ._softmax_state import SoftmaxState

_ROWS = 256  # queries that are recomputed at a time

Arrays = tuple[Array, Array, Array]  # maximum, mass and total of a state


class _Reordered(Mask):
    """A mask of keys on rows and keys in another order; rows from `number` on see nothing."""

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
    wanted: Bool[Array, " queries"],
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim_v"],
    parts: Parts,
) -> SoftmaxState:
    """The state of the wanted queries by `Blockwise`; an empty state for the others.

    Both sides are sorted by the first coordinate, so that blocks far from each other are skipped.
    """
    kernel, prior, rule = parts
    mask = key_mask_of(prior)
    allowed = jnp.ones(len(k), bool) if mask.allowed is None else mask.allowed
    queries, steps = len(q), math.isqrt(-(-len(q) // _ROWS) - 1) + 1

    def none(shape: tuple[int, ...]) -> Arrays:
        zeros = jnp.zeros(shape, v.dtype)
        nothing = zeros, zeros, jnp.zeros((*shape, v.shape[1]), v.dtype)
        return vary_alike(nothing, wanted, q, k, v, parts)

    def some() -> Arrays:
        columns, order = _by_first(k), _by_first(q)
        order = _in_front(wanted[order], order)
        order = jnp.pad(order, (0, steps**2 * _ROWS - queries), constant_values=queries)
        keys, values = k[columns], v[columns]

        def of_rows(left: Array, chosen: Array) -> Arrays:
            seen = _Reordered(allowed[columns], mask.excludes_self, chosen, columns, left)
            part = Blockwise(block_q=128).softmax_state(q[chosen], keys, values, kernel, seen, rule)
            return part.maximum, part.mass, part.total

        # steps within steps, for to pass over one costs as much as to read all keys
        of_parts = functools.partial(_while_left, of_rows, none)
        found = _while_left(of_parts, none, jnp.sum(wanted), order.reshape(steps, steps, _ROWS))
        return jax.tree.map(
            lambda whole, part: whole.at[order].set(
                part.reshape(len(order), *whole.shape[1:]), mode="drop"
            ),
            none((queries,)),
            found,
        )

    return SoftmaxState(
        *jax.lax.cond(any_in_batch(jnp.any(wanted)), some, lambda: none((queries,)))
    )


def _by_first(points: Float[Array, "n dim"]) -> Int[Array, " n"]:
    """The order of the first coordinate; rows of a fit are in it already."""
    first = jax.lax.stop_gradient(points[:, 0])
    return jax.lax.cond(
        any_in_batch(jnp.any(first[1:] < first[:-1])),
        jnp.argsort,
        lambda x: jnp.arange(len(x)),
        first,
    )


def _in_front(wanted: Bool[Array, " n"], of: Int[Array, " n"]) -> Int[Array, " n"]:
    """First those wanted, then the others, otherwise in the order that they are in."""
    place = jnp.where(wanted, jnp.cumsum(wanted), jnp.sum(wanted) + jnp.cumsum(~wanted)) - 1
    return jnp.zeros_like(of).at[place].set(of, unique_indices=True)


def _while_left(
    body: Callable[[Array, Array], Arrays],
    none: Callable[[tuple[int, ...]], Arrays],
    left: Int[Array, ""],
    parts: Int[Array, "parts ..."],
) -> Arrays:
    """`body` of how many are left and each part in turn; of the parts after the last, `none`."""

    # computed anew by derivatives: a choice would keep all that it reads, for every step
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def step(left: Array, part: Array) -> tuple[Array, Arrays]:
        found = jax.lax.cond(
            any_in_batch(left > 0), lambda: body(left, part), lambda: none(part.shape)
        )
        return left - part.size, found

    return jax.lax.scan(step, left, parts)[1]
