"""Mean and variance of a label given its input, each a kernel regression."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core.arrays import AnyArray
from .._core.rows import Inputs, NewInputs, Rows, require_finite_squares
from .._core.validation import require_instance
from ..priors import ExcludeSelf, Prior
from ._linear_smoother import LinearSmoother
from ._smoother import RowsRegression


class MeanVarianceRegression(RowsRegression):
    r"""Mean and variance of a label, each a linear smoother with a kernel of its own.

    $$ \hat\mu(x) = \sum_j L_j(x)\, y_j, \qquad
       \hat\sigma^2(x) = \sum_j w_j(x)\, \big( y_j - \hat\mu_{-j}(x_j) \big)^2 $$

    L are the weights of `mean`, w those of `variance`, which sum to 1, and $\hat\mu_{-j}$ is the
    mean without row j. $\hat\sigma^2$ is the variance of a new label about its prediction, and
    includes the error of the prediction. A call returns the tuple $(\hat\mu, \hat\sigma^2)$. Both
    lengthscales are fitted at once by `objective=ak.HoldOut(h, score=ak.objectives.log_score)`.
    Called with `weights`, both smoothers use them.

    **Arguments:**

    - `mean`: a linear smoother, such as a `KernelRegression` of any order.
    - `variance`: one whose weights are not negative, such as a `KernelRegression` of order 0.

    **Raises:** `ValueError` if the weights of `variance` may be negative.

    **Source:** Fan and Yao, *Efficient estimation of conditional variance functions in stochastic
    regression* (1998).

    ```python
    smoother = ak.KernelRegression(ak.Gaussian(0.3))
    x = np.linspace(0.0, 1.0, 50)
    mean, variance = ak.MeanVarianceRegression(smoother, smoother)(x, x, np.sin(6 * x))
    ```
    """

    mean: LinearSmoother
    variance: LinearSmoother

    def __check_init__(self):
        example = "ak.KernelRegression(ak.Gaussian(0.3))"
        require_instance("mean", self.mean, LinearSmoother, example)
        require_instance("variance", self.variance, LinearSmoother, example)
        if not self.variance.has_nonnegative_weights:
            raise ValueError(
                f"variance must have weights from 0, as a KernelRegression of order 0 has, or a "
                f"variance could be negative; got {self.variance.description}."
            )

    def predict(
        self, q: NewInputs, rows: Rows, prior: Prior | None
    ) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
        """Means and variances from checked data.

        The left-out mean of row j uses the labels that `prior` allows for query j, without its own.
        A hold-out hides the same labels from all queries, and no hidden label enters. Variances are
        at least ε, the rounding unit, times the mean of the squared residuals.

        **Raises:** `ValueError` for labels whose squared differences leave the range of the dtype.
        """
        require_finite_squares("y", rows.y)
        x, data = rows.x, {"weights": rows.weights}
        others = ExcludeSelf() if prior is None else prior * ExcludeSelf()
        left_out = self.mean(x, x, rows.y, prior=others, **data)
        # rows with no other row in reach have no left-out residual
        known = ~jnp.isnan(jnp.sum(left_out, axis=1))
        residuals = rows.y - jnp.where(known[:, None], left_out, 0.0)
        squares = jnp.where(known[:, None], residuals, 0.0) ** 2
        weights = jnp.where(known, rows.row_weights(squares.dtype), 0.0)
        variance = self.variance(q, x, squares, prior=prior, weights=weights)
        mean_square = jnp.mean(squares, where=(weights > 0)[:, None])
        floor = jnp.nan_to_num(jnp.finfo(squares.dtype).eps * mean_square)
        mean = self.mean(q, x, rows.y, prior=prior, **data)
        return rows.shaped(mean), rows.shaped(jnp.maximum(variance, floor))

    def search_box(self, x: Inputs, weights: AnyArray | None = None) -> tuple[Any, Any]:
        """Returns the box for a fit, as two models: lower bounds of both parts, and upper ones."""
        (low, high), (lower, upper) = (
            part.search_box(x, weights) for part in (self.mean, self.variance)
        )
        return MeanVarianceRegression(low, lower), MeanVarianceRegression(high, upper)
