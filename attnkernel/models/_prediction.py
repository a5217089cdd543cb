"""Predictions from labelled rows in one compiled program, which rows of other numbers share."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from .._core.host_arrays import is_on_one_device
from .._core.regression_data import as_weights
from .._core.row_buckets import cut_rows, pad_rows
from ..attention import jit_if_pure
from ..local import warn_of_extrapolation
from ..priors import Prior
from ._data import read_data, with_weights
from ._local_regression import LocalRegression, support_of
from ._smoother import DataSupport


def predict(
    model: LocalRegression,
    x_new: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    prior: Prior | None,
    weights: ArrayLike | None,
) -> Float[Array, "m"] | Float[Array, "m out"]:
    """Returns the predictions of a regression by local polynomials; arguments as for
    `KernelRegression`. Warns where those of order 1 or 2 extrapolate."""
    data = read_data(x_new, x, y, weights, model.kernel)
    model.check_labels(data[2])
    out, support = on_padded_rows(_predict, model, prior, weights, *data, np.ndim(y) == 1)
    if model.order > 0:
        flags = support.deficient, support.extrapolates
        warn_of_extrapolation(model.description, *flags, wider_dtype(out.dtype))
    return out


def on_padded_rows(
    function: Callable[..., Any],
    model: Any,  # a `Smoother`, or the `Derivative` of one
    prior: Prior | None,
    weights: ArrayLike | None,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
    has_one_label: bool,
) -> Any:
    """Returns `function(model, prior, weights, has_one_label, q, k, v)`, arrays with a row for each
    query, in one compiled program. Predictions have the shape (m,) if `has_one_label`.

    Outside `jit` and without a prior, queries and rows are padded to a `bucket_size`: other sizes
    then share the program.
    """
    m = q.shape[0]  # a size, or a symbol of one in an export
    weights = None if weights is None else as_weights(weights, k.shape[0])
    can_pad = prior is None and model.can_pad_rows and is_on_one_device(model, q, k, v, weights)
    if can_pad:
        k, v, weights, q = pad_rows(k, v, weights, q)
    parts = (model, prior, weights, has_one_label)
    found = jit_if_pure(function, parts, q, k, v, is_forward=True)
    return cut_rows(found, m) if can_pad else found


def _predict(
    model: Any,
    prior: Prior | None,
    weights: Array | None,
    has_one_label: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Float[Array, "m"] | Float[Array, "m out"], DataSupport]:
    """Returns predictions from checked data, and how well the data determine them."""
    prior = with_weights(prior, weights, k)
    out, local = model.fitted(q, k, v, prior)
    out = model.filled(out, local, q, k, v, prior)
    return out[:, 0] if has_one_label else out, support_of(local)
