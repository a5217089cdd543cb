"""Sentences for bad input: what was expected, what came, what to try.

Values are looked at only where they are known: inside `jit`, `vmap` or `grad` an array is a
tracer without a value, and only its shape and dtype are checked.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int


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
    array = as_numbers(name, value, "a positive real number")
    if not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(f"{name} must be positive and finite; got {array.tolist()}. {hint}")


def as_numbers(name: str, value: Any, expected: str) -> np.ndarray:
    """Known real numbers in float64; `ValueError` for anything else, masked entries included."""
    array = None if np.ma.is_masked(value) else _as_array(value)
    # V: the short floats of JAX
    if array is None or array.dtype.kind not in "fiuV" or not array.size or array.dtype.names:
        raise ValueError(f"{name} must be {expected}, or an array of them; got {value!r}.")
    return array.astype(float)


def _as_array(value: Any) -> np.ndarray | None:
    """An array of NumPy; None of a ragged list."""
    try:
        return np.asarray(value)
    except ValueError:
        return None


def as_whole_number(name: str, value: Any, least: int, hint: str = "") -> int:
    """One whole number from `least`, of Python, or of NumPy or JAX without axes; no tracer.

    **Raises:** `ValueError` for anything else, and from 2³¹.
    """
    if not _is_whole(value, least) or not is_known(value):
        raise ValueError(
            f"{name} must be a whole number from {least}{_most(value)}; got {value!r}. "
            f"{hint}".rstrip()
        )
    return int(value)


def as_whole_numbers(name: str, value: Any, least: int) -> tuple[int, ...]:
    """One whole number or several, each no less than `least`, at least one."""
    is_array = isinstance(value, np.ndarray) and not np.ma.is_masked(value)
    plain: Any = np.asarray(value).tolist() if is_array else value
    listed: list[Any] = list(plain) if isinstance(plain, Sequence) else [plain]
    if not listed or not all(_is_whole(n, least) and is_known(n) for n in listed):
        raise ValueError(
            f"{name} must be a whole number from {least}{_most(value)}, or several, such as "
            f"({least}, {least + 2}); got {value!r}."
        )
    return tuple(map(int, listed))


def require_whole_number(name: str, value: Any, least: int | None = None) -> None:
    """Raise `ValueError` unless it is one whole number, an array of no axes included.

    Its value is looked at where it is known.
    """
    if not _is_whole(value, least):
        start = "" if least is None else f" from {least}"
        raise ValueError(f"{name} must be a whole number{start}{_most(value)}; got {value!r}.")


def _is_whole(value: Any, least: int | None) -> bool:
    if isinstance(value, bool | np.bool_) or np.ma.is_masked(value):
        return False
    if not isinstance(value, int | np.integer):
        dtype = getattr(value, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or np.ndim(value):
            return False
        if not is_known(value):
            return True
    return (least is None or int(value) >= least) and abs(int(value)) < MAX_WHOLE


MAX_WHOLE = 2**31


def _most(value: Any) -> str:
    """What is said of a whole number that is too large."""
    is_large = isinstance(value, int | np.integer) and abs(int(value)) >= MAX_WHOLE
    return " to 2**31 - 1" if is_large else ""


def is_number(value: Any) -> bool:
    """Whether it is one real number of Python or NumPy, which float32 can hold."""
    is_real = isinstance(value, int | float | np.integer | np.floating)
    return is_real and not isinstance(value, bool) and bool(abs(value) <= np.finfo(np.float32).max)


def require_flag(name: str, value: Any) -> None:
    """Raise `ValueError` unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False; got {value!r}.")


def require_instance(name: str, value: Any, kinds: type | tuple[type, ...], example: str) -> None:
    """Raise `ValueError` unless it is an object of one of some classes."""
    if isinstance(value, kinds):
        return
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    names = " or ".join(kind.__name__ for kind in listed)
    called = ""
    if isinstance(value, type) and issubclass(value, kinds):
        called = f" This is the class: call it, {value.__name__}(...)."
    raise ValueError(
        f"{name} must be a {names} of attnkernel, such as {example}; got {value!r}.{called}"
    )


def require_choice(name: str, value: Any, known: Sequence[str]) -> None:
    """Raise `ValueError` unless it is one of some words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def require_words(name: str, value: Any) -> None:
    """Raise `ValueError` unless it is a string."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string; got {value!r}.")


def require_level(name: str, value: Any) -> None:
    """Raise `ValueError` unless it is one number between 0 and 1, both excluded."""
    if not isinstance(value, float | np.floating) or not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, such as 0.95; got {value!r}.")


def require_function(name: str, value: Any) -> None:
    """Raise `ValueError` unless it can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be a function; got {value!r}.")


def as_path(name: str, path: Any) -> Path:
    """The path of a file; `ValueError` unless it is one, or words."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{name} must be the path of a file; got {path!r}.")
    return Path(path)


