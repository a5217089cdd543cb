"""A regression that says how sure it is: the mean of labels, and their variance, as functions."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import as_real_array
from .._core.regression_data import as_weights
from .._core.validation import require_instance
from ..priors import ExcludeSelf, Prior
from ..priors._base import require_prior
from ._regression import KernelRegression


class MeanVarianceRegression(eqx.Module):
    r"""Mean and variance of a label, each a kernel regression with a kernel of its own.

    $$ \hat\mu(x) = \sum_j L_j(x)\, y_j, \qquad
       \hat\sigma^2(x) = \sum_j w_j(x)\, \big( y_j - \hat\mu_{-j}(x_j) \big)^2 $$

    L are the weights of `mean`, w those of `variance`, which sum to 1, and $\hat\mu_{-j}$ is the
    mean without row j: $\hat\sigma^2$ is that of a new label about its prediction, the error of the
    prediction included. Both lengthscales are fitted at once by
    `objective=ak.HoldOut(h, score=ak.log_score)`.

    **Arguments:** `mean`: a `KernelRegression` of any order; `variance`: one of order 0 and one
    pass, whose weights are not negative.

    **Raises:** `ValueError` if `variance` is of another order, or of more passes.

    **Source:** Fan and Yao, *Efficient estimation of conditional variance functions in stochastic
    regression* (1998).
    """

    mean: KernelRegression
    variance: KernelRegression

    def __check_init__(self):
        example = "ak.KernelRegression(ak.Gaussian(0.3))"
        require_instance("mean", self.mean, KernelRegression, example)
        require_instance("variance", self.variance, KernelRegression, example)
        if self.variance.order != 0:
            raise ValueError(
                f"variance must be of order 0: a local polynomial of squares can be negative; got "
                f"order {self.variance.order}."
            )
        if self.variance.passes != 1:
            raise ValueError(
                f"variance must be of one pass: a second one can make it negative; got "
                f"{self.variance.passes} passes."
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

        The left-out means at labelled inputs see what the prior shows to a query of their row: of a
        hold-out, which hides the same labels from all, nothing leaks.
        """
        labels = as_real_array("y", y)
        if prior is not None:
            require_prior("prior", prior)
        of_rows = ExcludeSelf() if prior is None else prior * ExcludeSelf()
        left_out = self.mean(x, x, y, prior=of_rows, weights=weights)
        known = ~jnp.isnan(left_out if labels.ndim == 1 else jnp.sum(left_out, axis=1))
        # a row with no other in reach says nothing
        seen = known if labels.ndim == 1 else known[:, None]
        squares = jnp.where(seen, labels - jnp.where(seen, left_out, 0.0), 0.0) ** 2
        of_squares = jnp.ones(len(labels), squares.dtype) if weights is None else weights
        of_squares = jnp.where(known, as_weights(of_squares, len(labels)), 0.0)
        variance = self.variance(x_new, x, squares, prior=prior, weights=of_squares)
        floor = jnp.finfo(squares.dtype).eps * jnp.mean(squares)
        mean = self.mean(x_new, x, y, prior=prior, weights=weights)
        return mean, jnp.maximum(variance, floor)

    def search_box(
        self, x: Float[Array, "n dim"]
    ) -> tuple["MeanVarianceRegression", "MeanVarianceRegression"]:
        """The box for a fit, as two models: those of both regressions."""
        (low, high), (lower, upper) = self.mean.search_box(x), self.variance.search_box(x)
        return MeanVarianceRegression(low, lower), MeanVarianceRegression(high, upper)
