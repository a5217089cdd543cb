"""Predictions from labelled rows in one compiled program, which rows of other numbers share."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from .._core.arrays import wider_dtype
from .._core.rows import Rows, cut_rows
from ..attention import jit_if_pure
from ..local import warn_of_extrapolation
from ..priors import Prior
from ._estimate import DataSupport


def predict_with_warning(
    function: Callable[..., tuple[Array, DataSupport]],
    model: Any,  # a `Smoother`, or the `Derivative` of one
    prior: Prior | None,
    q: Float[Array, "m dim"],
    rows: Rows,
) -> Float[Array, "m"] | Float[Array, "m out"]:
    """Returns the first result of `on_padded_rows`; warns where predictions of order 1 or 2
    extrapolate, as the second, a `DataSupport`, tells."""
    out, support = on_padded_rows(function, model, prior, q, rows)
    flags = support.deficient, support.extrapolates
    warn_of_extrapolation(model.description, *flags, wider_dtype(out.dtype))
    return out


def on_padded_rows(
    function: Callable[..., Any],
    model: Any,
    prior: Prior | None,
    q: Float[Array, "m dim"],
    rows: Rows,
) -> Any:
    """Returns `function(model, prior, q, rows)`, arrays with a row for each query, in one compiled
    program.

    Outside `jit` and without a prior, queries and rows are padded to a `bucket_size`: other sizes
    then share the program.
    """
    m = q.shape[0]  # a size, or a symbol of one in an export
    can_pad = prior is None and model.can_pad_rows and rows.is_on_one_device(model, q)
    if can_pad:
        rows, q = rows.padded(q)
    found = jit_if_pure(function, (model, prior), q, rows)
    return cut_rows(found, m) if can_pad else found
