"""Predictions from labelled rows in one compiled program, which rows of other numbers share."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jax.typing import ArrayLike
from jaxtyping import Array

from .._core.arrays import wider_dtype
from .._core.rows import NewInputs, Predictions, Rows, cut_rows
from ..attention import jit_if_pure
from ..local import warn_of_extrapolation
from ..priors import Prior, require_prior
from ._estimate import DataSupport


class RowsRegression(eqx.Module):
    """A regression that reads the arguments of its call once, and predicts from rows."""

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Any:
        """Predictions at new inputs from labelled ones.

        **Arguments:**

        - `x_new`: shape (m, dim) or (m,); `x`: shape (n, dim) or (n,).
        - `y`: labels, shape (n,) or (n, out).
        - `prior`: which labels each prediction may see, for example `ak.priors.ExcludeSelf()` for
          predictions at x itself. Default: all.
        - `weights`: of each row, shape (n,), from 0; what they mean, the class says. Rows with
          weight 0 are ignored. Default: 1.

        **Returns:** shape (m,) or (m, out), in the units of y and the dtype of `x_new`.

        **Raises:** `ValueError` if shapes do not fit together, a weight is negative, or the model
        has no such label.
        """
        q, rows = self.read(x_new, x, y, weights)
        if prior is not None:
            require_prior("prior", prior)
        return self.predict(q, rows, prior)

    @abc.abstractmethod
    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Any:
        """Predictions from checked data."""

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """The columns of x that hold codes of categories, as in `ak.kernels.category_counts`."""
        return {}

    def read(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None
    ) -> tuple[NewInputs, Rows]:
        """The queries and the labelled rows of the arguments of a call.

        **Raises:** `ValueError` as `Rows.read`, and for invalid codes of categories.
        """
        rows, names = Rows.read_named(x, y, weights)
        return rows.queries(x_new, self.category_counts(rows.x.shape[1]), names), rows

    def queries_at(self, x_new: ArrayLike | None, rows: Rows) -> NewInputs:
        """New inputs as points, for None the inputs of the rows."""
        if x_new is None:
            return rows.x
        return rows.queries(x_new, self.category_counts(rows.x.shape[1]))


def predict_with_warning(
    function: Callable[..., tuple[Array, DataSupport]],
    model: Any,  # a `Smoother`, or the `Derivative` of one
    prior: Prior | None,
    q: NewInputs,
    rows: Rows,
) -> Predictions:
    """Returns the first result of `on_padded_rows`; warns where predictions of order 1 or 2
    extrapolate, as the second, a `DataSupport`, tells."""
    out, support = on_padded_rows(function, model, prior, q, rows)
    flags = support.deficient, support.extrapolates
    warn_of_extrapolation(model.description, *flags, wider_dtype(out.dtype))
    return out


def on_padded_rows(
    function: Callable[..., Any], model: Any, prior: Prior | None, q: NewInputs, rows: Rows
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
