"""Mean and variance of a label given its input, each a kernel regression."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, as_real_array
from .._core.rows import as_weights, require_finite_squares
from .._core.validation import require_instance
from ..priors import ExcludeSelf, Prior, require_prior
from ._linear_smoother import LinearSmoother


class MeanVarianceRegression(eqx.Module):
    r"""Mean and variance of a label, each a linear smoother with a kernel of its own.

    $$ \hat\mu(x) = \sum_j L_j(x)\, y_j, \qquad
       \hat\sigma^2(x) = \sum_j w_j(x)\, \big( y_j - \hat\mu_{-j}(x_j) \big)^2 $$

    L are the weights of `mean`, w those of `variance`, which sum to 1, and $\hat\mu_{-j}$ is the
    mean without row j. $\hat\sigma^2$ is the variance of a new label about its prediction, and
    includes the error of the prediction. Both lengthscales are fitted at once by
    `objective=ak.HoldOut(h, score=ak.objectives.log_score)`.

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

    def __call__(
        self,
        x_new: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        *,
        prior: Prior | None = None,
        weights: ArrayLike | None = None,
    ) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
        """Means and variances at new inputs; arguments as for `KernelRegression`.

        The left-out mean of row j uses the labels that `prior` allows for query j, without its own.
        A hold-out hides the same labels from all queries, so that none of them enters.
        """
        labels = as_real_array("y", y)
        require_finite_squares("y", labels)
        if prior is not None:
            require_prior("prior", prior)
        others = ExcludeSelf() if prior is None else prior * ExcludeSelf()
        left_out = self.mean(x, x, y, prior=others, weights=weights)
        known = ~jnp.isnan(left_out if labels.ndim == 1 else jnp.sum(left_out, axis=1))
        # rows with no other row in reach have no left-out residual
        known_labels = known if labels.ndim == 1 else known[:, None]
        residuals = labels - jnp.where(known_labels, left_out, 0.0)
        squares = jnp.where(known_labels, residuals, 0.0) ** 2
        row_weights = jnp.ones(len(labels), squares.dtype) if weights is None else weights
        row_weights = jnp.where(known, as_weights(row_weights, len(labels)), 0.0)
        variance = self.variance(x_new, x, squares, prior=prior, weights=row_weights)
        has_residual = row_weights > 0 if labels.ndim == 1 else (row_weights > 0)[:, None]
        mean_square = jnp.mean(squares, where=has_residual)
        floor = jnp.nan_to_num(jnp.finfo(squares.dtype).eps * mean_square)
        mean = self.mean(x_new, x, y, prior=prior, weights=weights)
        return mean, jnp.maximum(variance, floor)

    def search_box(
        self, x: Float[AnyArray, "n dim"], weights: AnyArray | None = None
    ) -> tuple["MeanVarianceRegression", "MeanVarianceRegression"]:
        """The box for a fit, as two models: those of both regressions."""
        (low, high), (lower, upper) = (
            part.search_box(x, weights) for part in (self.mean, self.variance)
        )
        return MeanVarianceRegression(low, lower), MeanVarianceRegression(high, upper)
