"""Heads side by side: what all share and what each has of its own, in the groups of shared keys."""

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_integer_array, as_real_array
from .._core.validation import as_integer, require_instance
from ..attention import PerHead
from ..kernels import Kernel
from ..methods import Method
from ..priors import Given, Prior
from ..priors._base import require_prior
from ..rules import Rule

OfHeads = Float[Array, "_rows _heads _size"]


def share(name: str, size: int | None, of: int, heads: int) -> int:
    """A size as given, or an equal part of the whole for each head."""
    if size is not None:
        return as_integer(name, size, 1)
    if of < heads:
        raise ValueError(
            f"{name} is query_size // num_heads unless given, and that must be at least 1; got "
            f"query_size {of} and num_heads {heads}."
        )
    return of // heads


def require_heads(kernel: Any, prior: Any, rule: Any, method: Any) -> None:
    """Raise `ValueError` unless each is what it should be, or for the first three a `PerHead`."""
    for name, part, kind, example in (
        ("kernel", kernel, Kernel, "ak.DotProduct()"),
        ("rule", rule, Rule, "ak.Softmax()"),
        ("method", method, Method, "ak.Auto()"),
    ):
        each = part.stack if isinstance(part, PerHead) else part
        require_instance(name, each, kind, example)
    if prior is not None:
        require_prior("prior", prior)


def as_sequence(name: str, rows: Any, size: int) -> Float[Array, "rows size"]:
    """Rows of one sequence; `ValueError` unless they are real, and of this size."""
    array = as_real_array(name, rows)
    if array.ndim != 2 or array.shape[1] != size:
        raise ValueError(
            f"{name} must be one sequence, shape (rows, {size}); got {array.shape}. For a batch "
            f"use jax.vmap."
        )
    return array


def as_sequences(
    query: Any, key_: Any, value: Any, sizes: tuple[int, int, int]
) -> tuple[Array, Array, Array]:
    """**Raises:** `ValueError` unless each is one sequence of rows of its size, and keys fit."""
    query, key_, value = (
        as_sequence(name, rows, size)
        for name, rows, size in zip(
            ("query", "key_", "value"), (query, key_, value), sizes, strict=True
        )
    )
    if key_.shape[0] != value.shape[0]:
        raise ValueError(
            f"key_ and value must have as many rows, each key one value; got {key_.shape[0]} keys "
            f"and {value.shape[0]} values."
        )
    return query, key_, value


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
    if not isinstance(mask, jax.Array):
        read = None if isinstance(mask, str) or np.ma.is_masked(mask) else np.asarray(mask)
        if read is None or read.dtype.kind not in "biuf":
            raise ValueError(f"mask must be an array of Booleans; got {mask!r}.")
        mask = read
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


def multiply_priors(*priors: Any) -> Any:
    """Returns the product of the priors that are not None; None if all are."""
    given = [prior for prior in priors if prior is not None]
    for prior in given:
        require_prior("prior", prior)
    return functools.reduce(operator.mul, given) if given else None


def positions_of(
    heads: tuple, positions: Array | None, key_positions: Array | None
) -> tuple[Array, Array]:
    """Positions as given, or the numbers of rows."""

    def of(name: str, part: Array, given: Any) -> Array:
        if given is None:
            return jnp.arange(part.shape[0])
        array = as_integer_array(name, given)
        if array.shape != part.shape[:1]:
            raise ValueError(
                f"{name} must have one number per row, shape {part.shape[:1]}; got {array.shape}."
            )
        return array

    return of("positions", heads[0], positions), of("key_positions", heads[1], key_positions)
