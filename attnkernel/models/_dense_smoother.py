"""Linear smoothers that compute their hat matrix, for a few thousand rows."""

import abc
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_points, as_real_array
from .._core.regression_data import as_weights, require_category_codes
from ..attention import jit_if_pure
from ..priors import Prior, key_mask_of, require_prior
from ._data import read_data
from ._linear_smoother import LinearSmoother
from ._prediction import on_padded_rows
from ._smoother import DataSupport

MAX_DENSE_ROWS = 3000  # 72 MB for each matrix of n × n numbers


class DenseSmoother(LinearSmoother):
    """A linear smoother whose weights $L_j(x)$ come from matrices of n × n numbers."""

    @abc.abstractmethod
    def hat_rows(
        self, q: Float[Array, "m dim"], k: Float[Array, "n dim"], weights: Float[Array, " n"]
    ) -> Float[Array, "m n"]:
        """$L_j(x)$ at queries q, from checked data; 0 where no label has weight."""

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> Float[Array, "m"] | Float[Array, "m out"]:
        """Predictions at new inputs; arguments as for `KernelRegression`.

        **Raises:** `ValueError` also for more than 3000 rows, and for a prior that does not hide
        the same rows from every query, such as that of `ak.LeaveOneOut`.
        """
        q, k, v = read_data(x_new, x, y, weights)
        self._check_inputs(q, k)
        if prior is not None:
            weights = self._weights_seen(prior, weights, q, k)
            _, _, v = read_data(x_new, x, y, weights)
        return on_padded_rows(_predict, self, None, weights, q, k, v, np.ndim(y) == 1)

    def effective_weights(
        self, x_new: ArrayLike, x: ArrayLike, *, weights: ArrayLike | None = None
    ) -> Float[Array, "m n"]:
        """$L_j(x)$ at new inputs; 0 where no label has weight."""
        q, k = as_points("x_new", x_new), as_points("x", x)
        self._check_inputs(q, k)
        of_rows = None if weights is None else as_weights(weights, len(k))
        return jit_if_pure(_hat_rows, (self, of_rows), q, k)

    def fitted_and_leverage(
        self, x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Float[Array, "n"] | Float[Array, "n out"], Float[Array, " n"]]:
        """Predictions at the labelled inputs, and the diagonal of L."""
        _, k, v = read_data(x, x, y, weights)
        rows = self.effective_weights(k, k, weights=weights)
        out = _apply(rows, v)
        return (out[:, 0] if np.ndim(y) == 1 else out), jnp.diag(rows)

    def predict_with_variance(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        variance: ArrayLike,
        *,
        weights: ArrayLike | None = None,
    ) -> tuple[Array, Array, DataSupport]:
        """Predictions, `prediction_variance` and `data_support`, from the same weights."""
        return self._with_weights(x_new, x, y, variance, weights)[1:]

    def fitted_with_variance(
        self, x: ArrayLike, y: ArrayLike, variance: ArrayLike, *, weights: ArrayLike | None = None
    ) -> tuple[Array, Float[Array, " n"], Array, DataSupport]:
        """`fitted_and_leverage`, `prediction_variance` and `data_support`, from the same L."""
        rows, out, squares, support = self._with_weights(x, x, y, variance, weights)
        return out, jnp.diag(rows), squares, support

    def _with_weights(
        self, x_new: ArrayLike, x: ArrayLike, y: ArrayLike, variance: ArrayLike, weights: Any
    ) -> tuple[Array, Array, Array, DataSupport]:
        """Returns the weights L, and the results of `predict_with_variance` from them."""
        q, k, v = read_data(x_new, x, y, weights)
        rows = self.effective_weights(q, k, weights=weights)
        out = _apply(rows, v)
        squares = jnp.matmul(rows**2, as_real_array("variance", variance), precision="highest")
        support = self.data_support(q, k, weights=weights)
        return rows, (out[:, 0] if np.ndim(y) == 1 else out), squares, support

    def _check_inputs(self, q: Float[Array, "m dim"], k: Float[Array, "n dim"]) -> None:
        """Raises `ValueError` for too many rows, or invalid codes of categories."""
        if len(k) > MAX_DENSE_ROWS:
            raise ValueError(
                f"{type(self).__name__} solves for matrices of n × n numbers, and takes up to "
                f"{MAX_DENSE_ROWS} rows; got {len(k)}. Fit it to a random part of the rows."
            )
        for name, points in (("x_new", q), ("x", k)):
            require_category_codes(name, points, self.category_counts(k.shape[1]))

    def _weights_seen(
        self,
        prior: Prior,
        weights: ArrayLike | None,
        q: Float[Array, "m dim"],
        k: Float[Array, "n dim"],
    ) -> Float[Array, " n"]:
        """Returns the weights of rows, 0 in those that the prior hides from every query."""
        require_prior("prior", prior)
        prior.check(len(q), len(k))
        mask = key_mask_of(prior)
        if mask.reason_beyond() is not None:
            raise ValueError(
                f"{type(self).__name__} takes a prior only if it hides the same rows from every "
                f"query, as that of ak.HoldOut; got {prior!r}. Leave-one-out needs a fit for each "
                f"row: choose lengthscales by objective=ak.AICc() or ak.GCV()."
            )
        of_rows = jnp.ones(len(k)) if weights is None else as_weights(weights, len(k)) * 1.0
        return of_rows if mask.allowed is None else jnp.where(mask.allowed, of_rows, 0.0)


def _hat_rows(
    model: DenseSmoother, weights: Array | None, q: Float[Array, "m dim"], k: Float[Array, "n dim"]
) -> Float[Array, "m n"]:
    """Returns the rows of the hat matrix at queries; `weights`: of rows, None: 1."""
    ones = jnp.ones(len(k), k.dtype)
    return model.hat_rows(q, k, ones if weights is None else jnp.asarray(weights, k.dtype))


def _predict(
    model: DenseSmoother,
    prior: None,
    weights: Array | None,
    has_one_label: bool,
    q: Float[Array, "m dim"],
    k: Float[Array, "n dim"],
    v: Float[Array, "n out"],
) -> Float[Array, "m"] | Float[Array, "m out"]:
    """Returns predictions from checked data."""
    out = _apply(_hat_rows(model, weights, q, k), v)
    return out[:, 0] if has_one_label else out


def _apply(rows: Float[Array, "m n"], v: Float[Array, "n out"]) -> Float[Array, "m out"]:
    """Returns weighted sums of centred labels; NaN where no label has weight."""
    centre = jnp.mean(v, axis=0, keepdims=True)
    out = centre + jnp.matmul(rows, v - centre, precision="highest")
    return jnp.where(jnp.any(rows != 0, axis=1, keepdims=True), out, jnp.nan)
