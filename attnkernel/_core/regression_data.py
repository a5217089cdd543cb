"""Checks of regression data: inputs x, labels y, row weights w, and codes of categories."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .arrays import as_real_array, require_finite, wider_dtype
from .host_arrays import AnyArray, is_concrete


def as_weights(weights: ArrayLike, n: int) -> Float[Array, " n"] | Bool[Array, " n"]:
    """Returns the weights of n rows as an array; `ValueError` unless they are valid."""
    array = as_valid_weights(weights)
    if array.shape != (n,):
        raise ValueError(f"weights must have one number per row, shape ({n},); got {array.shape}.")
    return array


def as_valid_weights(weights: ArrayLike) -> Float[Array, "..."] | Bool[Array, "..."]:
    """Returns weights in float32 at least; `ValueError` unless their sums hold in that dtype.

    Booleans stay Booleans: rows with False are ignored, at the cost of a mask of keys.
    """
    if isinstance(weights, jax.Array) and weights.dtype == bool:
        require_valid_weights(weights)
        return weights
    array = as_real_array("weights", weights)
    array = array.astype(wider_dtype(array.dtype))
    if is_concrete(array) and np.any((np.asarray(weights, float) > 0) & (np.asarray(array) == 0)):
        raise ValueError(
            f"weights has positive numbers that are 0 in {array.dtype}, as in a row that is left "
            f"out. Weights count up to a factor: divide them by their largest, or give 0."
        )
    require_valid_weights(array)
    return array


def is_positive(weights: Float[AnyArray, "..."] | Bool[AnyArray, "..."]) -> Bool[AnyArray, "..."]:
    """Returns which rows have weight; weights may be Booleans."""
    return weights if weights.dtype == bool else weights > 0


def require_valid_weights(weights: Float[Array, "..."] | Bool[Array, "..."]) -> None:
    """Raises `ValueError` unless weights are finite, not negative, and one of them is positive."""
    if not is_concrete(weights):
        return
    values = np.asarray(weights)
    if not np.all(np.isfinite(values) & (values >= 0)) or not np.any(values):
        got = f"from {values.min()} to {values.max()}" if values.size else "no weights"
        raise ValueError(f"weights must be finite, none negative and not all 0; got {got}.")
    if values.dtype == bool:
        return
    limits = np.finfo(np.dtype(weights.dtype))
    if not limits.tiny / limits.eps <= values.max() <= limits.max * limits.eps:
        raise ValueError(
            f"weights go up to {values.max():.3g}, and their sums leave {values.dtype}. Weights "
            f"count up to a factor: divide them by their largest."
        )


def require_category_codes(
    name: str, rows: Float[Array, "rows columns"], categories: Mapping[int, int | None]
) -> None:
    """Raises `ValueError` unless columns of categories hold integer codes in their range.

    `categories` maps each such column to its number of categories, None where that is open.
    """
    if not is_concrete(rows):
        return
    for column, count in categories.items():
        codes = np.asarray(rows)[:, column]
        invalid = codes != np.round(codes)
        if count is not None:
            invalid |= (codes < 0) | (codes >= count)
        if np.any(invalid):
            row = int(np.argmax(invalid))
            expected = "integers" if count is None else f"0 to {count - 1}"
            raise ValueError(
                f"Column {column} of {name} holds categories, {expected}; row {row} (counted from "
                f"0) has {codes[row]:g}. Give the kernel as many categories as there are, or drop "
                f"those rows."
            )


def require_finite_squares(name: str, values: Float[Array, "..."]) -> None:
    """Raises `ValueError`, with the name of the argument, where squares of differences of the
    values would overflow or be subnormal."""
    if not is_concrete(values) or not values.size:
        return
    limits = np.finfo(np.dtype(wider_dtype(values.dtype)))
    spread = float(np.max(np.ptp(np.asarray(values, float), axis=0)))
    low, high = (limits.tiny / limits.eps) ** 0.5, (limits.max * limits.eps) ** 0.5
    if np.isfinite(spread) and spread and not low <= spread <= high:
        raise ValueError(
            f"{name} spans {spread:.3g}, and squares of such numbers leave {limits.dtype}: it may "
            f"span {low:.1g} to {high:.1g}. Use another unit, such as {name} / {spread:.1g}, or "
            f"float64 (jax_enable_x64)."
        )


def require_regression_data(
    x: Float[Array, "..."], y: Float[Array, "..."], advice_for_nan: str = ""
) -> None:
    """Raises `ValueError` unless a regression of y on x can be fitted.

    Expected: the same number of rows, at least three; every number finite; neither x nor y
    constant. `advice_for_nan`: added to the error where numbers are NaN.
    """
    if x.ndim != 2 or y.ndim not in (1, 2) or x.shape[0] != y.shape[0]:
        raise ValueError(
            f"x must have shape (n,) or (n, dim) and y shape (n,) or (n, out), with the same n; "
            f"got x {x.shape} and y {y.shape}."
        )
    min_fit_rows = 3
    if x.shape[0] < min_fit_rows:
        raise ValueError(
            f"A fit needs at least {min_fit_rows} rows; got {x.shape[0]}. Each row is predicted "
            f"from the others, and a single other row does not identify a lengthscale."
        )
    if not is_concrete(x, y):
        return
    require_finite("x", x, advice_for_nan)
    require_finite("y", np.asarray(y).reshape(len(y), -1), advice_for_nan)
    for name, array in (("x", x), ("y", y)):
        if np.all(np.asarray(array) == np.asarray(array)[:1]):
            raise ValueError(
                f"{name} is constant: every row is {np.asarray(array)[0].tolist()}. It does not "
                f"identify a lengthscale. Is this the intended column, and is {array.dtype} "
                f"precise enough for it?"
            )
    require_finite_squares("y", y)
