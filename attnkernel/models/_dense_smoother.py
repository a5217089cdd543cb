"""Linear smoothers that compute their hat matrix, for a few thousand rows."""

import abc

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import precise_matmul
from .._core.rows import NewInputs, Predictions, Rows, require_category_codes
from ..priors import Prior, key_mask_of
from ._estimate import DataSupport, WeightsEstimate
from ._linear_smoother import LinearSmoother
from ._prediction import RowsRegression, on_padded_rows

MAX_DENSE_ROWS = 3000  # 72 MB for each matrix of n × n numbers


class DenseSmoother(RowsRegression, LinearSmoother):
    """A linear smoother whose weights $L_j(x)$ come from matrices of n × n numbers."""

    @abc.abstractmethod
    def hat_rows(
        self, q: NewInputs | None, k: Float[Array, "n dim"], weights: Float[Array, " n"]
    ) -> Float[Array, "m n"]:
        """$L_j(x)$ at queries q, from checked data; 0 where no label has weight. None: at k."""

    @abc.abstractmethod
    def support_at(self, q: NewInputs, rows: Rows) -> DataSupport:
        """How well the data determine predictions at queries, from checked data."""

    def predict(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Predictions:
        """Predictions from checked data.

        **Raises:** `ValueError` for more than 3000 rows, and for a prior that does not hide the
        same rows from every query, such as that of `ak.LeaveOneOut`.
        """
        return on_padded_rows(_predict, self, None, q, self._rows_seen(q, rows, prior))

    def estimate(
        self, x_new: ArrayLike | None, rows: Rows, *, prior: Prior | None = None
    ) -> WeightsEstimate:
        """Predictions with their weights, variances and support, from the same hat matrix."""
        q = self.queries_at(x_new, rows)
        rows = self._rows_seen(q, rows, prior)
        weights = self.hat_rows(None if x_new is None else q, rows.x, rows.row_weights(q.dtype))
        return WeightsEstimate(self, rows, _apply(weights, rows), self.support_at(q, rows), weights)

    def check_inputs(self, q: NewInputs, k: Float[Array, "n dim"]) -> None:
        """Raises `ValueError` for too many rows, or invalid codes of categories."""
        if len(k) > MAX_DENSE_ROWS:
            raise ValueError(
                f"{type(self).__name__} solves for matrices of n × n numbers, and takes up to "
                f"{MAX_DENSE_ROWS} rows; got {len(k)}. Fit it to a random part of the rows."
            )
        for name, points in (("x_new", q), ("x", k)):
            require_category_codes(name, points, self.category_counts(k.shape[1]))

    def _rows_seen(self, q: NewInputs, rows: Rows, prior: Prior | None) -> Rows:
        """Returns checked rows, of weight 0 where the prior hides them from every query."""
        self.check_inputs(q, rows.x)
        if prior is None:
            return rows
        prior.check(len(q), len(rows.x))
        mask = key_mask_of(prior)
        if mask.reason_beyond() is not None:
            raise ValueError(
                f"{type(self).__name__} takes a prior only if it hides the same rows from every "
                f"query, as that of ak.HoldOut; got {prior!r}. Leave-one-out needs a fit for each "
                f"row: choose lengthscales by objective=ak.AICc() or ak.GCV()."
            )
        if mask.allowed is None:
            return rows
        weights = jnp.where(mask.allowed, rows.row_weights(rows.x.dtype), 0.0)
        return rows.with_weights(weights)


def _predict(model: DenseSmoother, prior: None, q: NewInputs, rows: Rows) -> Predictions:
    """Returns predictions from checked data."""
    return _apply(model.hat_rows(q, rows.x, rows.row_weights(q.dtype)), rows)


def _apply(weights: Float[Array, "m n"], rows: Rows) -> Predictions:
    """Returns weighted sums of centred labels; NaN where no label has weight."""
    centre = jnp.mean(rows.y, axis=0, keepdims=True)
    out = centre + precise_matmul(weights, rows.y - centre)
    return rows.shaped(jnp.where(jnp.any(weights != 0, axis=1, keepdims=True), out, jnp.nan))
