"""Rows: the labelled inputs of a regression, parsed once at the boundary of a public call."""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from .arrays import as_points, as_real_array, require_finite
from .host_arrays import index_on_host, is_on_one_device
from .pandas_frames import (
    Categories,
    Names,
    drop_missing_rows,
    frame_to_numbers,
    is_frame,
    labels_to_numbers,
    require_same_index,
)
from .regression_data import as_weights, is_positive, require_category_codes
from .row_buckets import pad_rows


class Rows(eqx.Module):
    """Inputs x and labels y of a regression, and the weights of rows.

    `read` parses arguments of a user; behind it arrays are trusted. Labels are a matrix;
    `has_one_label` says whether they were a vector, and `shaped` gives results that shape.
    `weights` are inverse variances; Booleans are weights of 0 and 1; None: 1.

    ```python
    >>> rows = ak.models.Rows.read(np.arange(3.0), np.arange(3.0), weights=[1.0, 1.0, 0.0])
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

        The label of a row with weight 0 is replaced by that of a row with weight, so that it
        cannot enter a mean about which sums are centred.

        **Raises:** `ValueError` unless the data are finite, one label a row, with the same index
        where they are of pandas, and the weights valid.
        """
        k, labels, of_rows, _ = parse_rows(x, y, weights)
        v = index_on_host(labels, np.s_[:, None]) if labels.ndim == 1 else labels
        for name, rows in (("x", k), ("y", v)):
            require_finite(name, rows)
        if of_rows is not None:
            v = _with_label_of_weighted_row(v, of_rows)
        return cls(k, v, of_rows, labels.ndim == 1)

    def queries(self, x_new: ArrayLike, categories: Mapping[int, int | None]) -> Array:
        """Returns new inputs as points; `categories`: the columns of codes, `category_counts`.

        **Raises:** `ValueError` where a number is not finite, or a code is not one.
        """
        q = as_points("x_new", x_new)
        require_finite("x_new", q)
        if q.shape[1] == self.x.shape[1]:
            for name, points in (("x", self.x), ("x_new", q)):
                require_category_codes(name, points, categories)
        return q

    @property
    def count(self) -> int | Int[Array, ""]:
        """The number of rows whose weight is above 0."""
        return len(self.x) if self.weights is None else jnp.sum(is_positive(self.weights))

    @property
    def has_weight(self) -> Bool[Array, " n"]:
        """Which rows have a weight above 0."""
        none = self.weights is None
        return jnp.ones(len(self.x), bool) if none else is_positive(self.weights)

    @property
    def labels(self) -> Float[Array, "n"] | Float[Array, "n out"]:
        """The labels in the shape that was given."""
        return self.shaped(self.y)

    @property
    def kwargs(self) -> dict[str, Any]:
        """`{"weights": weights}` for the call of a model; `{}` without weights."""
        return {} if self.weights is None else {"weights": self.weights}

    def row_weights(self, dtype: Any) -> Float[Array, " n"]:
        """The weights in a dtype, 1 where there are none."""
        weights = jnp.ones(len(self.x), dtype) if self.weights is None else self.weights
        return weights.astype(dtype)

    def shaped(self, out: Float[Array, "... out"]) -> Float[Array, "..."]:
        """Returns results with an axis of labels in the shape of the labels."""
        return out[..., 0] if self.has_one_label else out

    def with_labels(self, y: Float[Array, "n"] | Float[Array, "n out"]) -> "Rows":
        """Returns the rows with other labels, which need no check."""
        return Rows(self.x, y if y.ndim == 2 else y[:, None], self.weights, y.ndim == 1)

    def padded(self, *others: Array) -> tuple["Rows", *tuple[Array, ...]]:
        """Returns the rows padded to a `bucket_size` by rows of weight 0, and other arrays by their
        last row, so that data of similar size share one program."""
        x, y, weights, *padded = pad_rows(self.x, self.y, self.weights, *others)
        return Rows(x, y, weights, self.has_one_label), *padded

    def is_on_one_device(self, *others: Any) -> bool:
        """Whether these and other arrays are on one device, outside `jit`: they can be padded."""
        return is_on_one_device(self, *others)


class FrameNames(NamedTuple):
    """The names of the columns of frames; None for arrays. `dropped_rows`: by `na="drop"`."""

    x_names: Names | None = None
    x_categories: Categories | None = None
    y_name: Hashable = None
    dropped_rows: int = 0


def parse_rows(
    x: Any, y: Any, weights: Any, na: str = "error"
) -> tuple[Float[Array, "n dim"], Float[Array, "*rows"], Array | None, FrameNames]:
    """Returns inputs as points, labels in their own shape, weights, and the names of frames.

    `na`: `"drop"` leaves out rows in which a value of x or y is missing.

    **Raises:** `ValueError` for shapes that do not fit together, invalid weights, or frames whose
    index is not the same. Arrays may hold numbers that are not finite.
    """
    names = FrameNames()
    require_same_index("y", y, x)
    require_same_index("weights", weights, x)
    if na == "drop":
        x, y, weights, dropped = drop_missing_rows(x, y, weights)
        names = names._replace(dropped_rows=dropped)
    if is_frame(weights):
        weights, _ = labels_to_numbers("weights", weights)
    if is_frame(y):
        y, y_name = labels_to_numbers("y", y)
        names = names._replace(y_name=y_name)
    if is_frame(x):
        x, x_names, x_categories = frame_to_numbers("x", x)
        names = names._replace(x_names=x_names, x_categories=x_categories)
    x, y = as_points("x", x), as_real_array("y", y)
    if y.ndim not in (1, 2) or len(x) != len(y):
        raise ValueError(
            f"x must have shape (n,) or (n, dim) and y shape (n,) or (n, out), with the same n; "
            f"got x {x.shape} and y {y.shape}."
        )
    return x, y, None if weights is None else as_weights(weights, len(x)), names


@jax.jit
def _with_label_of_weighted_row(
    v: Float[Array, "n out"], weights: Float[Array, " n"] | Bool[Array, " n"]
) -> Float[Array, "n out"]:
    """Returns labels, those of rows without weight replaced by that of a row with weight."""
    has_weight = is_positive(weights)
    return jnp.where(has_weight[:, None], v, v[jnp.argmax(has_weight)][None])


def as_variances(variance: ArrayLike) -> Float[Array, "n columns"]:
    """Returns the variances of labels, shape (n,) or (n, columns), as columns."""
    array = as_real_array("variance", variance)
    return array[:, None] if array.ndim == 1 else array
