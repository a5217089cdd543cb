"""Heads side by side: what all share and what each has of its own, in the groups of shared keys."""

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._heads import PerHead
from ..priors import Given, Prior

OfHeads = Float[Array, "_rows _heads _size"]


def share(name: str, size: int | None, of: int, heads: int) -> int:
    """A size as given, or an equal part of the whole for each head."""
    if size is not None:
        return size
    if heads < 1 or of < heads:
        raise ValueError(
            f"{name} is query_size // num_heads unless given, and that must be at least 1; got "
            f"query_size {of} and num_heads {heads}."
        )
    return of // heads


def require_sequences(query: Array, key_: Array, value: Array, sizes: tuple[int, int, int]) -> None:
    """**Raises:** `ValueError` unless each is one sequence of rows of its size, and keys fit."""
    arrays = {"query": query, "key_": key_, "value": value}
    for (name, array), size in zip(arrays.items(), sizes, strict=True):
        if array.ndim != 2 or array.shape[1] != size:
            raise ValueError(
                f"{name} must be one sequence, shape (rows, {size}); got {array.shape}. For a "
                f"batch use jax.vmap."
            )
    if key_.shape[0] != value.shape[0]:
        raise ValueError(
            f"Each key needs one value; got {key_.shape[0]} keys and {value.shape[0]} values."
        )


def split(x: OfHeads, kv_heads: int) -> Float[Array, "_kv_heads _group _rows _size"]:
    """Heads first, those that share keys side by side."""
    return x.swapaxes(0, 1).reshape(kv_heads, -1, x.shape[0], x.shape[2])


def grouped(part: Any, heads: int, kv_heads: int) -> Any:
    """A part for all heads, or its heads as (heads of keys, queries of each)."""
    groups = (kv_heads, heads // kv_heads)

    def regroup(node: Any) -> Any:
        if not isinstance(node, PerHead):
            return node
        if node.shape != (heads,):
            raise ValueError(f"A PerHead of this module must have {heads} heads; got {node.shape}.")
        stack = jax.tree.map(
            lambda leaf: leaf.reshape(*groups, *leaf.shape[1:]) if eqx.is_array(leaf) else leaf,
            node.stack,
        )
        return PerHead(stack, axes=2)

    return jax.tree.map(regroup, part, is_leaf=lambda node: isinstance(node, PerHead))


def masked(mask: ArrayLike | None, heads: int, queries: int, keys: int) -> Prior | PerHead | None:
    """A mask array as a prior."""
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    if jnp.issubdtype(mask.dtype, jnp.integer):  # as Equinox reads them
        mask = mask != 0
    shapes = ((queries, keys), (heads, queries, keys))
    if mask.dtype != bool or mask.shape not in shapes:
        raise ValueError(
            f"mask must be Boolean, True = attend, or integers, 0 = not, of shape (queries, keys) "
            f"= {shapes[0]} or (heads, queries, keys) = {shapes[1]}; got dtype {mask.dtype}, shape "
            f"{mask.shape}."
        )
    return Given(mask) if mask.ndim == 2 else PerHead(jax.vmap(Given)(mask))


def together(*priors: Any) -> Any:
    """The sum of the priors that are not None; None, if all are."""
    given = [prior for prior in priors if prior is not None]
    return functools.reduce(operator.add, given) if given else None


def positions_of(
    heads: tuple, positions: Array | None, key_positions: Array | None
) -> tuple[Array, Array]:
    """Positions as given, or the numbers of rows."""
    q, k = (jnp.arange(part.shape[0]) for part in heads[:2])
    return q if positions is None else positions, k if key_positions is None else key_positions
