"""Inputs of attention with heads: sequences, positions, masks, and heads grouped by shared keys."""

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from .._core.arrays import as_integer_array, as_real_array
from .._core.validation import as_integer, is_real_number, require_bool, require_instance
from ..attention import PerHead
from ..kernels import Kernel
from ..methods import Method
from ..priors import MaskArray, Prior, require_prior
from ..rules import Rule
from ._rotary import Rotary

OfHeads = Float[Array, "_rows _heads _size"]


def head_size(name: str, size: int | None, of: int, heads: int) -> int:
    """Returns the size of a head: as given, or an equal share of `of`."""
    if size is not None:
        return as_integer(name, size, 1)
    if of < heads:
        raise ValueError(
            f"{name} is query_size // num_heads unless given, and that must be at least 1; got "
            f"query_size {of} and num_heads {heads}."
        )
    return of // heads


def require_attention_parts(kernel: Any, prior: Any, rule: Any, method: Any) -> None:
    """Raises `ValueError` unless each has its class; kernel, prior and rule may be `PerHead`."""
    for name, part, kind, example in (
        ("kernel", kernel, Kernel, "ak.DotProduct()"),
        ("rule", rule, Rule, "ak.Softmax()"),
        ("method", method, Method, "ak.attention.Auto()"),
    ):
        each = part.stack if isinstance(part, PerHead) else part
        require_instance(name, each, kind, example)
    if prior is not None:
        require_prior("prior", prior)


def as_sequence(name: str, rows: Any, size: int) -> Float[Array, "rows size"]:
    """Returns the rows of one sequence; `ValueError` unless they are real and of this size."""
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
    """Returns three sequences; `ValueError` unless they have their sizes and each key a value."""
    query, key_, value = (
        as_sequence(name, rows, size)
        for name, rows, size in zip(
            ("query", "key_", "value"), (query, key_, value), sizes, strict=True
        )
    )
    if key_.shape[0] != value.shape[0]:
        raise ValueError(
            f"key_ and value must have the same number of rows; got {key_.shape[0]} keys "
            f"and {value.shape[0]} values."
        )
    return query, key_, value


def group_heads(x: OfHeads, kv_heads: int) -> Float[Array, "_kv_heads _group _rows _size"]:
    """Moves the axis of heads to the front, grouped by the keys that they share."""
    return x.swapaxes(0, 1).reshape(kv_heads, -1, x.shape[0], x.shape[2])


def group_per_head(part: Any, heads: int, kv_heads: int) -> Any:
    """Reshapes the heads of each `PerHead` in a part to (heads of keys, queries of each)."""
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


def mask_as_prior(
    mask: ArrayLike | None, heads: int, queries: int, keys: int
) -> Prior | PerHead | None:
    """Converts a mask array to a prior."""
    if mask is None:
        return None
    if not isinstance(mask, jax.Array):
        read = None if isinstance(mask, str) or np.ma.is_masked(mask) else np.asarray(mask)
        if read is None or read.dtype.kind not in "biuf":
            raise ValueError(f"mask must be an array of Booleans; got {mask!r}.")
        mask = read
    mask = jnp.asarray(mask)
    if jnp.issubdtype(mask.dtype, jnp.integer):  # as Equinox does
        mask = mask != 0
    shapes = ((queries, keys), (heads, queries, keys))
    if mask.dtype != bool or mask.shape not in shapes:
        raise ValueError(
            f"mask must be Boolean, True = attend, or integers, 0 = not, of shape (queries, keys) "
            f"= {shapes[0]} or (heads, queries, keys) = {shapes[1]}; got dtype {mask.dtype}, shape "
            f"{mask.shape}."
        )
    return MaskArray(mask) if mask.ndim == 2 else PerHead(jax.vmap(MaskArray)(mask))


def multiply_priors(*priors: Any) -> Any:
    """Returns the product of the priors that are not None; None if all are."""
    given = [prior for prior in priors if prior is not None]
    for prior in given:
        require_prior("prior", prior)
    return functools.reduce(operator.mul, given) if given else None


def as_positions(name: str, given: Any, rows: int, axes: int = 1) -> Int[Array, "rows *axes"]:
    """Returns positions as given; `ValueError` unless there is one for each row and axis."""
    shape = (rows,) if axes == 1 else (rows, axes)
    array = None if given is None else as_integer_array(name, given)
    if array is None or array.shape != shape:
        each = "row" if axes == 1 else f"row and each of the {axes} axes of rotary"
        got = None if array is None else array.shape
        raise ValueError(f"{name} must have one number per {each}, shape {shape}; got {got}.")
    return array


def read_positions(
    heads: tuple, positions: Any, key_positions: Any, axes: int = 1
) -> tuple[Array, Array]:
    """Returns positions as given, or the numbers of rows; with several axes, shape (rows, axes)."""

    def of(name: str, part: Array, given: Any) -> Array:
        if given is None and axes == 1:
            return jnp.arange(part.shape[0])
        return as_positions(name, given, part.shape[0], axes)

    return of("positions", heads[0], positions), of("key_positions", heads[1], key_positions)


def require_rotary(rotary: Any, size: int, name: str = "qk_size") -> None:
    """Raises `ValueError` unless it is None, or a `Rotary` that rotates points of this size."""
    if rotary is not None:
        require_instance("rotary", rotary, Rotary, "ak.Rotary()")
        try:
            rotary.frequencies_of(size)
        except ValueError as error:
            raise ValueError(f"rotary cannot rotate heads of {name} {size}: {error}") from None


def require_dropout_and_ridge(dropout_p: Any, ridge: Any, order: int) -> None:
    """Raises `ValueError` for a share outside [0, 1), a negative ridge, or dropout of order 1."""
    if not is_real_number(dropout_p) or not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p must be a share from 0 to below 1; got {dropout_p!r}.")
    if not is_real_number(ridge) or ridge < 0:
        raise ValueError(f"ridge must be a finite number from 0; got {ridge!r}.")
    if order and dropout_p:
        raise ValueError(
            f"Dropout acts on weights, and needs order 0; got order={order!r}, "
            f"dropout_p={dropout_p!r}."
        )


def require_divisible(num_heads: int, num_kv_heads: int) -> None:
    """Raises `ValueError` unless each head of keys serves the same number of query heads."""
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a multiple of num_kv_heads, so that each head of keys serves the "
            f"same number of query heads; got {num_heads} and {num_kv_heads}."
        )


def require_bools(**flags: Any) -> None:
    """Raises `ValueError` unless each argument is True or False."""
    for name, flag in flags.items():
        require_bool(name, flag)