def as_names(name: str, names: Any) -> tuple[str, ...]:
    """Names of columns, or one, as a tuple."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, Sequence) or not all(isinstance(each, str) for each in listed):
        raise ValueError(f"{name} must be a name, or a list of names; got {names!r}.")
    return tuple(listed)


def require_key(name: str, key: Any, axes: int = 0) -> None:
    """Raise `ValueError` unless it is a key of `jax.random`, or an array of so many axes of them"""
    dtype, shape = getattr(key, "dtype", None), np.shape(key) if hasattr(key, "dtype") else ()
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_raw = dtype == np.uint32 and shape[axes:] in ((2,), (4,))
    if not (len(shape) == axes if is_typed else is_raw):
        example = "jax.random.PRNGKey(0)"
        if axes:
            example = f"jax.random.split({example}, fits)"
        raise ValueError(f"{name} must be a PRNG key, such as {example}; got {key!r}.")


def as_float_dtype(name: str, dtype: Any) -> Any:
    """A floating dtype; that of Python's numbers in JAX where it is None."""
    if dtype is None:
        return jnp.result_type(float)
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise ValueError(
            f"{name} must be a floating dtype, such as jnp.float32 or jnp.bfloat16; got {dtype!r}."
        )
    return found


def as_integers(name: str, numbers: Any) -> Int[Array, "..."]:
    """An array of whole numbers, in the integers of JAX."""
    if isinstance(numbers, jax.Array):
        array = numbers
    else:
        read = None if np.ma.is_masked(numbers) else _as_array(numbers)
        if read is None or read.dtype.kind not in "iu":
            got = f"{numbers!r}" if read is None or not read.ndim else f"dtype {read.dtype}"
            raise ValueError(
                f"{name} must be whole numbers, one per row, shape (rows,); got {got}."
            )
        with np.errstate(over="ignore"):
            kept = read.astype(jax.dtypes.canonicalize_dtype(read.dtype))
        if not np.array_equal(read, kept):
            raise ValueError(
                f"{name} has numbers too large for {kept.dtype}: number what differs from 0, as "
                f"np.unique(..., return_inverse=True) does, or subtract the least."
            )
        array = jnp.asarray(kept)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"{name} must be whole numbers, one per row, shape (rows,); got dtype {array.dtype} "
            f"and shape {array.shape}."
        )
    return array


def as_flags(name: str, value: Any, axes: int, expected: str) -> Bool[Array, "..."]:
    """An array of Booleans of so many axes."""
    array = None if np.ma.is_masked(value) else value
    if not isinstance(array, jax.Array):
        array = None if array is None else _as_array(array)
    if array is None or array.dtype != bool or array.ndim != axes:
        got = f"{value!r}" if array is None else f"dtype {array.dtype} and shape {array.shape}"
        raise ValueError(f"{name} must be a Boolean array of shape {expected}; got {got}.")
    return jnp.asarray(array)


def require_no_nan(name: str, values: ArrayLike, hint: str) -> None:
    """Raise `ValueError` at NaN and +inf; -inf, the logarithm of 0, is a number here."""
    if is_known(values) and not np.all(np.asarray(values) < np.inf):
        raise ValueError(f"{name} must be below +inf, and none NaN; got {values!r}. {hint}")


def as_reals(name: str, x: Any) -> Float[Array, "..."]:
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
    if x is None or isinstance(x, str | Mapping | type):
        raise ValueError(f"{name} must be an array of numbers; got {x!r}.")
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        array = jnp.asarray(x)
        kind = "c" if jnp.issubdtype(array.dtype, jnp.complexfloating) else array.dtype.kind
    else:
        read = _as_array(x)
        if read is None:
            raise ValueError(
                f"{name} must be an array of numbers, its rows equally long; got {x!r}."
            )
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


def as_points(name: str, x: ArrayLike) -> Float[Array, "points dim"]:
    """Points as rows, shape (n, dim); shape (n,) becomes (n, 1), and integers become floats."""
    array = as_reals(name, x)
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have shape (n,) or (n, dim); got a single number. "
            f"Try jnp.array([{name}])."
        )
    if array.ndim > 2:
        raise ValueError(f"{name} must have shape (n,) or (n, dim); got {array.shape}.")
    return array[:, None] if array.ndim == 1 else array


def _numbers(name: str, x: np.ndarray) -> Float[np.ndarray, "..."]:
    """Objects that are numbers, as such; what is none is named with its place."""
    out = np.empty(x.shape)
    for place, value in np.ndenumerate(x):
        if isinstance(value, str) or not np.isscalar(value):
            shown = repr(value.item() if isinstance(value, np.generic) else value)
            if not place:
                raise ValueError(f"{name} must be numbers; got {shown}.")
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


def require_finite(
    name: str, rows: Float[Array, "*batch rows columns"] | Float[np.ndarray, "*batch rows columns"]
) -> None:
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
    require_shares(array)
    return array


def require_shares(weights: Float[Array, "..."]) -> None:
    """Raise `ValueError` unless weights are finite, none below 0 and not all 0."""
    if not is_known(weights):
        return
    values = np.asarray(weights)
    if not np.all(np.isfinite(values) & (values >= 0)) or not np.any(values):
        span = f"they go from {values.min()} to {values.max()}" if values.size else "there are none"
        raise ValueError(f"weights must be finite, none below 0 and not all 0; {span}.")


def require_regression_shapes(x: Float[Array, "..."], y: Float[Array, "..."]) -> None:
    """Raise `ValueError` unless x and y have as many rows."""
    if x.ndim != 2 or y.ndim not in (1, 2) or x.shape[0] != y.shape[0]:
        raise ValueError(
            f"x must have shape (n,) or (n, dim) and y shape (n,) or (n, out), with the same n; "
            f"got x {x.shape} and y {y.shape}."
        )


def require_regression_data(x: Float[Array, "..."], y: Float[Array, "..."]) -> None:
    """Raise `ValueError` unless (x, y) is something that a regression can be fitted to.

    Expected: the same number of rows, at least three, every number finite, x and y not constant.
    """
    require_regression_shapes(x, y)
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
