"""Rows: the labelled inputs of a regression, parsed once at the boundary of a public call.

XLA compiles a program for each shape. Rows are therefore padded to the next size of a short list,
by copies of the last row that carry no weight, so that data sets of similar size share one program.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .arrays import (
    AnyArray,
    as_points,
    as_real_array,
    can_use_numpy,
    index_on_host,
    is_concrete,
    put_like,
    require_finite,
    wider_dtype,
)
from .pandas_frames import FrameNames, frames_to_numbers, is_frame, query_to_numbers

Inputs = Float[AnyArray, "n dim"]
NewInputs = Float[Array, "m dim"]
Labels = Float[Array, "n"] | Float[Array, "n out"]
Predictions = Float[Array, "m"] | Float[Array, "m out"]
RowWeights = Float[Array, " n"] | Bool[Array, " n"]


class Rows(eqx.Module):
    """Inputs x and labels y of a regression, and the weights of rows.

    `read` parses arguments of a user; behind it arrays are trusted. Labels are a matrix;
    `has_one_label` says whether they were a vector, and `shaped` gives results that shape.
    `weights` are inverse variances; Booleans are weights of 0 and 1; None: 1.

    ```python
    >>> x, weights = np.arange(3.0), np.array([1.0, 1.0, 0.0])
    >>> rows = ak.models.Rows.read(x, x**2, weights)
    >>> rows.x.shape, rows.y.shape, int(rows.count)
    ((3, 1), (3, 1), 2)

    ```
    """

    x: Float[Array, "n dim"]
    y: Float[Array, "n out"]
    weights: Float[Array, " n"] | Bool[Array, " n"] | None = None
    has_one_label: bool = eqx.field(static=True, default=True)

    @classmethod
    def read(cls, x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> "Rows":
        """Returns the rows of arguments of a public function.

        **Raises:** `ValueError` unless the data are finite, one label a row, with the same index
        where they are of pandas, and the weights valid.
        """
        return cls.read_named(x, y, weights)[0]

    @classmethod
    def read_named(cls, x: Any, y: Any, weights: Any) -> tuple["Rows", FrameNames]:
        """Returns the rows of the arguments, as `read` does, and the names of columns of frames."""
        k, labels, of_rows, names = parse_rows(x, y, weights)
        v = index_on_host(labels, np.s_[:, None]) if labels.ndim == 1 else labels
        for name, rows in (("x", k), ("y", v)):
            require_finite(name, rows)
        return cls(k, v, None, labels.ndim == 1).with_weights(of_rows), names

    def queries(
        self,
        x_new: Any,
        categories: Mapping[int, int | None],
        names: FrameNames = FrameNames(),
    ) -> Array:
        """Returns new inputs as points, shape (m, dim); checks their codes and those of the rows.

        `categories`: the columns that hold codes, mapped to their numbers of categories, as
        `category_counts` returns. `names`: the columns and categories that a frame must have.

        Codes are checked only if x_new has as many columns as x; other numbers of columns are not
        refused here.

        **Raises:** `ValueError` where a number is not finite, or a code is not one; for a frame
        with other columns or categories.
        """
        if is_frame(x_new):
            x_new = query_to_numbers(x_new, names.x_names, names.x_categories)
        q = as_points("x_new", x_new)
        require_finite("x_new", q)
        if q.shape[1] == self.x.shape[1]:
            for name, points in (("x", self.x), ("x_new", q)):
                require_category_codes(name, points, categories)
        return q

    @property
    def count(self) -> int | Int[Array, ""]:
        """The number of rows whose weight is above 0."""
        return self.x.shape[0] if self.weights is None else jnp.sum(is_positive(self.weights))

    @property
    def has_weight(self) -> Bool[Array, " n"]:
        """Which rows have a weight above 0."""
        none = self.weights is None
        return jnp.ones(self.x.shape[0], bool) if none else is_positive(self.weights)

    @property
    def labels(self) -> Float[Array, "n"] | Float[Array, "n out"]:
        """The labels in the shape that was given."""
        return index_on_host(self.y, np.s_[:, 0]) if self.has_one_label else self.y

    @property
    def kwargs(self) -> dict[str, Any]:
        """`{"weights": weights}` for the call of a model; `{}` without weights."""
        return {} if self.weights is None else {"weights": self.weights}

    def row_weights(self, dtype: Any) -> Float[Array, " n"]:
        """The weights in a dtype, 1 where there are none."""
        weights = jnp.ones(self.x.shape[0], dtype) if self.weights is None else self.weights
        return weights.astype(dtype)

    def shaped(self, out: Float[Array, "... out"]) -> Float[Array, "..."]:
        """Returns results whose last axis is that of the labels; drops that axis if the labels were
        given as a vector."""
        return out[..., 0] if self.has_one_label else out

    def with_labels(self, y: Float[Array, "n"] | Float[Array, "n out"]) -> "Rows":
        """Returns the rows with other labels, which are not checked.

        Labels of rows with weight 0 are replaced as by `with_weights`.
        """
        rows = Rows(self.x, y if y.ndim == 2 else y[:, None], None, y.ndim == 1)
        return rows.with_weights(self.weights)

    def with_weights(self, weights: Float[Array, " n"] | Bool[Array, " n"] | None) -> "Rows":
        """Returns the rows with other weights, which are not checked.

        The label of a row with weight 0 is replaced by that of the first row with weight: it could
        enter a mean about which sums are centred.
        """
        y = self.y
        if weights is not None and can_use_numpy(y, weights):
            has_weight = np.asarray(weights) > 0
            if not has_weight.all():
                known = np.asarray(y)[np.argmax(has_weight)]
                y = put_like(y, np.where(has_weight[:, None], np.asarray(y), known))
        elif weights is not None:
            has_weight = is_positive(weights)
            y = jnp.where(has_weight[:, None], y, y[jnp.argmax(has_weight)][None])
        return Rows(self.x, y, weights, self.has_one_label)

    def padded(self, *others: Array) -> tuple["Rows", *tuple[Array, ...]]:
        """Returns the rows and other arrays, each padded to its `bucket_size` by its last row.

        Added rows have weight 0. Data of similar size then share one program. `can_use_numpy`
        must hold for all arrays.
        """
        x, y, weights, *padded = pad_rows(self.x, self.y, self.weights, *others)
        return Rows(x, y, weights, self.has_one_label), *padded

    def can_use_numpy(self, *others: Any) -> bool:
        """Whether no `jit` surrounds the call, and each of these and other arrays is concrete and
        whole on a single device: they can be padded."""
        return can_use_numpy(self, *others)


def parse_rows(
    x: Any, y: Any, weights: Any, na: str = "error"
) -> tuple[Float[Array, "n dim"], Float[Array, "*rows"], Array | None, FrameNames]:
    """Returns inputs as points, labels in their own shape, weights, and the names of frames.

    `na`: `"drop"` leaves out rows in which a value of x or y is missing.

    **Raises:** `ValueError` for shapes that do not fit together, invalid weights, or frames whose
    index is not the same. Arrays may hold numbers that are not finite.
    """
    x, y, weights, names = frames_to_numbers(x, y, weights, na)
    x, y = as_points("x", x), as_real_array("y", y)
    _require_same_rows(x, y)
    if weights is not None:
        weights, n = as_valid_weights(weights), x.shape[0]
        if weights.shape != (n,):
            raise ValueError(
                f"weights must have one number per row, shape ({n},); got {weights.shape}."
            )
    return x, y, weights, names


def _require_same_rows(x: Float[Array, "..."], y: Float[Array, "..."]) -> None:
    """Raises `ValueError` unless x has shape (n, dim), and y (n,) or (n, out) with the same n."""
    if x.ndim != 2 or y.ndim not in (1, 2) or x.shape[0] != y.shape[0]:
        raise ValueError(
            f"x must have shape (n,) or (n, dim) and y shape (n,) or (n, out), with the same n; "
            f"got x {x.shape} and y {y.shape}."
        )


def as_valid_weights(weights: ArrayLike) -> Float[Array, "..."] | Bool[Array, "..."]:
    """Returns weights as a floating array, float32 or wider.

    A Boolean array of JAX stays Boolean: rows with False are ignored, at the cost of a mask of
    keys. `ValueError` unless weights are finite, not negative and not all 0, and their sums stay
    within the range of the dtype; also for a positive number that becomes 0 in the dtype. Traced
    values are not checked.
    """
    if isinstance(weights, jax.Array) and weights.dtype == bool:
        _require_valid_weights(weights)
        return weights
    array = as_real_array("weights", weights)
    array = array.astype(wider_dtype(array.dtype))
    if is_concrete(array) and np.any((np.asarray(weights, float) > 0) & (np.asarray(array) == 0)):
        raise ValueError(
            f"weights has positive numbers that are 0 in {array.dtype}, as in a row that is left "
            f"out. Weights count up to a factor: divide them by their largest, or give 0."
        )
    _require_valid_weights(array)
    return array


def is_positive(weights: Float[AnyArray, "..."] | Bool[AnyArray, "..."]) -> Bool[AnyArray, "..."]:
    """Returns which rows have weight; weights may be Booleans."""
    return weights if weights.dtype == bool else weights > 0


def _require_valid_weights(weights: Float[Array, "..."] | Bool[Array, "..."]) -> None:
    """Raises `ValueError` unless weights are finite, not negative and not all 0, and their sums
    stay within the range of their dtype. Traced values are not checked."""
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
    name: str, rows: Float[AnyArray, "rows columns"], categories: Mapping[int, int | None]
) -> None:
    """Raises `ValueError` unless columns of categories hold integer codes in their range.

    `categories` maps each such column to its number of categories, None if any integer is allowed.
    Traced values are not checked.
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


