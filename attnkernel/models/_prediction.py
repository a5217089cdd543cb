"""Predictions of a regression by local polynomials, in one compiled program."""

from typing import Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._core.host_arrays import is_on_one_device
from .._core.regression_data import as_weights
from .._core.row_buckets import cut_rows, pad_rows
from ..attention._jit import jit_if_pure
from ..priors import Prior
from ._data import read_data, with_weights
from ._local_regression import LocalRegression


def predict(
    model: LocalRegression,
    x_new: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    prior: Prior | None,
    weights: ArrayLike | None,
) -> tuple[Array, Bool[Array, " m"], Bool[Array, " m"]]:
    """Returns predictions, and where the local design is deficient and where it extrapolates.

    Arguments as for `KernelRegression`. Outside `jit` and without a prior, queries and rows are
    padded to a `bucket_size`: other sizes then share the program.
    """
    q, k, v = read_data(x_new, x, y, weights, model.kernel)
    model.check_labels(v)
    m = q.shape[0]  # a size, or a symbol of one in an export
    weights = None if weights is None else as_weights(weights, k.shape[0])
    can_pad = prior is None and model.can_pad_rows and is_on_one_device(model, q, k, v, weights)
    if can_pad:
        k, v, weights, q = pad_rows(k, v, weights, q)
    parts = (model, prior, weights, np.ndim(y) == 1)
    found = jit_if_pure(_predict, parts, q, k, v, is_forward=True)
    return cut_rows(found, m) if can_pad else found


def _predict(
    model: Any,
    prior: Prior | None,
    weights: Array | None,
    has_one_label: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> tuple[Array, Bool[Array, " m"], Bool[Array, " m"]]:
    """Returns `predict` of checked data; predictions have the shape (m,) if `has_one_label`."""
    prior = with_weights(prior, weights, k)
    out, local = model.fitted(q, k, v, prior)
    out = model.filled(out, local, q, k, v, prior)
    return out[:, 0] if has_one_label else out, local.deficient, local.extrapolates
