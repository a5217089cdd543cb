"""Arguments of attention layers: sequences, positions, masks, sizes of heads."""

import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .._core.arrays import as_boolean_array, as_integer_array, as_numpy_or_none, as_real_array
from .._core.validation import as_integer, require_bool
from ..attention import PerHead
from ..priors import MaskArray, Prior, require_prior

Heads = Float[Array, "_rows _heads _size"]


def size_or(name: str, size: int | None, default: int) -> int:
    """Returns the size, or the default if it is None; `ValueError` unless it is at least 1."""
    return default if size is None else as_integer(name, size, 1)


def require_bools(**flags: Any) -> None:
    """Raises `ValueError` unless each argument is True or False."""
    for name, flag in flags.items():
        require_bool(name, flag)


def as_sequence(name: str, rows: Any, size: int) -> Float[Array, "rows size"]:
    """Returns the rows of one sequence; `ValueError` unless they are real and of this size."""
    array = as_real_array(name, rows)
    if array.ndim != 2 or array.shape[1] != size:
        raise ValueError(
            f"{name} must be one sequence, shape (rows, {size}); got {array.shape}. For a batch "
            f"use jax.vmap."
        )
    return array


def as_row_mask(mask: ArrayLike | None, rows: int) -> Bool[Array, " rows"] | None:
    """Returns the mask as an array, True = valid row; None stays None.

    Raises `ValueError` unless it has one Boolean for each of `rows` rows.
    """
    if mask is None:
        return None
    valid = as_boolean_array("mask", mask, 1, "(rows,), True = valid row")
    if len(valid) != rows:
        raise ValueError(
            f"mask must have one Boolean per row of x, shape ({rows},); got {valid.shape}."
        )
    return valid


def zero_invalid(
    x: Float[Array, "rows size"], valid: Bool[Array, " rows"] | None
) -> Float[Array, "rows size"]:
    """Returns x with 0 in the rows that are not valid, whatever they hold."""
    return x if valid is None else jnp.where(valid[:, None], x, 0)


def as_positions(name: str, given: Any, rows: int, axes: int = 1) -> Int[Array, "rows *axes"]:
    """Returns positions as an integer array, shape (rows,), or (rows, axes) for several axes.

    Default along one axis: 0, 1, 2, ... Raises `ValueError` for another shape, or if positions
    along several axes are None. `rows`, `axes`: how many there are.
    """
    if given is None and axes == 1:
        return jnp.arange(rows)
    shape = (rows,) if axes == 1 else (rows, axes)
    array = None if given is None else as_integer_array(name, given)
    if array is None or array.shape != shape:
        each = "row" if axes == 1 else f"row and each of the {axes} axes of rotary"
        got = None if array is None else array.shape
        raise ValueError(f"{name} must have one number per {each}, shape {shape}; got {got}.")
    return array


def split_heads(rows: Array, heads: int) -> Heads:
    """Returns rows cut into `heads` parts of equal size: shape (rows, heads, size). There may be 0
    rows."""
    return rows.reshape(rows.shape[0], heads, rows.shape[1] // heads)


def join_heads(heads: Float[Array, "_rows *_heads"]) -> Float[Array, "_rows _width"]:
    """Returns the parts of all heads side by side: shape (rows, width). There may be 0 rows."""
    return heads.reshape(heads.shape[0], math.prod(heads.shape[1:]))


def mask_as_prior(
    mask: ArrayLike | None, heads: int, queries: int, keys: int
) -> Prior | PerHead | None:
    """Returns the mask as a `MaskArray`, or with an axis of heads as a `PerHead`; None stays None.

    Raises `ValueError` for another shape, or neither Booleans nor integers. `heads`, `queries`,
    `keys`: how many there are.
    """
    if mask is None:
        return None
    shapes = ((queries, keys), (heads, queries, keys))
    if not isinstance(mask, jax.Array):
        mask = as_numpy_or_none(mask)
    if mask is None or mask.dtype.kind not in "biu" or mask.shape not in shapes:
        got = "no array" if mask is None else f"dtype {mask.dtype}, shape {mask.shape}"
        raise ValueError(
            f"mask must be Boolean, True = attend, or integers, 0 = not, of shape (queries, keys) "
            f"= {shapes[0]} or (heads, queries, keys) = {shapes[1]}; got {got}."
        )
    mask = jnp.asarray(mask.astype(bool))  # integers as Equinox reads them
    return MaskArray(mask) if mask.ndim == 2 else PerHead(jax.vmap(MaskArray)(mask))


def multiply_priors(*priors: Any) -> Any:
    """Returns the product of the priors that are not None; None if all are."""
    given = [prior for prior in priors if prior is not None]
    for prior in given:
        require_prior("prior", prior)
    return functools.reduce(operator.mul, given) if given else None