def require_finite_squares(name: str, values: Float[AnyArray, "..."]) -> None:
    """Raises `ValueError`, with the name of the argument, where squares of differences of the
    values would overflow or be subnormal. Traced values are not checked."""
    if not is_concrete(values) or not values.size:
        return
    limits = np.finfo(np.float64 if values.dtype == np.float64 else np.float32)
    spread = float(np.max(np.ptp(np.asarray(values, float), axis=0)))
    low, high = (limits.tiny / limits.eps) ** 0.5, (limits.max * limits.eps) ** 0.5
    if np.isfinite(spread) and spread and not low <= spread <= high:
        raise ValueError(
            f"{name} spans {spread:.3g}, and squares of such numbers leave {limits.dtype}: it may "
            f"span {low:.1g} to {high:.1g}. Use another unit, such as {name} / {spread:.1g}, or "
            f"float64 (jax_enable_x64)."
        )


def require_regression_data(
    x: Float[Array, "..."],
    y: Float[Array, "..."],
    categories: Mapping[int, int | None] = MappingProxyType({}),
    advice_for_nan: str = "",
) -> None:
    """Raises `ValueError` unless a regression of y on x can be fitted.

    Expected: the same number of rows, at least three; every number finite; neither x nor y
    constant; codes in the columns of `categories`; squares of differences of y within the range of
    the dtype. Only the shapes are checked if x or y is traced. `advice_for_nan`: added to the error
    where numbers are NaN.
    """
    _require_same_rows(x, y)
    min_fit_rows = 3
    if x.shape[0] < min_fit_rows:
        raise ValueError(
            f"A fit needs at least {min_fit_rows} rows; got {x.shape[0]}. Each row is predicted "
            f"from the others, and a single other row does not identify a lengthscale."
        )
    if not is_concrete(x, y):
        return
    points, labels = np.asarray(x), np.asarray(y)
    require_finite("x", points, advice_for_nan)
    require_finite("y", labels.reshape(len(labels), -1), advice_for_nan)
    for name, array in (("x", points), ("y", labels)):
        if np.all(array == array[:1]):
            raise ValueError(
                f"{name} is constant: every row is {array[0].tolist()}. It does not identify a "
                f"lengthscale. Is this the intended column, and is {array.dtype} precise enough "
                f"for it?"
            )
    require_finite_squares("y", labels)
    require_category_codes("x", points, categories)


