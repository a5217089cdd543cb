"""Predictions of a kernel regression from checked data, in one compiled program."""

from typing import Any

from jaxtyping import Array, Bool, Float

from .._core.host_arrays import is_on_one_device
from .._core.row_buckets import cut_rows, pad_rows
from ..attention._jit import jit_if_pure
from ..priors import Prior
from ._data import with_weights


def predict(
    model: Any,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
    prior: Prior | None,
    weights: Array | None,
    has_one_label: bool,
) -> tuple[Array, Bool[Array, " m"], Bool[Array, " m"]]:
    """Returns predictions, and where the local design is deficient and where it extrapolates.

    Predictions have the shape (m,) if `has_one_label`, else (m, out). Outside `jit` and without a
    prior, queries and rows are padded to a `bucket_size`: other sizes then share the program.
    """
    m = q.shape[0]
    can_pad = prior is None and model.can_pad_rows and is_on_one_device(model, q, k, v, weights)
    if can_pad:
        k, v, weights, q = pad_rows(k, v, weights, q)
    found = jit_if_pure(_predict, (model, prior, weights, has_one_label), q, k, v, is_forward=True)
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
    """Returns `predict` of arrays as they are."""
    prior = with_weights(prior, weights, k)
    out, local = model.fitted(q, k, v, prior)
    out = model.filled(out, local, q, k, v, prior)
    return out[:, 0] if has_one_label else out, local.deficient, local.extrapolates
