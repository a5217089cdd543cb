"""Sentences for bad input: what was expected, what came, what to try.

Values are looked at only where they are known: inside `jit`, `vmap` or `grad` an array is a
tracer without a value, and only its shape and dtype are checked.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float


def require_shape(what: str, found: Any, shape: tuple[int, ...], expected: str, hint: str) -> Any:
    """What a function of the user's own returned, if it is of this shape."""
    if jnp.shape(found) != shape:
        raise ValueError(f"{what} must return {expected}; got shape {jnp.shape(found)}. {hint}")
    return found


def is_known(*arrays: ArrayLike) -> bool:
    """True where every array has a value to look at: no tracer, nor in part on other processes."""

    def here(array: jax.Array) -> bool:
        return array.is_fully_addressable or array.is_fully_replicated

    return not any(
        isinstance(array, Tracer) or (isinstance(array, jax.Array) and not here(array))
        for array in arrays
    )


def require_positive(
    name: str,
    value: ArrayLike,
    hint: str = "It is a distance in the units of x: try a tenth of the range of x.",
) -> None:
    """Raise `ValueError` unless every entry of `value` is a finite number above zero."""
    if not is_known(value):
        return
    array = np.asarray(value)
    if not jnp.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise ValueError(
            f"{name} must be a positive real number, or an array of them; got {value!r}."
        )
    array = array.astype(float)
    if not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(f"{name} must be positive and finite; got {array.tolist()}. {hint}")


def as_whole_numbers(
    name: str, value: int | Sequence[int] | np.ndarray, least: int
) -> tuple[int, ...]:
    """One whole number or several, each no less than `least`, at least one."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    listed: list[Any] = list(value) if isinstance(value, Sequence) else [value]
    if not listed or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= least for n in listed
    ):
        raise ValueError(
            f"{name} must be a whole number from {least}, or several, such as "
            f"({least}, {least + 2}); got {value!r}."
        )
    return tuple(map(int, listed))


def require_whole_number(name: str, value: Any, least: int | None = None) -> None:
    """Raise `ValueError` unless it is one whole number, an array of no axes included.

    Its value is looked at where it is known.
    """
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    is_whole = jnp.issubdtype(dtype, jnp.integer) and not np.ndim(value)
    if not is_whole or (least is not None and is_known(value) and int(value) < least):
        start = "" if least is None else f" from {least}"
        raise ValueError(f"{name} must be a whole number{start}; got {value!r}.")


def require_no_nan(name: str, values: ArrayLike, hint: str) -> None:
    """Raise `ValueError` at NaN and +inf; -inf, the logarithm of 0, is a number here."""
    if is_known(values) and not np.all(np.asarray(values) < np.inf):
        raise ValueError(f"{name} must be below +inf, and none NaN; got {values!r}. {hint}")


def as_reals(name: str, x: ArrayLike) -> Float[Array, "..."]:
    """Real numbers as a floating array of JAX, of the same shape; integers become floats.

    What is not yet an array of JAX passes through float64, as JAX's own conversion of integers of
    64 bits wraps at 2^31 where x64 is off.

    **Raises:** `ValueError` of complex numbers and words, and where the default precision would
    not hold the numbers of NumPy or cannot tell them apart.
    """
    if np.ma.is_masked(x):
        raise ValueError(
            f"{name} has {np.ma.count_masked(x)} masked entries: leave their rows out, or give "
            f"rows of masked labels the weight 0 and a number."
        )
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        array = jnp.asarray(x)
        kind = "c" if jnp.issubdtype(array.dtype, jnp.complexfloating) else array.dtype.kind
    else:
        read = np.asarray(x)
        if read.dtype.kind in "OUS":
            read = _numbers(name, np.asarray(x, object))
        if read.dtype.kind in "mM":
            raise ValueError(
                f"{name} must be numbers; got {read.dtype}. Subtract one of the dates, and "
                f"divide by a unit: (dates - dates[0]) / np.timedelta64(1, 'D')."
            )
        kind = read.dtype.kind
        read = read.astype(float) if kind in "biu" else read
        with np.errstate(over="ignore"):
            array = read.astype(jax.dtypes.canonicalize_dtype(read.dtype), copy=False)
        if kind != "c":
            _require_precise(name, read, array)
        array = jnp.asarray(array)
    if kind == "c":
        raise ValueError(f"{name} must be real; got dtype {array.dtype}.")
    return array.astype(float) if kind in "biu" else array


def as_points(name: str, x: ArrayLike) -> Float[Array, "*batch points dim"]:
    """Points as rows: shape (n,) becomes (n, 1); integers become floats; the rest is kept.

    A batch of one-dimensional points must come as (batch, n, 1): (n,) is the only shape that is
    completed, so that no meaning is ever guessed from sizes.
    """
    array = as_reals(name, x)
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have shape (n,) or (n, dim); got a single number. "
            f"Try jnp.array([{name}])."
        )
    return array[:, None] if array.ndim == 1 else array


def _numbers(name: str, x: np.ndarray) -> Float[np.ndarray, "..."]:
    """Objects that are numbers, as such; what is none is named with its place."""
    out = np.empty(x.shape)
    for place, value in np.ndenumerate(x):
        if isinstance(value, str) or not np.isscalar(value):
            shown = repr(value.item() if isinstance(value, np.generic) else value)
            where = ", column ".join(map(str, place))
            raise ValueError(
                f"{name} must be numbers; row {where} (counted from 0) is {shown}. Drop or fill "
                f"that row, or give names codes 0, 1, ... and a categorical kernel."
            )
        out[place] = value
    return out


def _require_precise(name: str, read: np.ndarray, kept: np.ndarray) -> None:
    """Raise `ValueError` unless a narrower dtype holds the numbers and tells them apart."""
    if read.dtype == kept.dtype or not read.size:
        return
    if np.any(lost := np.isinf(kept) & np.isfinite(read)):
        raise ValueError(
            f"{name} has numbers too large for {kept.dtype}, such as {read[lost][0]}. Use float64 "
            f"(jax_enable_x64), or another unit."
        )
    columns = (a.reshape(-1, a.shape[-1] if a.ndim > 1 else 1) for a in (read, kept))
    for place, (numbers, rounded) in enumerate(zip(*(a.T for a in columns), strict=True)):
        if sentence := merged_numbers(numbers, rounded):
            where = f"{name}, column {place}" if read.ndim > 1 else name
            raise ValueError(
                f"{where}: {sentence} Use float64 (jax_enable_x64), or subtract what they have in "
                f"common, before they become {kept.dtype}."
            )


def merged_numbers(read: np.ndarray, kept: np.ndarray) -> str | None:
    """A sentence if more than 1 % of the different numbers of a column become equal, rounded.

    Only where the column spans less than 1e5 steps of the narrower dtype: of a million random
    numbers in [0, 1) float32 merges 3 %, which harms nobody.
    """
    with np.errstate(invalid="ignore"):
        steps = np.ptp(read) / float(np.spacing(np.max(np.abs(kept))))
    if not steps < 1e5:  # NaN is for others to report
        return None
    of_read, of_kept = (len(np.unique(a)) for a in (read, kept))
    if of_kept >= 0.99 * of_read:
        return None
    return f"its {of_read} different numbers become {of_kept} in {kept.dtype}."


def at_least(dtype: Any, least: Any = jnp.float32) -> Any:
    """The dtype, or the wider one of the two: also where users forbid implicit promotion."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, least)