MAX_PADDED_ROWS = 2**13  # above, a fit takes many times as long as its compilation


def bucket_size(rows: int) -> int:
    """Returns the number of rows to which this many are padded; `rows` itself for 0 and above 8192.

    Up to 256 it is the next multiple of 8. Above, it is the next multiple of 1/16 of the largest
    power of two that is at most `rows`.

    ```python
    >>> from attnkernel._core.rows import bucket_size
    >>> [bucket_size(n) for n in (1, 16, 17, 205, 774, 9000)]
    [8, 16, 24, 208, 800, 9000]

    ```
    """
    if not 0 < rows <= MAX_PADDED_ROWS:
        return rows
    min_step = 8  # rows, between the sizes of up to 256 rows
    steps_per_octave = 16  # above: at most 1/16 more rows, 1/8 more pairs
    step = max(min_step, 2 ** (rows.bit_length() - 1) // steps_per_octave)
    return -(-rows // step) * step


def pad_rows(
    x: Array, y: Array, weights: Array | None, *others: Array, axis: int = 0
) -> tuple[Array, Array, Array | None, *tuple[Array, ...]]:
    """Returns inputs, labels, weights and other arrays, padded to the `bucket_size` of their rows.

    Padded rows repeat the last row, with weight 0. `can_use_numpy` must hold for the arrays:
    they are padded on the host, which compiles nothing. The results are on the device of x.

    Without weights, the given rows have the weight True and the others False; above 8192 rows,
    which are not padded, weights stay None. `axis`: that of the rows of all arrays but the weights,
    whose last axis it is.
    """
    n, padded_weights = x.shape[axis], weights
    if 0 < n <= MAX_PADDED_ROWS:
        given = np.ones(n, bool) if weights is None else np.asarray(weights)
        padded_weights = np.zeros((*given.shape[:-1], bucket_size(n)), given.dtype)
        padded_weights[..., :n] = given
    more_x, more_y, *more = [_repeat_last_row(array, axis) for array in (x, y, *others)]
    return put_like(x, (more_x, more_y, padded_weights, *more))  # each call takes 30 µs


def pad_points(*arrays: Array) -> tuple[list[Array], Bool[Array, " n"]]:
    """Returns a list of the arrays, padded to their `bucket_size`, and a mask: True for given rows.

    The mask is of the first array. Nothing is padded, and the mask is True everywhere, above 8192
    rows and unless `can_use_numpy` holds for all arrays.
    """
    (first, *others), is_row = arrays, None
    if can_use_numpy(*arrays):
        first, _, is_row, *others = pad_rows(first, first, None, *others)
    return [first, *others], jax.device_put(np.ones(len(first), bool)) if is_row is None else is_row


def _repeat_last_row(array: Array, axis: int) -> Array | np.ndarray:
    """Returns the array with its last row along an axis repeated up to the `bucket_size`."""
    n = array.shape[axis]
    size = bucket_size(n)
    if size == n:
        return array
    return np.take(np.asarray(array), np.minimum(np.arange(size), n - 1), axis)


def cut_rows(tree: Any, rows: int) -> Any:
    """Returns the tree with every longer concrete array cut to its first `rows` rows, a number.

    This undoes `pad_rows`; if that many rows need no padding, the tree is returned unchanged. On
    the host, which compiles nothing.
    """
    if bucket_size(rows) == rows:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    is_padded = [leaf.ndim and len(leaf) > rows and is_concrete(leaf) for leaf in leaves]
    if any(is_padded):
        cut = [np.asarray(leaf)[:rows] for leaf, it in zip(leaves, is_padded, strict=True) if it]
        found = iter(put_like(leaves[0], cut))
        leaves = [next(found) if it else leaf for leaf, it in zip(leaves, is_padded, strict=True)]
    return jax.tree.unflatten(structure, leaves)