def require_finite(name: str, rows: Float[Array, "*batch rows columns"]) -> None:
    """Raise `ValueError` unless every number of every row is finite."""
    if not is_known(rows) or np.all(np.isfinite(np.asarray(rows))):
        return
    bad = np.argwhere(~np.all(np.isfinite(np.asarray(rows)), axis=-1))
    first = tuple(bad[0].tolist())
    raise ValueError(
        f"{name} must be finite; {len(bad)} of {math.prod(rows.shape[:-1])} rows are not, the "
        f"first is row {first[0] if len(first) == 1 else first} (counted from 0): "
        f"{np.asarray(rows)[first]}. Drop or fill those rows."
    )


def require_codes(
    name: str, rows: Float[Array, "rows columns"], categories: Mapping[int, int | None]
) -> None:
    """Raise `ValueError` unless columns of categories hold whole numbers, of the known ones."""
    if not is_known(rows):
        return
    for column, count in categories.items():
        codes = np.asarray(rows[:, column])
        strange = codes != np.round(codes)
        if count is not None:
            strange |= (codes < 0) | (codes >= count)
        if np.any(strange):
            row = int(np.argmax(strange))
            known = "whole numbers" if count is None else f"0 to {count - 1}"
            raise ValueError(
                f"Column {column} of {name} holds categories, {known}; row {row} (counted from 0) "
                f"has {codes[row]:g}. Give the kernel as many categories as there are, or drop "
                f"those rows."
            )


def require_weights(weights: ArrayLike, n: int) -> Float[Array, " n"]:
    """Weights of n rows as a floating array; `ValueError` unless they are finite, from 0."""
    array = as_reals("weights", weights)
    if array.shape != (n,):
        raise ValueError(f"weights must have one number per row, shape ({n},); got {array.shape}.")
    if is_known(array):
        values = np.asarray(array)
        if not np.all(np.isfinite(values) & (values >= 0)) or not np.any(values):
            raise ValueError(
                f"weights must be finite, none below 0 and not all 0; they go from {values.min()} "
                f"to {values.max()}."
            )
    return array


def require_regression_data(x: Float[Array, "..."], y: Float[Array, "..."]) -> None:
    """Raise `ValueError` unless (x, y) is something that a regression can be fitted to.

    Expected: the same number of rows, at least three, every number finite, x and y not constant.
    """
    if x.ndim != 2 or y.ndim not in (1, 2) or x.shape[0] != y.shape[0]:
        raise ValueError(
            f"x must have shape (n,) or (n, dim) and y shape (n,) or (n, out), with the same n; "
            f"got x {x.shape} and y {y.shape}."
        )
    if x.shape[0] < 3:
        raise ValueError(
            f"A fit needs at least 3 rows; got {x.shape[0]}. "
            f"Each row is predicted from the others, and one other says nothing of a lengthscale."
        )
    if not is_known(x, y):
        return
    require_finite("x", x)
    require_finite("y", y[:, None] if y.ndim == 1 else y)
    for name, array in (("x", x), ("y", y)):
        if np.all(np.asarray(array) == np.asarray(array)[:1]):
            raise ValueError(
                f"{name} is constant: every row is {np.asarray(array)[0].tolist()}. No lengthscale "
                f"can be told from it; is this the column that was meant, and is {array.dtype} "
                f"precise enough for it?"
            )
